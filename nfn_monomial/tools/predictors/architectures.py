"""Architectures of small image classifiers: the numbers that define one, its torch module, and its weight space."""

from __future__ import annotations

import functools
import itertools
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import nn

from nfn_monomial import WeightSpace
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.tools.experiments import experiments

__all__ = [
    "ARCHITECTURES",
    "KINDS",
    "MODULES",
    "Architecture",
    "ArchitectureKind",
    "MixedActivation",
    "PlainCNN",
    "architecture_of",
    "derived_space",
    "require_activations",
    "require_sizes",
]

ArchitectureKind = Literal["cnn", "residual", "transformer"]
KINDS: tuple[ArchitectureKind, ...] = get_args(ArchitectureKind)
MixedActivation = Literal["relu", "leaky_relu", "tanh", "gelu"]
MODULES: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "leaky_relu": nn.LeakyReLU,  # slope 0.01
    "tanh": nn.Tanh,
    "gelu": nn.GELU,
}
ARCHITECTURES: dict[str, type[Architecture]] = {}
"""The known architectures by kind."""


@dataclass(frozen=True)
class Architecture(ABC):
    """An image classifier's architecture, whose fields are numbers, names and tuples of these, as JSON can hold.

    Attributes:
        kind: the name of the class in files.
    """

    kind: ClassVar[ArchitectureKind]

    def __init_subclass__(cls) -> None:
        ARCHITECTURES[cls.kind] = cls

    @abstractmethod
    def module(self) -> nn.Module:
        """Builds a network of this architecture: images ``(B, C, H, W)`` -> logits ``(B, classes)``."""

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
        return {name: name for name, t in self.sized().state_dict().items() if t.is_floating_point()}

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Returns the shape of each parameter of the space, without deriving it."""
        state = self.sized().state_dict()
        return {key: tuple(state[name].shape) for key, name in self.names.items()}

    def described(self) -> dict[str, Any]:
        """Returns the architecture as JSON holds it."""
        return {"kind": self.kind, **asdict(self)}

    def sized(self) -> nn.Module:
        """Builds the module on the meta device, with names and shapes only; draws nothing at random."""
        with torch.device("meta"):
            return self.module()


@functools.cache
def derived_space(architecture: Architecture, image_size: int) -> WeightSpace:
    """Derives the weight space of an architecture from its module, on images with this number of pixels a side.

    It takes a quarter of a second, once for equal architectures. The project's tests verify that the group keeps the
    networks' functions, not every call.
    """
    images = torch.zeros(2, architecture.channels_in, image_size, image_size, device="meta")
    return WeightSpace.from_module(architecture.sized(), images, certify=False)


def require_activations(names: tuple[str, ...]) -> None:
    """Raises a ValueError, which lists the known ones, for an activation without a module."""
    if unknown := [name for name in names if name not in MODULES]:
        raise InvalidValueError(f"unknown activation {', '.join(map(repr, unknown))}: choose from {', '.join(MODULES)}")


def require_sizes(architecture: Architecture, sizes: Mapping[str, object]) -> None:
    """Raises a ValueError unless all these are positive integers."""
    if wrong := {name: size for name, size in sizes.items() if type(size) is not int or size < 1}:
        raise InvalidValueError(f"{architecture}: sizes must be positive integers, but {wrong}")


@dataclass(frozen=True)
class PlainCNN(Architecture):
    """Convolutions, global average pooling, linear layers.

    ``channels``: ``(c_0, ..., c_K)``, input channels first. ``kernel_sizes``, ``strides``, ``paddings``: one per
    convolution, kernels are square. ``head``: outputs of the linear layers, classes last. ``activations``: one per
    hidden node, convolutions first; none follows the last layer.

    Raises:
        ValueError: if the numbers do not fit together or are not positive, or an activation is not known.
    """

    kind: ClassVar[ArchitectureKind] = "cnn"

    channels: tuple[int, ...]
    kernel_sizes: tuple[int, ...]
    strides: tuple[int, ...]
    paddings: tuple[int, ...]
    head: tuple[int, ...]
    activations: tuple[MixedActivation, ...]

    def __post_init__(self) -> None:
        count = len(self.channels) - 1
        for name, values, expected in (
            ("kernel_sizes", self.kernel_sizes, count),
            ("strides", self.strides, count),
            ("paddings", self.paddings, count),
            ("activations", self.activations, count + len(self.head) - 1),
        ):
            if len(values) != expected:
                raise InvalidValueError(
                    f"{name} is {values}, but {expected} are needed for channels {self.channels} and head {self.head}"
                )
        if count < 1 or not self.head:
            raise InvalidValueError(
                f"channels {self.channels}, head {self.head}: a convolution and a linear layer are needed"
            )
        sizes = (*self.channels, *self.kernel_sizes, *self.strides, *self.head, *(p + 1 for p in self.paddings))
        if not all(type(n) is int and n > 0 for n in sizes):
            raise InvalidValueError(f"{self}: sizes must be positive integers")
        require_activations(self.activations)

    @property
    def space(self) -> WeightSpace:
        """Its weight space, with parameters ``weight.i`` and ``bias.i``; the activations give the symmetries."""
        return WeightSpace.cnn(self.channels, self.kernel_sizes, self.activations, self.head)

    @property
    def channels_in(self) -> int:
        return self.channels[0]

    @property
    def activation(self) -> str:
        return "/".join(dict.fromkeys(self.activations))

    @property
    def names(self) -> dict[str, str]:
        return dict(zip(self.space.parameters, (name for name, _ in self.sized().named_parameters()), strict=True))

    def module(self) -> nn.Sequential:
        activations = iter([MODULES[name]() for name in self.activations])
        layers: list[nn.Module] = []
        geometry = zip(self.kernel_sizes, self.strides, self.paddings, strict=True)
        for (inputs, outputs), (kernel, stride, padding) in zip(
            itertools.pairwise(self.channels), geometry, strict=True
        ):
            layers += [nn.Conv2d(inputs, outputs, kernel, stride, padding), next(activations)]
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        for inputs, outputs in itertools.pairwise((self.channels[-1], *self.head)):
            layers += [nn.Linear(inputs, outputs), *itertools.islice(activations, 1)]
        return nn.Sequential(*layers)


def architecture_of(described: Mapping[str, Any]) -> Architecture:
    """Reads the description that `Architecture.described` makes; one without a kind is that of a plain CNN.

    Raises:
        ValueError: if the kind is not known, or the numbers make no sense.
        TypeError: if fields are missing, or there are unknown ones.
    """
    fields = {name: tuple(v) if isinstance(v, list) else v for name, v in described.items() if name != "kind"}
    kind = described.get("kind", PlainCNN.kind)
    if kind not in KINDS:
        raise InvalidValueError(f"unknown kind of architecture {kind!r}: choose from {', '.join(KINDS)}")
    if kind not in ARCHITECTURES:
        experiments("predictors")
    return ARCHITECTURES[kind](**fields)
