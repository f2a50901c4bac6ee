"""Mixed zoos: small networks of many architectures, of one kind or several; read and split, and written.

A mixed zoo is a folder of ``zoo.json`` (the configuration; the number of architectures once all are there) and one
safetensors file per architecture, whose networks are stacked: the parameters of the weight space ``(N, *shape)``, as
``weight.i`` and ``bias.i`` of plain CNNs, or those of the module and its running statistics by their names in the state
dict; ``accuracy`` ``(N,)``. The architecture and the networks' recipes are JSON in the file's metadata, from which
modules and weight spaces are built again: numbers and names, no code.
"""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from nfn_monomial import WeightSpace
from nfn_monomial.benchmarks.data.architectures.base import Architecture
from nfn_monomial.benchmarks.data.architectures.reading import architecture_of
from nfn_monomial.benchmarks.data.images import IMAGE_SIZES
from nfn_monomial.benchmarks.data.layout import ZooError
from nfn_monomial.benchmarks.data.networks import Corpus, MixedInfo, NetworkInfo, Networks, Part
from nfn_monomial.benchmarks.files import write_atomically
from nfn_monomial.errors import InvalidValueError

from .base import Format, register_format
from .zoo_files import CONFIG_FILE, stated

__all__ = [
    "GROUPS",
    "KIND",
    "Group",
    "MadeMixedZoo",
    "MixedZoo",
    "group_path",
    "load_mixed_zoo",
    "read_group",
    "write_group",
]

KIND = "mixed"
GROUPS = "group_*.safetensors"
# 40, 10 and 50 percent, as for zoos of one architecture, in an order that spreads the parts over any run of networks.
SLOTS = ("train", "test", "train", "test", "val", "test", "train", "test", "train", "test")


@dataclass(frozen=True)
class Group:
    """Trained networks of one architecture, stacked.

    ``tensors``: the parameters of ``space``, ``(N, *shape)``; float32. ``accuracy``: float32 ``(N,)``, on the
    test images, in [0, 1].
    """

    tensors: dict[str, Tensor]
    accuracy: Tensor
    space: WeightSpace
    architecture: Architecture

    def __len__(self) -> int:
        return len(self.accuracy)

    def subset(self, index: Tensor | Sequence[int] | slice) -> Group:
        """The networks with these numbers, in this order."""
        chosen = index if isinstance(index, slice) else torch.as_tensor(index)
        tensors = {name: t[chosen] for name, t in self.tensors.items()}
        return replace(self, tensors=tensors, accuracy=self.accuracy[chosen])


def group_path(folder: Path, number: int) -> Path:
    """The file of an architecture."""
    return folder / GROUPS.replace("*", f"{number:05d}")


def read_group(path: Path) -> tuple[Group, int]:
    """A group, and how many networks diverged while it was made; raises a ZooError that names the file."""
    try:
        with safe_open(path, framework="pt") as file:
            described = json.loads(file.metadata()["group"])
            architecture = architecture_of(described["architecture"])
            space = architecture.space
            tensors = {name: file.get_tensor(name) for name in space.parameters}
            accuracy = file.get_tensor("accuracy")
        for name, shape in space.shapes().items():
            if tuple(tensors[name].shape) != (len(accuracy), *shape):
                found = tuple(tensors[name].shape)
                raise InvalidValueError(f"{name} has shape {found}, expected {(len(accuracy), *shape)}")
        space.validate({name: t.unsqueeze(1) for name, t in tensors.items()})
        return Group(tensors, accuracy, space, architecture), int(described["diverged"])
    except (SafetensorError, OSError, KeyError, TypeError, ValueError, AttributeError) as error:
        way_out = "delete it and call zoo make again, which trains what is missing"
        raise ZooError(f"{path} is missing or damaged ({error!r}): {way_out}") from error


def write_group(path: Path, group: Group, recipes: Sequence[Mapping[str, object]], diverged: int) -> None:
    """Write a group and how its networks were trained; the file appears under its name only when it is complete."""
    described = {"architecture": group.architecture.described(), "recipes": list(recipes), "diverged": diverged}
    tensors = {name: t.contiguous() for name, t in {**group.tensors, "accuracy": group.accuracy}.items()}
    write_atomically(path, save(tensors, {"group": json.dumps(described)}))  # one entry: their order is not fixed


@dataclass(frozen=True)
class MixedZoo:
    """The networks of a mixed zoo, split: each part a tuple of groups, none of them empty."""

    train: tuple[Group, ...]
    val: tuple[Group, ...]
    test: tuple[Group, ...]
    info: dict[str, object]

    def corpus(self) -> Corpus:
        """The networks as experiments read them, with templates."""
        size = IMAGE_SIZES[str(self.info["images"])]

        def part(group: Group) -> Part:
            a = group.architecture
            info = NetworkInfo(group.space, a.activation, a.module, (a.channels_in, size, size))
            return Part(Networks(group.tensors, group.accuracy), info)

        train, val, test = (tuple(map(part, groups)) for groups in (self.train, self.val, self.test))
        known = {(p.info.space, p.info.activation): p.info for p in (*train, *val, *test)}
        return Corpus("mixed", train, val, test, MixedInfo(tuple(known.values())), source=self.info)


def load_mixed_zoo(path: str | Path, *, unseen_architectures: bool = False, seed: int = 0) -> MixedZoo:
    """Load a mixed zoo: 40 percent of the networks for training, 10 for validation, 50 for testing.

    Args:
        path: folder made by `make_mixed_zoo`.
        unseen_architectures: split the architectures rather than the networks, so that no two parts share one;
            otherwise the networks of every architecture are spread over the parts.
        seed: of the split.

    Raises:
        ZooError: naming the file, if the zoo is missing, unfinished, damaged, of another kind, or too small to split.
    """
    folder = Path(path)
    images, count = _stated(folder)
    groups = [read_group(group_path(folder, number))[0] for number in range(count)]
    rng = random.Random(seed)
    units: list[tuple[int, list[int]]] = []  # a group and networks of it that stay together
    for number, group in enumerate(groups):
        rows = list(range(len(group)))
        rng.shuffle(rows)
        units += [(number, rows)] if unseen_architectures else [(number, [row]) for row in rows]
    if unseen_architectures:
        rng.shuffle(units)
    if len(units) <= SLOTS.index("val"):
        what = "architectures" if unseen_architectures else "networks"
        raise ZooError(f"{folder} has {len(units)} {what}, too few for three parts: make a larger zoo")
    chosen: dict[str, dict[int, list[int]]] = {name: defaultdict(list) for name in ("train", "val", "test")}
    for place, (number, rows) in enumerate(units):
        chosen[SLOTS[place % len(SLOTS)]][number] += rows
    parts = {
        name: tuple(groups[number].subset(sorted(rows)) for number, rows in sorted(part.items()))
        for name, part in chosen.items()
    }
    info: dict[str, object] = {
        "path": str(folder),
        "images": images,
        "architectures": len(groups),
        **{name: sum(map(len, part)) for name, part in parts.items()},
        "unseen_architectures": unseen_architectures,
        "split_seed": seed,
    }
    return MixedZoo(**parts, info=info)


def _stated(folder: Path) -> tuple[str, int]:
    """Which images the networks of a zoo classify, and the number of its architectures."""
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise ZooError(f"{folder} {what}: give the folder of a mixed zoo")
    found = stated(folder)
    if not found:
        raise ZooError(
            f"{folder} holds no {CONFIG_FILE}: mixed zoos are made by nfn-monomial zoo make --vary-architecture"
        )
    if found.get("kind") != KIND:
        raise ZooError(f"{folder} holds a zoo of one architecture, which load_zoo reads, and no mixed one")
    if "groups" not in found:
        raise ZooError(f"{folder} is not finished, its making was interrupted: the same zoo make command continues")
    try:
        images, count = found["config"]["images"], int(found["groups"])
        if images not in IMAGE_SIZES:
            raise InvalidValueError(f"images is {images!r}")
        return images, count
    except (ValueError, KeyError, TypeError) as error:
        raise ZooError(f"{folder / CONFIG_FILE} is damaged ({error!r}): make the zoo again") from error


@register_format("mixed-zoo")
class MadeMixedZoo(Format):
    """A zoo of many architectures, made by ``zoo make --vary-architecture``; see `load_mixed_zoo`."""

    kind = "generalization"
    looks_for = f"{CONFIG_FILE} of a mixed zoo"

    @staticmethod
    def detects(path: Path) -> bool:
        return stated(path).get("kind") == KIND

    @staticmethod
    def load(path: str | Path, *, unseen_architectures: bool = False, seed: int = 0) -> dict[str, Corpus]:
        """One corpus, ``mixed``; the options are those of `load_mixed_zoo`."""
        return {"mixed": load_mixed_zoo(path, unseen_architectures=unseen_architectures, seed=seed).corpus()}
