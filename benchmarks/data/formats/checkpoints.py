"""Networks in a file each, as they are published: read without running code, checked, in memory or file by file.

Every format is read the same way: a file gives a state dict, `layers_of` its layers in order of execution under the
format's own names, and `parameters_of` the tensors ``weight.i``, ``bias.i`` of a weight space. `FileRows` are the
networks of many such files, each checked against the first.
"""

from __future__ import annotations

import functools
import itertools
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nfn_monomial import WeightSpace
from nfn_monomial.adapters import tensor_files
from nfn_monomial.adapters.files import FileError, listed
from nfn_monomial.adapters.tensor_files import read_torch_file, require_dense
from nfn_monomial.benchmarks.data.rows import Rows, TensorRows
from nfn_monomial.errors import MonomialError
from nfn_monomial.space import SymmetryLike

from .base import CorpusError, OnProgress

__all__ = [
    "FileRows",
    "Layer",
    "Shape",
    "counter",
    "in_memory",
    "layers_of",
    "parameters_of",
    "read_mapping",
    "read_safetensors",
    "require_folder",
    "shape_of",
    "silent",
    "some_folders",
]

GLIMPSE = 100  # folders in a folder that are looked at to tell its format


def read_mapping(path: Path) -> Mapping[str, Any]:
    """The dict in a ``.pt`` or ``.pth`` file, whatever its suffix, see `read_torch_file`.

    Args:
        path: the file.

    Raises:
        FileNotFoundError: if the file does not exist.
        CorpusError: naming the file, if it is damaged or holds no dict.
    """
    try:
        found = read_torch_file(path)
    except FileError as error:
        raise CorpusError(str(error)) from error
    if not isinstance(found, Mapping):
        raise CorpusError(f"{path} holds a {type(found).__name__}, expected a state dict")
    return found


def read_safetensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of a safetensors file, on the CPU, and its metadata.

    Raises:
        FileNotFoundError: if the file does not exist.
        CorpusError: naming the file, if it is damaged.
    """
    try:
        return tensor_files.read_safetensors(path)
    except FileError as error:
        raise CorpusError(str(error)) from error


class Layer(NamedTuple):
    """One layer's parameters: ``weight (out, in, *kernel)``, ``bias (out,)``."""

    weight: Tensor
    bias: Tensor | None


def layers_of(state: Mapping[Any, Any], path: Path, layer: str, example: str) -> dict[str, Layer]:
    """The layers of a state dict by name, in order of execution: convolutions, then linear ones, each by number.

    Args:
        state: keys ``{layer}.weight`` and ``{layer}.bias`` and no others.
        path: of the file, for messages.
        layer: regular expression of a layer's name.
        example: the keys that are expected, for messages.

    Raises:
        CorpusError: naming the file and the key, for other keys, a bias without a weight, and values that are no
            finite floating point tensors, or not of the dimensions of a weight or bias.
    """
    found: dict[str, dict[str, Tensor]] = {}
    pattern = re.compile(rf"({layer})\.(weight|bias)")
    unexpected = []
    for key, value in state.items():
        match = pattern.fullmatch(key) if isinstance(key, str) else None
        if match is None:
            unexpected.append(key)
            continue
        role = match[match.lastindex or 0]
        found.setdefault(key.removesuffix(f".{role}"), {})[role] = _checked(value, path, key, role)
    if unexpected or not found:
        what = f"has keys {listed(unexpected, 5)}" if unexpected else "is empty"
        raise CorpusError(f"{path} {what}; expected {example} and no others: these are networks of another kind")
    for name, parts in found.items():
        if "weight" not in parts:
            raise CorpusError(f"{path}: there is {name}.bias but no {name}.weight; expected {example}")
    ordered = sorted(found, key=lambda name: (found[name]["weight"].ndim == 2, _natural(name)))
    return {name: Layer(found[name]["weight"], found[name].get("bias")) for name in ordered}


def _checked(value: Any, path: Path, key: str, role: str) -> Tensor:
    key = listed([key])  # of any length in the file
    try:
        tensor = require_dense(value, key).detach().float()
    except MonomialError as error:
        raise CorpusError(f"{path}: {error}") from error
    if tensor.numel() == 0 or not (tensor.ndim == 1 if role == "bias" else 2 <= tensor.ndim <= 5):
        expected = "(out,)" if role == "bias" else "(out, in) or (out, in, *kernel)"
        raise CorpusError(f"{path}: {key} has shape {tuple(tensor.shape)}, expected {expected}")
    if not bool(torch.isfinite(tensor).all()):
        raise CorpusError(f"{path}: {key} holds NaN or infinite values: its training diverged, delete the file")
    return tensor


@functools.cache
def _natural(name: str) -> tuple[tuple[int, str, str], ...]:
    """So that 2 is before 10, whatever the number of digits."""
    parts = ((part.lstrip("0"), part) if i % 2 else ("", part) for i, part in enumerate(re.split("([0-9]+)", name)))
    return tuple((len(digits), digits, part) for digits, part in parts)


def parameters_of(layers: Mapping[str, Layer], path: Path, *, biases: bool = True) -> dict[str, Tensor]:
    """Layers as ``weight.i``, ``bias.i``.

    Raises:
        CorpusError: naming the file and the layer, if one does not follow the one before it, or (``biases``) has none.
    """
    tensors: dict[str, Tensor] = {}
    for i, (name, (weight, bias)) in enumerate(layers.items()):
        if biases and bias is None:
            raise CorpusError(f"{path}: {name}.bias is missing beside {name}.weight")
        if bias is not None and len(bias) != len(weight):
            raise CorpusError(f"{path}: {name}.bias has {len(bias)} entries, but {name}.weight {len(weight)} rows")
        tensors[f"weight.{i}"] = weight
        if bias is not None:
            tensors[f"bias.{i}"] = bias
    for (before, first), (name, second) in itertools.pairwise(layers.items()):
        rows, columns = first.weight.shape[0], second.weight.shape[1]
        flattens = first.weight.ndim > 2 and second.weight.ndim == 2
        if columns != rows and (not flattens or columns % rows):
            raise CorpusError(
                f"{path}: {name}.weight reads {columns} inputs, but {before}.weight before it has {rows} outputs"
            )
    return tensors


@dataclass(frozen=True)
class Shape:
    """The sizes of a chain of layers: what `WeightSpace.sequential` takes, one entry a layer but for ``sizes``.

    ``positions``: spatial positions that a flatten folds into a linear layer's columns, 1 elsewhere.
    """

    sizes: tuple[int, ...]
    kernels: tuple[tuple[int, ...], ...]
    positions: tuple[int, ...]
    biases: tuple[bool, ...]

    def space(self, symmetry: SymmetryLike | Sequence[SymmetryLike]) -> WeightSpace:
        """The weight space, with parameters ``weight.i`` and ``bias.i``."""
        return WeightSpace.sequential(
            self.sizes, self.kernels, symmetry, bias=self.biases, positions=dict(enumerate(self.positions))
        )


def shape_of(shapes: Mapping[str, Sequence[int]]) -> Shape:
    """The sizes of a network with these parameters (as `parameters_of` gives them) -> shape."""
    weights = [tuple(shape) for name, shape in shapes.items() if name.startswith("weight.")]
    outputs = [w[0] for w in weights]
    return Shape(
        sizes=(weights[0][1], *outputs),
        kernels=tuple(w[2:] for w in weights),
        positions=(1, *(w[1] // rows for rows, w in zip(outputs[:-1], weights[1:], strict=True))),
        biases=tuple(f"bias.{i}" in shapes for i in range(len(weights))),
    )


class FileRows(Rows):
    """Networks in a file each; only the files that are asked for are read.

    Args:
        paths: a file per network.
        read: file -> its parameters, checked.
        like: a file whose network has the shapes that all must have, by default the first.

    Raises:
        CorpusError: here for ``like``, in `read` for the files asked for: what ``read`` raises, and naming the file,
            the tensor and both shapes, if one differs.
    """

    def __init__(
        self, paths: Sequence[Path], read: Callable[[Path], dict[str, Tensor]], like: Path | None = None
    ) -> None:
        self.paths, self._read = list(paths), read
        self.like = self.paths[0] if like is None else like
        self._shapes = {name: tuple(t.shape) for name, t in read(self.like).items()}

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return self._shapes

    def read(self, index: Tensor) -> dict[str, Tensor]:
        return self._stack([self.paths[i] for i in index.tolist()], lambda: None)

    def load(self, step: Callable[[], None] = lambda: None) -> TensorRows:
        """All of them, in memory; ``step`` is called after each file."""
        return TensorRows(self._stack(self.paths, step))

    def _stack(self, paths: Sequence[Path], step: Callable[[], None]) -> dict[str, Tensor]:
        out = {name: torch.empty(len(paths), *shape) for name, shape in self._shapes.items()}
        for row, path in enumerate(paths):
            tensors = self._read(path)
            found = {name: tuple(t.shape) for name, t in tensors.items()}
            if found != self._shapes:
                self._fail(path, found)
            for name, tensor in tensors.items():
                out[name][row] = tensor
            step()
        return out

    def _fail(self, path: Path, found: Mapping[str, tuple[int, ...]]) -> None:
        for name in dict.fromkeys((*self._shapes, *found)):
            here, there = found.get(name, "missing"), self._shapes.get(name, "missing")
            if here != there:
                raise CorpusError(
                    f"{path}: {name} is {here}, expected {there} as in {self.like}: all networks must have one shape"
                )


def in_memory(parts: Iterable[FileRows], limit: int, on_progress: OnProgress) -> list[Rows]:
    """The same networks, in memory if all of them together take at most ``limit`` bytes, else as they are."""
    files = list(parts)
    if sum(rows.nbytes for rows in files) > limit:
        return list(files)
    step = counter(sum(map(len, files)), on_progress)
    return [rows.load(step) for rows in files]


def silent(done: int, total: int) -> None:
    """No progress is shown."""


def counter(total: int, on_progress: OnProgress) -> Callable[[], None]:
    """What to call after each of ``total`` files."""
    done = itertools.count(1)
    return lambda: on_progress(next(done), total)


def require_folder(path: str | Path) -> Path:
    """The path of a folder.

    Raises:
        CorpusError: if it does not exist or is a file.
    """
    folder = Path(path)
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise CorpusError(f"{folder} {what}, expected the folder of a data set")
    return folder


def some_folders(path: Path) -> list[Path]:
    """A few of the folders in a folder: enough to tell its format by, however many there are."""
    with os.scandir(path) as entries:
        return [Path(entry.path) for entry in itertools.islice(filter(os.DirEntry.is_dir, entries), GLIMPSE)]
