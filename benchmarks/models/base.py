"""What a model is to an experiment, and the register of models.

A model reads a batch of networks and answers with one logit per network. What it does to a network without learned
parameters (statistics, flattening, packing) is its `Model.prepare`, called once per data set, so that an epoch is
nothing but indexing, forward, backward and optimiser.

Adding a model is adding a class:

    @register("my-model")
    class MyModel(Model):
        label, invariant_under = "Mine", "permutations"

        def __init__(self, networks: NetworkInfo, out_features: int = 1) -> None: ...
        def prepare(self, tensors: Mapping[str, Tensor]) -> Any: ...
        def forward(self, batch: Any) -> Tensor: ...

Keyword-only parameters of the class, such as widths, are its options, which an experiment sets by name, for all models
that have them alike (`model_options`).

A model of networks of different architectures is ``mixed``: it is built with a `MixedInfo` too, and has
`Model.prepare_groups` instead of ``prepare``.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from nfn_monomial import balance
from nfn_monomial.benchmarks.data.networks import MixedInfo, NetworkGroup, NetworkInfo

from .register import BALANCED, Register

__all__ = [
    "BALANCED",
    "MixedInfo",
    "Model",
    "NetworkGroup",
    "NetworkInfo",
    "Task",
    "build_model",
    "model_class",
    "model_names",
    "model_options",
    "register",
    "require_task",
]

InvariantUnder = Literal["group", "permutations", "nothing"]
Sees = Literal["weights", "functions"]
Task = Literal["any", "generalization", "inr", "ablation"]


class Model(nn.Module):
    """Base of all models: prepared networks -> logits ``(B,)``, or ``(B, out_features)`` for several outputs.

    Attributes:
        label: name in tables and figures.
        invariant_under: what leaves the output as it is: the networks' whole symmetry group (with scalings or sign
            flips), permutations of hidden neurons only, or nothing.
        sees: the networks' weights alone, or also what they compute (the model runs them).
        any_width: whether it reads networks with more hidden neurons than those it was built for.
        task: what it was made for: ``any`` network and question, ``generalization`` of CNNs, ``inr``s, or ``ablation``
            alone.
        mixed: whether it reads networks of different architectures and activations.
        train_with: fields of `TrainConfig`, and ``loss``, that this model is trained with whatever the experiment says.
    """

    label: ClassVar[str]
    invariant_under: ClassVar[InvariantUnder]
    sees: ClassVar[Sees] = "weights"
    any_width: ClassVar[bool] = True
    task: ClassVar[Task] = "any"
    mixed: ClassVar[bool] = False
    train_with: ClassVar[Mapping[str, Any]] = {}  # `training` is torch's

    def prepare(self, tensors: Mapping[str, Tensor]) -> Any:
        """Everything without learned parameters: for a data set in memory at once, otherwise batch by batch.

        Args:
            tensors: parameter name -> ``(N, 1, *shape)``.

        Returns:
            A pytree of tensors whose first dimension is N; `forward` takes any part of it along that dimension.
        """
        raise NotImplementedError

    def prepare_groups(self, groups: Sequence[NetworkGroup]) -> Any:
        """What experiments call: `prepare` for networks of several architectures, N in all, in this order."""
        if len(groups) != 1:
            raise ValueError(f"{type(self).__name__} reads networks of one architecture, found {len(groups)}")
        return self.prepare(groups[0][0])

    def fit_inputs(self, prepared: Any) -> None:
        """Take input statistics from the prepared training networks; called once, before training."""

    def forward(self, batch: Any) -> Tensor:
        raise NotImplementedError


def _balanced(base: Any) -> Any:
    class Balanced(base):  # type: ignore[misc]
        def prepare_groups(self, groups: Sequence[NetworkGroup]) -> Any:
            return super().prepare_groups([(balance(tensors, space)[0], space) for tensors, space in groups])

    return Balanced


register: Register[type[Model]] = Register("model", _balanced)
"""Class decorator: ``@register("name")`` makes a model known to every experiment and on the command line."""


def model_names(task: Task = "generalization") -> tuple[str, ...]:
    """Names of all models for a task, in the order of registration: baselines first."""
    return tuple(name for name in register if register[name].task in ("any", task))


def require_task(names: Sequence[str], *tasks: Task) -> None:
    """Check that models were made for one of these tasks, or for any.

    Raises:
        ValueError: if there is no such model, or it was made for another task.
    """
    for name in names:
        if (found := model_class(name).task) not in ("any", *tasks):
            able = ", ".join(known for known in register if register[known].task in ("any", *tasks))
            raise ValueError(f"{name} is a model for the task {found!r}; for {' or '.join(tasks)} choose from {able}")


def model_class(name: str) -> type[Model]:
    """The class registered under a name; ``balanced-`` in front of any puts `balance` in front of the model.

    Raises:
        ValueError: listing the known names.
    """
    return register[name]


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
        raise ValueError(f"{name} has no option {', '.join(unknown)}; it has {', '.join(known) or 'none'}")
    if isinstance(networks, MixedInfo) and not cls.mixed:
        able = ", ".join(known for known in register if register[known].mixed)
        raise ValueError(f"{name} reads networks of one architecture; for a mixed zoo choose from {able}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: Model = cls(networks, out_features, **options)
        return model
