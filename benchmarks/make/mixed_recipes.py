"""What the networks of a mixed zoo are drawn from: the ranges of their architectures and of their training."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, fields
from typing import get_args

from nfn_monomial.benchmarks.data.architectures.residual import ResidualCNN
from nfn_monomial.benchmarks.data.architectures.transformers import Transformer
from nfn_monomial.benchmarks.data.images import ImageSet
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.tools.predictors.architectures import (
    KINDS,
    MODULES,
    Architecture,
    ArchitectureKind,
    MixedActivation,
    PlainCNN,
    require_activations,
)

from .recipes import BiasInit, Optimizer, WeightInit, ZooConfig

__all__ = ["MixedConfig", "ResidualRanges", "TransformerRanges", "draw_architecture"]

SMALL = 4  # pixels: maps larger than this are halved by the next convolution; on smaller ones strides are 1
LARGE = 16  # pixels: residual networks halve larger images at once
TOKENS = 64  # of a transformer, at most: smaller patches of large images are left out


@dataclass(frozen=True)
class ResidualRanges:
    """What residual CNNs are drawn from. Widths are those of the stages, and inside of every block; a stage has as
    many blocks as drawn for it. Half of the architectures have batch norms, all one activation.
    """

    stages: tuple[int, int] = (1, 2)
    blocks: tuple[int, int] = (1, 2)
    widths: tuple[int, int] = (6, 16)

    def __post_init__(self) -> None:
        _require_ranges(self, **dict.fromkeys(("stages", "blocks", "widths"), 1))


@dataclass(frozen=True)
class TransformerRanges:
    """What transformers are drawn from. Heads, the MLP's width and its activation are drawn for every block."""

    blocks: tuple[int, int] = (1, 3)
    widths: tuple[int, int] = (8, 24)
    heads: tuple[int, int] = (1, 4)
    head_widths: tuple[int, int] = (3, 8)
    hidden: tuple[int, int] = (8, 32)
    patches: tuple[int, ...] = (2, 4, 7)

    def __post_init__(self) -> None:
        _require_ranges(self, **dict.fromkeys(("blocks", "widths", "heads", "head_widths", "hidden"), 1))
        if not self.patches or not all(p > 0 for p in self.patches):
            raise InvalidValueError(f"patches is {self.patches}, expected at least one size in pixels, as (2, 4)")


def _require_ranges(config: object, **least: int) -> None:
    for name, low_at_least in least.items():
        low, high = getattr(config, name)
        if not low_at_least <= low <= high:
            raise InvalidValueError(
                f"{name} is {(low, high)}, expected a range (low, high) with {low_at_least} <= low <= high"
            )


@dataclass(frozen=True)
class MixedConfig:
    """What a mixed zoo is made of; equal configurations give equal zoos. Pairs are ranges, ends included.

    ``per_architecture`` networks share an architecture and train together, which is what makes it fast; network i has
    architecture ``i // per_architecture``. Architectures are of each of the ``kinds`` in turn: plain CNNs, residual
    CNNs, transformers. ``depths``, ``widths`` and ``kernels`` are those of plain ones: depth counts layers with
    weights, one or two of which are linear; widths and kernels are drawn for each layer; half of the architectures use
    one activation throughout, the others draw one for each layer. What follows ``transformer`` is drawn for each
    network, as for a zoo of one architecture (`ZooConfig`).
    """

    images: ImageSet = "digits"
    networks: int = 500
    seed: int = 0
    per_architecture: int = 10
    kinds: tuple[ArchitectureKind, ...] = ("cnn",)
    depths: tuple[int, int] = (2, 5)
    widths: tuple[int, int] = (8, 32)
    kernels: tuple[int, ...] = (3, 5)
    activations: tuple[MixedActivation, ...] = get_args(MixedActivation)
    residual: ResidualRanges = field(default_factory=ResidualRanges)
    transformer: TransformerRanges = field(default_factory=TransformerRanges)
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
            raise InvalidValueError(f"per_architecture is {self.per_architecture}, but must be at least 1")
        if not self.kinds or not set(self.kinds) <= set(KINDS) or len(set(self.kinds)) < len(self.kinds):
            raise InvalidValueError(f"kinds is {self.kinds}: choose at least one of {', '.join(KINDS)}, each once")
        _require_ranges(self, depths=2, widths=1)
        if not self.kernels or not all(k > 0 and k % 2 for k in self.kernels):
            raise InvalidValueError(f"kernels is {self.kernels}, expected at least one odd size, as (3, 5)")
        if not self.activations:
            raise InvalidValueError(f"activations is empty: choose at least one of {', '.join(MODULES)}")
        require_activations(self.activations)
        _ = self.training  # checks all the rest

    @property
    def training(self) -> ZooConfig:
        """The part that recipes are drawn from; dropout is none of it, and activations are the architecture's."""
        shared = {f.name for f in fields(self)} & {f.name for f in fields(ZooConfig)} - {"activations"}
        return ZooConfig(activations=("relu",), dropout=0.0, **{name: getattr(self, name) for name in shared})


def draw_architecture(config: MixedConfig, number: int, image_size: int, classes: int) -> Architecture:
    """Architecture ``number``, which depends on it and on the configuration alone. Images have one channel.

    Raises:
        ValueError: if a transformer is asked for, and no size of patches fits the images.
    """
    rng = random.Random(f"{config.seed}/architecture/{number}")
    draw = {"cnn": _draw_plain, "residual": _draw_residual, "transformer": _draw_transformer}
    return draw[config.kinds[number % len(config.kinds)]](config, rng, image_size, classes)


def _draw_plain(config: MixedConfig, rng: random.Random, image_size: int, classes: int) -> PlainCNN:
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
    return PlainCNN(
        channels=(1, *widths[:count]),
        kernel_sizes=tuple(kernels),
        strides=tuple(strides),
        paddings=tuple(kernel // 2 for kernel in kernels),
        head=(*widths[count:], classes),
        activations=tuple(names[:1] * len(names) if rng.random() < 0.5 else names),
    )


def _draw_residual(config: MixedConfig, rng: random.Random, image_size: int, classes: int) -> ResidualCNN:
    ranges = config.residual
    blocks = [rng.randint(*ranges.blocks) for _ in range(rng.randint(*ranges.stages))]
    return ResidualCNN(
        channels=1,
        widths=tuple(rng.randint(*ranges.widths) for _ in blocks),
        blocks=tuple(blocks),
        inner=tuple(rng.randint(*ranges.widths) for _ in range(sum(blocks))),
        normalised=rng.random() < 0.5,
        activations=(rng.choice(config.activations),),
        classes=classes,
        stride=2 if image_size > LARGE else 1,
    )


def _draw_transformer(config: MixedConfig, rng: random.Random, image_size: int, classes: int) -> Transformer:
    ranges = config.transformer
    fitting = [p for p in ranges.patches if image_size % p == 0 and (image_size // p) ** 2 <= TOKENS]
    if not fitting:
        raise InvalidValueError(
            f"patches is {ranges.patches}, but none of these sizes divides images of {image_size} pixels a side into "
            f"{TOKENS} patches or fewer"
        )
    blocks = range(rng.randint(*ranges.blocks))
    return Transformer(
        channels=1,
        image_size=image_size,
        patch=rng.choice(fitting),
        width=rng.randint(*ranges.widths),
        heads=tuple(rng.randint(*ranges.heads) for _ in blocks),
        head_width=rng.randint(*ranges.head_widths),
        hidden=tuple(rng.randint(*ranges.hidden) for _ in blocks),
        activations=tuple(rng.choice(config.activations) for _ in blocks),
        classes=classes,
    )
