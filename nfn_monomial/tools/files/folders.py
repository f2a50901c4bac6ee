"""Files that appear whole or not at all, and folders for results."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from nfn_monomial.errors import InvalidValueError

from .writing import partial_path, write_whole

__all__ = ["partial_path", "results_folder", "write_atomically", "write_json", "write_whole"]


def write_atomically(path: Path, data: bytes | memoryview) -> None:
    """Write a file that appears whole or not at all, its folders included. Of several processes, the main one does."""
    if "lightning_fabric" not in sys.modules:  # by which there are several; it takes seconds to import
        return _write(path, data)
    from lightning_fabric.utilities import rank_zero_only

    rank_zero_only(_write)(path, data)
    return None


def _write(path: Path, data: bytes | memoryview) -> None:
    write_whole(path, lambda partial: partial.write_bytes(data))


def write_json(path: Path, value: object) -> None:
    """The same of a value as JSON, indented, with a line's end."""
    write_atomically(path, (json.dumps(value, indent=2) + "\n").encode())


def results_folder(path: str | Path) -> Path:
    """The path of a folder for results, which need not be there yet.

    Raises:
        ValueError: if it, or what it should be in, is a file.
    """
    folder = Path(path)
    there = next((place for place in (folder, *folder.parents) if place.exists()), folder)
    if there.exists() and not there.is_dir():
        raise InvalidValueError(f"{there} is a file: give a folder for the results")
    return folder
