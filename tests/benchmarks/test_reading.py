"""JSON, tables, arrays and sealed tensors: what says more than it has, or is not what was written."""

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nfn_monomial import MonomialError
from nfn_monomial.benchmarks.reading import map_array, read_rows, whole
from nfn_monomial.tools.files.untrusted import parse_json

DEEP = "[" * 1500 + "]" * 1500


@pytest.mark.parametrize(
    "text", [DEEP, '{"a":' * 1500 + "1" + "}" * 1500, "NaN", "[Infinity]", "1e999", "9" * 5000, str(2**64), "{", ""]
)  # fmt: skip
def test_json_beyond_the_limits(text: str) -> None:
    with pytest.raises(MonomialError):
        parse_json(text)


@pytest.mark.parametrize("value", [5.9, -1, "5.9", "9" * 5000, 10**18, float("nan"), None, [], True, "²"])
def test_what_is_no_whole_number(value: Any) -> None:
    with pytest.raises(MonomialError, match=r"label is .*expected a whole number from 0 to 1000000000"):
        whole(value, "label")
    assert [whole(v, "label") for v in (5, 5.0, "5", "5.0")] == [5] * 4


@pytest.mark.parametrize(
    "data",
    [
        gzip.compress(bytes(2**27), 1, mtime=0), gzip.compress((bytes(1000) + b"\n") * 2**15, 9, mtime=0),
        gzip.compress(b"a,b\n", mtime=0)[:-3], gzip.compress(b"a,b\n", mtime=0) + bytes(100), b"a,b\n",
    ],
)  # fmt: skip
def test_compressed_tables_that_are_none(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.csv.gz"
    path.write_bytes(data)
    with pytest.raises(Exception, match=r"it has|compressed|incorrect header"):
        list(read_rows(path))


def test_arrays_are_held_against_their_files(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.ones((3, 4), np.float32))
    assert np.array_equal(map_array(path, np.float32, 2), np.ones((3, 4)))
    data = path.read_bytes()
    for old, new in ((b"(3, 4)", b"(-3,4)"), (b"(3, 4)", b"(4, 4)"), (b"(3, 4)", b"(2, 4)"), (b"<f4", b"<i4")):
        path.write_bytes(data.replace(old, new))
        with pytest.raises(MonomialError):
            map_array(path, np.float32, 2)
