"""All models by name, and the training that they ask for."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from nfn_monomial.benchmarks.settings.training import TrainConfig
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.tools.predictors import invariants
from nfn_monomial.tools.predictors.models import Model, Register, Task, model_class, register

from . import baselines, inr, monomial, sets

__all__ = ["model_names", "register_all", "require_task", "training_of"]

GRAPHS = f"{__package__}.graphs"
ORDER = [
    baselines.__name__,
    monomial.__name__,
    GRAPHS,
    *(module.__name__ for module in (sets, invariants, inr)),
]
"""Of tables."""


def model_names(task: Task = "generalization") -> tuple[str, ...]:
    """Names of all models for a task: baselines first, those that were registered from elsewhere last."""
    known = register_all()
    names = [name for name in known if known[name].task in ("any", task)]
    homes = {name: known[name].__module__ for name in names}
    return tuple(sorted(names, key=lambda name: (*ORDER, homes[name]).index(homes[name])))


def require_task(names: Sequence[str], *tasks: Task) -> None:
    """Checks that models were made for one of these tasks, or for any.

    Raises:
        ValueError: if there is no such model, or it was made for another task.
    """
    for name in names:
        if (made_for := model_class(name).task) not in ("any", *tasks):
            every = register_all()
            able = ", ".join(known for known in every if every[known].task in ("any", *tasks))
            raise InvalidValueError(
                f"{name} is a model for the task {made_for!r}; for {' or '.join(tasks)} choose from {able}"
            )


def register_all() -> Register[type[Model]]:
    """All models; those on graphs are imported once they are asked for, as torch_geometric takes seconds."""
    importlib.import_module(GRAPHS)
    return register


def training_of(name: str, training: TrainConfig, loss: str) -> dict[str, Any]:
    """Returns ``training`` and ``loss`` of a model, with the settings that it asks for (`Model.train_with`)."""
    settings = {"loss": loss, **model_class(name).train_with}
    return {"loss": settings.pop("loss"), "training": replace(training, **settings)}
