"""What a format of data is to a command. All formats are in the table of `detection`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Literal

from nfn_monomial.adapters.files import FileError

__all__ = ["CorpusError", "Format", "Kind"]

Kind = Literal["inr", "generalization"]


class CorpusError(FileError):
    """Data that cannot be used; the message names the file, what was found and expected, and a way out."""


class Format(ABC):
    """One format. Adding one is adding a class, and a line to `detection.FORMATS`.

    Attributes:
        kind: ``inr`` if `load` gives an `InrCorpus`, ``generalization`` if it gives a dict of `Corpus` by activation.
        looks_for: what `detects` looks for, for people.
        load: reads a folder. Its keyword arguments are the options that commands can pass; they are checked by name.
    """

    kind: ClassVar[Kind]
    looks_for: ClassVar[str]
    load: ClassVar[Callable[..., Any]]

    @staticmethod
    @abstractmethod
    def detects(path: Path) -> bool:
        """Whether a folder looks like this format; whether it is complete is for `load` to say."""
