"""Checkpoints on disk: read tensor by tensor without running code, and written back in the same form.

A checkpoint is a ``.safetensors`` file, a file of ``torch.save``, or several of either with their index. A checkpoint
that is written has the keys, the dtypes and the metadata of the one that it was made from, so that the same code loads
both.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from nfn_monomial.adapters.matching import natural
from nfn_monomial.checks import listed, shown
from nfn_monomial.errors import InvalidValueError, MissingFileError

from .atomic import write_whole
from .tensors import START, Inert, SavedFile, is_saved, kind_of, module_state
from .untrusted import FileError, damaged, foreign, open_regular, parse_json, read_bytes, read_json

__all__ = [
    "Checkpoint",
    "checkpoints_at",
    "checkpoints_in",
    "entry_names",
    "files_of",
    "read_checkpoint",
    "real_files",
    "skipping",
    "suffix_of",
]

SAFE = ".safetensors"
TORCH = (".pt", ".pth", ".bin", ".ckpt", ".tar", ".pkl")
INDEX = re.compile(rf"(?P<stem>.+)(?P<suffix>{'|'.join(map(re.escape, (SAFE, *TORCH)))})\.index(\.\w+)?\.json")
"""The name of an index, as ``pytorch_model.bin.index.json``; before its last suffix may be that of a variant."""
FORMS = (
    f"a {SAFE} file, a file of torch.save ({', '.join(TORCH)}), the index of several (*{SAFE}.index.json, "
    "*.bin.index.json), or a folder with one"
)
AGAIN = "download it again"
# Ways out for a file that holds an object, arrays, or a single tensor.
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
"""Names that trainers give to the files beside a network."""
NARROW = (torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz)
"""Dtypes of eight bits, which are read as float16: it holds all their numbers, and can be computed with."""
MOST = 200_000  # files and folders that are looked through


class Checkpoint(Mapping[str, Tensor], ABC):
    """The state dict of one network on disk: key -> tensor, read when it is asked for.

    Attributes:
        path: of the file, or of the index of several files.
        shapes: key -> shape.
        objects: key -> an entry of the state dict that is no tensor, such as an extra state.
        versions: of the parts of the network's module, as torch stores them.
        arguments: of the network's class, where its trainer has written them down.
    """

    path: Path
    shapes: Mapping[str, tuple[int, ...]]
    objects: Mapping[str, Any] = MappingProxyType({})
    versions: Mapping[str, Any] = MappingProxyType({})
    arguments: Mapping[str, Any] = MappingProxyType({})

    @property
    def name(self) -> str:
        """The name of the file, or of the folder of several files."""
        return self.path.name

    @property
    def files(self) -> list[Path]:
        """The files that it consists of."""
        return [self.path]

    @property
    def configuration(self) -> Path | None:
        """The file that transformers or peft has saved beside it, without which these do not load such a network."""
        if not re.match(r"(adapter_|pytorch_|diffusion_pytorch_)?model\b", self.path.name):
            return None
        for name, entry in (("adapter_config.json", "peft_type"), ("config.json", "model_type")):
            file = self.path.with_name(name)
            stated = read_json(file, "copy it again") if file.is_file() else None
            if isinstance(stated, Mapping) and entry in stated:
                return file
        return None

    def renamed(self, stem: str) -> str:
        """Returns a name for another checkpoint of the same form."""
        return stem + suffix_of(self.path)

    def inside(self, folder: str) -> str:
        """Returns a name for another checkpoint of the same form that has a folder of its own."""
        return f"{folder}/{self.name}"

    def outputs(self, name: str) -> list[Path]:
        """Returns the files that `write` makes, relative to its folder."""
        return [Path(name)]

    @abstractmethod
    def write(self, folder: Path, name: str, changed: Mapping[str, Tensor]) -> None:
        """Writes the same checkpoint with other values, each file whole or not at all.

        Args:
            folder: where to.
            name: of the file, or of the folder of several files.
            changed: key -> tensor of the same shape, of any dtype; the other tensors stay as they are.
        """

    @abstractmethod
    def stored(self, key: str) -> Tensor:
        """Reads a tensor in the dtype of the file."""

    def __getitem__(self, key: str) -> Tensor:
        tensor = self.stored(key)
        return tensor.to(torch.float16) if tensor.dtype in NARROW else tensor

    def __len__(self) -> int:
        return len(self.shapes)

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def _to_write(self, key: str, changed: Mapping[str, Tensor]) -> Tensor:
        """Returns a tensor to write, in the dtype that it has in this checkpoint."""
        stored = self.stored(key)
        if key not in changed:
            return stored.contiguous()
        tensor = changed[key].detach().to("cpu", stored.dtype, copy=True).contiguous()  # tied ones may share memory
        # torch may convert a number that is too large for eight bits to the largest one
        narrow = stored.dtype in NARROW
        fits = changed[key].abs() <= torch.finfo(stored.dtype).max if narrow else torch.isfinite(tensor)
        if not bool(fits.all()):
            raise FileError(
                f"{self.path}: {key} gets entries of up to {float(changed[key].abs().max()):.1e}, more than "
                f"{stored.dtype} holds: convert the checkpoint to float32 first"
            )
        return tensor


class SafeTensors(Checkpoint):
    """One safetensors file."""

    def __init__(self, path: Path) -> None:
        self.path, self._identity = path, _identity(path)
        opened = _opened(path)
        # safetensors sorts keys by name, whatever their order in the network
        self._keys = list(opened.keys())
        self.shapes = {key: tuple(opened.get_slice(key).get_shape()) for key in sorted(self._keys, key=natural)}
        _require_whole(self)

    def _file(self) -> Any:
        """Maps the file anew, so that its memory is freed along with the tensor that is read."""
        if _identity(self.path) != self._identity:
            raise FileError(f"{self.path} was changed while it was read: start again")
        return _opened(self.path)

    def stored(self, key: str) -> Tensor:
        tensor: Tensor = self._file().get_tensor(key)
        return tensor

    def write(self, folder: Path, name: str, changed: Mapping[str, Tensor]) -> None:
        tensors = {key: self._to_write(key, changed) for key in self._keys}
        metadata = self._file().metadata() or {"format": "pt"}
        _write(folder / name, functools.partial(safetensors.torch.save_file, tensors, metadata=metadata))


class TorchFile(Checkpoint):
    """A file of ``torch.save`` that holds a state dict, a whole module, or a dict with one of them under a key.

    Args:
        path: of the file.
        key: of the state dict; may be left out if there is only one.
        shard: whether it is one of several files, which are state dicts and nothing else.
    """

    def __init__(self, path: Path, key: str | None = None, *, shard: bool = False) -> None:
        self.path, self._key, self._shard, self._identity = path, key, shard, _identity(path)
        self._saved = SavedFile(path)
        content = self._saved.content
        state = content if shard and isinstance(content, Mapping) else _state_dict(path, content, key)
        names = {name: state[k] for name, k in entry_names(state).items()}
        self._state = {name: t for name, t in names.items() if isinstance(t, Tensor)}
        self.objects = {name: value for name, value in names.items() if not isinstance(value, Tensor)}
        versions = getattr(state, "_metadata", None)
        self.versions = versions if isinstance(versions, Mapping) else {}
        arguments = content.get("hyper_parameters") if isinstance(content, Mapping) else None  # of Lightning
        arguments = vars(arguments) if isinstance(arguments, Inert) else arguments  # of a namespace
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
        copy = TorchFile(self.path, self._key, shard=self._shard)  # in memory of its own
        if copy._identity != self._identity:
            raise FileError(f"{self.path} was changed after it was read: start again")
        for key in copy:
            if key in changed:
                copy.stored(key).detach().copy_(self._to_write(key, changed))
        _write(folder / name, lambda partial: partial.write_bytes(copy._saved.to_bytes()))


class Sharded(Checkpoint):
    """Several files with the index that names them."""

    def __init__(self, path: Path) -> None:
        names, self._index = read_index(path)
        if missing := [name for name in names if not (path.parent / name).is_file()]:
            raise MissingFileError(f"{path} names {listed(missing)}, which is not beside it: {AGAIN}")
        files = {name: path.parent / name for name in names}
        shards = {n: SafeTensors(p) if p.suffix == SAFE else TorchFile(p, shard=True) for n, p in files.items()}
        self.path, self._shards = path, shards
        self._shard = {key: shard for shard in shards.values() for key in shard}
        if len(self._shard) < sum(map(len, shards.values())):
            raise FileError(f"{path}: a key occurs in several files; delete what is not part of the checkpoint")
        if odd := sorted(set(parse_json(self._index)["weight_map"]) ^ set(self._shard)):
            raise FileError(f"{path} and its files have other keys: {listed(odd)}; {AGAIN}")
        keys = sorted(self._shard, key=natural) if _stem_and_suffix(path)[1] == SAFE else self._shard
        self.shapes = {key: self._shard[key].shapes[key] for key in keys}
        self.objects = {key: value for shard in shards.values() for key, value in shard.objects.items()}

    @property
    def name(self) -> str:
        return self.path.parent.resolve().name

    def renamed(self, stem: str) -> str:
        return stem

    def inside(self, folder: str) -> str:
        return folder

    @property
    def files(self) -> list[Path]:
        return [self.path, *(shard.path for shard in self._shards.values())]

    def stored(self, key: str) -> Tensor:
        return self._shard[key].stored(key)

    def outputs(self, name: str) -> list[Path]:
        return [Path(name, file) for file in (*self._shards, self.path.name)]

    def write(self, folder: Path, name: str, changed: Mapping[str, Tensor]) -> None:
        for file, shard in self._shards.items():  # one at a time, so that a large network is never in memory as a whole
            shard.write(folder / name, file, changed)
        _write(folder / name / self.path.name, lambda partial: partial.write_bytes(self._index))


@contextlib.contextmanager
def skipping(
    path: object, skipped: dict[str, str] | None, errors: tuple[type[Exception], ...] = (FileError, MissingFileError)
) -> Iterator[None]:
    """Writes down why a file is left out, path -> reason, in place of the error; without ``skipped`` raises it."""
    try:
        yield
    except errors as error:
        if skipped is None:
            raise
        reason = str(error).removeprefix(str(path))
        skipped[str(path)] = f"it{reason}" if reason.startswith(" ") else reason.removeprefix(": ")


def read_checkpoint(path: str | Path, key: str | None = None) -> Checkpoint:
    """Reads a ``.safetensors`` file, an index and its files, a file of ``torch.save``, or a folder with one of these.

    ``key`` is that of the state dict in a file of ``torch.save`` that has several.

    Raises:
        FileNotFoundError: if there is none.
        FileError: naming the file, if it is damaged, would run code, or holds no state dict or several.
    """
    file = Path(path)
    if file.is_dir():
        inside = checkpoints_in(file)
        direct = [p for p in inside if p.parent == file]
        if len(direct or inside) != 1:
            names = listed(str(p.relative_to(file)) for p in inside)
            pieces = f"; {GATHER}" if any(PIECE.fullmatch(p.name) for p in inside) else ""
            raise FileError(f"{file} holds {len(inside)} checkpoints, expected one: {names}; name it{pieces}")
        (file,) = direct or inside
    if not file.is_file():
        raise MissingFileError(f"{file}: no such file, expected {FORMS}")
    if key is not None and file.suffix not in TORCH:
        raise FileError(f"{file}: --key {key} is for files of torch.save; this one has no entries")
    if INDEX.fullmatch(file.name):
        return Sharded(file)
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
    """Returns the suffix of a checkpoint's name, such as ``.pt`` or ``.pth.tar``."""
    return next((both for both in (".pth.tar", ".pt.tar") if path.name.endswith(both)), path.suffix)


def checkpoints_at(paths: Sequence[str | Path]) -> Sequence[str | Path]:
    """Returns paths as they are; for a single folder, those of the checkpoints in it.

    Raises:
        ValueError: if there are none.
    """
    if not paths:
        raise InvalidValueError("no checkpoints given")
    return checkpoints_in(Path(paths[0])) if len(paths) == 1 and Path(paths[0]).is_dir() else paths


def checkpoints_in(folder: Path) -> list[Path]:
    """Returns the paths of all checkpoints in a folder and below it, sorted by name; epoch 2 is before epoch 10.

    Left out are hidden files and folders, files that trainers write beside networks (such as ``optimizer.pt``), and
    links to files that are in the folder, too.

    Raises:
        FileError: if there are none, or more files than anybody keeps networks in.
    """
    checkpoints: dict[tuple[Path, ...], Path] = {}
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
        files = [p for p in entries if p.is_file() and not BESIDE.fullmatch(p.name)]
        indices = [p for p in files if INDEX.fullmatch(p.name)]
        shards = {shard for index in indices for shard in shard_names(index)}
        for file in indices + [p for p in files if p.suffix in (SAFE, *TORCH) and p.name not in shards]:
            if file.suffix in (".tar", ".pkl"):  # which other programs write as well
                with open_regular(file) as stream:
                    if not is_saved(stream.read(START)):
                        continue
            if not file.is_symlink() or real_files(file) not in checkpoints:
                checkpoints[real_files(file)] = file
        words = words or next((f"; {entry}: {what}" for entry in sorted(entries) if (what := foreign(entry.name))), "")
    if not checkpoints:
        raise FileError(f"{folder} has no checkpoints, expected {FORMS}{words}")
    return sorted(checkpoints.values(), key=lambda file: [natural(part) for part in file.relative_to(folder).parts])


def files_of(paths: Iterable[str | Path]) -> list[Path]:
    """Returns all files of the checkpoints at some paths, or in folders; they need not exist.

    Raises:
        FileError: for a folder without checkpoints.
    """
    files = [file for path in map(Path, paths) for file in (checkpoints_in(path) if path.is_dir() else [path])]
    indices = [file for file in files if INDEX.fullmatch(file.name) and file.is_file()]
    return files + [index.parent / name for index in indices for name in shard_names(index)]


def real_files(path: Path) -> tuple[Path, ...]:
    """Returns a checkpoint's files, with links resolved; two checkpoints of the same files are one."""
    shards = shard_names(path) if INDEX.fullmatch(path.name) and path.is_file() else []
    return (path.resolve(), *((path.parent / name).resolve() for name in shards))


def entry_names(entries: Iterable[Any]) -> dict[str, Any]:
    """Names the keys of a dict: a text for each, also for keys that are none.

    A tuple is called by its parts with commas between them. Where two keys would be called alike, their types are put
    before the names, as in ``str:0`` and ``int:0``, or numbers after them.
    """
    keys, plain = list(entries), list[str]()
    for key in keys:
        value = vars(key).get("key", key) if isinstance(key, Inert) else key
        if isinstance(value, tuple | frozenset):
            parts = [part if isinstance(part, str) else shown(part) for part in value]
            value = ",".join(parts if isinstance(value, tuple) else sorted(parts))
        plain.append(value if isinstance(value, str) else getattr(value, "pickled_name", None) or shown(value))
    counts, names = Counter(plain), dict[str, Any]()
    alike = Counter[str]()
    for key, text in zip(keys, plain, strict=True):
        name = base = text if counts[text] == 1 else f"{kind_of(key)}:{text}"
        while name in names:
            alike[base] += 1
            name = f"{base}#{alike[base] + 1}"
        names[name] = key
    return names


def shard_names(index: Path) -> list[str]:
    """Returns the names of an index's files; of a damaged one, those beside it that are named like its files."""
    try:
        return read_index(index)[0]
    except FileError:
        stem, suffix = map(re.escape, _stem_and_suffix(index))
        return [p.name for p in index.parent.iterdir() if re.fullmatch(rf"{stem}.*-\d+-of-\d+{suffix}", p.name)]


def read_index(path: Path) -> tuple[list[str], bytes]:
    """Reads an index: the names of its files, and its bytes."""
    suffix = _stem_and_suffix(path)[1]
    with damaged(path, AGAIN):
        data = read_bytes(path)
        index = parse_json(data)
    file_of_key = index.get("weight_map") if isinstance(index, Mapping) else None
    if not isinstance(file_of_key, Mapping):
        raise FileError(f"{path} is no index of {suffix} files, it has no weight_map: {AGAIN}")
    names = sorted(set(map(str, file_of_key.values())))
    if not names or not all(Path(name).name == name and name.endswith(suffix) for name in names):
        raise FileError(f"{path} names {listed(names) or 'no files'}, expected {suffix} files beside it")
    return names, data


def _stem_and_suffix(index: Path) -> tuple[str, str]:
    """Splits the name of an index: before the suffix of its files, and that suffix."""
    parts = INDEX.fullmatch(index.name)
    assert parts is not None
    return parts["stem"], parts["suffix"]


def _identity(file: Path) -> tuple[int, ...]:
    with damaged(file, AGAIN):
        status = file.stat()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _opened(file: Path) -> Any:
    with open_regular(file) as stream:
        words = foreign("", stream.read(START))
    with damaged(file, words or AGAIN):
        return safetensors.safe_open(str(file), framework="pt")


def _is_array(value: object) -> bool:
    return isinstance(value, Inert) and ARRAY.fullmatch(value.pickled_name) is not None


def _require_whole(checkpoint: Checkpoint) -> None:
    """Refuses a file of weights that are spread over several processes."""
    empty = [key for key, shape in checkpoint.shapes.items() if shape == (0,) and key.endswith("weight")]
    if empty or PIECE.fullmatch(checkpoint.path.name):
        reason = f"of shape (0,) are {listed(empty)}: " if empty else ""
        raise FileError(f"{checkpoint.path}: {reason}{GATHER}")


def _state_dict(path: Path, content: Any, key: str | None) -> Mapping[Any, Any]:
    """Returns the state dict in the content of a file: all of it, one of its entries, or that of a whole module."""
    with damaged(path, WHOLE):
        whole = _state_of(content)
        inner = {k: state for k, v in content.items() if (state := _state_of(v))} if isinstance(content, dict) else {}
    if whole and not inner:  # which needs no key
        return whole
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
    """Returns a state dict, or that of a whole module; None for others, such as states of random generators."""
    state = module_state(value) if isinstance(value, Inert) else value
    if not isinstance(state, Mapping):
        return None
    tensors = [t for t in state.values() if isinstance(t, Tensor)]
    return state if any(t.ndim > 1 or (t.ndim and t.is_floating_point()) for t in tensors) else None


def _write(path: Path, write: Callable[[Path], object]) -> None:
    try:
        write_whole(path, write)
    except safetensors.SafetensorError as error:
        raise FileError(f"{path} cannot be written: {error}") from error
