"""The application with all its commands; each module adds its own."""

from __future__ import annotations

from . import bench, classify, edit, inr, predict, report, studies, zoo  # noqa: F401  (which register their commands)
from .common import app, console, errors, run

__all__ = ["app", "console", "errors", "run"]
