"""What the networks of a zoo are: the ranges of their hyperparameters, and what each network drew from them."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace
from typing import Literal, get_args

from nfn_monomial.benchmarks.data.images import IMAGE_SETS, ImageSet
from nfn_monomial.errors import InvalidValueError

__all__ = ["Activation", "Optimizer", "Recipe", "ZooConfig", "draw_recipes", "redraw"]

Activation = Literal["relu", "tanh"]
Optimizer = Literal["adam", "rmsprop", "sgd"]
WeightInit = Literal["glorot_normal", "he_normal", "orthogonal", "RandomNormal", "TruncatedNormal"]
BiasInit = Literal["zeros", "RandomNormal"]


@dataclass(frozen=True)
class Recipe:
    """All that determines one network. ``random_seed`` fixes its initial weights, its images and their order."""

    activation: Activation
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
class ZooConfig:
    """What a zoo is made of; equal configurations give equal zoos. Pairs are ranges, ends included.

    ``networks`` is the number in all, shared evenly by the activations. ``chunk`` networks at most train together;
    the size has no influence on what a network learns, except by rounding. Numbers of epochs, learning rates,
    weight decays and standard deviations are drawn log-uniformly.
    """

    images: ImageSet = "digits"
    networks: int = 1000
    activations: tuple[Activation, ...] = ("relu", "tanh")
    seed: int = 0
    chunk: int = 32
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
    dropout: float = 0.5  # half of the networks have none, the others up to this share

    def __post_init__(self) -> None:
        if self.images not in IMAGE_SETS:
            raise InvalidValueError(f"unknown images {self.images!r}: choose one of {', '.join(IMAGE_SETS)}")
        choices = {
            "activations": Activation,
            "optimizers": Optimizer,
            "w_inits": WeightInit,
            "b_inits": BiasInit,
        }
        for name, known in choices.items():
            values = getattr(self, name)
            if not values or not set(values) <= set(get_args(known)):
                raise InvalidValueError(f"{name} is {values!r}: choose at least one of {', '.join(get_args(known))}")
        for name in ("networks", "chunk", "batch"):
            if getattr(self, name) < 1:
                raise InvalidValueError(f"{name} is {getattr(self, name)}, but must be at least 1")
        for name in ("epochs", "learning_rate", "sgd_learning_rate", "init_std", "l2reg"):
            low, high = getattr(self, name)
            if not 0 < low <= high:
                raise InvalidValueError(f"{name} is {(low, high)}, expected a range (low, high) with 0 < low <= high")
        if not self.train_fractions or not all(0 < f <= 1 for f in self.train_fractions):
            raise InvalidValueError(f"train_fractions is {self.train_fractions}, expected shares in (0, 1]")
        if not 0 <= self.dropout < 1:
            raise InvalidValueError(f"dropout is {self.dropout}, expected a share in [0, 1)")


def draw_recipes(config: ZooConfig) -> list[Recipe]:
    """One recipe per network; network i depends on the seed and on i alone, not on how many there are."""
    return [_draw(config, i) for i in range(config.networks)]


def _draw(config: ZooConfig, number: int) -> Recipe:
    rng = random.Random(f"{config.seed}/{number}")
    optimizer = rng.choice(config.optimizers)
    return redraw(
        config,
        number,
        0,
        Recipe(
            activation=config.activations[number % len(config.activations)],
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


def redraw(config: ZooConfig, number: int, attempt: int, recipe: Recipe) -> Recipe:
    """A new learning rate and seed; the rest stays, so that the network fits into the chunk it was drawn for."""
    rng = random.Random(f"{config.seed}/{number}/{attempt}")
    rates = config.sgd_learning_rate if recipe.optimizer == "sgd" else config.learning_rate
    return replace(recipe, learning_rate=_log_uniform(rng, *rates), random_seed=rng.getrandbits(31))


def _log_uniform(rng: random.Random, low: float, high: float) -> float:
    return math.exp(rng.uniform(math.log(low), math.log(high)))
