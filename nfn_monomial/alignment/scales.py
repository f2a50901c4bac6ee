"""The scales at which one network comes nearest to another, whose neurons stand in the same places."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from nfn_monomial.canonical.charges import Charged, Gauge, along, charged_axes, onto, scaling, summed
from nfn_monomial.space.weight_space import WeightSpace

_SWEEPS = 30
_ENOUGH = 1e-3  # of what is left of the squared distance: less is no step
_HALVINGS = 4


class _Term(NamedTuple):
    """Entries that the same scales act on: sums of products of the two networks, and of squares of the moved one."""

    products: Tensor
    squares: Tensor
    axes: tuple[Charged, ...]


def nearest_scales(space: WeightSpace, a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> dict[Gauge, Tensor]:
    """Positive scales of every gauge that bring b next to a, by least squares.

    One gauge after the other takes a Gauss-Newton step on its neurons' log scales s, each of which has a part of the
    squared distance for itself, ``sum_q (C_q e^{2 q s} - 2 B_q e^{q s})`` with the sums B of products and C of squares
    of the entries that it scales with power q. Steps that do not get nearer are shortened, or left out.

    Args:
        space: the weight space.
        a: piece -> float64 tensors ``(*axes)``.
        b: the same, of the network to be scaled.

    Returns:
        Gauge -> scales ``(1, *sizes)``.
    """
    terms: list[_Term] = []
    touching: dict[Gauge, list[tuple[int, Charged, int]]] = {}
    for name, x in b.items():
        if axes := charged_axes(space, space.axes[name], scaling):
            squares, axes_left = summed(x.square()[None], axes)
            for axis in axes_left:
                for gauge, q in axis.charges:
                    touching.setdefault(gauge, []).append((len(terms), axis, q))
            terms.append(_Term(summed((a[name] * x)[None], axes)[0], squares, axes_left))
    logs: dict[Gauge, Tensor] = {}
    left = sum(float((a[name] - x).square().sum()) for name, x in b.items())
    for _ in range(_SWEEPS):
        won = 0.0
        for gauge, touched in touching.items():
            sums = [
                (q, onto(terms[i].products, axis.dims), onto(terms[i].squares, axis.dims)) for i, axis, q in touched
            ]
            step, gain = _step(sums)
            for i, axis, q in touched:
                factor = along((q * step).exp(), axis.dims, terms[i].squares.ndim)
                terms[i].products.mul_(factor)
                terms[i].squares.mul_(factor.square())
            logs[gauge] = logs.get(gauge, 0) + step
            won += gain
        left -= won
        if won <= _ENOUGH * left:
            break
    return {gauge: log.exp() for gauge, log in logs.items()}


def _step(sums: list[tuple[int, Tensor, Tensor]]) -> tuple[Tensor, float]:
    """The step of each neuron, and by how much the squared distance shrinks.

    Args:
        sums: charges, and sums of products and of squares that it scales.
    """

    def value(s: Tensor) -> Tensor:
        return torch.stack([c * torch.exp(2 * q * s) - 2 * b * torch.exp(q * s) for q, b, c in sums]).sum(0)

    slope = torch.stack([q * (c - b) for q, b, c in sums]).sum(0)
    curvature = torch.stack([q * q * c for q, _, c in sums]).sum(0)
    step = torch.where(curvature > 0, -slope / curvature, 0).clamp(-1, 1)
    best = torch.zeros_like(step)
    before = value(best)
    for _ in range(_HALVINGS):
        best = torch.where((best == 0) & (value(step) < before), step, best)
        step = step / 4
    return best, float((before - value(best)).sum())
