"""ScaleGMN (Kalogeropoulos et al. 2024) on our neuron features: forwards alone, and in both directions.

The published bidirectional form sends forward features backwards, which is not equivariant to scalings. Here a neuron
has a stream of charge -1 besides, like a gradient, which backward messages fill: no reciprocals, and exactly
equivariant. Networks are read as they are: it is the layers that undo scales, not a canonical form in front.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor, nn

from nfn_monomial import EquivariantNorm, Features, WeightSpace
from nfn_monomial.benchmarks.data.networks import NetworkInfo
from nfn_monomial.benchmarks.models.base import Model, register
from nfn_monomial.benchmarks.models.parts import logits, mlp
from nfn_monomial.models.blocks import Blocks
from nfn_monomial.nn import GatedActivation, NeuronEmbedding, NeuronPool
from nfn_monomial.nn.canonicalize import degree_zero
from nfn_monomial.nn.neurons import NeuronLayer

__all__ = ["ScaleGMN", "ScaleGMNBidirectional", "ScaleMessages"]

CHANNELS, LAYERS = 32, 3
HEAD_WIDTH = 200


class ScaleMessages(NeuronLayer):
    """Messages along weights, and the weights' update; in the words of ScaleGMN, with ``~`` for a killed charge::

        message to j    e_jk * (A h_k)                                  ReScaleEq of edge and source
        streams         h_j + M (sum of messages)                       the linear part of ScaleEq
        edge            e_jk * G silu(E e~_jk + V h~_j + U h~_k + w)    ScaleEq

    `GatedActivation` behind it is the other part of ScaleEq, a function of invariants that multiplies. Where an edge
    has more ends, a message is the product of what all others bring.

    Args:
        space: the networks' weight space.
        channels: of all streams.
        backward: whether the ends that an edge leads from get messages, too: ``e_jk * (B g_j)``, of charge -1 at k.
    """

    def __init__(self, space: WeightSpace, channels: int, backward: bool) -> None:
        super().__init__(space, channels)
        self.backward = backward

        ends = [f"{e.key}_{i}" for e in self.neurons.edges for i in range(len(e.ends))]
        self.bring, self.tell = (_mixes(channels, ends) for _ in range(2))
        self.total = _mixes(channels, [key for key in ends if backward or key.endswith("_0")])
        self.own, self.gate = (_mixes(channels, [e.key for e in self.neurons.edges], True) for _ in range(2))
        self._felt = self.in_layout.felt

    def forward(self, features: Features) -> Features:
        """Neuron features -> the same with messages added."""
        x = self.fields(features)
        updated = list(x)
        for field, edge in enumerate(self.neurons.edges):
            e, brought = x[field], []
            hidden = self.own[edge.key](degree_zero(e, self._felt[field]))
            for i, end in enumerate(edge.ends):
                h = x[end.against]
                neutral = degree_zero(h, self._felt[end.against])
                key = f"{edge.key}_{i}"
                brought.append(_spread(self.bring[key](h), end.at, len(edge.axes)))
                hidden = hidden + _spread(self.tell[key](neutral), end.at, len(edge.axes))
            for i, end in enumerate(edge.ends[: None if self.backward else 1]):
                message = e
                for j, other in enumerate(brought):
                    message = message if j == i else message * other
                total = message.sum([1 + d for d in range(len(edge.axes)) if d not in end.at])
                updated[end.along] = updated[end.along] + self.total[f"{edge.key}_{i}"](total)
            updated[field] = e * self.gate[edge.key](nn.functional.silu(hidden))
        return Features(self.out_layout, tuple(updated))


def _mixes(channels: int, keys: list[str], bias: bool = False) -> nn.ModuleDict:
    return nn.ModuleDict({key: nn.Linear(channels, channels, bias=bias) for key in keys})


def _spread(x: Tensor, at: tuple[int, ...], axes: int) -> Tensor:
    """``(B, *neurons, C)`` along its own of the axes of edges."""
    for dim in range(axes):
        x = x if dim in at else x.unsqueeze(1 + dim)
    return x


class _Block(nn.Module):
    """Norm, messages and the gate, residual."""

    def __init__(self, space: WeightSpace, channels: int, backward: bool) -> None:
        super().__init__()
        self.body = nn.Sequential(
            EquivariantNorm(space, channels), ScaleMessages(space, channels, backward), GatedActivation(space, channels)
        )

    def forward(self, features: Features) -> Features:
        moved: Features = self.body(features)
        return features + moved


@register("scale-gmn")
class ScaleGMN(Model):
    """Messages along weights, from inputs to outputs, by layers that commute with scalings and sign flips."""

    label, invariant_under = "ScaleGMN", "group"
    backward: ClassVar[bool] = False

    def __init__(self, networks: NetworkInfo, out_features: int = 1) -> None:
        super().__init__()
        self.space = networks.space
        self.embed = NeuronEmbedding(self.space, 1, CHANNELS)
        self.blocks = Blocks(*(_Block(self.space, CHANNELS, self.backward) for _ in range(LAYERS)))
        self.pool = NeuronPool(self.space, CHANNELS)
        self.head = mlp(self.pool.out_features, HEAD_WIDTH, out_features)

    def prepare(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return dict(tensors)

    def forward(self, batch: Mapping[str, Tensor]) -> Tensor:
        return logits(self.head(self.pool(self.blocks(self.embed(batch)))))


@register("scale-gmn-bidirectional")
class ScaleGMNBidirectional(ScaleGMN):
    """The same in both directions: backward messages are of charge -1."""

    label, backward = "ScaleGMN-B", True
