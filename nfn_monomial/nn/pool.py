"""Ways out: pools, from invariant fields of any number of neurons to one vector a network, and back to parameters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from nfn_monomial.checks import Count, checked
from nfn_monomial.space import packing
from nfn_monomial.space.features import Features
from nfn_monomial.space.weight_space import WeightSpace

from .neurons import neuron_layout

Reduce = Literal["mean", "sum", "moments"]

APART = 1024
"""The most neurons of a FIXED node that `NeuronPool` keeps apart."""


def pool_field(x: Tensor, moving: Sequence[int], reduce: Reduce) -> Tensor:
    """One field ``(B, *neurons, F)``, on which no scale and no sign acts, -> ``(B, out)``: dimensions ``moving`` are
    reduced, all that may be permuted among them; ``"moments"`` are means, then standard deviations."""
    if not moving:
        return x.flatten(1)
    x = x.movedim(list(moving), list(range(1, 1 + len(moving)))).flatten(1, len(moving))
    if reduce == "sum":
        return x.sum(1).flatten(1)
    mean = x.mean(1, keepdim=True)
    if reduce == "mean":
        return mean.flatten(1)
    # Not std: its gradient is infinite where all neurons are equal, or where there is one.
    deviation = ((x - mean).square().mean(1) + 1e-6).sqrt()
    return torch.cat([mean.flatten(1), deviation.flatten(1)], -1)


class InvariantPool(nn.Module):
    """Average or add over every hidden axis: permutation-equivariant features -> one vector a network (Sec. 5.2).

    Args:
        space: the weight space; the features are those of ``space.uncharged()``, as `Canonicalize` makes them.
        channels: channels of the features.
        reduce: ``"mean"`` (the paper's, independent of width) or ``"sum"``.

    Attributes:
        out_features: length of the vector: channels x the space's entries with hidden axes taken out.
    """

    @checked
    def __init__(self, space: WeightSpace, channels: Count, reduce: Literal["mean", "sum"] = "mean") -> None:
        super().__init__()
        self.space, self.channels, self.reduce = space, channels, reduce
        self.layout = space.uncharged().layout
        self.out_features = channels * sum(self.layout.multiplicities)

    def forward(self, features: Features) -> Tensor:
        """Features -> ``(B, out_features)``."""
        self.layout.require(features, self.channels, "InvariantPool")
        return torch.cat([pool_field(x, range(1, x.ndim - 1), self.reduce) for x in features.tensors], -1)

    def extra_repr(self) -> str:
        return f"{self.space}, {self.channels}, reduce={self.reduce!r}, out_features={self.out_features}"


class NeuronPool(nn.Module):
    """Neuron features -> one invariant vector a network, from the ``inv`` streams and ``const``.

    Neurons of FIXED nodes are kept apart where there are at most `APART` of them; of every other node, mean and
    standard deviation over its neurons are taken (a vocabulary's have embeddings of their own to tell them apart).

    Args:
        space: the networks' weight space.
        channels: of the neuron features.

    Attributes:
        out_features: length of the vector.
    """

    @checked
    def __init__(self, space: WeightSpace, channels: Count) -> None:
        super().__init__()
        self.space, self.channels = space, channels
        neurons = neuron_layout(space)
        self.in_layout = neurons.layout
        apart = {name: node.size for name, node in space.nodes.items() if not node.permutes and node.size is not None}
        apart = {name: size for name, size in apart.items() if name in neurons.nodes and size <= APART}
        self._fields = [(neurons.stream(n), 0 if n in apart else len(space.ancestry(n))) for n in neurons.nodes]
        self._fields += [(len(self.in_layout) - 1, 0)] if neurons.const else []
        self.out_features = channels * (sum(apart.get(n, 2) for n in neurons.nodes) + neurons.const)

    def forward(self, features: Features) -> Tensor:
        """Neuron features -> ``(B, out_features)``."""
        self.in_layout.require(features, self.channels, "NeuronPool")
        pooled = [pool_field(features.tensors[i], range(1, 1 + moving), "moments") for i, moving in self._fields]
        return torch.cat(pooled, -1)

    def extra_repr(self) -> str:
        return f"{self.space}, {self.channels}, out_features={self.out_features}"


class NeuronReadout(nn.Module):
    """Neuron features -> parameters, equivariantly: the way back, mixing linearly the fields that they lie in.

    Args:
        space: the networks' weight space.
        channels: of the neuron features.
        out_channels: of the networks.
    """

    @checked
    def __init__(self, space: WeightSpace, channels: Count, out_channels: Count) -> None:
        super().__init__()
        self.space, self.channels, self.out_channels = space, channels, out_channels
        self.neurons = neuron_layout(space)
        self.in_layout, self.out_layout = self.neurons.layout, space.layout
        self.mix = nn.ModuleDict(
            {p.key: nn.Linear(channels, out_channels * p.entries, bias=False) for p in self.neurons.places}
        )

    def forward(self, features: Features) -> Features:
        """Neuron features of ``channels`` -> `Features` of the space with ``out_channels``."""
        self.in_layout.require(features, self.channels, "NeuronReadout", next(self.parameters(), None))
        sizes = {a.node: n for t, x in features.fields.items() for a, n in zip(t, x.shape[1:-1], strict=True)}
        pieces = {}
        for place in self.neurons.places:
            widths = [self.out_channels * math.prod(kernel) for kernel in place.kernels]
            parts = self.mix[place.key](features.tensors[place.field]).split(widths, -1)
            for name, order, kernel, x in zip(place.pieces, place.orders, place.kernels, parts, strict=True):
                x = x.unflatten(-1, (*kernel, self.out_channels))
                pieces[name] = x.permute([order.index(i) for i in range(x.ndim)])
        return self.space.pack(packing.whole(self.space, pieces, sizes), check_finite=False)

    def extra_repr(self) -> str:
        return f"{self.space}, {self.channels}, {self.out_channels}"
