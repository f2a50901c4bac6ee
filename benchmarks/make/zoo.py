"""Making a zoo: many small classifiers are trained on images that ship in a package.

Networks of a `ZooConfig` are those of the Small CNN Zoo (Unterthiner et al. 2020): three 3x3 stride-2 convolutions of
16 channels, global average pooling, one dense layer; those of a `MixedConfig` have many architectures. Every network
draws its own optimiser, learning rate, initialisation, weight decay, dropout and share of the training images, so that
test accuracies spread from chance to the best.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import torch

from nfn_monomial.benchmarks.data.formats.made import Shard
from nfn_monomial.benchmarks.data.images import ImageSet, load_images
from nfn_monomial.benchmarks.train.devices import require_device
from nfn_monomial.tools.predictors.architectures import Architecture, PlainCNN
from nfn_monomial.tools.results import Progress, silent

from .config import HALVING, Hyperparameters, MixedConfig, ZooConfig, draw_architecture, draw_hyperparameters
from .jobs import Made, Tick, make_set
from .training import train_bounded, train_group

__all__ = ["make_zoo"]

log = logging.getLogger(__name__)

PADDING: dict[ImageSet, int] = {"digits": 1, "mnist14": 1, "mnist5k": 0}
"""8x8 and 14x14 pixels are too few for three valid convolutions."""


def make_zoo(
    out: str | Path,
    config: ZooConfig | MixedConfig | None = None,
    *,
    overwrite: bool = False,
    device: str | torch.device = "cpu",
    workers: int | None = None,
    progress: Progress = silent,
) -> Made:
    """Trains the networks of ``config`` and writes them to the folder ``out``; see `make_set` for the rest.

    The ``summary`` has the number of networks that diverged, each of which was replaced by another draw.

    Raises:
        ValueError: as `make_set`; if there is no such device; as CorpusError, if networks keep diverging.
    """
    config, place = config or ZooConfig(), require_device(device)
    images = load_images(config.images)  # may fail, so before anything is written
    images = replace(images, **{name: getattr(images, name).to(place) for name in ("x", "y", "train", "test")})
    drawn = draw_hyperparameters(config)
    shards = _plan(config, drawn)

    def train(number: int, tick: Tick) -> Shard:
        numbers = shards[number]
        architecture: Architecture
        if isinstance(config, MixedConfig):
            architecture = draw_architecture(config, number, images.size, images.classes)
        else:
            activation, count = config.activations[numbers[0] % len(config.activations)], len(config.channels)
            halving = [i < HALVING for i in range(count)]
            architecture = PlainCNN(
                (1, *config.channels), (3,) * count, tuple(2 if halves else 1 for halves in halving),
                tuple(PADDING[config.images] if halves else 1 for halves in halving), (images.classes,),
                (activation,) * count,
            )  # fmt: skip

        def run(chosen: list[Hyperparameters]) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
            return train_group(chosen, images, architecture, batch=config.batch, check=lambda: tick(0))

        tensors, accuracy, chosen, diverged = train_bounded(config, numbers, [drawn[i] for i in numbers], run)
        more = {"drawn": [asdict(one) for one in chosen], "diverged": diverged}
        return Shard(architecture, numbers, tensors | {"accuracy": accuracy}, more)

    def summarise(parts: Sequence[Shard]) -> dict[str, int]:
        if diverged := sum(part.stated["diverged"] for part in parts):
            log.info("%d networks diverged and were replaced", diverged)
        return {"diverged": diverged}

    steps = [sum(drawn[i].epochs * drawn[i].train_fraction for i in shard) for shard in shards]
    return make_set(
        Path(out),
        config,
        {"kind": "mixed" if isinstance(config, MixedConfig) else "cnn"},
        shards,
        train,
        summarise,
        overwrite=overwrite,
        device=place,
        workers=workers,
        progress=progress,
        work=[max(1, round(n * len(images.train) / config.batch)) for n in steps],
    )


def _plan(config: ZooConfig | MixedConfig, drawn: Sequence[Hyperparameters]) -> list[list[int]]:
    """Returns the numbers of the networks that are trained together, all of one architecture.

    In a zoo of one architecture they all have dropout or all have none, and trainings of similar length.
    """
    if isinstance(config, MixedConfig):
        size = config.per_architecture
        return [list(range(start, min(start + size, config.networks))) for start in range(0, config.networks, size)]
    kinds: dict[tuple[int, bool], list[int]] = defaultdict(list)
    for i, one in enumerate(drawn):
        kinds[i % len(config.activations), one.dropout > 0].append(i)
    chunks: list[list[int]] = []
    for _, numbers in sorted(kinds.items()):
        numbers.sort(key=lambda i: drawn[i].epochs * drawn[i].train_fraction)
        parts = math.ceil(len(numbers) / config.chunk)
        cuts = [len(numbers) * part // parts for part in range(parts + 1)]
        chunks += [numbers[a:b] for a, b in itertools.pairwise(cuts)]
    return chunks
