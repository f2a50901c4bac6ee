"""Which signs turn the neurons of one network into those of another, whose neurons stand in the same places.

The product of two such networks, entry by entry, is positive but for their signs; so their signs are those that make
sums of products positive.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from nfn_monomial.space.axes import Axis, Charge, paths_of, powers
from nfn_monomial.space.weight_space import WeightSpace


def parity(space: WeightSpace, node: str, charge: Charge) -> int:
    """Which sign gauges of a node flip an axis of this charge, a bit for each."""
    gauges = space.nodes[node].gauges
    odd = (gauge.flips and q % 2 == 1 for gauge, q in zip(gauges, powers(charge), strict=True))
    return sum(1 << i for i, flips in enumerate(odd) if flips)


class SignBasis:
    """The signs of one node's neurons, as independent ones that axes carry and that give all others.

    Some of the node's *classes*, sets of sign gauges that flip an axis together, are independent: their signs may be
    anything, and those of all other classes are products of them. (Linear algebra over GF(2).)

    Args:
        classes: of a node's axes, see `parity`, those to be independent first.
    """

    def __init__(self, classes: list[int]) -> None:
        rows: list[tuple[int, int, int]] = []  # vector, its lowest bit, of which independent classes it is the sum
        self.products = {0: 0}
        for found in classes:
            vector, combination = found, 0
            for row, lowest, of in rows:
                if vector & lowest:
                    vector, combination = vector ^ row, combination ^ of
            if vector:
                new = 1 << len(rows)
                lowest, of = vector & -vector, combination ^ new
                rows = [(r ^ vector, b, c ^ of) if r & lowest else (r, b, c) for r, b, c in rows]
                rows.append((vector, lowest, of))
                combination = new
            self.products[found] = combination
        self._gauges = {lowest.bit_length() - 1: of for _, lowest, of in rows}
        self.rank = len(rows)

    def sign(self, signs: Tensor, found: int) -> Tensor:
        """The sign of a class, from those of independent classes ``(rank, ...)``."""
        return _product(signs, self.products[found])

    def of_gauges(self, signs: Tensor, count: int) -> list[Tensor]:
        """The sign of every gauge, from those of independent classes; +1 where others do for it."""
        return [_product(signs, self._gauges.get(gauge, 0)) for gauge in range(count)]

    def best(self, sums: Mapping[int, Tensor]) -> tuple[Tensor, Tensor]:
        """The signs at which sums over the entries of each class add up to the most.

        Exact where all sums can be positive at once; else those of independent classes are.

        Args:
            sums: class -> tensor of any shape, all of one.

        Returns:
            The total, and signs of independent classes ``(rank, ...)``.
        """
        like = next(iter(sums.values()))
        independent = {of: sums[found] for found, of in self.products.items() if found in sums}
        flips = [independent.get(1 << i) for i in range(self.rank)]
        signs = [torch.ones_like(like) if x is None else torch.where(x < 0, -1.0, 1.0).to(like) for x in flips]
        chosen = torch.stack(signs) if signs else like.new_ones(0, *like.shape)
        total = torch.zeros_like(like)
        for found, x in sums.items():
            total = total + x * self.sign(chosen, found)
        return total, chosen


def _product(signs: Tensor, of: int) -> Tensor:
    chosen = [i for i in range(len(signs)) if of >> i & 1]
    return signs[chosen].prod(0) if chosen else signs.new_ones(signs.shape[1:])


def sign_bases(space: WeightSpace) -> dict[str, SignBasis]:
    """Of every node."""
    found: dict[str, list[int]] = {name: [] for name in space.nodes}
    for axes in space.axes.values():
        for axis in axes:
            if isinstance(axis, Axis) and (own := parity(space, axis.node, axis.charge)) not in (0, *found[axis.node]):
                found[axis.node].append(own)
    # Weights from inputs, which nothing flips, come first: a sign that they tell is not to be read off others.
    return {name: SignBasis(classes) for name, classes in found.items()}


class _Flipped(NamedTuple):
    """An axis that flips: its node, its class, dimensions of the tensor along which its neurons lie."""

    node: str
    found: int
    dims: tuple[int, ...]


def relative_signs(
    space: WeightSpace, bases: Mapping[str, SignBasis], products: Mapping[str, Tensor], sizes: Mapping[str, int]
) -> dict[str, list[Tensor]]:
    """The signs that make products of two networks positive, from inputs to outputs and back.

    A neuron is settled by the sum of the products that carry its sign and none that is not settled yet. Where nothing
    else is, one neuron is settled as it is, which leaves its neighbours to be told.

    Args:
        space: the weight space.
        bases: see `sign_bases`.
        products: of pieces, entry by entry, ``(*axes)``.
        sizes: of all nodes.

    Returns:
        Node -> signs ``(neurons,)`` of each gauge.
    """
    terms = [term for name, x in products.items() if (term := _term(space, name, x))]
    like = next(iter(products.values()))
    shapes = {name: [sizes[n] for n in space.ancestry(name)] for name in space.nodes if bases[name].rank}
    signs = {name: like.new_zeros(bases[name].rank, *shape) for name, shape in shapes.items()}
    for name in signs:
        for i in range(bases[name].rank):
            size = _field(terms, bases, name, i, {n: torch.ones_like(s) for n, s in signs.items()}, sizes=True)
            signs[name][i] = (size == 0).to(like)
    order = [(name, i) for name in signs for i in range(bases[name].rank)]
    waiting = len(order) > 0
    while waiting:
        settled = False
        for name, i in (*order, *reversed(order)):
            open_ = signs[name][i] == 0
            if bool(open_.any()):
                new = torch.where(open_, _field(terms, bases, name, i, signs).sign(), 0)
                settled = settled or bool(new.any())
                signs[name][i] += new
        left = next(((name, i) for name, i in order if bool((signs[name][i] == 0).any())), None)
        if left is not None and not settled:
            flat = signs[left[0]][left[1]].view(-1)
            flat[(flat == 0).nonzero()[0]] = 1
        waiting = left is not None
    return {
        name: [s.flatten() for s in bases[name].of_gauges(found, len(space.nodes[name].gauges))]
        for name, found in signs.items()
    }


def _term(space: WeightSpace, name: str, x: Tensor) -> tuple[Tensor, list[_Flipped]] | None:
    """The products of a piece, those that carry the same signs added up, and where the signs are."""
    axes = space.axes[name]
    flipped = [
        _Flipped(axis.node, found, path)
        for axis, path in zip(axes, paths_of(axes, space.nesting), strict=True)
        if isinstance(axis, Axis) and (found := parity(space, axis.node, axis.charge))
    ]
    kept = sorted({dim for axis in flipped for dim in axis.dims})
    others = [dim for dim in range(x.ndim) if dim not in kept]
    moved = [axis._replace(dims=tuple(kept.index(dim) for dim in axis.dims)) for axis in flipped]
    return (x.sum(others) if others else x, moved) if flipped else None


def _field(
    terms: list[tuple[Tensor, list[_Flipped]]], bases: Mapping[str, SignBasis], node: str, number: int,
    signs: Mapping[str, Tensor], sizes: bool = False,
) -> Tensor:  # fmt: skip
    """Sums ``(*sizes)`` of the products that carry one sign of a node's neurons, times the others that they carry."""
    total = torch.zeros_like(signs[node][number])
    for x, flipped in terms:
        for own in (axis for axis in flipped if axis.node == node):
            of = bases[node].products[own.found]
            if not of >> number & 1:
                continue
            others = [
                part
                for axis in flipped
                if axis is not own
                for part in (bases[axis.node].sign(signs[axis.node], axis.found), list(axis.dims))
            ]
            entries = x.abs() if sizes else x
            found = torch.einsum(entries, list(range(x.ndim)), *others, list(own.dims))
            total = total + found * _product(signs[node], of ^ (1 << number))
    return total
