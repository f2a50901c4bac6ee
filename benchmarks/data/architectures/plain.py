"""Chains of layers: convolutions, global average pooling, linear layers."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from nfn_monomial import WeightSpace
from nfn_monomial.benchmarks.data.layout import Layout, cnn_layout
from nfn_monomial.errors import InvalidValueError

from .base import MODULES, Architecture, ArchitectureKind, MixedActivation, require_activations

__all__ = ["PlainCNN"]


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
        for name, found, expected in (
            ("kernel_sizes", self.kernel_sizes, count),
            ("strides", self.strides, count),
            ("paddings", self.paddings, count),
            ("activations", self.activations, count + len(self.head) - 1),
        ):
            if len(found) != expected:
                raise InvalidValueError(
                    f"{name} is {found}, but {expected} are needed for channels {self.channels} and head {self.head}"
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
    def layout(self) -> Layout:
        """The columns of one network's row."""
        return cnn_layout(self.channels, self.kernel_sizes, self.head)

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
