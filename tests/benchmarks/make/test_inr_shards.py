"""Shards of corpora of SIRENs: damage is named and mended, and networks are read from where they lie."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from tiny_inrs import TINY, shards
from torch import Tensor

from nfn_monomial.benchmarks.data.formats.made_inrs import CORPUS_FILE, load_inrs
from nfn_monomial.benchmarks.data.rows import TensorRows
from nfn_monomial.benchmarks.data.shards import ShardRows
from nfn_monomial.benchmarks.make.inrs import make_inrs
from nfn_monomial.benchmarks.studies.classify import fingerprint, subset
from nfn_monomial.tools.sealed import read_sealed, seal

# Damage


def test_shards_that_are_nobodys_are_left_alone(copied: Path) -> None:
    (copied / CORPUS_FILE).unlink()
    with pytest.raises(ValueError, match=r"holds shard-00000.safetensors, .* but no corpus.json.*another folder"):
        make_inrs(copied, TINY, overwrite=True)


def reseal(path: Path, change: Callable[[Tensor], Tensor] = lambda t: t, **changed: Tensor) -> None:
    """Write a shard again with other tensors, as if they had been meant."""
    tensors, stated = read_sealed(path)
    path.write_bytes(seal({name: change(t) for name, t in (tensors | changed).items()}, stated))


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:1000])


def _drop(path: Path) -> None:
    tensors, stated = read_sealed(path)
    path.write_bytes(seal({name: t for name, t in tensors.items() if name != "bias.1"}, stated))


def _reshape(path: Path) -> None:
    reseal(path, **{"weight.1": load_file(path)["weight.1"][:, :-1]})


def _shorten(path: Path) -> None:
    reseal(path, lambda t: t[:-1])


def _not_finite(path: Path) -> None:
    weight = load_file(path)["weight.1"]
    weight[5, 3, 2] = torch.nan
    reseal(path, **{"weight.1": weight})


def _other_label(path: Path) -> None:
    reseal(path, label=(load_file(path)["label"] + 1) % 10)


def _other_image(path: Path) -> None:
    reseal(path, image=load_file(path)["image"] + 10**6)


def _negative(path: Path) -> None:
    reseal(path, image=-load_file(path)["image"])


def _twice(path: Path) -> None:
    reseal(path, lambda t: t[[0, *range(len(t) - 1)]])


def _another(path: Path) -> None:
    path.write_bytes(path.with_name("shard-00000.safetensors").read_bytes())


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1000] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (Path.unlink, "shard-00001.safetensors is missing"),
        (_truncate, "shard-00001.safetensors is damaged"),
        (_drop, r"shard-00001.safetensors .*bias.1 is missing, expected"),
        (_reshape, r"shard-00001.safetensors .*weight.1 is .*\(16, 31, 32\)\), expected .*\(16, 32, 32\)"),
        (_not_finite, r"shard-00001.safetensors: weight.1 holds NaN or infinite values in row 5"),
        (_shorten, r"speaks of networks .*'train': 64.* the shards hold .*'train': 63"),
        (_other_label, r"network 16 has the label \d, its image \d"),
        (_other_image, r"image 100\d{4}, but digits has 1797"),
        (_negative, "image is negative"),
        (_twice, "a network occurs twice"),
        (_another, "a shard of another corpus or another place"),
        (_flip, "do not have the checksum that it states"),
    ],
)
def test_damaged_shards_are_named_and_can_be_mended(
    corpus_folder: Path, copied: Path, damage: Any, message: str
) -> None:
    damage(copied / "shard-00001.safetensors")
    with pytest.raises(ValueError, match=message) as caught:
        load_inrs(copied)
    assert "`nfn-monomial inr make` with the options it was made with" in str(caught.value)
    assert make_inrs(copied, TINY).made == 16
    assert shards(copied) == shards(corpus_folder)


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "{}",
        '{"kind": "another"}',
        '{"kind": "INRs made by nfn-monomial"}',
        '{"kind": "INRs made by nfn-monomial", "siren": {"sizes": [3, 4]}}',
    ],
)
def test_descriptions_of_something_else_are_refused(copied: Path, text: str) -> None:
    (copied / CORPUS_FILE).write_text(text, encoding="utf-8")
    for use in (load_inrs, lambda folder: make_inrs(folder, TINY)):
        with pytest.raises(ValueError, match=r"corpus.json .*describes no corpus .*give another folder"):
            use(copied)


@pytest.mark.parametrize(
    ("part", "name", "value"),
    [("config", "shard", "16"), ("pictures", "fingerprint", 1), ("networks", "test", None), ("siren", "omega", 30.0)],
)
def test_descriptions_with_an_entry_gone_wrong_are_refused(copied: Path, part: str, name: str, value: Any) -> None:
    found = json.loads((copied / CORPUS_FILE).read_text(encoding="utf-8"))
    found[part][name] = value
    (copied / CORPUS_FILE).write_text(json.dumps(found), encoding="utf-8")
    with pytest.raises(ValueError, match=f"corpus.json is damaged .*{name}.*describes no corpus"):
        load_inrs(copied)


def test_no_corpus_at_all(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"holds no corpus.json: give a folder that"):
        load_inrs(tmp_path / "nowhere")


def test_other_images_than_those_that_were_fitted_are_noticed(copied: Path) -> None:
    found = json.loads((copied / CORPUS_FILE).read_text(encoding="utf-8"))
    found["pictures"]["fingerprint"] = "0" * 16
    (copied / CORPUS_FILE).write_text(json.dumps(found), encoding="utf-8")
    with pytest.raises(ValueError, match="was fitted to other images than the digits installed here"):
        load_inrs(copied)
    with pytest.raises(ValueError, match="fingerprint is '0000000000000000' there"):
        make_inrs(copied, TINY)


# Rows in shards


@given(data=st.data(), counts=st.lists(st.integers(1, 5), min_size=1, max_size=5))
def test_rows_of_shards_are_the_rows_of_all(data: st.DataObject, counts: list[int]) -> None:
    total = sum(counts)
    tensors = {"weight.0": torch.rand(total, 3, 2), "bias.0": torch.rand(total, 3)}
    rows = st.lists(st.integers(0, total - 1), min_size=1, max_size=8)
    chosen = torch.tensor(data.draw(rows))
    index = torch.tensor(data.draw(st.lists(st.integers(0, len(chosen) - 1), max_size=8)), dtype=torch.int64)
    parts = [
        dict(zip(tensors, part, strict=True)) for part in zip(*(t.split(counts) for t in tensors.values()), strict=True)
    ]
    paths = [Path(f"shard-{k}") for k in range(len(parts))]
    found = ShardRows(paths, parts, counts, {"weight.0": (3, 2), "bias.0": (3,)}, chosen, "")
    wanted = TensorRows({name: t[chosen] for name, t in tensors.items()})
    assert len(found) == len(wanted)
    assert found.shapes == wanted.shapes
    assert found.nbytes == wanted.nbytes
    for name, tensor in wanted.read(index).items():
        assert torch.equal(found.read(index)[name], tensor)


def test_numbers_of_mapped_networks_are_checked_when_they_are_read(copied: Path) -> None:
    path = copied / "shard-00001.safetensors"
    bias = load_file(path)["bias.2"]
    bias[7] = torch.inf
    reseal(path, **{"bias.2": bias})
    rows = load_inrs(copied, in_memory_bytes=0).train.rows  # network 16 + 7 of the first fits, which are for training
    assert isinstance(rows, ShardRows)
    bad = int((rows.chosen == 23).nonzero())
    rest = torch.arange(len(rows))[torch.arange(len(rows)) != bad]
    assert all(t.isfinite().all() for t in rows.read(rest).values())
    with pytest.raises(ValueError, match=r"shard-00001.safetensors: bias.2 holds NaN or infinite values in row 7: "):
        rows.read(torch.tensor([0, bad, 1]))


def test_a_corpus_larger_than_memory_is_known_by_the_checksums_of_its_files(
    copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = fingerprint(load_inrs(copied))
    assert fingerprint(load_inrs(copied, in_memory_bytes=0)) == known, "one that fits is read, wherever it is"
    monkeypatch.setattr("nfn_monomial.benchmarks.studies.classify.IN_MEMORY_BYTES", 0)
    corpus = load_inrs(copied, in_memory_bytes=0)
    path = copied / "shard-00001.safetensors"
    reseal(path, **{"bias.2": load_file(path)["bias.2"] + 1})
    other = load_inrs(copied, in_memory_bytes=0)
    monkeypatch.setattr(ShardRows, "read", lambda *_: pytest.fail("the networks were read"))
    fewer = replace(corpus, train=subset(corpus.train, None, 3))
    assert len({known, fingerprint(corpus), fingerprint(other), fingerprint(fewer)}) == 4


def test_large_corpora_stay_in_their_files(corpus_folder: Path) -> None:
    loaded = load_inrs(corpus_folder)
    nbytes = sum(len(part) for part in (loaded.train, loaded.val, loaded.test)) * loaded.train.rows.nbytes // 64
    assert isinstance(load_inrs(corpus_folder, in_memory_bytes=nbytes).train.rows, TensorRows)
    mapped = load_inrs(corpus_folder, in_memory_bytes=nbytes - 1)
    assert isinstance(loaded.train.rows, TensorRows)
    assert isinstance(mapped.train.rows, ShardRows)
    for name in ("train", "val", "test"):
        for key, tensor in getattr(loaded, name).rows.read_all().items():
            assert torch.equal(getattr(mapped, name).rows.read_all()[key], tensor)
