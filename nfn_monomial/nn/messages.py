"""Layers beyond linear: messages between neurons along weights, and gates; all equivariant.

An equivariant linear layer lets a hidden weight see only itself. Bilinear maps lift that (DESIGN, theorem on bilinear
maps): contracting a weight's charge -1 axis with a neuron feature of charge +1 gives a feature of charge +1 at its
target (a forward pass), contracting the other axis with one of charge -1 gives charge -1 at its source (a backward
pass, without reciprocals), the product of a target's +1 and a source's -1 is an edge again, and what is left
uncharged (``h_j g_j``, ``e_jk g_j h_k``) is invariant, so that any function of it may gate the rest.

The parts of each layer that do not know how neurons are laid out, one layer after the other or as a graph, are modules
of their own (`EdgeMessages`, `NeuronUpdate`, `NeuronGate`), which the torch-geometric layers share.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from nfn_monomial.space.features import Features
from nfn_monomial.space.weight_space import WeightSpace

from .canonicalize import degree_zero
from .neurons import NeuronLayer, Streams
from .norm import EquivariantNorm


class Ends(NamedTuple):
    """What the neuron at one end of an edge brings to it, see `EdgeMessages`."""

    message: Tensor
    product: Tensor
    hidden: Tensor


class EdgeMessages(nn.Module):
    """What happens on an edge ``e_jk`` from neuron ``k`` to neuron ``j``, channel by channel but for the matrices.

    With matrices A, P, U of the source, B, Q, V of the target::

        forward message    e_jk * (A h_k)                              charge +1 at j
        backward message   e_jk * (B g_j)                              charge -1 at k
        invariant          t_jk = e_jk * (B g_j) * (A h_k)             charge 0
        hidden             z_jk = silu(W t_jk + V s_j + U s_k + w)
        edge update        e_jk * (G z_jk) + (Q h_j) * (P g_k)         charges +1 at j, -1 at k

    Args:
        channels: of all streams.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.source_out, self.source_back, self.source_inv = (_mix(channels) for _ in range(3))
        self.target_back, self.target_out, self.target_inv = (_mix(channels) for _ in range(3))
        self.hidden = nn.Linear(channels, channels)
        self.gate = _mix(channels)

    def source(self, streams: Streams) -> Ends:
        """``(A h, P g, U s)`` of neurons as sources."""
        return Ends(self.source_out(streams.out), self.source_back(streams.back), self.source_inv(streams.inv))

    def target(self, streams: Streams) -> Ends:
        """``(B g, Q h, V s)`` of neurons as targets."""
        return Ends(self.target_back(streams.back), self.target_out(streams.out), self.target_inv(streams.inv))

    def forward(self, edges: Tensor, target: Ends, source: Ends) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Forward messages, backward messages, hidden and updated edges; ends are broadcast against the edges."""
        forth = edges * source.message
        back = edges * target.message
        z = silu(self.hidden(forth * target.message) + target.hidden + source.hidden)
        return forth, back, z, torch.addcmul(target.product * source.product, edges, self.gate(z))


class NeuronUpdate(nn.Module):
    """Sums of messages, mixed over channels; the invariant ``(V1 h) * (V2 g)`` joins those of the edges."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.out, self.back = _mix(channels), _mix(channels)
        self.first, self.second = _mix(channels), _mix(channels)
        self.inv = nn.Linear(3 * channels, channels)

    def forward(self, streams: Streams, forth: Tensor, back: Tensor, into: Tensor, out_of: Tensor) -> Streams:
        """Updates from the sums of forward and backward messages and the means of hidden over both kinds of edges."""
        product = self.first(streams.out) * self.second(streams.back)
        return Streams(self.out(forth), self.back(back), self.inv(torch.cat([into, out_of, product], -1)))


class NeuronGate(nn.Module):
    """``s' = M2 a, h' = h * (M3 a), g' = g * (M4 a)`` with ``a = silu(M1 [s, degree0(h), degree0(g)])``."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(3 * channels, 2 * channels)
        self.inv = nn.Linear(2 * channels, channels)
        self.gates = nn.Linear(2 * channels, 2 * channels)
        nn.init.ones_(self.gates.bias)

    def forward(self, streams: Streams, out: Tensor, back: Tensor) -> Streams:
        """``out`` and ``back``: the streams of these names with their charge killed, see `degree_zero`."""
        hidden = silu(self.hidden(torch.cat([streams.inv, out, back], -1)))
        by_out, by_back = self.gates(hidden).chunk(2, -1)
        return Streams(streams.out * by_out, streams.back * by_back, self.inv(hidden))


def _mix(channels: int) -> nn.Linear:
    return nn.Linear(channels, channels, bias=False)


class MessagePassing(NeuronLayer):
    """One round of messages along all weights, forwards and backwards, and the weights' own update.

    Neuron ``j`` gets the sum of the forward messages over its incoming weights and of the backward ones over its
    outgoing weights, and the means of the hidden invariants of both; see `EdgeMessages` for what a message is, and
    `NeuronUpdate` for what is made of the sums. Bilinear in the charged streams, with coefficients that are functions
    of invariants. The output is an update: add it to the input for a residual connection. Cost: two products
    with ``channels x channels`` matrices for every weight; nothing of size neurons x neurons but the weights is built.

    Shapes: `Features` of ``neuron_layout(space)`` with ``channels`` in every field, in and out.

    Args:
        space: the networks' weight space, any symmetries.
        channels: of all streams.
        tied: whether all layers of the network share their parameters, as they do on graphs. Otherwise every pair of
            nodes and every node has its own.
    """

    def __init__(self, space: WeightSpace, channels: int, *, tied: bool = False) -> None:
        super().__init__(space, channels)
        self.tied = tied
        keys = [p.key for p in self.neurons.pairs]
        self.edges = nn.ModuleDict({key: EdgeMessages(channels) for key in (["all"] if tied else keys)})
        nodes = ["all"] if tied else list(self.neurons.nodes)
        self.nodes = nn.ModuleDict({node: NeuronUpdate(channels) for node in nodes})

    def forward(self, features: Features) -> Features:
        """Neuron features -> their update."""
        edges, nodes = self.split(features)
        zero = {name: torch.zeros_like(streams.inv) for name, streams in nodes.items()}
        sums = {name: [z, z, z, z] for name, z in zero.items()}
        updated = []
        for pair, e in edges.items():
            layer = self.edges["all" if self.tied else pair.key]
            assert isinstance(layer, EdgeMessages), "the dictionary is made of these"
            target = Ends(*(t.unsqueeze(2) for t in layer.target(nodes[pair.target])))
            source = Ends(*(t.unsqueeze(1) for t in layer.source(nodes[pair.source])))
            forth, back, z, new = layer(e, target, source)
            updated.append(new)
            at, of = sums[pair.target], sums[pair.source]
            at[0], at[2] = at[0] + forth.sum(2), at[2] + z.mean(2)
            of[1], of[3] = of[1] + back.sum(1), of[3] + z.mean(1)
        updates = [self.nodes["all" if self.tied else name](nodes[name], *sums[name]) for name in nodes]
        return self.join(updated, updates)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, tied={self.tied}"


class GatedActivation(NeuronLayer):
    """The nonlinearity: equivariant neuron features times functions of their invariants, see `NeuronGate`.

    Legal under every symmetry, where a pointwise function is not: ``out`` and ``back`` are multiplied by functions of
    ``inv`` and of themselves with their charge killed. Edges pass through; `MessagePassing` gates them by their own.

    Args:
        space: the networks' weight space.
        channels: of all streams.
        tied: whether all nodes share one gate.
    """

    def __init__(self, space: WeightSpace, channels: int, *, tied: bool = False) -> None:
        super().__init__(space, channels)
        self.tied = tied
        self.gates = nn.ModuleDict({n: NeuronGate(channels) for n in (["all"] if tied else self.neurons.nodes)})

    def forward(self, features: Features) -> Features:
        """Neuron features -> gated ones."""
        edges, nodes = self.split(features)
        gated = []
        for name, streams in nodes.items():
            felt = self.space.nodes[name].symmetry
            neutral = (degree_zero(t, felt) for t in streams[:2])
            gated.append(self.gates["all" if self.tied else name](streams, *neutral))
        return self.join(edges.values(), gated)


class MessageBlock(nn.Module):
    """Norm, messages, gate, and residual connections around them: ``x + gate(y + messages(y))`` with ``y = norm(x)``.

    Args:
        space: the networks' weight space.
        channels: of the neuron features.
        tied: see `MessagePassing`.
        norm: whether the norm is there. It keeps deep stacks in range, but a network's own sizes are divided out of
            what messages are made of; to compute with exact values (a network's outputs) leave it out.
    """

    def __init__(self, space: WeightSpace, channels: int, *, tied: bool = False, norm: bool = True) -> None:
        super().__init__()
        self.norm = EquivariantNorm(space, channels) if norm else nn.Identity()
        self.messages = MessagePassing(space, channels, tied=tied)
        self.gate = GatedActivation(space, channels, tied=tied)
        self.in_layout, self.channels = self.messages.in_layout, channels

    def forward(self, features: Features) -> Features:
        """Neuron features of the space, in and out."""
        y = self.norm(features)
        gated: Features = self.gate(y + self.messages(y))
        return features + gated
