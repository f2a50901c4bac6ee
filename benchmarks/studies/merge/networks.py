"""The networks that are merged: their architectures, weight spaces and images, and how they are trained."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from nfn_monomial import WeightSpace
from nfn_monomial.benchmarks.data.architectures.residual import ResidualCNN
from nfn_monomial.benchmarks.data.architectures.transformers import Transformer
from nfn_monomial.benchmarks.data.images import IMAGE_SIZES, Images, load_images
from nfn_monomial.benchmarks.data.seeds import derive_seed
from nfn_monomial.benchmarks.experiments.merge import MergeConfig, Subject
from nfn_monomial.benchmarks.make.config import Hyperparameters
from nfn_monomial.benchmarks.make.training import train_group
from nfn_monomial.tools.predictors.architectures import Architecture, MixedActivation, PlainCNN
from nfn_monomial.tools.store import Store

__all__ = ["Data", "Network", "Trained", "architecture_of", "data_of", "space_of", "trained"]

Network = dict[str, Tensor]
"""Parameter or buffer of the module -> tensor."""
CLASSES = 10
VALIDATION_SHARE = 1 / 6  # of the training images
LEARNING_RATES = {"mlp": 1e-3, "vgg": 2e-3, "resnet": 3e-3, "transformer": 3e-3, "transformer2": 3e-3}
TRANSFORMERS = ("transformer", "transformer2")
HEADS = 4
POSITIONS = 0.1  # standard deviation of their first values
DECAY = 1e-4  # times the sum of squared kernel entries, added to the loss


@dataclass(frozen=True)
class Data:
    """Images ``(n, 1, H, W)`` and labels ``(n,)``: what networks are matched and repaired with, and measured on."""

    train: tuple[Tensor, Tensor]
    val: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Trained:
    """Networks of one subject, each trained on its own.

    Attributes:
        module: their architecture; its own weights mean nothing.
        space: what acts on them.
        test: 2 for each pair, the networks of a pair beside one another.
        val: likewise.
        accuracies: of ``test`` and then ``val``, on the test images.
    """

    module: nn.Module
    space: WeightSpace
    test: list[Network]
    val: list[Network]
    accuracies: list[float]


def architecture_of(subject: Subject) -> Architecture:
    """The architecture, with ReLU: an image classifier of grey images.

    ``mlp``: two hidden layers; the first is a convolution whose kernel is the image. ``vgg``: five convolutions, no
    norms, and a hidden linear layer. ``resnet``: ResNet-20 with batch norms. ``transformer`` and ``transformer2``: one
    block or two of four heads, with GELU, on 16 patches.
    """
    size, w = IMAGE_SIZES[subject.images], subject.width
    large = size > 16  # the first convolution halves what is larger
    if subject.kind == "mlp":
        return PlainCNN((1, w), (size,), (1,), (0,), (w, CLASSES), ("relu",) * 2)
    if subject.kind == "vgg":
        strides = (1 + large, 1, 2, 1, 2)
        return PlainCNN((1, w, w, 2 * w, 2 * w, 4 * w), (3,) * 5, strides, (1,) * 5, (4 * w, CLASSES), ("relu",) * 6)
    if subject.kind in TRANSFORMERS:
        blocks = 1 + (subject.kind == "transformer2")
        gelus: list[MixedActivation] = ["gelu"] * blocks
        heads, hidden = (HEADS,) * blocks, (2 * w,) * blocks
        return Transformer(1, size, size // 4, w, heads, max(1, w // HEADS), hidden, tuple(gelus), CLASSES)
    widths = (w, 2 * w, 4 * w)
    inner = tuple(width for width in widths for _ in range(3))
    return ResidualCNN(1, widths, (3, 3, 3), inner, True, ("relu",), CLASSES, 1 + large)


def space_of(architecture: Architecture) -> WeightSpace:
    """Its weight space with the names of the module."""
    names = architecture.names
    return WeightSpace(architecture.space.nodes, {names[n]: dims for n, dims in architecture.space.parameters.items()})


def data_of(subject: Subject) -> tuple[Images, Data]:
    """The images as training takes them, and all parts: half for training, a tenth for validation, 0.4 for test."""
    images = load_images(subject.images)  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(0)  # rows are in the order of classes
    rows, test = (part[torch.randperm(len(part), generator=generator)] for part in (images.train, images.test))
    cut = round(VALIDATION_SHARE * len(rows))
    parts = (rows[cut:], rows[:cut], test)
    return replace(images, train=parts[0]), Data(*((images.x[part], images.y[part]) for part in parts))


def trained(subject: Subject, config: MergeConfig, folder: Path) -> Trained:
    """The networks of a subject, from the folder if they are there, or else trained and kept there.

    Each has its own initial weights and order of images; all see the same training images.
    """
    architecture = architecture_of(subject)
    images, data = data_of(subject)
    count = 2 * (config.pairs + config.validation_pairs)
    epochs = math.ceil(config.steps * config.batch_size / len(data.train[1]))
    transformers = subject.kind in TRANSFORMERS
    recipes = [
        Hyperparameters(
            "adam", LEARNING_RATES[subject.kind], DECAY, 0.0, 1.0, epochs,
            "glorot_normal" if transformers else "he_normal", POSITIONS * transformers, "zeros",
            derive_seed(config.seed, str(subject), number),
        )
        for number in range(count)
    ]  # fmt: skip
    kept = Store(folder, {"recipes": [asdict(r) for r in recipes], "batch": config.batch_size})

    def train() -> tuple[None, dict[str, Tensor]]:
        weights, accuracies = train_group(recipes, images, architecture, batch=config.batch_size)
        names = architecture.names
        return None, {names[name]: t for name, t in weights.items()} | {"accuracies": accuracies}

    _, found = kept.piece(str(subject), train)
    scores: list[float] = found.pop("accuracies").tolist()
    networks = [{name: t[i] for name, t in found.items()} for i in range(count)]
    cut = 2 * config.pairs
    module = architecture.module().eval().requires_grad_(False)
    return Trained(module, space_of(architecture), networks[:cut], networks[cut:], scores)
