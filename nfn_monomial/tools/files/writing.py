"""Files that appear whole or not at all. Nothing here imports torch, so that commands answer at once."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

__all__ = ["partial_path", "write_whole"]


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file that appears whole or not at all, its folders included, by a function of the path to write to."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = partial_path(path)
    try:
        write(partial)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def partial_path(path: Path) -> Path:
    """Where a file is while it is written; what a write that was cut off leaves."""
    return path.with_name(f".{path.name}.partial")
