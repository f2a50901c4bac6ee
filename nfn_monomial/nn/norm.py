"""Features to size 1, whatever their scale: no epsilon, nothing that overflows, and no charge broken."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from nfn_monomial.checks import Count, checked
from nfn_monomial.space.packing import wide
from nfn_monomial.space.weight_space import WeightSpace

from .edges import scaled, watched
from .neurons.buckets import Neurons
from .neurons.layers import NeuronLayer
from .sizes import length, over_size, over_sizes, reciprocal_frames


class EquivariantNorm(NeuronLayer):
    """Divide every field by its size, one number for each field of each network, and multiply by learned gains.

    The size is the root mean square over neurons and channels (for edges: of the sum over sources, so that sums of
    messages stay in range). Where scales act, features are measured in the frame of their own neurons: of a stream h
    and the one g of opposite charge ``rho_j = sqrt(|h_j| / |g_j|)`` (the other factor alone where one is 0 or not
    there), which has the charge of h: sizes are invariants, so that no charge is broken, and scales of 1e6 change no
    digit. Edges at neurons of which both streams are 0 have no frame and do not count. ``inv`` is normalised neuron by
    neuron, ``const`` network by network. Exact at any scale of the features, see `over_size`; fields of 0 stay 0.

    Args:
        space: the networks' weight space.
        channels: of all streams.

    Attributes:
        edge_gain: ``(C,)``; None where there are no edges.
        gain: ``(kinds, C)``, of the kinds of streams, then of ``const`` where there is one.
    """

    edge_gain: nn.Parameter

    @checked
    def __init__(self, space: WeightSpace, channels: Count) -> None:
        super().__init__(space, channels)
        self.register_parameter("edge_gain", nn.Parameter(torch.ones(channels)) if self.neurons.edges else None)
        self.gain = nn.Parameter(torch.ones(len(self.neurons.stream_kinds) + self.neurons.const, channels))

    def reset_parameters(self) -> None:
        """Sets all gains to 1."""
        for parameter in self.parameters():
            nn.init.ones_(parameter)

    def on(self, neurons: Neurons) -> Neurons:
        """Neuron features -> the same, of size 1."""
        rows, frames = self.of_rows(neurons)
        edges = zip(neurons.edges, self.edge_scales(neurons, frames), strict=True)
        return Neurons(neurons.buckets, tuple(scaled(x, by) for x, by in edges), rows)

    def of_rows(self, neurons: Neurons) -> tuple[Tensor, Tensor | None]:
        """The rows, normalised; and the reciprocal frames of each, where scales act on any."""
        norms, x = neurons.buckets.norms, neurons.rows
        gain, roots = self.gain.index_select(0, norms.gain), norms.roots
        if norms.scaled is None and not watched(x):
            return _Normed.apply(x, gain, norms.group, norms.groups, roots), None  # type: ignore[no-untyped-call]
        lengths = length(x, (-1,)).squeeze(-1)
        frames = None
        if norms.scaled is not None:
            opposite = torch.where(norms.alone, 0.0, lengths.index_select(0, norms.opposite))
            frames = reciprocal_frames(lengths, opposite, norms.scaled)
        by = over_sizes(lengths if frames is None else lengths * frames, norms.group, norms.groups, roots, x.dtype)
        return scaled(x, by.unsqueeze(-1) * gain.unsqueeze(1)), frames

    def edge_scales(self, neurons: Neurons, frames: Tensor | None) -> list[Tensor]:
        """The factors that bring edges to size 1, times their gain: ``(S, *ones, B, C)`` for each bucket."""
        buckets, measured = neurons.buckets, list(neurons.edges)
        if frames is not None:
            at_ends = buckets.at_edges(buckets.rows_at_ends(frames.unsqueeze(-1)))
            for i, (bucket, ends) in enumerate(zip(buckets.edges, at_ends, strict=True)):
                measured[i] = wide(measured[i])
                for j, of_end in enumerate(ends):
                    measured[i] = measured[i] * bucket.grid.take(of_end[:, 1], j).to(measured[i].dtype)
        return [
            over_size(x, (*range(1, x.ndim - 2), -1), bucket.roots) * self.edge_gain
            for x, bucket in zip(measured, buckets.edges, strict=True)
        ]


class _Normed(torch.autograd.Function):
    """Rows at size 1 times gains ``(rows, C)``, of which only the input and its sizes are kept for backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor, group: Tensor, groups: int, roots: Tensor) -> Tensor:
        by = over_sizes(length(x, (-1,)).squeeze(-1), group, groups, roots, x.dtype).unsqueeze(-1)
        ctx.groups = groups
        ctx.save_for_backward(x, gain, group, roots, by)
        return scaled(x, by * gain.unsqueeze(1))

    @staticmethod
    def backward(ctx: Any, by_y: Tensor) -> tuple[Tensor | None, ...]:
        x, gain, group, roots, by = ctx.saved_tensors
        if torch.is_grad_enabled():
            return *_Normed._differentiable(x, gain, group, ctx.groups, roots, by_y), None, None, None
        gains, unit = gain.unsqueeze(1), x * by
        product = by_y * unit
        of_rows = (product * gains).sum(-1)
        of_groups = of_rows.new_zeros(ctx.groups, of_rows.shape[1]).index_add_(0, group, of_rows)
        change = of_groups.index_select(0, group).unsqueeze(-1).mul_(by).div_(roots.square().unsqueeze(-1).to(by.dtype))
        by_x = torch.addcmul(by_y * (by * gains), unit, change, value=-1)
        return by_x.to(x.dtype), product.sum(1).to(gain.dtype), None, None, None

    @staticmethod
    def _differentiable(
        x: Tensor, gain: Tensor, group: Tensor, groups: int, roots: Tensor, by_y: Tensor
    ) -> Sequence[Tensor]:
        x, gain = x.view_as(x), gain.view_as(gain)
        # The norm of 0 has no second derivative.
        dead = ~x.detach().any(-1, keepdim=True)
        lengths = torch.where(dead, 0.0, length(torch.where(dead, 1.0, x), (-1,)))
        by = over_sizes(lengths.squeeze(-1), group, groups, roots, x.dtype).unsqueeze(-1)
        return torch.autograd.grad(scaled(x, by * gain.unsqueeze(1)), (x, gain), by_y, create_graph=True)
