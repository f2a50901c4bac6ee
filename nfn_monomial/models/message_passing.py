"""Networks of message-passing layers: an invariant one (predict, classify) and an equivariant one (edit)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeGuard

import torch
from torch import Tensor, nn

from nfn_monomial.canonical.balance import Balance, rescaling
from nfn_monomial.checks import Count, Finite, Share, checked
from nfn_monomial.nn.messages import MessageBlock
from nfn_monomial.nn.neurons import NeuronEmbedding, NeuronReadout
from nfn_monomial.nn.neurons.buckets import Neurons
from nfn_monomial.nn.norm import EquivariantNorm
from nfn_monomial.nn.pool import NeuronPool
from nfn_monomial.nn.steps import packed
from nfn_monomial.read.probes import ProbeFeatures
from nfn_monomial.read.statistics import InvariantStatistics
from nfn_monomial.space.features import Features
from nfn_monomial.space.weight_space import WeightSpace

from .blocks import Blocks, changed, mlp_head


class _MessageBody(nn.Module):
    """Embedding and blocks: networks on which no scale acts -> neuron features in buckets."""

    def __init__(
        self,
        space: WeightSpace,
        in_channels: int,
        channels: int,
        layers: int,
        tied: bool,
        norm: bool = True,
        last: bool = False,
        probes: ProbeFeatures | None = None,
    ) -> None:
        super().__init__()
        extra, charges = (0, None) if probes is None else (probes.count, probes.charges)
        self.embed = NeuronEmbedding(space, in_channels, channels, extra=extra, charges=charges)
        blocks = [
            MessageBlock(space, channels, tied=tied, norm=norm, last=last and i == layers - 1) for i in range(layers)
        ]
        self.blocks = Blocks(*blocks)

    def forward(self, networks: Features | Mapping[str, Tensor], extra: Mapping[str, Tensor] | None = None) -> Neurons:
        out: Neurons = self.blocks(self.embed(networks, extra, in_buckets=True))
        return out


class _OnBalanced(nn.Module):
    """A model of networks whose scales are balanced: those of a space -> those of ``inner``, on which none acts."""

    def __init__(self, space: WeightSpace, in_channels: int) -> None:
        super().__init__()
        self.space, self.in_channels = space, in_channels
        self.inner = space.restricted("sign")

    def prepare(self, networks: Features | Mapping[str, Tensor]) -> Features:
        """Networks with balanced scales, as `Features` of ``inner``, which the model does not balance again.

        Balancing takes most of a forward's operators: do it once, to a whole data set.
        """
        features = networks if isinstance(networks, Features) else self.space.pack(networks)
        balanced = self.inner.pack(self.space.unpack(Balance(self.space, signs=False)(features)))
        return balanced.map(torch.Tensor.contiguous)  # or every batch would be copied when it is flattened

    def is_prepared(self, networks: Features | Mapping[str, Tensor]) -> TypeGuard[Features]:
        """Returns whether `prepare` made them; features of a space without scales need nothing either."""
        return isinstance(networks, Features) and networks.layout is self.inner.layout


class MessagePassingNFN(_OnBalanced):
    """An invariant network in which weights talk to one another: predict, classify.

    Scales are balanced (`Balance`), which no later layer then has to undo; sign flips and permutations are respected by
    the layers: `NeuronEmbedding`, blocks of norm, `MessagePassing` and `GatedActivation`, `NeuronPool`, MLP.

    Args:
        space: the weight space of the input networks, of any kind.
        channels: of all streams of the neuron features.
        layers: number of blocks. Messages travel along one weight, both ways, in each.
        hidden: width of the MLP's two hidden layers.
        out_features: outputs of the MLP.
        in_channels: channels of the input networks.
        tied: whether all layers of the network share parameters, see `MessagePassing`.
        norm: whether blocks normalise, see `MessageBlock`.
        balance: whether scales are to be balanced here, unless `prepare` has balanced them; without it the given
            networks must be balanced already, or the output depends on their scales.
        append_stats: whether `InvariantStatistics` join the pooled vector.
        probes: `ProbeFeatures` of the networks: their answers join the pooled vector, their hidden activations the
            neurons' features.
        dropout: in the MLP.

    >>> space = WeightSpace.cnn([1, 16, 16, 16], 3, "relu", head=[10])
    >>> model = MessagePassingNFN(space)
    >>> model({name: torch.randn(8, 1, *shape) for name, shape in space.shapes().items()}).shape
    torch.Size([8, 1])
    """

    @checked
    def __init__(
        self,
        space: WeightSpace,
        channels: Count = 16,
        layers: Count = 3,
        hidden: Count = 128,
        out_features: Count = 1,
        *,
        in_channels: Count = 1,
        tied: bool = False,
        norm: bool = True,
        balance: bool = True,
        append_stats: bool = False,
        probes: ProbeFeatures | None = None,
        dropout: Share = 0.0,
    ) -> None:
        super().__init__(space, in_channels)
        self.balance = Balance(space, signs=False) if balance else None
        self.probes = probes
        self.body = _MessageBody(self.inner, in_channels, channels, layers, tied, norm, True, probes)
        self.pool = NeuronPool(self.inner, channels, norm)
        self.stats = InvariantStatistics(self.inner, in_channels) if append_stats else None
        width = sum(part.out_features for part in (self.pool, self.stats, probes) if part is not None)
        self.head = mlp_head(width, hidden, out_features, nn.SiLU, dropout)

    def forward(self, networks: Features | Mapping[str, Tensor]) -> Tensor:
        """Networks (packed, named tensors ``(B, C, *shape)``, or from `prepare`) -> ``(B, out_features)``."""
        if not self.is_prepared(networks):
            if self.balance is not None:
                networks = self.balance(packed(self.space, networks))
            # As named tensors, networks are those of ``inner`` too.
            networks = self.space.unpack(networks) if isinstance(networks, Features) else networks
        parts, hidden = [], None
        if self.probes is not None:
            outputs, hidden = self.probes(self.inner.unpack(networks) if isinstance(networks, Features) else networks)
            parts.append(outputs.flatten(1))
        if self.stats is not None:
            parts.append(self.stats(networks))
        pooled: Tensor = self.pool(self.body(networks, hidden))
        out: Tensor = self.head(torch.cat([pooled, *parts], -1))
        return out


class MessagePassingEditor(_OnBalanced):
    """The equivariant twin, for editing networks: adds a learned, small, equivariant change.

    The change is computed in the balanced frame and carried back, so that it commutes with the whole group.

    Args:
        space: the weight space of the input networks.
        channels: see `MessagePassingNFN`, as are ``layers``, ``in_channels`` and ``tied``.
        layers: number of blocks.
        in_channels: channels of the input networks, and of the edited ones.
        tied: whether layers share parameters.
        init_scale: initial size of the change relative to the layers' output; learned.
    """

    @checked
    def __init__(
        self,
        space: WeightSpace,
        channels: Count = 16,
        layers: Count = 3,
        *,
        in_channels: Count = 1,
        tied: bool = False,
        init_scale: Finite = 0.01,
    ) -> None:
        super().__init__(space, in_channels)
        self.body = _MessageBody(self.inner, in_channels, channels, layers, tied)
        self.norm = EquivariantNorm(self.inner, channels)
        self.readout = NeuronReadout(self.inner, channels, in_channels)
        self.init_scale = float(init_scale)
        self.scale = nn.Parameter(torch.empty(len(space.layout)))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Sets the size of the change to its initial one; layers have such methods of their own."""
        nn.init.constant_(self.scale, self.init_scale)

    def forward(self, networks: Features | Mapping[str, Tensor]) -> Features:
        """Networks (packed, named tensors ``(B, C, *shape)``, or from `prepare`) -> edited networks as `Features`, of
        ``inner`` where the given ones are, else of ``space``."""
        prepared = self.is_prepared(networks)
        if self.is_prepared(networks):
            features = self.space.pack(self.inner.unpack(networks), check_finite=False)
        else:
            features = packed(self.space, networks)
        balancing = None if prepared else rescaling(self.space, features, signs=False)
        balanced = self.space.unpack(features if balancing is None else balancing.act(features))
        change = self.space.pack(self.inner.unpack(self.readout(self.norm(self.body(balanced)))), check_finite=False)
        change = change if balancing is None else balancing.inverse().act(change)
        edited = changed(features, self.scale, change)
        return self.inner.pack(self.space.unpack(edited), check_finite=False) if prepared else edited
