"""What small CNNs have in common that one weight space describes: their architecture, as data and as a torch module."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from nfn_monomial import WeightSpace

from .layout import Layout, cnn_layout

__all__ = ["MODULES", "Architecture", "MixedActivation", "parameter_names", "require_activations", "template"]

MixedActivation = Literal["relu", "leaky_relu", "tanh", "gelu"]
MODULES: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "leaky_relu": nn.LeakyReLU,  # slope 0.01
    "tanh": nn.Tanh,
    "gelu": nn.GELU,
}


@dataclass(frozen=True)
class Architecture:
    """Convolutions, global average pooling, linear layers.

    ``channels``: ``(c_0, ..., c_K)``, input channels first. ``kernel_sizes``, ``strides``, ``paddings``: one per
    convolution, kernels are square. ``head``: outputs of the linear layers, classes last. ``activations``: one per
    hidden node, convolutions first; none follows the last layer.

    Raises:
        ValueError: if the numbers do not fit together or are not positive, or an activation is not known.
    """

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
                raise ValueError(
                    f"{name} is {found}, but {expected} are needed for channels {self.channels} and head {self.head}"
                )
        if count < 1 or not self.head:
            raise ValueError(f"channels {self.channels}, head {self.head}: a convolution and a linear layer are needed")
        sizes = (*self.channels, *self.kernel_sizes, *self.strides, *self.head, *(p + 1 for p in self.paddings))
        if not all(type(n) is int and n > 0 for n in sizes):
            raise ValueError(f"{self}: sizes must be positive integers")
        require_activations(self.activations)

    @property
    def space(self) -> WeightSpace:
        """Its weight space, with parameters ``weight.i`` and ``bias.i``; the activations give the symmetries."""
        return WeightSpace.cnn(self.channels, self.kernel_sizes, self.activations, self.head)

    @property
    def layout(self) -> Layout:
        """The columns of one network's row."""
        return cnn_layout(self.channels, self.kernel_sizes, self.head)


def template(architecture: Architecture) -> nn.Sequential:
    """The architecture as a torch module, which takes images ``(B, C, H, W)`` to logits ``(B, classes)``.

    Its parameters have names of torch's: see `parameter_names`.
    """
    a = architecture
    activations = iter([MODULES[name]() for name in a.activations])
    layers: list[nn.Module] = []
    geometry = zip(a.kernel_sizes, a.strides, a.paddings, strict=True)
    for (inputs, outputs), (kernel, stride, padding) in zip(itertools.pairwise(a.channels), geometry, strict=True):
        layers += [nn.Conv2d(inputs, outputs, kernel, stride, padding), next(activations)]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    for inputs, outputs in itertools.pairwise((a.channels[-1], *a.head)):
        layers += [nn.Linear(inputs, outputs), *itertools.islice(activations, 1)]
    return nn.Sequential(*layers)


def parameter_names(architecture: Architecture) -> dict[str, str]:
    """Parameter of the weight space -> that of the `template`: ``{"weight.0": "0.weight", ...}``."""
    with torch.device("meta"):  # draws no random numbers
        names = [name for name, _ in template(architecture).named_parameters()]
    return dict(zip(architecture.space.parameters, names, strict=True))


def require_activations(names: tuple[str, ...]) -> None:
    """Raise a ValueError, which lists the known ones, for an activation that there is no module of."""
    if unknown := [name for name in names if name not in MODULES]:
        raise ValueError(f"unknown activation {', '.join(map(repr, unknown))}: choose from {', '.join(MODULES)}")
