"""Files that appear whole or not at all. Nothing here imports torch, so that commands answer at once."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from nfn_monomial.errors import InvalidValueError

__all__ = ["partial_path", "results_folder", "write_atomically", "write_json", "write_whole"]


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Writes a file, and its folders, by a function of the path to write to."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = partial_path(path)
    try:
        write(partial)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def partial_path(path: Path) -> Path:
    """Returns the path of a file while it is being written; a write that was cut off leaves it behind."""
    return path.with_name(f".{path.name}.partial")


def write_atomically(path: Path, data: bytes | memoryview) -> None:
    """Writes bytes to a file, and makes its folders. If there are several processes, the main one writes."""

    def write() -> None:
        write_whole(path, lambda partial: partial.write_bytes(data))

    if "lightning_fabric" not in sys.modules:  # there is one process then; importing it takes seconds
        return write()
    from lightning_fabric.utilities import rank_zero_only

    rank_zero_only(write)()
    return None


def write_json(path: Path, value: object) -> None:
    """Writes a value as indented JSON that ends with a newline."""
    write_atomically(path, (json.dumps(value, indent=2) + "\n").encode())


def results_folder(path: str | Path, mark: str | None = None) -> Path:
    """Returns the path of a folder for results, which need not exist yet.

    Args:
        path: of the folder.
        mark: name of a JSON file with a ``config``, which is there before results of ours.

    Raises:
        ValueError: if it, or a folder above it, is a file, or if it has somebody else's file of that name, or results.
    """
    folder = Path(path)
    existing = next((place for place in (folder, *folder.parents) if place.exists()), folder)
    if existing.exists() and not existing.is_dir():
        raise InvalidValueError(f"{existing} is a file: give a folder for the results")
    if mark and not _configured(folder / mark):
        for path in (folder / name for name in (mark, "table.md", "results.json")):
            if path.exists():
                raise InvalidValueError(f"{path} is not of this command, and would be replaced: choose another --out")
    return folder


def _configured(path: Path) -> bool:
    with suppress(OSError, ValueError):
        stated = json.loads(path.read_bytes())
        return isinstance(stated, dict) and "config" in stated
    return False
