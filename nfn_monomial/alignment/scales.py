"""The scales at which one network comes nearest to another, whose neurons stand in the same places."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from nfn_monomial.canonical.charges import Charged, Gauge, charged_axes, scaling
from nfn_monomial.space.weight_space import WeightSpace

_SWEEPS = 30
_ENOUGH = 1e-3  # of what is left of the squared distance: less is no step
_HALVINGS = 4


class _Term(NamedTuple):
    """Entries that the same scales act on: sums of products of the two networks, and of squares of the moved one."""

    products: Tensor
    squares: Tensor
    axes: list[Charged]


def nearest_scales(
    space: WeightSpace, a: Mapping[str, Tensor], b: Mapping[str, Tensor], sizes: Mapping[str, int]
) -> dict[Gauge, Tensor]:
    """Positive scales of every node that bring b next to a, by least squares.

    One gauge after the other takes a Gauss-Newton step on its neurons' log scales s, each of which has a part of the
    squared distance for itself, ``sum_q (C_q e^{2 q s} - 2 B_q e^{q s})`` with the sums B of products and C of squares
    of the entries that it scales with power q. Steps that do not get nearer are shortened, or left out.

    Args:
        space: the weight space.
        a: piece -> float64 tensors ``(*axes)``.
        b: the same, of the network to be scaled.
        sizes: of all nodes.

    Returns:
        Gauge -> scales ``(*sizes)``, of nodes that scale.
    """
    terms = [term for name in a if (term := _term(space, name, a[name], b[name]))]
    like = next(iter(a.values()))
    shapes = {name: [sizes[n] for n in space.ancestry(name)] for name, node in space.nodes.items() if node.scales}
    logs = {name: like.new_zeros(len(space.nodes[name].gauges), *shape) for name, shape in shapes.items()}
    left = sum(float((a[name] - b[name]).square().sum()) for name in a)
    moves = [(name, i) for name in logs for i, gauge in enumerate(space.nodes[name].gauges) if gauge.scales]
    for _ in range(_SWEEPS):
        won = 0.0
        for name, gauge in moves:
            step, gain = _step(_sums(terms, name, gauge, logs), logs[name][gauge])
            logs[name][gauge] += step
            won += gain
        left -= won
        if won <= _ENOUGH * left:
            break
    return {Gauge(name, i): log.exp() for name, found in logs.items() for i, log in enumerate(found)}


def _term(space: WeightSpace, name: str, a: Tensor, b: Tensor) -> _Term | None:
    scaled = charged_axes(space, space.axes[name], scaling, lead=0)
    kept = sorted({dim for axis in scaled for dim in axis.dims})
    others = [dim for dim in range(a.ndim) if dim not in kept]
    moved = [axis._replace(dims=tuple(kept.index(dim) for dim in axis.dims)) for axis in scaled]
    products, squares = a * b, b * b
    if others:
        products, squares = products.sum(others), squares.sum(others)
    return _Term(products, squares, moved) if scaled else None


def _sums(terms: list[_Term], node: str, gauge: int, logs: Mapping[str, Tensor]) -> dict[int, tuple[Tensor, Tensor]]:
    """Charge -> sums ``(*sizes)`` of products and of squares that a gauge of a node scales, scaled as they are."""
    found: dict[int, tuple[Tensor, Tensor]] = {}
    for term in terms:
        for own in term.axes:
            q = dict(own.charges).get(Gauge(node, gauge), 0)
            if not q:
                continue
            factors = [
                (torch.stack([p * logs[g.node][g.number] for g, p in x.charges]).sum(0), x.dims) for x in term.axes
            ]
            sums = []
            for entries, power in ((term.products, 1), (term.squares, 2)):
                parts = [part for log, dims in factors for part in (torch.exp(power * log), list(dims))]
                sums.append(torch.einsum(entries, list(range(entries.ndim)), *parts, list(own.dims)))
            before = found.get(q)
            found[q] = (sums[0], sums[1]) if before is None else (before[0] + sums[0], before[1] + sums[1])
    return found


def _step(sums: Mapping[int, tuple[Tensor, Tensor]], like: Tensor) -> tuple[Tensor, float]:
    """The step of each neuron, and by how much the squared distance shrinks."""

    def value(s: Tensor) -> Tensor:
        parts = [c * torch.exp(2 * q * s) - 2 * b * torch.exp(q * s) for q, (b, c) in sums.items()]
        return torch.stack(parts).sum(0)

    zero = torch.zeros_like(like)
    if not sums:
        return zero, 0.0
    slope = torch.stack([q * (c - b) for q, (b, c) in sums.items()]).sum(0)
    curvature = torch.stack([q * q * c for q, (_, c) in sums.items()]).sum(0)
    step = torch.where(curvature > 0, -slope / curvature, 0).clamp(-1, 1)
    before, best = value(zero), zero
    for _ in range(_HALVINGS):
        best = torch.where((best == 0) & (value(step) < before), step, best)
        step = step / 4
    return best, float((before - value(best)).sum())
