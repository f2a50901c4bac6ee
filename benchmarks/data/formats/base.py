"""Formats of data as commands use them, and their register.

Adding a format is adding a class:

    @register_format("my-zoo")
    class MyZoo(Format):
        kind, looks_for = "generalization", "my_zoo.json"

        @staticmethod
        def detects(path: Path) -> bool: ...

        @staticmethod
        def load(path: Path, *, limit: int | None = None) -> dict[str, Corpus]: ...

The keyword arguments of ``load`` are the options that commands can pass; they are checked by name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

from nfn_monomial.errors import InvalidValueError
from nfn_monomial.tools.files.untrusted import FileError

__all__ = ["FORMATS", "CorpusError", "Format", "Kind", "register_format", "require_folder"]

Kind = Literal["inr", "generalization"]


class CorpusError(FileError):
    """Data that cannot be used; the message names the file, the fault, the expected content, and a way out."""


class Format(ABC):
    """One format.

    Attributes:
        kind: ``inr`` if `load` gives an `InrCorpus`, ``generalization`` if it gives a dict of `Corpus` by activation.
        looks_for: the files that `detects` looks for, in words.
    """

    kind: ClassVar[Kind]
    looks_for: ClassVar[str]
    load: ClassVar[Callable[..., Any]]

    @staticmethod
    @abstractmethod
    def detects(path: Path) -> bool:
        """Returns True if a folder looks like this format; `load` checks that it is complete."""


F = TypeVar("F", bound=type[Format])
FORMATS: dict[str, type[Format]] = {}
"""All formats by name."""


def register_format(name: str) -> Callable[[F], F]:
    """Class decorator: makes a format known by this name to every command."""

    def add(cls: F) -> F:
        if FORMATS.setdefault(name, cls) is not cls:
            raise InvalidValueError(f"a format is registered as {name!r} already: {FORMATS[name].__qualname__}")
        return cls

    return add


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
