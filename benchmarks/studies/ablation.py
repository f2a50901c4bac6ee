"""The paper's ablation (App. D, Table 24): how many equivariant layers, and whether a layer of HNP follows.

Six stacks, ``mnf-1`` to ``mnf-3`` and ``mnf-1-hnp`` to ``mnf-3-hnp``, which are `MonomialStack` with its two settings;
``mnf-3`` is ``monomial`` and ``mnf-3-hnp`` is ``monomial-hnp``. The experiment is predicting generalisation, trained on
the networks as they are and tested on them moved by the group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from matplotlib.figure import Figure

from nfn_monomial.benchmarks.experiments.ablation import STACKS
from nfn_monomial.benchmarks.experiments.predict import PredictConfig
from nfn_monomial.benchmarks.report.beside import Kept, kept_outcomes
from nfn_monomial.benchmarks.report.tables import (
    COST_COLUMNS,
    Estimate,
    by_model,
    cost_cells,
    over,
    over_seeds,
    record_of,
    short,
)
from nfn_monomial.benchmarks.settings.register import Study
from nfn_monomial.benchmarks.train.runs import Run, RunStore
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.tools.report import PALETTE, Report, Table, panels

from .predict import predict_generalization, require_models

__all__ = ["STUDY", "ablation_report", "ablation_tables", "draw_ablation"]

SHIFT = 0.06  # of points in the figure that would hide others


def _require_stacks(config: PredictConfig) -> None:
    if other := [name for name in config.models if name not in STACKS]:
        raise InvalidValueError(f"{', '.join(other)}: not of the ablation; choose from {', '.join(STACKS)}")
    if len(config.train_sets) > 1:
        raise InvalidValueError(f"train_sets has {', '.join(config.train_sets)}: choose one for the ablation")
    if config.train_networks:
        raise InvalidValueError("train_networks is not of the ablation: use predict-generalization, which has curves")
    require_models(config)


def ablation_report(runs: Sequence[Run]) -> Report:
    """Tables and figure, and their numbers.

    Raises:
        ValueError: if there are no runs, or runs that would share a line differ in more than their seed.
    """
    results = {
        "tests": {run.settings.name: [asdict(test) for test in run.tests] for run in runs},
        **record_of(runs),
    }
    return Report(ablation_tables(runs), results, {"ablation.png": draw_ablation(runs)})


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
        header = ("stack", *(f"tau {short(test.name, test.scale)}" for test in tests), *COST_COLUMNS)
        note = (
            "MNF x 3, HNP: (MNF-act) x 3 -> Norm -> (HNP-ReLU) x 1 -> Avg -> MLP, with MNF the monomial equivariant "
            "layer and act the networks' activation. 1eK: test networks moved with scales in [1, 1eK]. "
            f"{over(map(len, stacks)).capitalize()}."
        )
        tables.append(
            Table(
                f"Ablation: Kendall's tau of {subject} networks", header, tuple(cells), notes=(note,), subject=subject
            )
        )
    return tables


def draw_ablation(runs: Sequence[Run]) -> Figure:
    """Draws tau over the number of equivariant layers, with and without HNP, unchanged and moved the most."""
    groups = by_model(runs)
    subjects = list(dict.fromkeys(subject for subject, _, _ in groups))
    figure, axes = panels(1, len(subjects), (4.8 * len(subjects), 3.8))
    for ax, subject in zip(axes, subjects, strict=True):
        for hnp, color in ((False, PALETTE[3]), (True, PALETTE[4])):
            stacks = sorted(
                (STACKS[model][0], group)
                for (networks, _, model), group in groups.items()
                if networks == subject and STACKS[model][1] == hnp
            )
            if not stacks:
                continue
            depths = [depth for depth, _ in stacks]
            styles: dict[int, dict[str, Any]] = {0: {"marker": "o"}, -1: {"marker": "x", "linestyle": ":"}}
            for test, style in styles.items():
                name = stacks[0][1][0].tests[test].name
                taus = [Estimate.of(run.tests[test].metrics["tau"] for run in group) for _, group in stacks]
                ax.errorbar(
                    [depth + SHIFT * bool(test) for depth in depths], [t.mean for t in taus],
                    [t.error or 0.0 for t in taus], color=color, capsize=3,
                    label=f"{'with' if hnp else 'without'} HNP, {name}", **style,
                )  # fmt: skip
        ax.set_xticks([1, 2, 3])
        ax.set_xlabel("equivariant layers")
        ax.set_ylabel("Kendall's tau on test networks")
        ax.set_title(f"{subject} networks", fontsize=10)
        ax.legend(fontsize=8, frameon=False)
    figure.supxlabel(f"{over_seeds(runs).capitalize()}; x: moved with the largest scales", fontsize=8.5)
    return figure


def kept(runs: Sequence[Run], store: RunStore) -> Kept:
    """Returns the answers that the numbers of the tables are counted from."""
    return kept_outcomes(runs, store, lambda test: f"tau {short(test.name, test.scale)}", train_sets=False)


STUDY = Study(predict_generalization, lambda runs, config, store: ablation_report(runs), _require_stacks, kept=kept)
