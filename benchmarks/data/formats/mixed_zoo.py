"""Mixed zoos: small CNNs whose depths, widths, kernels and activations differ, made and loaded.

``make_mixed_zoo`` trains one (see `zoo_mixed_make`), ``load_mixed_zoo`` reads and splits it. Networks of equal
architecture come stacked, in a `Group` with its weight space; ``template(group.architecture)`` is the torch module.
"""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from nfn_monomial.benchmarks.make.mixed import make_mixed_zoo
from nfn_monomial.benchmarks.make.mixed_recipes import (
    Architecture,
    MixedActivation,
    MixedConfig,
    parameter_names,
    template,
)
from nfn_monomial.benchmarks.make.zoo import CONFIG_FILE

from .mixed_files import Group, group_path, read_config, read_group
from .zoo_layout import ZooError

__all__ = [
    "Architecture",
    "Group",
    "MixedActivation",
    "MixedConfig",
    "MixedZoo",
    "load_mixed_zoo",
    "make_mixed_zoo",
    "parameter_names",
    "template",
]

# 40, 10 and 50 percent, as for zoos of one architecture, in an order that spreads the parts over any run of networks.
SLOTS = ("train", "test", "train", "test", "val", "test", "train", "test", "train", "test")


@dataclass(frozen=True)
class MixedZoo:
    """The networks of a mixed zoo, split: each part a tuple of groups, none of them empty."""

    train: tuple[Group, ...]
    val: tuple[Group, ...]
    test: tuple[Group, ...]
    info: dict[str, object]


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
    found = read_config(folder)
    if found is None:
        raise ZooError(
            f"{folder} holds no {CONFIG_FILE}: mixed zoos are made by nfn-monomial zoo make --vary-architecture"
        )
    if "groups" not in found:
        raise ZooError(f"{folder} is not finished, its making was interrupted: the same zoo make command continues")
    groups = [read_group(group_path(folder, number))[0] for number in range(found["groups"])]
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
        "images": found["config"].get("images"),
        "architectures": len(groups),
        **{name: sum(map(len, part)) for name, part in parts.items()},
        "unseen_architectures": unseen_architectures,
        "split_seed": seed,
    }
    return MixedZoo(**parts, info=info)
