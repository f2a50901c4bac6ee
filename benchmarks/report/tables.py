"""Tables of trained models, and the meaning of ± in all of them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from nfn_monomial.benchmarks.train.runs import Run
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.tools.report import Table

__all__ = [
    "COLUMNS",
    "COST_COLUMNS",
    "HEADLINE",
    "INVARIANT",
    "MIB",
    "SEES",
    "Estimate",
    "by_model",
    "cost_cells",
    "count",
    "headline",
    "model_table",
    "moved_with",
    "over",
    "over_seeds",
    "record_of",
    "row_of",
    "short",
    "steps_per_epoch",
    "went_wrong",
]

INVARIANT = {"group": "yes", "permutations": "perm. only", "nothing": "no"}
SEES = {"weights": "weights", "functions": "runs them"}
MIB = 2**20
HEADLINE = 6  # models that a figure shows
PAPERS_OWN = "monomial"
COST_COLUMNS = ("params", "s/epoch", "peak MiB", "seeds")
COLUMNS = (
    "invariant: to the whole group of the networks (yes), to permutations of hidden neurons (perm. only), or to "
    "nothing (no). sees: the weights alone, or also what the networks compute (runs them). s/epoch: the pass over the "
    "training set. peak MiB: parameters, optimiser state and one training step."
)
"""The meaning of columns in tables of models."""


@dataclass(frozen=True)
class Estimate:
    """Mean and its standard error, written as ± everywhere, as in the paper; None for a single value.

    The standard error is the sample standard deviation over the root of the number of values: see `over` for the words.
    ``values``: of which it is, one of each seed; results keep them.
    """

    mean: float
    error: float | None
    values: tuple[float, ...] = field(default=(), compare=False)

    @classmethod
    def of(cls, values: Iterable[float]) -> Estimate:
        numbers = list(values)
        error = statistics.stdev(numbers) / math.sqrt(len(numbers)) if len(numbers) > 1 else None
        return cls(statistics.fmean(numbers), error, tuple(numbers))

    def show(self, digits: int = 3) -> str:
        mean = f"{self.mean:.{digits}f}"
        return mean if self.error is None else f"{mean} ±{self.error:.{digits}f}"


def steps_per_epoch(run: Run) -> int:
    """Returns the number of batches that cover the training networks, moved copies included."""
    return -(-run.networks["train"] // run.settings.training.batch_size)


def over(counts: Iterable[int], unit: str = "seed") -> str:
    """Returns the words for means and their ±, the same in every table and figure; a single value has no ±.

    Args:
        counts: how many values each mean is of.
    """
    sizes = list(counts) or [1]
    least, most = min(sizes), max(sizes)
    values = f"{most}" if least == most else f"{least} to {most}"
    return f"one {unit}" if most == 1 else f"mean ± standard error over {unit}s ({values})"


def by_model(runs: Sequence[Run]) -> dict[tuple[str, str, str], list[Run]]:
    """Runs that differ in their seed alone: (subject, trained on, model) -> runs, in order of first occurrence.

    Raises:
        ValueError: if runs that would be averaged differ in more than their seed.
    """
    groups: dict[tuple[str, str, str], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.settings.subject, run.settings.trained_on, run.settings.model), []).append(run)
    for (subject, train_set, model), group in groups.items():
        first = group[0].settings.key | {"seed": 0}  # so without where a run was trained, which may be elsewhere
        if any(run.settings.key | {"seed": 0} != first for run in group):
            raise InvalidValueError(
                f"runs of {model} on {subject} networks ({train_set}) differ in more than their seed and cannot "
                f"be averaged: {', '.join(sorted(run.settings.name for run in group))}"
            )
    return groups


def headline(models: Mapping[str, tuple[float, bool]]) -> list[str]:
    """Returns the models that a figure shows, in their order: of more than six, three of each kind, or what one lacks.

    The best ones, but the paper's own model always.

    Args:
        models: name -> how good it is, and whether it is invariant to the whole group.
    """
    best = sorted(models, key=lambda model: (model != PAPERS_OWN, -models[model][0]))
    kinds = [[model for model in best if models[model][1] == invariant] for invariant in (True, False)]
    half = HEADLINE // 2
    chosen = [model for kind, other in (kinds, kinds[::-1]) for model in kind[: max(half, HEADLINE - len(other))]]
    return [model for model in models if len(models) <= HEADLINE or model in chosen]


def over_seeds(runs: Sequence[Run]) -> str:
    """`over` of runs, by the seeds of each model."""
    return over(map(len, by_model(runs).values()))


def model_table(
    title: str,
    runs: Sequence[Run],
    values: Mapping[str, Callable[[Run], float]],
    *,
    digits: int = 3,
    notes: Sequence[str] = (),
) -> Table:
    """A line per model: its input and invariance, named values over seeds, size, time, memory.

    Models that are invariant under the whole group are bold.

    Args:
        title: above the table.
        runs: of one experiment, see `by_model`.
        values: column -> number of one run.
        digits: after the point.
        notes: below the table, before those on columns that all have and on runs that went wrong.
    """
    groups = by_model(runs)
    common = [COLUMNS, *went_wrong(runs)]
    several = len({key[:2] for key in groups}) > 1
    header = ("model", "sees", "invariant", *(("networks", "trained on") if several else ()), *values)
    cells = []
    for (subject, train_set, _), group in groups.items():
        first = group[0]
        line = [first.label, SEES.get(first.sees, first.sees), INVARIANT.get(first.invariant_under, "no")]
        line += [subject, train_set] * several
        line += [Estimate.of(value(run) for run in group).show(digits) for value in values.values()]
        cells.append((*line, *cost_cells(group)))
    return Table(
        title,
        (*header, *COST_COLUMNS),
        tuple(cells),
        text_columns=5 if several else 3,
        names=(0, 3, 4) if several else (0,),
        bold=frozenset(i for i, group in enumerate(groups.values()) if group[0].invariant_under == "group"),
        notes=(*notes, *common),
    )


def went_wrong(runs: Sequence[Run]) -> list[str]:
    """Returns notes on models whose trainings ended early, or whose answers were not all numbers: often none."""

    def named(some: Iterable[Run]) -> str:
        return ", ".join(dict.fromkeys(run.label for run in some))

    lost = named(run for run in runs if any(test.non_finite for test in run.tests))
    ended = named(run for run in runs if run.diverged)
    notes = [f"NaN or infinite predictions, NaN taken as the lowest: {lost}."] * bool(lost)
    return notes + [f"The loss became NaN or infinite, which ended the training early: {ended}."] * bool(ended)


def cost_cells(group: Sequence[Run]) -> tuple[str, ...]:
    """The cells under `COST_COLUMNS` of runs that differ in their seed alone."""
    seconds = statistics.fmean(run.seconds_per_epoch for run in group)
    peak = max(run.peak_bytes for run in group) / MIB
    return count(group[0].parameters), f"{seconds:.3g}", f"{peak:.0f}", str(len(group))


def row_of(group: Sequence[Run], *metrics: str) -> dict[str, Any]:
    """Returns the entry of ``results.json`` for runs that differ in their seed alone; metrics by test set."""
    first = group[0]

    def mean(metric: str, test: int) -> dict[str, Any]:
        return asdict(Estimate.of(run.tests[test].metrics[metric] for run in group))

    return {
        "model": first.settings.model,
        "label": first.label,
        "sees": first.sees,
        "invariant": INVARIANT.get(first.invariant_under, first.invariant_under),
        "subject": first.settings.subject,
        "seeds": [run.settings.seed for run in group],
        **{metric: {t.name: mean(metric, i) for i, t in enumerate(first.tests)} for metric in metrics},
        "best_epoch": [run.best_epoch for run in group],
        "parameters": first.parameters,
        "seconds_per_epoch": asdict(Estimate.of(run.seconds_per_epoch for run in group)),
        "peak_bytes": max(run.peak_bytes for run in group),
    }


def count(parameters: int) -> str:
    """A number of parameters, in millions from 10,000 on."""
    return f"{parameters / 1e6:.2f}M" if parameters >= 10_000 else str(parameters)


def record_of(runs: Sequence[Run]) -> dict[str, Any]:
    """Returns the part of ``results.json`` that all experiments have: runs, settings, networks and machines.

    Raises:
        ValueError: if there are none.
    """
    if not runs:
        raise InvalidValueError("no finished runs to report on")
    networks: dict[str, dict[str, int]] = {}
    for run in runs:
        number, subject = run.settings.options.get("train_networks"), run.settings.subject
        networks.setdefault(f"{number} {subject}" if number else subject, run.networks)
    return {
        "runs": [run.settings.name for run in runs],
        "settings": _distinct([asdict(replace(run.settings, seed=0)) for run in runs]),
        "networks": networks,
        "environments": _distinct([run.environment for run in runs]),
    }


def _distinct(values: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [value for i, value in enumerate(values) if value not in values[:i]]


def short(name: str, scale: float | None) -> str:
    """A test set as a column names it: 1eK where networks were moved with scales up to that."""
    if scale is None:
        return name
    exponent = math.log10(scale)
    return f"1e{round(exponent)}" if abs(exponent - round(exponent)) < 1e-9 else f"{scale:g}"


def moved_with(scales: Iterable[float | None], how: str) -> str:
    """A note on the columns of moved test networks, by their names in `short`; ``how``: where scales lie, of ``{}``."""
    columns = [short("", scale) for scale in scales if scale]
    which, most = ("1eK", "1eK") if all(name.startswith("1e") for name in columns) else (", ".join(columns), "that")
    return f"{which}: test networks {how.format(f'[1, {most}]')}."
