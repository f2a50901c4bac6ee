"""Features to size 1, whatever their scale: no epsilon, nothing that overflows, and no charge broken."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from nfn_monomial.checks import Count, checked
from nfn_monomial.space.features import Features
from nfn_monomial.space.packing import wide
from nfn_monomial.space.weight_space import WeightSpace

from .neurons import NeuronLayer

Reduction = Callable[[Tensor], Tensor]


class EquivariantNorm(NeuronLayer):
    """Divide every field by its size, one number for each field of each network, and multiply by learned gains.

    The size is the root mean square over neurons and channels (for edges: of the sum over sources, so that sums of
    messages stay in range). Where scales act, features are measured in the frame of their own neurons: of a stream h
    and the one g of opposite charge ``rho_j = sqrt(|h_j| / |g_j|)`` (the other factor alone where one is 0 or not
    there), which has the charge of h: sizes are invariants, so that no charge is broken, and scales of 1e6 change no
    digit. Edges at neurons of which both streams are 0 have no frame and do not count. ``inv`` is normalised neuron by
    neuron, ``const`` network by network.
    Exact at any scale of the features, see `over_size`; fields of 0 stay 0.

    Args:
        space: the networks' weight space.
        channels: of all streams.
    """

    @checked
    def __init__(self, space: WeightSpace, channels: Count) -> None:
        super().__init__(space, channels)
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
        # Reciprocals of the frames.
        frames = {
            name: {i: frame(None if j is None else nodes[name][j], nodes[name][i]) for i, j in scaled.items()}
            for name, scaled in self._scaled.items()
        }
        normed_edges, normed = [], []
        for edge, e in zip(self.neurons.edges, edges, strict=True):
            dims, measured = tuple(range(1, e.ndim)), wide(e)
            for end in edge.ends:
                by = frames[end.node].get(end.along)
                if by is not None:
                    shape = [e.shape[d] if d in (0, *(1 + i for i in end.at)) else 1 for d in range(e.ndim - 1)]
                    measured = measured * by.reshape(*shape, 1)
            rows = [1 + i for i in edge.ends[0].at]
            size = _sum_over_sources(rows, [d for d in dims[:-1] if d not in rows])
            normed_edges.append(over_size(e, measured, over(*dims)[0], size, self.edge_gain))
        for name, streams in nodes.items():
            *charged, inv = streams
            *gains, last = (self.gain[i] for i in self._gains[name])
            found = []
            for i, (x, gain) in enumerate(zip(charged, gains, strict=True)):
                measured = wide(x) * frames[name][i] if i in frames[name] else wide(x)
                found.append(over_size(x, measured, *over(*tuple(range(1, x.ndim))), gain))
            normed.append((*found, over_size(inv, wide(inv), *over(-1), last)))
        return self.join(normed_edges, normed, [over_size(c, wide(c), *over(-1), self._const_gain()) for c in const])

    def _const_gain(self) -> Tensor:
        assert self.const_gain is not None, "made where there is such a field"
        return self.const_gain


def over(*dims: int) -> tuple[Reduction, Reduction]:
    """``largest`` and ``mean`` of `over_size` for entries that lie along some dimensions."""
    return (
        lambda t: torch.linalg.vector_norm(t, torch.inf, dims, keepdim=True),
        lambda t: t.mean(dims, keepdim=True),
    )


def _sum_over_sources(rows: list[int], columns: list[int]) -> Reduction:
    return lambda squares: squares.mean((*rows, -1), keepdim=True).sum(columns, keepdim=True)


def over_size(x: Tensor, measured: Tensor, largest: Reduction, mean: Reduction, gain: float | Tensor = 1.0) -> Tensor:
    """``gain * x / sqrt(mean(measured^2))``, in the dtype of ``x``; 0 where all that is measured is 0.

    Divided by the largest entry first: as exact at sizes of 1e-30 as at 1, and not biased by an epsilon.

    Args:
        x: what is divided.
        measured: what its size is taken of, in its frame and `wide`.
        largest: the largest of some sizes, for all entries that have their size in common, in a shape that broadcasts.
        mean: likewise their mean, or what else stands for it.
        gain: one for every channel.
    """
    with torch.no_grad():
        top = largest(measured)
        # The gradient is of size 1 / top. Where it could overflow (below 5e-32 in float32), it is taken as 0.
        small = (top < torch.finfo(top.dtype).max ** (-13 / 16)) & (top > 0)
        least = torch.finfo(top.dtype).tiny  # smaller numbers have no finite reciprocal
        by_top = torch.where(top > 0, top.clamp_min(least), 1.0).reciprocal()  # without any entry, nothing is divided
    square = mean((measured * by_top).square())
    factor = (by_top * torch.rsqrt(torch.where(square > 0, square, 1.0))).clamp_max(1 / least)
    constant = x.detach() * (torch.where(small, factor.detach(), 0.0) * gain)
    return torch.addcmul(constant, wide(x), torch.where(small, 0.0, factor) * gain).to(x.dtype)


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
