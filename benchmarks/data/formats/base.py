"""What a format of published data is to a command, and the register of formats.

Adding a format is adding a class, in a module that `detect` imports:

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
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Literal, TypeVar

from nfn_monomial.adapters.files import FileError
from nfn_monomial.errors import InvalidValueError

__all__ = ["FORMATS", "CorpusError", "Format", "Kind", "OnProgress", "register_format"]

Kind = Literal["inr", "generalization"]
OnProgress = Callable[[int, int], None]
"""Called with the number of files that were read and of all that will be, for a progress bar."""


class CorpusError(FileError):
    """Data that cannot be used; the message names the file, what was found and expected, and a way out."""


class Format(ABC):
    """One published format.

    Attributes:
        kind: ``inr`` if `load` gives an `InrCorpus`, ``generalization`` if it gives a dict of `Corpus` by activation.
        looks_for: what `detects` looks for, for people.
    """

    kind: ClassVar[Kind]
    looks_for: ClassVar[str]
    load: ClassVar[Callable[..., Any]]

    @staticmethod
    @abstractmethod
    def detects(path: Path) -> bool:
        """Whether a folder looks like this format; whether it is complete is for `load` to say."""


F = TypeVar("F", bound=type[Format])
_REGISTRY: dict[str, type[Format]] = {}
FORMATS: Mapping[str, type[Format]] = MappingProxyType(_REGISTRY)
"""All formats by name."""


def register_format(name: str) -> Callable[[F], F]:
    """Class decorator: make a format known by this name to every command."""

    def add(cls: F) -> F:
        if _REGISTRY.setdefault(name, cls) is not cls:
            raise InvalidValueError(f"a format is registered as {name!r} already: {_REGISTRY[name].__qualname__}")
        return cls

    return add
