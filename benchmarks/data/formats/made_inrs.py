"""A corpus of INRs on disk, as `make_inrs` writes it: read whole, or mapped if it is large.

A corpus is a folder. ``corpus.json`` states how the networks were made and what they have in common;
``shard-00000.safetensors`` and following hold 500 networks each, the last the rest: ``weight.i (n, out, in)`` and
``bias.i (n, out)``, of which omega_0 is no part; ``label``, ``image``, ``fit`` and ``split`` (0 train, 1 val, 2 test),
int64 ``(n,)``; ``psnr``, float32 ``(n,)``. Pixels are not stored: they come from the package they ship in.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from nfn_monomial.benchmarks.data.images import load_pictures
from nfn_monomial.benchmarks.data.rows import IN_MEMORY_BYTES, Rows, TensorRows
from nfn_monomial.benchmarks.data.sirens import InrCorpus, InrPart, Siren
from nfn_monomial.errors import InvalidValueError

from .base import Format, register_format

__all__ = [
    "CORPUS_FILE",
    "MadeInrs",
    "ShardRows",
    "load_inrs",
    "open_shard",
    "read_description",
    "require_finite",
    "shard_paths",
    "siren_of",
]

KIND = "INRs made by nfn-monomial"
CORPUS_FILE = "corpus.json"
SHARDS = "shard-*.safetensors"
SPLITS = ("train", "val", "test")
FIELDS: dict[str, dict[str, type]] = {  # of the description, beside the network's
    "config": {"images": str, "shard": int},
    "pictures": {"fingerprint": str, "classes": int},
    "networks": dict.fromkeys(SPLITS, int),
}
WAY_OUT = "`nfn-monomial inr make` with the options it was made with makes what is missing or damaged"


class ShardRows(Rows):
    """Networks in several parts, which may be memory-mapped: only rows that are asked for are read.

    Args:
        paths: where the shards come from, for messages.
        shards: parameter name -> ``(n, *shape)`` each; other entries than ``shapes`` names do not matter.
        shapes: parameter name -> shape of one network's.
        chosen: int64 ``(N,)``, numbers of the networks among those of all shards, one after another.

    Raises:
        ValueError: in `read`, naming file and tensor, if a number that is read is NaN or infinite.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        shards: Sequence[Mapping[str, Tensor]],
        shapes: Mapping[str, tuple[int, ...]],
        chosen: Tensor,
    ) -> None:
        self.paths, self.shards, self.chosen, self._shapes = paths, shards, chosen, dict(shapes)
        first = next(iter(shapes))
        self.ends = torch.tensor([len(shard[first]) for shard in shards]).cumsum(0)

    def __len__(self) -> int:
        return len(self.chosen)

    def read(self, index: Tensor) -> dict[str, Tensor]:
        rows = self.chosen[index]
        shard_of = torch.searchsorted(self.ends, rows, right=True)
        result = {name: torch.empty(len(index), *shape) for name, shape in self._shapes.items()}
        for k in torch.unique(shard_of).tolist():
            here = shard_of == k
            within = rows[here] - (self.ends[k - 1] if k else 0)
            found = {name: self.shards[k][name][within] for name in result}
            require_finite(self.paths[k], found, within)
            for name, tensor in result.items():
                tensor[here] = found[name]
        return result

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return self._shapes


def require_finite(path: Path, tensors: Mapping[str, Tensor], rows: Tensor | None = None) -> None:
    """Check numbers of networks in a shard.

    Args:
        path: of the shard.
        tensors: name -> ``(n, ...)``.
        rows: int64 ``(n,)``, where in the shard the networks are; by default they are all of it.

    Raises:
        ValueError: naming file, tensor and row, if one is NaN or infinite.
    """
    for name, tensor in tensors.items():
        finite = tensor.isfinite()
        if not finite.all():
            bad = int(finite.logical_not().nonzero()[0, 0])
            row = bad if rows is None else int(rows[bad])
            raise InvalidValueError(f"{path}: {name} holds NaN or infinite values in row {row}: {WAY_OUT}")


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
        raise InvalidValueError(f"{folder} holds a corpus that is not finished: {WAY_OUT}")
    paths = shard_paths(folder, found)
    shards = [open_shard(path, siren) for path in paths]
    label, image, split = (torch.cat([shard[name] for shard in shards]) for name in ("label", "image", "split"))
    counts = dict(zip(SPLITS, split.bincount(minlength=len(SPLITS)).tolist(), strict=True))
    if counts != networks:
        raise InvalidValueError(
            f"{folder}: {CORPUS_FILE} speaks of networks {networks}, the shards hold {counts}: {WAY_OUT}"
        )
    pictures = load_pictures(found["config"]["images"])
    if pictures.fingerprint != found["pictures"]["fingerprint"]:
        raise InvalidValueError(
            f"{folder} was fitted to other images than the {pictures.name} installed here: install the versions that "
            f"{CORPUS_FILE} names, or make the corpus anew with --overwrite"
        )
    shapes = siren.space.shapes()

    def part(number: int) -> InrPart:
        chosen = torch.nonzero(split == number).flatten()
        rows: Rows = ShardRows(paths, shards, shapes, chosen)
        return InrPart(rows if mapped else TensorRows(rows.read_all()), label[chosen], image[chosen])

    mapped = ShardRows(paths, shards, shapes, torch.arange(len(label))).nbytes > in_memory_bytes
    train, val, test = map(part, range(len(SPLITS)))
    return InrCorpus(pictures.name, siren, found["pictures"]["classes"], train, val, test, pictures.pixels, found)


def read_description(folder: Path) -> dict[str, Any]:
    """The contents of ``corpus.json``.

    Raises:
        ValueError: if there is none, or another program's.
    """
    path = folder / CORPUS_FILE
    if not path.is_file():
        raise InvalidValueError(f"{folder} holds no {CORPUS_FILE}: give a folder that `nfn-monomial inr make` has made")
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["kind"] != KIND:
            raise InvalidValueError(f"kind is {found['kind']!r}")
        siren_of(found)
        for part, fields in FIELDS.items():
            for name, kind in fields.items():
                if not isinstance(found[part][name], kind):
                    raise InvalidValueError(f"{part}: {name} is {found[part][name]!r}")
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidValueError(
            f"{path} does not describe a corpus that `nfn-monomial inr make` has made ({error!r}): give another "
            "folder, or remove the file and the shards beside it to make the corpus anew"
        ) from error
    return dict(found)


def siren_of(description: Mapping[str, Any]) -> Siren:
    """What the networks of a corpus have in common."""
    stated: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in description["siren"].items()}
    return Siren(**stated)


def shard_paths(folder: Path, description: Mapping[str, Any]) -> list[Path]:
    """The files of a corpus."""
    count = sum(description["networks"].values())
    return [folder / f"shard-{k:05d}.safetensors" for k in range(-(-count // description["config"]["shard"]))]


def open_shard(path: Path, siren: Siren) -> dict[str, Tensor]:
    """All tensors of a shard, memory-mapped; whether numbers are finite is for those to check who read them.

    Raises:
        ValueError: if the file is missing or damaged, or a tensor is missing or has another shape or type.
    """
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except (SafetensorError, OSError) as error:
        state = "cannot be read" if path.exists() else "is missing"
        raise InvalidValueError(f"{path} {state} ({error}): {WAY_OUT}") from error
    count = len(tensors.get("psnr", ()))
    expected = {name: (torch.float32, (count, *shape)) for name, shape in {**siren.space.shapes(), "psnr": ()}.items()}
    expected |= dict.fromkeys(("label", "image", "fit", "split"), (torch.int64, (count,)))
    for name, wanted in expected.items():
        there = (tensors[name].dtype, tuple(tensors[name].shape)) if name in tensors else None
        if there != wanted:
            raise InvalidValueError(f"{path}: {name} is {there or 'missing'}, expected {wanted}: {WAY_OUT}")
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
