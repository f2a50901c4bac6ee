"""Mixed zoos: small networks of many architectures, of one kind or several; read and split, and written.

A mixed zoo is a folder of ``zoo.json`` (the configuration; the number of architectures once all are there) and one
safetensors file per architecture, whose networks are stacked: the parameters of the weight space ``(N, *shape)``, as
``weight.i`` and ``bias.i`` of plain CNNs, or those of the module and its running statistics by their names in the state
dict; ``accuracy`` ``(N,)``. The architecture and the networks' recipes are JSON in the file's metadata, from which
modules and weight spaces are built again: numbers and names, no code.
"""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nfn_monomial import WeightSpace
from nfn_monomial.adapters.files import damaged, shown
from nfn_monomial.adapters.tensor_files import require_numbers
from nfn_monomial.benchmarks.data.images import IMAGE_SIZES
from nfn_monomial.benchmarks.data.layout import ZooError
from nfn_monomial.benchmarks.data.networks import Corpus, Networks, Part
from nfn_monomial.benchmarks.data.rows import IN_MEMORY_BYTES, Rows
from nfn_monomial.benchmarks.data.shards import OpenedShards, ShardRows
from nfn_monomial.benchmarks.reading import whole
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.tools.files import write_atomically
from nfn_monomial.tools.predictors.architectures import Architecture, architecture_of
from nfn_monomial.tools.predictors.models import MixedInfo, NetworkInfo
from nfn_monomial.tools.sealed import checksum_of, read_sealed, seal

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
WAY_OUT = "delete it and call zoo make again, which trains what is missing"
LEAST_BOUND = 256  # an architecture's numbers, as pixels or strides, are at most that or a dimension of a tensor
# 40, 10 and 50 percent, as for zoos of one architecture, in an order that spreads the parts over any run of networks.
SLOTS = ("train", "test", "train", "test", "val", "test", "train", "test", "train", "test")


class Group(Networks):
    """Trained networks of one architecture.

    Args:
        tensors: the parameters of ``space``, ``(N, *shape)``, float32; or rows of them.
        accuracy: float32 ``(N,)``, on the test images, in [0, 1].
        space: their weight space.
        architecture: what they are.
    """

    def __init__(
        self, tensors: Mapping[str, Tensor] | Rows, accuracy: Tensor, space: WeightSpace, architecture: Architecture
    ) -> None:
        super().__init__(tensors, accuracy)
        self.space, self.architecture = space, architecture

    def subset(self, index: Tensor | Sequence[int] | slice) -> Group:
        chosen = super().subset(index)
        return Group(chosen.rows, chosen.accuracy, self.space, self.architecture)


def group_path(folder: Path, number: int) -> Path:
    """The file of an architecture."""
    return folder / GROUPS.replace("*", f"{number:05d}")


def read_group(folder: Path, number: int, config: Mapping[str, object]) -> tuple[Group, int]:
    """A group, and how many networks diverged while it was made.

    Args:
        folder: of the zoo.
        number: of the group.
        config: of the zoo, which the group has to be of.

    Raises:
        ZooError: naming the file, if it is missing, damaged, or of another zoo or place.
    """
    path = group_path(folder, number)
    with damaged(path, WAY_OUT, ZooError):
        tensors, described = read_sealed(path)
        if described["number"] != number or described["config"] != config:
            raise InvalidValueError(f"it is group {shown(described['number'])} of a zoo, maybe another one")
        values = [n for v in described["architecture"].values() for n in (v if isinstance(v, list) else [v])]
        most = max(LEAST_BOUND, len(tensors), *itertools.chain.from_iterable(t.shape for t in tensors.values()))
        for value in values:  # before anything is built of them
            if isinstance(value, int) and value > most:
                raise InvalidValueError(f"its architecture has {value} of something, its tensors have at most {most}")
        architecture = architecture_of(described["architecture"])
        space, accuracy = architecture.space, tensors.pop("accuracy")
        if tensors.keys() != space.parameters.keys() or accuracy.ndim != 1:
            raise InvalidValueError(f"it holds {shown(list(tensors))}, expected the parameters of {space}")
        for name, shape in space.shapes().items():
            found = tuple(require_numbers(tensors[name], name).shape)
            if found != (len(accuracy), *shape):
                raise InvalidValueError(f"{name} has shape {found}, expected {(len(accuracy), *shape)}")
        if not bool(((require_numbers(accuracy, "accuracy") >= 0) & (accuracy <= 1)).all()):
            raise InvalidValueError("an accuracy is no share in [0, 1]")
        held = {name: tensors[name].float() for name in space.parameters}
        return Group(held, accuracy.float(), space, architecture), whole(described["diverged"], "diverged")


def write_group(
    folder: Path, number: int, config: Mapping[str, object], group: Group,
    recipes: Sequence[Mapping[str, object]], diverged: int,
) -> None:  # fmt: skip
    """Write a group and how its networks were trained; the file appears under its name only when it is complete."""
    described = {
        "number": number, "config": config, "architecture": group.architecture.described(), "recipes": list(recipes),
        "diverged": diverged,
    }  # fmt: skip
    write_atomically(group_path(folder, number), seal({**group.tensors, "accuracy": group.accuracy}, described))


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
            return Part(group, info)

        train, val, test = (tuple(map(part, groups)) for groups in (self.train, self.val, self.test))
        known = {(p.info.space, p.info.activation): p.info for p in (*train, *val, *test)}
        return Corpus("mixed", train, val, test, MixedInfo(tuple(known.values())), source=self.info)


def load_mixed_zoo(
    path: str | Path,
    *,
    unseen_architectures: bool = False,
    seed: int = 0,
    in_memory_bytes: int = IN_MEMORY_BYTES,
) -> MixedZoo:
    """Load a mixed zoo: 40 percent of the networks for training, 10 for validation, 50 for testing.

    Args:
        path: folder made by `make_mixed_zoo`.
        unseen_architectures: split the architectures rather than the networks, so that no two parts share one;
            otherwise the networks of every architecture are spread over the parts.
        seed: of the split.
        in_memory_bytes: networks whose files are larger stay there, and are read when they are asked for.

    Raises:
        ZooError: naming the file, if the zoo is missing, unfinished, damaged, of another kind, or too small to split.
    """
    folder = Path(path)
    config, count = _stated(folder)
    stay = sum(group_path(folder, number).stat().st_size for number in range(count)) > in_memory_bytes
    groups = [_loaded(folder, number, config, stay) for number in range(count)]
    if (found := sum(map(len, groups))) != config["networks"]:
        raise ZooError(
            f"{folder} holds {found} networks, but {CONFIG_FILE} states {shown(config['networks'])}: make the zoo again"
        )
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
        "images": config["images"],
        "architectures": len(groups),
        **{name: sum(map(len, part)) for name, part in parts.items()},
        "unseen_architectures": unseen_architectures,
        "split_seed": seed,
    }
    return MixedZoo(**parts, info=info)


def _loaded(folder: Path, number: int, config: Mapping[str, object], stay: bool) -> Group:
    """A group, whose networks stay in their file if they are to."""
    group = read_group(folder, number, config)[0]
    if not stay:
        return group
    paths, count = [group_path(folder, number)], len(group)
    shapes, checksums = group.space.shapes(), [checksum_of(paths[0])]
    rows = ShardRows(paths, OpenedShards(paths), [count], shapes, torch.arange(count), WAY_OUT, checksums)
    return Group(rows, group.accuracy.clone(), group.space, group.architecture)


def _stated(folder: Path) -> tuple[dict[str, Any], int]:
    """The configuration of a zoo, and the number of its architectures, each of which has its file."""
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
    with damaged(folder / CONFIG_FILE, "make the zoo again", ZooError):
        config: dict[str, Any] = found["config"]
        if config["images"] not in IMAGE_SIZES:
            raise InvalidValueError(f"images is {shown(config['images'])}, expected one of {', '.join(IMAGE_SIZES)}")
        there = len(list(folder.glob(GROUPS)))
        if whole(found["groups"], "groups") != there:
            raise InvalidValueError(f"groups is {found['groups']}, but there are {there} files {GROUPS}")
        return config, there


@register_format("mixed-zoo")
class MadeMixedZoo(Format):
    """A zoo of many architectures, made by ``zoo make --vary-architecture``; see `load_mixed_zoo`."""

    kind = "generalization"
    looks_for = f"{CONFIG_FILE} of a mixed zoo"

    @staticmethod
    def detects(path: Path) -> bool:
        return stated(path).get("kind") == KIND

    @staticmethod
    def load(
        path: str | Path,
        *,
        unseen_architectures: bool = False,
        seed: int = 0,
        in_memory_bytes: int = IN_MEMORY_BYTES,
    ) -> dict[str, Corpus]:
        """One corpus, ``mixed``; the options are those of `load_mixed_zoo`."""
        options: dict[str, Any] = {"unseen_architectures": unseen_architectures, "seed": seed}
        return {"mixed": load_mixed_zoo(path, **options, in_memory_bytes=in_memory_bytes).corpus()}
