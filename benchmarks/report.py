"""Finished runs -> one table (terminal, Markdown), one JSON file, and the paper's Figure 1 as PNG."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .figure import draw_figure
from .runs import Run, write_atomically

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["Mean", "Row", "columns", "markdown", "rich_tables", "summarise", "write_report"]

INVARIANT = {"group": "yes", "permutations": "perm. only", "nothing": "no"}
MIB = 2**20


@dataclass(frozen=True)
class Mean:
    """Mean and sample standard deviation over seeds; ``std`` is None for a single one."""

    mean: float
    std: float | None

    @classmethod
    def of(cls, values: Iterable[float]) -> Mean:
        found = list(values)
        return cls(statistics.fmean(found), statistics.stdev(found) if len(found) > 1 else None)

    def __str__(self) -> str:
        return f"{self.mean:.3f}" if self.std is None else f"{self.mean:.3f} ±{self.std:.3f}"


@dataclass(frozen=True)
class Row:
    """One model on one train set of one activation, over its seeds; tests are keyed by test set name."""

    activation: str
    model: str
    label: str
    invariant: str
    train_set: str
    seeds: tuple[int, ...]
    scales: dict[str, float | None]
    tau: dict[str, Mean]
    r2: dict[str, Mean]
    non_finite: int  # predictions that were NaN or infinite, over all seeds and test sets
    diverged: int  # number of seeds
    parameters: int
    seconds_per_epoch: Mean
    step_share: float
    peak_mib: float


def summarise(runs: Sequence[Run]) -> list[Row]:
    """Rows in the order in which models first occur, activation by activation.

    Raises:
        ValueError: if runs that would share a row differ in more than their seed.
    """
    groups: dict[tuple[str, str, str], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.settings.activation, run.settings.train_set, run.settings.model), []).append(run)
    rows = []
    for (activation, train_set, model), group in groups.items():
        if len({replace(run.settings, seed=0) for run in group}) > 1:
            raise ValueError(
                f"runs of {model} on {activation} networks ({train_set}) differ in more than their seed and cannot "
                f"be averaged: {', '.join(sorted(run.settings.name for run in group))}"
            )
        first = group[0]
        tests = {t.name: [next(x for x in run.tests if x.name == t.name) for run in group] for t in first.tests}
        rows.append(
            Row(
                activation,
                model,
                first.label,
                INVARIANT.get(first.invariant_under, first.invariant_under),
                train_set,
                tuple(run.settings.seed for run in group),
                scales={t.name: t.scale for t in first.tests},
                tau={name: Mean.of(t.tau for t in found) for name, found in tests.items()},
                r2={name: Mean.of(t.r2 for t in found) for name, found in tests.items()},
                non_finite=sum(t.non_finite for found in tests.values() for t in found),
                diverged=sum(run.diverged for run in group),
                parameters=first.parameters,
                seconds_per_epoch=Mean.of(run.seconds_per_epoch for run in group),
                step_share=statistics.fmean(run.step_share for run in group),
                peak_mib=max(run.peak_bytes for run in group) / MIB,
            )
        )
    order = list(dict.fromkeys(run.settings.activation for run in runs))
    return sorted(rows, key=lambda row: order.index(row.activation))


def columns(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Header and cells of the table of one activation's rows."""
    names = list(rows[0].tau)
    ends = list(dict.fromkeys((names[0], names[-1])))
    header = ["model", "invariant", "trained on"]
    header += [f"tau {_short(rows[0], name)}" for name in names] + [f"R2 {_short(rows[0], name)}" for name in ends]
    header += ["parameters", "s/epoch", "peak MiB", "seeds"]
    cells = []
    for row in rows:
        line = [row.label, row.invariant, row.train_set]
        line += [str(row.tau[name]) for name in names]
        line += [_r2(row.r2[name]) for name in ends]
        line += [
            _count(row.parameters),
            f"{row.seconds_per_epoch.mean:.3g}",
            f"{row.peak_mib:.0f}",
            str(len(row.seeds)),
        ]
        cells.append(line)
    return header, cells


def _short(row: Row, name: str) -> str:
    scale = row.scales[name]
    if scale is None:
        return name
    exponent = math.log10(scale)
    return f"1e{round(exponent)}" if abs(exponent - round(exponent)) < 1e-9 else f"{scale:g}"


def _r2(value: Mean) -> str:
    # Far below 0 the third digit says nothing, and single runs may differ by orders of magnitude.
    return str(value) if value.mean > -10 else f"{value.mean:.1e}"


def _count(parameters: int) -> str:
    return f"{parameters / 1e6:.2f}M" if parameters >= 10_000 else str(parameters)


def by_activation(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Rows of each activation, in order."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.activation, []).append(row)
    return groups


def title(rows: Sequence[Row]) -> str:
    """What a table of these rows shows."""
    return f"Test accuracy of {rows[0].activation} networks predicted from their weights: Kendall's tau"


def notes(rows: Sequence[Row]) -> list[str]:
    """What has to be known to read the table."""
    lines = [
        "invariant: to scalings or sign flips and permutations (yes), to permutations of hidden neurons (perm. only), "
        "or to nothing (no). 1eK: test networks moved by random group elements, scales uniform in [1, 1eK].",
        "Mean ± standard deviation over seeds; selection on validation networks only. s/epoch: the pass over the "
        "training set. peak MiB: parameters, optimiser state and one training step.",
    ]
    if lost := [f"{row.label} ({row.train_set})" for row in rows if row.non_finite]:
        lines.append(f"NaN or infinite predictions, ranked by sign, NaN lowest: {', '.join(lost)}.")
    if lost := [
        f"{row.label} ({row.train_set}, {row.diverged} of {len(row.seeds)} seeds)" for row in rows if row.diverged
    ]:
        lines.append(f"The loss became NaN or infinite, which ended the training early: {', '.join(lost)}.")
    return lines


def markdown(rows: Sequence[Row]) -> str:
    """The tables of all activations."""
    parts = []
    for group in by_activation(rows).values():
        header, cells = columns(group)
        rule = ["---"] * 3 + ["---:"] * (len(header) - 3)
        lines = [f"**{title(group)}**", "", *("| " + " | ".join(line) + " |" for line in (header, rule, *cells))]
        parts.append("\n".join([*lines, "", *notes(group)]))
    return "\n\n".join(parts) + "\n"


def rich_tables(rows: Sequence[Row]) -> list[Table]:
    """The tables of all activations for the terminal: tau, then the rest, so that each fits 80 columns."""
    from rich import box
    from rich.table import Table

    tables = []
    for group in by_activation(rows).values():
        header, cells = columns(group)
        first = [i for i, name in enumerate(header) if i < 3 or name.startswith("tau ")]
        second = [i for i in range(len(header)) if i in (0, 2) or i not in first]
        for chosen, heading, caption in ((first, title(group), None), (second, None, "\n".join(notes(group)))):
            table = Table(
                title=heading, caption=caption, box=box.SIMPLE_HEAD, padding=0, show_edge=False,
                title_justify="left", caption_justify="left", title_style="bold",
            )  # fmt: skip
            for i in chosen:
                text = i < 3
                least = max(6, *map(len, header[i].split()))  # 0.736 above ±0.004, and no word broken
                table.add_column(header[i], justify="left" if text else "right", no_wrap=text, min_width=least)
            for row, line, following in zip(group, cells, [*group[1:], None], strict=True):
                last = following is not None and following.train_set != row.train_set
                style = "bold" if row.invariant == "yes" else None
                table.add_row(*(line[i] for i in chosen), end_section=last, style=style)
            tables.append(table)
    return tables


def write_report(runs: Sequence[Run], folder: str | Path) -> dict[str, Path]:
    """Write ``table.md``, ``results.json`` and ``figure1.png``.

    Returns:
        ``{"table": path, "results": path, "figure": path}``.
    """
    if not runs:
        raise ValueError("no finished runs to report on")
    folder = Path(folder)
    rows = summarise(runs)
    paths = {"table": folder / "table.md", "results": folder / "results.json", "figure": folder / "figure1.png"}
    write_atomically(paths["table"], markdown(rows).encode())
    results: dict[str, Any] = {
        "rows": [asdict(row) for row in rows],
        "runs": [run.settings.name for run in runs],
        "settings": [asdict(s) for s in dict.fromkeys(replace(run.settings, seed=0, model="*") for run in runs)],
        "networks": {run.settings.activation: run.networks for run in runs if run.settings.train_set == "original"},
        "environments": _distinct([run.environment for run in runs]),
    }
    write_atomically(paths["results"], (json.dumps(results, indent=1, allow_nan=False) + "\n").encode())
    write_atomically(paths["figure"], draw_figure(rows))
    return paths


def _distinct(environments: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [value for i, value in enumerate(environments) if value not in environments[:i]]
