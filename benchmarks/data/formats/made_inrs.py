"""A corpus of INRs on disk, as `make_inrs` writes it: read whole, or mapped if it is large.

A corpus is a folder. ``corpus.json`` states how the networks were made and what they have in common;
``shard-00000.safetensors`` and following hold 500 networks each, the last the rest: ``weight.i (n, out, in)`` and
``bias.i (n, out)``, of which omega_0 is no part; ``label``, ``image``, ``fit`` and ``split`` (0 train, 1 val, 2 test),
int64 ``(n,)``; ``psnr``, float32 ``(n,)``. Pixels are not stored: they come from the package they ship in.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nfn_monomial.adapters.files import damaged, shown
from nfn_monomial.benchmarks.data.images import Pictures, load_pictures
from nfn_monomial.benchmarks.data.rows import IN_MEMORY_BYTES, Rows, TensorRows
from nfn_monomial.benchmarks.data.shards import OpenedShards, ShardRows
from nfn_monomial.benchmarks.data.sirens import InrCorpus, InrPart, Siren
from nfn_monomial.benchmarks.reading import read_json, whole
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.tools.sealed import checksum_of, read_sealed

from .base import CorpusError, Format, register_format

__all__ = [
    "CORPUS_FILE",
    "WAY_OUT",
    "MadeInrs",
    "load_inrs",
    "open_shard",
    "read_description",
    "shard_paths",
    "siren_of",
    "statement",
]

KIND = "INRs made by nfn-monomial"
CORPUS_FILE = "corpus.json"
SHARDS = "shard-*.safetensors"
SPLITS = ("train", "val", "test")
FIELDS: dict[str, dict[str, int | None]] = {  # of the description: least whole number, or None for a text
    "config": {"images": None, "shard": 1},
    "pictures": {"fingerprint": None, "classes": 1},
    "networks": dict.fromkeys(SPLITS, 1),
}
WAY_OUT = "`nfn-monomial inr make` with the options it was made with makes what is missing or damaged"


def load_inrs(folder: str | Path, *, in_memory_bytes: int = IN_MEMORY_BYTES) -> InrCorpus:
    """The corpus that `make_inrs` left in a folder, with the images it was fitted to.

    Networks that take more than ``in_memory_bytes`` stay in their files: batches are read, and checked for numbers that
    are not finite, when they are asked for.

    Raises:
        ValueError: if there is none, it is not finished, a shard is missing or damaged or a number in it is not finite,
            or the images that are installed are others.
    """
    folder = Path(folder)
    found = read_description(folder)
    siren, networks = siren_of(found), found["networks"]
    if "psnr" not in found:
        raise CorpusError(f"{folder} holds a corpus that is not finished: {WAY_OUT}")
    pictures = load_pictures(found["config"]["images"])
    if pictures.fingerprint != found["pictures"]["fingerprint"] or pictures.classes != found["pictures"]["classes"]:
        raise CorpusError(
            f"{folder} was fitted to other images than the {pictures.name} installed here: install the versions that "
            f"{CORPUS_FILE} names, or make the corpus anew with --overwrite"
        )
    paths = list(_present(shard_paths(folder, found)))
    columns = [_columns(open_shard(path, siren, found, k)) for k, path in enumerate(paths)]
    label, image, fit, split = map(torch.cat, zip(*columns, strict=True))
    counts = dict(zip(SPLITS, split.bincount(minlength=len(SPLITS)).tolist(), strict=True))
    if counts != networks:
        raise CorpusError(f"{folder}: {CORPUS_FILE} speaks of networks {networks}, the shards hold {counts}: {WAY_OUT}")
    _check_columns(folder, pictures, label, image, fit, split)
    lengths = [len(column[0]) for column in columns]
    numbers, checksums = torch.arange(len(label)), list(map(checksum_of, paths))
    every = ShardRows(paths, OpenedShards(paths), lengths, siren.space.shapes(), numbers, WAY_OUT, checksums)

    def part(number: int) -> InrPart:
        chosen = torch.nonzero(split == number).flatten()
        rows: Rows = every.subset(chosen)
        return InrPart(rows if mapped else TensorRows(rows.read_all()), label[chosen], image[chosen])

    mapped = every.nbytes > in_memory_bytes
    train, val, test = map(part, range(len(SPLITS)))
    return InrCorpus(pictures.name, siren, found["pictures"]["classes"], train, val, test, pictures.pixels, found)


def _columns(shard: Mapping[str, Tensor]) -> list[Tensor]:
    """What is known of the networks of a shard, in memory: the shard itself need not stay open."""
    return [shard[name].clone() for name in ("label", "image", "fit", "split")]


def _present(paths: Iterator[Path]) -> Iterator[Path]:
    """The files, as long as they are there: a description may speak of more than anybody could list."""
    for path in paths:
        if not path.is_file():
            raise CorpusError(f"{path} is missing: {WAY_OUT}")
        yield path


def _check_columns(folder: Path, pictures: Pictures, label: Tensor, image: Tensor, fit: Tensor, split: Tensor) -> None:
    """Raise a CorpusError unless every network is a fit of a picture that there is, in the split of that picture."""
    if int(image.max()) >= len(pictures):
        raise CorpusError(f"{folder}: image {int(image.max())}, but {pictures.name} has {len(pictures)}: {WAY_OUT}")
    split_of = torch.empty(len(pictures), dtype=torch.int64)
    for number, name in enumerate(SPLITS):
        split_of[getattr(pictures, name)] = number
    for what, found, expected in (("label", label, pictures.labels[image]), ("split", split, split_of[image])):
        if bool((wrong := found != expected).any()):
            row = int(wrong.nonzero()[0])
            raise CorpusError(
                f"{folder}: network {row} has the {what} {int(found[row])}, its image {int(expected[row])}: {WAY_OUT}"
            )
    if len({*zip(image.tolist(), fit.tolist(), strict=True)}) != len(image):
        raise CorpusError(f"{folder}: a network occurs twice: {WAY_OUT}")


def read_description(folder: Path) -> dict[str, Any]:
    """The contents of ``corpus.json``.

    Raises:
        ValueError: if there is none, or another program's, or numbers in it make no sense.
    """
    path = folder / CORPUS_FILE
    if not path.is_file():
        raise CorpusError(f"{folder} holds no {CORPUS_FILE}: give a folder that `nfn-monomial inr make` has made")
    way_out = "give another folder, or remove the file and the shards beside it to make the corpus anew"
    with damaged(path, f"it describes no corpus that `nfn-monomial inr make` has made: {way_out}", CorpusError):
        found: dict[str, Any] = read_json(path)
        if found["kind"] != KIND:
            raise InvalidValueError(f"kind is {shown(found['kind'])}")
        siren_of(found)
        for part, fields in FIELDS.items():
            for name, least in fields.items():
                value = found[part][name]
                if isinstance(value, str) is not (least is None):
                    raise InvalidValueError(f"{part}: {name} is {shown(value)}")
                if least is not None:
                    whole(value, f"{part}: {name}", least=least)
        return found


def siren_of(description: Mapping[str, Any]) -> Siren:
    """What the networks of a corpus have in common."""
    stated: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in description["siren"].items()}
    return Siren(**stated)


def shard_paths(folder: Path, description: Mapping[str, Any]) -> Iterator[Path]:
    """The files of a corpus."""
    count = sum(description["networks"].values())
    return (folder / f"shard-{k:05d}.safetensors" for k in range(-(-count // description["config"]["shard"])))


def statement(description: Mapping[str, Any], number: int) -> dict[str, Any]:
    """What a shard says of itself: its number, and what the corpus was made of."""
    return {"number": number, **{name: description[name] for name in ("config", "pictures", "siren", "networks")}}


def open_shard(path: Path, siren: Siren, description: Mapping[str, Any], number: int) -> dict[str, Tensor]:
    """All tensors of a shard, memory-mapped; whether numbers are finite is for those to check who read them.

    Raises:
        ValueError: if the file is missing or damaged, is another one's, or a tensor is missing or has another shape or
            type.
    """
    if not path.exists():
        raise CorpusError(f"{path} is missing: {WAY_OUT}")
    with damaged(path, WAY_OUT, CorpusError):
        tensors, stated = read_sealed(path)
        if stated != statement(description, number):
            raise InvalidValueError("it is a shard of another corpus or another place")
        count = len(tensors.get("psnr", ()))
        shapes = {**siren.space.shapes(), "psnr": ()}
        expected = {name: (torch.float32, (count, *shape)) for name, shape in shapes.items()}
        expected |= dict.fromkeys(("label", "image", "fit", "split"), (torch.int64, (count,)))
        for name, wanted in expected.items():
            there = (tensors[name].dtype, tuple(tensors[name].shape)) if name in tensors else None
            if there != wanted:
                raise InvalidValueError(f"{name} is {there or 'missing'}, expected {wanted}")
            if wanted[0] == torch.int64 and bool((tensors[name] < 0).any()):
                raise InvalidValueError(f"{name} is negative")
        return tensors


@register_format("made-inrs")
class MadeInrs(Format):
    """A corpus made by ``inr make``; see `load_inrs`."""

    kind = "inr"
    looks_for = CORPUS_FILE

    @staticmethod
    def detects(path: Path) -> bool:
        return (path / CORPUS_FILE).is_file()

    @staticmethod
    def load(path: str | Path, *, in_memory_bytes: int = IN_MEMORY_BYTES) -> InrCorpus:
        """The corpus; larger ones than ``in_memory_bytes`` stay in their files."""
        return load_inrs(path, in_memory_bytes=in_memory_bytes)
