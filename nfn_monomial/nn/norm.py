"""Features to size 1, whatever their scale: no epsilon, nothing that overflows, and no charge broken."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from nfn_monomial.checks import Count, checked
from nfn_monomial.space.features import Features
from nfn_monomial.space.packing import wide
from nfn_monomial.space.weight_space import WeightSpace

from .edges import Scale, watched
from .neurons import NeuronLayer, Streams

Reduction = Callable[[Tensor], Tensor]


class EquivariantNorm(NeuronLayer):
    """Divide every field by its size, one number for each field of each network, and multiply by learned gains.

    The size is the root mean square over neurons and channels (for edges: of the sum over sources, so that sums of
    messages stay in range). Where scales act, features are measured in the frame of their own neurons: of a stream h
    and the one g of opposite charge ``rho_j = sqrt(|h_j| / |g_j|)`` (the other factor alone where one is 0 or not
    there), which has the charge of h: sizes are invariants, so that no charge is broken, and scales of 1e6 change no
    digit. Edges at neurons of which both streams are 0 have no frame and do not count. ``inv`` is normalised neuron by
    neuron, ``const`` network by network.
    Exact at any scale of the features, see `by_size_of`; fields of 0 stay 0.

    Args:
        space: the networks' weight space.
        channels: of all streams.
        edges: whether edges are divided; a norm behind which only neurons are read leaves them as they are.
    """

    @checked
    def __init__(self, space: WeightSpace, channels: Count, *, edges: bool = True) -> None:
        super().__init__(space, channels)
        self.edges = edges
        plans = self.neurons.nodes
        kinds = list(dict.fromkeys(charges for plan in plans.values() for charges in plan.charges))
        self._gains = {name: [kinds.index(charges) for charges in plan.charges] for name, plan in plans.items()}
        self._scaled = {
            name: {
                i: plan.opposite(i)
                for i in range(len(plan.charges) - 1)
                if self.in_layout.felt[self.neurons.first(name) + i].scales
            }
            for name, plan in plans.items()
        }
        self.edge_gain = nn.Parameter(torch.ones(channels))
        self.gain = nn.Parameter(torch.ones(len(kinds), channels))
        self.const_gain = nn.Parameter(torch.ones(channels)) if self.neurons.const else None

    def forward(self, features: Features) -> Features:
        """Neuron features -> the same, of size 1."""
        edges, nodes, const = self.split(features)
        scales, normed, const = self.normed(edges if self.edges else (), nodes, const)
        edges = [by(e) for by, e in zip(scales, edges, strict=True)] if self.edges else edges
        return self.join(edges, normed.values(), const)

    def normed(
        self, edges: Sequence[Tensor], nodes: Mapping[str, Streams], const: Sequence[Tensor]
    ) -> tuple[list[Scale], dict[str, Streams], list[Tensor]]:
        """What to multiply edges by, and the other fields of size 1: for layers that scale edges while they read them.

        All as `split` returns them; without edges, no scales.
        """
        # Reciprocals of the frames.
        frames = {
            name: {i: frame(None if j is None else nodes[name][j], nodes[name][i]) for i, j in scaled.items()}
            for name, scaled in self._scaled.items()
        }
        scales = []
        for edge, e in zip(self.neurons.edges, edges, strict=False):
            measured = wide(e)
            for end in edge.ends:
                by = frames[end.node].get(end.along)
                if by is not None:
                    shape = [e.shape[d] if d in (0, *(1 + i for i in end.at)) else 1 for d in range(e.ndim - 1)]
                    measured = measured * by.reshape(*shape, 1)
            rows = [1 + i for i in edge.ends[0].at]
            sources = [d for d in range(1, e.ndim - 1) if d not in rows]
            scales.append(by_size(measured, (*rows, -1), sources).times(self.edge_gain))
        normed = {}
        for name, streams in nodes.items():
            *charged, inv = streams
            *gains, last = (self.gain[i] for i in self._gains[name])
            found = []
            for i, (x, gain) in enumerate(zip(charged, gains, strict=True)):
                measured = wide(x) * frames[name][i] if i in frames[name] else wide(x)
                found.append(by_size(measured, range(1, x.ndim)).times(gain)(x))
            normed[name] = (*found, by_size(wide(inv)).times(last)(inv))
        gains = [] if self.const_gain is None else [self.const_gain]
        return scales, normed, [by_size(wide(c)).times(gain)(c) for c, gain in zip(const, gains, strict=True)]


def by_size(measured: Tensor, dims: Sequence[int] = (-1,), summed: Sequence[int] = ()) -> Scale:
    """``1 / sqrt(sum of mean of measured^2)``, 1 where all is 0, see `by_size_of`.

    Args:
        measured: what the size is taken of, `wide`.
        dims: dimensions of which the mean is taken.
        summed: those of which sums are taken.
    """
    dims = (*dims, *summed)
    count = math.prod([measured.shape[d] for d in dims]) / math.prod([measured.shape[d] for d in summed])
    if not watched(measured):
        with torch.no_grad():
            size = torch.linalg.vector_norm(measured, 2, dims, True)
            smallest, largest = map(float, size.aminmax())
        limits = torch.finfo(measured.dtype)
        if limits.tiny**0.25 < smallest and largest < limits.max**0.25:
            return Scale(None, _OverSize.apply(measured, size, count))  # type: ignore[no-untyped-call]

    def most(x: Tensor) -> Tensor:
        return torch.maximum(x.amax(dims, keepdim=True), -x.amin(dims, keepdim=True))  # a tenth of vector_norm's time

    return by_size_of(measured, most, lambda x: x.square().sum(dims, True) / count)


class _OverSize(torch.autograd.Function):
    """`by_size` of what squares neither overflow nor vanish of, in one pass; nothing new is kept for backward."""

    @staticmethod
    def forward(ctx: Any, measured: Tensor, size: Tensor, count: float) -> Tensor:
        factor = size.reciprocal() * math.sqrt(count)
        ctx.count = count
        ctx.save_for_backward(measured, factor)
        return factor

    @staticmethod
    def backward(ctx: Any, by_factor: Tensor) -> tuple[Tensor | None, ...]:
        measured, factor = ctx.saved_tensors
        return measured * (by_factor * factor**3 / -ctx.count), None, None


def by_size_of(measured: Tensor, largest: Reduction, mean_square: Reduction) -> Scale:
    """``1 / sqrt(mean_square(measured))``, and 1 where all that is measured is 0.

    Divided by the largest entry first: as exact at sizes of 1e-30 as at 1, and not biased by an epsilon.

    Args:
        measured: what the size is taken of, in its frame and `wide`.
        largest: the largest of some sizes, for all entries that have their size in common, in a shape that broadcasts.
        mean_square: likewise the mean of their squares, or what else stands for it.
    """
    with torch.no_grad():
        top = largest(measured)
        # The gradient is of size 1 / top. Where it could overflow (below 5e-32 in float32), it is taken as 0.
        small = (top < torch.finfo(top.dtype).max ** (-13 / 16)) & (top > 0)
        least = torch.finfo(top.dtype).tiny  # smaller numbers have no finite reciprocal
        by_top = torch.where(top > 0, top.clamp_min(least), 1.0).reciprocal()  # without any entry, nothing is divided
    square = mean_square(measured * by_top)
    factor = (by_top * torch.rsqrt(torch.where(square > 0, square, 1.0))).clamp_max(1 / least)
    return Scale(torch.where(small, factor.detach(), 0.0), torch.where(small, 0.0, factor))


def frame(stream: Tensor | None, other: Tensor) -> Tensor:
    """A positive number of the charge of ``stream`` for every neuron: ``sqrt(|h_j| / |g_j|)``, ``(..., 1)``.

    Args:
        stream: h, or None where no stream has that charge.
        other: g, of the opposite charge.

    Returns:
        ``|h|`` alone, or ``1 / |g|``, where the other vector is 0; 0 where both are.
    """
    over_other = _length(wide(other))
    below = torch.where(over_other > 0, over_other, 1.0)
    if stream is None:
        return (over_other > 0) / below
    length = _length(wide(stream))
    alive, reached = length > 0, over_other > 0
    above, both = torch.where(alive, length, 1.0), alive & reached
    rho = torch.where(both, above.sqrt(), above) / torch.where(both, below.sqrt(), below)
    return torch.where(alive | reached, rho, 0.0)


def _length(x: Tensor) -> Tensor:
    """Norms over the last dimension, without overflow of squares."""
    top = x.detach().abs().amax(-1, keepdim=True)
    top = torch.where(top > 0, top, 1.0)
    length: Tensor = top * torch.linalg.vector_norm(x / top, dim=-1, keepdim=True)
    return length
