"""Signs of neurons: which of them are independent, and those that make an odd statistic of each neuron positive."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from nfn_monomial.linear_algebra import kernel
from nfn_monomial.space.axes import Axis, Charge, powers
from nfn_monomial.space.features import Features
from nfn_monomial.space.weight_space import WeightSpace

from .charges import Charged, NodeGauge, along, charged_axes, flipping, onto, summed

_Signs: TypeAlias = dict[str, Tensor]
"""Node -> signs ``(rank, B, *sizes)`` of its independent classes, see `SignBasis`; 0 for what is not known."""


def parity(space: WeightSpace, node: str, charge: Charge) -> int:
    """The sign gauges of a node that flip an axis of this charge, a bit for each."""
    gauges = zip(space.nodes[node].gauges, powers(charge), strict=True)
    return sum(1 << i for i, (gauge, q) in enumerate(gauges) if flipping(gauge, q))


class SignBasis:
    """The signs of one node's neurons, as independent ones that axes carry and that give all others.

    Some of the node's *classes*, sets of sign gauges that flip an axis together, are independent: their signs may be
    anything, and those of all other classes are products of them. (Linear algebra over GF(2).)

    Args:
        node: its name.
        classes: of the node's axes, see `parity`, those to be independent first.

    Attributes:
        rank: the number of independent classes.
        products: class -> the independent ones whose product it is, a bit for each.
        gauges: gauge -> the same; gauges that are left out may stay, as others do for them.
    """

    def __init__(self, node: str, classes: list[int]) -> None:
        # Unknowns are the signs of classes (by their bits) and of gauges (i as ~i). A class is the sum of its gauges,
        # and the kernel is written in the unknowns that come first.
        gauges = range(max(classes, default=0).bit_length())
        equations = [{flips: 1} | {~i: 1 for i in gauges if flips >> i & 1} for flips in classes]
        basis = kernel(equations, [*classes, *(~i for i in reversed(gauges))], 2)
        independent = [vector for vector in basis if next(iter(vector)) > 0]
        bits = {0: 0}
        for number, vector in enumerate(independent):
            for unknown in vector:
                bits[unknown] = bits.get(unknown, 0) | 1 << number
        self.rank = len(independent)
        self.products = {unknown: of for unknown, of in bits.items() if unknown >= 0}
        self.gauges = {NodeGauge(node, ~unknown): of for unknown, of in bits.items() if unknown < 0}

    def sign(self, signs: Tensor, flips: int) -> Tensor:
        """The sign of a class, from those of independent classes ``(rank, ...)``."""
        return _product(signs, self.products[flips])

    def of_gauges(self, signs: Tensor) -> dict[NodeGauge, Tensor]:
        """The sign of every gauge that has to flip, from those of independent classes."""
        return {gauge: _product(signs, of) for gauge, of in self.gauges.items()}

    def best(self, sums: Mapping[int, Tensor]) -> tuple[Tensor, Tensor]:
        """The most that sums over the entries of each class add up to, and signs of independent classes for that.

        Exact where all sums can be positive at once; else those of independent classes are. The sums ``(...)`` are all
        of one shape, signs ``(rank, ...)``.
        """
        like = next(iter(sums.values()))
        independent = {of: sums[flips] for flips, of in self.products.items() if flips in sums}
        chosen = like.new_ones(self.rank, *like.shape)
        for i in range(self.rank):
            if 1 << i in independent:
                chosen[i] = torch.where(independent[1 << i] < 0, -1.0, 1.0)
        return sum((x * self.sign(chosen, flips) for flips, x in sums.items()), torch.zeros_like(like)), chosen


def _product(signs: Tensor, of: int) -> Tensor:
    chosen = [sign for i, sign in enumerate(signs) if of >> i & 1]
    return functools.reduce(torch.mul, chosen) if chosen else signs.new_ones(signs.shape[1:])


def sign_bases(space: WeightSpace) -> dict[str, SignBasis]:
    """Node -> its basis."""
    classes: dict[str, list[int]] = {name: [] for name in space.nodes}
    for axes in space.axes.values():
        for axis in axes:
            if isinstance(axis, Axis) and (flips := parity(space, axis.node, axis.charge)):
                classes[axis.node].append(flips)
    # Signs of single gauges come first: the others are products of them.
    return {
        name: SignBasis(name, sorted(set(of_node), key=lambda flips: (flips.bit_count(), flips)))
        for name, of_node in classes.items()
    }


def sign_noise(dtype: torch.dtype) -> float:
    """Returns the part of the sum of sizes below which a sum of entries has no sign: they could be a few roundings off.

    Entries in 16 bits are exact numbers too, and count as those in float32: their own rounding is a quarter of a sum.
    """
    return 32 * min(torch.finfo(dtype).eps, torch.finfo(torch.float32).eps)


def canonical_signs(space: WeightSpace, features: Features, noise: float) -> dict[NodeGauge, Tensor]:
    """The signs of `balance`: gauge -> ``(B, *sizes)``, 0 where nothing settles them.

    Gauges that may stay because others flip instead are left out. Sums of less than the part ``noise`` of the sum of
    sizes count as 0.
    """
    odd = _OddSums(space, features)
    signs = dict(odd.unknown)
    for _ in range(max([len(x) for x in signs.values()], default=0)):
        odd.settle(signs, noise)
    return odd.of_gauges(signs)


def relative_signs(space: WeightSpace, products: Features) -> dict[NodeGauge, Tensor]:
    """The signs that turn one network into another, from their product, which is positive but for these signs.

    The product is taken entry by entry, of networks whose neurons are in the same order. Where nothing settles any
    sign, one neuron keeps its own, which settles those of its neighbours: so no sign is 0, unlike those of
    `canonical_signs`.
    """
    odd = _OddSums(space, products)
    ones = {name: torch.ones_like(x) for name, x in odd.unknown.items()}
    signs = {
        name: torch.stack([(odd.sums(ones, name, i)[1] == 0).to(one) for i, one in enumerate(x)])
        for name, x in ones.items()
    }
    while open_ := [name for name, x in signs.items() if not x.all()]:
        before = {name: signs[name] for name in open_}
        odd.settle(signs, 0.0)
        if all(torch.equal(x, signs[name]) for name, x in before.items()):
            first = (signs[open_[0]] == 0).nonzero()[0]
            signs[open_[0]][tuple(first)] = 1
    return odd.of_gauges(signs)


def without_signs(space: WeightSpace, features: Features, noise: float) -> Features:
    """Features with their canonical signs; the size of an entry with a sign that nothing settles.

    Invariant under all sign flips, where the canonical form is so only as far as its signs are settled.
    """
    known, out = canonical_signs(space, features.detach(), noise), []
    for field_type, x in features.fields.items():
        signed, open_ = x, torch.zeros_like(x, dtype=torch.bool)
        for axis in charged_axes(space, field_type, flipping):
            for sign in (along(known[g], axis.dims, x.ndim) for g, _ in axis.charges if g in known):
                signed, open_ = signed * sign, open_ | (sign == 0)
        out.append(torch.where(open_, x.abs(), signed))
    return Features(features.layout, tuple(out))


class _Flipped(NamedTuple):
    """An axis that signs flip: its node, the independent classes that do (bits), whether it is incoming, and where."""

    node: str
    of: int
    incoming: bool
    dims: tuple[int, ...]


class _OddSums:
    """Sums of the entries that flip, and of their sizes; and of their cubes. Signs can be taken out of these sums."""

    def __init__(self, space: WeightSpace, features: Features) -> None:
        self.space, self.bases = space, sign_bases(space)
        first, sizes = features.tensors[0], space.node_sizes(features)
        self.unknown: _Signs = {
            name: first.new_zeros(basis.rank, len(first), *(sizes[above] for above in space.ancestry(name)))
            for name, basis in self.bases.items()
            if basis.rank
        }
        self._terms: list[tuple[list[_Flipped], list[tuple[Tensor, Tensor]]]] = []
        for field_type, x in features.fields.items():
            if axes := charged_axes(space, field_type, flipping):
                # No two weighted alike, or entries that balancing has made equal may cancel.
                place = 2 + len(self._terms)
                cubes = x * x * x * torch.linspace(1, place, x.shape[-1], dtype=x.dtype, device=x.device) / place
                moments = [(summed(y, axes)[0], summed(y.abs(), axes)[0]) for y in (x, cubes)]
                self._terms.append(([self._flipped(axis) for axis in summed(x, axes)[1]], moments))

    def _flipped(self, axis: Charged) -> _Flipped:
        node = axis.charges[0][0].node
        flips = sum(1 << gauge.number for gauge, _ in axis.charges)
        return _Flipped(node, self.bases[node].products[flips], any(q > 0 for _, q in axis.charges), axis.dims)

    def of_gauges(self, signs: _Signs) -> dict[NodeGauge, Tensor]:
        return {gauge: x for name in signs for gauge, x in self.bases[name].of_gauges(signs[name]).items()}

    def sums(
        self, signs: _Signs, node: str, number: int, moment: int = 0, incoming: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Sums of the entries that one sign of a node flips and else only known ones, taken out; and of their sizes."""
        total, size = (torch.zeros_like(signs[node][number]) for _ in range(2))
        for axes, moments in self._terms:
            for target in axes:
                if target.node != node or not target.of >> number & 1 or (incoming and not target.incoming):
                    continue
                x, absolute = moments[moment]
                for axis in axes:
                    of = axis.of ^ (1 << number) if axis is target else axis.of
                    if of:
                        sign = along(_product(signs[axis.node], of), axis.dims, x.ndim)
                        x, absolute = x * sign, absolute * sign.abs()
                total, size = total + onto(x, target.dims), size + onto(absolute, target.dims)
        return total, size

    def settle(self, signs: _Signs, noise: float) -> None:
        """Settles signs by their sums, from inputs to outputs by incoming entries, then backwards by all entries.

        Incoming entries come first alone because a single incoming and a single outgoing weight, balanced, may cancel.
        """
        order = [(name, i) for name in signs for i in range(len(signs[name]))]
        for incoming, (node, number) in [*((True, x) for x in order), *((False, x) for x in reversed(order))]:
            known = signs[node]
            sign = known[number]
            for moment in range(2):
                total, size = self.sums(signs, node, number, moment, incoming)
                sign = torch.where(sign != 0, sign, total.sign() * (total.abs() > noise * size))
            signs[node] = torch.stack([sign if i == number else x for i, x in enumerate(known)])
