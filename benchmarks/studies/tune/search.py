"""The search for one model's recipe: optuna's loop and storage, and what a recipe is judged by."""

from __future__ import annotations

import itertools
import shutil
import statistics
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import optuna
import torch
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.trial import FrozenTrial, TrialState
from torch import Tensor

from nfn_monomial.benchmarks.data.batches import Data, prepared
from nfn_monomial.benchmarks.data.networks import Corpus, Parts, accuracies, fingerprint, groups_of
from nfn_monomial.benchmarks.data.seeds import derive_seed
from nfn_monomial.benchmarks.experiments.tune import TuneConfig
from nfn_monomial.benchmarks.models.catalogue import training_of
from nfn_monomial.benchmarks.settings.register import News, Said
from nfn_monomial.benchmarks.settings.training import RUNTIME, Head, TrainConfig
from nfn_monomial.benchmarks.studies.predict import learned, objective, scores
from nfn_monomial.benchmarks.train.devices import make_fabric, threads
from nfn_monomial.benchmarks.train.loop import Epoch, fit
from nfn_monomial.benchmarks.train.recipes import OPTIONS, Recipe
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.tools.predictors.models import build_model, model_class, model_options
from nfn_monomial.tools.predictors.quantiles import Quantiles
from nfn_monomial.tools.store import code_of, digest_of

__all__ = [
    "JOURNAL",
    "VERSION",
    "Search",
    "best",
    "crossed",
    "cut",
    "halved",
    "importances",
    "recipe_of",
    "require_differences",
]

VERSION = 1  # of what is computed here: raised by whoever changes results, so that these are made again
JOURNAL = "search.journal"
HALVES = ("first", "second")
STEPS = 10  # places in a training at which recipes are compared
BLIND = 3  # of these, at the start of a recipe's first training, none is given up
LEAST = 10  # finished recipes from which importances are taken
CHOICES = ("batch_size", "schedule", "average_epochs", "loss")
PLAIN = {"learning_rate": 3e-3, "epochs": 80, "schedule": "one-cycle"}
"""Tried second, on top of what is tried first: what served in other hands."""


# -- what a recipe is judged by ----------------------------------------------------------------------------------------


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
    train, val = (_chosen(corpus.train, mask) for mask in (fold != number, fold == number))
    return replace(corpus, train=train, val=val, test=())


def _chosen(parts: Parts, mask: Tensor) -> Parts:
    own = torch.split(mask, [len(part) for part in parts])
    pairs = zip(parts, own, strict=True)
    found = [(part, chosen.nonzero().flatten()) for part, chosen in pairs]
    return tuple(replace(part, networks=part.networks.subset(index)) for part, index in found if len(index))


def halved(logits: Tensor, accuracy: Tensor, quantiles: Quantiles | None = None) -> dict[str, float]:
    """`scores`, and tau of every second network, from the first and from the second on."""
    taus = {name: scores(logits[i :: len(HALVES)], accuracy[i :: len(HALVES)])["tau"] for i, name in enumerate(HALVES)}
    return {**scores(logits, accuracy, quantiles), **taus}


def crossed(validations: Iterable[Mapping[str, float]]) -> float:
    """Tau of one half at the epoch that the other half selects, and the other way round: the mean.

    Args:
        validations: metrics of every epoch that was validated, of which `halved` are.
    """
    found = list(validations)
    pairs = itertools.permutations(HALVES)
    return statistics.fmean(max(found, key=lambda metrics: metrics[one])[other] for one, other in pairs)


def require_differences(corpus: Corpus) -> None:
    """Check that tau can be told of both halves of the validation networks.

    Raises:
        ValueError: if a half has fewer than three networks, or all its accuracies are equal.
    """
    accuracy = accuracies(corpus.val)
    halves = [accuracy[i :: len(HALVES)].tolist() for i in range(len(HALVES))]
    if any(len(half) < 3 or len(set(half)) < 2 for half in halves):
        raise InvalidValueError(
            f"{len(accuracy)} {corpus.activation} networks to judge a recipe on, too few that differ in accuracy: use "
            "a larger zoo, or fewer folds"
        )


# -- what is searched --------------------------------------------------------------------------------------------------


def _choices(model: str) -> tuple[str, ...]:
    return (*CHOICES, *(name for name in OPTIONS if name in model_options(model)))


def suggested(trial: optuna.Trial, config: TuneConfig, model: str) -> dict[str, Any]:
    """A setting for everything that is searched for a model."""
    found: dict[str, Any] = {
        "learning_rate": trial.suggest_float("learning_rate", *config.learning_rate, log=True),
        "weight_decay": trial.suggest_float("weight_decay", *config.weight_decay, log=True),
        "epochs": trial.suggest_int("epochs", *config.epochs, log=True),
    }
    return found | {name: trial.suggest_categorical(name, getattr(config, name)) for name in _choices(model)}


def start_of(config: TuneConfig, model: str) -> list[dict[str, Any]]:
    """What is tried first: how the model is trained without a recipe, and `PLAIN`, brought into what is searched."""
    own = training_of(model, config.training, "bce")
    first = {**vars(own["training"]), **vars(Head()), "loss": own["loss"]}

    def brought(known: Mapping[str, Any]) -> dict[str, Any]:
        found = {}
        for name in ("learning_rate", "weight_decay", "epochs"):
            low, high = getattr(config, name)
            found[name] = min(max(known[name], low), high)
        for name in _choices(model):
            allowed = getattr(config, name)
            found[name] = known[name] if known[name] in allowed else allowed[0]
        return found

    return [brought(first), brought(first | PLAIN)]


def recipe_of(params: Mapping[str, Any], training: TrainConfig) -> Recipe:
    """The recipe with these values; ``training`` has what is not searched, of which clipping and validation go on."""
    fixed = {name: getattr(training, name) for name in ("clip_norm", "validate_every", "warmup_steps")}
    options = {name: params[name] for name in OPTIONS if name in params}
    searched = {name: value for name, value in params.items() if name != "loss" and name not in options}
    return Recipe(params["loss"], {**searched, **fixed}, options)


def best(tried: Sequence[FrozenTrial]) -> FrozenTrial:
    """Of those that were not given up, the one with the highest score, the first of equal ones."""
    return max((trial for trial in tried if trial.state == TrialState.COMPLETE), key=lambda trial: trial.value or 0.0)


def importances(study: optuna.Study, seed: int) -> dict[str, float]:
    """The share of the scores' variance that each setting explains alone or with others (fANOVA), largest first.

    Empty for few recipes, of which nothing can be said, and where all scores are equal.
    """
    values = [trial.value for trial in study.get_trials(states=(TrialState.COMPLETE,))]
    if len(values) < LEAST or len(set(values)) == 1:
        return {}
    evaluator = optuna.importance.FanovaImportanceEvaluator(seed=seed)
    return optuna.importance.get_param_importances(study, evaluator=evaluator)


# -- the search --------------------------------------------------------------------------------------------------------


@contextmanager
def _quiet() -> Iterator[None]:
    """A block in which optuna says neither what it does nor that parts of it are new."""
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(level)


class Search:
    """The search for one model's recipe, in optuna's journal in the results folder.

    Args:
        model: registered name.
        corpora: by name; only their training networks are looked at.
        config: of the search.
        folder: of the results, which gets `JOURNAL`, and ``partial/`` while a recipe is tried.

    Raises:
        ValueError: if the journal is damaged.
    """

    def __init__(self, model: str, corpora: Mapping[str, Corpus], config: TuneConfig, folder: Path) -> None:
        self.model, self.corpora, self.config = model, corpora, config
        self.start = start_of(config, model)
        self.name = f"{model}-{digest_of(self._key())[:10]}"
        self.partial = folder / "partial" / self.name
        self.study = self._opened(folder / JOURNAL)
        self._data = cache(self._prepared)

    def _key(self) -> list[Any]:
        """All that determines what an attempt comes to."""
        config = self.config
        training = {name: value for name, value in asdict(config.training).items() if name not in RUNTIME}
        ranges = {name: getattr(config, name) for name in ("learning_rate", "weight_decay", "epochs", *CHOICES)}
        heads = {name: getattr(config, name) for name in OPTIONS}
        cuts = [cut(corpus, config.folds, i, config.seeds[0]) for corpus in self.corpora.values() for i in self._cuts]
        return [
            training, self.start, ranges, heads, config.startup, config.folds, config.cuts, config.seeds[0],
            list(self.corpora), [fingerprint(part) for part in cuts], code_of(model_class(self.model)),
            VERSION,
        ]  # fmt: skip

    def _opened(self, path: Path) -> optuna.Study:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _quiet():
            try:
                backend = JournalFileBackend(str(path), JournalFileOpenLock(str(path), grace_period=3))
                return optuna.create_study(
                    storage=JournalStorage(backend), study_name=self.name, direction="maximize", load_if_exists=True,
                    pruner=optuna.pruners.MedianPruner(n_startup_trials=self.config.startup, n_warmup_steps=BLIND),
                )  # fmt: skip
            except (ValueError, TypeError, KeyError, IndexError) as error:
                raise InvalidValueError(f"{path} is damaged ({error}): remove it, and the search begins anew") from None

    @property
    def _cuts(self) -> range:
        return range(self.config.cuts)

    @property
    def tried(self) -> list[FrozenTrial]:
        """All recipes so far, to the end or given up, but none that was cut off."""
        return self.study.get_trials(states=(TrialState.COMPLETE, TrialState.PRUNED))

    def run(self, on_news: Callable[[News], None]) -> list[FrozenTrial]:
        """Try recipes until there are as many as were asked for, or the time is over; returns all.

        Proposals are seeded by their number, so that a search that was cut off goes on as if nothing had been.
        """
        tried = self.tried
        if len(tried) >= self.config.trials or self._spent(tried):
            on_news(self._news(tried, " (kept)"))
        while len(tried) < self.config.trials and not self._spent(tried):
            number = len(tried)
            with _quiet(), threads(self.config.training.threads):
                seed = derive_seed(self.config.seeds[0], "proposal", number) % 2**32
                sampler: Any = optuna.samplers.TPESampler(
                    n_startup_trials=self.config.startup, multivariate=True, seed=seed
                )
                if number < len(self.start):
                    sampler = optuna.samplers.PartialFixedSampler(self.start[number], sampler)
                self.study.sampler = sampler
                self.study.optimize(partial(self._try, number, on_news), n_trials=1)
            shutil.rmtree(self.partial, ignore_errors=True)
            tried = self.tried
            on_news(self._news(tried, ""))
        return tried

    def _spent(self, tried: Sequence[FrozenTrial]) -> bool:
        limit = self.config.seconds
        return limit is not None and bool(tried) and sum(t.user_attrs["cpu_seconds"] for t in tried) >= limit

    def _news(self, tried: Sequence[FrozenTrial], how: str) -> Said:
        last, total = tried[-1], self.config.trials
        found = f"tau {last.value:.3f}" if last.state == TrialState.COMPLETE else "given up"
        values = (f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}"
                  for name, value in last.params.items())  # fmt: skip
        so_far = f"{found}, best {best(tried).value:.3f}"
        line = f"{len(tried)}/{total} {self.model}{how}: {so_far}, {', '.join(values)}"
        return Said(self.model, len(tried), total, line)

    def _prepared(self, name: str, number: int) -> tuple[Any, Data, Data]:
        """What inputs are fitted to, training and validation data: the same for all recipes."""
        corpus = cut(self.corpora[name], self.config.folds, number, self.config.seeds[0])
        model = build_model(self.model, corpus.info, seed=0)
        looked = model.prepare_groups(groups_of(corpus.train))
        return looked, prepared(corpus.train, model.prepare_groups), prepared(corpus.val, model.prepare_groups)

    def _try(self, number: int, on_news: Callable[[News], None], trial: optuna.Trial) -> float:
        """One recipe, on every cut of every zoo, unless it falls behind."""
        start, params = time.process_time(), suggested(trial, self.config, self.model)
        try:
            return self._trained(number, on_news, trial, recipe_of(params, self.config.training), digest_of(params))
        finally:
            trial.set_user_attr("cpu_seconds", time.process_time() - start)

    def _trained(
        self, number: int, on_news: Callable[[News], None], trial: optuna.Trial, recipe: Recipe, digest: str
    ) -> float:
        """The honest score of a recipe; checkpoints are named by its digest."""
        config, seed = self.config, self.config.seeds[0]
        how = recipe.apply(config.training)
        fabric = make_fabric(config.training)
        trainings = [(place, name) for place in self._cuts for name in self.corpora]
        finished: list[float] = []
        found: list[float] = []
        seen: set[int] = set()
        for i, (place, name) in enumerate(trainings):
            top = [-1.0]

            def follow(epoch: Epoch, i: int = i, top: list[float] = top) -> None:
                step = STEPS * i + (STEPS * epoch.number - 1) // how["training"].epochs
                done = number + step / STEPS / len(trainings)
                on_news(Said(f"{self.model}, recipe {number + 1}", done, config.trials))
                if not epoch.metrics:
                    return
                top.append(epoch.metrics["tau"])
                if step not in seen:
                    seen.add(step)
                    trial.report(statistics.fmean([*finished, max(top)]), step)
                    if trial.should_prune():
                        raise optuna.TrialPruned

            looked, train, val = self._data(name, place)
            model = build_model(self.model, self.corpora[name].info, seed=derive_seed(seed, "model"), **recipe.options)
            model.fit_inputs(looked)
            quantiles = learned(recipe.loss, train.targets)
            fitted = fit(
                model, train, val, how["training"], loss=objective(recipe.loss, quantiles),
                metrics=partial(halved, quantiles=quantiles), select="tau", seed=seed, fabric=fabric,
                on_epoch=follow, checkpoint=self.partial / f"{name}-{place}-{digest[:10]}",
            )  # fmt: skip
            finished.append(fitted.best.metrics["tau"])
            found.append(crossed(epoch.metrics for epoch in fitted.history if epoch.metrics))
        return statistics.fmean(found)
