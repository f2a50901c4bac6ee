"""The scales at which one network is nearest to another whose neurons are in the same places."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from nfn_monomial.canonical.charges import Gauge, along, charged_axes, onto, scaling, summed
from nfn_monomial.space.weight_space import WeightSpace

_SWEEPS = 30
_ENOUGH = 1e-3  # of what is left of the squared distance: less is no step
_HALVINGS = 4


class _Term(NamedTuple):
    """Sums of products of a and b, and of squares of b, over entries that scales act on with one power."""

    charge: int
    dims: tuple[int, ...]
    products: Tensor
    squares: Tensor


def nearest_scales(space: WeightSpace, a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> dict[Gauge, Tensor]:
    """Finds positive scales of every gauge that bring b next to a, by least squares.

    One gauge after the other takes a Gauss-Newton step on its neurons' log scales s, each of which has a part of the
    squared distance for itself, ``sum_q (C_q e^{2 q s} - 2 B_q e^{q s})`` with the sums B of products and C of squares
    of the entries that it scales with power q. Steps that do not get nearer are shortened, or left out.

    Networks are given by their pieces ``(*axes)`` in float64; scales are ``(1, *sizes)``.
    """
    terms: dict[Gauge, list[_Term]] = {}
    for name, x in b.items():
        axes = charged_axes(space, space.axes[name], scaling)
        products, _ = summed((a[name] * x)[None], axes)
        squares, axes_left = summed(x.square()[None], axes)
        for axis in axes_left:
            for gauge, q in axis.charges:
                terms.setdefault(gauge, []).append(_Term(q, axis.dims, products, squares))
    logs: dict[Gauge, Tensor] = {}
    left = sum(float((a[name] - x).square().sum()) for name, x in b.items())
    for _ in range(_SWEEPS):
        won = 0.0
        for gauge, acted_on in terms.items():
            step, gain = _step([(t.charge, onto(t.products, t.dims), onto(t.squares, t.dims)) for t in acted_on])
            for charge, dims, products, squares in acted_on:
                factor = along((charge * step).exp(), dims, squares.ndim)
                products.mul_(factor)
                squares.mul_(factor.square())
            logs[gauge] = logs.get(gauge, 0) + step
            won += gain
        left -= won
        if won <= _ENOUGH * left:
            break
    return {gauge: log.exp() for gauge, log in logs.items()}


def _step(sums: list[tuple[int, Tensor, Tensor]]) -> tuple[Tensor, float]:
    """Returns the step of each neuron, and by how much the squared distance shrinks, from charges and sums as above."""

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
