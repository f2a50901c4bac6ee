"""The paper's ablation (App. D, Table 24): how many equivariant layers, and whether a layer of HNP follows.

Six stacks, ``mnf-1`` to ``mnf-3`` and ``mnf-1-hnp`` to ``mnf-3-hnp``, which are `MonomialStack` with its two settings;
``mnf-3`` is ``monomial`` and ``mnf-3-hnp`` is ``monomial-hnp``. The experiment is predicting generalisation, trained on
the networks as they are and tested on them moved by the group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from matplotlib.figure import Figure

from nfn_monomial.benchmarks.experiments.ablation import STACKS
from nfn_monomial.benchmarks.experiments.predict import PredictConfig
from nfn_monomial.benchmarks.report.beside import Kept, kept_outcomes
from nfn_monomial.benchmarks.report.figures import name_lines
from nfn_monomial.benchmarks.report.intervals import mean_of
from nfn_monomial.benchmarks.report.tables import (
    COST_COLUMNS,
    Estimate,
    by_model,
    cost_cells,
    moved_with,
    over,
    record_of,
    short,
    went_wrong,
)
from nfn_monomial.benchmarks.settings.register import Study
from nfn_monomial.benchmarks.train.runs import Run, RunStore, TestResult
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.tools.report import PALETTE, Report, Table, panels

from .predict import predict_generalization, require_models

__all__ = ["STUDY", "ablation_report", "ablation_tables", "draw_ablation"]


def _require_stacks(config: PredictConfig) -> None:
    if other := [name for name in config.models if name not in STACKS]:
        raise InvalidValueError(f"{', '.join(other)}: not of the ablation; choose from {', '.join(STACKS)}")
    if len(config.train_sets) > 1:
        raise InvalidValueError(f"train_sets has {', '.join(config.train_sets)}: choose one for the ablation")
    if config.train_networks:
        raise InvalidValueError("train_networks is not of the ablation: use predict-generalization, which has curves")
    require_models(config)


def ablation_report(runs: Sequence[Run], answers: Kept = {}) -> Report:  # noqa: B006  # nobody writes to it
    """Tables and figure, and their numbers; ``answers``: see `draw_ablation`.

    Raises:
        ValueError: if there are no runs, or runs that would share a line differ in more than their seed.
    """
    results = {
        "tests": {run.settings.name: [asdict(test) for test in run.tests] for run in runs},
        **record_of(runs),
    }
    return Report(ablation_tables(runs), results, {"ablation.png": draw_ablation(runs, answers)})


def ablation_tables(runs: Sequence[Run]) -> list[Table]:
    """A table for each activation: tau here, and apart from it the paper's, which are of another data set.

    Args:
        runs: of `predict_generalization` with stacks for models, on one train set.
    """
    groups: dict[str, list[list[Run]]] = {}
    for (subject, _, _), group in by_model(runs).items():
        groups.setdefault(subject, []).append(group)
    tables = []
    for subject, stacks in groups.items():
        tests = stacks[0][0].tests
        cells = []
        for group in stacks:
            taus = [
                Estimate.of(run.tests[i].metrics["tau"] for run in group).show() for i in range(len(group[0].tests))
            ]
            cells.append((group[0].label, *taus, *cost_cells(group)))
        header = ("stack", *map(_column, tests), *COST_COLUMNS)
        scales = [test.scale for test in tests]
        moved = moved_with(scales, "moved with scales in {}") + " " if any(scales) else ""
        note = (
            "MNF x 3, HNP: (MNF-act) x 3 -> Norm -> (HNP-ReLU) x 1 -> Avg -> MLP, with MNF the monomial equivariant "
            f"layer and act the networks' activation. {moved}{over(map(len, stacks)).capitalize()}."
        )
        title = f"Ablation: Kendall's tau of {subject} networks"
        notes = (note, *went_wrong([run for group in stacks for run in group]))
        tables.append(Table(title, header, tuple(cells), notes=notes, subject=subject))
    return tables


def draw_ablation(runs: Sequence[Run], answers: Kept = {}) -> Figure:  # noqa: B006  # nobody writes to it
    """Draws tau on networks as they are over the number of equivariant layers, with and without HNP behind them.

    Networks that are moved have the same tau, as every stack is invariant: they are in the table.

    Args:
        runs: as for `ablation_tables`.
        answers: see `kept`; without them there are no bands.
    """
    groups = by_model(runs)
    subjects = list(dict.fromkeys(subject for subject, _, _ in groups))
    figure, axes = panels(1, len(subjects), (5.4 * len(subjects), 3.8))
    bands = False
    for ax, subject in zip(axes, subjects, strict=True):
        named: dict[str, tuple[float, str, bool]] = {}
        last: dict[str, float] = {}
        for hnp, color in ((False, PALETTE[3]), (True, PALETTE[4])):
            stacks = sorted(
                (STACKS[model][0], group)
                for (networks, _, model), group in groups.items()
                if networks == subject and STACKS[model][1] == hnp
            )
            if not stacks:
                continue
            depths = [depth for depth, _ in stacks]
            taus = [Estimate.of(run.tests[0].metrics["tau"] for run in group).mean for _, group in stacks]
            ax.plot(depths, taus, color=color, marker="o")
            ends = [each for _, group in stacks if (each := _ends(group[0], answers))]
            if len(ends) == len(depths) > 1:
                bands = True
                ax.fill_between(
                    depths, [low for low, _ in ends], [high for _, high in ends], color=color, alpha=0.18, linewidth=0
                )
            name = f"{'with' if hnp else 'without'} HNP"
            named[name], last[name] = (taus[-1], color, False), float(depths[-1])
        ax.set_xticks([1, 2, 3])
        ax.set_xlabel("equivariant layers")
        ax.set_ylabel("Kendall's tau on test networks")
        ax.set_title(f"{subject} networks", fontsize=10)
        name_lines(ax, named, last)
    seeds = {len(group) for group in groups.values()}
    words = "Dots: one seed" if seeds == {1} else f"Dots: means over seeds{'; bands: 95 % intervals' * bands}"
    figure.supxlabel(f"{words}. All stacks are invariant.", fontsize=8.5)
    return figure


def _ends(run: Run, answers: Kept) -> tuple[float, float] | None:
    """Returns the interval of a stack's tau on networks as they are; None for one seed, or if no answers were kept."""
    outcomes = answers.get((run.settings.subject, (run.label,), _column(run.tests[0])))
    interval = mean_of([outcomes]) if outcomes else None
    return None if interval is None or interval.low is None or interval.high is None else (interval.low, interval.high)


def _column(test: TestResult) -> str:
    return f"tau {short(test.name, test.scale)}"


def kept(runs: Sequence[Run], store: RunStore) -> Kept:
    """Returns the answers that the numbers of the tables are counted from."""
    return kept_outcomes(runs, store, _column, train_sets=False)


STUDY = Study(
    predict_generalization,
    lambda runs, config, store: ablation_report(runs, kept(runs, store)),
    _require_stacks,
    kept=kept,
)
