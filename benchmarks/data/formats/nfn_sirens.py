"""The nfn SIREN corpora (Zhou et al. 2023), and what all published INR sets have in common.

All networks are SIRENs ``x -> sin(omega_0 (W x + b))`` twice, then ``W x + b``, a file per network. omega_0 is in none
of the files: it is 30 in all of these sets. Sizes of layers come from the files.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nfn_monomial.benchmarks.data.rows import IN_MEMORY_BYTES
from nfn_monomial.benchmarks.data.sirens import InrCorpus, InrPart, Siren

from .base import CorpusError, Format, OnProgress, register_format
from .checkpoints import FileRows, in_memory, read_layers, read_mapping, require_folder, silent

__all__ = ["OMEGA_0", "PARTS", "Fit", "NfnSirens", "corpus_of_files", "first", "read_siren"]

PARTS = ("train", "val", "test")
OMEGA_0 = 30.0
IMAGE_SIZES = {1: 28, 3: 32}  # pixels a side by channels: MNIST and FashionMNIST, CIFAR-10


class Fit(NamedTuple):
    """A file, the class of its image, and which image it is a fit of."""

    path: Path
    label: int
    image: int


def first(fits: list[Fit], limit: int | None) -> list[Fit]:
    """At most ``limit`` of them, all for None."""
    if limit is not None and limit < 1:
        raise CorpusError(f"limit is {limit}, but at least 1 training network is needed")
    return fits[:limit]


def corpus_of_files(
    folder: Path,
    parts: Mapping[str, Sequence[Fit]],
    read: Callable[[Path], dict[str, Tensor]],
    classes: int,
    *,
    omega_0: float,
    gain: float,
    in_memory_bytes: int,
    on_progress: OnProgress,
    info: Mapping[str, Any],
    column_first: bool = False,
) -> InrCorpus:
    """The corpus of these files; images are square and have the size that belongs to their channels.

    Args:
        folder: where they come from, whose name the corpus gets.
        parts: the files of ``train``, ``val`` and ``test``.
        read: file -> its parameters.
        classes: of the labels.
        omega_0: see `Siren`, as is ``gain``.
        gain: pixels are ``gain * output + 0.5``.
        in_memory_bytes: larger sets stay in their files.
        on_progress: called while files are read into memory.
        info: for the record.
        column_first: see `Siren`.

    Raises:
        CorpusError: if a part is empty, the first network makes no image, or a file that is read is damaged.
    """
    if empty := [name for name in PARTS if not parts[name]]:
        raise CorpusError(f"{folder}: no network for {' and '.join(empty)}: the download is incomplete")
    like = parts["train"][0].path
    files = [FileRows([fit.path for fit in parts[name]], read, like) for name in PARTS]
    weights = [shape for name, shape in files[0].shapes.items() if name.startswith("weight")]
    sizes = (weights[0][1], *(shape[0] for shape in weights))
    if sizes[0] != 2 or sizes[-1] not in IMAGE_SIZES or any(len(shape) != 2 for shape in weights):
        raise CorpusError(
            f"{like}: layers of {'-'.join(map(str, sizes))} neurons, expected linear ones from 2 coordinates to 1 "
            "channel (28 x 28 pixels) or 3 (32 x 32)"
        )
    size = IMAGE_SIZES[sizes[-1]]
    rows = in_memory(files, in_memory_bytes, on_progress)
    made: dict[str, Any] = {
        name: InrPart(held, torch.tensor([f.label for f in parts[name]]), torch.tensor([f.image for f in parts[name]]))
        for name, held in zip(PARTS, rows, strict=True)
    }
    return InrCorpus(
        folder.resolve().name,
        Siren(sizes, omega_0, (sizes[-1], size, size), gain=gain, column_first=column_first),
        classes,
        **made,
        info={
            "path": str(folder),
            **info,
            **{name: len(part) for name, part in made.items()},
            "in_memory": rows[0] is not files[0],
        },
    )


def read_siren(
    path: Path, layer: str, names: Callable[[int], list[str]], ignore: Collection[str] = ()
) -> dict[str, Tensor]:
    """The parameters of one file, whose keys must be those of a SIREN in this format.

    Args:
        path: the file.
        layer: regular expression of a layer's name.
        names: depth -> the names of all layers; the last one is linear.
        ignore: keys that are no parameters.

    Raises:
        CorpusError: naming the file and the key, as `read_layers`, and for other names.
    """
    state = {key: value for key, value in read_mapping(path).items() if key not in ignore}
    example = ", ".join(f"{name}.weight" for name in names(3)) + " and their .bias"
    layers, tensors = read_layers(state, path, layer, example)
    if list(layers) != names(len(layers)):
        raise CorpusError(
            f"{path}: layers {', '.join(layers)}, expected {', '.join(names(len(layers)))} as in {example}"
        )
    return tensors


def _nfn_names(depth: int) -> list[str]:
    return [*(f"net.{i}.linear" for i in range(depth - 1)), f"net.{depth - 1}"]


_NFN_FOLDER = re.compile(r"(?P<prefix>.+)_(?P<label>[0-9])s")
_NFN_FILE = re.compile(r"net([0-9]{1,9})\.pth")
_CLASSES = 10  # of MNIST, FashionMNIST and CIFAR-10, of which the corpora are


@register_format("nfn-sirens")
class NfnSirens(Format):
    """``siren_{mnist,fashion,cifar}_wts/{prefix}_{label}s/net{idx}.pth``, one corpus a folder."""

    kind = "inr"
    looks_for = "folders randinit_smaller_{label}s with files net{idx}.pth"

    @staticmethod
    def detects(path: Path) -> bool:
        return any(
            _NFN_FOLDER.fullmatch(folder.name) and any(folder.glob("net*.pth")) for folder in sorted(path.glob("*_*s"))
        )

    @staticmethod
    def load(
        path: str | Path,
        *,
        prefix: str = "randinit_smaller",
        augmented: int = 0,
        limit: int | None = None,
        omega_0: float = OMEGA_0,
        in_memory_bytes: int = IN_MEMORY_BYTES,
        on_progress: OnProgress = silent,
    ) -> InrCorpus:
        """Load a corpus; images below 45,000 are for training, below 50,000 for validation, the others for testing.

        Args:
            path: the folder with the folders of the ten classes.
            prefix: of their names. Only folders named exactly ``{prefix}_{label}s`` are read, so never the augmented
                copies ``{prefix}_aug{i}_{label}s``.
            augmented: how many of these copies, further fits of the same images, to add to the training networks.
            limit: take that many training images, those with the lowest numbers.
            omega_0: of the sine layers; the published files do not have it.
            in_memory_bytes: larger sets are read file by file when a batch asks for them, and checked only then.
            on_progress: called while files are read into memory.

        Raises:
            CorpusError: naming the folder or the file, if something is missing, double or damaged.
        """
        folder = require_folder(path)
        fits = _nfn_fits(folder, prefix)
        parts = {
            "train": [fit for fit in fits if fit.image < 45_000],
            "val": [fit for fit in fits if 45_000 <= fit.image < 50_000],
            "test": [fit for fit in fits if fit.image >= 50_000],
        }
        copies = sorted(
            {
                m["prefix"]
                for m in _nfn_folders(folder)
                if re.fullmatch(rf"{re.escape(prefix)}_aug[0-9]{{1,9}}", m["prefix"])
            },
            key=lambda name: int(name.rpartition("_aug")[2]),
        )
        if not 0 <= augmented <= len(copies):
            found = ", ".join(copies) or "none"
            raise CorpusError(f"{folder}: augmented is {augmented}, but the augmented copies found are {found}")
        originals = first(parts["train"], limit)
        images = {fit.image for fit in originals}
        parts["train"] = originals + [
            fit for name in copies[:augmented] for fit in _nfn_fits(folder, name) if fit.image in images
        ]
        return corpus_of_files(
            folder, parts, partial(read_siren, layer=r"net\.[0-9]{1,9}(?:\.linear)?", names=_nfn_names), _CLASSES,
            omega_0=omega_0, gain=0.5, in_memory_bytes=in_memory_bytes, on_progress=on_progress,
            info={"format": "nfn-sirens", "prefix": prefix, "augmented": augmented},
        )  # fmt: skip


def _nfn_folders(folder: Path) -> list[re.Match[str]]:
    return [m for f in sorted(folder.iterdir()) if f.is_dir() and (m := _NFN_FOLDER.fullmatch(f.name))]


def _nfn_fits(folder: Path, prefix: str) -> list[Fit]:
    """All files of a prefix, by number of the image."""
    labels = {int(match["label"]): folder / match.string for match in _nfn_folders(folder) if match["prefix"] == prefix}
    if missing := [f"{prefix}_{label}s" for label in range(_CLASSES) if label not in labels]:
        found = ", ".join(sorted({m["prefix"] for m in _nfn_folders(folder)})) or "none"
        raise CorpusError(
            f"{folder}: label folders missing: {', '.join(missing)} (prefixes found: {found}); the download is "
            "incomplete, or has another prefix"
        )
    fits: dict[int, Fit] = {}
    for label, place in sorted(labels.items()):
        for file in sorted(place.iterdir()):
            if match := _NFN_FILE.fullmatch(file.name):
                fit = Fit(file, label, int(match[1]))
                if fit.image in fits:
                    raise CorpusError(
                        f"{file} and {fits[fit.image].path} have the same number {fit.image}: each image has one "
                        "class and one network; delete the wrong one"
                    )
                fits[fit.image] = fit
    return [fits[number] for number in sorted(fits)]
