"""Finished work that is kept: each piece in a sealed file with the key of the work that it belongs to.

The key of a store is a hash of torch's version and of all that the work depends on: configuration, data, and a version
number beside the code, which is raised by whoever changes results. A piece with another key, a damaged one, and one
that was changed by hand do not count as finished: they are made again.
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

SUFFIX = ".piece"  # not that of a checkpoint, because it may be in a folder of checkpoints
OTHERS = (nfn_monomial.__name__, "torch", *sys.stdlib_module_names)

log = logging.getLogger(__name__)

Piece: TypeAlias = "tuple[Any, dict[str, Tensor]]"
"""A finished piece of work: a statement, as JSON has it, and tensors."""


def code_of(*classes: type) -> str:
    """Hashes torch's version, and the files of a user's own classes.

    A class without a file, such as one that was typed into a console, is left out with a warning.
    """
    modules = {c.__module__ for cls in classes for c in cls.__mro__ if c.__module__.split(".")[0] not in OTHERS}
    texts = []
    for name in sorted(modules):
        file = Path(getattr(sys.modules.get(name), "__file__", None) or "")
        known = file.is_file()
        if not known:
            log.warning("the source of %s is not known: its results are kept though it may have changed", name)
        texts.append(file.read_text(encoding="utf-8") if known else "")
    return digest_of([torch.__version__, *texts])[:16]


def digest_of(value: Any) -> str:
    """Returns the SHA-256 of a value, as JSON has it."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


class Store:
    """The finished pieces of one piece of work, in a folder; ``key``: all that determines them but torch's version."""

    def __init__(self, folder: Path, key: Any) -> None:
        self.folder, self._key = folder, digest_of([torch.__version__, key])

    def piece(self, name: str, make: Callable[[], tuple[Any, Mapping[str, Tensor]]]) -> Piece:
        """Returns a piece as it was kept; or makes it, and keeps it."""
        return self.get(name) or self.put(name, *make())

    def get(self, name: str) -> Piece | None:
        """Returns a piece that was kept; None if there is none, or it is damaged or of another key, with a warning."""
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
        """Keeps a piece; returns it as `get` does, so that later steps are the same to the last bit."""
        tensors = {key: t.detach().contiguous() for key, t in tensors.items()}
        write_atomically(self._path(name), seal(tensors, {"key": self._key, "piece": name, "stated": stated}))
        return json.loads(json.dumps(stated)), tensors

    def clear(self) -> None:
        """Removes all pieces."""
        for path in self.folder.glob(f"*{SUFFIX}"):
            path.unlink()

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}{SUFFIX}"
