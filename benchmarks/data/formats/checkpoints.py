"""Networks in a file each, as they are published: read without running code, checked, in memory or file by file.

Every format is read the same way: a file gives a state dict, `read_layers` its layers in order of execution under the
format's own names, and the tensors ``weight.i``, ``bias.i`` of a weight space. `FileRows` are the
networks of many such files, each checked against the first.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nfn_monomial.adapters import tensor_files
from nfn_monomial.adapters.chains import Layer, layers_of, parameters_of
from nfn_monomial.adapters.files import FileError, damaged
from nfn_monomial.adapters.tensor_files import read_torch_file
from nfn_monomial.benchmarks.data.rows import Rows, TensorRows

from .base import CorpusError, OnProgress

__all__ = [
    "FileRows",
    "counter",
    "in_memory",
    "read_layers",
    "read_mapping",
    "read_safetensors",
    "require_folder",
    "silent",
]


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


def read_layers(
    state: Mapping[Any, Any], path: Path, layer: str, example: str, *, biases: bool = True
) -> tuple[dict[str, Layer], dict[str, Tensor]]:
    """The layers of a state dict, and its parameters.

    Raises:
        CorpusError: as `layers_of` and `parameters_of`.
    """
    with damaged(path, "it is of another format", CorpusError):
        layers = layers_of(state, path, layer, example)
        return layers, parameters_of(layers, path, biases=biases)


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
