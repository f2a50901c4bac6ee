"""What is searched, and by what: optuna's proposals, made from what was tried before and nothing else."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.trial import TrialState

from nfn_monomial.benchmarks.data.seeds import derive_seed
from nfn_monomial.benchmarks.experiments.tune import TuneConfig
from nfn_monomial.benchmarks.settings.training import Head, TrainConfig
from nfn_monomial.benchmarks.train.recipes import OPTIONS, Recipe
from nfn_monomial.tools.predictors.models import model_options

__all__ = ["STEPS", "Attempt", "Space", "importances", "propose", "recipe_of", "space_of", "start_of"]

STEPS = 10  # places in a training at which recipes are compared
BLIND = 3  # of these, at the start of a recipe's first training, none is given up
LEAST = 10  # finished recipes from which importances are taken
PLAIN = {"learning_rate": 3e-3, "epochs": 80, "schedule": "one-cycle"}
"""Tried second, on top of what is tried first: what served in other hands."""


@dataclass(frozen=True)
class Attempt:
    """A recipe that was tried.

    Attributes:
        params: what `space_of` names.
        score: the honest one; None for a recipe that was given up.
        curve: pairs of a place, ``STEPS`` for each training, and the mean over trainings of the best tau so far.
        cpu_seconds: of the process.
    """

    params: Mapping[str, Any]
    score: float | None
    curve: tuple[tuple[int, float], ...]
    cpu_seconds: float


Space = dict[str, BaseDistribution]
"""Name of a setting -> the values that it may have."""


def space_of(config: TuneConfig, model: str) -> Space:
    """What is searched for a model."""
    own = [name for name in OPTIONS if name in model_options(model)]
    return {
        "learning_rate": FloatDistribution(*config.learning_rate, log=True),
        "weight_decay": FloatDistribution(*config.weight_decay, log=True),
        "epochs": IntDistribution(*config.epochs, log=True),
        "batch_size": CategoricalDistribution(config.batch_size),
        "schedule": CategoricalDistribution(config.schedule),
        "average_epochs": CategoricalDistribution(config.average_epochs),
        "loss": CategoricalDistribution(config.loss),
        **{name: CategoricalDistribution(getattr(config, name)) for name in own},
    }


def start_of(space: Space, training: TrainConfig, loss: str) -> list[dict[str, Any]]:
    """What is tried first: how the model is trained without a recipe, and `PLAIN`, both brought into the space."""
    known = {**vars(training), **vars(Head()), "loss": loss}
    first = {name: known[name] for name in space}
    return [{n: _nearest(space[n], value) for n, value in given.items()} for given in (first, first | PLAIN)]


def _nearest(allowed: BaseDistribution, value: Any) -> Any:
    if isinstance(allowed, CategoricalDistribution):
        return value if value in allowed.choices else allowed.choices[0]
    assert isinstance(allowed, FloatDistribution | IntDistribution)
    return min(max(value, allowed.low), allowed.high)


def propose(
    space: Space, startup: int, start: Sequence[Mapping[str, Any]], tried: Sequence[Attempt], seed: int
) -> optuna.Trial:
    """The next recipe; ``report`` and ``should_prune`` of the trial compare it with those that were tried.

    Args:
        space: see `space_of`.
        startup: see `TuneConfig`.
        start: what is tried first, see `start_of`.
        tried: all attempts so far, in order.
        seed: of the search.
    """
    study = _study(space, startup, tried, derive_seed(seed, "proposal", len(tried)) % 2**32)
    if len(tried) < len(start):
        study.enqueue_trial(dict(start[len(tried)]))
    return study.ask(space)


def _study(space: Space, startup: int, tried: Sequence[Attempt], seed: int) -> optuna.Study:
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            sampler = optuna.samplers.TPESampler(n_startup_trials=startup, multivariate=True, seed=seed)
        pruner = optuna.pruners.MedianPruner(n_startup_trials=startup, n_warmup_steps=BLIND)
        study = optuna.create_study(direction="maximize", sampler=sampler, pruner=pruner)
        for attempt in tried:
            study.add_trial(
                optuna.trial.create_trial(
                    state=TrialState.PRUNED if attempt.score is None else TrialState.COMPLETE,
                    value=attempt.score,
                    params=dict(attempt.params),
                    distributions=space,
                    intermediate_values=dict(attempt.curve),
                )
            )
    finally:
        optuna.logging.set_verbosity(level)
    return study


def recipe_of(params: Mapping[str, Any], training: TrainConfig) -> Recipe:
    """The recipe with these values; ``training`` has what is not searched, of which clipping and validation go on."""
    fixed = {name: getattr(training, name) for name in ("clip_norm", "validate_every", "warmup_steps")}
    options = {name: params[name] for name in OPTIONS if name in params}
    searched = {name: value for name, value in params.items() if name != "loss" and name not in options}
    return Recipe(params["loss"], {**searched, **fixed}, options)


def importances(space: Space, tried: Sequence[Attempt], seed: int) -> dict[str, float]:
    """The share of the scores' variance that each setting explains alone or with others (fANOVA), largest first.

    Empty for few attempts, of which nothing can be said, and where all scores are equal.
    """
    scores = [attempt.score for attempt in tried if attempt.score is not None]
    if len(scores) < LEAST or len(set(scores)) == 1:
        return {}
    evaluator = optuna.importance.FanovaImportanceEvaluator(seed=seed)
    return optuna.importance.get_param_importances(_study(space, len(tried), tried, seed), evaluator=evaluator)
