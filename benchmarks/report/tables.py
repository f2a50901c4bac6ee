"""Tables of results: built once, shown in the terminal and as Markdown. What ± means is said here, for all of them."""

from __future__ import annotations

import math
import statistics
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from rich import box
from rich.table import Table as RichTable

from nfn_monomial.benchmarks.train.runs import Run
from nfn_monomial.errors import InvalidValueError

__all__ = [
    "COST_COLUMNS",
    "INVARIANT",
    "MIB",
    "SEES",
    "Mean",
    "Table",
    "by_model",
    "cost_cells",
    "count",
    "fit_cells",
    "model_table",
    "over",
    "over_seeds",
]

INVARIANT = {"group": "yes", "permutations": "perm. only", "nothing": "no"}
SEES = {"weights": "weights", "functions": "runs them"}
LABEL_WIDTH = 16  # of models' names, where there is little room
LEAST_WIDTH = 6  # of a column
MIB = 2**20
COST_COLUMNS = ("params", "s/epoch", "peak MiB", "seeds")


@dataclass(frozen=True)
class Mean:
    """Mean and its standard error, which is what ± says everywhere, here as in the paper; None for a single value.

    The standard error is the sample standard deviation over the root of the number of values: see `over` for the words.
    """

    mean: float
    error: float | None

    @classmethod
    def of(cls, values: Iterable[float]) -> Mean:
        found = list(values)
        error = statistics.stdev(found) / math.sqrt(len(found)) if len(found) > 1 else None
        return cls(statistics.fmean(found), error)

    def show(self, digits: int = 3) -> str:
        mean = f"{self.mean:.{digits}f}"
        return mean if self.error is None else f"{mean} ±{self.error:.{digits}f}"


def over(number: int, unit: str = "seed") -> str:
    """What numbers and their ± are, in the words of every table and figure; of one alone there is no ±."""
    return f"one {unit}" if number == 1 else f"mean ± standard error over {unit}s ({number})"


@dataclass(frozen=True)
class Table:
    """Header and cells as text.

    Attributes:
        title: what is shown.
        header: a name for every column.
        cells: line by line.
        text_columns: so many are flush left, the others hold numbers.
        names: columns that say what a line is about; every part of a table that is too wide for a terminal has them.
        bold: lines that stand out; in Markdown, their first cell does.
        notes: what has to be known to read it.
    """

    title: str
    header: tuple[str, ...]
    cells: tuple[tuple[str, ...], ...]
    text_columns: int = 1
    names: tuple[int, ...] = (0,)
    bold: frozenset[int] = frozenset()
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if wrong := [line for line in self.cells if len(line) != len(self.header)]:
            raise InvalidValueError(f"a line of {len(wrong[0])} cells under {len(self.header)} columns: {wrong[0]}")

    def markdown(self) -> str:
        """The table with its title above and its notes below."""
        rule = ["---" if i < self.text_columns else "---:" for i in range(len(self.header))]
        cells = [(f"**{line[0]}**" if i in self.bold else line[0], *line[1:]) for i, line in enumerate(self.cells)]
        lines = ["| " + " | ".join(line) + " |" for line in (self.header, rule, *cells)]
        notes = [text for note in self.notes for text in ("", note)]
        return "\n".join([f"**{self.title}**", "", *lines, *notes]) + "\n"

    def rich(self, width: int = 80) -> RichTable:
        """The table for a terminal of so many columns."""
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
        """Tables that fit into so many columns, one below the other: this one, if it does."""
        least = [w + 1 for w in _least([self.header, *self.cells])]
        groups = [list(self.names)]
        for i in (i for i in range(len(least)) if i not in self.names):
            if len(groups[-1]) > len(self.names) and sum(least[j] for j in (*groups[-1], i)) > width + 1:
                groups.append(list(self.names))
            groups[-1].append(i)
        return [self._part(sorted(group), group is groups[0], group is groups[-1]) for group in groups]

    def _part(self, columns: Sequence[int], first: bool, last: bool) -> Table:
        return replace(
            self,
            title=self.title if first else f"{self.title}, continued",
            header=tuple(self.header[i] for i in columns),
            cells=tuple(tuple(line[i] for i in columns) for line in self.cells),
            text_columns=sum(i < self.text_columns for i in columns),
            names=tuple(columns.index(i) for i in self.names),
            notes=self.notes if last else (),
        )


def _least(lines: Sequence[Sequence[str]]) -> list[int]:
    """The widths that columns need if their cells are broken between words; names have more room."""
    columns = list(zip(*lines, strict=True))
    least = [max([LEAST_WIDTH, *(len(word) for cell in column for word in cell.split())]) for column in columns]
    return [max(least[0], min(LABEL_WIDTH, max(map(len, columns[0])))), *least[1:]]


def fit_cells(lines: list[list[str]], width: int) -> list[list[str]]:
    """Cells with line breaks between words, if they need them to fit; rich would break words to make columns equal."""
    wide = [max(map(len, column)) for column in zip(*lines, strict=True)]
    if sum(wide) + len(wide) - 1 <= width:
        return lines
    narrow = _least(lines)
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
            raise InvalidValueError(
                f"runs of {model} on {subject} networks ({train_set}) differ in more than their seed and cannot "
                f"be averaged: {', '.join(sorted(run.settings.name for run in group))}"
            )
    return groups


def over_seeds(runs: Sequence[Run]) -> str:
    """`over` of runs, by the model that has the most seeds."""
    return over(max(map(len, by_model(runs).values())))


def model_table(
    title: str,
    runs: Sequence[Run],
    values: Mapping[str, Callable[[Run], float]],
    *,
    digits: int = 3,
    notes: Sequence[str] = (),
) -> Table:
    """A line per model: what it sees and is invariant to, named values over seeds, size, time, memory.

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
        line += [Mean.of(value(run) for run in group).show(digits) for value in values.values()]
        cells.append((*line, *cost_cells(group)))
    return Table(
        title,
        (*header, *COST_COLUMNS),
        tuple(cells),
        text_columns=5 if several else 3,
        names=(0, 3, 4) if several else (0,),
        bold=frozenset(i for i, group in enumerate(groups.values()) if group[0].invariant_under == "group"),
        notes=tuple(notes),
    )


def cost_cells(group: Sequence[Run]) -> tuple[str, ...]:
    """The cells under `COST_COLUMNS` of runs that differ in their seed alone."""
    seconds = statistics.fmean(run.seconds_per_epoch for run in group)
    peak = max(run.peak_bytes for run in group) / MIB
    return count(group[0].parameters), f"{seconds:.3g}", f"{peak:.0f}", str(len(group))


def count(parameters: int) -> str:
    """A number of parameters, in millions from 10,000 on."""
    return f"{parameters / 1e6:.2f}M" if parameters >= 10_000 else str(parameters)
