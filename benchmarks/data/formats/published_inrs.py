"""The published INRs: nfn's SIRENs (Zhou et al. 2023), and those of DWSNets (Navon et al. 2023).

All networks are SIRENs ``x -> sin(omega_0 (W x + b))`` twice, then ``W x + b``, a file per network. omega_0 is in none
of the files: it is 30 in all of these sets. Sizes of layers come from the files; images are square and have the size
that belongs to their channels. Pixels are ``output / 2 + 0.5`` in nfn's, ``output + 0.5`` in DWSNets', whose two
coordinates are column and row, in this order, as their code makes them (``experiments/utils.py``,
``make_coordinates``).

Options that all three have: ``limit``, take that many training images, the first; ``omega_0`` of the sine layers;
``on_progress``, called while files are read. All raise a CorpusError that names the folder or the file, if something is
missing, double or damaged.
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nfn_monomial.benchmarks.data.networks import SIDES
from nfn_monomial.benchmarks.data.sirens import InrCorpus, InrPart, Siren
from nfn_monomial.benchmarks.reading import read_json, whole
from nfn_monomial.checks import shown
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.tools.definitions.chains import layers_of, parameters_of
from nfn_monomial.tools.files.tensors import read_torch_file
from nfn_monomial.tools.files.untrusted import FileError, damaged
from nfn_monomial.tools.results import Progress, silent

from .base import CorpusError, Format, register_format, require_folder

__all__ = ["DwsFashionInrs", "DwsMnistInrs", "NfnSirens"]

OMEGA_0 = 30.0
IMAGE_SIZES = {1: 28, 3: 32}  # pixels a side by channels: MNIST and FashionMNIST, CIFAR-10
CLASSES = 10  # of MNIST, FashionMNIST and CIFAR-10, of which nfn's are
MOST_CLASSES = 1000  # a label is below that
UNREAD = -1


class Fit(NamedTuple):
    """A file, the class of its image, and which image it is a fit of."""

    path: Path
    label: int
    image: int


Fits = dict[str, list[Fit]]
"""Files by split."""


def _counter(total: int, on_progress: Progress) -> Callable[[], object]:
    """Returns a function to call after each of ``total`` files."""
    done = itertools.count(1)
    return lambda: on_progress(next(done), total)


def _corpus(
    folder: Path, parts: Fits, read: Callable[[Path], dict[str, Tensor]], classes: int, info: Mapping[str, Any],
    omega_0: float, gain: float, on_progress: Progress, column_first: bool = False,
) -> InrCorpus:  # fmt: skip
    """The corpus of these files, which gets the name of the folder; ``info`` is for the record.

    Raises:
        CorpusError: if a part is empty, the first network makes no image, or a file that is read is damaged.
    """
    if empty := [name for name in SIDES if not parts[name]]:
        raise CorpusError(f"{folder}: no network for {' and '.join(empty)}: the download is incomplete")
    like = parts["train"][0].path
    weights = [tuple(t.shape) for name, t in read(like).items() if name.startswith("weight")]
    sizes = (weights[0][1], *(shape[0] for shape in weights))
    if sizes[0] != 2 or sizes[-1] not in IMAGE_SIZES or any(len(shape) != 2 for shape in weights):
        raise CorpusError(
            f"{like}: layers of {'-'.join(map(str, sizes))} neurons, expected linear ones from 2 coordinates to 1 "
            "channel (28 x 28 pixels) or 3 (32 x 32)"
        )
    size, step = IMAGE_SIZES[sizes[-1]], _counter(sum(map(len, parts.values())), on_progress)
    made: dict[str, Any] = {
        name: InrPart(
            _read_stacked([fit.path for fit in parts[name]], read, like, step),
            torch.tensor([fit.label for fit in parts[name]]),
            torch.tensor([fit.image for fit in parts[name]]),
        )
        for name in SIDES
    }
    siren = Siren(sizes, omega_0, (sizes[-1], size, size), gain=gain, column_first=column_first)
    source = {"path": str(folder), **info, **{name: len(part) for name, part in made.items()}}
    return InrCorpus(folder.resolve().name, siren, classes, **made, info=source)


def _read_stacked(
    paths: Sequence[Path], read: Callable[[Path], dict[str, Tensor]], like: Path, step: Callable[[], object]
) -> dict[str, Tensor]:
    """Networks in a file each, stacked: parameter name -> ``(N, *shape)``.

    Args:
        paths: a file per network.
        read: file -> its parameters, checked.
        like: a file whose network has the shapes that all must have.
        step: called after each file.

    Raises:
        CorpusError: as ``read``; and if a shape differs, naming the file, the tensor and both shapes.
    """
    shapes = {name: tuple(t.shape) for name, t in read(like).items()}
    out = {name: torch.empty(len(paths), *shape) for name, shape in shapes.items()}
    for row, path in enumerate(paths):
        tensors = read(path)
        for name in dict.fromkeys((*shapes, *tensors)):
            here = tuple(tensors[name].shape) if name in tensors else "missing"
            if here != (there := shapes.get(name, "missing")):
                raise CorpusError(
                    f"{path}: {name} is {here}, expected {there} as in {like}: all networks must have one shape"
                )
            out[name][row] = tensors[name]
        step()
    return out


def _read_siren(
    path: Path, layer: str, names: Callable[[int], list[str]], ignore: Collection[str] = ()
) -> dict[str, Tensor]:
    """The parameters of one file, whose keys must be those of a SIREN in this format.

    Args:
        path: the file.
        layer: regular expression of a layer's name.
        names: depth -> the names of all layers; the last one is linear.
        ignore: keys that are no parameters.

    Raises:
        CorpusError: naming the file and the key, as `layers_of` and `parameters_of`, and for other names.
    """
    state = {key: value for key, value in _read_mapping(path).items() if key not in ignore}
    example = ", ".join(f"{name}.weight" for name in names(3)) + " and their .bias"
    with damaged(path, "it is of another format", CorpusError):
        layers = layers_of(state, path, layer, example)
        tensors = parameters_of(layers, path)
    if list(layers) != names(len(layers)):
        raise CorpusError(
            f"{path}: layers {', '.join(layers)}, expected {', '.join(names(len(layers)))} as in {example}"
        )
    return tensors


def _read_mapping(path: Path) -> Mapping[str, Any]:
    """The dict in a ``.pt`` or ``.pth`` file, whatever its suffix, see `read_torch_file`.

    Args:
        path: the file.

    Raises:
        FileNotFoundError: if the file does not exist.
        CorpusError: naming the file, if it is damaged or holds no dict.
    """
    try:
        state = read_torch_file(path)
    except FileError as error:
        raise CorpusError(str(error)) from error
    if not isinstance(state, Mapping):
        raise CorpusError(f"{path} holds a {type(state).__name__}, expected a state dict")
    return state


# --- nfn


_NFN_FOLDER = re.compile(r"(?P<prefix>.+)_(?P<label>[0-9])s")
_NFN_FILE = re.compile(r"net([0-9]{1,9})\.pth")
_NFN_READ = partial(
    _read_siren,
    layer=r"net\.[0-9]{1,9}(?:\.linear)?",
    names=lambda depth: [*(f"net.{i}.linear" for i in range(depth - 1)), f"net.{depth - 1}"],
)


@register_format("nfn-sirens")
class NfnSirens(Format):
    """``siren_{mnist,fashion,cifar}_wts/{prefix}_{label}s/net{idx}.pth``, one corpus a folder."""

    kind = "inr"
    looks_for = "folders randinit_smaller_{label}s with files net{idx}.pth"

    @staticmethod
    def detects(path: Path) -> bool:
        places = sorted(path.glob("*_*s"))
        return any(_NFN_FOLDER.fullmatch(place.name) and any(place.glob("net*.pth")) for place in places)

    @staticmethod
    def load(
        path: str | Path,
        *,
        prefix: str = "randinit_smaller",
        augmented: int = 0,
        limit: int | None = None,
        omega_0: float = OMEGA_0,
        on_progress: Progress = silent,
    ) -> InrCorpus:
        """Loads a corpus; images below 45,000 are for training, below 50,000 for validation, the others for testing.

        Args:
            path: the folder with the folders of the ten classes.
            prefix: of their names. Only folders named exactly ``{prefix}_{label}s`` are read, so never the augmented
                copies ``{prefix}_aug{i}_{label}s``.
            augmented: how many of these copies, further fits of the same images, to add to the training networks.
            limit: see the module, as for all that follow.
        """
        folder = require_folder(path)
        fits = _nfn_fits(folder, prefix)
        parts = {
            "train": [fit for fit in fits if fit.image < 45_000],
            "val": [fit for fit in fits if 45_000 <= fit.image < 50_000],
            "test": [fit for fit in fits if fit.image >= 50_000],
        }
        copy = re.compile(rf"{re.escape(prefix)}_aug[0-9]{{1,9}}")
        there = {match["prefix"] for match in _nfn_folders(folder) if copy.fullmatch(match["prefix"])}
        copies = sorted(there, key=lambda name: int(name.rpartition("_aug")[2]))
        if not 0 <= augmented <= len(copies):
            names = ", ".join(copies) or "none"
            raise CorpusError(f"{folder}: augmented is {augmented}, but the augmented copies found are {names}")
        parts["train"] = parts["train"][:limit]
        images = {fit.image for fit in parts["train"]}
        for name in copies[:augmented]:
            parts["train"] += [fit for fit in _nfn_fits(folder, name) if fit.image in images]
        info = {"format": "nfn-sirens", "prefix": prefix, "augmented": augmented}
        return _corpus(folder, parts, _NFN_READ, CLASSES, info, omega_0, 0.5, on_progress)


def _nfn_folders(folder: Path) -> list[re.Match[str]]:
    return [m for f in sorted(folder.iterdir()) if f.is_dir() and (m := _NFN_FOLDER.fullmatch(f.name))]


def _nfn_fits(folder: Path, prefix: str) -> list[Fit]:
    """All files of a prefix, by number of the image."""
    labels = {int(match["label"]): folder / match.string for match in _nfn_folders(folder) if match["prefix"] == prefix}
    if missing := [f"{prefix}_{label}s" for label in range(CLASSES) if label not in labels]:
        prefixes = ", ".join(sorted({m["prefix"] for m in _nfn_folders(folder)})) or "none"
        raise CorpusError(
            f"{folder}: label folders missing: {', '.join(missing)} (prefixes found: {prefixes}); the download is "
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


# --- DWSNets


_DWS_FOLDER = re.compile(r"mnist_png_(training|testing)_([0-9]{1,9})_([0-9]{1,9})")
_DWS_READ = partial(_read_siren, layer=r"seq\.[0-9]{1,9}", names=lambda depth: [f"seq.{i}" for i in range(depth)])


@register_format("dws-mnist")
class DwsMnistInrs(Format):
    """``mnist-inrs/mnist_png_{training|testing}_{label}_{imgid}/checkpoints/model_final.pth``, and a file of splits."""

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
        on_progress: Progress = silent,
    ) -> InrCorpus:
        """Loads the corpus, split as ``mnist_splits.json`` says.

        Args:
            path: ``mnist-inrs`` or the folder that holds it.
            splits: the file of splits, by default the one in or next to ``mnist-inrs``. Of its paths, only
                the part from ``mnist_png_`` on counts.
            limit: see the module, as for all that follow.
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
        parts["train"] = parts["train"][:limit]
        info = {"format": "dws-mnist", "splits": str(file)}
        return _corpus(folder, parts, _DWS_READ, _classes(parts), info, omega_0, 1.0, on_progress, True)


def _classes(parts: Fits) -> int:
    return 1 + max((fit.label for fits in parts.values() for fit in fits), default=0)


def _dws_splits(file: Path, base: Path) -> Fits:
    expected = 'expected {"train" | "val" | "test": {"path": [...], "label": ["5", ...]}}'
    with damaged(file, expected, CorpusError):
        splits = read_json(file)
        listed = {
            part: [
                (_text(path), whole(label, "a label", most=MOST_CLASSES - 1))
                for path, label in zip(splits[part]["path"], splits[part]["label"], strict=True)
            ]
            for part in SIDES
        }
    numbers: dict[tuple[str, ...], int] = defaultdict(lambda: len(numbers))
    seen: dict[tuple[str, ...], str] = {}
    parts: Fits = {part: [] for part in SIDES}
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
    """``fmnist_inrs/{split}/model_{i}.pth``, each with its label."""

    kind = "inr"
    looks_for = "folders train, val, test with files model_{i}.pth"

    @staticmethod
    def detects(path: Path) -> bool:
        return any(any(place.glob(f"{part}/model_*.pth")) for place in _fashion_places(path) for part in SIDES)

    @staticmethod
    def load(
        path: str | Path,
        *,
        limit: int | None = None,
        omega_0: float = OMEGA_0,
        on_progress: Progress = silent,
    ) -> InrCorpus:
        """Loads the corpus; its labels are in the files, so each is read once here, whatever its size.

        Args:
            path: ``fmnist_inrs`` or the folder that holds it.
            limit: see the module, as for all that follow.
        """
        folder = require_folder(path)
        base = next(p for p in _fashion_places(folder) if p.is_dir())
        if missing := [part for part in SIDES if not (base / part).is_dir()]:
            raise CorpusError(f"{base}: folders {', '.join(missing)} missing, expected {', '.join(SIDES)}")
        numbers = itertools.count()
        parts = {
            part: [
                Fit(file, UNREAD, next(numbers))
                for file in sorted((base / part).glob("model_*.pth"), key=lambda p: (len(p.name), p.name))
            ]
            for part in SIDES
        }
        parts["train"] = parts["train"][:limit]
        step = _counter(sum(map(len, parts.values())), on_progress)
        parts = {part: [fit._replace(label=_label(fit.path, step)) for fit in fits] for part, fits in parts.items()}
        read, info = partial(_DWS_READ, ignore=("label",)), {"format": "dws-fashion"}
        return _corpus(folder, parts, read, _classes(parts), info, omega_0, 1.0, on_progress, True)


def _fashion_places(path: Path) -> tuple[Path, Path]:
    return path / "fmnist_inrs", path


def _label(path: Path, step: Callable[[], object]) -> int:
    value = _read_mapping(path).get("label")
    value = value.detach().tolist() if isinstance(value, Tensor) and value.numel() == 1 else value
    step()
    try:
        return whole(value, "label", most=MOST_CLASSES - 1)  # a number, a tensor of one, or its digits
    except InvalidValueError as error:
        raise CorpusError(f"{path}: {error}") from error
