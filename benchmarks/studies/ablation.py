"""The paper's ablation (App. D, Table 24): how many equivariant layers, and whether a layer of HNP follows.

Six stacks, ``mnf-1`` to ``mnf-3`` and ``mnf-1-hnp`` to ``mnf-3-hnp``, which are `MonomialStack` with its two settings;
``mnf-3`` is ``monomial`` and ``mnf-3-hnp`` is ``monomial-hnp``. The experiment is predicting generalisation, trained on
the networks as they are and tested on them moved by the group.

With ``train_networks`` it is the ablation of terms (preset ``terms``): linear layers with some kinds of bilinear terms
or all, see `nfn_monomial.benchmarks.models.terms`, and any other models beside them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from matplotlib.figure import Figure

from nfn_monomial.benchmarks.data.moves import WIDENED
from nfn_monomial.benchmarks.data.networks import Corpus
from nfn_monomial.benchmarks.experiments.ablation import STACKS, TERMS, AblationConfig
from nfn_monomial.benchmarks.report.tables import COST_COLUMNS, Mean, by_model, cost_cells, over, over_seeds, record_of
from nfn_monomial.benchmarks.settings.register import Study
from nfn_monomial.benchmarks.train.runs import Run, RunStore
from nfn_monomial.benchmarks.train.sweep import OnProgress
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.tools.report import PALETTE, Report, Table, panels

from .predict import check, predict_generalization, require_models
from .predict_report import short

__all__ = ["STUDY", "ablation_report", "ablation_tables", "draw_ablation", "draw_terms", "term_tables"]

SHIFT = 0.06  # of points in the figure that would hide others


def _require_stacks(config: AblationConfig) -> None:
    if (other := [name for name in config.models if name not in STACKS]) and not config.train_networks:
        raise InvalidValueError(f"{', '.join(other)}: not of the ablation; choose from {', '.join(STACKS)}")
    if config.train_networks and not {*config.models} & {*TERMS}:
        raise InvalidValueError(
            f"train_networks is of the ablation of terms: name some of {', '.join(TERMS)}; for curves of other models "
            "there is predict-generalization --preset curves"
        )
    require_models(config)


def _run(corpora: Mapping[str, Corpus], config: AblationConfig, store: RunStore, on_progress: OnProgress) -> list[Run]:
    if not config.train_networks:
        return predict_generalization(corpora, config, store, on_progress)
    check(config, corpora)  # all sizes, before the first is trained
    larger = replace(config.training, epochs=config.larger_epochs)
    runs = []
    for i, count in enumerate(sorted(config.train_networks)):
        part = replace(config, seeds=config.larger_seeds, training=larger) if i else config
        runs += predict_generalization(corpora, replace(part, train_networks=(count,)), store, on_progress)
    return runs


def ablation_report(runs: Sequence[Run]) -> Report:
    """Tables and figure, and their numbers.

    Raises:
        ValueError: if there are no runs, or runs that would share a line differ in more than their seed.
    """
    terms = all("train_networks" in run.settings.options for run in runs)
    results = {
        "tests": {run.settings.name: [asdict(test) for test in run.tests] for run in runs},
        **record_of(runs),
    }
    if terms:
        return Report(term_tables(runs), results, {"terms.png": draw_terms(runs)})
    return Report(ablation_tables(runs), results, {"ablation.png": draw_ablation(runs)})


def ablation_tables(runs: Sequence[Run]) -> list[Table]:
    """A table for each activation: tau here, and apart from it the paper's, which are of another data set.

    Args:
        runs: of `predict_generalization` with stacks for models, on one train set.
    """
    groups = by_model(runs)
    return [
        _table(subject, {model: group for (s, _, model), group in groups.items() if s == subject})
        for subject in dict.fromkeys(subject for subject, _, _ in groups)
    ]


def _table(subject: str, groups: dict[str, list[Run]]) -> Table:
    first = next(iter(groups.values()))[0]
    names = [short(test.name, test.scale) for test in first.tests]
    header = ["stack", *(f"tau {name}" for name in names), *COST_COLUMNS]
    notes = [
        "MNF x 3, HNP: (MNF-act) x 3 -> Norm -> (HNP-ReLU) x 1 -> Avg -> MLP, with MNF the monomial equivariant layer "
        "and act the networks' activation. 1eK: test networks moved with scales in [1, 1eK]. "
        f"{over(map(len, groups.values())).capitalize()}."
    ]
    cells = []
    for group in groups.values():
        line = [group[0].label]
        line += [Mean.of(run.tests[i].metrics["tau"] for run in group).show() for i in range(len(group[0].tests))]
        line += cost_cells(group)
        cells.append(tuple(line))
    return Table(f"Ablation: Kendall's tau of {subject} networks", tuple(header), tuple(cells), notes=tuple(notes))


def draw_ablation(runs: Sequence[Run]) -> Figure:
    """Tau against the number of equivariant layers, with and without a layer of HNP, unchanged and moved the most."""
    groups = {key: group for key, group in by_model(runs).items() if key[2] in STACKS}
    subjects = list(dict.fromkeys(subject for subject, _, _ in groups))
    figure, axes = panels(1, len(subjects), (4.8 * len(subjects), 3.8))
    for ax, subject in zip(axes, subjects, strict=True):
        for hnp, color in ((False, PALETTE[3]), (True, PALETTE[4])):
            own = sorted(
                (STACKS[model][0], group)
                for (found, _, model), group in groups.items()
                if found == subject and STACKS[model][1] == hnp
            )
            if not own:
                continue
            depths = [depth for depth, _ in own]
            styles: dict[int, dict[str, Any]] = {0: {"marker": "o"}, -1: {"marker": "x", "linestyle": ":"}}
            for test, style in styles.items():
                name = own[0][1][0].tests[test].name
                taus = [Mean.of(run.tests[test].metrics["tau"] for run in group) for _, group in own]
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


# -- terms ------------------------------------------------------------------------------------------------------------


def _taus(runs: Sequence[Run]) -> dict[str, dict[int, dict[str, dict[int, float]]]]:
    """Tau on unmoved networks by activation, number of training networks, model and seed."""
    found: dict[str, dict[int, dict[str, dict[int, float]]]] = {}
    for (subject, _, model), group in by_model(runs).items():
        by_count = found.setdefault(subject, {}).setdefault(group[0].settings.options["train_networks"], {})
        by_count[model] = {run.settings.seed: run.tests[0].metrics["tau"] for run in group}
    return found


def _in_order(by_count: Mapping[int, Mapping[str, object]]) -> list[str]:
    """Models of an activation, those of `TERMS` first."""
    names = {model for taus in by_count.values() for model in taus}
    first = [name for name in TERMS if name in names]
    return [*first, *sorted(names.difference(first))]


def _brings(taus: Mapping[str, Mapping[int, float]], model: str) -> Mean | None:
    """What a kind of terms brings, over seeds that both have: alone beside linear terms, or as the last one to join."""
    kind = model.partition("-")[2]
    more, less = (model, "linear") if model == f"linear-{kind}" else ("bilinear", model)
    if model not in TERMS or not kind or not {more, less} <= set(taus):
        return None
    both = [seed for seed in taus[more] if seed in taus[less]]
    return Mean.of(taus[more][seed] - taus[less][seed] for seed in both) if both else None


def term_tables(runs: Sequence[Run]) -> list[Table]:
    """A table for each activation: tau by the number of training networks, and what each kind of terms brings.

    Args:
        runs: of `predict_generalization` with ``train_networks``, with the models of `TERMS` and any others.
    """
    labels = {run.settings.model: run.label for run in runs}
    tables = []
    for subject, by_count in _taus(runs).items():
        cells = []
        for model in _in_order(by_count):
            line = [labels[model]]
            for taus in by_count.values():
                gain = _brings(taus, model)
                line.append(Mean.of(taus[model].values()).show() if model in taus else "-")
                line.append("-" if gain is None else "+" * (gain.mean >= 0) + gain.show())
            group = [run for run in runs if (run.settings.model, run.settings.subject) == (model, subject)]
            cells.append((*line, cost_cells(group)[0]))
        columns = [f"{name}{n:,}" for n in by_count for name in ("", "brings, ")]
        changes = [
            abs(test.metrics["tau"] - run.tests[0].metrics["tau"])
            for run in runs
            for test in run.tests
            if test.name != WIDENED
        ]
        counts = ", ".join(f"{n:,}: {over(map(len, taus.values()))}" for n, taus in by_count.items())
        notes = (
            "brings: of terms that join the linear ones, the difference to linear terms alone; of terms that are left "
            "out, what all terms have more; both of runs of the same seed. By the number of training networks: "
            f"{counts}. On test networks that the group moved, tau differs by {max(changes):.4f} at most.",
        )
        title = f"Terms of the bilinear basis: Kendall's tau of {subject} networks"
        tables.append(Table(title, ("terms", *columns, "params"), tuple(cells), notes=notes))
    return tables


def draw_terms(runs: Sequence[Run]) -> Figure:
    """Tau of every model on unmoved networks: a row of panels for each activation, one for each number of networks."""
    found, labels = _taus(runs), {run.settings.model: run.label for run in runs}
    wide, high = max(map(len, found.values())), max(len(_in_order(by_count)) for by_count in found.values())
    figure, axes = panels(len(found), wide, (4.4 * wide + 1.2, (0.22 * high + 1.0) * len(found)))
    for row, (subject, by_count) in enumerate(found.items()):
        for ax, (n, taus) in zip(axes[row * wide :], by_count.items(), strict=False):
            means = {name: Mean.of(taus[name].values()) for name in _in_order(by_count) if name in taus}
            ax.barh(
                [labels[name] for name in means], [t.mean for t in means.values()],
                xerr=[math.nan if t.error is None else t.error for t in means.values()], capsize=2,
                color=[PALETTE[3 if name in TERMS else 7] for name in means],
            )  # fmt: skip
            for name in ("linear", "bilinear"):
                if name in means:
                    ax.axvline(means[name].mean, color="#404040", linewidth=0.8, linestyle=":")
            ax.tick_params("y", labelsize=8)
            ax.invert_yaxis()
            ax.set_xlim(left=min(t.mean for t in means.values()) - 0.05)
            ax.set_xlabel("Kendall's tau on test networks")
            ax.set_title(f"{subject} networks, {n:,} to train on ({over(map(len, taus.values()))})", fontsize=8.5)
    figure.supxlabel("Blue: linear terms, and bilinear ones. Dotted: linear terms alone, all terms.", fontsize=8.5)
    return figure


STUDY = Study(_run, lambda runs, config, store: ablation_report(runs), _require_stacks)
