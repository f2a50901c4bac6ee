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
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeVar

import torch
from torch import Tensor, nn

from nfn_monomial import WeightSpace

__all__ = ["Model", "NetworkInfo", "build_model", "model_class", "model_names", "register"]

InvariantUnder = Literal["group", "permutations", "nothing"]


@dataclass(frozen=True)
class NetworkInfo:
    """What a model is told of the networks it will read: their weight space and their activation function."""

    space: WeightSpace
    activation: str


class Model(nn.Module):
    """Base of all models: prepared networks -> logits ``(B,)``, or ``(B, out_features)`` for several outputs.

    Attributes:
        label: name in tables and figures.
        invariant_under: what leaves the output as it is: the networks' whole symmetry group (with scalings or sign
            flips), permutations of hidden neurons only, or nothing.
    """

    label: ClassVar[str]
    invariant_under: ClassVar[InvariantUnder]

    def prepare(self, tensors: Mapping[str, Tensor]) -> Any:
        """Everything without learned parameters, for a whole data set at once.

        Args:
            tensors: parameter name -> ``(N, 1, *shape)``.

        Returns:
            A pytree of tensors whose first dimension is N; `forward` takes any part of it along that dimension.
        """
        raise NotImplementedError

    def fit_inputs(self, prepared: Any) -> None:
        """Take input statistics from the prepared training networks; called once, before training."""

    def forward(self, batch: Any) -> Tensor:
        raise NotImplementedError


M = TypeVar("M", bound=type[Model])
_REGISTRY: dict[str, type[Model]] = {}


def register(name: str) -> Callable[[M], M]:
    """Class decorator: make a model known by this name to every experiment and on the command line."""

    def add(cls: M) -> M:
        if _REGISTRY.setdefault(name, cls) is not cls:
            raise ValueError(f"a model is registered as {name!r} already: {_REGISTRY[name].__qualname__}")
        return cls

    return add


def model_names() -> tuple[str, ...]:
    """Names of all registered models, in the order of registration: baselines first."""
    return tuple(_REGISTRY)


def model_class(name: str) -> type[Model]:
    """The class registered under a name.

    Raises:
        ValueError: listing the known names.
    """
    if name not in _REGISTRY:
        raise ValueError(f"unknown model {name!r}: choose from {', '.join(_REGISTRY)}")
    return _REGISTRY[name]


def build_model(name: str, networks: NetworkInfo, *, seed: int, out_features: int = 1) -> Model:
    """A freshly initialised model on the CPU; the seed fixes its parameters and the global generator is left alone."""
    cls: Callable[..., Model] = model_class(name)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return cls(networks, out_features)
