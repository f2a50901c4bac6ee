"""What zoos are made of: the ranges of the networks' training and architectures, and what each network drew."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from nfn_monomial.benchmarks.data.architectures.residual import ResidualCNN
from nfn_monomial.benchmarks.data.architectures.transformers import Transformer
from nfn_monomial.benchmarks.data.images import IMAGE_SETS, ImageSet
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

__all__ = [
    "Hyperparameters",
    "MixedConfig",
    "Optimizer",
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


@dataclass(frozen=True)
class Hyperparameters:
    """How one network is trained. ``random_seed`` fixes its initial weights, its images and their order."""

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


@dataclass(frozen=True)
class TrainingRanges:
    """What the training of networks is drawn from. Pairs are ranges, ends included.

    ``networks`` is the number in all. Numbers of epochs, learning rates, weight decays and standard deviations are
    drawn log-uniformly.
    """

    images: ImageSet = "digits"
    networks: int = 1000
    seed: int = 0
    batch: int = 32
    epochs: tuple[int, int] = (2, 40)
    train_fractions: tuple[float, ...] = (0.1, 0.25, 0.5, 1.0)
    optimizers: tuple[Optimizer, ...] = ("adam", "rmsprop", "sgd")
    learning_rate: tuple[float, float] = (5e-4, 5e-2)
    sgd_learning_rate: tuple[float, float] = (5e-3, 1.0)
    w_inits: tuple[WeightInit, ...] = get_args(WeightInit)
    b_inits: tuple[BiasInit, ...] = get_args(BiasInit)
    init_std: tuple[float, float] = (3e-2, 0.5)
    l2reg: tuple[float, float] = (1e-8, 1e-2)
    dropout: float = 0.0  # half of the networks have none, the others up to this share

    def __post_init__(self) -> None:
        if self.images not in IMAGE_SETS:
            raise InvalidValueError(f"unknown images {self.images!r}: choose one of {', '.join(IMAGE_SETS)}")
        _require_choices(self, optimizers=Optimizer, w_inits=WeightInit, b_inits=BiasInit)
        _require_positive(self, "networks", "batch")
        for name in ("epochs", "learning_rate", "sgd_learning_rate", "init_std", "l2reg"):
            low, high = getattr(self, name)
            if not 0 < low <= high:
                raise InvalidValueError(f"{name} is {(low, high)}, expected a range (low, high) with 0 < low <= high")
        if not self.train_fractions or not all(0 < f <= 1 for f in self.train_fractions):
            raise InvalidValueError(f"train_fractions is {self.train_fractions}, expected shares in (0, 1]")
        if not 0 <= self.dropout < 1:
            raise InvalidValueError(f"dropout is {self.dropout}, expected a share in [0, 1)")


@dataclass(frozen=True)
class ZooConfig(TrainingRanges):
    """A zoo of one architecture, that of the Small CNN Zoo; equal configurations give equal zoos.

    The activations have evenly many networks. ``chunk`` networks at most train together; the size has no influence on
    what a network learns, except by rounding.
    """

    activations: tuple[Activation, ...] = ("relu", "tanh")
    chunk: int = 32
    dropout: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_choices(self, activations=Activation)
        _require_positive(self, "chunk")


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
class MixedConfig(TrainingRanges):
    """A zoo of many architectures; equal configurations give equal zoos. Pairs are ranges, ends included.

    ``per_architecture`` networks share an architecture and train together, which is what makes it fast; network i has
    architecture ``i // per_architecture``. Architectures are of each of the ``kinds`` in turn: plain CNNs, residual
    CNNs, transformers. ``depths``, ``widths`` and ``kernels`` are those of plain ones: depth counts layers with
    weights, one or two of which are linear; widths and kernels are drawn for each layer; half of the architectures use
    one activation throughout, the others draw one for each layer. There is no dropout.
    """

    networks: int = 500
    per_architecture: int = 10
    kinds: tuple[ArchitectureKind, ...] = ("cnn",)
    depths: tuple[int, int] = (2, 5)
    widths: tuple[int, int] = (8, 32)
    kernels: tuple[int, ...] = (3, 5)
    activations: tuple[MixedActivation, ...] = get_args(MixedActivation)
    residual: ResidualRanges = field(default_factory=ResidualRanges)
    transformer: TransformerRanges = field(default_factory=TransformerRanges)

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_positive(self, "per_architecture")
        if not self.kinds or not set(self.kinds) <= set(KINDS) or len(set(self.kinds)) < len(self.kinds):
            raise InvalidValueError(f"kinds is {self.kinds}: choose at least one of {', '.join(KINDS)}, each once")
        _require_ranges(self, depths=2, widths=1)
        if not self.kernels or not all(k > 0 and k % 2 for k in self.kernels):
            raise InvalidValueError(f"kernels is {self.kernels}, expected at least one odd size, as (3, 5)")
        if not self.activations:
            raise InvalidValueError(f"activations is empty: choose at least one of {', '.join(MODULES)}")
        require_activations(self.activations)
        if self.dropout:
            raise InvalidValueError(f"dropout is {self.dropout}, but networks of mixed zoos have none")


def _require_choices(config: object, **known: object) -> None:
    for name, choices in known.items():
        values = getattr(config, name)
        if not values or not set(values) <= set(get_args(choices)):
            raise InvalidValueError(f"{name} is {values!r}: choose at least one of {', '.join(get_args(choices))}")


def _require_positive(config: object, *names: str) -> None:
    for name in names:
        if getattr(config, name) < 1:
            raise InvalidValueError(f"{name} is {getattr(config, name)}, but must be at least 1")


def draw_hyperparameters(config: TrainingRanges) -> list[Hyperparameters]:
    """Those of every network; network i depends on the seed and on i alone, not on how many there are."""
    return [_draw(config, i) for i in range(config.networks)]


def _draw(config: TrainingRanges, number: int) -> Hyperparameters:
    rng = random.Random(f"{config.seed}/{number}")
    optimizer = rng.choice(config.optimizers)
    return redraw(
        config,
        number,
        0,
        Hyperparameters(
            optimizer=optimizer,
            learning_rate=1.0,
            l2reg=_log_uniform(rng, *config.l2reg),
            dropout=rng.choice((0.0, rng.uniform(0.05, 1) * config.dropout)),
            train_fraction=rng.choice(config.train_fractions),
            epochs=round(_log_uniform(rng, *config.epochs)),
            w_init=rng.choice(config.w_inits),
            init_std=_log_uniform(rng, *config.init_std),
            b_init=rng.choice(config.b_inits),
            random_seed=0,
        ),
    )


def redraw(config: TrainingRanges, number: int, attempt: int, drawn: Hyperparameters) -> Hyperparameters:
    """A new learning rate and seed; the rest stays, so that the network fits into the chunk it was drawn for."""
    rng = random.Random(f"{config.seed}/{number}/{attempt}")
    rates = config.sgd_learning_rate if drawn.optimizer == "sgd" else config.learning_rate
    return replace(drawn, learning_rate=_log_uniform(rng, *rates), random_seed=rng.getrandbits(31))


def _log_uniform(rng: random.Random, low: float, high: float) -> float:
    return math.exp(rng.uniform(math.log(low), math.log(high)))


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
