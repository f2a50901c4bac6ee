"""Ways out: pools, from invariant fields of any number of neurons to one vector a network, and back to parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from nfn_monomial.checks import Count, checked
from nfn_monomial.space.features import Features
from nfn_monomial.space.weight_space import WeightSpace

from .edges import scaled
from .neurons.arrange import kept_apart
from .neurons.buckets import Neurons
from .neurons.layers import OnNeurons
from .sizes import moments, over_size

Reduce = Literal["mean", "sum", "moments"]


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


class NeuronPool(OnNeurons):
    """Neuron features -> one invariant vector a network, from the ``inv`` streams and ``const``.

    Neurons of FIXED nodes are kept apart where there are at most 1,024 of them; of every other node, mean and
    standard deviation over its neurons are taken (a vocabulary's have embeddings of their own to tell them apart).

    Args:
        space: the networks' weight space.
        channels: of the neuron features.
        norm: whether invariants are normalised neuron by neuron before, as `EquivariantNorm` does.

    Attributes:
        out_features: length of the vector.
        gain: ``(kinds, C)``, of kinds of normalised invariants, then of ``const``; None without.
    """

    @checked
    def __init__(self, space: WeightSpace, channels: Count, norm: bool = False) -> None:
        super().__init__(space, channels)
        self.gain = (
            nn.Parameter(torch.ones(len(self.neurons.invariant_kinds) + self.neurons.const, channels)) if norm else None
        )
        apart = kept_apart(space)
        self.out_features = channels * (sum(apart.get(name, 2) for name in self.neurons.nodes) + self.neurons.const)

    def reset_parameters(self) -> None:
        """Sets all gains to 1."""
        if self.gain is not None:
            nn.init.ones_(self.gain)

    def forward(self, features: Features | Neurons) -> Tensor:
        """Neuron features -> ``(B, out_features)``."""
        neurons = self.packed(features)
        pool = neurons.buckets.pool
        x = neurons.rows.index_select(0, pool.rows)
        if self.gain is not None:
            x = scaled(x, over_size(x, (-1,), pool.root) * self.gain.index_select(0, pool.gain).unsqueeze(1))
        mean, deviation = moments(x, pool.node, pool.share)
        return torch.cat([mean, deviation, x]).index_select(0, pool.pick).movedim(1, 0).flatten(1)

    def extra_repr(self) -> str:
        return f"{self.space}, {self.channels}, out_features={self.out_features}"
