"""Untrusted files: opened only if they are regular, read within limits, and refused in one line.

A pipe or a device is not opened, because reading it might wait or act. The limits on size, and on JSON, are far above
those of real files.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from nfn_monomial.checks import shown
from nfn_monomial.errors import InvalidValueError, MissingFileError

__all__ = [
    "FileError",
    "damaged",
    "foreign",
    "open_regular",
    "parse_json",
    "read_bytes",
    "read_json",
    "require_regular",
]

REASON = 300  # characters of a library's message
FILE_BYTES = 2**25  # of a file that is read whole; the longest published one has 6 MB
DEPTH = 64  # of brackets in JSON
LARGEST = 2**53  # whole numbers up to this are exact in every program
SURROGATE = re.compile("[\ud800-\udfff]")
_TENSORFLOW = (
    "is of TensorFlow: read it there, and save its arrays by torch.save under the names that torch's module has"
)
_NUMPY = (
    "holds arrays of numpy: of an .npz, torch.save({key: torch.from_numpy(array) for key, array in "
    "numpy.load(path).items()}, other_path) makes a state dict, if its names are the network's"
)
# Files of other programs: the end of the name, the first bytes if they show it, what the file is and what to do.
FOREIGN: tuple[tuple[str, bytes | None, str], ...] = (
    (r"\.npz", None, _NUMPY),
    (r"\.npy", b"\x93NUMPY", _NUMPY),
    (r"\.(h5|keras|hdf5)(\.index\.json)?", b"\x89HDF", _TENSORFLOW),
    (r"\.(pb|tflite|index|data-\d+-of-\d+)", None, _TENSORFLOW),
    (r"\.msgpack(\.index\.json)?", None, _TENSORFLOW.replace("TensorFlow", "Flax")),
    (r"\.onnx", None, "is a program of ONNX: save the state dict of the module that it was exported from"),
    (
        r"\.(gguf|ggml)", b"GGUF",
        "is of llama.cpp: from_pretrained(folder, gguf_file=name) of transformers reads it, and save_pretrained writes "
        "safetensors",
    ),
    (
        r"\.distcp", None,
        "is one of the pieces of a distributed checkpoint: python -m torch.distributed.checkpoint.format_utils "
        "dcp_to_torch FOLDER net.pt joins them",
    ),
    (r"\.pt2", None, "is a program: it says what network it is, --net PATH.pt2, and has no weights that are read"),
    (
        r"\.(jit|torchscript|ptl)", None,
        "is a TorchScript program: where you trust it, torch.save(torch.jit.load(path).state_dict(), other_path)",
    ),
    (r"", b"version https://git-lfs", "is a pointer of Git LFS: git lfs pull downloads the file itself"),
    (r"", b"<!DOCTYPE", "is a web page: download the file itself"),
    (r"", b"<html", "is a web page: download the file itself"),
    (r"", b"\x1f\x8b", "is compressed by gzip: unpack it"),
)  # fmt: skip


class FileError(InvalidValueError):
    """Refuses a file; the message names it, what is in it, what was expected, and a way out."""


def foreign(name: str, start: bytes = b"") -> str:
    """Describes a file of another program by the end of its name or its first bytes; empty if it is not known."""
    for end, mark, words in FOREIGN:
        if (end and re.search(rf"{end}$", name)) or (mark and start.startswith(mark)):
            return f"it {words}"
    return ""


@contextlib.contextmanager
def damaged(path: object, way_out: str, error: type[FileError] = FileError) -> Iterator[None]:
    """Turns every error raised inside into an ``error`` that names the file, the reason and the way out.

    Damaged files make parsers raise any kind of error. Errors that name a file already keep their message, and a
    missing file remains one.
    """
    try:
        yield
    except (error, MissingFileError):
        raise
    except FileError as named:
        raise error(str(named)) from named
    except Exception as reason:
        text = " ".join(str(reason).split()) or "no reason given"
        text = text if isinstance(reason, ValueError) else f"{type(reason).__name__}: {text}"
        short = text[:REASON] + "..." * (len(text) > REASON)
        raise error(f"{path} is damaged or of another kind ({short}): {way_out}") from reason


def require_regular(path: Path) -> int:
    """Returns the size of a file in bytes; raises as `open_regular`."""
    with open_regular(path) as file:
        return os.fstat(file.fileno()).st_size


def open_regular(path: Path) -> BinaryIO:
    """Opens a regular file for reading; never waits.

    Raises:
        FileNotFoundError: if it does not exist or may not be read, or is a folder, a device, a pipe, or a link to one.
    """
    try:
        mode = path.stat().st_mode  # before it is opened: a pipe would wait, and a device might act
        if stat.S_ISREG(mode):
            return open(path, "rb", opener=lambda name, flags: os.open(name, flags | getattr(os, "O_NONBLOCK", 0)))
    except (OSError, ValueError) as error:  # a ValueError for a name with a zero in it
        reason = getattr(error, "strerror", None) or error
        raise MissingFileError(f"{path}: no such file ({reason}); give the path of one that can be read") from error
    kind = "a folder" if stat.S_ISDIR(mode) else "a device or a pipe"
    raise MissingFileError(f"{path}: no such file, it is {kind}; give the path of a regular file")


def read_bytes(path: Path, most: int = FILE_BYTES) -> bytes:
    """Reads a whole file.

    Raises:
        FileNotFoundError: as `open_regular`.
        ValueError: if it has more than ``most`` bytes.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise FileError(f"{path} has {size} bytes, expected at most {most}: it is no file of this kind")
        return file.read(size)


def read_json(path: Path, way_out: str) -> Any:
    """Reads a file of JSON, see `parse_json`.

    Raises:
        FileNotFoundError: as `open_regular`.
        FileError: naming the file and the way out, if it is anything else.
    """
    with damaged(path, way_out):
        return parse_json(read_bytes(path))


def parse_json(data: bytes | str) -> Any:
    """Parses JSON: nested at most 64 deep, whole numbers up to 2**53, all numbers finite, proper Unicode.

    Raises:
        ValueError: if it is anything else.
    """
    try:
        value = json.loads(data.decode("utf-8-sig") if isinstance(data, bytes) else data)
    except RecursionError:
        raise InvalidValueError(f"not JSON: nested more than {DEPTH} deep") from None
    except ValueError as error:
        raise InvalidValueError(f"not JSON: {error}") from error
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > DEPTH:
            raise InvalidValueError(f"not JSON that is read here: nested more than {DEPTH} deep")
        below: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                below += [*item, *item.values()]
            elif isinstance(item, list):
                below += item
            elif isinstance(item, float) and not math.isfinite(item):
                raise InvalidValueError(f"not JSON: it has the number {item}")
            elif isinstance(item, int) and abs(item) > LARGEST:
                raise InvalidValueError(f"not JSON that is read here: the whole number {shown(item)} is over 2**53")
            elif isinstance(item, str) and not item.isascii() and SURROGATE.search(item):
                raise InvalidValueError(f"not JSON: half a surrogate pair in {shown(item)}")
        level = below
    return value
