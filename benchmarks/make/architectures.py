"""The architectures that a mixed zoo draws."""

from __future__ import annotations

import random

from nfn_monomial.benchmarks.data.architectures.residual import ResidualCNN
from nfn_monomial.benchmarks.data.architectures.transformers import Transformer
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.tools.predictors.architectures import Architecture, PlainCNN

from .config import MixedConfig

__all__ = ["draw_architecture"]

SMALL = 4  # pixels: maps larger than this are halved by the next convolution; on smaller ones strides are 1
LARGE = 16  # pixels: residual networks halve larger images at once
TOKENS = 64  # of a transformer, at most: smaller patches of large images are left out


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
