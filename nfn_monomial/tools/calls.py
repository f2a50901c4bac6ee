"""Calls that go on: what a call of a command has finished, kept in the folder for its results until all of it is there.

While a call is at work, its folder has a folder ``unfinished``. There ``call.json`` says which call it is: the command,
its arguments, checksums of the files that it reads, and the versions of what computes. The files beside it hold a
finished piece each (`Store`). The same call takes these and makes the rest; another one is refused. When the results
are written, ``unfinished`` is removed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from nfn_monomial import __version__
from nfn_monomial.adapters.files import damaged
from nfn_monomial.errors import InvalidValueError, MonomialError

from .files import results_folder, write_json
from .reading import parse_json, read_bytes
from .store import Piece, Store

__all__ = ["ALONE", "UNFINISHED", "Call"]

UNFINISHED = "unfinished"
AGAIN = "give another --out, or --force to begin anew"


class Call:
    """A call of a command, what it has finished, and what it may write. A context, which removes what it has kept.

    It is removed at the end, and at an error that a user has to mend before anything of the results was written. It is
    left where the call is interrupted, or the disk is full.

    Args:
        folder: for the results; None for a call that writes nothing, and keeps nothing.
        command: its name; without one nothing is kept.
        arguments: all that determines the results, as JSON has it.
        inputs: the files that are read.
        leaves: files that the results have in any case.
        force: whether files that are there may be replaced, those of another unfinished call among them.
        progress: told how many steps are done, and how many there are.

    Raises:
        ValueError: if the folder is a file, has results, or what another call has finished, each without ``force``.
    """

    def __init__(
        self,
        folder: str | Path | None = None,
        command: str = "",
        arguments: Mapping[str, Any] | None = None,
        inputs: Iterable[Path] = (),
        *,
        leaves: Sequence[str] = (),
        force: bool = False,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        self.progress = progress
        self.folder = None if folder is None else results_folder(folder)
        self._made = self.folder is not None and not self.folder.exists()
        self._force, self._claimed = force, False
        self._store: Store | None = None
        self._writes: set[str] | None = None  # what a call of this kind began to write; None, if none is unfinished
        if self.folder is not None and command:
            self._stated = {
                "command": command,
                "arguments": json.loads(json.dumps(arguments or {})),
                "inputs": {str(path): _digest(path) for path in inputs},
                "versions": {"nfn-monomial": __version__, "torch": torch.__version__},
            }
            self._store = Store(self.folder / UNFINISHED, self._stated)
            self._writes = self._unfinished(self._store.folder / "call.json")
        self._require_free(leaves)

    def __enter__(self) -> Call:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._remove()
        elif issubclass(kind, MonomialError) and not self._claimed:
            with contextlib.suppress(OSError):
                self._remove()
                if self._made and self.folder is not None:
                    self.folder.rmdir()

    def piece(self, name: str, make: Callable[[], tuple[Any, Mapping[str, Tensor]]]) -> Piece:
        """A piece of the work: as it was kept, or made, and kept."""
        found = self.get(name)
        return self.put(name, *make()) if found is None else found

    def get(self, name: str) -> Piece | None:
        """A piece that this call has kept before it was interrupted; None if there is none that is whole."""
        return None if self._store is None or self._writes is None else self._store.get(name)

    def put(self, name: str, stated: Any, tensors: Mapping[str, Tensor]) -> Piece:
        """Keep a piece; returns it as `get` does, so that what follows is the same to the last bit."""
        if self._store is None:
            return json.loads(json.dumps(stated)), {key: t.detach().contiguous() for key, t in tensors.items()}
        if self._writes is None:
            self._begin([])
        return self._store.put(name, stated, tensors)

    def claim(self, names: Sequence[str | Path], read: Mapping[Path, str]) -> list[Path]:
        """The paths of the files that are written from here on, of which these are the names in its folder.

        Raises:
            ValueError: if two would have one name, a file was read (``read`` has their resolved paths, and what to call
                them), or is there already (without ``force``).
        """
        assert self.folder is not None, "asked of calls that write"
        texts = list(map(str, names))
        if twice := sorted({name for name in texts if texts.count(name) > 1}):
            raise InvalidValueError(
                f"{', '.join(twice)} would be written twice: give the checkpoints other names, or one call each"
            )
        paths = [self.folder / name for name in texts]
        for path in paths:
            if (what := read.get(path.resolve())) is not None:
                raise InvalidValueError(
                    f"{path} is {what}, which was read, and is not written over: give another --out"
                )
        self._require_free(texts)
        self._begin(texts)
        self._claimed = True
        return paths

    def _unfinished(self, path: Path) -> set[str] | None:
        """What an interrupted call of this kind began to write; None if there was none."""
        if not path.exists():
            return None
        try:
            with damaged(path, AGAIN):
                match parse_json(read_bytes(path)):
                    case {"call": dict(stated), "writes": list(writes)}:
                        pass
                    case _:
                        raise InvalidValueError("it does not say which call it belongs to")
            if stated != self._stated:
                raise InvalidValueError(
                    f"{self.folder} has what an interrupted call of {stated.get('command')} has finished, which had "
                    f"other {_differences(stated, self._stated)}: repeat that call to finish it, or {AGAIN}"
                )
        except MonomialError:
            if not self._force:
                raise
            return None
        return set(map(str, writes))

    def _require_free(self, names: Iterable[str]) -> None:
        for name in names if self.folder is not None and not self._force else ():
            if name not in (self._writes or ()) and (path := Path(self.folder or "", name)).exists():
                raise InvalidValueError(f"{path} is there already: give another --out, or --force to replace it")

    def _begin(self, writes: list[str]) -> None:
        """Say which call it is and what it writes, in the place of what another one has left."""
        if self._store is not None:
            if self._writes is None:
                self._remove()
            write_json(self._store.folder / "call.json", {"call": self._stated, "writes": writes})
            self._writes = {*(self._writes or ()), *writes}

    def _remove(self) -> None:
        if self._store is None or not self._store.folder.is_dir():
            return
        self._store.clear()
        (self._store.folder / "call.json").unlink(missing_ok=True)  # the last: without it nothing is trusted
        with contextlib.suppress(OSError):  # something of a user's is in it
            self._store.folder.rmdir()


ALONE = Call()
"""A call that keeps nothing."""


def _digest(path: Path) -> str | None:
    """A checksum of a file; None for what is no file, which the reader will say."""
    if not path.is_file():
        return None
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """What two calls do not have in common, in words."""
    if before.get("command") != now["command"]:
        return "work to do"
    found = []
    for part, words in {
        "arguments": "arguments ({})",
        "inputs": "contents of {}",
        "versions": "versions of {}",
    }.items():
        old = before.get(part)
        old = old if isinstance(old, dict) else {}
        if names := sorted(key for key in old.keys() | now[part] if old.get(key) != now[part].get(key)):
            found.append(words.format(", ".join(names)))
    return " and ".join(found)
