"""A search for how to train a model, judged on parts of the training networks.

**Nested validation.** The training networks of every zoo are cut into folds (`cut`). A recipe is trained on the other
folds and judged on one, in one or several cuts and on all zoos; its score is the mean, so that a model gets one recipe
for all of them. The best of many scores is partly luck. So that recipe and the training that the model is registered
with are then done on all training networks, with several seeds: the one that is ahead on the zoos' validation networks
becomes the model's recipe. Test networks are dropped before anything begins.

**Honest scores.** The epoch that a training keeps is selected on the networks that it is judged on, which flatters
recipes of many epochs or noisy ones. So the score has two halves: tau of one half of these networks at the epoch that
the other half selects, and the other way round (`crossed`).

**The search** is optuna's: a tree-structured Parzen estimator proposes, `PercentilePruner` gives up a recipe whose best
mean so far is below the best third of those that ended, at the same place of their trainings, and a journal for each
model keeps them all. On a second zoo a recipe still has the mean of the first, if that was higher, so that most are
given up on the first. A proposal depends on the seed, on its number and on the recipes before it that ended or were
given up, and on nothing else: a search that was cut off continues with the recipe it was at, from that recipe's first
epoch, and is then the same as one that was not. Only a limit in seconds makes it depend on the machine.
"""

from __future__ import annotations

import itertools
import statistics
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import optuna
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.trial import FrozenTrial, TrialState
from torch import Tensor

from nfn_monomial.benchmarks.data.networks import Corpus, accuracies
from nfn_monomial.benchmarks.data.seeds import derive_seed
from nfn_monomial.benchmarks.experiments.predict import PredictConfig
from nfn_monomial.benchmarks.experiments.tune import TuneConfig
from nfn_monomial.benchmarks.models.catalogue import require_task, training_of
from nfn_monomial.benchmarks.report.tables import Estimate, over, record_of
from nfn_monomial.benchmarks.settings.register import News, Study
from nfn_monomial.benchmarks.settings.training import TrainConfig
from nfn_monomial.benchmarks.train.devices import threads
from nfn_monomial.benchmarks.train.loop import Epoch, Metrics
from nfn_monomial.benchmarks.train.recipes import OPTIONS, Recipe, read_recipes, write_recipes
from nfn_monomial.benchmarks.train.runs import Run, RunSettings, RunStore
from nfn_monomial.benchmarks.train.sweep import Job, Test, Trial, sweep, train
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.tools.predictors.models import build_model, model_class, model_options
from nfn_monomial.tools.report import PALETTE, Report, Table, panels
from nfn_monomial.tools.store import digest_of

from .predict import plan, selected

__all__ = ["STUDY", "VERSION", "Tuned", "attempts", "check", "crossed", "cut", "search", "tune", "tune_report"]

VERSION = 3  # raise it when results change, or finished runs of before are taken for new ones
COMPUTED_BY = ("studies/predict.py",)
"""Modules that the results depend on, besides this one and training; a test names VERSION when they change."""
RECIPES = "recipe.json"
HALVES = ("first", "second")
HOW = ("as registered", "tuned")
STEPS = 10  # places in a training at which recipes are compared
BEST = 100 / 3  # percent of the recipes at a place, of which one has to be to go on
BLIND = 3  # of these, at the start of a recipe's first training, none is given up
SPANS = ("learning_rate", "weight_decay", "epochs")
CHOICES = ("batch_size", "schedule", "average_epochs", "loss")
FIXED = ("clip_norm", "validate_every", "warmup_steps", "patience")
PLAIN = {"learning_rate": 3e-3, "epochs": 80, "schedule": "one-cycle"}
"""Settings that have worked elsewhere: tried second, in place of those of the first recipe."""


@dataclass(frozen=True)
class Tuned:
    """The search for a model: all recipes that were tried, and the best of them beside the training as registered.

    Attributes:
        model: registered name.
        study: has all recipes that were tried.
        recipes: the training as registered, and the best of the search.
        runs: of each of the two: every seed and zoo.
    """

    model: str
    study: optuna.Study
    recipes: Mapping[str, Recipe]
    runs: Mapping[str, list[Run]]

    @property
    def taken(self) -> str:
        """The one of the two that is ahead on the validation networks; that as registered, where they are equal."""
        return max(HOW, key=lambda how: _confirmed(self.runs[how])["mean"].mean)

    @property
    def recipe(self) -> Recipe:
        """The recipe of the model."""
        return self.recipes[self.taken]


def check(config: TuneConfig, corpora: Mapping[str, Corpus]) -> dict[str, Corpus]:
    """Returns the networks of the search, without test networks; raises errors of the configuration.

    Raises:
        ValueError: if there is no such model, it cannot read the networks, or they are too few or too equal.
    """
    require_task(config.models, "generalization", "ablation")
    closed = {name: replace(corpus, test=()) for name, corpus in corpora.items()}
    for corpus in closed.values():
        for model in config.models:
            build_model(model, corpus.info, seed=0)
        if sum(map(len, corpus.train)) < 2 * config.folds:
            raise InvalidValueError(f"{sum(map(len, corpus.train))} networks cannot be cut into {config.folds} folds")
        for judges in (corpus, *(cut(corpus, config.folds, i, config.seeds[0]) for i in range(config.cuts))):
            accuracy = accuracies(judges.val).tolist()
            if any(len(half) < 3 or len(set(half)) < 2 for half in (accuracy[::2], accuracy[1::2])):
                raise InvalidValueError(
                    f"{len(accuracy)} {corpus.activation} networks to judge a recipe on, too few that differ in "
                    "accuracy: use a larger zoo, or fewer folds"
                )
    return closed


def tune(
    corpora: Mapping[str, Corpus],
    config: TuneConfig,
    store: RunStore,
    on_news: Callable[[News], None] = lambda news: None,
) -> list[Tuned]:
    """Searches and compares, model by model, all that is missing in the store; writes each recipe when it is chosen.

    Args:
        corpora: name -> networks.
        config: see `TuneConfig`.
        store: where attempts, runs and recipes are kept.
        on_news: told how it goes.

    Raises:
        ValueError: as `check`, and if the journal is damaged.
    """
    corpora = check(config, corpora)
    tuned: list[Tuned] = []
    others = read_recipes(store.folder / RECIPES) if (store.folder / RECIPES).exists() else {}  # of other calls
    for model in config.models:
        study = search(model, corpora, config, store.folder, on_news)
        found = recipe_of(study.best_params, config.training)
        plain, better = (_jobs(model, corpora, config, way, config.seeds) for way in (None, found))
        runs = sweep([*plain, *better], store, on_news)
        recipes = dict(zip(HOW, (_registered(model, config), found), strict=True))
        by_way = dict(zip(HOW, (runs[: len(plain)], runs[len(plain) :]), strict=True))
        tuned.append(Tuned(model, study, recipes, by_way))
        write_recipes(store.folder / RECIPES, others | {one.model: one.recipe for one in tuned})
    return tuned


# -- judging a recipe -------------------------------------------------------------------------------------------------


def cut(corpus: Corpus, folds: int, number: int, seed: int) -> Corpus:
    """The training networks alone, those of one fold for validation; no others are in it.

    Args:
        corpus: of which only ``train`` is looked at.
        folds: how many.
        number: of the fold.
        seed: of the cuts.
    """
    count = sum(map(len, corpus.train))
    order = torch.randperm(count, generator=torch.Generator().manual_seed(derive_seed(seed, "folds")))
    fold = torch.empty(count, dtype=torch.long)
    fold[order] = torch.arange(count) % folds
    train, val = (selected(corpus.train, mask) for mask in (fold != number, fold == number))
    return replace(corpus, train=train, val=val, test=())


def halved(scores: Metrics, logits: Tensor, accuracy: Tensor) -> dict[str, float]:
    """The scores, and tau of every second network, from the first and from the second on."""
    taus = {name: scores(logits[i::2], accuracy[i::2])["tau"] for i, name in enumerate(HALVES)}
    return {**scores(logits, accuracy), **taus}


def crossed(validations: Iterable[Mapping[str, float]]) -> float:
    """Returns the mean tau of one half at the epoch that the other half selects, both ways.

    Args:
        validations: metrics of every epoch that was validated, of which `halved` are.
    """
    epochs = list(validations)
    pairs = itertools.permutations(HALVES)
    return statistics.fmean(max(epochs, key=lambda metrics: metrics[one])[other] for one, other in pairs)


def _jobs(
    model: str, corpora: Mapping[str, Corpus], config: TuneConfig, recipe: Recipe | None, seeds: Sequence[int]
) -> list[Job]:
    """A training on every zoo for every seed, by the recipe or without one, as `predict-generalization` trains."""
    asked = PredictConfig(
        models=(model,), train_sets=("original",), seeds=tuple(seeds), widen=0, training=config.training
    )
    return [
        Job(replace(job.settings, experiment="tune", version=VERSION), partial(_prepared, job.prepare))
        for job in plan(asked, corpora, {model: recipe} if recipe else {})
    ]


def _prepared(prepare: Callable[[RunSettings], Trial], settings: RunSettings) -> Trial:
    trial = prepare(settings)
    return replace(
        trial, metrics=partial(halved, trial.metrics), tests=lambda: [Test("validation", trial.val)],
        predictor={"unusable": "it was trained to judge a recipe; train one by predict-generalization"},
    )  # fmt: skip


# -- the search --------------------------------------------------------------------------------------------------------


def search(
    model: str, corpora: Mapping[str, Corpus], config: TuneConfig, folder: Path, on_news: Callable[[News], None]
) -> optuna.Study:
    """Tries recipes for a model until there are as many as were asked for, or the time is over; returns all.

    Args:
        model: registered name.
        corpora: by name; only their training networks are looked at.
        config: of the search.
        folder: of the results, which gets a journal for each model, so that several calls may search in one folder.
        on_news: told how it goes.

    Raises:
        ValueError: if the journal is damaged.
    """
    seed = config.seeds[0]
    cuts = [{name: cut(c, config.folds, i, seed) for name, c in corpora.items()} for i in range(config.cuts)]

    def jobs(recipe: Recipe | None) -> list[Job]:
        return [job for part in cuts for job in _jobs(model, part, config, recipe, (seed,))]

    def score(trial: optuna.Trial) -> float:
        number = len(attempts(study))

        def tell(done: float) -> None:
            on_news(News(f"{model}, recipe {number + 1}", number + done, config.trials))

        return _score(trial, jobs(recipe_of(_suggested(trial, config, model), config.training)), tell)

    others = ("models", "activations", "trials", "seconds", "seeds", "training")  # they are in the jobs or may change
    ranges = {name: value for name, value in asdict(config).items() if name not in others}
    key = digest_of([VERSION, ranges, [job.settings.key for job in jobs(None)]])[:10]
    study = _opened(folder / f"search-{model}.journal", f"{model}-{key}", config.startup)
    first = _first(config, model)
    if len(attempts(study)) >= config.trials or _spent(study, config):
        on_news(_news(model, study, config, " (kept)"))
    while len(attempts(study)) < config.trials and not _spent(study, config):
        number = len(attempts(study))
        with _quiet(), threads(config.training.threads):
            study.sampler = optuna.samplers.TPESampler(
                n_startup_trials=config.startup, multivariate=True, seed=derive_seed(seed, "proposal", number) % 2**32
            )
            if number < len(first):
                study.sampler = optuna.samplers.PartialFixedSampler(first[number], study.sampler)
            study.optimize(score, n_trials=1)
        on_news(_news(model, study, config, ""))
    return study


def attempts(study: optuna.Study) -> list[FrozenTrial]:
    """Returns all recipes so far, finished or given up, without those that were cut off."""
    return study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED))


def _score(trial: optuna.Trial, jobs: Sequence[Job], tell: Callable[[float], None]) -> float:
    """The honest score of a recipe over these trainings, unless it is given up; told is the share that is done."""
    tops: list[float] = []  # the best tau of each training so far, by which recipes are compared
    scores = []

    def follow(job: Job, epoch: Epoch) -> None:
        number, epochs = len(tops) - 1, job.settings.training.epochs
        tell((number + epoch.number / epochs) / len(jobs))
        if epoch.metrics:
            tops[number] = max(tops[number], epoch.metrics["tau"])
            step = STEPS * number + (STEPS * epoch.number - 1) // epochs
            if step not in reported:
                reported.add(step)
                trial.report(statistics.fmean(tops), step)
                if trial.should_prune():
                    raise optuna.TrialPruned

    reported: set[int] = set()
    for job in jobs:
        tops.append(-1.0)
        fitted = train(job.prepare(job.settings), on_epoch=partial(follow, job))
        scores.append(crossed(epoch.metrics for epoch in fitted.history if epoch.metrics))
    return statistics.fmean(scores)


def _choices(model: str) -> tuple[str, ...]:
    return (*CHOICES, *(name for name in OPTIONS if name in model_options(model)))


def _suggested(trial: optuna.Trial, config: TuneConfig, model: str) -> dict[str, Any]:
    """Draws a value for every setting that is searched for a model."""
    values: dict[str, Any] = {
        "learning_rate": trial.suggest_float("learning_rate", *config.learning_rate, log=True),
        "weight_decay": trial.suggest_float("weight_decay", *config.weight_decay, log=True),
        "epochs": trial.suggest_int("epochs", *config.epochs, log=True),
    }
    return values | {name: trial.suggest_categorical(name, getattr(config, name)) for name in _choices(model)}


def _first(config: TuneConfig, model: str) -> list[dict[str, Any]]:
    """Returns the recipes that are tried first: the model's training without one, and `PLAIN`, within the ranges."""
    usual = training_of(model, config.training, "bce")
    known = {**vars(usual["training"]), **model_options(model), "loss": usual["loss"]}

    def brought(values: Mapping[str, Any]) -> dict[str, Any]:
        spans = {name: getattr(config, name) for name in SPANS}
        allowed = {name: getattr(config, name) for name in _choices(model)}
        return {name: min(max(values[name], low), high) for name, (low, high) in spans.items()} | {
            name: values[name] if values[name] in some else some[0] for name, some in allowed.items()
        }

    return [brought(known), brought(known | PLAIN)]


def recipe_of(params: Mapping[str, Any], training: TrainConfig) -> Recipe:
    """The recipe with these values; clipping, validation, warm-up and patience are those of ``training``."""
    fixed = {name: getattr(training, name) for name in FIXED}
    options = {name: params[name] for name in OPTIONS if name in params}
    searched = {name: value for name, value in params.items() if name != "loss" and name not in options}
    return Recipe(params["loss"], {**searched, **fixed}, options)


def _registered(model: str, config: TuneConfig) -> Recipe:
    """The training of a model without a recipe, as one: that of the search, with what the model asks for."""
    usual = training_of(model, config.training, "bce")
    names = (*SPANS, *(name for name in CHOICES if name != "loss"), *FIXED)
    return Recipe(usual["loss"], {name: getattr(usual["training"], name) for name in names})


@contextmanager
def _quiet() -> Iterator[None]:
    """A block in which optuna prints neither messages nor warnings."""
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(level)


def _opened(path: Path, name: str, startup: int) -> optuna.Study:
    path.parent.mkdir(parents=True, exist_ok=True)
    pruner = optuna.pruners.PercentilePruner(BEST, n_startup_trials=startup, n_warmup_steps=BLIND)
    if path.exists():  # a line that a full disk has cut off would spoil the next one
        with path.open("rb+") as journal:
            journal.truncate(journal.read().rfind(b"\n") + 1)
    with _quiet():
        try:
            storage = JournalStorage(JournalFileBackend(str(path), JournalFileOpenLock(str(path), grace_period=3)))
            return optuna.create_study(
                storage=storage, study_name=name, direction="maximize", pruner=pruner, load_if_exists=True
            )
        except (ValueError, TypeError, KeyError, IndexError) as error:
            raise InvalidValueError(f"{path} is damaged ({error}): remove it, and the search starts again") from None


def _spent(study: optuna.Study, config: TuneConfig) -> bool:
    tried = attempts(study)
    return config.seconds is not None and bool(tried) and sum(map(_seconds, tried)) >= config.seconds


def _seconds(trial: FrozenTrial) -> float:
    return trial.duration.total_seconds() if trial.duration else 0.0


def _news(model: str, study: optuna.Study, config: TuneConfig, how: str) -> News:
    tried = attempts(study)
    last = tried[-1]
    result = f"tau {last.value:.3f}" if last.state == TrialState.COMPLETE else "given up"
    values = (f"{name} {_shown(value)}" for name, value in last.params.items())
    line = f"{len(tried)}/{config.trials} {model}{how}: {result}, best {study.best_value:.3f}, {', '.join(values)}"
    return News(model, len(tried), config.trials, line)


def _shown(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


# -- tables ------------------------------------------------------------------------------------------------------------


def tune_report(tuned: Sequence[Tuned], config: TuneConfig) -> Report:
    """Tables of recipes and budget, ``search.png``, and all attempts as numbers."""
    results = {
        "models": {
            one.model: {
                "recipe": asdict(one.recipe),
                "taken": one.taken,
                "best": _number(one),
                "confirmed": {
                    how: {name: asdict(mean) for name, mean in _confirmed(runs).items()}
                    for how, runs in one.runs.items()
                },
                "tried": [
                    {
                        "params": trial.params,
                        "score": trial.value if trial.state == TrialState.COMPLETE else None,  # it was given up
                        "curve": list(trial.intermediate_values.items()),
                        "seconds": _seconds(trial),
                    }
                    for trial in attempts(one.study)
                ],
            }
            for one in tuned
        },
        **record_of([run for one in tuned for runs in one.runs.values() for run in runs]),
    }
    tables = [_recipes(tuned), _confirmation(tuned), _budget(tuned, config)]
    return Report(tables, results, {"search.png": draw_search(tuned)})


def _number(tuned: Tuned) -> int:
    """Returns the number of the best recipe of the search, from 1."""
    return [trial.number for trial in attempts(tuned.study)].index(tuned.study.best_trial.number) + 1


def _ended(study: optuna.Study) -> dict[int, float]:
    """Returns number, from 1, and score of every finished recipe."""
    tried = enumerate(attempts(study), start=1)
    return {i: trial.value for i, trial in tried if trial.state == TrialState.COMPLETE and trial.value is not None}


def _confirmed(runs: Sequence[Run]) -> dict[str, Estimate]:
    """Returns the score over seeds of every zoo; ``mean``: of the mean over zoos."""
    scores: dict[str, list[float]] = {}
    for run in runs:
        validations = (epoch["metrics"] for epoch in run.history if epoch["metrics"])
        scores.setdefault(run.settings.subject, []).append(crossed(validations))
    return {name: Estimate.of(taus) for name, taus in scores.items()} | {
        "mean": Estimate.of(map(statistics.fmean, zip(*scores.values(), strict=True)))
    }


def _recipes(tuned: Sequence[Tuned]) -> Table:
    names = dict.fromkeys(name for one in tuned for name in one.study.best_params)
    lines = [
        (model_class(one.model).label, how, *(_shown(params.get(name, "-")) for name in names))
        for one in tuned
        for how, params in (("tried first", attempts(one.study)[0].params), ("best", one.study.best_params))
    ]
    return Table(
        "Recipes",
        ("model", "recipe", *(name.replace("_", " ") for name in names)),
        tuple(lines),
        text_columns=2,
        names=(0, 1),
        notes=(
            "tried first: the model's training as registered, brought into the searched ranges. best: of the search.",
        ),
    )


def _confirmation(tuned: Sequence[Tuned]) -> Table:
    lines = []
    for one in tuned:
        inner = (attempts(one.study)[0].value, one.study.best_value)
        for score, (how, runs) in zip(inner, one.runs.items(), strict=True):
            taus = [mean.show() for mean in _confirmed(runs).values()]
            seeds = str(len({run.settings.seed for run in runs}))
            taken = "yes" if how == one.taken else "no"
            lines.append((model_class(one.model).label, how, taken, f"{score:.3f}", *taus, seeds))
    zoos = [name for name in _confirmed(tuned[0].runs["tuned"]) if name != "mean"]
    return Table(
        "Kendall's tau of the best recipes, and of the training as registered",
        ("model", "training", "taken", "tau in the search", *(f"tau {name}" for name in zoos), "tau mean", "seeds"),
        tuple(lines),
        text_columns=3,
        names=(0, 1),
        notes=(
            "tau in the search: on parts of the training networks, mean over zoos and cuts; as registered, of the "
            "recipe that was tried first; tuned, the best of many, which flatters it. Others: on the validation "
            "networks; the training with the larger mean is taken. Tau of one half of the networks at the epoch that "
            "the other half selects, and the other way round. No test network "
            f"was read. {over([int(lines[0][-1])]).capitalize()}.",
        ),
    )


def _budget(tuned: Sequence[Tuned], config: TuneConfig) -> Table:
    lines = []
    for one in tuned:
        tried, ended = attempts(one.study), len(_ended(one.study))
        numbers = (len(tried), ended, len(tried) - ended, _number(one), round(sum(map(_seconds, tried))))
        lines.append((model_class(one.model).label, *map(str, numbers)))
    return Table(
        "Cost of the search",
        ("model", "recipes tried", "to the end", "given up", "best", "seconds"),
        tuple(lines),
        notes=(
            f"A recipe is judged on {config.cuts} of {config.folds} folds of every zoo, {config.epochs[0]} to "
            f"{config.epochs[1]} epochs each; it is given up where its best mean so far is below the best third of "
            "those that ended. best: its number. seconds: for all recipes.",
        ),
    )


def draw_search(tuned: Sequence[Tuned]) -> Figure:
    """Draws for every model the scores of recipes in the order of the search."""
    figure, axes = panels(len(tuned), 1, (6.0, 2.9 * len(tuned) + 0.3))
    for ax, one in zip(axes, tuned, strict=True):
        numbers, taus = zip(*_ended(one.study).items(), strict=True)
        tried = enumerate(attempts(one.study), start=1)
        lost = [(i, trial.intermediate_values[trial.last_step or 0]) for i, trial in tried if i not in numbers]
        ax.step(numbers, list(accumulate(taus, max)), where="post", color=PALETTE[3], label="best so far")
        ax.plot(numbers, taus, "o", color=PALETTE[3], markersize=4, label="to the end")
        if lost:
            ax.plot(*zip(*lost, strict=True), "x", color=PALETTE[7], markersize=5, label="given up: best epoch's tau")
        ax.axhline(taus[0], color=PALETTE[4], linewidth=0.9, linestyle=":", label="as registered")
        low = min(taus)
        ax.set_ylim(bottom=low - 0.2 * (max(taus) - low) - 0.005)  # recipes that were given up early may lie far below
        ax.set(xlabel="recipe", ylabel="tau in the search")
        ax.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        ax.set_title(model_class(one.model).label, fontsize=10)
        ax.legend(fontsize=7, frameon=False)
    return figure


STUDY = Study(
    tune,
    lambda tuned, config, store: tune_report(tuned, config),
    lambda config: require_task(config.models, "generalization", "ablation"),
)
