"""Scales by least squares, in two problems that balancing is no answer to.

Where a network is held, `nfn_monomial.balance` takes its scales away: the least norm. Where it is read piece by piece,
sums along axes are enough for the least squares of its logarithms, a linear problem (`least_log_scales`). And of two
networks with their neurons in the same places, scales bring one nearest to the other (`nearest_scales`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from nfn_monomial.canonical.charges import Charged, NodeGauge, along, charged_axes, onto, scaling, summed
from nfn_monomial.canonical.newton import conjugate_gradients, joined
from nfn_monomial.space.weight_space import WeightSpace

_LARGEST = 100.0  # logarithm of a scale
_STEPS = 1000  # of conjugate gradients, of which as many are needed as nodes have gauges
_SWEEPS = 30
_ENOUGH = 1e-3  # of what is left of the squared distance: less is no step
_HALVINGS = 4


class LogEquation(NamedTuple):
    """One piece's share in the mean of its squared logarithms, as a function of log scales.

    Attributes:
        axes: on which scales act.
        share: of its entries those that are not 0, ``(1, *sizes)`` with size 1 where it does not depend on the place.
        means: for each axis the sum of logarithms along it, over the number of all entries but those; as ``share``.
    """

    axes: list[Charged]
    share: Tensor
    means: list[Tensor]


def least_log_scales(equations: Sequence[LogEquation]) -> dict[NodeGauge, Tensor]:
    """The log scales ``(1, *sizes)`` at which the logarithms of a network's entries have least squares.

    All pieces have equal weight, and so have all neurons of a node.
    """
    shapes = {
        gauge: [1, *(mean.shape[dim] for dim in axis.dims)]
        for axes, _, means in equations
        for axis, mean in zip(axes, means, strict=True)
        for gauge, _ in axis.charges
    }
    if not shapes:
        return {}
    sizes = [math.prod(shape) for shape in shapes.values()]
    root = torch.tensor(sizes, dtype=torch.float64).sqrt().repeat_interleave(torch.tensor(sizes))

    def logs_of(v: Tensor) -> dict[NodeGauge, Tensor]:
        parts = torch.split(v * root, sizes, -1)
        return {gauge: part.reshape(shape) for (gauge, shape), part in zip(shapes.items(), parts, strict=True)}

    def pulls(logs: dict[NodeGauge, Tensor]) -> Tensor:
        """Sums at each scale of what log scales add to the logarithms; without any, of the logarithms themselves."""
        total = {gauge: torch.zeros(shape, dtype=torch.float64) for gauge, shape in shapes.items()}
        for axes, share, means in equations:
            terms = [(q, gauge, axis.dims) for axis in axes for gauge, q in axis.charges]
            added = [share * q * along(logs[gauge], dims, share.ndim) for q, gauge, dims in terms if logs]
            for axis, mean in zip(axes, means, strict=True):
                for part, (gauge, q) in itertools.product(added or [mean], axis.charges):
                    total[gauge] += q * onto(part, axis.dims, torch.mean)
        return joined(list(total.values())) / root

    right = -pulls({})
    enough = 1e-15 * float(right.norm())
    logs = logs_of(conjugate_gradients(lambda v: pulls(logs_of(v)), right, enough, _STEPS, look=True))
    # Entries of 0 may leave scales undetermined, which then are anything.
    return {gauge: x.nan_to_num(0.0).clamp(-_LARGEST, _LARGEST) for gauge, x in logs.items()}


def nearest_scales(space: WeightSpace, a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> dict[NodeGauge, Tensor]:
    """Finds positive scales of every gauge that bring b next to a, by least squares.

    One gauge after the other takes a Gauss-Newton step on its neurons' log scales s, each of which has a part of the
    squared distance for itself, ``sum_q (C_q e^{2 q s} - 2 B_q e^{q s})`` with the sums B of products and C of squares
    of the entries that it scales with power q. Steps that do not get nearer are shortened, or left out.

    Networks are given by their pieces ``(*axes)`` in float64; scales are ``(1, *sizes)``.
    """
    # Gauge -> of entries that it scales with one power: this, where, sums of products of a and b, and of squares of b.
    terms: dict[NodeGauge, list[tuple[int, tuple[int, ...], Tensor, Tensor]]] = {}
    for name, x in b.items():
        axes = charged_axes(space, space.axes[name], scaling)
        products, _ = summed((a[name] * x)[None], axes)
        squares, axes_left = summed(x.square()[None], axes)
        for axis in axes_left:
            for gauge, q in axis.charges:
                terms.setdefault(gauge, []).append((q, axis.dims, products, squares))
    logs: dict[NodeGauge, Tensor] = {}
    left = sum(float((a[name] - x).square().sum()) for name, x in b.items())
    for _ in range(_SWEEPS):
        won = 0.0
        for gauge, acted_on in terms.items():
            step, gain = _step(
                [(q, onto(products, dims), onto(squares, dims)) for q, dims, products, squares in acted_on]
            )
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
