"""Files of strangers: what may be opened, and how much of it is believed.

A file is opened if it is a regular one, so that nothing waits for a pipe or reads a device. What is wrong is told in
one line, as an `InvalidValueError`.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from nfn_monomial.checks import listed, shown
from nfn_monomial.errors import InvalidValueError, MissingFileError

__all__ = [
    "FileError",
    "damaged",
    "foreign",
    "listed",
    "open_regular",
    "require_regular",
    "shown",
]

REASON = 300  # characters of what a library says
_TENSORFLOW = (
    "is of TensorFlow: read it there, and save its arrays by torch.save under the names that torch's module has"
)
_NUMPY = (
    "holds arrays of numpy: of an .npz, torch.save({key: torch.from_numpy(array) for key, array in "
    "numpy.load(path).items()}, other_path) makes a state dict, if its names are the network's"
)
# The end of a file's name, its first bytes if they are telling -> what it is, and the way out.
_FOREIGN: tuple[tuple[str, bytes | None, str], ...] = (
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
    """A file that cannot be used; the message names it, what was found and expected, and a way out."""


def foreign(name: str, start: bytes = b"") -> str:
    """What a file of another program is, and the way out, by the end of its name or by its first bytes, if known."""
    for end, mark, words in _FOREIGN:
        if (end and re.search(rf"{end}$", name)) or (mark and start.startswith(mark)):
            return f"it {words}"
    return ""


@contextlib.contextmanager
def damaged(path: object, way_out: str, error: type[FileError] = FileError) -> Iterator[None]:
    """Whatever goes wrong inside is told as an ``error`` that names the file, the reason and the way out.

    Damaged files make parsers raise whatever their bytes happen to mean. Errors that name a file already keep their
    words, and a missing file stays one.
    """
    try:
        yield
    except (error, MissingFileError):
        raise
    except FileError as said:
        raise error(str(said)) from said
    except Exception as reason:
        text = " ".join(str(reason).split()) or "no reason given"
        text = text if isinstance(reason, ValueError) else f"{type(reason).__name__}: {text}"
        short = text[:REASON] + "..." * (len(text) > REASON)
        raise error(f"{path} is damaged or of another kind ({short}): {way_out}") from reason


def require_regular(path: Path) -> int:
    """The size of a file in bytes; raises as `open_regular`."""
    with open_regular(path) as file:
        return os.fstat(file.fileno()).st_size


def open_regular(path: Path) -> BinaryIO:
    """A regular file, opened for reading. Never waits.

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
