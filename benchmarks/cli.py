"""The application with all its commands; each module adds its own."""

from __future__ import annotations

from . import (  # noqa: F401  (which register their commands)
    cli_bench,
    cli_classify,
    cli_edit,
    cli_inr,
    cli_predict,
    cli_report,
    cli_studies,
    cli_zoo,
)
from .cli_common import app, console, errors, run

__all__ = ["app", "console", "errors", "run"]
