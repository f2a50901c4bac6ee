"""Untrusted pickles: no name in them is imported or called, and they take no more memory than the file has."""

from __future__ import annotations

import argparse
import collections
import contextlib
import copyreg
import dataclasses
import enum
import functools
import io
import os
import pathlib
import pickle
import resource
import struct
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from published_writers import Marker
from torch import Tensor, nn

from nfn_monomial import MonomialError
from nfn_monomial.tools.files.pickles import Inert, Unpickler
from nfn_monomial.tools.files.tensors import read_torch_file

LEGACY = {"_use_new_zipfile_serialization": False}


@dataclasses.dataclass
class Settings:
    """A configuration of one's own."""

    rate: float = 0.1
    layers: tuple[int, ...] = (2, 3)


class Kind(enum.Enum):
    """Pickled as a call of its class."""

    ONE = 1


class Slotted:
    """Its state is a pair of dicts."""

    __slots__ = ("inner",)

    def __init__(self) -> None:
        self.inner = "kept"


class Attributes(dict[str, Any]):
    """A dict of a class of one's own, as configurations often are."""


PLAIN = {
    "list": [1, -(2**40), 2**70, 2.5, None, True, "text", b"bytes", (1, 2)], "size": torch.Size((1, 2)), "set": {1},
    "é": {"é": {}},
}  # fmt: skip


def beside_weights() -> dict[str, Any]:
    return {
        "args": argparse.Namespace(rate=0.1, depth=3), "settings": Settings(), "kind": Kind.ONE, "slots": Slotted(),
        "attributes": Attributes(rate=0.1), "counts": collections.defaultdict(list, {"a": [1]}),
        "path": pathlib.PurePosixPath("/a/b"), "array": np.arange(3), "accuracy": np.float64(0.5), "complex": 1 + 2j,
        "partial": functools.partial(print, "x"), "class": nn.Linear, "function": os.getcwd, "dtype": torch.bfloat16,
        "by kind": {Kind.ONE: 1, ((1, 2), (3, 4)): 2}, "module": nn.Linear(2, 3), "frozen": frozenset({1, 2}),
        "range": range(3), "bytes": bytearray(b"abc"), "device": torch.device("cpu"), **PLAIN,
    }  # fmt: skip


@pytest.mark.parametrize("options", [{}, LEGACY, {"pickle_protocol": 3}, {"pickle_protocol": 5}])
def test_whatever_stands_beside_weights_is_no_obstacle(options: dict[str, Any], tmp_path: Path) -> None:
    weights = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).state_dict()
    torch.save({"state_dict": weights, **beside_weights()}, tmp_path / "a.pt", **options)
    found = read_torch_file(tmp_path / "a.pt")
    assert all(torch.equal(found["state_dict"][key], tensor) for key, tensor in weights.items())
    assert found["state_dict"]._metadata == weights._metadata
    assert {name: found[name] for name in PLAIN} == PLAIN
    assert vars(found["args"]) == {"rate": 0.1, "depth": 3}
    assert vars(found["settings"]) == {"rate": 0.1, "layers": (2, 3)}
    assert vars(found["slots"]) == {"inner": "kept"}
    assert found["args"].pickled_name == "argparse.Namespace"
    assert found["settings"].pickled_name.endswith("test_pickles.Settings")
    assert vars(found["module"])["_parameters"]["weight"].shape == (3, 2)
    kinds = ("args", "settings", "kind", "attributes", "path", "array", "partial", "class", "function", "module")
    assert all(type(found[name]) is Inert for name in kinds)
    assert (found["dtype"], found["device"]) == (torch.bfloat16, torch.device("cpu"))
    assert [*found["by kind"].values()] == [1, 2]
    assert found["counts"] == {"a": [1]}


@pytest.mark.parametrize("options", [{}, LEGACY])
def test_tensors_of_all_forms(options: dict[str, Any], tmp_path: Path) -> None:
    base = torch.arange(24.0).view(4, 6)
    dtypes = [torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool, torch.complex64,
              torch.float8_e4m3fn, torch.float8_e5m2, torch.uint16]  # fmt: skip
    marked = torch.ones(3)
    marked.note = "an attribute of its own"  # type: ignore[attr-defined]
    parameter = nn.Parameter(torch.ones(2))
    parameter.note = "as well"  # type: ignore[attr-defined]
    content = {str(dtype): base.to(dtype) for dtype in dtypes} | {
        "transposed": base.T, "row": base[1], "step": base[:, ::2], "whole": base, "empty": torch.zeros(0, 3),
        "scalar": torch.tensor(2.0), "grad": torch.ones(2, requires_grad=True), "marked": marked,
        "parameter": parameter, "buffer": nn.Buffer(torch.ones(2)),
    }  # fmt: skip
    torch.save(content, tmp_path / "a.pt", **options)
    found = read_torch_file(tmp_path / "a.pt")
    for key, tensor in content.items():
        assert (found[key].dtype, found[key].stride()) == (tensor.dtype, tensor.stride()), key
        assert (type(found[key]), found[key].requires_grad) == (type(tensor), tensor.requires_grad)
        assert torch.equal(found[key].detach().to(torch.complex128), tensor.detach().to(torch.complex128)), key
    found["whole"][1, 2] = -1
    assert (found["row"][2], found["transposed"][2, 1]) == (-1, -1), "views of one storage stay so"


class Calls:
    """Pickled as a call of anything."""

    def __init__(self, called: Any, *arguments: Any) -> None:
        self.call = called, arguments

    def __reduce__(self) -> Any:
        return self.call


def _nested(mark: Path) -> bytes:
    buffer = io.BytesIO()
    torch.save(Marker(mark), buffer, **LEGACY)
    return buffer.getvalue()


CALLED: dict[str, Callable[[Path], Calls]] = {
    "system": lambda mark: Calls(os.system, f"touch {mark}"),
    "eval": lambda mark: Calls(eval, f"open({str(mark)!r}, 'w')"),
    "torch.load": lambda mark: Calls(torch.load, str(mark.with_name("evil.pt"))),
    "nested": lambda mark: Calls(torch.storage._load_from_bytes, _nested(mark)),
    "partial": lambda mark: Calls(functools.partial(open, str(mark), "w")),
    "reconstructor": lambda mark: Calls(copyreg._reconstructor, Marker, object, None),  # type: ignore[attr-defined]
    "import": lambda mark: Calls(__import__, "this"),
    "typed": lambda mark: Calls(torch._tensor._rebuild_from_type_v2, os.system, Tensor, (f"touch {mark}",), {}),
}
SEEN: list[str] = []
LISTENING: list[bool] = []


def _listen(event: str, arguments: tuple[object, ...]) -> None:
    if LISTENING and (event in ("os.system", "pickle.find_class") or (event == "import" and arguments[0] == "this")):
        SEEN.append(f"{event} {arguments}")


sys.addaudithook(_listen)


@contextlib.contextmanager
def nothing_named_is_imported_or_run() -> Iterator[None]:
    LISTENING.append(True)
    try:
        yield
    except Exception:  # each of which `damaged` turns into one of ours
        pass
    finally:
        LISTENING.clear()
    assert SEEN == []


@pytest.mark.parametrize("options", [{}, LEGACY])
@pytest.mark.parametrize("name", CALLED)
def test_nothing_named_is_called(name: str, options: dict[str, Any], tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    torch.save({"weight": torch.ones(2), "call": CALLED[name](mark)}, tmp_path / "a.pt", **options)
    (tmp_path / "evil.pt").write_bytes(pickle.dumps(Marker(mark)))
    found = {"call": Inert("refused")}
    with nothing_named_is_imported_or_run():
        found = read_torch_file(tmp_path / "a.pt")
    assert type(found["call"]) is Inert
    assert not mark.exists()


def _global(name: str) -> bytes:
    return b"c" + name.replace("/", "\n").encode() + b"\n"


STORAGE = b"(X\x07\0\0\0storage" + _global("torch/FloatStorage") + b"X\x01\0\0\x000X\x03\0\0\0cpuK\x04tQ"
TENSOR = _global("torch._utils/_rebuild_tensor_v2")


def _tensor(offset: bytes, size: bytes, stride: bytes, storage: bytes = STORAGE) -> bytes:
    return TENSOR + b"(" + storage + offset + b"(" + size + b"t(" + stride + b"t\x89}tR"


def _int(number: int) -> bytes:
    data = number.to_bytes(9, "little", signed=True)
    return b"\x8a" + bytes([len(data)]) + data


MANY = b")q\0" + b"".join(b"0h%ch%c\x86q%c" % (i, i, i + 1) for i in range(60))  # each twice the one before
ENTRIES = b"".join(b"X\2\0\0\0" + f"{i:02x}".encode() + b"N" for i in range(256))
TEXT = b"X" + struct.pack("<I", 4000) + b"a" * 4000
RAISED = {
    "negative size": _tensor(b"K\0", b"J\xff\xff\xff\xff", b"K\1"),
    "negative stride": _tensor(b"K\0", b"K\2", b"J\xff\xff\xff\xff"),
    "negative offset": _tensor(b"J\xff\xff\xff\xff", b"K\2", b"K\1"),
    "behind the end": _tensor(b"K\3", b"K\2", b"K\1"),
    "stride behind the end": _tensor(b"K\0", b"K\2", b"K\4"),
    "overflow": _tensor(b"K\0", _int(2**62) * 2, b"K\0K\0"),
    "expanded": _tensor(b"K\0", b"K\5", b"K\0"),
    "a bool for a size": _tensor(b"K\0", b"\x88", b"K\1"),
    "other dimensions": _tensor(b"K\0", b"K\2", b"K\1K\1"),
    "text for a size": TENSOR + b"(" + STORAGE + b"K\0X\1\0\0\0aX\1\0\0\0a\x89}tR",
    "no storage": _tensor(b"K\0", b"K\2", b"K\1", b"N"),
    "storage of text": _tensor(b"K\0", b"K\2", b"K\1", b"X\1\0\0\0aQ"),
    "larger storage": _tensor(b"K\0", b"K\2", b"K\1", STORAGE.replace(b"K\x04", b"K\x05")),
    "huge storage": _tensor(b"K\0", b"K\2", b"K\1", STORAGE.replace(b"K\x04", _int(2**60))),
    "storage of -1": _tensor(b"K\0", b"K\2", b"K\1", STORAGE.replace(b"K\x04", _int(-1))),
    "double storage": _tensor(b"K\0", b"K\2", b"K\1", STORAGE.replace(b"FloatS", b"DoubleS")),
    "storage of a class": _tensor(b"K\0", b"K\2", b"K\1", STORAGE.replace(b"FloatS", b"OddS")),
    "absent storage": _tensor(b"K\0", b"K\2", b"K\1", STORAGE.replace(b"\x000X", b"\x009X")),
    "key of a list": _tensor(b"K\0", b"K\2", b"K\1", STORAGE.replace(b"X\x01\0\0\x000", b"]")),
    "extension": b"\x82\x01", "extension 2": b"\x83\x01\x01", "extension 4": b"\x84\x01\0\0\0",
    "buffer": b"\x97", "read-only buffer": b"C\1a\x98", "bytes of a GiB": b"\x96" + struct.pack("<Q", 2**36),
    "persistent text": b"P0\n", "unknown": b"\xfe", "call of a list": b"])R", "call of a tensor":
    _tensor(b"K\0", b"K\2", b"K\1") + b")R", "arguments in a list": _global("os/system") + b"]R",
    "instance": b"(ios\nsystem\n", "object": b"(" + _global("os/system") + b"X\4\0\0\0trueo", "duplicate": b"N2\x86",
    "state again and again": _global("a/B") + b"q\0}q\1(" + ENTRIES + b"u0" + b"h\0)Rh\1b0" * 500 + b"N",
    "text again and again": _global("_codecs/encode") + b"q\0" + TEXT + b"q\x010"
    + b"h\0h\1X\0\0\0\0\x86R0" * 10 + b"N",
    "nothing": b"", "mark that is not there": b"t",
}  # fmt: skip


def _read(pickled: bytes, folder: Path) -> Any:
    """What a file of torch says with this pickle and a storage of 0, 1, 2, 3."""
    with zipfile.ZipFile(folder / "a.pt", "w") as archive:
        archive.writestr("a/data.pkl", b"\x80\x02" + pickled + b".")
        archive.writestr("a/byteorder", "little")
        archive.writestr("a/data/0", struct.pack("<4f", *range(4)))
    return read_torch_file(folder / "a.pt")


@pytest.mark.parametrize("name", RAISED)
def test_pickles_that_torch_does_not_write_are_errors(name: str, tmp_path: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(MonomialError, match=r"a\.pt is damaged"):
        _read(RAISED[name], tmp_path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < before + 2**18  # KiB


@pytest.mark.parametrize(
    "pickled",
    [
        b"}" + _tensor(b"K\0", b"K\2", b"K\1") + b"Ns", b"}]Ns", b"}" + MANY + b"Ns", b"\x8f(" + MANY + b"\x90",
        b"(" + MANY + b"\x91", b"}" + _int(2**70) + b"Ns", b"}K\1K\2\x86Ns",
        _global("collections/OrderedDict") + b"]" + MANY + b"N\x86a\x85R",
    ],
    ids=["tensor", "list", "many parts", "set", "frozen set", "long number", "numbers", "ordered dict"],
)  # fmt: skip
def test_keys_that_could_take_long_to_compare_are_inert(pickled: bytes, tmp_path: Path) -> None:
    assert [type(key) for key in _read(pickled, tmp_path)] == [Inert]


@pytest.mark.parametrize(
    "pickled",
    [
        _global("os/system") + b")\x81", _global("builtins/getattr") + _global("os/a") + b"X\6\0\0\0system\x86R)R",
        _global("os/system") + b")}\x92", b"X\2\0\0\0osX\6\0\0\0system\x93)R", _global("a/b") + b")R)R}b",
        _global("a/b") + b"}X\6\0\0\0appendNsbNa", _global("a/b") + b"(K\1e", _global("a/b") + b"K\1K\2s",
        _global("a/b") + b"(K\1\x90", _global("builtins/bytearray") + b"J\0\0\0\x7f\x85R",
        _global("a/b") + b"N}X\6\0\0\0__doc__"[:0] + b"N}\x86b", b"(N" + b"\x85" * 3000 + b"1" + _global("a/b"),
    ],
)  # fmt: skip
def test_objects_by_every_instruction_are_inert(pickled: bytes, tmp_path: Path) -> None:
    assert type(_read(pickled, tmp_path)) is Inert


def test_what_is_read_is_checked_by_the_same_file_when_it_is_right(tmp_path: Path) -> None:
    assert _read(_tensor(b"K\1", b"K\3", b"K\1"), tmp_path).tolist() == [1, 2, 3]
    assert _read(b"Nr" + struct.pack("<I", 2**32 - 1), tmp_path) is None  # the C unpickler takes 64 GiB for this memo


def test_real_objects_take_no_state_and_no_items(tmp_path: Path) -> None:
    tensor = _tensor(b"K\0", b"K\2", b"K\1") + b"q\0"
    for change in (b"}X\1\0\0\0aK\1sb", b"K\0K\1s", b"(K\1\x90", b"K\1a", b"N}X\4\0\0\0dataK\1s\x86b"):
        found = _read(tensor + change, tmp_path)
        assert found.tolist() == [0, 1]
        assert not vars(found)


NAMES = ("os/system", "builtins/getattr", "torch/load", "torch/float32", "torch/FloatStorage", "this/s",
         "torch._utils/_rebuild_tensor_v2", "torch._utils/_rebuild_parameter", "collections/OrderedDict", "torch/Size",
         "torch/device", "_codecs/encode", "copyreg/_reconstructor", "torch._tensor/_rebuild_from_type_v2",
         "__builtin__/set", "functools/partial", "torch.storage/_load_from_bytes")  # fmt: skip
PIECES = (
    *map(_global, NAMES),
    *(bytes([code]) for code in b"N\x88])}\x8f(t\x85\x86\x87aesu\x90\x91RRR\x81\x92bb01\x94\x93Qo2"),
    b"K\1", b"J\xff\xff\xff\xff", b"X\1\0\0\0a", b"X\6\0\0\0system", b"X\2\0\0\0os", b"X\6\0\0\0latin1", b"q\0", b"h\0",
    STORAGE, _tensor(b"K\0", b"K\2", b"K\1"), b"C\3abc", b"ios\nsystem\n", b"\x82\1",
    b"\x8e" + struct.pack("<Q", 2**40),
)  # fmt: skip


@given(st.lists(st.sampled_from(PIECES), max_size=60))
@settings(max_examples=300)
def test_no_program_imports_or_runs_anything(pieces: list[bytes]) -> None:
    pickled = b"".join(pieces) + b"."
    with nothing_named_is_imported_or_run():
        Unpickler(io.BytesIO(pickled), len(pickled), lambda key, dtype, nbytes: bytearray(16)).load()
