"""Files of strangers: what may be opened, and how much of it is believed.

A file is opened if it is a regular one, so that nothing waits for a pipe or reads a device. What is wrong is told in
one line, as an `InvalidValueError`.
"""

from __future__ import annotations

import contextlib
import os
import reprlib
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from nfn_monomial.errors import InvalidValueError, MissingFileError

__all__ = [
    "FileError",
    "damaged",
    "listed",
    "open_regular",
    "require_regular",
    "shown",
]

REASON = 300  # characters of what a library says


class _Short(reprlib.Repr):
    """Of containers of other classes a few parts too: their own text may be of any length."""

    def repr_instance(self, value: object, level: int) -> str:
        if isinstance(value, dict):
            return self.repr_dict(value, level)
        if isinstance(value, list | tuple):
            return self.repr_list(list(value[: self.maxlist + 1]), level)
        return super().repr_instance(value, level)


_repr = _Short()
_repr.maxstring = _repr.maxother = _repr.maxlong = 80
_repr.maxlevel = 3


def shown(value: object) -> str:
    """A value for a message: short and in one line, whatever it is."""
    try:
        return " ".join(_repr.repr(value).split())
    except ValueError:  # Python prints no integers of more than 4,300 digits
        return "a number of thousands of digits"


class FileError(InvalidValueError):
    """A file that cannot be used; the message names it, what was found and expected, and a way out."""


def listed(names: Iterable[object], most: int = 8) -> str:
    """The first of some names for a message, each of them short."""
    every = list(names)
    first = ", ".join(shown(name)[1:-1] if isinstance(name, str) else shown(name) for name in every[:most])
    return first + (f" and {len(every) - most} more" if len(every) > most else "")


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
    """The size of a file in bytes.

    Raises:
        FileNotFoundError: if it does not exist, or is a folder, a device or a pipe, or a link to one.
    """
    try:
        status = path.stat()
    except (OSError, ValueError) as error:  # a ValueError for a name with a zero in it
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise MissingFileError(f"{path}: no such file ({reason}); give the path of one that can be read") from error
    if not stat.S_ISREG(status.st_mode):
        kind = "a folder" if stat.S_ISDIR(status.st_mode) else "a device or a pipe"
        raise MissingFileError(f"{path}: no such file, it is {kind}; give the path of a regular file")
    return status.st_size


def open_regular(path: Path) -> BinaryIO:
    """A regular file, opened for reading; as `require_regular`. Never waits."""
    require_regular(path)
    try:
        file = os.fdopen(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)), "rb")
    except OSError as error:
        raise FileError(f"{path} cannot be opened ({error.strerror}): make it readable") from error
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):  # it was replaced in between
        file.close()
        raise MissingFileError(f"{path}: no such file, it is a device or a pipe; give the path of a regular file")
    return file
