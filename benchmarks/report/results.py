"""Finished runs -> one table (terminal, Markdown), one JSON file, and the paper's Figure 1 as PNG."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nfn_monomial.benchmarks.data.moves import WIDENED
from nfn_monomial.benchmarks.files import write_atomically
from nfn_monomial.benchmarks.train.runs import Run

from .figures import draw_figure
from .tables import INVARIANT, MIB, SEES, by_model, count, fit_cells

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["Mean", "Row", "columns", "markdown", "rich_tables", "summarise", "write_report"]

TEXT_COLUMNS = ("model", "sees", "invariant", "trained on")
NOTHING = "-"


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
    """One model on one train set of one activation, over its seeds; tests are keyed by test set name.

    A model that cannot read the widened test networks lacks that key.
    """

    activation: str
    model: str
    label: str
    invariant: str
    sees: str
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
    rows = []
    for (activation, train_set, model), group in by_model(runs).items():
        first = group[0]
        tests = {t.name: [next(x for x in run.tests if x.name == t.name) for run in group] for t in first.tests}
        rows.append(
            Row(
                activation,
                model,
                first.label,
                INVARIANT.get(first.invariant_under, first.invariant_under),
                SEES.get(first.sees, first.sees),
                train_set,
                tuple(run.settings.seed for run in group),
                scales={t.name: t.scale for t in first.tests},
                tau={name: Mean.of(t.metrics["tau"] for t in found) for name, found in tests.items()},
                r2={name: Mean.of(t.metrics["r2"] for t in found) for name, found in tests.items()},
                non_finite=sum(t.non_finite for found in tests.values() for t in found),
                diverged=sum(run.diverged for run in group),
                parameters=first.parameters,
                seconds_per_epoch=Mean.of(run.seconds_per_epoch for run in group),
                step_share=statistics.fmean(run.step_share for run in group),
                peak_mib=max(run.peak_bytes for run in group) / MIB,
            )
        )
    order = list(dict.fromkeys(run.settings.subject for run in runs))
    return sorted(rows, key=lambda row: order.index(row.activation))


def columns(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Header and cells of the table of one activation's rows."""
    scales = {name: scale for row in rows for name, scale in row.scales.items()}
    names = sorted(scales, key=lambda name: name == WIDENED)  # last, also where the first row lacks it
    moved = [name for name in names if name != WIDENED]
    ends = [name for name in names if name in (moved[0], moved[-1], WIDENED)]
    short = {name: _short(name, scales[name]) for name in names}
    header = [*TEXT_COLUMNS, *(f"tau {short[name]}" for name in names), *(f"R2 {short[name]}" for name in ends)]
    header += ["params", "s/epoch", "peak MiB", "seeds"]
    cells = []
    for row in rows:
        line = [row.label, row.sees, row.invariant, row.train_set]
        line += [str(row.tau[name]) if name in row.tau else NOTHING for name in names]
        line += [_r2(row.r2[name]) if name in row.r2 else NOTHING for name in ends]
        line += [
            count(row.parameters),
            f"{row.seconds_per_epoch.mean:.3g}",
            f"{row.peak_mib:.0f}",
            str(len(row.seeds)),
        ]
        cells.append(line)
    return header, cells


def _short(name: str, scale: float | None) -> str:
    if scale is None:
        return name
    exponent = math.log10(scale)
    return f"1e{round(exponent)}" if abs(exponent - round(exponent)) < 1e-9 else f"{scale:g}"


def _r2(value: Mean) -> str:
    # Far below 0 the third digit says nothing, and single runs may differ by orders of magnitude.
    return str(value) if value.mean > -10 else f"{value.mean:.1e}"


def by_activation(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Rows of each activation, in order."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.activation, []).append(row)
    return groups


def title(rows: Sequence[Row]) -> str:
    """What a table of these rows shows."""
    return f"Test accuracy of {rows[0].activation} networks predicted from their weights: Kendall's tau"


def _networks(rows: Sequence[Row]) -> list[str]:
    """What the test sets of these rows are, where their names do not say it."""
    lines = []
    if any(scale is not None for row in rows for scale in row.scales.values()):
        lines.append("1eK: test networks moved by random group elements, scales uniform in [1, 1eK].")
    if any(WIDENED in row.scales for row in rows):
        lines.append("widened: the same functions with more neurons (- for models of one width).")
    return lines


def notes(rows: Sequence[Row]) -> list[str]:
    """What has to be known to read the table."""
    lines = [
        "invariant: to scalings or sign flips and permutations (yes), to permutations of hidden neurons (perm. only), "
        "or to nothing (no). sees: the weights alone, or also what the networks compute (runs them).",
        " ".join(_networks(rows)),
        "Mean ± standard deviation over seeds; selection on validation networks only. s/epoch: the pass over the "
        "training set. peak MiB: parameters, optimiser state and one training step.",
    ]
    lines = [line for line in lines if line]
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
        rule = ["---" if name in TEXT_COLUMNS else "---:" for name in header]
        lines = [f"**{title(group)}**", "", *("| " + " | ".join(line) + " |" for line in (header, rule, *cells))]
        parts.append("\n".join([*lines, "", *notes(group)]))
    return "\n\n".join(parts) + "\n"


def rich_tables(rows: Sequence[Row], width: int = 80) -> list[Table]:
    """The tables for the terminal, by activation and train set: tau, then the rest, so that each fits 80 columns."""
    tables = []
    for group in by_activation(rows).values():
        header, cells = columns(group)
        of_tau = [name.startswith("tau ") for name in header]
        tau = [i for i, name in enumerate(header) if of_tau[i] or name in ("model", "sees", "invariant")]
        rest = [i for i, name in enumerate(header) if not of_tau[i] and name not in ("invariant", "trained on")]
        sets = list(dict.fromkeys(row.train_set for row in group))
        for train_set in sets:
            own = [(row, line) for row, line in zip(group, cells, strict=True) if row.train_set == train_set]
            styles = ["bold" if row.invariant == "yes" else None for row, _ in own]
            heading = f"{title(group)}\nTrained on the {train_set} training networks"
            caption = "\n".join(notes(group)) if train_set == sets[-1] else None
            for chosen, above, below in ((tau, heading, None), (rest, None, caption)):
                lines = [[line[i] for i in chosen] for line in (header, *(line for _, line in own))]
                tables.append(_table(fit_cells(lines, width), styles, above, below))
    return tables


def _table(lines: list[list[str]], styles: list[str | None], heading: str | None, caption: str | None) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(
        title=heading, caption=caption, box=box.SIMPLE_HEAD, padding=0, show_edge=False,
        title_justify="left", caption_justify="left", title_style="bold",
    )  # fmt: skip
    for name in lines[0]:
        table.add_column(name, justify="left" if name in TEXT_COLUMNS else "right", no_wrap=True)
    for line, style in zip(lines[1:], styles, strict=True):
        table.add_row(*line, style=style)
    return table


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
        "settings": _distinct([asdict(replace(run.settings, seed=0)) for run in runs]),
        "networks": {run.settings.subject: run.networks for run in runs if run.settings.train_set == "original"},
        "environments": _distinct([run.environment for run in runs]),
    }
    write_atomically(paths["results"], (json.dumps(results, indent=1, allow_nan=False) + "\n").encode())
    write_atomically(paths["figure"], draw_figure(rows))
    return paths


def _distinct(values: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [value for i, value in enumerate(values) if value not in values[:i]]
