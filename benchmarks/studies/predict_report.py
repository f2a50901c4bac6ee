"""Finished runs of `predict-generalization`: the tables, their numbers as rows, and the paper's Figure 1."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.stats import t as student

from nfn_monomial.benchmarks.data.moves import WIDENED
from nfn_monomial.benchmarks.data.networks import Corpus
from nfn_monomial.benchmarks.experiments.predict import PREDICT, PredictConfig
from nfn_monomial.benchmarks.report.beside import Kept, kept_outcomes
from nfn_monomial.benchmarks.report.curves import curve_tables, draw_curves
from nfn_monomial.benchmarks.report.figures import name_lines, stroke
from nfn_monomial.benchmarks.report.intervals import difference, paired
from nfn_monomial.benchmarks.report.tables import (
    COLUMNS,
    COST_COLUMNS,
    HEADLINE,
    INVARIANT,
    MIB,
    SEES,
    Estimate,
    by_model,
    count,
    headline,
    moved_with,
    over,
    record_of,
    short,
)
from nfn_monomial.benchmarks.report.zoos import DIFFERENCES, draw_zoos, zoo_tables
from nfn_monomial.benchmarks.settings.register import Study
from nfn_monomial.benchmarks.train.runs import Run, RunStore
from nfn_monomial.tools.report import Report, Table, look, panels

from .predict import default_models, predict_generalization, require_models

__all__ = ["STUDY", "Row", "draw_figure", "kept", "predict_report", "predict_tables", "summarise"]

TEXT_COLUMNS = ("model", "sees", "invariant", "trained on")
NOTHING = "-"
ALL = ("all",)
PER_SCALE = "Augmented: under every range of scales, the model that was trained on the set augmented with that range."
ORIGINAL = "original"
ZOOS = 3  # so many or more are compared with one another


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
    tau: dict[str, Estimate]
    r2: dict[str, Estimate]
    non_finite: int  # predictions that were NaN or infinite, over all seeds and test sets
    diverged: int  # number of seeds
    parameters: int
    seconds_per_epoch: Estimate
    step_share: float
    peak_mib: float

    @property
    def scaled(self) -> bool:
        """True if the group of these networks scales."""
        return any(scale is not None for scale in self.scales.values())

    @property
    def moved(self) -> list[tuple[str, Estimate]]:
        """Test sets and tau: as they are, then as far as they were moved."""
        return [(name, self.tau[name]) for name in self.scales if name != WIDENED]


def predict_report(runs: Sequence[Run], per_scale: bool = False, answers: Kept = {}) -> Report:  # noqa: B006
    """Returns tables, Figure 1, and the numbers of both.

    Args:
        runs: of `predict_generalization`.
        per_scale: see `PredictConfig`; the runs of all ranges of scales share a row.
        answers: see `kept`; without them no two models are compared.

    Raises:
        ValueError: if there are no runs, or see `summarise`.
    """
    record, runs = record_of(runs), _joined(runs) if per_scale else runs
    rows = summarise(runs)
    results = {"rows": [asdict(row) for row in rows], **record}
    sizes = {run.settings.options.get("train_networks") for run in runs}
    heading = PER_SCALE if per_scale else ""
    no_curve = len(sizes) == 1 and None not in sizes  # but a point, at which models are compared
    if no_curve or len({run.settings.subject for run in runs}) >= ZOOS:
        return Report(zoo_tables(runs, answers), results, {"zoos.png": draw_zoos(runs, answers)}, heading)
    if None not in sizes:
        return Report(curve_tables(runs, answers), results, {"curves.png": draw_curves(runs)})
    tables = [*predict_tables(rows), *difference_tables(rows, answers)]
    return Report(tables, results, {"figure1.png": draw_figure(rows)}, heading)


def _joined(runs: Sequence[Run]) -> list[Run]:
    """Runs that differ in their range of scales alone as one, with the tests under the scales of all."""
    groups: dict[tuple[str, str, str, int], list[Run]] = {}
    for run in runs:
        s = run.settings
        groups.setdefault((s.subject, s.train_set, s.model, s.seed), []).append(run)
    shown = []
    for first, *others in groups.values():
        if others:
            tests = tuple(test for run in (first, *others) for test in run.tests if test.scale is not None)
            options = {**first.settings.options, "scales": [t.scale for t in tests], "augment_scale": "of each test"}
            diverged = any(run.diverged for run in (first, *others))
            settings = replace(first.settings, options=options)
            first = replace(first, settings=settings, tests=tests, diverged=diverged)
        shown.append(first)
    return shown


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
                tau={name: Estimate.of(t.metrics["tau"] for t in results) for name, results in tests.items()},
                r2={name: Estimate.of(t.metrics["r2"] for t in results) for name, results in tests.items()},
                non_finite=sum(t.non_finite for results in tests.values() for t in results),
                diverged=sum(run.diverged for run in group),
                parameters=first.parameters,
                seconds_per_epoch=Estimate.of(run.seconds_per_epoch for run in group),
                step_share=statistics.fmean(run.step_share for run in group),
                peak_mib=max(run.peak_bytes for run in group) / MIB,
            )
        )
    order = list(dict.fromkeys(run.settings.subject for run in runs))
    return sorted(rows, key=lambda row: order.index(row.activation))


# -- tables -----------------------------------------------------------------------------------------------------------


def predict_tables(rows: Sequence[Row]) -> list[Table]:
    """Returns a table for every activation: tau on all test sets, R2 on some, size, time and memory."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.activation, []).append(row)
    return [_table(group) for group in groups.values()]


def difference_tables(rows: Sequence[Row], answers: Kept) -> list[Table]:
    """Returns how far invariant models are ahead of the best of the others: for every activation and train set a table.

    On test networks as they are, and moved furthest. Of one seed there is no interval, so no table.
    """
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.activation, row.train_set), []).append(row)
    return [
        table
        for (activation, trained), group in groups.items()
        for table in _ahead(activation, trained, group, answers)
    ]


def _ahead(activation: str, trained: str, rows: Sequence[Row], answers: Kept) -> list[Table]:
    invariant = [row for row in rows if row.invariant == INVARIANT["group"]]
    found: dict[str, list[str]] = {}
    for name, scale in _ends(rows).items():
        tau = f"tau {short(name, scale)}"
        kept = {row.model: answers.get((activation, (row.label, trained), tau)) for row in rows}
        pairs = {
            (mine.model, other.model): pair
            for mine in invariant
            for other in rows
            if other not in invariant and (pair := paired(kept[mine.model], kept[other.model]))
            if len(pair[0].seeds) > 1
        }
        others = [row for row in rows if any(row.model == other for _, other in pairs)]
        if others:
            best = max(others, key=lambda row: row.tau[name].mean)
            of_best = [pairs.get((mine.model, best.model)) for mine in invariant]
            found[f"{tau}: ahead of {best.label}"] = [difference(*p).show() if p else NOTHING for p in of_best]
    lines = [(row.label, *(cells[i] for cells in found.values())) for i, row in enumerate(invariant)]
    lines = [line for line in lines if any(cell != NOTHING for cell in line[1:])]
    title = f"Invariant models, ahead of the best of the others: {activation} networks, trained on {trained}"
    return [Table(title, ("model", *found), tuple(lines), text_columns=1, notes=(DIFFERENCES,))] if lines else []


def _ends(rows: Sequence[Row]) -> dict[str, float | None]:
    """Returns the test set as it is and the one that was moved furthest, those of them that there are."""
    names = {name: row.scales[name] for row in rows for name, _ in row.moved}
    furthest = max(reversed(names), key=lambda name: names[name] or 0.0)  # the last one, if none was scaled
    return {name: names[name] for name in dict.fromkeys((ORIGINAL, furthest)) if name in names}


def _table(rows: Sequence[Row]) -> Table:
    scales = {name: scale for row in rows for name, scale in row.scales.items()}
    tests = sorted(scales, key=lambda name: name == WIDENED)  # last, also if the first row lacks it
    moved = [name for name in tests if name != WIDENED]
    ends = [name for name in tests if name in (moved[0], moved[-1], WIDENED)]
    shown = {name: short(name, scales[name]) for name in tests}
    cells = []
    for row in rows:
        line = [row.label, row.sees, row.invariant, row.train_set]
        line += [row.tau[name].show() if name in row.tau else NOTHING for name in tests]
        # The third digit of an R2 far below 0 says nothing, and single runs may differ by orders of magnitude.
        r2 = [row.r2.get(name) for name in ends]
        line += [NOTHING if m is None else m.show() if m.mean > -10 else f"{m.mean:.1e}" for m in r2]
        line += [count(row.parameters), f"{row.seconds_per_epoch.mean:.3g}", f"{row.peak_mib:.0f}", str(len(row.seeds))]
        cells.append(tuple(line))
    notes = [COLUMNS]
    if rows[0].scaled:
        notes.append(moved_with(map(scales.get, tests), "moved by random group elements, scales uniform in {}"))
    if WIDENED in scales:
        notes.append("widened: the same functions with more neurons (- for models of one width).")
    notes.append(f"{_over(rows)}; epochs are selected on the validation networks alone.")
    if lost := [f"{row.label} ({row.train_set})" for row in rows if row.non_finite]:
        notes.append(f"NaN or infinite predictions, ranked by sign, NaN lowest: {', '.join(lost)}.")
    if lost := [
        f"{row.label} ({row.train_set}, {row.diverged} of {len(row.seeds)} seeds)" for row in rows if row.diverged
    ]:
        notes.append(f"The loss became NaN or infinite, which ended the training early: {', '.join(lost)}.")
    several = len({row.train_set for row in rows}) > 1
    taus, r2s = (f"tau {shown[name]}" for name in tests), (f"R2 {shown[name]}" for name in ends)
    return Table(
        f"Test accuracy of {rows[0].activation} networks predicted from their weights: Kendall's tau",
        (*TEXT_COLUMNS, *taus, *r2s, *COST_COLUMNS),
        tuple(cells),
        text_columns=len(TEXT_COLUMNS),
        names=(0, TEXT_COLUMNS.index("trained on")) if several else (0,),
        bold=frozenset(i for i, row in enumerate(rows) if row.invariant == "yes"),
        notes=tuple(notes),
        subject=rows[0].activation,
    )


# -- Figure 1 ---------------------------------------------------------------------------------------------------------


def draw_figure(rows: Sequence[Row]) -> Figure:
    """Draws Kendall's tau on test networks that are moved further and further: a panel per activation and train set.

    Models are named where their lines end, those that are invariant in bold; of more than six, three of each kind (see
    `headline`). Networks whose group does not scale (tanh) are moved once, by sign flips. Bands are
    95 % intervals over seeds. Panels of one activation share their vertical range.
    """
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.activation, row.train_set), []).append(row)
    most = max(map(len, groups.values()))
    for key, group in groups.items():
        shown = headline({row.model: (row.moved[0][1].mean, row.invariant == "yes") for row in group})
        groups[key] = [row for row in group if row.model in shown]
    numbers = {model: i for i, model in enumerate(dict.fromkeys(r.model for group in groups.values() for r in group))}
    wide = min(len(groups), 2)
    high = math.ceil(len(groups) / wide)
    figure, axes = panels(high, wide, (6.4 * wide, 3.9 * high + 0.3))
    for ax, ((activation, train_set), group) in zip(axes, groups.items(), strict=False):
        ax.grid(visible=False, axis="x")
        for row in group:
            _draw_line(ax, row, numbers[row.model])
        ax.set_title(f"{activation} networks, trained on {train_set} weights", fontsize=10)
        ax.set_ylabel("Kendall's tau on test networks", fontsize=9)
        ax.set_xlabel("largest scale of the test networks" if group[0].scaled else "test networks")
    for ax, (activation, _) in zip(axes, groups, strict=False):  # by means: bands of few seeds may be very wide
        taus = [t.mean for (name, _), group in groups.items() if name == activation for r in group for _, t in r.moved]
        margin = 0.1 * (max(taus) - min(taus)) + 0.01
        ax.set_ylim(min(taus) - margin, max(taus) + margin)
    for ax, group in zip(axes, groups.values(), strict=False):
        name_lines(
            ax,
            {
                row.label if row.sees == "weights" else f"{row.label} ({row.sees})": (
                    row.moved[-1][1].mean, look(numbers[row.model])["color"], row.invariant == "yes",
                )
                for row in group
            },
        )  # fmt: skip
    seeds = _over(rows).removeprefix("Mean ± standard error").strip()
    words = f"means and 95 % intervals {seeds}" if seeds.startswith("over") else "one seed"
    some = f"; {HEADLINE} of {most} models, the best of each kind and the paper's" * (most > HEADLINE)
    figure.supxlabel(f"Bold: invariant to the whole group; {words}{some}. Higher is better.", fontsize=8.5)
    return figure


def _over(rows: Sequence[Row]) -> str:
    """Returns the words for means over the seeds of these rows."""
    return over(len(row.seeds) for row in rows).capitalize()


def _draw_line(ax: Axes, row: Row, number: int) -> None:
    names = [name for name, _ in row.moved]
    taus = [tau for _, tau in row.moved]
    style = look(number) | stroke(row.invariant == "yes")
    ax.plot(range(len(names)), [tau.mean for tau in taus], **style)
    if all(tau.error is not None for tau in taus):
        reach = student.ppf(0.975, len(row.seeds) - 1)
        low, high = ([tau.mean + sign * reach * (tau.error or 0.0) for tau in taus] for sign in (-1, 1))
        ax.fill_between(range(len(names)), low, high, color=style["color"], alpha=0.18, linewidth=0)
    shown = ["as they are" if name == ORIGINAL else short(name, row.scales[name]) for name in names]
    ax.set_xticks(range(len(names)), shown)


# -- the experiment ---------------------------------------------------------------------------------------------------


def _check(config: PredictConfig) -> None:
    if config.models != ALL:
        require_models(config)


def _choose(config: PredictConfig, corpora: Mapping[str, Corpus]) -> PredictConfig:
    """Chooses for ``--models all``, and among a preset's models, those that can read the networks."""
    if config.models != ALL and config.models not in {preset.models for preset in PREDICT.values()}:
        return config
    able = default_models(corpora)
    return replace(config, models=tuple(name for name in config.models if name in able) or able)


def kept(runs: Sequence[Run], store: RunStore) -> Kept:
    """Returns the answers that the numbers of the tables are counted from."""
    return kept_outcomes(runs, store, lambda test: f"tau {short(test.name, test.scale)}", train_sets=True)


STUDY = Study(
    predict_generalization,
    lambda runs, config, store: predict_report(runs, config.per_scale, kept(runs, store)),
    _check,
    _choose,
    kept,
)
