"""Tables of results: built once, shown in the terminal and as Markdown."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from nfn_monomial.benchmarks.train.runs import Run

if TYPE_CHECKING:
    from rich.table import Table as RichTable

__all__ = ["INVARIANT", "MIB", "SEES", "Spread", "Table", "by_model", "count", "fit_cells", "model_table"]

INVARIANT = {"group": "yes", "permutations": "perm. only", "nothing": "no"}
SEES = {"weights": "weights", "functions": "runs them"}
LABEL_WIDTH = 16  # of models' names, where there is little room
MIB = 2**20


@dataclass(frozen=True)
class Spread:
    """Mean and standard error of the mean over seeds; ``error`` is None for a single one."""

    mean: float
    error: float | None

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        found = list(values)
        mean = math.fsum(found) / len(found)
        if len(found) == 1:
            return cls(mean, None)
        variance = math.fsum((x - mean) ** 2 for x in found) / (len(found) - 1)
        return cls(mean, math.sqrt(variance / len(found)))

    def show(self, digits: int = 3) -> str:
        mean = f"{self.mean:.{digits}f}"
        return mean if self.error is None else f"{mean} ±{self.error:.{digits}f}"


@dataclass(frozen=True)
class Table:
    """Header and cells as text. The first ``text_columns`` are flush left, the others hold numbers.

    ``bold``: rows that stand out; in Markdown, their names do. ``notes``: what has to be known to read it.
    """

    title: str
    header: tuple[str, ...]
    cells: tuple[tuple[str, ...], ...]
    text_columns: int = 1
    bold: frozenset[int] = frozenset()
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if wrong := [line for line in self.cells if len(line) != len(self.header)]:
            raise ValueError(f"a line of {len(wrong[0])} cells under {len(self.header)} columns: {wrong[0]}")

    def markdown(self) -> str:
        """The table with its title above and its notes below."""
        rule = ["---" if i < self.text_columns else "---:" for i in range(len(self.header))]
        cells = [(f"**{line[0]}**" if i in self.bold else line[0], *line[1:]) for i, line in enumerate(self.cells)]
        lines = ["| " + " | ".join(line) + " |" for line in (self.header, rule, *cells)]
        notes = [text for note in self.notes for text in ("", note)]
        return "\n".join([f"**{self.title}**", "", *lines, *notes]) + "\n"

    def rich(self, width: int = 80) -> RichTable:
        """The table for a terminal of so many columns."""
        from rich import box
        from rich.table import Table as RichTable

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


def fit_cells(lines: list[list[str]], width: int) -> list[list[str]]:
    """Cells with line breaks between words, if they need them to fit; rich would break words to make columns equal."""
    wide = [max(map(len, column)) for column in zip(*lines, strict=True)]
    if sum(wide) + len(wide) - 1 <= width:
        return lines
    narrow = [max([6, *(len(w) for cell in column for w in cell.split())]) for column in zip(*lines, strict=True)]
    narrow[0] = max(narrow[0], min(wide[0], LABEL_WIDTH))
    return [
        [textwrap.fill(cell, n, break_on_hyphens=False) for cell, n in zip(line, narrow, strict=True)] for line in lines
    ]


def by_model(runs: Sequence[Run]) -> dict[tuple[str, str, str], list[Run]]:
    """Runs that differ in their seed alone: (subject, train set, model) -> runs, in order of first occurrence.

    Raises:
        ValueError: if runs that would be averaged differ in more than their seed.
    """
    groups: dict[tuple[str, str, str], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.settings.subject, run.settings.train_set, run.settings.model), []).append(run)
    for (subject, train_set, model), group in groups.items():
        first = replace(group[0].settings, seed=0)
        if any(replace(run.settings, seed=0) != first for run in group):
            raise ValueError(
                f"runs of {model} on {subject} networks ({train_set}) differ in more than their seed and cannot "
                f"be averaged: {', '.join(sorted(run.settings.name for run in group))}"
            )
    return groups


def model_table(
    title: str,
    runs: Sequence[Run],
    values: Mapping[str, Callable[[Run], float]],
    *,
    digits: int = 3,
    notes: Sequence[str] = (),
) -> Table:
    """A line per model: what it sees and is invariant to, named values as mean ± standard error, size, time, memory.

    Models that are invariant under the whole group are bold.

    Args:
        title: above the table.
        runs: of one experiment, see `by_model`.
        values: column -> number of one run.
        digits: behind the point.
        notes: below the table.
    """
    groups = by_model(runs)
    several = len({key[:2] for key in groups}) > 1
    header = ("model", "sees", "invariant", *(("networks", "trained on") if several else ()), *values)
    cells = []
    for (subject, train_set, _), group in groups.items():
        first = group[0]
        line = [first.label, SEES.get(first.sees, first.sees), INVARIANT.get(first.invariant_under, "no")]
        line += [subject, train_set] * several
        line += [Spread.of(value(run) for run in group).show(digits) for value in values.values()]
        seconds = math.fsum(run.seconds_per_epoch for run in group) / len(group)
        peak = max(run.peak_bytes for run in group) / MIB
        cells.append((*line, count(first.parameters), f"{seconds:.3g}", f"{peak:.0f}", str(len(group))))
    return Table(
        title,
        (*header, "params", "s/epoch", "peak MiB", "seeds"),
        tuple(cells),
        text_columns=5 if several else 3,
        bold=frozenset(i for i, group in enumerate(groups.values()) if group[0].invariant_under == "group"),
        notes=tuple(notes),
    )


def count(parameters: int) -> str:
    """A number of parameters, in millions from 10,000 on."""
    return f"{parameters / 1e6:.2f}M" if parameters >= 10_000 else str(parameters)
