"""What the networks of a mixed zoo are: their architectures, and the ranges from which everything is drawn."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import dataclass, fields
from typing import Literal, get_args

import torch
from torch import nn

from nfn_monomial import WeightSpace
from nfn_monomial.benchmarks.data.formats.zoo_layout import Layout, Variable
from nfn_monomial.benchmarks.data.images import ImageSet

from .recipes import BiasInit, Optimizer, WeightInit, ZooConfig

__all__ = [
    "Architecture",
    "MixedActivation",
    "MixedConfig",
    "draw_architecture",
    "layout_of",
    "parameter_names",
    "template",
]

MixedActivation = Literal["relu", "leaky_relu", "tanh", "gelu"]
MODULES: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "leaky_relu": nn.LeakyReLU,  # slope 0.01
    "tanh": nn.Tanh,
    "gelu": nn.GELU,
}
SMALL = 4  # pixels: maps larger than this are halved by the next convolution; on smaller ones strides are 1


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
        _require_activations(self.activations)

    @property
    def space(self) -> WeightSpace:
        """Its weight space, with parameters ``weight.i`` and ``bias.i``; the activations give the symmetries."""
        return WeightSpace.cnn(self.channels, self.kernel_sizes, self.activations, self.head)


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


def layout_of(architecture: Architecture) -> Layout:
    """The columns of one network's row, kernels as ``(*kernel, in, out)``: what `initial_weights` fills."""
    a = architecture
    pairs = list(itertools.pairwise((*a.channels, *a.head)))
    names = [f"conv2d_{i}" for i in range(len(a.kernel_sizes))] + [f"dense_{i}" for i in range(len(a.head))]
    kernels = [(k, k) for k in a.kernel_sizes] + [()] * len(a.head)
    layout: list[Variable] = []
    end = 0
    for name, kernel, pair in zip(names, kernels, pairs, strict=True):
        for part, shape in (("bias", pair[1:]), ("kernel", (*kernel, *pair))):
            start, end = end, end + math.prod(shape)
            layout.append(Variable(f"{name}/{part}", shape, start, end))
    return tuple(layout)


@dataclass(frozen=True)
class MixedConfig:
    """What a mixed zoo is made of; equal configurations give equal zoos. Pairs are ranges, ends included.

    ``per_architecture`` networks share an architecture and train together, which is what makes it fast; network i has
    architecture ``i // per_architecture``. ``depths`` counts layers with weights, one or two of which are linear.
    Widths and kernels are drawn for each layer. Half of the architectures use one activation throughout, the others
    draw one for each layer. What follows is drawn for each network, as for a zoo of one architecture (`ZooConfig`).
    """

    images: ImageSet = "digits"
    networks: int = 500
    seed: int = 0
    per_architecture: int = 10
    depths: tuple[int, int] = (2, 5)
    widths: tuple[int, int] = (8, 32)
    kernels: tuple[int, ...] = (3, 5)
    activations: tuple[MixedActivation, ...] = get_args(MixedActivation)
    batch: int = ZooConfig.batch
    epochs: tuple[int, int] = ZooConfig.epochs
    train_fractions: tuple[float, ...] = ZooConfig.train_fractions
    optimizers: tuple[Optimizer, ...] = ZooConfig.optimizers
    learning_rate: tuple[float, float] = ZooConfig.learning_rate
    sgd_learning_rate: tuple[float, float] = ZooConfig.sgd_learning_rate
    w_inits: tuple[WeightInit, ...] = ZooConfig.w_inits
    b_inits: tuple[BiasInit, ...] = ZooConfig.b_inits
    init_std: tuple[float, float] = ZooConfig.init_std
    l2reg: tuple[float, float] = ZooConfig.l2reg

    def __post_init__(self) -> None:
        if self.per_architecture < 1:
            raise ValueError(f"per_architecture is {self.per_architecture}, but must be at least 1")
        for name, least in (("depths", 2), ("widths", 1)):
            low, high = getattr(self, name)
            if not least <= low <= high:
                raise ValueError(f"{name} is {(low, high)}, expected a range (low, high) with {least} <= low <= high")
        if not self.kernels or not all(k > 0 and k % 2 for k in self.kernels):
            raise ValueError(f"kernels is {self.kernels}, expected at least one odd size, as (3, 5)")
        if not self.activations:
            raise ValueError(f"activations is empty: choose at least one of {', '.join(MODULES)}")
        _require_activations(self.activations)
        _ = self.training  # checks all the rest

    @property
    def training(self) -> ZooConfig:
        """The part that recipes are drawn from; dropout is none of it, and activations are the architecture's."""
        shared = {f.name for f in fields(self)} & {f.name for f in fields(ZooConfig)} - {"activations"}
        return ZooConfig(activations=("relu",), dropout=0.0, **{name: getattr(self, name) for name in shared})


def draw_architecture(config: MixedConfig, number: int, image_size: int, classes: int) -> Architecture:
    """Architecture ``number``, which depends on it and on the configuration alone. Images have one channel."""
    rng = random.Random(f"{config.seed}/architecture/{number}")
    depth = rng.randint(*config.depths)
    linear = min(rng.choice((1, 2)), depth - 1)
    count = depth - linear
    widths = [rng.randint(*config.widths) for _ in range(depth - 1)]
    kernels = [rng.choice(config.kernels) for _ in range(count)]
    names = [rng.choice(config.activations) for _ in widths]
    strides: list[int] = []
    for kernel in kernels:
        strides.append(2 if image_size > SMALL else 1)
        image_size = (image_size + 2 * (kernel // 2) - kernel) // strides[-1] + 1
    return Architecture(
        channels=(1, *widths[:count]),
        kernel_sizes=tuple(kernels),
        strides=tuple(strides),
        paddings=tuple(kernel // 2 for kernel in kernels),
        head=(*widths[count:], classes),
        activations=tuple(names[:1] * len(names) if rng.random() < 0.5 else names),
    )


def _require_activations(names: tuple[str, ...]) -> None:
    if unknown := [name for name in names if name not in MODULES]:
        raise ValueError(f"unknown activation {', '.join(map(repr, unknown))}: choose from {', '.join(MODULES)}")
