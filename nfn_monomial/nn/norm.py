"""Features to size 1, whatever their scale: no epsilon, nothing that overflows, and no charge broken."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from nfn_monomial.checks import Count, checked
from nfn_monomial.space.features import Features
from nfn_monomial.space.packing import wide
from nfn_monomial.space.weight_space import WeightSpace

from .edges import scaled, watched
from .neurons import NeuronLayer

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
        reads: numbers of the fields that are read after the norm, by default all; others stay as they are.
    """

    @checked
    def __init__(self, space: WeightSpace, channels: Count, *, reads: Collection[int] | None = None) -> None:
        super().__init__(space, channels, reads)
        plans = self.neurons.nodes
        kinds = list(dict.fromkeys(charges for plan in plans.values() for charges in plan.charges))
        self._gains = [kinds.index(charges) for plan in plans.values() for charges in plan.charges]
        self._invariants = {self.neurons.stream(node) for node in plans}
        # Of each stream that scales, the one of opposite charge.
        self._opposites: dict[int, int | None] = {}
        for node, plan in plans.items():
            numbers = self.neurons.numbers(node)
            for i, field in enumerate(numbers[:-1]):
                if self.in_layout.felt[field].scales:
                    opposite = plan.opposite(i)
                    self._opposites[field] = None if opposite is None else numbers[opposite]
        self.edge_gain = nn.Parameter(torch.ones(channels)) if self.reads_edges else None
        self.gain = nn.Parameter(torch.ones(len(kinds), channels))
        self.const_gain = nn.Parameter(torch.ones(channels)) if self.neurons.const else None

    def forward(self, features: Features) -> Features:
        """Neuron features -> the same, of size 1."""
        fields = self.fields(features)
        pairs = zip(fields, self.factors(fields), strict=True)
        return Features(self.out_layout, tuple(x if by is None else scaled(x, by) for x, by in pairs))

    def factors(self, fields: Sequence[Tensor]) -> list[Tensor | None]:
        """The factor of each field, for layers that multiply while they read edges; None where there is none."""
        # Reciprocals of the streams' frames.
        by_frame = {i: frame(None if j is None else fields[j], fields[i]) for i, j in self._opposites.items()}
        factors: list[Tensor | None] = [None] * len(fields)
        if self.edge_gain is not None:
            for i, edge in enumerate(self.neurons.edges):
                measured = wide(fields[i])
                for number, end in enumerate(edge.ends):
                    if end.along in by_frame:
                        measured = measured * edge.grid.take(by_frame[end.along], number)
                rows = [1 + axis for axis in edge.ends[0].at]
                sources = [d for d in range(1, measured.ndim - 1) if d not in rows]
                factors[i] = by_size(measured, (*rows, -1), sources) * self.edge_gain
        for i, kind in enumerate(self._gains, len(self.neurons.edges)):
            if i in self.reads:
                measured = wide(fields[i]) * by_frame[i] if i in by_frame else wide(fields[i])
                dims = (-1,) if i in self._invariants else range(1, measured.ndim)
                factors[i] = by_size(measured, dims) * self.gain[kind]
        if self.const_gain is not None:
            factors[-1] = by_size(wide(fields[-1])) * self.const_gain
        return factors


def by_size(measured: Tensor, dims: Sequence[int] = (-1,), summed: Sequence[int] = ()) -> Tensor:
    """``1 / sqrt(sum of mean of measured^2)``, means over ``dims``, 1 where all is 0; ``measured`` is `wide`."""
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
        measured: the features whose size is taken, in their frame and `wide`.
        largest: a bound of the size of all entries that have their size in common, not many times larger than the
            largest of them, in a shape that broadcasts.
        mean_square: likewise the mean of their squares, or another number in its place.
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
    """`_by_norm`, of which only the input is kept for backward."""

    @staticmethod
    def forward(ctx: Any, measured: Tensor, dims: tuple[int, ...], count: int) -> Tensor:
        factor = _by_norm(measured, dims, count)
        ctx.count = count
        ctx.save_for_backward(measured, factor)
        return factor

    @staticmethod
    def backward(ctx: Any, by_factor: Tensor) -> tuple[Tensor | None, ...]:
        measured, factor = ctx.saved_tensors
        # Not times the third power of the factor, which overflows.
        return (measured * factor).mul_(by_factor * factor * factor / -ctx.count), None, None


def frame(stream: Tensor | None, other: Tensor) -> Tensor:
    """A positive number of the charge of ``stream`` h for every neuron: ``sqrt(|h_j| / |g_j|)``, ``(..., 1)``.

    The other one, g, has the opposite charge. Where one is 0, or h is None, it is ``1 / |g|`` or ``|h|``; 0 where both
    are.
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
