"""Features to size 1, whatever their scale: no epsilon, nothing that overflows, and no charge broken."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from nfn_monomial.checks import Count, checked
from nfn_monomial.space.features import Features
from nfn_monomial.space.packing import wide
from nfn_monomial.space.weight_space import WeightSpace

from .edges import BLOCK, scaled, watched
from .neurons import NeuronLayer, Streams

Reduction = Callable[[Tensor], Tensor]


class EquivariantNorm(NeuronLayer):
    """Divide every field by its size, one number for each field of each network, and multiply by learned gains.

    The size is the root mean square over neurons and channels (for edges: of the sum over sources, so that sums of
    messages stay in range). Where scales act, features are measured in the frame of their own neurons: of a stream h
    and the one g of opposite charge ``rho_j = sqrt(|h_j| / |g_j|)`` (the other factor alone where one is 0 or not
    there), which has the charge of h: sizes are invariants, so that no charge is broken, and scales of 1e6 change no
    digit. Edges at neurons of which both streams are 0 have no frame and do not count. ``inv`` is normalised neuron by
    neuron, ``const`` network by network. Exact at any scale of the features, see `by_size_of`; fields of 0 stay 0.

    Args:
        space: the networks' weight space.
        channels: of all streams.
        reads: numbers of the fields that are read behind the norm, by default all; others stay as they are.
    """

    @checked
    def __init__(self, space: WeightSpace, channels: Count, *, reads: Collection[int] | None = None) -> None:
        super().__init__(space, channels, reads)
        plans = self.neurons.nodes
        kinds = list(dict.fromkeys(charges for plan in plans.values() for charges in plan.charges))
        self._gains = {name: [kinds.index(charges) for charges in plan.charges] for name, plan in plans.items()}
        self.edge_gain = nn.Parameter(torch.ones(channels)) if self.reads_edges else None
        self.gain = nn.Parameter(torch.ones(len(kinds), channels))
        self.const_gain = nn.Parameter(torch.ones(channels)) if self.neurons.const else None

    def forward(self, features: Features) -> Features:
        """Neuron features -> the same, of size 1."""
        edges, nodes, const = self.split(features)
        scales, normed, const = self.normed(edges, nodes, const)
        edges = [e if by is None else scaled(e, by) for by, e in zip(scales, edges, strict=True)]
        return self.join(edges, normed.values(), const)

    def normed(
        self, edges: Sequence[Tensor], nodes: Mapping[str, Streams], const: Sequence[Tensor]
    ) -> tuple[list[Tensor | None], dict[str, Streams], list[Tensor]]:
        """What to multiply edges by, and the other fields of size 1: for layers that scale edges while they read them.

        All as `split` returns them.
        """
        by_frames = {name: self._by_frames(name, streams) for name, streams in nodes.items()}
        scales: list[Tensor | None] = []
        for edge, e in zip(self.neurons.edges, edges, strict=True):
            if self.edge_gain is None:
                scales.append(None)
                continue
            measured = wide(e)
            for end in edge.ends:
                if (by := by_frames[end.node][end.along]) is not None:
                    shape = [e.shape[d] if d in (0, *(1 + i for i in end.at)) else 1 for d in range(e.ndim - 1)]
                    measured = measured * by.reshape(*shape, 1)
            rows = [1 + i for i in edge.ends[0].at]
            sources = [d for d in range(1, e.ndim - 1) if d not in rows]
            scales.append(by_size(measured, (*rows, -1), sources) * self.edge_gain)
        normed = {}
        for name, streams in nodes.items():
            first, gains = self.neurons.first(name), self.gain[self._gains[name]]
            of_node = []
            for i, (x, by) in enumerate(zip(streams, by_frames[name], strict=True)):
                if first + i in self.reads:
                    measured, invariant = wide(x) if by is None else wide(x) * by, i == len(streams) - 1
                    x = scaled(x, by_size(measured, (-1,) if invariant else range(1, x.ndim)) * gains[i])
                of_node.append(x)
            normed[name] = tuple(of_node)
        of_const = [] if self.const_gain is None else [self.const_gain]
        return scales, normed, [scaled(c, by_size(wide(c)) * gain) for c, gain in zip(const, of_const, strict=True)]

    def _by_frames(self, node: str, streams: Streams) -> list[Tensor | None]:
        """What a node's streams are measured by: reciprocals of their frames, None where no scale acts."""
        first, plan = self.neurons.first(node), self.neurons.nodes[node]
        frames: list[Tensor | None] = []
        for i, x in enumerate(streams[:-1]):
            opposite = plan.opposite(i)
            scales = self.in_layout.felt[first + i].scales
            frames.append(frame(None if opposite is None else streams[opposite], x) if scales else None)
        return [*frames, None]


def by_size(measured: Tensor, dims: Sequence[int] = (-1,), summed: Sequence[int] = ()) -> Tensor:
    """``1 / sqrt(sum of mean of measured^2)``, 1 where all is 0, see `by_size_of`.

    Args:
        measured: what the size is taken of, `wide`.
        dims: dimensions of which the mean is taken.
        summed: those of which sums are taken.
    """
    count = math.prod([measured.shape[d] for d in dims])
    if watched(measured):
        return _by_norm(measured, (*dims, *summed), count)
    over: Tensor = _ByNorm.apply(measured, (*dims, *summed), count)  # type: ignore[no-untyped-call]
    return over


def by_size_of(measured: Tensor, largest: Reduction, mean_square: Reduction) -> Tensor:
    """``1 / sqrt(mean_square(measured))``, and 1 where all that is measured is 0.

    Divided by the largest entry first: as exact at sizes of 1e-30 as at 1, and not biased by an epsilon. A gradient is
    of size 1 / largest. Where that could overflow (below 5e-32 in float32), features count as 0.

    Args:
        measured: what the size is taken of, in its frame and `wide`.
        largest: a bound of the size of all entries that have their size in common, not many times larger than the
            largest of them, in a shape that broadcasts.
        mean_square: likewise the mean of their squares, or what else stands for it.
    """
    limits = torch.finfo(measured.dtype)
    with torch.no_grad():
        bound = largest(measured)
        # Larger numbers than 1 / tiny have no normal reciprocal.
        by_bound = torch.where(bound > limits.max ** (-13 / 16), bound.clamp_max(1 / limits.tiny), 1.0).reciprocal()
    square = mean_square(measured * by_bound)
    return by_bound * torch.rsqrt(torch.where(square > 0, square, 1.0))


def _by_norm(measured: Tensor, dims: tuple[int, ...], count: int) -> Tensor:
    def mean_square(x: Tensor) -> Tensor:
        norm: Tensor = torch.linalg.vector_norm(x, 2, dims, True)
        return norm.square() / count

    return by_size_of(measured, lambda x: x.abs().sum(dims, True), mean_square)


class _ByNorm(torch.autograd.Function):
    """`_by_norm` of some networks at a time, in a processor's cache; only the input is kept for backward."""

    @staticmethod
    def forward(ctx: Any, measured: Tensor, dims: tuple[int, ...], count: int) -> Tensor:
        networks = max(1, BLOCK * len(measured) // max(1, measured.nbytes))
        factor = torch.cat([_by_norm(part, dims, count) for part in torch.split(measured, networks)])
        ctx.count = count
        ctx.save_for_backward(measured, factor)
        return factor

    @staticmethod
    def backward(ctx: Any, by_factor: Tensor) -> tuple[Tensor | None, ...]:
        measured, factor = ctx.saved_tensors
        # Not times the third power of the factor, which overflows.
        return (measured * factor).mul_(by_factor * factor * factor / -ctx.count), None, None


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
