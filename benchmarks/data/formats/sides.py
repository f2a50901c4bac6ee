"""The sides of networks, train, val and test: by a column, or drawn."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import torch

from nfn_monomial.benchmarks.data.networks import SIDES
from nfn_monomial.checks import listed, shown

from .base import CorpusError
from .result_tables import TableLine, text_of

__all__ = ["sides_by", "sides_drawn", "together"]

CALLED = {"training": "train", "validation": "val", "valid": "val", "dev": "val", "testing": "test"}
SHARES = {"test": 0.15, "val": 0.15}  # of the networks; the others are trained on
FEWEST = 3  # on a side
DRAWS = 200  # until all sides have different targets


def together(shared: Sequence[Iterable[Hashable]]) -> list[int]:
    """Returns the number of each one's group: those that share anything, directly or through others, are in one."""
    group = list(range(len(shared)))
    owner: dict[Hashable, int] = {}

    def root(i: int) -> int:
        while group[i] != i:
            i = group[i]
        return i

    for i, keys in enumerate(shared):
        for one in keys:
            group[root(i)] = root(owner.setdefault(one, i))
    return [root(i) for i in range(len(shared))]


def sides_drawn(
    groups: Sequence[int], targets: Sequence[Any], seed: int, shares: Mapping[str, float] = SHARES
) -> list[str]:
    """Draws whole groups, so that each side has about its share and different targets, and train all classes.

    Raises:
        CorpusError: if that cannot be.
    """
    members: dict[int, list[int]] = defaultdict(list)
    for i, group in enumerate(groups):
        members[group].append(i)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(DRAWS):
        order = [list(members.values())[i] for i in torch.randperm(len(members), generator=generator).tolist()]
        sides = ["train"] * len(groups)
        for side, share in shares.items():
            missing = max(FEWEST, round(share * len(groups)))
            while missing > 0 and order:
                drawn = order.pop()
                for i in drawn:
                    sides[i] = side
                missing -= len(drawn)
        wrong = _wrong(sides, targets, ("train", *shares))
        if not wrong:
            return sides
    raise CorpusError(
        f"{len(groups)} networks in {len(members)} groups cannot be drawn so that {wrong}: give more networks, or "
        "smaller groups"
    )


def sides_by(
    column: str, lines: Sequence[TableLine], groups: Sequence[int], targets: Sequence[Any], seed: int
) -> tuple[list[str], str]:
    """Returns sides as a column says, with validation drawn if it has none; and in words, how they were chosen.

    Raises:
        CorpusError: naming a cell that is no side, or the condition that the sides break.
    """
    texts = [text_of(line.cells.get(column)).lower() for line in lines]
    sides = [CALLED.get(text, text) for text in texts]
    if other := sorted(set(sides) - set(SIDES)):
        place = lines[sides.index(other[0])].place
        raise CorpusError(f"{place}: {column} is {shown(other[0])}, expected {', '.join(SIDES)}")
    said = f"by the column {column}"
    if "val" not in sides:
        inner = [i for i, side in enumerate(sides) if side == "train"]
        some = [[values[i] for i in inner] for values in (groups, targets)]
        for i, side in zip(inner, sides_drawn(some[0], some[1], seed, {"val": SHARES["val"]}), strict=True):
            sides[i] = side
        said += f", val drawn from train with seed {seed}"
    if wrong := _wrong(sides, targets, SIDES):
        raise CorpusError(f"the column {column} does not see to it that {wrong}")
    return sides, said


def _wrong(sides: Sequence[str], targets: Sequence[Any], needed: Iterable[str]) -> str:
    """Returns the condition that sides break: all are there, with different targets, and train has all classes."""
    values = {side: {t for t, s in zip(targets, sides, strict=True) if s == side} for side in needed}
    if few := [side for side, different in values.items() if len(different) < 2]:
        return f"there are two different values in {' and in '.join(few)}"
    new = set(targets) - values["train"]
    return f"train has networks of class {listed(sorted(new))}" if new and isinstance(targets[0], str) else ""
