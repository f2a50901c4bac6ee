"""Checkpoints as they lie on disk: read without running code, tensor by tensor, and written back in the same form.

A checkpoint is a ``.safetensors`` file, several with an index beside them, or what ``torch.save`` wrote. What this
module writes has the keys, the dtypes and the metadata of the checkpoint that it was made from, so that the code that
loads the one loads the other.
"""

from __future__ import annotations

import functools
import io
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from nfn_monomial.adapters.files import FileError, damaged, listed, parse_json, read_bytes, require_regular
from nfn_monomial.adapters.modules import read_torch_file
from nfn_monomial.benchmarks.files import partial_path
from nfn_monomial.errors import MissingFileError

__all__ = ["Checkpoint", "CheckpointError", "checkpoints_in", "files_of", "read_checkpoint"]

SAFE = ".safetensors"
INDEX = ".safetensors.index.json"
TORCH = (".pt", ".pth", ".bin", ".ckpt")
FORMS = f"a {SAFE} file, the *{INDEX} of several, a file of torch.save ({', '.join(TORCH)}), or a folder with one"
AGAIN = "download it again"


class CheckpointError(FileError):
    """A checkpoint that cannot be used; the message names the file, what was found and the way out."""


class Checkpoint(Mapping[str, Tensor], ABC):
    """The state dict of one network on disk: key -> tensor, read when it is asked for.

    Attributes:
        path: of the file; of several, of their index.
        shapes: key -> shape.
    """

    path: Path
    shapes: Mapping[str, tuple[int, ...]]

    @property
    def name(self) -> str:
        """Of the file; of several, of their folder."""
        return self.path.name

    @property
    def files(self) -> list[Path]:
        """All files that it lies in."""
        return [self.path]

    def renamed(self, stem: str) -> str:
        """A name for another one of its form."""
        return stem + self.path.suffix

    @abstractmethod
    def outputs(self, name: str) -> list[Path]:
        """The files that `write` makes, in its folder."""

    @abstractmethod
    def write(self, folder: Path, name: str, changed: Mapping[str, Tensor]) -> None:
        """Write the same checkpoint with other values, each file whole or not at all.

        Args:
            folder: where to.
            name: of the file or, of several, of their folder.
            changed: key -> tensor of the same shape, of any dtype; the others stay as they are.
        """

    def __len__(self) -> int:
        return len(self.shapes)

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.path)!r})"

    def _with(self, key: str, changed: Mapping[str, Tensor]) -> Tensor:
        """A tensor to write, of the dtype that it has here.

        Raises:
            CheckpointError: if that cannot hold it.
        """
        own = self[key]
        if key not in changed:
            return own.contiguous()
        found = changed[key].detach().to("cpu", own.dtype, copy=True).contiguous()  # tied ones may share memory
        if not bool(torch.isfinite(found).all()):
            raise CheckpointError(
                f"{self.path}: {key} gets entries of up to {float(changed[key].abs().max()):.1e}, more than "
                f"{own.dtype} holds: convert the checkpoint to float32 first"
            )
        return found


class SafeTensors(Checkpoint):
    """One safetensors file, or several with an index.

    Args:
        path: of the file, or of the index.
        shards: the files; the index says which.
        index: the index as it is on disk.
    """

    def __init__(self, path: Path, shards: Mapping[str, Path], index: bytes | None = None) -> None:
        self.path, self._index = path, index
        self._shards = {name: (file, _identity(file)) for name, file in shards.items()}
        opened = {name: _opened(file) for name, file in shards.items()}
        self._keys = {name: list(file.keys()) for name, file in opened.items()}
        self._shard = {key: name for name, keys in self._keys.items() for key in keys}
        if len(self._shard) < sum(map(len, self._keys.values())):
            raise CheckpointError(f"{path}: a key occurs in several files; delete what is not part of the checkpoint")
        self.shapes = {key: tuple(opened[name].get_slice(key).get_shape()) for key, name in sorted(self._shard.items())}

    @property
    def name(self) -> str:
        return self.path.name if self._index is None else self.path.resolve().parent.name

    def renamed(self, stem: str) -> str:
        return stem if self._index is not None else super().renamed(stem)

    @property
    def files(self) -> list[Path]:
        return [self.path, *(self.path.parent / name for name in self._keys)]

    def _file(self, name: str) -> Any:
        """One of the files, mapped anew, so that what is read of it leaves the memory along with the tensor.

        Raises:
            CheckpointError: if it is not the file any more whose keys were read.
        """
        path, identity = self._shards[name]
        if _identity(path) != identity:
            raise CheckpointError(f"{path} was changed while it was read: start again")
        return _opened(path)

    def __getitem__(self, key: str) -> Tensor:
        tensor: Tensor = self._file(self._shard[key]).get_tensor(key)
        return tensor

    def outputs(self, name: str) -> list[Path]:
        if self._index is None:
            return [Path(name)]
        return [Path(name, file) for file in (*self._keys, self.path.name)]

    def write(self, folder: Path, name: str, changed: Mapping[str, Tensor]) -> None:
        for target, (shard, keys) in zip(self.outputs(name), self._keys.items(), strict=False):
            # of one file at a time, so that of a large network not all is in memory
            tensors = {key: self._with(key, changed) for key in keys}
            metadata = self._file(shard).metadata() or {"format": "pt"}
            save = functools.partial(safetensors.torch.save_file, tensors, metadata=metadata)
            _write(folder / target, save)
        if self._index is not None:
            index = self._index
            _write(folder / name / self.path.name, lambda partial: partial.write_bytes(index))


class TorchFile(Checkpoint):
    """A file of ``torch.save``: a state dict, or a dict that has one under a key.

    Args:
        path: the file.
        key: of the state dict in it; by default what is one, if only one is.
    """

    def __init__(self, path: Path, key: str | None = None) -> None:
        self.path, self._found = path, read_torch_file(path)
        if not isinstance(self._found, Mapping):
            raise CheckpointError(f"{path} holds a {type(self._found).__name__}, expected a state dict")
        self._key = _state_key(path, self._found, key)
        state = self._found if self._key is None else self._found[self._key]
        self._state = {str(k): t for k, t in state.items() if isinstance(t, Tensor)}
        for k, t in self._state.items():
            if t.layout != torch.strided or t.is_meta or t.is_quantized or t.is_nested:
                kind = "meta" if t.is_meta else "quantised" if t.is_quantized else str(t.layout)
                raise CheckpointError(f"{path}: {k} is a {kind} tensor, expected a dense one with values")
        self.shapes = {k: tuple(t.shape) for k, t in self._state.items()}

    @property
    def others(self) -> list[str]:
        """What the file holds beside the state dict."""
        return [str(key) for key in self._found if key != self._key] if self._key is not None else []

    def __getitem__(self, key: str) -> Tensor:
        return self._state[key]

    def outputs(self, name: str) -> list[Path]:
        return [Path(name)]

    def write(self, folder: Path, name: str, changed: Mapping[str, Tensor]) -> None:
        state = self._found if self._key is None else self._found[self._key]
        written: Any = type(state)((k, self._with(k, changed) if k in self._state else v) for k, v in state.items())
        if self._key is not None:
            written = type(self._found)((k, written if k == self._key else v) for k, v in self._found.items())
        buffer = io.BytesIO()  # torch tells of a full disk as it does of faults
        torch.save(written, buffer)
        _write(folder / name, lambda partial: partial.write_bytes(buffer.getbuffer()))


def read_checkpoint(path: str | Path, key: str | None = None) -> Checkpoint:
    """The checkpoint at a path; tensors are read when they are asked for.

    Args:
        path: a ``.safetensors`` file, the index of several, a file of ``torch.save``, or a folder with one of these.
        key: of the state dict in a file of ``torch.save``, where it has more than one.

    Raises:
        FileNotFoundError: if there is none.
        CheckpointError: naming the file, if it is damaged, would run code, or holds no state dict or several.
    """
    file = Path(path)
    if file.is_dir():
        found = checkpoints_in(file)
        own = [p for p in found if p.parent == file]
        if len(own or found) != 1:
            names = listed(map(str, found))
            raise CheckpointError(f"{file} holds {len(found)} checkpoints, expected one: {names}; name it")
        (file,) = own or found
    if not file.is_file():
        raise MissingFileError(f"{file}: no such file, expected {FORMS}")
    if key is not None and file.suffix not in TORCH:
        raise CheckpointError(f"{file}: --key {key} is for files of torch.save; this one has no entries")
    if file.name.endswith(INDEX):
        return _sharded(file)
    if file.suffix == SAFE:
        return SafeTensors(file, {file.name: file})
    if file.suffix in TORCH:
        return TorchFile(file, key)
    raise CheckpointError(f"{file} is called {file.suffix or 'without a suffix'}, expected {FORMS}")


def checkpoints_in(folder: Path) -> list[Path]:
    """The paths of the checkpoints in a folder, and of those that are alone in folders below it, sorted.

    Raises:
        CheckpointError: if there are none.
    """
    inner = sorted(entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    found = _files(folder) + [file for place in inner if len(files := _files(place)) == 1 for file in files]
    if not found:
        raise CheckpointError(f"{folder} has no checkpoints, expected {FORMS}")
    return found


def files_of(paths: Iterable[str | Path]) -> list[Path]:
    """All files in which the checkpoints at some paths lie, those of folders among them, which need not exist.

    Raises:
        CheckpointError: for a folder without checkpoints, or an index that is none.
    """
    found = [file for path in map(Path, paths) for file in (checkpoints_in(path) if path.is_dir() else [path])]
    indices = [file for file in found if file.name.endswith(INDEX) and file.is_file()]
    return found + [index.parent / name for index in indices for name in _shards(index)[0]]


def _files(folder: Path) -> list[Path]:
    """Checkpoints of one folder; of several files with an index, the index."""
    files = sorted(p for p in folder.iterdir() if p.is_file() and not p.name.startswith("."))
    indices = [p for p in files if p.name.endswith(INDEX)]
    shards = {shard for index in indices for shard in _shards(index)[0]}
    return indices + [p for p in files if p.suffix in (SAFE, *TORCH) and p.name not in shards]


def _sharded(path: Path) -> SafeTensors:
    names, data = _shards(path)
    if missing := [name for name in names if not (path.parent / name).is_file()]:
        raise MissingFileError(f"{path} names {listed(missing)}, which is not beside it: download it again")
    found = SafeTensors(path, {name: path.parent / name for name in names}, data)
    wanted = parse_json(data)["weight_map"]
    if set(wanted) != set(found):
        odd = sorted(set(wanted) ^ set(found))
        raise CheckpointError(f"{path} and its files have other keys: {listed(odd)}; download it again")
    return found


def _shards(path: Path) -> tuple[list[str], bytes]:
    """The names of the files of an index, and its bytes."""
    with damaged(path, AGAIN, CheckpointError):
        data = read_bytes(path)
        found = parse_json(data)
    places = found.get("weight_map") if isinstance(found, Mapping) else None
    if not isinstance(places, Mapping):
        raise CheckpointError(f"{path} is no index of {SAFE} files, it has no weight_map: {AGAIN}")
    names = sorted(set(map(str, places.values())))
    if not names or not all(Path(name).name == name and name.endswith(SAFE) for name in names):
        raise CheckpointError(f"{path} names {listed(names) or 'no files'}, expected {SAFE} files beside it")
    return names, data


def _identity(file: Path) -> tuple[int, ...]:
    with damaged(file, AGAIN, CheckpointError):
        found = file.stat()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _opened(file: Path) -> Any:
    with damaged(file, AGAIN, CheckpointError):
        require_regular(file)
        return safetensors.safe_open(str(file), framework="pt")


def _state_key(path: Path, found: Mapping[Any, Any], key: str | None) -> Any:
    """Under which key the state dict is; None if it is the whole."""

    def is_state(value: Any) -> bool:
        return isinstance(value, Mapping) and bool(value) and any(isinstance(v, Tensor) for v in value.values())

    inner = [k for k, value in found.items() if is_state(value)]
    if key is not None and (inner or not is_state(found)):  # a file that is a state dict needs none
        if key not in inner:
            raise CheckpointError(f"{path} has no state dict {key!r}; it holds {listed(found) or 'nothing'}")
        return key
    if len(inner) > 1:
        raise CheckpointError(f"{path} holds several state dicts, {listed(inner)}: say which by --key")
    if not inner and not is_state(found):
        raise CheckpointError(f"{path} holds no tensors but {listed(found) or 'nothing'}, expected a state dict")
    return inner[0] if inner else None


def _write(path: Path, write: Callable[[Path], object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = partial_path(path)
    try:
        write(partial)
        os.replace(partial, path)
    except safetensors.SafetensorError as error:
        raise CheckpointError(f"{path} cannot be written: {error}") from error
    finally:
        partial.unlink(missing_ok=True)
