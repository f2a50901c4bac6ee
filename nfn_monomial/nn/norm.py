"""Features to size 1, whatever their scale: no epsilon, nothing that overflows, and no charge broken."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from nfn_monomial.space.features import Features
from nfn_monomial.space.packing import wide
from nfn_monomial.space.weight_space import WeightSpace

from .neurons import NeuronLayer, Streams

Reduction = Callable[[Tensor], Tensor]


class EquivariantNorm(NeuronLayer):
    """Divide every field by its size, one number for each field of each network, and multiply by learned gains.

    The size is the root mean square over neurons and channels (for edges: of the sum over sources, so that sums of
    messages stay in range). Where scales act, features are measured in the frame of their own neurons,
    ``rho_j = sqrt(|h_j| / |g_j|)`` (the other factor alone where one is 0), which has charge +1: sizes are invariants,
    so that no charge is broken, and scales of 1e6 change no digit. ``inv`` is normalised neuron by neuron.
    Exact at any scale of the features, see `over_size`; fields of 0 stay 0.

    Args:
        space: the networks' weight space.
        channels: of all streams.
    """

    def __init__(self, space: WeightSpace, channels: int) -> None:
        super().__init__(space, channels)
        self.edge_gain = nn.Parameter(torch.ones(channels))
        self.gain = nn.Parameter(torch.ones(3, channels))

    def forward(self, features: Features) -> Features:
        """Neuron features -> the same, of size 1."""
        edges, nodes = self.split(features)
        frames = {name: frame(s) for name, s in nodes.items() if self.space.nodes[name].scales}
        normed_edges, normed = [], []
        for (target, source), e in edges.items():
            measured = wide(e)
            if source in frames:
                measured = measured * frames[source][:, None]
            if target in frames:
                measured = measured / frames[target][:, :, None]
            normed_edges.append(over_size(e, measured, over(1, 2, 3)[0], _sum_over_sources, self.edge_gain))
        for name, (out, back, inv) in nodes.items():
            rho = frames.get(name, 1)
            normed.append(
                Streams(
                    over_size(out, wide(out) / rho, *over(1, 2), self.gain[0]),
                    over_size(back, wide(back) * rho, *over(1, 2), self.gain[1]),
                    over_size(inv, wide(inv), *over(-1), self.gain[2]),
                )
            )
        return self.join(normed_edges, normed)


def over(*dims: int) -> tuple[Reduction, Reduction]:
    """``largest`` and ``mean`` of `over_size` for entries that lie along some dimensions."""
    return (
        lambda t: torch.linalg.vector_norm(t, torch.inf, dims, keepdim=True),
        lambda t: t.mean(dims, keepdim=True),
    )


def _sum_over_sources(squares: Tensor) -> Tensor:
    return squares.mean((1, 3), keepdim=True).sum(2, keepdim=True)


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
        small = top < torch.finfo(top.dtype).max ** (-13 / 16)
        least = torch.finfo(top.dtype).tiny  # smaller numbers have no finite reciprocal
        by_top = torch.where(top > 0, top.clamp_min(least), 1.0).reciprocal()  # without any entry, nothing is divided
    square = mean((measured * by_top).square())
    factor = (by_top * torch.rsqrt(torch.where(square > 0, square, 1.0))).clamp_max(1 / least)
    constant = x.detach() * (torch.where(small, factor.detach(), 0.0) * gain)
    return torch.addcmul(constant, wide(x), torch.where(small, 0.0, factor) * gain).to(x.dtype)


def frame(streams: Streams) -> Tensor:
    """A positive number of charge +1 for every neuron, ``(..., n, 1)``: ``sqrt(|h_j| / |g_j|)``."""
    out, back = _length(wide(streams.out)), _length(wide(streams.back))
    alive, reached = out > 0, back > 0
    out, back = torch.where(alive, out, 1.0), torch.where(reached, back, 1.0)
    both = alive & reached
    return torch.where(both, out.sqrt(), out) / torch.where(both, back.sqrt(), back)


def _length(x: Tensor) -> Tensor:
    """Norms over the last dimension, without overflow of squares."""
    top = x.detach().abs().amax(-1, keepdim=True)
    top = torch.where(top > 0, top, 1.0)
    length: Tensor = top * torch.linalg.vector_norm(x / top, dim=-1, keepdim=True)
    return length
