"""Charged axes, on which the scales or signs of neurons act, and sums over all entries on which they act alike."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from nfn_monomial.space.axes import Axis, powers
from nfn_monomial.space.features import Features
from nfn_monomial.space.weight_space import WeightSpace
from nfn_monomial.symmetry import Symmetry


class NodeGauge(NamedTuple):
    """One gauge of one node: each of its neurons has a scale or sign."""

    node: str
    number: int


class Charged(NamedTuple):
    """An axis on which some gauges act.

    Attributes:
        charges: gauge -> charge, none 0.
        dims: dimensions of the tensor along which the neurons lie; several for a nested node, the outermost first.
    """

    charges: tuple[tuple[NodeGauge, int], ...]
    dims: tuple[int, ...]


Term: TypeAlias = tuple[Tensor, tuple[Charged, ...]]


def charged_axes(
    space: WeightSpace, axes: Sequence[Axis | int], charge: Callable[[Symmetry, int], int]
) -> list[Charged]:
    """Axes of tensors ``(B, *axes, ..)`` on which a gauge acts: where what ``charge`` makes of its power is not 0."""
    charged = []
    for place in space.places_of(axes):
        gauges = zip(space.nodes[place.node].gauges, powers(place.charge), strict=True)
        felt = [(NodeGauge(place.node, i), charge(gauge, q)) for i, (gauge, q) in enumerate(gauges)]
        if charges := tuple((gauge, q) for gauge, q in felt if q):
            charged.append(Charged(charges, place.dims()))
    return charged


def scaling(gauge: Symmetry, charge: int) -> int:
    """The charge if the gauge scales, else 0."""
    return charge * gauge.scales


def flipping(gauge: Symmetry, charge: int) -> int:
    """The charge if the gauge's sign flips an axis of it, else 0."""
    return charge if gauge.flips and charge % 2 else 0


def summed(x: Tensor, axes: Sequence[Charged], total: Callable[[Tensor, list[int]], Tensor] = torch.sum) -> Term:
    """``(B, ..)`` summed over the dimensions on which nothing acts, and axes in the dimensions that are left."""
    kept = sorted({dim for axis in axes for dim in axis.dims})
    others = [dim for dim in range(1, x.ndim) if dim not in kept]
    moved = tuple(axis._replace(dims=tuple(1 + kept.index(dim) for dim in axis.dims)) for axis in axes)
    return total(x, others) if others else x, moved


def log_squares(space: WeightSpace, features: Features) -> list[Term]:
    """Logarithms of squares of the entries of a network, those that the same scales act on added up.

    Where two axes lie on one node, entries with the same neuron in both, which feel both charges of one scale, are a
    term of their own: weights from a neuron to itself do not change at all. So a gauge acts on no neuron of a term
    twice.
    """
    terms: dict[tuple[Charged, ...], Tensor] = {}
    for field_type, x in features.fields.items():
        if axes := charged_axes(space, field_type, scaling):
            if x.dtype == wide_dtype(x):
                squares, moved = summed(2 * x.abs().log(), axes, torch.logsumexp)
            else:
                norms, moved = summed(x, axes, _norm)
                squares = 2 * norms.to(wide_dtype(x)).abs().log()
            for part, left in _apart(squares, moved):
                log, moved = summed(part, left, torch.logsumexp)
                terms[moved] = torch.logaddexp(terms[moved], log) if moved in terms else log
    return [(log, axes) for axes, log in terms.items() if axes]


def _norm(x: Tensor, dims: list[int]) -> Tensor:
    """Norms in the widest dtype, in which squares of all others have room."""
    norm: Tensor = torch.linalg.vector_norm(x, 2, dims, dtype=wide_dtype(x))
    return norm


def _apart(x: Tensor, axes: Sequence[Charged]) -> Iterator[Term]:
    """Terms in which no two axes run over the same neurons, whose sum is that of the logarithms ``x``."""
    for a, b in itertools.combinations(axes, 2):
        if a.charges[0][0].node != b.charges[0][0].node:
            continue
        charges: dict[NodeGauge, int] = {}
        for gauge, q in (*a.charges, *b.charges):
            charges[gauge] = charges.get(gauge, 0) + q
        both = tuple((gauge, q) for gauge, q in charges.items() if q)
        rest = [axis for axis in axes if axis is not a and axis is not b]
        same = _same(x, a.dims, b.dims)
        yield from _apart(torch.where(same, x, -torch.inf), [*rest, Charged(both, a.dims)] if both else rest)
        if same.numel() == 1:
            return
        x = torch.where(same, -torch.inf, x)
    yield x, tuple(axes)


def _same(x: Tensor, dims: Sequence[int], others: Sequence[int]) -> Tensor:
    """Marks the entries whose neurons along some dimensions are those along others; broadcasts to ``x``."""
    same = torch.ones([1] * x.ndim, dtype=torch.bool, device=x.device)
    for i, j in zip(dims, others, strict=True):
        if i != j:
            shape = [n if dim in (i, j) else 1 for dim, n in enumerate(x.shape)]
            same = same & torch.eye(x.shape[i], dtype=torch.bool, device=x.device).reshape(shape)
    return same


def wide_dtype(x: Tensor) -> torch.dtype:
    """The dtype in which scales of a tensor are computed: float64, or float32 on devices that have nothing wider."""
    return torch.float32 if x.device.type == "mps" else torch.float64


def along(v: Tensor, dims: Sequence[int], ndim: int) -> Tensor:
    """``(B, *sizes)`` with its sizes in the places ``dims`` of ``ndim``, and 1 in the others."""
    order = sorted(range(len(dims)), key=lambda i: dims[i])
    sizes = dict(zip(dims, v.shape[1:], strict=True))
    moved = v if order == list(range(len(dims))) else v.permute(0, *(1 + i for i in order))
    return moved.reshape(v.shape[0], *(sizes.get(d, 1) for d in range(1, ndim)))


def onto(x: Tensor, dims: Sequence[int], total: Callable[[Tensor, list[int]], Tensor] = torch.sum) -> Tensor:
    """The sum, or another ``total``, over all dimensions but the batch and ``dims``, which stand in that order."""
    others = [d for d in range(1, x.ndim) if d not in dims]
    left = total(x, others) if others else x
    kept = sorted(dims)
    return left if kept == list(dims) else left.permute(0, *(1 + kept.index(d) for d in dims))
