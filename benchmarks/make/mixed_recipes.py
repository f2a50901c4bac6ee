"""What the networks of a mixed zoo are drawn from: the ranges of their architectures and of their training."""

from __future__ import annotations

import random
from dataclasses import dataclass, fields
from typing import get_args

from nfn_monomial.benchmarks.data.cnns import MODULES, Architecture, MixedActivation, require_activations
from nfn_monomial.benchmarks.data.images import ImageSet

from .recipes import BiasInit, Optimizer, WeightInit, ZooConfig

__all__ = ["MixedConfig", "draw_architecture"]

SMALL = 4  # pixels: maps larger than this are halved by the next convolution; on smaller ones strides are 1


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
        require_activations(self.activations)
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
