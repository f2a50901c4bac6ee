"""The INRs of DWSNets (Navon et al. 2023): MNIST and FashionMNIST. Pixels are the networks' outputs + 0.5.

The two coordinates are column and row, in this order, as their code makes them (``experiments/utils.py``,
``make_coordinates``).
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path

from torch import Tensor

from nfn_monomial.adapters.files import damaged, shown
from nfn_monomial.benchmarks.data.rows import IN_MEMORY_BYTES
from nfn_monomial.benchmarks.data.sirens import InrCorpus
from nfn_monomial.benchmarks.reading import read_json, whole
from nfn_monomial.errors import InvalidValueError

from .base import CorpusError, Format, OnProgress, register_format
from .checkpoints import counter, read_mapping, require_folder, silent
from .nfn_sirens import OMEGA_0, PARTS, Fit, corpus_of_files, first, read_siren

__all__ = ["DwsFashionInrs", "DwsMnistInrs"]

UNREAD = -1
CLASSES = 1000  # a label is below that


def _dws_names(depth: int) -> list[str]:
    return [f"seq.{i}" for i in range(depth)]


_DWS_FOLDER = re.compile(r"mnist_png_(training|testing)_([0-9]{1,9})_([0-9]{1,9})")


@register_format("dws-mnist")
class DwsMnistInrs(Format):
    """``mnist-inrs/mnist_png_{training|testing}_{label}_{imgid}/checkpoints/model_final.pth``, ``mnist_splits.json``.

    Pixels are the networks' outputs + 0.5.
    """

    kind = "inr"
    looks_for = "mnist_splits.json, or folders mnist_png_training_{label}_{imgid}"

    @staticmethod
    def detects(path: Path) -> bool:
        places = (path, path / "mnist-inrs")
        return (path / "mnist_splits.json").is_file() or any(any(p.glob("mnist_png_t*_*_*")) for p in places)

    @staticmethod
    def load(
        path: str | Path,
        *,
        splits: str | Path | None = None,
        limit: int | None = None,
        omega_0: float = OMEGA_0,
        in_memory_bytes: int = IN_MEMORY_BYTES,
        on_progress: OnProgress = silent,
    ) -> InrCorpus:
        """Load the corpus, split as ``mnist_splits.json`` says.

        Args:
            path: ``mnist-inrs`` or the folder that holds it.
            splits: the file of splits, by default the one in or next to ``mnist-inrs``. Of its paths what counts is
                the part from ``mnist_png_`` on.
            limit: take that many training networks, the first of the file.
            omega_0: of the sine layers; the published files do not have it.
            in_memory_bytes: larger sets are read file by file when a batch asks for them, and checked only then.
            on_progress: called while files are read into memory.

        Raises:
            CorpusError: naming the folder or the file, if something is missing, double or damaged.
        """
        folder = require_folder(path)
        base = folder / "mnist-inrs" if (folder / "mnist-inrs").is_dir() else folder
        places = [Path(splits)] if splits is not None else [p / "mnist_splits.json" for p in (base, base.parent)]
        file = next((place for place in places if place.is_file()), None)
        if file is None:
            raise CorpusError(
                f"{folder}: the file of splits is missing, looked for {', '.join(map(str, places))}: it is part of the "
                "data set; give its path as splits (--data-option splits=FILE)"
            )
        parts = _dws_splits(file, base)
        parts["train"] = first(parts["train"], limit)
        classes = 1 + max((fit.label for fits in parts.values() for fit in fits), default=0)
        return corpus_of_files(
            folder, parts, partial(read_siren, layer=r"seq\.[0-9]{1,9}", names=_dws_names), classes,
            omega_0=omega_0, gain=1.0, column_first=True, in_memory_bytes=in_memory_bytes, on_progress=on_progress,
            info={"format": "dws-mnist", "splits": str(file)},
        )  # fmt: skip


def _dws_splits(file: Path, base: Path) -> dict[str, list[Fit]]:
    expected = 'expected {"train" | "val" | "test": {"path": [...], "label": ["5", ...]}}'
    with damaged(file, expected, CorpusError):
        found = read_json(file)
        listed = {
            part: [
                (_text(path), whole(label, "a label", most=CLASSES - 1))
                for path, label in zip(found[part]["path"], found[part]["label"], strict=True)
            ]
            for part in PARTS
        }
    numbers: dict[tuple[str, ...], int] = defaultdict(lambda: len(numbers))
    seen: dict[tuple[str, ...], str] = {}
    parts: dict[str, list[Fit]] = {part: [] for part in PARTS}
    for part, entries in listed.items():
        for text, label in entries:
            names = text.replace("\\", "/").split("/")
            match = next((m for name in names if (m := _DWS_FOLDER.fullmatch(name))), None)
            if match is None or ".." in names:
                raise CorpusError(
                    f"{file}: {shown(text)} in {part}, expected .../mnist_png_training_5_123/checkpoints/..."
                )
            if int(match[2]) != label:
                raise CorpusError(f"{file}: {text!r} in {part} has label {label}, but its folder says {match[2]}")
            path = base.joinpath(*names[names.index(match[0]) :])
            image = match.groups()
            if image in seen:
                raise CorpusError(
                    f"{file}: {shown(text)} occurs twice, in {seen[image]} and {part}: it would be in two parts"
                )
            if not path.is_file():
                raise CorpusError(f"{path} is missing, which {file} lists in {part}: the download is incomplete")
            seen[image] = part
            parts[part].append(Fit(path, label, numbers[image]))
    return parts


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise InvalidValueError(f"{shown(value)} is no path")
    return value


@register_format("dws-fashion")
class DwsFashionInrs(Format):
    """``fmnist_inrs/{split}/model_{i}.pth``, each with its label. Pixels are the networks' outputs + 0.5."""

    kind = "inr"
    looks_for = "folders train, val, test with files model_{i}.pth"

    @staticmethod
    def detects(path: Path) -> bool:
        return any(any(place.glob(f"{part}/model_*.pth")) for place in _fashion_places(path) for part in PARTS)

    @staticmethod
    def load(
        path: str | Path,
        *,
        limit: int | None = None,
        omega_0: float = OMEGA_0,
        in_memory_bytes: int = IN_MEMORY_BYTES,
        on_progress: OnProgress = silent,
    ) -> InrCorpus:
        """Load the corpus; its labels are in the files, so each is read once here, whatever its size.

        Args:
            path: ``fmnist_inrs`` or the folder that holds it.
            limit: take that many training networks, those with the lowest numbers.
            omega_0: of the sine layers; the published files do not have it.
            in_memory_bytes: of larger sets only the labels are kept; the weights are read again for each batch.
            on_progress: called for each file whose label is read, then for each that is read into memory.

        Raises:
            CorpusError: naming the folder or the file, if something is missing or damaged.
        """
        folder = require_folder(path)
        base = next(p for p in _fashion_places(folder) if p.is_dir())
        if missing := [part for part in PARTS if not (base / part).is_dir()]:
            raise CorpusError(f"{base}: folders {', '.join(missing)} missing, expected {', '.join(PARTS)}")
        numbers = itertools.count()
        parts = {
            part: [
                Fit(file, UNREAD, next(numbers))
                for file in sorted((base / part).glob("model_*.pth"), key=lambda p: (len(p.name), p.name))
            ]
            for part in PARTS
        }
        parts["train"] = first(parts["train"], limit)
        step = counter(sum(map(len, parts.values())), on_progress)
        parts = {part: [fit._replace(label=_label(fit.path, step)) for fit in fits] for part, fits in parts.items()}
        classes = 1 + max((fit.label for fits in parts.values() for fit in fits), default=0)
        return corpus_of_files(
            folder, parts, partial(read_siren, layer=r"seq\.[0-9]{1,9}", names=_dws_names, ignore=("label",)), classes,
            omega_0=omega_0, gain=1.0, column_first=True, in_memory_bytes=in_memory_bytes, on_progress=on_progress,
            info={"format": "dws-fashion"},
        )  # fmt: skip


def _fashion_places(path: Path) -> tuple[Path, Path]:
    return path / "fmnist_inrs", path


def _label(path: Path, step: Callable[[], None]) -> int:
    value = read_mapping(path).get("label")
    value = value.detach().tolist() if isinstance(value, Tensor) and value.numel() == 1 else value
    step()
    try:
        return whole(value, "label", most=CLASSES - 1)  # a number, a tensor of one, or its digits
    except InvalidValueError as error:
        raise CorpusError(f"{path}: {error}") from error
