"""What a search found: recipes with their taus and their budget, and how the search went."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict
from itertools import accumulate
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nfn_monomial.benchmarks.experiments.tune import TuneConfig
from nfn_monomial.benchmarks.models.catalogue import require_task
from nfn_monomial.benchmarks.report.tables import Mean, over, record_of
from nfn_monomial.benchmarks.settings.register import Study
from nfn_monomial.benchmarks.train.runs import Run
from nfn_monomial.tools.predictors.models import model_class
from nfn_monomial.tools.report import PALETTE, Report, Table, panels

from .confirm import Tuned, tune
from .cuts import crossed
from .space import importances, space_of

__all__ = ["STUDY", "draw_search", "tune_report"]


def tune_report(found: Sequence[Tuned], config: TuneConfig) -> Report:
    """Tables of recipes and budget, ``search.png``, and all attempts as numbers."""
    weights = {tuned.model: importances(space_of(config, tuned.model), tuned.tried, config.seeds[0]) for tuned in found}
    results = {
        "models": {
            tuned.model: {
                "recipe": asdict(tuned.recipe),
                "chosen": tuned.tried.index(tuned.chosen) + 1,
                "confirmed": {
                    how: {name: asdict(mean) for name, mean in _confirmed(runs).items()}
                    for how, runs in tuned.runs.items()
                },
                "importances": weights[tuned.model],
                "tried": [asdict(attempt) for attempt in tuned.tried],
            }
            for tuned in found
        },
        **record_of([run for tuned in found for runs in tuned.runs.values() for run in runs]),
    }
    tables = [_recipes(found), _confirmation(found), _budget(found, config)]
    return Report(tables, results, {"search.png": draw_search(found, weights)})


def _label(tuned: Tuned) -> str:
    return model_class(tuned.model).label


def _score(run: Run) -> float:
    return crossed(epoch["metrics"] for epoch in run.history if epoch["metrics"])


def _confirmed(runs: Sequence[Run]) -> dict[str, Mean]:
    """Zoo -> the score over seeds; ``mean``: that of the mean over zoos."""
    zoos = dict.fromkeys(run.settings.subject for run in runs)
    scores = {name: [_score(run) for run in runs if run.settings.subject == name] for name in zoos}
    return {name: Mean.of(taus) for name, taus in scores.items()} | {
        "mean": Mean.of(map(statistics.fmean, zip(*scores.values(), strict=True)))
    }


# -- tables -----------------------------------------------------------------------------------------------------------


def _recipes(found: Sequence[Tuned]) -> Table:
    lines = []
    names = dict.fromkeys(name for tuned in found for name in tuned.chosen.params)
    for tuned in found:
        for how, params in (("tried first", tuned.tried[0].params), ("chosen", tuned.chosen.params)):
            given = (params.get(name, "-") for name in names)
            values = (f"{v:.3g}" if isinstance(v, float) else str(v) for v in given)
            lines.append((_label(tuned), how, *values))
    return Table(
        "Recipes",
        ("model", "recipe", *(name.replace("_", " ") for name in names)),
        tuple(lines),
        text_columns=2,
        names=(0, 1),
        notes=("tried first: how the model is trained without a recipe, brought into what is searched.",),
    )


def _confirmation(found: Sequence[Tuned]) -> Table:
    lines = []
    for tuned in found:
        inner = {"as registered": tuned.tried[0].score, "tuned": tuned.chosen.score}
        for how, runs in tuned.runs.items():
            taus = [mean.show() for mean in _confirmed(runs).values()]
            lines.append((_label(tuned), how, f"{inner[how]:.3f}", *taus, str(len({r.settings.seed for r in runs}))))
    zoos = [name for name in _confirmed(found[0].runs["tuned"]) if name != "mean"]
    seeds = len({run.settings.seed for run in found[0].runs["tuned"]})
    return Table(
        "Kendall's tau of what was chosen",
        ("model", "training", "tau in the search", *(f"tau {name}" for name in zoos), "tau mean", "seeds"),
        tuple(lines),
        text_columns=2,
        names=(0, 1),
        notes=(
            "tau in the search: on parts of the training networks, mean over zoos and cuts; it chose the recipe, which "
            "flatters the chosen one. Others: on the validation networks, which chose nothing but epochs. Tau of one "
            "half of the networks at the epoch that the other half selects, and the other way round. No test network "
            f"was read. {over(seeds).capitalize()}.",
        ),
    )


def _budget(found: Sequence[Tuned], config: TuneConfig) -> Table:
    lines = []
    for tuned in found:
        ended = sum(attempt.score is not None for attempt in tuned.tried)
        seconds = sum(attempt.cpu_seconds for attempt in tuned.tried)
        number = tuned.tried.index(tuned.chosen) + 1
        lines.append((
            _label(tuned), str(len(tuned.tried)), str(ended), str(len(tuned.tried) - ended), str(number),
            f"{seconds:.0f}",
        ))  # fmt: skip
    return Table(
        "What the search took",
        ("model", "recipes tried", "to the end", "given up", "chosen", "CPU s"),
        tuple(lines),
        notes=(
            f"A recipe is judged on {config.cuts} of {config.folds} folds of every zoo, {config.epochs[0]} to "
            f"{config.epochs[1]} epochs each; it is given up where it is behind the median. chosen: its number. CPU s: "
            "of the process, for all recipes.",
        ),
    )


# -- figure -----------------------------------------------------------------------------------------------------------


def draw_search(found: Sequence[Tuned], weights: dict[str, dict[str, float]]) -> Figure:
    """A row for every model: the score of every recipe in the order of the search, and what settings matter."""
    figure, axes = panels(len(found), 2, (10.0, 2.9 * len(found) + 0.3))
    for i, tuned in enumerate(found):
        _draw_attempts(axes[2 * i], tuned)
        if weights[tuned.model]:
            _draw_importances(axes[2 * i + 1], weights[tuned.model])
    return figure


def _draw_attempts(ax: Axes, tuned: Tuned) -> None:
    points = [(i, a.score) for i, a in enumerate(tuned.tried, start=1) if a.score is not None]
    lost = [(i, a.curve[-1][1]) for i, a in enumerate(tuned.tried, start=1) if a.score is None]
    numbers, taus = zip(*points, strict=True)
    ax.step(numbers, list(accumulate(taus, max)), where="post", color=PALETTE[3], label="best so far")
    ax.plot(numbers, taus, "o", color=PALETTE[3], markersize=4, label="to the end")
    if lost:
        ax.plot(*zip(*lost, strict=True), "x", color=PALETTE[7], markersize=5, label="given up: best epoch's tau")
    ax.axhline(taus[0], color=PALETTE[4], linewidth=0.9, linestyle=":", label="without a recipe")
    low = min(*taus, taus[0])
    ax.set_ylim(bottom=low - 0.2 * (max(taus) - low) - 0.005)  # what was given up early may lie far below
    ax.set(xlabel="recipe", ylabel="tau in the search")
    ax.set_title(_label(tuned), fontsize=10)
    ax.legend(fontsize=7, frameon=False)


def _draw_importances(ax: Axes, weights: dict[str, float]) -> None:
    names: list[Any] = list(reversed(weights))
    ax.barh([name.replace("_", " ") for name in names], [weights[name] for name in names], color=PALETTE[2])
    ax.set(xlabel="share of the variance of tau (fANOVA)", xlim=(0, 1))
    ax.grid(visible=False, axis="y")


# -- the experiment ---------------------------------------------------------------------------------------------------


def _check(config: TuneConfig) -> None:
    require_task(config.models, "generalization", "ablation")


STUDY = Study(tune, lambda found, config, store: tune_report(found, config), _check)
"""The command line. Recipes are in the folder as soon as they are found."""
