"""What an experiment found, in the files that all experiments leave: ``table.md``, ``results.json``, and figures."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from rich.console import Console

from nfn_monomial.benchmarks.files import write_atomically
from nfn_monomial.benchmarks.train.runs import Run
from nfn_monomial.errors import InvalidValueError

from .figures import png
from .tables import Table

__all__ = ["Report", "record_of"]


@dataclass(frozen=True)
class Report:
    """The findings of an experiment.

    Attributes:
        tables: in the order in which they are shown.
        results: the numbers, as JSON has them.
        figures: file name -> figure, or the text of an SVG file.
        heading: a paragraph above the tables.
    """

    tables: Sequence[Table]
    results: Mapping[str, Any]
    figures: Mapping[str, Figure | str] = field(default_factory=dict)
    heading: str = ""

    @property
    def markdown(self) -> str:
        """All tables."""
        return "\n".join([*[f"{self.heading}\n"] * bool(self.heading), *(table.markdown() for table in self.tables)])

    def contents(self) -> dict[str, bytes]:
        """File name -> what is written there."""
        return {
            "table.md": self.markdown.encode(),
            "results.json": (json.dumps(self.results, indent=1, allow_nan=False) + "\n").encode(),
            **{name: f.encode() if isinstance(f, str) else png(f) for name, f in self.figures.items()},
        }

    def write(self, folder: Path) -> list[Path]:
        """Write all files, each whole or not at all; returns their paths."""
        files = self.contents()
        for name, data in files.items():
            write_atomically(folder / name, data)
        return [folder / name for name in files]

    def show(self, console: Console) -> None:
        """The tables in a terminal, one that is too wide in parts."""
        for table in self.tables:
            for part in table.parts(console.width):
                console.print("", part.rich(console.width), sep="\n")


def record_of(runs: Sequence[Run]) -> dict[str, Any]:
    """What ``results.json`` has of every experiment: which runs, of which settings, on which networks and machines.

    Raises:
        ValueError: if there are none.
    """
    if not runs:
        raise InvalidValueError("no finished runs to report on")
    networks: dict[str, dict[str, int]] = {}
    for run in runs:
        networks.setdefault(run.settings.subject, run.networks)
    return {
        "runs": [run.settings.name for run in runs],
        "settings": _distinct([asdict(replace(run.settings, seed=0)) for run in runs]),
        "networks": networks,
        "environments": _distinct([run.environment for run in runs]),
    }


def _distinct(values: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [value for i, value in enumerate(values) if value not in values[:i]]
