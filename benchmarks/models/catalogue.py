"""All models by name: what exists, what can be set of it, and building it."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from nfn_monomial.benchmarks.data.networks import MixedInfo, NetworkInfo
from nfn_monomial.benchmarks.settings.training import TrainConfig
from nfn_monomial.errors import InvalidValueError

from . import baselines, combined, inr, monomial, sets
from .base import BALANCED, Model, Register, Task, register

__all__ = ["build_model", "model_class", "model_names", "model_options", "require_task", "training_of"]


GRAPHS = f"{__package__}.graphs"
ORDER = [
    baselines.__name__,
    monomial.__name__,
    GRAPHS,
    *(module.__name__ for module in (sets, combined, inr)),
]
"""Of tables."""


def model_names(task: Task = "generalization") -> tuple[str, ...]:
    """Names of all models for a task: baselines first, those that were registered from elsewhere last."""
    known = _registered()
    names = [name for name in known if known[name].task in ("any", task)]
    homes = {name: known[name].__module__ for name in names}
    return tuple(sorted(names, key=lambda name: (*ORDER, homes[name]).index(homes[name])))


def require_task(names: Sequence[str], *tasks: Task) -> None:
    """Check that models were made for one of these tasks, or for any.

    Raises:
        ValueError: if there is no such model, or it was made for another task.
    """
    for name in names:
        if (found := model_class(name).task) not in ("any", *tasks):
            every = _registered()
            able = ", ".join(known for known in every if every[known].task in ("any", *tasks))
            raise InvalidValueError(
                f"{name} is a model for the task {found!r}; for {' or '.join(tasks)} choose from {able}"
            )


def model_class(name: str) -> type[Model]:
    """The class registered under a name; ``balanced-`` in front of any puts `balance` in front of the model.

    Raises:
        ValueError: listing the known names.
    """
    return (register if name.removeprefix(BALANCED) in tuple(register) else _registered())[name]


def _registered() -> Register[type[Model]]:
    """All models; those on graphs are imported once they are asked for, as torch_geometric takes seconds."""
    importlib.import_module(GRAPHS)
    return register


def training_of(name: str, training: TrainConfig, loss: str) -> dict[str, Any]:
    """``training`` and ``loss`` of a model in an experiment, with what it asks for itself (`Model.train_with`)."""
    own = {"loss": loss, **model_class(name).train_with}
    return {"loss": own.pop("loss"), "training": replace(training, **own)}


def model_options(name: str) -> tuple[str, ...]:
    """What can be set of a model: keyword-only parameters of its class, and of the bases that it hands others on to."""
    found: dict[str, None] = {}
    for cls in model_class(name).__mro__:
        if "__init__" in vars(cls):
            parameters = inspect.signature(vars(cls)["__init__"]).parameters.values()
            found |= dict.fromkeys(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)
            if not any(p.kind is p.VAR_KEYWORD for p in parameters):
                break
    return tuple(found)


def build_model(
    name: str, networks: NetworkInfo | MixedInfo, *, seed: int, out_features: int = 1, **options: Any
) -> Model:
    """A freshly initialised model on the CPU; the seed fixes its parameters and the global generator is left alone.

    Args:
        name: see `model_class`.
        networks: what it will read.
        seed: of its parameters.
        out_features: outputs for each network.
        **options: what the experiment sets, see `model_options`; the others keep the model's own values.

    Raises:
        ValueError: if there is no such model, it has no such option, or it cannot read networks of different
            architectures, but shall.
    """
    cls: Any = model_class(name)
    if unknown := sorted(set(options) - set(known := model_options(name))):
        raise InvalidValueError(f"{name} has no option {', '.join(unknown)}; it has {', '.join(known) or 'none'}")
    if isinstance(networks, MixedInfo) and not cls.mixed:
        able = ", ".join(known for known in model_names() if model_class(known).mixed)
        raise InvalidValueError(f"{name} reads networks of one architecture; for a mixed zoo choose from {able}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: Model = cls(networks, out_features, **options)
        return model
