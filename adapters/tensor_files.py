"""Tensors from files of strangers: what ``torch.save`` and safetensors wrote, and what we seal with a checksum.

A torch file is an archive of raw storages and a pickle that says how tensors lie in them. The pickle is interpreted
here, by the few instructions and names that a state dict needs, and never executed: no name in a file leads to an
import or a call. Storages are held against the size of the file before memory is taken, tensors against their
storages, and the archive's checksums, which torch itself does not look at, against the bytes.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import struct
import zipfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from nfn_monomial.errors import InvalidTypeError, InvalidValueError

from .files import damaged, open_regular, parse_json, require_regular, shown
from .pickles import Inert, Storage, read_pickle

__all__ = [
    "Inert",
    "checksum_of",
    "read_safetensors",
    "read_sealed",
    "read_torch_file",
    "require_dense",
    "require_numbers",
    "seal",
]

PathLike: TypeAlias = "str | os.PathLike[str]"

NUMBERS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
SEAL = "sealed"  # the entry of a safetensors file's metadata
ZIP = b"PK\x03\x04"
LEGACY = (0x1950A86A20F9469CFC6C, 1001)  # what a file of torch before 1.6 begins with
HEADER_BYTES = 2**25  # of a safetensors file; a header has some 100 bytes a tensor


def read_torch_file(path: PathLike, *, inert: Collection[str] = ()) -> Any:
    """All that a file of ``torch.save`` holds, on the CPU, read without running any code.

    Args:
        path: the file.
        inert: classes and functions, or patterns as ``omegaconf.*``, that the file may name although they are not
            known here; what it makes of them are `Inert` objects.

    Raises:
        FileNotFoundError: if the file does not exist or is no regular file.
        ValueError: naming the file, if it is damaged, would need code to be run, or holds other tensors than dense
            ones.
    """
    file = Path(path)
    with (
        damaged(file, "ask its author for torch.save(module.state_dict(), path), or for a safetensors file"),
        open_regular(file) as stream,
    ):
        return (_read_zip if stream.read(len(ZIP)) == ZIP else _read_legacy)(stream, inert)


def _read_zip(stream: BinaryIO, inert: Collection[str]) -> Any:
    size = os.fstat(stream.fileno()).st_size
    with zipfile.ZipFile(stream) as archive:
        members = {member.filename: member for member in archive.infolist()}
        total = sum(member.file_size for member in members.values())
        if total > size or len(members) != len(archive.infolist()):
            raise InvalidValueError(f"its {size} bytes claim to hold {total}, or two parts of one name")
        root = next(iter(members)).split("/")[0]
        if members.keys() & {f"{root}/constants.pkl"}:
            raise InvalidValueError("it is a TorchScript program, not a state dict")
        if f"{root}/byteorder" in members and archive.read(f"{root}/byteorder") != b"little":
            raise InvalidValueError("its numbers are not little-endian")
        buffers: dict[str, bytearray] = {}

        def storage(found: Storage) -> bytearray:
            member = members[f"{root}/data/{found.key}"]
            if found.nbytes != member.file_size:
                raise InvalidValueError(f"a tensor's storage has {member.file_size} bytes, not {shown(found.nbytes)}")
            if found.key not in buffers:
                buffers[found.key] = bytearray(member.file_size)
                with archive.open(member) as source:
                    _fill(source, buffers[found.key])
                    source.read(1)  # the end, where the checksum is compared
            return buffers[found.key]

        pickled = archive.read(f"{root}/data.pkl")
        content = read_pickle(io.BytesIO(pickled), len(pickled), storage, inert)
        for name, member in members.items():  # what no tensor needs may be damaged, too
            if name.removeprefix(f"{root}/data/") not in buffers:
                with archive.open(member) as source:
                    while source.read(2**20):
                        pass
        return content


def _read_legacy(stream: BinaryIO, inert: Collection[str]) -> Any:
    """The format of torch before 1.6: five pickles, then the storages."""
    size = os.fstat(stream.fileno()).st_size
    stream.seek(0)
    buffers: dict[str, tuple[Storage, bytearray]] = {}

    def storage(found: Storage) -> bytearray:
        if found.key not in buffers:
            total = found.nbytes + sum(len(buffer) for _, buffer in buffers.values())
            if total > size:
                raise InvalidValueError(f"its {size} bytes claim to hold tensors of {shown(total)}")
            buffers[found.key] = found, bytearray(found.nbytes)
        return buffers[found.key][1]

    magic, protocol, system = (read_pickle(stream, size, storage) for _ in range(3))
    if (magic, protocol) != LEGACY or not isinstance(system, dict) or system.get("little_endian") is not True:
        raise InvalidValueError("no file of torch.save")
    content, keys = read_pickle(stream, size, storage, inert), read_pickle(stream, size, storage)
    if not isinstance(keys, list) or sorted(map(str, keys)) != sorted(buffers):
        raise InvalidValueError("the list of its storages is not that of its tensors")
    for key in map(str, keys):
        found, buffer = buffers[key]
        if stream.read(8) != struct.pack("<q", found.numbers):
            raise InvalidValueError("a storage is not as large as its tensors say")
        _fill(stream, buffer)
    return content


def _fill(source: Any, buffer: bytearray) -> None:
    view, done = memoryview(buffer), 0
    while done < len(buffer):
        if not (count := source.readinto(view[done : done + 2**20])):
            raise InvalidValueError("it ends early")
        done += count


def read_safetensors(path: PathLike, device: torch.device | str = "cpu") -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of a safetensors file, and its metadata.

    Args:
        path: the file.
        device: where to load to.

    Raises:
        FileNotFoundError: if the file does not exist or is no regular file.
        ValueError: naming the file, if it is truncated or damaged.
    """
    file = Path(path)
    with damaged(file, "download it again, or save it by safetensors.torch.save_file(state, path)"):
        return _open_safetensors(file, device)


def _open_safetensors(file: Path, device: torch.device | str = "cpu") -> tuple[dict[str, Tensor], dict[str, str]]:
    size = require_regular(file)
    with open_regular(file) as stream:
        start = stream.read(8)
    header = int.from_bytes(start, "little")
    if len(start) < 8 or header > min(size - 8, HEADER_BYTES):
        raise InvalidValueError(f"truncated, or no safetensors file: a header of {header} bytes, {size} in all")
    with safetensors.safe_open(file, framework="pt", device=str(device)) as opened:
        return {key: opened.get_tensor(key) for key in opened.keys()}, dict(opened.metadata() or {})  # noqa: SIM118


def require_dense(tensor: object, what: str) -> Tensor:
    """A dense tensor of floating point numbers of 16 to 64 bits.

    Raises:
        TypeError: naming ``what``, if it is anything else.
    """
    if not isinstance(tensor, Tensor):
        raise InvalidTypeError(f"{what} is {shown(tensor)}, expected a tensor")
    kinds = {"nested": tensor.is_nested, "quantised": tensor.is_quantized, "meta": tensor.is_meta}
    kinds["sparse"] = not tensor.is_nested and tensor.layout != torch.strided
    if found := [kind for kind, is_it in kinds.items() if is_it]:
        raise InvalidTypeError(f"{what} is a {found[0]} tensor, expected a dense one that holds its numbers")
    if tensor.dtype not in NUMBERS:
        raise InvalidTypeError(
            f"{what} has dtype {tensor.dtype}; floating point is expected, of 16, 32 or 64 bits: convert it by .float()"
        )
    return tensor


def require_numbers(tensor: object, what: str) -> Tensor:
    """The same whose numbers are finite.

    Raises:
        TypeError: as `require_dense`.
        ValueError: naming ``what``, if a number is NaN or infinite.
    """
    found = require_dense(tensor, what)
    if not bool(torch.isfinite(found).all()):
        raise InvalidValueError(f"{what} holds NaN or infinite values: its training diverged, leave it out")
    return found


def seal(tensors: Mapping[str, Tensor], stated: Mapping[str, Any]) -> bytes:
    """A safetensors file whose metadata hold JSON and a checksum of all of it; equal contents give equal bytes.

    ``stated``: what is known of the tensors, as JSON has it.
    """
    held = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    text = json.dumps(stated)
    entry = json.dumps({"sha256": _digest(held, text), "stated": text})
    return safetensors.torch.save(held, {SEAL: entry})  # one entry: their order is not fixed


def read_sealed(path: PathLike) -> tuple[dict[str, Tensor], Any]:
    """The tensors, memory-mapped, and the statement of a file that `seal` wrote.

    Raises:
        FileNotFoundError: if the file does not exist or is no regular file.
        ValueError: without the file's name, if it has no checksum of ours, or another.
        Exception: what a damaged file leads to, see `files.damaged`.
    """
    tensors, metadata = _open_safetensors(Path(path))
    entry = _sealed(metadata)
    text = entry.get("stated")
    if not isinstance(text, str) or entry.get("sha256") != _digest(tensors, text):
        raise InvalidValueError("its contents do not have the checksum that it states")
    return tensors, parse_json(text)


def checksum_of(path: PathLike) -> str:
    """What a file that `seal` wrote states as its checksum; `read_sealed` holds it against the contents.

    Raises:
        As `read_sealed`.
    """
    return str(_sealed(_open_safetensors(Path(path))[1]).get("sha256"))


def _sealed(metadata: Mapping[str, str]) -> dict[str, Any]:
    """What `seal` has put into a file's metadata."""
    if SEAL not in metadata:
        raise InvalidValueError("it has no checksum: another program wrote it, or an earlier version of this one")
    entry = parse_json(metadata[SEAL])
    return entry if isinstance(entry, dict) else {}


def _digest(tensors: Mapping[str, Tensor], text: str) -> str:
    digest = hashlib.sha256(text.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name!r} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
