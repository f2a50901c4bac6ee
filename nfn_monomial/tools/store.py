"""Finished work that is kept: each piece in a sealed file that says what it was made by and of what.

The key of a store is a hash of torch's version and of all that the work depends on: configuration, data, and a version
of what is computed, a number that stands beside the code and is raised by whoever changes results. A piece of another
key, a damaged one, and one that was changed by hand are not taken for finished: they are made again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

import nfn_monomial
from nfn_monomial.errors import InvalidValueError, MonomialError
from nfn_monomial.tools.files.untrusted import damaged

from .files.atomic import write_atomically
from .files.sealed import read_sealed, seal

__all__ = ["Piece", "Store", "code_of", "digest_of"]

SUFFIX = ".piece"  # not that of a checkpoint, as which a folder that is read may hold it
OTHERS = (nfn_monomial.__name__, "torch", *sys.stdlib_module_names)

log = logging.getLogger(__name__)

Piece: TypeAlias = "tuple[Any, dict[str, Tensor]]"
"""A finished piece of work: what is stated, as JSON has it, and tensors."""


def code_of(*classes: type) -> str:
    """A hash of torch's version, and of the files of a user's own classes.

    What is not in a file, as a class that was typed into a console, is left out with a warning.
    """
    own = {c.__module__ for cls in classes for c in cls.__mro__ if c.__module__.split(".")[0] not in OTHERS}
    return digest_of([torch.__version__, *(_text(name) for name in sorted(own))])[:16]


def digest_of(value: Any) -> str:
    """The SHA-256 of a value, as JSON has it."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _text(name: str) -> str:
    file = getattr(sys.modules.get(name), "__file__", None)
    if file is None or not Path(file).is_file():
        log.warning("the source of %s is not known: what it made is kept though it may have changed", name)
        return ""
    return Path(file).read_text(encoding="utf-8")


class Store:
    """The finished pieces of one piece of work, in a folder; ``key``: all that determines them but torch's version."""

    def __init__(self, folder: Path, key: Any) -> None:
        self.folder, self._key = folder, digest_of([torch.__version__, key])

    def piece(self, name: str, make: Callable[[], tuple[Any, Mapping[str, Tensor]]]) -> Piece:
        """A piece as it was kept, or made, and kept."""
        found = self.get(name)
        return self.put(name, *make()) if found is None else found

    def get(self, name: str) -> Piece | None:
        """A piece that was kept; None if there is none, or, with a warning, none that is whole and of this key."""
        path = self._path(name)
        if not path.exists():
            return None
        try:
            with damaged(path, "it is made again"):
                tensors, stated = read_sealed(path)
                if not isinstance(stated, dict) or (stated.get("key"), stated.get("piece")) != (self._key, name):
                    raise InvalidValueError("it was made by another version, or of something else")
        except MonomialError as error:
            log.warning("%s", error)
            return None
        return stated["stated"], {key: t.clone() for key, t in tensors.items()}  # of a file that may be replaced

    def put(self, name: str, stated: Any, tensors: Mapping[str, Tensor]) -> Piece:
        """Keep a piece; returns it as `get` does, so that what follows is the same to the last bit."""
        held = {key: t.detach().contiguous() for key, t in tensors.items()}
        write_atomically(self._path(name), seal(held, {"key": self._key, "piece": name, "stated": stated}))
        return json.loads(json.dumps(stated)), held

    def clear(self) -> None:
        """Remove all pieces."""
        for path in self.folder.glob(f"*{SUFFIX}"):
            path.unlink()

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}{SUFFIX}"
