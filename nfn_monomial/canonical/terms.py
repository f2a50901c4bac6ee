"""What the scales or signs of a network's neurons act on: sums over all that they act on alike."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from nfn_monomial.space.axes import FieldType, paths_of, powers
from nfn_monomial.space.features import Features
from nfn_monomial.space.weight_space import WeightSpace
from nfn_monomial.symmetry import Symmetry


class Gauge(NamedTuple):
    """One gauge of one node, of whose neurons each has a scale or sign."""

    node: str
    number: int


class Charged(NamedTuple):
    """An axis on which some gauges act.

    Attributes:
        charges: gauge -> charge, none 0.
        dims: dimensions of the tensor along which the neurons lie; several for a nested node, the outermost first.
    """

    charges: tuple[tuple[Gauge, int], ...]
    dims: tuple[int, ...]


Term: TypeAlias = tuple[Tensor, tuple[Charged, ...]]


def charged_axes(space: WeightSpace, field_type: FieldType, charge: Callable[[Symmetry, int], int]) -> list[Charged]:
    """Axes of a field, of tensors ``(B, *axes, ..)``, on which a gauge acts: where its ``charge`` is not 0."""
    found = []
    for axis, path in zip(field_type, paths_of(field_type, space.nesting), strict=True):
        gauges = zip(space.nodes[axis.node].gauges, powers(axis.charge), strict=True)
        felt = [(Gauge(axis.node, i), charge(gauge, q)) for i, (gauge, q) in enumerate(gauges)]
        if charges := tuple((gauge, q) for gauge, q in felt if q):
            found.append(Charged(charges, tuple(1 + i for i in path)))
    return found


def summed(x: Tensor, axes: Sequence[Charged]) -> Term:
    """``(B, ..)`` summed over the dimensions on which nothing acts, and axes in the dimensions that are left."""
    kept = sorted({dim for axis in axes for dim in axis.dims})
    others = [dim for dim in range(1, x.ndim) if dim not in kept]
    moved = tuple(axis._replace(dims=tuple(1 + kept.index(dim) for dim in axis.dims)) for axis in axes)
    return x.sum(others) if others else x, moved


def scaled_squares(space: WeightSpace, features: Features) -> list[Term]:
    """Squares of the entries of a network, those that the same scales act on added up.

    Where two axes lie on one node, entries with the same neuron in both, which feel both charges of one scale, are a
    term of their own: weights from a neuron to itself do not change at all.

    Args:
        space: the weight space.
        features: of the space.

    Returns:
        Terms ``(B, *sizes)``, each with the axes on which scales act. Every gauge acts on no neuron twice.
    """
    found: dict[tuple[Charged, ...], Tensor] = {}
    for field_type, x in features.fields.items():
        if axes := charged_axes(space, field_type, lambda gauge, q: q * gauge.scales):
            for part, left in _apart(*summed(x.square(), axes)):
                square, moved = summed(part, left)
                found[moved] = found[moved] + square if moved in found else square
    return [(square, axes) for axes, square in found.items() if axes]


def _apart(x: Tensor, axes: Sequence[Charged]) -> Iterator[Term]:
    """Terms in which no two axes run over the same neurons, whose sum is ``x``."""
    for a, b in itertools.combinations(axes, 2):
        if a.charges[0][0].node != b.charges[0][0].node:
            continue
        charges: dict[Gauge, int] = {}
        for gauge, q in (*a.charges, *b.charges):
            charges[gauge] = charges.get(gauge, 0) + q
        both = tuple((gauge, q) for gauge, q in charges.items() if q)
        rest = [axis for axis in axes if axis is not a and axis is not b]
        same = _same(x, a.dims, b.dims)
        yield from _apart(x * same, [*rest, Charged(both, a.dims)] if both else rest)
        if same.numel() == 1:
            return
        x = x * ~same
    yield x, tuple(axes)


def _same(x: Tensor, dims: Sequence[int], others: Sequence[int]) -> Tensor:
    """Whether neurons along some dimensions are those along others, as what broadcasts to ``x``."""
    same = torch.ones([1] * x.ndim, dtype=torch.bool, device=x.device)
    for i, j in zip(dims, others, strict=True):
        if i != j:
            shape = [n if dim in (i, j) else 1 for dim, n in enumerate(x.shape)]
            same = same & torch.eye(x.shape[i], dtype=torch.bool, device=x.device).reshape(shape)
    return same


def ordered(space: WeightSpace, found: Mapping[Gauge, object]) -> list[Gauge]:
    """Gauges in the order of the nodes."""
    rank = list(space.nodes)
    return sorted(found, key=lambda gauge: (rank.index(gauge.node), gauge.number))
