"""ModelZoos (Schuerholt et al. 2022), and what published CNN sets have in common: activations, accuracies, splits."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from nfn_monomial import Symmetry, symmetry_of
from nfn_monomial.adapters.chains import Shape, shape_of
from nfn_monomial.adapters.files import damaged, listed, shown
from nfn_monomial.benchmarks.data.networks import Corpus, Networks, Part
from nfn_monomial.benchmarks.data.rows import IN_MEMORY_BYTES, Rows
from nfn_monomial.benchmarks.reading import number, whole
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.tools.predictors.models import NetworkInfo
from nfn_monomial.tools.reading import parse_json, read_bytes

from .base import CorpusError, Format, OnProgress, register_format
from .checkpoints import FileRows, counter, read_layers, read_mapping, require_folder, silent

__all__ = ["MODULES", "ModelZoos", "share", "split", "stack_parts"]

PARTS = ("train", "val", "test")
ACTIVATION = ("model::nlin", "nlin", "activation")
DEFAULT_ACTIVATION = "tanh"
Poolings = tuple[bool, ...] | None
"""Whether a pooling follows each layer but the last; None where that is not known."""
SHARES = (0.15, 0.15)  # of the networks for validation and for testing
MODULES: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU, "leaky_relu": nn.LeakyReLU, "leakyrelu": nn.LeakyReLU, "gelu": nn.GELU, "silu": nn.SiLU,
    "tanh": nn.Tanh, "sigmoid": nn.Sigmoid, "none": nn.Identity,
}  # fmt: skip


def split(count: int, seed: int, where: object, limit: int | None = None) -> dict[str, list[int]]:
    """Numbers of ``count`` networks for the three parts, 70, 15 and 15 percent of a seeded permutation, none empty.

    Args:
        count: at least 3.
        seed: of the permutation.
        where: for messages.
        limit: keep that many training networks.

    Raises:
        CorpusError: if there are too few.
    """
    if count < len(PARTS):
        raise CorpusError(f"{where}: {count} networks, but at least {len(PARTS)} are needed, one for each part")
    if limit is not None and limit < 1:
        raise CorpusError(f"limit is {limit}, but at least 1 training network is needed")
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed)).tolist()
    val, test = (max(1, round(part * count)) for part in SHARES)
    return {"train": order[val + test :][:limit], "val": order[:val], "test": order[val : val + test]}


def stack_parts(
    files: Mapping[str, Mapping[str, Sequence[tuple[Path, float]]]],
    read: Callable[[Path], dict[str, Tensor]],
    in_memory_bytes: int,
    on_progress: OnProgress,
) -> dict[str, dict[str, Networks]]:
    """Networks of one shape: activation -> part -> files with accuracies, as `FileRows`, in memory if they fit.

    All files are read, and so checked, in either case.
    """
    pairs = [found for parts in files.values() for found in parts.values()]
    like = pairs[0][0][0]
    rows = [FileRows([path for path, _ in found], read, like) for found in pairs]
    step = counter(sum(map(len, rows)), on_progress)
    if sum(r.nbytes for r in rows) <= in_memory_bytes:
        held: list[Rows] = [r.load(step) for r in rows]
    else:
        held = list(rows)
        for r in rows:
            for index in torch.split(torch.arange(len(r)), 1):
                r.read(index)
                step()
    networks = (
        Networks(r, torch.tensor([accuracy for _, accuracy in found])) for r, found in zip(held, pairs, strict=True)
    )
    return {activation: {part: next(networks) for part in parts} for activation, parts in files.items()}


def share(value: Any, where: object, name: str) -> float:
    """An accuracy.

    Raises:
        CorpusError: naming the file, if it is no share in [0, 1].
    """
    try:
        found = number(value, name)
    except InvalidValueError:
        found = math.nan
    if not 0 <= found <= 1:
        raise CorpusError(f"{where}: {name} is {shown(value)}, expected an accuracy as a share in [0, 1]")
    return found


@dataclass(frozen=True)
class _Trained:
    """One model's folder: ``results`` are the complete lines of result.json by epoch."""

    folder: Path
    results: dict[int, dict[str, Any]]
    cut: bool  # whether the last line is incomplete, as after a crash

    @property
    def config(self) -> Mapping[str, Any]:
        config = next(reversed(self.results.values())).get("config")
        return config if isinstance(config, Mapping) else {}

    @property
    def activation(self) -> str:
        return str(next((self.config[key] for key in ACTIVATION if key in self.config), DEFAULT_ACTIVATION))

    @property
    def dropout(self) -> bool:
        """Whether there are modules for it between the layers."""
        return bool(self.config.get("model::dropout"))

    def checkpoint(self, epoch: int) -> Path:
        return self.folder / f"checkpoint_{epoch:06d}" / "checkpoints"

    def accuracy(self, epoch: int, target: str) -> float:
        return share(self.results[epoch].get(target), self.folder / "result.json", f"{target} of epoch {epoch}")


@register_format("model-zoos")
class ModelZoos(Format):
    """``NN_tune_trainable_*/result.json`` and ``NN_tune_trainable_*/checkpoint_{epoch:06d}/checkpoints``.

    CNNs whose convolutions end in a flatten. The published networks have max-poolings of 2 x 2 in front of the
    activation, which state dicts do not show: one is taken to be where the numbers of the layers in ``module_list``
    leave room for it. Max-pooling does not commute with sign flips, so the group of tanh networks has none on such
    channels. Where the numbers cannot be explained, the group has none on any channels, which is always right.
    """

    kind = "generalization"
    looks_for = "folders NN_tune_trainable_* with result.json"

    @staticmethod
    def detects(path: Path) -> bool:
        return any(folder.is_dir() for folder in path.glob("NN_tune_trainable_*"))

    @staticmethod
    def load(
        path: str | Path,
        *,
        activation: str | None = None,
        epochs: Sequence[int] | None = None,
        target: Literal["test_acc", "val_acc"] = "test_acc",
        seed: int = 0,
        limit: int | None = None,
        in_memory_bytes: int = IN_MEMORY_BYTES,
        on_progress: OnProgress = silent,
    ) -> dict[str, Corpus]:
        """Load a zoo, by activation; 70, 15 and 15 percent of the models for training, validation and testing.

        Args:
            path: the folder with the models' folders.
            activation: of all networks, whatever their configuration says; by default ``model::nlin``, ``nlin`` or
                ``activation`` of it, or tanh.
            epochs: checkpoints to take of every model, all in the same part; by default the last one for which
                result.json has a line.
            target: what to predict.
            seed: of the split.
            limit: train on that many models of each activation.
            in_memory_bytes: larger sets stay in their files, which are read again for each batch.
            on_progress: called while files are read.

        Raises:
            CorpusError: naming the folder or the file, if something is missing or damaged. Only an incomplete last
                line of result.json is passed over, and counted in ``source``.
        """
        folder = require_folder(path)
        if target not in ("test_acc", "val_acc"):
            raise CorpusError(f"target is {target!r}, expected test_acc or val_acc")
        places = sorted(place for place in folder.glob("NN_tune_trainable_*") if place.is_dir())
        if not places:
            raise CorpusError(f"{folder}: no folders NN_tune_trainable_*")
        if epochs is not None and not epochs:
            raise CorpusError("epochs is empty: give at least one, or None for the last")
        by_activation: dict[str, list[_Trained]] = defaultdict(list)
        for model in map(_trained, places):
            by_activation[(activation or model.activation).lower()].append(model)
        if unknown := by_activation.keys() - MODULES.keys():
            raise CorpusError(
                f"{folder}: activation {listed(sorted(unknown))} is not known, expected one of "
                f"{', '.join(MODULES)}; give activation (--data-option activation=NAME) if the configuration says "
                "something else"
            )
        chosen = {
            name: {
                part: [(models[i], epoch) for i in numbers for epoch in _epochs(models[i], epochs)]
                for part, numbers in split(len(models), seed, f"{folder}, activation {name}", limit).items()
            }
            for name, models in sorted(by_activation.items())
        }
        dropout = {model.folder: model.dropout for models in by_activation.values() for model in models}
        poolings: set[Poolings] = set()

        def read(file: Path) -> dict[str, Tensor]:
            example = "module_list.{i}.weight and .bias"
            layers, tensors = read_layers(read_mapping(file), file, r"module_list\.[0-9]{1,9}", example)
            numbers = [int(name.rpartition(".")[2]) for name in layers]
            shape = shape_of({name: t.shape for name, t in tensors.items()})
            poolings.add(_poolings(shape, numbers, dropout=dropout[file.parent.parent]))
            return tensors

        files = {
            name: {
                part: [(model.checkpoint(epoch), model.accuracy(epoch, target)) for model, epoch in pairs]
                for part, pairs in parts.items()
            }
            for name, parts in chosen.items()
        }
        loaded = stack_parts(files, read, in_memory_bytes, on_progress)
        pools = poolings.pop() if len(poolings) == 1 else None
        corpora = {}
        for name, parts in chosen.items():
            info = _info(loaded[name]["train"], name, pools)
            source = {
                "format": "model-zoos", "path": str(folder), "split": f"70/15/15 percent of models, seed {seed}",
                "target": target, "models": {part: len({m.folder for m, _ in pairs}) for part, pairs in parts.items()},
                "epochs": dict(sorted(Counter(epoch for pairs in parts.values() for _, epoch in pairs).items())),
                "incomplete_last_lines": sum(model.cut for model in by_activation[name]),
            }  # fmt: skip
            found = {part: (Part(networks, info),) for part, networks in loaded[name].items()}
            corpora[name] = Corpus(name, **found, info=info, source=source)
        return corpora


def _trained(folder: Path) -> _Trained:
    file = folder / "result.json"
    if not file.is_file():
        raise CorpusError(f"{file} is missing: it has the accuracies; download the folder again, or delete it")
    with damaged(file, "download the folder again, or delete it", CorpusError):
        lines = read_bytes(file).decode(errors="replace").split("\n")
    lines = lines[:-1] if not lines[-1] else lines
    results: dict[int, dict[str, Any]] = {}
    cut = False
    for place, text in enumerate(lines, start=1):
        try:
            line = parse_json(text, strict=False)
        except ValueError as error:
            if place < len(lines):
                raise CorpusError(f"{file}, line {place}: {shown(text)} is no result of an epoch ({error})") from error
            cut = True
            continue
        if not isinstance(line, dict) or "training_iteration" not in line:
            raise CorpusError(f"{file}, line {place}: {shown(text)} is no result of an epoch")
        with damaged(f"{file}, line {place}", "download the folder again, or delete it", CorpusError):
            epoch = whole(line.get("training_iteration"), "training_iteration")
        if epoch in results:
            raise CorpusError(f"{file}, line {place}: epoch {epoch} occurs twice; download the folder again")
        results[epoch] = line
    if not results:
        raise CorpusError(f"{file} has no complete line: download the folder again, or delete it")
    return _Trained(folder, results, cut)


def _epochs(model: _Trained, wanted: Sequence[int] | None) -> list[int]:
    saved = {int(m[1]) for p in model.folder.iterdir() if (m := re.fullmatch(r"checkpoint_([0-9]{1,9})", p.name))}
    known = sorted(saved & model.results.keys())
    if wanted is None and known:
        return known[-1:]
    if wanted is None or (missing := sorted(set(wanted) - set(known))):
        what = "" if wanted is None else f" {', '.join(map(str, missing))}"
        raise CorpusError(
            f"{model.folder}: no epoch{what} has both a checkpoint ({_some(saved)}) and a line in result.json "
            f"({_some(model.results)}): the download is incomplete"
        )
    return list(dict.fromkeys(wanted))


def _some(numbers: Sequence[int] | set[int] | Mapping[int, Any]) -> str:
    shown = sorted(numbers)
    return f"epochs {shown[0]} to {shown[-1]}" if shown else "none"


def _info(networks: Networks, activation: str, pools: Poolings) -> NetworkInfo:
    shape = shape_of(networks.rows.shapes)
    keeps = [
        symmetry_of(MODULES[activation])
        & (Symmetry.SCALE if kernel and (pools is None or pools[i]) else Symmetry.MONOMIAL)
        for i, kernel in enumerate(shape.kernels[:-1])
    ]
    size = None if pools is None else _image_size(shape, pools)
    if pools is None or size is None:
        return NetworkInfo(shape.space(keeps), activation)
    template = partial(_module, shape, activation, pools)
    return NetworkInfo(shape.space(keeps), activation, template, (shape.sizes[0], size, size))


def _poolings(shape: Shape, numbers: Sequence[int], *, dropout: bool) -> Poolings:
    """Poolings from the numbers that the layers have in the list of modules; None if they cannot be explained."""
    pools = []
    pairs = zip(itertools.pairwise(numbers), itertools.pairwise(shape.kernels), strict=True)
    for (first, second), (kernel, following) in pairs:
        flatten = bool(kernel) and not following
        room = second - first - 1 - dropout - flatten - 1  # the last 1 is the activation
        if room not in ((0, 1) if kernel else (0,)) or len(kernel) not in (0, 2):
            return None
        pools.append(bool(room))
    return tuple(pools)


def _image_size(shape: Shape, pools: Sequence[bool]) -> int | None:
    """Pixels a side of the images, 28 or 32, that leave as many positions as the first linear layer reads."""
    for image in (28, 32):
        size = image
        for kernel, pool in zip(shape.kernels[:-1], pools, strict=True):
            if kernel:
                size = (size - kernel[0] + 1) // (2 if pool else 1)
        if size > 0 and size * size == math.prod(shape.positions):
            return image
    return None


def _module(shape: Shape, activation: str, pools: Sequence[bool]) -> nn.Sequential:
    modules: list[nn.Module] = []
    last = len(shape.kernels) - 1
    for i, kernel in enumerate(shape.kernels):
        rows, columns = shape.sizes[i + 1], shape.sizes[i] * shape.positions[i]
        if i and shape.kernels[i - 1] and not kernel:
            modules.append(nn.Flatten())
        modules.append(nn.Conv2d(columns, rows, tuple(kernel)) if kernel else nn.Linear(columns, rows))  # type: ignore[arg-type]
        if i < last:
            modules += [nn.MaxPool2d(2)] * pools[i] + [MODULES[activation]()]
    return nn.Sequential(*modules)
