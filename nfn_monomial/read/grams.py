"""Spectra of the neurons' Gram matrices, and how far those on the two sides of a node agree."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool1d

from nfn_monomial.checks import Count, checked
from nfn_monomial.nn.steps import packed
from nfn_monomial.space.features import Features
from nfn_monomial.space.weight_space import WeightSpace

from .statistics import joining, settled, tables

_POWERS = (2, 3, 4)
_PARTS = 3  # of a kernel dimension
_TINY = 1e-12  # as in `InvariantStatistics`
_LEAST = 1e-2  # of the agreement's denominator: off-diagonal entries that are rounding errors agree in nothing


class GramStatistics(nn.Module):
    """Spectra and agreement of Gram matrices of the balanced form (`balance`): invariant under the whole group.

    Training aligns consecutive layers: the weights out of a neuron learn from those into it. Let ``W`` be the
    balanced weights that join each neuron of a node to each of another, as of `InvariantStatistics`, divided by their
    root mean square. A node has the Gram matrices ``I = sum W W^T`` of the weights into its neurons and ``O = sum W^T
    W`` of those out of them, over all such weights, kernels and positions; where there are kernels, also those of the
    weights summed over them. Each is divided by its trace and has trace n, the number of neurons. Of every node that
    has weights on both sides, and every channel:

    - of each Gram matrix ``log(trace(G^k) / n) / k`` for k = 2, 3, 4: 0 if all its eigenvalues are alike,
    - of each pair ``I, O`` the cosine ``<I, O> / |I| |O|`` of the matrices, and that of their off-diagonal entries.

    Of every kernel dimension of these weights, logarithms of the mean squares in its first, middle and last third
    (size 2: of each entry; size 1 has none).

    All are of order 1. Computed in float64, returned in the dtype of the input. Differentiable, with the group element
    of the balanced form held constant. Wider networks with the same functions have other values.

    Args:
        space: the weight space.
        channels: channels of the networks.

    Attributes:
        out_features: length of the vector of a network; 0 where no node has weights on both sides.
    """

    @checked
    def __init__(self, space: WeightSpace, channels: Count = 1) -> None:
        super().__init__()
        self.space, self.channels, self.links = space, channels, joining(space)
        ends = [{link.target for link, _ in self.links}, {source for _, source in self.links}]
        self.nodes = [node for node in space.nodes if all(node in side for side in ends)]
        # Where a side has kernels, it has two Gram matrices.
        into = {link.target for link, _ in self.links if link.kernel}
        out = {source for link, source in self.links if link.kernel}
        counts = [(1 + (node in into), 1 + (node in out)) for node in self.nodes]
        self.kernels = (into, out)
        of_kernels = sum(min(_PARTS, size) for link, _ in self.links for size in link.kernel if size > 1)
        of_nodes = sum(len(_POWERS) * (a + b) + 2 * a * b for a, b in counts)
        self.out_features = channels * (of_nodes + of_kernels)

    def forward(self, networks: Features | Mapping[str, Tensor]) -> Tensor:
        """Networks (packed, or named tensors ``(B, C, *shape)``) -> ``(B, out_features)``."""
        networks = packed(self.space, networks)
        entries = settled(self.space, networks, self.channels, type(self).__name__)
        sides: list[dict[str, list[Tensor]]] = [{}, {}]
        parts: list[Tensor] = []
        for link, source, x in tables(self.space, self.links, entries, self.space.node_sizes(networks)):
            w = x.reshape(*x.shape[:4], math.prod(link.kernel))
            w = w / w.square().mean((2, 3, 4), keepdim=True).clamp_min(_TINY**2).sqrt()
            parts += _of_kernel(w.square().mean((2, 3)), link.kernel)
            for side, node, v in ((0, link.target, w), (1, source, w.transpose(2, 3))):
                if node in self.nodes:
                    weights = [v, v.sum(-1, keepdim=True)] if node in self.kernels[side] else [v]
                    grams = [y.flatten(3) @ y.flatten(3).mT for y in weights]
                    before = sides[side].get(node, [torch.zeros_like(g) for g in grams])
                    sides[side][node] = [a + b for a, b in zip(before, grams, strict=True)]
        for node in self.nodes:
            # Of trace n.
            into, out = (
                [g / g.diagonal(dim1=-2, dim2=-1).mean(-1).clamp_min(_TINY)[..., None, None] for g in side[node]]
                for side in sides
            )
            parts += [_spectrum(gram) for gram in (*into, *out)]
            parts += [_agreement(a, b) for a in into for b in out]
        first = networks.tensors[0]
        if not parts:
            return first.new_zeros(len(first), 0)
        return torch.cat(parts, -1).flatten(1).to(first.dtype)

    def extra_repr(self) -> str:
        return f"{self.space}, {self.channels}, out_features={self.out_features}"


def _of_kernel(energy: Tensor, kernel: tuple[int, ...]) -> list[Tensor]:
    """Mean squares ``(B, C, K)`` at all positions -> for each dimension those of its parts, ``(B, C, parts)``."""
    energy, sizes = energy.reshape(*energy.shape[:2], *kernel), []
    for dim, size in ((dim, size) for dim, size in enumerate(kernel) if size > 1):
        others = [2 + i for i in range(len(kernel)) if i != dim]
        along = energy.mean(others) if others else energy
        sizes.append((adaptive_avg_pool1d(along, min(_PARTS, size)) + 1e-4).log() / 2)
    return sizes


def _spectrum(gram: Tensor) -> Tensor:
    """``(B, C, n, n)`` of trace n -> ``(B, C, 3)``."""
    square = gram @ gram
    traces = (gram * gram).sum((-1, -2)), (square * gram).sum((-1, -2)), (square * square).sum((-1, -2))
    return torch.stack([(t / gram.shape[-1]).clamp_min(1).log() / k for t, k in zip(traces, _POWERS, strict=True)], -1)


def _agreement(a: Tensor, b: Tensor) -> Tensor:
    """Cosines ``(B, C, 2)`` of two Gram matrices and of their off-diagonal entries."""
    whole = _norm(a) * _norm(b)
    c, d = (x - torch.diag_embed(x.diagonal(dim1=-2, dim2=-1)) for x in (a, b))
    apart = (c * d).sum((-1, -2)) / (_norm(c) * _norm(d) + _LEAST * whole).clamp_min(_TINY)
    return torch.stack([(a * b).sum((-1, -2)) / whole.clamp_min(_TINY), apart], -1)


def _norm(x: Tensor) -> Tensor:
    return x.square().sum((-1, -2)).clamp_min(_TINY**2).sqrt()
