"""Pools: invariant fields of any number of neurons -> one vector a network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from nfn_monomial.space.features import Features
from nfn_monomial.space.weight_space import WeightSpace
from nfn_monomial.symmetry import Symmetry

from .neurons import neuron_layout

Reduce = Literal["mean", "sum", "moments"]


def pool_field(x: Tensor, acting: Sequence[Symmetry], reduce: Reduce) -> Tensor:
    """One field ``(B, *neurons, F)`` -> ``(B, out)``: neurons that may be permuted are reduced, others kept apart.

    Args:
        x: the field, on which no scale and no sign acts.
        acting: what acts on each axis of neurons.
        reduce: ``"mean"``, ``"sum"``, or ``"moments"``: means, then standard deviations.
    """
    moving = [dim for dim, symmetry in enumerate(acting, start=1) if symmetry.permutes]
    if not moving:
        return x.flatten(1)
    x = x.movedim(moving, list(range(1, 1 + len(moving)))).flatten(1, len(moving))
    if reduce == "sum":
        return x.sum(1).flatten(1)
    mean = x.mean(1).flatten(1)
    if reduce == "mean":
        return mean
    # Not std: its gradient is infinite where all neurons are equal, or where there is one.
    return torch.cat([mean, (x.var(1, correction=0) + 1e-6).sqrt().flatten(1)], -1)


class InvariantPool(nn.Module):
    """Average or add over every hidden axis: permutation-equivariant features -> one vector a network (Sec. 5.2).

    Args:
        space: the weight space; the features are those of ``space.uncharged()``, as `Canonicalize` makes them.
        channels: channels of the features.
        reduce: ``"mean"`` (the paper's, independent of width) or ``"sum"``.

    Attributes:
        out_features: length of the vector: channels x the space's entries with hidden axes taken out.
    """

    def __init__(self, space: WeightSpace, channels: int, reduce: Literal["mean", "sum"] = "mean") -> None:
        super().__init__()
        if reduce not in ("mean", "sum"):
            raise ValueError(f"InvariantPool: reduce must be 'mean' or 'sum', found {reduce!r}")
        self.space, self.channels, self.reduce = space, channels, reduce
        self.layout = space.uncharged().layout
        self.out_features = channels * sum(self.layout.multiplicities)

    def forward(self, features: Features) -> Tensor:
        """Features -> ``(B, out_features)``."""
        self.layout.require(features, self.channels, "InvariantPool")
        return _pool(features, range(len(self.layout)), self.reduce)

    def extra_repr(self) -> str:
        return f"{self.space}, {self.channels}, reduce={self.reduce!r}, out_features={self.out_features}"


class NeuronPool(nn.Module):
    """Neuron features -> one invariant vector a network, from the ``inv`` streams.

    Neurons of FIXED nodes are kept apart; of every other node, mean and standard deviation over its neurons are taken.

    Args:
        space: the networks' weight space.
        channels: of the neuron features.

    Attributes:
        out_features: length of the vector.
    """

    def __init__(self, space: WeightSpace, channels: int) -> None:
        super().__init__()
        self.space, self.channels = space, channels
        neurons = neuron_layout(space)
        self.in_layout = neurons.layout
        self._fields = [neurons.stream("inv", node) for node in neurons.nodes]
        each = [2 if node.permutes else node.size or 1 for node in space.nodes.values()]
        self.out_features = channels * sum(each)

    def forward(self, features: Features) -> Tensor:
        """Neuron features -> ``(B, out_features)``."""
        self.in_layout.require(features, self.channels, "NeuronPool")
        return _pool(features, self._fields, "moments")

    def extra_repr(self) -> str:
        return f"{self.space}, {self.channels}, out_features={self.out_features}"


def _pool(features: Features, fields: Sequence[int], reduce: Reduce) -> Tensor:
    return torch.cat([pool_field(features.tensors[i], features.layout.acting[i], reduce) for i in fields], -1)
