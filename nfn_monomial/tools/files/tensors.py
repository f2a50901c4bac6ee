"""Tensors from untrusted files of ``torch.save`` and safetensors.

A torch file is an archive of raw storages and a pickle that says how tensors lie in them. The pickle is read by
`pickles.Unpickler`: no name in a file leads to an import or a call. Storages are compared with the size of the file
before memory is allocated, tensors with their storages, and the bytes with the archive's checksums, which torch itself
does not check.
"""

from __future__ import annotations

import io
import os
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import safetensors
import torch
from torch import Tensor

from nfn_monomial.checks import shown
from nfn_monomial.errors import InvalidValueError

from .pickles import Inert, Unpickler, kind_of, module_state
from .untrusted import damaged, foreign, open_regular

__all__ = [
    "START",
    "Inert",
    "SavedFile",
    "is_saved",
    "kind_of",
    "module_state",
    "open_safetensors",
    "read_safetensors",
    "read_torch_file",
]

PathLike: TypeAlias = "str | os.PathLike[str]"

ZIP = b"PK\x03\x04"
LEGACY = (0x1950A86A20F9469CFC6C, 1001)  # the first two values in a file of torch before 1.6
MAGIC = pickle.LONG1 + b"\x0a" + LEGACY[0].to_bytes(10, "little")
START = 32  # bytes that show what a file is
ALIGNMENT = 64  # of tensors in an archive, as torch maps them into memory
HEADER_BYTES = 2**25  # of a safetensors file; a header has some 100 bytes a tensor


def is_saved(start: bytes) -> bool:
    """Checks whether a file with these first bytes may be one of ``torch.save``; other pickles and archives are not."""
    return start.startswith(ZIP) or (start[:1] == pickle.PROTO and MAGIC in start)


def read_torch_file(path: PathLike) -> Any:
    """Reads a file of ``torch.save``, on the CPU, without importing or calling any name in it.

    Objects of classes, such as configurations beside weights, are `Inert` ones.

    Args:
        path: the file.

    Raises:
        FileNotFoundError: if the file does not exist or is no regular file.
        ValueError: naming the file, if it is damaged or holds other tensors than dense ones.
    """
    return SavedFile(path).content


class SavedFile:
    """A file of ``torch.save`` in memory, so that it can be written again with other numbers in its tensors.

    Args:
        path: as in `read_torch_file`.

    Attributes:
        content: the value that was saved; its tensors are views of ``parts``.
        parts: the pieces of the file, in order.
    """

    def __init__(self, path: PathLike) -> None:
        self.parts: dict[str, bytearray] = {}
        with open_regular(Path(path)) as stream:
            start, size = stream.read(START), os.fstat(stream.fileno()).st_size
        way_out = "ask its author for torch.save(module.state_dict(), path), or for a safetensors file"
        safe = "it is a safetensors file: call it *.safetensors" if start[8:10] == b'{"' else ""
        with damaged(path, foreign("", start) or safe or way_out), open_regular(Path(path)) as stream:
            self._is_archive = start.startswith(ZIP)
            if not self._is_archive and start[:1] != pickle.PROTO:
                raise InvalidValueError("no file of torch.save, or one of before torch 0.4" if size else "it is empty")
            self.content = self._read_archive(stream, size) if self._is_archive else self._read_legacy(stream, size)

    def _read_archive(self, stream: BinaryIO, size: int) -> Any:
        with zipfile.ZipFile(stream) as archive:
            members = archive.infolist()
            names = [member.filename for member in members]
            root = names[0].split("/")[0]
            if f"{root}/constants.pkl" in names:
                raise InvalidValueError(
                    "it is a TorchScript program; where you trust it, write its state dict by torch.save("
                    "torch.jit.load(path).state_dict(), other_path)"
                )
            if f"{root}/data.pkl" not in names:
                arrays = any(name.endswith(".npy") for name in names)
                raise InvalidValueError(foreign(".npz") if arrays else "an archive without data.pkl")
            if any(m.compress_type != zipfile.ZIP_STORED or m.compress_size != m.file_size for m in members):
                raise InvalidValueError("it is compressed, as torch.save does not do it: pack it again without that")
            total = sum(member.file_size for member in members)
            if total > size or len(set(names)) < len(names):
                raise InvalidValueError(f"its {size} bytes claim to hold {total}, or two parts of one name")
            # everything is read, and its checksum compared, whether a tensor needs it or not
            self.parts.update((name, bytearray(archive.read(name))) for name in names)
        if self.parts.get(f"{root}/byteorder", b"little") != b"little":
            raise InvalidValueError("its numbers are not little-endian")

        def storage(key: str, dtype: torch.dtype, nbytes: int) -> bytearray:
            data = self.parts[f"{root}/data/{key}"]
            if nbytes != len(data):
                raise InvalidValueError(f"a tensor's storage has {len(data)} bytes, not {shown(nbytes)}")
            return data

        pickled = self.parts[f"{root}/data.pkl"]
        return Unpickler(io.BytesIO(pickled), len(pickled), storage).load()

    def _read_legacy(self, stream: Any, size: int) -> Any:
        """Reads the format of torch before 1.6: five pickles, then the storages."""
        storages: dict[str, tuple[bytearray, int]] = {}
        left = size

        def storage(key: str, dtype: torch.dtype, nbytes: int) -> bytearray:
            nonlocal left
            if key not in storages:
                left -= nbytes
                if left < 0:
                    raise InvalidValueError(f"its {size} bytes claim to hold more in tensors")
                storages[key] = bytearray(nbytes), dtype.itemsize
            return storages[key][0]

        magic, protocol, system, content, keys = (Unpickler(stream, size, storage).load() for _ in range(5))
        if (magic, protocol) != LEGACY or not isinstance(system, dict) or system.get("little_endian") is not True:
            raise InvalidValueError("no file of torch.save")
        if not isinstance(keys, list) or sorted(map(str, keys)) != sorted(storages):
            raise InvalidValueError("the list of its storages is not that of its tensors")
        head = stream.tell()
        for key in keys:
            data, itemsize = storages[key]
            count = bytearray(stream.read(8))
            if int.from_bytes(count, "little") * itemsize != len(data) or stream.readinto(data) < len(data):
                raise InvalidValueError("a storage is not as large as its tensors say, or the file ends early")
            self.parts |= {f"count/{key}": count, f"data/{key}": data}
        stream.seek(0)
        self.parts = {"head": bytearray(stream.read(head)), **self.parts}
        return content

    def to_bytes(self) -> bytes:
        """Returns the same file with the numbers that its tensors have now; other objects stay as they are."""
        if not self._is_archive:
            return b"".join(self.parts.values())
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as archive:
            for name, data in self.parts.items():
                if not name.endswith("/.format_version"):  # by which torch finds the parts that its own writer wrote
                    member = zipfile.ZipInfo(name)
                    unfilled = -(archive.start_dir + 30 + len(name.encode()) + 4) % ALIGNMENT
                    member.extra = struct.pack("<2sH", b"FB", unfilled) + bytes(unfilled)
                    archive.writestr(member, data)
        return file.getvalue()


def read_safetensors(path: PathLike) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Reads the tensors of a safetensors file, on the CPU, and its metadata.

    Raises:
        FileNotFoundError: if the file does not exist or is no regular file.
        ValueError: naming the file, if it is truncated or damaged.
    """
    with damaged(path, "download it again, or save it by safetensors.torch.save_file(state, path)"):
        return open_safetensors(path)


def open_safetensors(path: PathLike) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Reads the same without naming the file in errors: the caller does so by `damaged`, with a way out of its own."""
    with open_regular(Path(path)) as stream:
        start, size = stream.read(8), os.fstat(stream.fileno()).st_size
    header = int.from_bytes(start, "little")
    if len(start) < 8 or header > min(size - 8, HEADER_BYTES):
        raise InvalidValueError(f"truncated, or no safetensors file: a header of {header} bytes, {size} in all")
    with safetensors.safe_open(path, framework="pt") as opened:
        return {key: opened.get_tensor(key) for key in opened.keys()}, dict(opened.metadata() or {})  # noqa: SIM118
