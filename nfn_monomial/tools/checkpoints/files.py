"""Checkpoints as they lie on disk: read without running code, tensor by tensor, and written back in the same form.

A checkpoint is a ``.safetensors`` file or what ``torch.save`` wrote, or several of them with their index. What this
module writes has the keys, the dtypes and the metadata of the checkpoint that it was made from, so that the code that
loads the one loads the other.
"""

from __future__ import annotations

import functools
import itertools
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from nfn_monomial.adapters.matching import natural
from nfn_monomial.checks import listed, shown
from nfn_monomial.errors import MissingFileError
from nfn_monomial.tools.files.documents import parse_json, read_bytes
from nfn_monomial.tools.files.folders import write_whole
from nfn_monomial.tools.files.strangers import FileError, damaged, foreign, open_regular
from nfn_monomial.tools.files.tensors import START, Inert, SavedFile, is_saved, kind_of, module_state

__all__ = ["Checkpoint", "checkpoints_in", "entry_names", "files_of", "read_checkpoint", "real_files", "suffix_of"]

SAFE = ".safetensors"
TORCH = (".pt", ".pth", ".bin", ".ckpt", ".tar", ".pkl")
INDEX = re.compile(rf"(?P<stem>.+)(?P<suffix>{'|'.join(map(re.escape, (SAFE, *TORCH)))})\.index(\.\w+)?\.json")
"""The name of an index, as ``pytorch_model.bin.index.json``; before its last suffix may be that of a variant."""
FORMS = (
    f"a {SAFE} file, a file of torch.save ({', '.join(TORCH)}), the index of several (*{SAFE}.index.json, "
    "*.bin.index.json), or a folder with one"
)
AGAIN = "download it again"
WHOLE = (
    "save one by torch.save(module.state_dict(), path); of an object, where its code is and you trust it, by "
    "torch.save(torch.load(path, weights_only=False).state_dict(), other_path)"
)
ARRAYS = "save arrays of numpy as tensors: torch.save({key: torch.from_numpy(array) for key, array in ...}, path)"
ONE = "save it under the name that it has in the network: torch.save({name: tensor}, path)"
ARRAY = re.compile(r"numpy\._?core\.\w+\.(_reconstruct|_frombuffer)")
GATHER = (
    "DeepSpeed (ZeRO-3) leaves the weights in pieces: gather them by python zero_to_fp32.py . OUT in the folder where "
    "that script is"
)
PIECE = re.compile(r"(bf16_)?zero_pp_rank_\d+_mp_rank_\d+_model_states\.pt")
BESIDE = re.compile(
    r"(optimizer|scheduler|scaler|sampler|rng_state|random_states|training_args)(_\d+)?\.\w+|.*_optim_states\.pt"
)
"""Files beside networks, as trainers call them."""
NARROW = (torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz)
"""Dtypes of numbers that files hold and nobody computes with; float16 has all of them."""
MOST = 200_000  # entries of folders that are looked through


class Checkpoint(Mapping[str, Tensor], ABC):
    """The state dict of one network on disk: key -> tensor, read when it is asked for.

    Attributes:
        path: of the file; of several, of their index.
        shapes: key -> shape.
        objects: key -> what the state dict has that is no tensor, as extra states.
        versions: of the parts of the module that it is of, as torch keeps them.
        arguments: of the class that it is of, where its trainer has written them down.
    """

    path: Path
    shapes: Mapping[str, tuple[int, ...]]
    objects: Mapping[str, Any] = MappingProxyType({})
    versions: Mapping[str, Any] = MappingProxyType({})
    arguments: Mapping[str, Any] = MappingProxyType({})

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
        return stem + suffix_of(self.path)

    def outputs(self, name: str) -> list[Path]:
        """The files that `write` makes, in its folder."""
        return [Path(name)]

    @abstractmethod
    def write(self, folder: Path, name: str, changed: Mapping[str, Tensor]) -> None:
        """Write the same checkpoint with other values, each file whole or not at all.

        Args:
            folder: where to.
            name: of the file or, of several, of their folder.
            changed: key -> tensor of the same shape, of any dtype; the others stay as they are.
        """

    @abstractmethod
    def stored(self, key: str) -> Tensor:
        """A tensor as it is in the file."""

    def __getitem__(self, key: str) -> Tensor:
        tensor = self.stored(key)
        return tensor.to(torch.float16) if tensor.dtype in NARROW else tensor

    def __len__(self) -> int:
        return len(self.shapes)

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def _with(self, key: str, changed: Mapping[str, Tensor]) -> Tensor:
        """A tensor to write, of the dtype that it has here."""
        own = self.stored(key)
        if key not in changed:
            return own.contiguous()
        found = changed[key].detach().to("cpu", own.dtype, copy=True).contiguous()  # tied ones may share memory
        # of eight bits, where what is too large may become the largest number
        held = changed[key].abs() <= torch.finfo(own.dtype).max if own.dtype in NARROW else torch.isfinite(found)
        if not bool(held.all()):
            raise FileError(
                f"{self.path}: {key} gets entries of up to {float(changed[key].abs().max()):.1e}, more than "
                f"{own.dtype} holds: convert the checkpoint to float32 first"
            )
        return found


class SafeTensors(Checkpoint):
    """One safetensors file."""

    def __init__(self, path: Path) -> None:
        self.path, self._identity = path, _identity(path)
        opened = _opened(path)
        # such files have their keys by name, whatever order a network has them in
        self._keys = list(opened.keys())
        self.shapes = {key: tuple(opened.get_slice(key).get_shape()) for key in sorted(self._keys, key=natural)}
        _require_whole(self)

    def _file(self) -> Any:
        """The file, mapped anew, so that what is read of it leaves the memory along with the tensor."""
        if _identity(self.path) != self._identity:
            raise FileError(f"{self.path} was changed while it was read: start again")
        return _opened(self.path)

    def stored(self, key: str) -> Tensor:
        tensor: Tensor = self._file().get_tensor(key)
        return tensor

    def write(self, folder: Path, name: str, changed: Mapping[str, Tensor]) -> None:
        tensors = {key: self._with(key, changed) for key in self._keys}
        metadata = self._file().metadata() or {"format": "pt"}
        _write(folder / name, functools.partial(safetensors.torch.save_file, tensors, metadata=metadata))


class TorchFile(Checkpoint):
    """A file of ``torch.save``: a state dict or a whole module, or a dict with one under a key, by default the only.

    One of several files (``shard``) is a state dict and nothing else.
    """

    def __init__(self, path: Path, key: str | None = None, *, shard: bool = False) -> None:
        self.path, self._given_key, self._shard, self._identity = path, key, shard, _identity(path)
        self._saved = SavedFile(path)
        content = self._saved.content
        state = content if shard and isinstance(content, Mapping) else _state_dict(path, content, key)
        names = {name: state[k] for name, k in entry_names(state).items()}
        self._state = {name: t for name, t in names.items() if isinstance(t, Tensor)}
        self.objects = {name: value for name, value in names.items() if not isinstance(value, Tensor)}
        versions = getattr(state, "_metadata", None)
        self.versions = versions if isinstance(versions, Mapping) else {}
        arguments = content.get("hyper_parameters") if isinstance(content, Mapping) else None  # of Lightning
        arguments = vars(arguments) if isinstance(arguments, Inert) else arguments  # a namespace
        self.arguments = arguments if isinstance(arguments, Mapping) else {}
        self.shapes = {name: tuple(t.shape) for name, t in self._state.items()}
        arrays = [name for name, value in self.objects.items() if _is_array(value)]
        if arrays := [name for name in arrays if not name.endswith("_extra_state")]:
            raise FileError(f"{path}: {listed(arrays)} is an array of numpy, expected a tensor: {ARRAYS}")
        slices = content.get("mp_world_size") if isinstance(content, dict) else None
        if isinstance(slices, int) and slices > 1:
            raise FileError(
                f"{path} holds one of {slices} slices of each tensor, as DeepSpeed saves them with tensor parallelism: "
                "join them where it was trained, and save the state dict of the whole"
            )
        _require_whole(self)

    def stored(self, key: str) -> Tensor:
        return self._state[key]

    def write(self, folder: Path, name: str, changed: Mapping[str, Tensor]) -> None:
        copy = TorchFile(self.path, self._given_key, shard=self._shard)  # in memory of its own
        if copy._identity != self._identity:
            raise FileError(f"{self.path} was changed after it was read: start again")
        for key in copy:
            if key in changed:
                copy.stored(key).detach().copy_(self._with(key, changed))
        _write(folder / name, lambda partial: partial.write_bytes(copy._saved.to_bytes()))


class Sharded(Checkpoint):
    """Several files (``shards``, by name) with the index that names them."""

    def __init__(self, path: Path, shards: Mapping[str, Checkpoint], index: bytes) -> None:
        self.path, self._shards, self._index = path, shards, index
        self._shard = {key: shard for shard in shards.values() for key in shard}
        if len(self._shard) < sum(map(len, shards.values())):
            raise FileError(f"{path}: a key occurs in several files; delete what is not part of the checkpoint")
        sort = all(isinstance(shard, SafeTensors) for shard in shards.values())
        keys = sorted(self._shard, key=natural) if sort else self._shard
        self.shapes = {key: self._shard[key].shapes[key] for key in keys}
        self.objects = {key: value for shard in shards.values() for key, value in shard.objects.items()}

    @property
    def name(self) -> str:
        return self.path.parent.resolve().name

    def renamed(self, stem: str) -> str:
        return stem

    @property
    def files(self) -> list[Path]:
        return [self.path, *(shard.path for shard in self._shards.values())]

    def stored(self, key: str) -> Tensor:
        return self._shard[key].stored(key)

    def outputs(self, name: str) -> list[Path]:
        return [Path(name, file) for file in (*self._shards, self.path.name)]

    def write(self, folder: Path, name: str, changed: Mapping[str, Tensor]) -> None:
        for file, shard in self._shards.items():  # one at a time, so that of a large network not all is in memory
            shard.write(folder / name, file, changed)
        _write(folder / name / self.path.name, lambda partial: partial.write_bytes(self._index))


def read_checkpoint(path: str | Path, key: str | None = None) -> Checkpoint:
    """The checkpoint at a path: a ``.safetensors`` file, the index of several, a file of ``torch.save``, or a folder.

    ``key`` is that of the state dict in a file of ``torch.save``, where it has more than one.

    Raises:
        FileNotFoundError: if there is none.
        FileError: naming the file, if it is damaged, would run code, or holds no state dict or several.
    """
    file = Path(path)
    if file.is_dir():
        found = checkpoints_in(file)
        own = [p for p in found if p.parent == file]
        if len(own or found) != 1:
            names = listed(str(p.relative_to(file)) for p in found)
            pieces = f"; {GATHER}" if any(PIECE.fullmatch(p.name) for p in found) else ""
            raise FileError(f"{file} holds {len(found)} checkpoints, expected one: {names}; name it{pieces}")
        (file,) = own or found
    if not file.is_file():
        raise MissingFileError(f"{file}: no such file, expected {FORMS}")
    if key is not None and file.suffix not in TORCH:
        raise FileError(f"{file}: --key {key} is for files of torch.save; this one has no entries")
    if INDEX.fullmatch(file.name):
        return _sharded(file)
    if file.suffix == SAFE:
        return SafeTensors(file)
    if file.suffix in TORCH:
        return TorchFile(file, key)
    with open_regular(file) as stream:
        words = foreign(file.name, stream.read(START))
    raise FileError(
        f"{file} is called {file.suffix or 'without a suffix'}, expected {FORMS}" + (words and f"; {words}")
    )


def suffix_of(path: Path) -> str:
    """Of a checkpoint's name, both of ``.pth.tar``."""
    return next((both for both in (".pth.tar", ".pt.tar") if path.name.endswith(both)), path.suffix)


def checkpoints_in(folder: Path) -> list[Path]:
    """The paths of all checkpoints in a folder and below it, by name, numbers as such: epoch 2 is before epoch 10.

    Left out are hidden files and folders, what trainers write beside networks (as ``optimizer.pt``), and second names:
    links to what is there.

    Raises:
        FileError: if there are none, or more files than anybody keeps networks in.
    """
    found: dict[tuple[Path, ...], Path] = {}
    seen: set[Path] = set()
    waiting, looked, words = [folder], 0, ""
    while waiting:
        place = waiting.pop()
        if (real := place.resolve()) in seen:
            continue
        seen.add(real)
        with damaged(place, "make it readable"):
            entries = [entry for entry in place.iterdir() if not entry.name.startswith(".")]
        looked += len(entries)
        if looked > MOST:
            raise FileError(f"{folder} has more than {MOST:,} files and folders below it: name one further down")
        waiting = [entry for entry in entries if entry.is_symlink() and entry.is_dir()] + waiting  # the last
        waiting += [entry for entry in entries if entry.is_dir() and not entry.is_symlink()]
        for file in _files(entries):
            if not file.is_symlink() or real_files(file) not in found:
                found[real_files(file)] = file
        words = words or next((f"; {entry}: {said}" for entry in sorted(entries) if (said := foreign(entry.name))), "")
    if not found:
        raise FileError(f"{folder} has no checkpoints, expected {FORMS}{words}")
    return sorted(found.values(), key=lambda file: [natural(part) for part in file.relative_to(folder).parts])


def files_of(paths: Iterable[str | Path]) -> list[Path]:
    """All files in which the checkpoints at some paths lie, those of folders among them, which need not exist.

    Raises:
        FileError: for a folder without checkpoints.
    """
    found = [file for path in map(Path, paths) for file in (checkpoints_in(path) if path.is_dir() else [path])]
    indices = [file for file in found if INDEX.fullmatch(file.name) and file.is_file()]
    return found + [index.parent / name for index in indices for name in _parts(index)]


def real_files(path: Path) -> tuple[Path, ...]:
    """The file of a checkpoint and those that an index names, without links: other ones for another checkpoint."""
    parts = _parts(path) if INDEX.fullmatch(path.name) and path.is_file() else []
    return (path.resolve(), *((path.parent / name).resolve() for name in parts))


def entry_names(entries: Iterable[Any]) -> dict[str, Any]:
    """Keys of a dict by what they are called here and on the command line, where all of them are text.

    Those of text are called as they are, tuples by their parts with commas between them. Where two would be called
    alike, they have their kinds in front, as ``str:0`` and ``int:0``, or numbers behind.
    """
    keys = list(entries)
    plain = [_called(key) for key in keys]
    counts, names = Counter(plain), dict[str, Any]()
    alike = Counter[str]()
    for key, text in zip(keys, plain, strict=True):
        name = base = text if counts[text] == 1 else f"{kind_of(key)}:{text}"
        while name in names:
            alike[base] += 1
            name = f"{base}#{alike[base] + 1}"
        names[name] = key
    return names


def _called(key: Any) -> str:
    value = vars(key).get("key", key) if isinstance(key, Inert) else key
    if isinstance(value, str):
        return value
    if isinstance(value, tuple | frozenset):
        parts = [part if isinstance(part, str) else shown(part) for part in value]
        return ",".join(parts if isinstance(value, tuple) else sorted(parts))
    return value.pickled_name if isinstance(value, Inert) else shown(value)


def _files(entries: Iterable[Path]) -> list[Path]:
    """Checkpoints among the entries of one folder; of several files with an index, the index."""
    files = [p for p in entries if p.is_file() and not BESIDE.fullmatch(p.name)]
    indices = [p for p in files if INDEX.fullmatch(p.name)]
    shards = {shard for index in indices for shard in _parts(index)}
    return indices + [p for p in files if p.suffix in (SAFE, *TORCH) and p.name not in shards and not _is_other(p)]


def _parts(index: Path) -> list[str]:
    """The names of the files of an index; of a damaged one, of files beside it that are called as parts of it are."""
    try:
        return _shards(index)[0]
    except FileError:
        stem, suffix = re.escape(_suffix_in(index)[0]), re.escape(_suffix_in(index)[1])
        return [p.name for p in index.parent.iterdir() if re.fullmatch(rf"{stem}.*-\d+-of-\d+{suffix}", p.name)]


def _is_other(file: Path) -> bool:
    """Whether a file with the name of many things is none of ``torch.save``."""
    if file.suffix not in (".tar", ".pkl"):
        return False
    with open_regular(file) as stream:
        return not is_saved(stream.read(START))


def _sharded(path: Path) -> Sharded:
    names, data = _shards(path)
    if missing := [name for name in names if not (path.parent / name).is_file()]:
        raise MissingFileError(f"{path} names {listed(missing)}, which is not beside it: download it again")
    files = {name: path.parent / name for name in names}
    found = Sharded(
        path, {n: SafeTensors(p) if p.suffix == SAFE else TorchFile(p, shard=True) for n, p in files.items()}, data
    )
    wanted = parse_json(data)["weight_map"]
    if set(wanted) != set(found):
        odd = sorted(set(wanted) ^ set(found))
        raise FileError(f"{path} and its files have other keys: {listed(odd)}; download it again")
    return found


def _shards(path: Path) -> tuple[list[str], bytes]:
    """The names of the files of an index, and its bytes."""
    suffix = _suffix_in(path)[1]
    with damaged(path, AGAIN):
        data = read_bytes(path)
        found = parse_json(data)
    places = found.get("weight_map") if isinstance(found, Mapping) else None
    if not isinstance(places, Mapping):
        raise FileError(f"{path} is no index of {suffix} files, it has no weight_map: {AGAIN}")
    names = sorted(set(map(str, places.values())))
    if not names or not all(Path(name).name == name and name.endswith(suffix) for name in names):
        raise FileError(f"{path} names {listed(names) or 'no files'}, expected {suffix} files beside it")
    return names, data


def _suffix_in(index: Path) -> tuple[str, str]:
    """The name of an index without its suffixes, and the suffix of its files."""
    parts = INDEX.fullmatch(index.name)
    assert parts is not None
    return parts["stem"], parts["suffix"]


def _identity(file: Path) -> tuple[int, ...]:
    with damaged(file, AGAIN):
        found = file.stat()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _opened(file: Path) -> Any:
    with open_regular(file) as stream:
        words = foreign("", stream.read(START))
    with damaged(file, words or AGAIN):
        return safetensors.safe_open(str(file), framework="pt")


def _is_array(value: object) -> bool:
    return isinstance(value, Inert) and ARRAY.fullmatch(value.pickled_name) is not None


def _require_whole(checkpoint: Checkpoint) -> None:
    """Refuse what is left of weights where each process has a piece of them."""
    empty = [key for key, shape in checkpoint.shapes.items() if shape == (0,) and key.endswith("weight")]
    if empty or PIECE.fullmatch(checkpoint.path.name):
        said = f"of shape (0,) are {listed(empty)}: " if empty else ""
        raise FileError(f"{checkpoint.path}: {said}{GATHER}")


def _state_dict(path: Path, content: Any, key: str | None) -> Mapping[Any, Any]:
    """The state dict in what a file holds: all of it, or one of its entries; of a whole module, its own."""
    with damaged(path, WHOLE):
        own = _state_of(content)
        inner = {k: state for k, v in content.items() if (state := _state_of(v))} if isinstance(content, dict) else {}
    if own and not inner:  # which needs no key
        return own
    if not isinstance(content, Mapping):
        way_out = ONE if isinstance(content, Tensor) else ARRAYS if _is_array(content) else WHOLE
        raise FileError(f"{path} holds a {kind_of(content)}, expected a state dict: {way_out}")
    names = entry_names(content)
    states = {name: inner[k] for name, k in names.items() if k in inner}
    short = dict(zip(entry_names(shown(name)[1:-1] for name in states), states.values(), strict=True))  # in one line
    if key is None and len(states) > 1:
        some = ", ".join(itertools.islice(short, 8)) + f" and {len(short) - 8} more" * (len(short) > 8)
        raise FileError(f"{path} holds several state dicts, {some}: say which by --key, as --key {next(iter(short))}")
    kinds = [f"{n} ({kind_of(content[k])})" if isinstance(content[k], Inert) else n for n, k in names.items()]
    entries = listed(kinds) or "nothing"
    if key is not None and key not in short | states:
        raise FileError(f"{path} has no state dict {shown(key)}; it holds {entries}")
    if not states:
        way_out = ARRAYS if any(map(_is_array, content.values())) else WHOLE
        raise FileError(f"{path} holds no tensors but {entries}, expected a state dict: {way_out}")
    return (short | states)[next(iter(short)) if key is None else key]


def _state_of(value: Any) -> Mapping[Any, Any] | None:
    """A state dict, or that of a whole module; None for others, as states of random generators and measured values."""
    found = module_state(value) if isinstance(value, Inert) else value
    if not isinstance(found, Mapping):
        return None
    tensors = [t for t in found.values() if isinstance(t, Tensor)]
    return found if any(t.ndim > 1 or (t.ndim and t.is_floating_point()) for t in tensors) else None


def _write(path: Path, write: Callable[[Path], object]) -> None:
    try:
        write_whole(path, write)
    except safetensors.SafetensorError as error:
        raise FileError(f"{path} cannot be written: {error}") from error
