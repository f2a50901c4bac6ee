"""The folder for a command's results: no file that was read, or that is there already, is written over.

While a command is at work its folder has a `Store`, ``unfinished``, with the pieces of long work and the names of the
files that it has begun to write. If it is cut off, the same command continues with those pieces and replaces those
files. When the results are written, the store is removed.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import torch

from nfn_monomial import __version__
from nfn_monomial.errors import InvalidValueError

from .files.atomic import results_folder
from .store import Store

__all__ = ["Progress", "Results", "command_key", "silent"]

UNFINISHED = "unfinished"
BEGUN = "files"  # the piece that has the names of the files that are being written

Progress: TypeAlias = Callable[[int, int], object]
"""Is called with the number of steps that are done, and of all steps."""


def silent(done: int, total: int) -> None:
    """Reports no `Progress`."""


def command_key(command: str, arguments: Mapping[str, Any], files: Iterable[Path]) -> dict[str, Any]:
    """Collects all that determines a command's results: its arguments, checksums of files that it reads, versions."""

    def checksum(path: Path) -> str:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()

    return {
        "command": command,
        "arguments": dict(arguments),
        "files": {str(path): checksum(path) for path in files if path.is_file()},
        "versions": {"nfn-monomial": __version__, "torch": torch.__version__},
    }


class Results:
    """A folder for results, which need not be there yet.

    Args:
        folder: its path.
        key: determines the results, see `command_key`; without one nothing is kept.
        leaves: files that the results always have.
        force: whether existing files may be replaced.

    Attributes:
        store: keeps pieces until the results are written.

    Raises:
        ValueError: if the folder is a file, or has results (without ``force``).
    """

    def __init__(
        self,
        folder: str | Path,
        key: Mapping[str, Any] | None = None,
        *,
        leaves: Iterable[str] = (),
        force: bool = False,
    ) -> None:
        self.folder, self._force = results_folder(folder), force
        self.store = None if key is None else Store(self.folder / UNFINISHED, key)
        begun = None if self.store is None else self.store.get(BEGUN)
        self._begun = frozenset(begun[0] if begun else ())
        self._require_free(leaves)

    def claim(self, names: Sequence[str | Path], read: Mapping[Path, str]) -> list[Path]:
        """Returns the paths of files that are about to be written, by their names in the folder.

        Raises:
            ValueError: if two have one name, a file was read (``read``: resolved path -> label), or is there already
                (without ``force``).
        """
        texts = list(map(str, names))
        if twice := sorted({name for name in texts if texts.count(name) > 1}):
            raise InvalidValueError(
                f"{', '.join(twice)} would be written twice: give the checkpoints other names, or one call each"
            )
        paths = [self.folder / name for name in texts]
        for path in paths:
            if (label := read.get(path.resolve())) is not None:
                raise InvalidValueError(
                    f"{path} is {label}, which was read, and is not written over: give another --out"
                )
        self._require_free(texts)
        if self.store is not None:
            self.store.put(BEGUN, texts, {})
        return paths

    def finish(self) -> None:
        """Removes the pieces, once the results are written."""
        if self.store is not None:
            self.store.clear()
            with contextlib.suppress(OSError):  # if a user's files are in it
                self.store.folder.rmdir()

    def _require_free(self, names: Iterable[str]) -> None:
        for name in () if self._force else names:
            if name not in self._begun and (path := self.folder / name).exists():
                raise InvalidValueError(f"{path} is there already: give another --out, or --force to replace it")
