"""What was chosen, beside the training without a recipe: both on all training networks; and what is told of it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Any

import optuna
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from optuna.trial import FrozenTrial, TrialState

from nfn_monomial.benchmarks.data.networks import Corpus, fingerprint
from nfn_monomial.benchmarks.experiments.tune import TuneConfig
from nfn_monomial.benchmarks.models.catalogue import require_task, training_of
from nfn_monomial.benchmarks.report.tables import Mean, over, record_of
from nfn_monomial.benchmarks.settings.register import News, Study
from nfn_monomial.benchmarks.studies.predict import Sets, learned, prepare
from nfn_monomial.benchmarks.train.recipes import Recipe, write_recipes
from nfn_monomial.benchmarks.train.runs import Run, RunSettings, RunStore
from nfn_monomial.benchmarks.train.sweep import Job, Test, Trial, sweep
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.tools.predictors.models import build_model, model_class
from nfn_monomial.tools.report import PALETTE, Report, Table, panels
from nfn_monomial.tools.store import code_of

from .search import VERSION, Search, best, crossed, cut, halved, importances, recipe_of, require_differences

__all__ = ["RECIPES", "STUDY", "Tuned", "check", "tune", "tune_report"]

RECIPES = "recipe.json"
HOW = ("as registered", "tuned")


@dataclass(frozen=True)
class Tuned:
    """What was found for a model: all that was tried, the recipe that was chosen, and the runs that confirm it.

    ``runs``: with and without the recipe -> every zoo and seed.
    """

    model: str
    study: optuna.Study
    tried: list[FrozenTrial]
    recipe: Recipe
    runs: Mapping[str, list[Run]]

    @property
    def chosen(self) -> FrozenTrial:
        """The attempt that the recipe is of."""
        return best(self.tried)


def check(config: TuneConfig, corpora: Mapping[str, Corpus]) -> dict[str, Corpus]:
    """The networks that are searched on, without test networks; what cannot be done is found out here.

    Raises:
        ValueError: if there is no such model, it cannot read the networks, or they are too few or too equal.
    """
    require_task(config.models, "generalization", "ablation")
    found = {name: replace(corpus, test=()) for name, corpus in corpora.items()}
    for corpus in found.values():
        for model in config.models:
            build_model(model, corpus.info, seed=0)
        require_differences(corpus)
        if sum(map(len, corpus.train)) < 2 * config.folds:
            raise InvalidValueError(f"{sum(map(len, corpus.train))} networks cannot be cut into {config.folds} folds")
        for number in range(config.cuts):
            require_differences(cut(corpus, config.folds, number, config.seeds[0]))
    return found


def tune(
    corpora: Mapping[str, Corpus],
    config: TuneConfig,
    store: RunStore,
    on_news: Callable[[News], None] = lambda news: None,
) -> list[Tuned]:
    """Search and confirm, model by model; does what the store does not have. Recipes are written as they are found.

    Args:
        corpora: name -> networks.
        config: see `TuneConfig`.
        store: where attempts, runs and recipes are kept.
        on_news: told how it goes.

    Raises:
        ValueError: as `check`.
    """
    corpora = check(config, corpora)
    found: list[Tuned] = []
    for model in config.models:
        search = Search(model, corpora, config, store.folder)
        tried = search.run(on_news)
        recipe = recipe_of(best(tried).params, config.training)
        write_recipes(store.folder / RECIPES, {t.model: t.recipe for t in found} | {model: recipe})
        jobs = {how: _jobs(model, corpora, config, recipe if how == "tuned" else None) for how in HOW}
        runs = iter(sweep([job for some in jobs.values() for job in some], store, on_news))
        found.append(
            Tuned(model, search.study, tried, recipe, {how: [next(runs) for _ in some] for how, some in jobs.items()})
        )
    return found


def _jobs(model: str, corpora: Mapping[str, Corpus], config: TuneConfig, recipe: Recipe | None) -> list[Job]:
    how = recipe.apply(config.training) if recipe else training_of(model, config.training, "bce")
    return [
        Job(
            RunSettings(
                experiment="tune",
                subject=name,
                model=model,
                train_set="original",
                seed=seed,
                options={"scales": (), "augment_scale": None, "widen": 0.0, **(recipe.built() if recipe else {})},
                data=fingerprint(corpus),
                code=code_of(model_class(model)),
                version=VERSION,
                **how,
            ),
            partial(_prepare, Sets(corpus, 0.0)),
        )
        for name, corpus in corpora.items()
        for seed in config.seeds
    ]


def _prepare(sets: Sets, settings: RunSettings) -> Trial:
    trial = prepare(sets, settings)
    quantiles = learned(settings.loss, trial.train.targets)
    return replace(
        trial, metrics=partial(halved, quantiles=quantiles), tests=lambda: [Test("validation", trial.val)],
        predictor={"unusable": "it was trained to confirm a recipe; train one by predict-generalization"},
    )  # fmt: skip


# -- tables ------------------------------------------------------------------------------------------------------------


def tune_report(found: Sequence[Tuned], config: TuneConfig) -> Report:
    """Tables of recipes and budget, ``search.png``, and all attempts as numbers."""
    weights = {tuned.model: importances(tuned.study, config.seeds[0]) for tuned in found}
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
                "tried": [_stated(trial) for trial in tuned.tried],
            }
            for tuned in found
        },
        **record_of([run for tuned in found for runs in tuned.runs.values() for run in runs]),
    }
    tables = [_recipes(found), _confirmation(found), _budget(found, config)]
    return Report(tables, results, {"search.png": draw_search(found, weights)})


def _stated(trial: FrozenTrial) -> dict[str, Any]:
    """A recipe that was tried as JSON has it; without a score, it was given up."""
    return {
        "params": trial.params,
        "score": trial.value if trial.state == TrialState.COMPLETE else None,
        "curve": list(trial.intermediate_values.items()),
        "cpu_seconds": trial.user_attrs["cpu_seconds"],
    }


def _ended(tuned: Tuned) -> list[tuple[int, float]]:
    """Number, from 1, and score of every recipe that was tried to the end."""
    return [(i, t.value or 0.0) for i, t in enumerate(tuned.tried, start=1) if t.state == TrialState.COMPLETE]


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
        inner = {"as registered": tuned.tried[0].value, "tuned": tuned.chosen.value}
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
            f"was read. {over([seeds]).capitalize()}.",
        ),
    )


def _budget(found: Sequence[Tuned], config: TuneConfig) -> Table:
    lines = []
    for tuned in found:
        ended = len(_ended(tuned))
        seconds = sum(trial.user_attrs["cpu_seconds"] for trial in tuned.tried)
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
    numbers, taus = zip(*_ended(tuned), strict=True)
    lost = [
        (i, t.intermediate_values[t.last_step or 0]) for i, t in enumerate(tuned.tried, start=1) if i not in numbers
    ]
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


STUDY = Study(
    lambda corpora, config, store, tell: tune(corpora, config, store, tell),
    lambda found, config, store: tune_report(found, config),
    lambda config: require_task(config.models, "generalization", "ablation"),
)
