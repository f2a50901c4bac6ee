"""Configurations of zoos: the ranges that training and architecture are drawn from, and the draws."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, Field

from nfn_monomial.benchmarks.data.architectures.residual import ResidualCNN
from nfn_monomial.benchmarks.data.architectures.transformers import Transformer
from nfn_monomial.benchmarks.data.images import ImageSet
from nfn_monomial.benchmarks.settings.base import Count, Positive, Settings, Some, Span
from nfn_monomial.benchmarks.settings.training import Dropout
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.tools.predictors.architectures import Architecture, ArchitectureKind, MixedActivation, PlainCNN

__all__ = [
    "HALVING",
    "Hyperparameters",
    "MixedConfig",
    "Optimizer",
    "PublishedConfig",
    "ResidualRanges",
    "TrainingRanges",
    "TransformerRanges",
    "ZooConfig",
    "draw_architecture",
    "draw_hyperparameters",
    "redraw",
]

SMALL = 4  # pixels: maps larger than this are halved by the next convolution; on smaller ones strides are 1
LARGE = 16  # pixels: residual networks halve larger images at once
TOKENS = 64  # of a transformer, at most: smaller patches of large images are left out

Activation = Literal["relu", "tanh"]
Optimizer = Literal["adam", "rmsprop", "sgd"]
WeightInit = Literal["glorot_normal", "he_normal", "orthogonal", "RandomNormal", "TruncatedNormal"]
BiasInit = Literal["zeros", "RandomNormal"]
W_INITS: tuple[WeightInit, ...] = get_args(WeightInit)
B_INITS: tuple[BiasInit, ...] = get_args(BiasInit)
MIXED: tuple[MixedActivation, ...] = get_args(MixedActivation)


@dataclass(frozen=True)
class Hyperparameters:
    """The training of one network. ``random_seed`` fixes its initial weights, its images and their order."""

    optimizer: Optimizer
    learning_rate: float
    l2reg: float  # times the sum of squared kernel entries, added to the loss
    dropout: float  # share of channels' outputs set to 0 after each convolution
    train_fraction: float  # share of the training images that this network sees
    epochs: int
    w_init: WeightInit
    init_std: float  # used by RandomNormal and TruncatedNormal, for weights and biases
    b_init: BiasInit
    random_seed: int


def _odd(size: int) -> int:
    if size % 2 == 0:
        raise InvalidValueError("should be odd")
    return size


Share = Annotated[float, Field(gt=0, le=1)]
Odd = Annotated[int, Field(ge=1), AfterValidator(_odd)]
Depth = Annotated[int, Field(ge=2)]
Channels = Annotated[int, Field(ge=1, le=512)]  # more would be too much for a chunk of networks in memory
HALVING = 3  # convolutions of a zoo of one architecture that halve the image; later ones leave its size


@dataclass(frozen=True)
class TrainingRanges(Settings):
    """The ranges that the training of networks is drawn from. Pairs are ranges, ends included.

    ``networks`` is the number in all. Numbers of epochs, learning rates, weight decays and standard deviations are
    drawn log-uniformly.
    """

    images: ImageSet = "digits"
    networks: Count = 1000
    seed: int = 0
    batch: Count = 32
    epochs: Span[Count] = (2, 40)
    train_fractions: Some[Share] = (0.1, 0.25, 0.5, 1.0)
    optimizers: Some[Optimizer] = ("adam", "rmsprop", "sgd")
    learning_rate: Span[Positive] = (5e-4, 5e-2)
    sgd_learning_rate: Span[Positive] = (5e-3, 1.0)
    w_inits: Some[WeightInit] = W_INITS
    b_inits: Some[BiasInit] = B_INITS
    init_std: Span[Positive] = (3e-2, 0.5)
    l2reg: Span[Positive] = (1e-8, 1e-2)
    dropout: Dropout = 0.0  # half of the networks have none, the others up to this share

    def draw_dropout(self, rng: random.Random) -> float:
        """Draws the dropout of one network."""
        return rng.choice((0.0, rng.uniform(0.05, 1) * self.dropout))


@dataclass(frozen=True)
class ZooConfig(TrainingRanges):
    """A zoo of one architecture, that of the Small CNN Zoo; equal configurations give equal zoos.

    ``channels``: of its convolutions, two to six. The activations have evenly many networks. ``chunk`` networks at
    most train together; the size changes the networks only by rounding.
    """

    activations: Some[Activation] = ("relu", "tanh")
    channels: Annotated[tuple[Channels, ...], Field(min_length=2, max_length=6)] = (16, 16, 16)
    chunk: Count = 32
    dropout: Dropout = 0.5


@dataclass(frozen=True)
class PublishedConfig(ZooConfig):
    """A zoo drawn from the published ranges of the Small CNN Zoo, as far as they can be paid for.

    Optimisers, rates of Adam and RMSprop, weight decay, initialisations, dropout, shares of the images and a fixed
    number of epochs are those. There, 86 epochs of 50,000 images and more in batches of 512 are up to 10,000 steps;
    here batches are small, and steps a tenth of those. So SGD's rates are ten times as large.
    """

    images: ImageSet = "mnist5k"
    epochs: Span[Count] = (10, 10)
    sgd_learning_rate: Span[Positive] = (5e-3, 0.5)
    init_std: Span[Positive] = (1e-3, 0.5)
    dropout: Dropout = 0.7  # all networks have up to this share
    chunk: Count = 16  # the activations of 32 for images of 28x28 pixels do not fit into caches
    grid: Literal["published"] = "published"

    def draw_dropout(self, rng: random.Random) -> float:
        """Draws the dropout of one network."""
        return rng.uniform(0, self.dropout)


@dataclass(frozen=True)
class ResidualRanges(Settings):
    """The ranges that residual CNNs are drawn from.

    Widths are those of the stages, and inside of every block; a stage has as many blocks as drawn for it. Half of the
    architectures have batch norms, all one activation.
    """

    stages: Span[Count] = (1, 2)
    blocks: Span[Count] = (1, 2)
    widths: Span[Count] = (6, 16)


@dataclass(frozen=True)
class TransformerRanges(Settings):
    """The ranges that transformers are drawn from; heads, the MLP's width and its activation for every block."""

    blocks: Span[Count] = (1, 3)
    widths: Span[Count] = (8, 24)
    heads: Span[Count] = (1, 4)
    head_widths: Span[Count] = (3, 8)
    hidden: Span[Count] = (8, 32)
    patches: Some[Count] = (2, 4, 7)


@dataclass(frozen=True)
class MixedConfig(TrainingRanges):
    """A zoo of many architectures; equal configurations give equal zoos. Pairs are ranges, ends included.

    ``per_architecture`` networks share an architecture and train together, for speed; network i has
    architecture ``i // per_architecture``. Architectures are of each of the ``kinds`` in turn: plain CNNs, residual
    CNNs, transformers. ``depths``, ``widths`` and ``kernels`` are those of plain ones: depth counts layers with
    weights, one or two of which are linear; widths and kernels are drawn for each layer; half of the architectures use
    one activation throughout, the others draw one for each layer. There is no dropout.
    """

    networks: Count = 500
    per_architecture: Count = 10
    kinds: Some[ArchitectureKind] = ("cnn",)
    depths: Span[Depth] = (2, 5)
    widths: Span[Count] = (8, 32)
    kernels: Some[Odd] = (3, 5)
    activations: Some[MixedActivation] = MIXED
    residual: ResidualRanges = field(default_factory=ResidualRanges)
    transformer: TransformerRanges = field(default_factory=TransformerRanges)

    def check(self) -> None:
        if self.dropout:
            raise InvalidValueError(f"dropout is {self.dropout}, but networks of mixed zoos have none")


def draw_hyperparameters(config: TrainingRanges) -> list[Hyperparameters]:
    """Draws the hyperparameters of every network; those of network i depend on the seed and on i alone."""
    drawn = []
    for number in range(config.networks):
        rng = random.Random(f"{config.seed}/{number}")
        network = Hyperparameters(
            optimizer=rng.choice(config.optimizers),
            learning_rate=1.0,
            l2reg=_log_uniform(rng, *config.l2reg),
            dropout=config.draw_dropout(rng),
            train_fraction=rng.choice(config.train_fractions),
            epochs=round(_log_uniform(rng, *config.epochs)),
            w_init=rng.choice(config.w_inits),
            init_std=_log_uniform(rng, *config.init_std),
            b_init=rng.choice(config.b_inits),
            random_seed=0,
        )
        drawn.append(redraw(config, number, 0, network))
    return drawn


def redraw(config: TrainingRanges, number: int, attempt: int, drawn: Hyperparameters) -> Hyperparameters:
    """A new learning rate and seed; the rest stays, so that the network fits into the chunk it was drawn for."""
    rng = random.Random(f"{config.seed}/{number}/{attempt}")
    rates = config.sgd_learning_rate if drawn.optimizer == "sgd" else config.learning_rate
    return replace(drawn, learning_rate=_log_uniform(rng, *rates), random_seed=rng.getrandbits(31))


def _log_uniform(rng: random.Random, low: float, high: float) -> float:
    return math.exp(rng.uniform(math.log(low), math.log(high)))


def draw_architecture(config: MixedConfig, number: int, image_size: int, classes: int) -> Architecture:
    """Draws architecture ``number``, which depends on it and on the configuration alone. Images have one channel.

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
