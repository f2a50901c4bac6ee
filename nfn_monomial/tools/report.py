"""The results of a command in files: ``table.md``, ``results.json``, and figures.

Tables are built once, shown in the terminal and as Markdown. Functions that draw return a `Figure`, so that tests and
notebooks can look at its contents.
"""

from __future__ import annotations

import io
import json
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich import box
from rich.console import Console
from rich.table import Table as RichTable

from nfn_monomial.errors import InvalidValueError

from .files.atomic import write_atomically

__all__ = ["MARKERS", "PALETTE", "Report", "Table", "fit_cells", "look", "panels", "png"]

# Okabe and Ito's palette, which people with any form of colour blindness can tell apart; yellow is too light for lines.
PALETTE = ("#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00", "#CC79A7", "#000000", "#7F7F7F")
MARKERS = "osv^DPX*<>hpd8"  # so that models of one colour differ, too
DPI = 130
LABEL_WIDTH = 16  # of models' names, where there is little room
LEAST_WIDTH = 6  # of a column


@dataclass(frozen=True)
class Table:
    """Header and cells as text.

    Attributes:
        title: of the table.
        header: a name for every column.
        cells: line by line.
        text_columns: number of columns that are flush left; the others have numbers.
        names: columns that name the lines; every part of a table that is too wide for a terminal has them.
        bold: lines that are bold; in Markdown, only their first cell is.
        notes: explain the table.
        subject: the data that it is about, by their name in runs; empty if it is about several or none.
    """

    title: str
    header: tuple[str, ...]
    cells: tuple[tuple[str, ...], ...]
    text_columns: int = 1
    names: tuple[int, ...] = (0,)
    bold: frozenset[int] = frozenset()
    notes: tuple[str, ...] = ()
    subject: str = ""

    def __post_init__(self) -> None:
        if wrong := [line for line in self.cells if len(line) != len(self.header)]:
            raise InvalidValueError(f"a line of {len(wrong[0])} cells under {len(self.header)} columns: {wrong[0]}")

    def markdown(self) -> str:
        """Returns the table as Markdown, with its title above and its notes below."""
        rule = ["---" if i < self.text_columns else "---:" for i in range(len(self.header))]
        cells = [(f"**{line[0]}**" if i in self.bold else line[0], *line[1:]) for i, line in enumerate(self.cells)]
        lines = ["| " + " | ".join(line) + " |" for line in (self.header, rule, *cells)]
        notes = [text for note in self.notes for text in ("", note)]
        return "\n".join([f"**{self.title}**", "", *lines, *notes]) + "\n"

    def rich(self, width: int = 80) -> RichTable:
        """Returns the table for a terminal of this width."""
        table = RichTable(
            title=self.title, caption="\n".join(self.notes) or None, box=box.SIMPLE_HEAD, padding=0, show_edge=False,
            title_justify="left", caption_justify="left", title_style="bold",
        )  # fmt: skip
        lines = fit_cells([list(self.header), *map(list, self.cells)], width)
        for i, name in enumerate(lines[0]):
            table.add_column(name, justify="left" if i < self.text_columns else "right", no_wrap=True)
        for i, line in enumerate(lines[1:]):
            table.add_row(*line, style="bold" if i in self.bold else None)
        return table

    def parts(self, width: int) -> list[Table]:
        """Splits the table into tables of at most this width, one below the other."""
        least = [w + 1 for w in _least([self.header, *self.cells])]
        groups = [list(self.names)]
        for i in (i for i in range(len(least)) if i not in self.names):
            if len(groups[-1]) > len(self.names) and sum(least[j] for j in (*groups[-1], i)) > width + 1:
                groups.append(list(self.names))
            groups[-1].append(i)
        return [
            replace(
                self,
                title=self.title if group is groups[0] else f"{self.title}, continued",
                header=tuple(self.header[i] for i in columns),
                cells=tuple(tuple(line[i] for i in columns) for line in self.cells),
                text_columns=sum(i < self.text_columns for i in columns),
                names=tuple(columns.index(i) for i in self.names),
                notes=self.notes if group is groups[-1] else (),
            )
            for group in groups
            if (columns := sorted(group))
        ]


def _least(lines: Sequence[Sequence[str]]) -> list[int]:
    """Returns the widths that columns need if their cells are broken between words; the first has more room."""
    columns = list(zip(*lines, strict=True))
    least = [max([LEAST_WIDTH, *(len(word) for cell in column for word in cell.split())]) for column in columns]
    return [max(least[0], min(LABEL_WIDTH, max(map(len, columns[0])))), *least[1:]]


def fit_cells(lines: list[list[str]], width: int) -> list[list[str]]:
    """Breaks cells between words if the table is too wide; rich would break words to make columns equal."""
    wide = [max(map(len, column)) for column in zip(*lines, strict=True)]
    if sum(wide) + len(wide) - 1 <= width:
        return lines
    narrow = _least(lines)
    return [
        [textwrap.fill(cell, n, break_on_hyphens=False) for cell, n in zip(line, narrow, strict=True)] for line in lines
    ]


def panels(rows: int, columns: int, size: tuple[float, float], *, grid: bool = True) -> tuple[Figure, list[Axes]]:
    """Returns an empty figure of a size in inches, and its axes, row by row; without a grid, they are for images."""
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    axes: list[Axes] = figure.subplots(rows, columns, squeeze=False).flatten().tolist()
    for ax in axes if grid else ():
        ax.spines[["top", "right"]].set_visible(False)
        ax.grid(color="#E5E5E5", linewidth=0.8)
        ax.set_axisbelow(True)
    return figure, axes


def png(figure: Figure) -> bytes:
    """Returns the figure as the bytes of a PNG, without the panels in which nothing was drawn."""
    for ax in figure.axes:
        ax.set_visible(ax.has_data())
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=DPI, metadata={"Software": None})
    return file.getvalue()


def look(number: int) -> dict[str, Any]:
    """Returns colour and marker of a model by its number in the figure."""
    return {"color": PALETTE[number % len(PALETTE)], "marker": MARKERS[number % len(MARKERS)], "markersize": 5}


@dataclass(frozen=True)
class Report:
    """The results of an experiment.

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
        """All tables, as Markdown."""
        return "\n".join([*[f"{self.heading}\n"] * bool(self.heading), *(table.markdown() for table in self.tables)])

    def contents(self) -> dict[str, bytes]:
        """Returns file name -> contents."""
        return {
            "table.md": self.markdown.encode(),
            "results.json": (json.dumps(self.results, indent=1, allow_nan=False) + "\n").encode(),
            **{name: f.encode() if isinstance(f, str) else png(f) for name, f in self.figures.items()},
        }

    def write(self, folder: Path) -> list[Path]:
        """Writes all files, each whole or not at all; returns their paths."""
        files = self.contents()
        for name, data in files.items():
            write_atomically(folder / name, data)
        return [folder / name for name in files]

    def show(self, console: Console) -> None:
        """Prints the tables in a terminal; one that is too wide, in parts."""
        for table in self.tables:
            for part in table.parts(console.width):
                console.print("", part.rich(console.width), sep="\n")
