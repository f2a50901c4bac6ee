"""What an architecture is: numbers that say all of it, the torch module that they describe, and its weight space."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import nn

from nfn_monomial import WeightSpace
from nfn_monomial.errors import InvalidValueError

__all__ = ["KINDS", "MODULES", "Architecture", "ArchitectureKind", "MixedActivation", "require_activations"]

ArchitectureKind = Literal["cnn", "residual", "transformer"]
KINDS: tuple[ArchitectureKind, ...] = get_args(ArchitectureKind)
MixedActivation = Literal["relu", "leaky_relu", "tanh", "gelu"]
MODULES: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "leaky_relu": nn.LeakyReLU,  # slope 0.01
    "tanh": nn.Tanh,
    "gelu": nn.GELU,
}


@dataclass(frozen=True)
class Architecture(ABC):
    """An image classifier's architecture; fields are numbers, names and tuples of these, which JSON can hold.

    Attributes:
        kind: by which files name the class.
    """

    kind: ClassVar[ArchitectureKind]

    @abstractmethod
    def module(self) -> nn.Module:
        """A network of this architecture: images ``(B, C, H, W)`` -> logits ``(B, classes)``."""

    @property
    @abstractmethod
    def space(self) -> WeightSpace:
        """Its weight space; moving buffers (running statistics) are parameters of it, too."""

    @property
    @abstractmethod
    def channels_in(self) -> int:
        """Channels of an image."""

    @property
    @abstractmethod
    def activation(self) -> str:
        """Its activation function for tables, or several with ``/`` between."""

    @property
    def names(self) -> dict[str, str]:
        """Parameter of the space -> that of the module, or buffer: ``{"weight.0": "0.weight", ...}``."""
        return {name: name for name in self.space.parameters}

    def described(self) -> dict[str, Any]:
        """As JSON holds it."""
        return {"kind": self.kind, **asdict(self)}

    def sized(self) -> nn.Module:
        """The module without numbers: names and shapes only, on the meta device; draws nothing at random."""
        with torch.device("meta"):
            return self.module()


def require_activations(names: tuple[str, ...]) -> None:
    """Raise a ValueError, which lists the known ones, for an activation that there is no module of."""
    if unknown := [name for name in names if name not in MODULES]:
        raise InvalidValueError(f"unknown activation {', '.join(map(repr, unknown))}: choose from {', '.join(MODULES)}")


def require_sizes(architecture: Architecture, sizes: Mapping[str, object]) -> None:
    """Raise a ValueError unless all these are positive integers."""
    if wrong := {name: size for name, size in sizes.items() if type(size) is not int or size < 1}:
        raise InvalidValueError(f"{architecture}: sizes must be positive integers, but {wrong}")
