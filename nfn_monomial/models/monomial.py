"""The paper's networks: the invariant one (predict, classify) and its equivariant twin (edit)."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from nfn_monomial.checks import Count, Finite, Share, checked
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.nn.activation import PointwiseActivation
from nfn_monomial.nn.canonicalize import Canonicalize
from nfn_monomial.nn.linear import EquivariantLinear
from nfn_monomial.nn.pool import InvariantPool
from nfn_monomial.nn.steps import packed
from nfn_monomial.read.statistics import InvariantStatistics
from nfn_monomial.space.features import Features
from nfn_monomial.space.weight_space import WeightSpace
from nfn_monomial.symmetry import Activation

from .blocks import changed, mlp_head


@checked
def equivariant_stack(
    space: WeightSpace,
    channels: Sequence[Count],
    activation: Activation = "auto",
    io: Literal["full", "factored"] = "full",
) -> nn.Sequential:
    """`EquivariantLinear` layers ``channels[0] -> channels[1] -> ...`` with an activation between any two."""
    if len(channels) < 2:
        raise InvalidValueError(f"equivariant_stack: channels of input and output are needed, found {list(channels)}")
    layers: list[nn.Module] = []
    for c_in, c_out in itertools.pairwise(channels):
        if layers:
            layers.append(PointwiseActivation(space, activation))
        layers.append(EquivariantLinear(space, c_in, c_out, io=io))
    return nn.Sequential(*layers)


class MonomialNFN(nn.Module):
    """The paper's invariant network (Sec. 5.2, App. D.3): equivariant layers, canonicalise, pool, MLP.

    With its defaults and the Small CNN Zoo's architecture under ReLU it has 0.25M parameters (Table 17); with
    ``hidden=1000`` 1.4M, as the paper's for tanh.

    Args:
        space: the weight space of the input networks.
        channels: output channels of the equivariant layers, each followed by the activation.
        hidden: width of the two hidden layers of the MLP.
        out_features: outputs of the MLP (a logit for a regression on [0, 1], a logit per class).
        in_channels: channels of the input networks.
        activation: between the equivariant layers; ``"auto"`` is ReLU for SCALE, tanh for SIGN, see
            `PointwiseActivation`.
        kind: of `Canonicalize`.
        reduce: of `InvariantPool`.
        io: of `EquivariantLinear`.
        dropout: in the MLP.
        append_stats: whether the networks' `InvariantStatistics` join the pooled vector.

    >>> net = MonomialNFN(WeightSpace.cnn([1, 16, 16, 16], 3, "relu", head=[10]))
    >>> sum(p.numel() for p in net.parameters())
    254799
    """

    @checked
    def __init__(
        self,
        space: WeightSpace,
        channels: Sequence[Count] = (16, 16, 5),
        hidden: Count = 200,
        out_features: Count = 1,
        *,
        in_channels: Count = 1,
        activation: Activation = "auto",
        kind: Literal["norm", "square", "abs"] = "norm",
        reduce: Literal["mean", "sum"] = "mean",
        io: Literal["full", "factored"] = "full",
        dropout: Share = 0.0,
        append_stats: bool = False,
    ) -> None:
        super().__init__()
        if not channels:
            raise InvalidValueError("MonomialNFN needs at least one equivariant layer; channels is empty")
        self.space, self.in_channels = space, in_channels
        self.body = equivariant_stack(space, [in_channels, *channels], activation, io)
        self.body.append(PointwiseActivation(space, activation))
        self.canonicalize = Canonicalize(space, channels[-1], kind)
        self.pool = InvariantPool(space, channels[-1], reduce)
        self.stats = InvariantStatistics(space, in_channels) if append_stats else None
        width = self.pool.out_features + (0 if self.stats is None else self.stats.out_features)
        self.head = mlp_head(width, hidden, out_features, nn.ReLU, dropout)

    def forward(self, networks: Features | Mapping[str, Tensor]) -> Tensor:
        """Networks (packed, or named tensors ``(B, C, *shape)``) -> ``(B, out_features)``."""
        networks = packed(self.space, networks)
        pooled: Tensor = self.pool(self.canonicalize(self.body(networks)))
        if self.stats is not None:
            pooled = torch.cat([pooled, self.stats(networks)], -1)
        out: Tensor = self.head(pooled)
        return out


class EquivariantNFN(nn.Module):
    """The equivariant twin, for editing networks (paper Sec. 6.3): adds a learned, small, equivariant change.

    Args:
        space: the weight space of the input networks.
        channels: hidden channels of the equivariant layers.
        in_channels: channels of the input networks, and of the edited ones.
        activation: between layers, see `PointwiseActivation`.
        init_scale: initial size of the change relative to the layers' output; learned.
        io: of `EquivariantLinear`.
    """

    @checked
    def __init__(
        self,
        space: WeightSpace,
        channels: Sequence[Count] = (16, 16),
        *,
        in_channels: Count = 1,
        activation: Activation = "auto",
        init_scale: Finite = 0.01,
        io: Literal["full", "factored"] = "full",
    ) -> None:
        super().__init__()
        self.space, self.in_channels = space, in_channels
        self.body = equivariant_stack(space, [in_channels, *channels, in_channels], activation, io)
        self.init_scale = float(init_scale)
        self.scale = nn.Parameter(torch.empty(len(space.layout)))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Sets the size of the change to its initial one; the layers have methods of this name of their own."""
        nn.init.constant_(self.scale, self.init_scale)

    def forward(self, networks: Features | Mapping[str, Tensor]) -> Features:
        """Networks (packed, or named tensors ``(B, C, *shape)``) -> edited networks; ``space.unpack`` names them."""
        networks = packed(self.space, networks)
        return changed(networks, self.scale, self.body(networks))
