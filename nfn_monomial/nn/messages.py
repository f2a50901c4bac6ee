"""Layers beyond linear: messages between neurons along weights, and gates; all equivariant.

An equivariant linear layer lets a hidden weight see only itself. Bilinear maps lift that (DESIGN, theorem on bilinear
maps): contracting a weight's charge -1 axis with a neuron feature of charge +1 gives a feature of charge +1 at its
target (a forward pass), contracting the other axis with one of charge -1 gives charge -1 at its source (a backward
pass, without reciprocals), the product of a target's +1 and a source's -1 is an edge again, and what is left
uncharged (``h_j g_j``, ``e_jk g_j h_k``) is invariant, so that any function of it may gate the rest. The same holds for
edges of any number of ends, of any charges (a factor graph): all ends but one are contracted with their opposites.

The parts of each layer that do not know how neurons are laid out, one layer after the other or as a graph, are modules
of their own (`EdgeMessages`, `NeuronUpdate`, `NeuronGate`), which the torch-geometric layers share.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, silu

from nfn_monomial.checks import Count, checked
from nfn_monomial.space.features import Features
from nfn_monomial.space.weight_space import WeightSpace

from .canonicalize import degree_zero
from .edges import Ends, Out, Scale, Sums, exchange
from .incidence import Grid, Places
from .neurons import CHAIN, NeuronLayer, Plan, Streams
from .norm import EquivariantNorm


class EndMix(nn.Module):
    """``(A h, P g, U s)`` of the neurons at one end of edges: ``h`` the stream whose charge is opposite to that of the
    edge at this end, ``g`` the one of the same charge, ``s`` their invariants."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.against, self.along, self.inv = (_mix(channels) for _ in range(3))

    def forward(
        self, against: Tensor, along: Tensor, inv: Tensor, bias: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Streams ``(..., C)`` -> what they bring; ``bias`` is added to the last."""
        return self.against(against), self.along(along), linear(inv, self.inv.weight, bias)


class EdgeMessages(nn.Module):
    """What happens on an edge between the neurons at its ends, channel by channel but for the matrices.

    Of an edge ``e_jk`` from neuron ``k`` to neuron ``j``, with matrices A, P, U of the source, B, Q, V of the target::

        forward message    e_jk * (A h_k)                              charge +1 at j
        backward message   e_jk * (B g_j)                              charge -1 at k
        invariant          t_jk = e_jk * (B g_j) * (A h_k)             charge 0
        hidden             z_jk = silu(W t_jk + V s_j + U s_k + w)
        edge update        e_jk * (G z_jk) + (Q h_j) * (P g_k)         charges +1 at j, -1 at k

    With more ends, the message to one is the product of the edge with what all others bring.

    Args:
        channels: of all streams.
        ends: number of ends of an edge, at least 2.
    """

    def __init__(self, channels: int, ends: int = 2) -> None:
        super().__init__()
        self.ends = nn.ModuleList(EndMix(channels) for _ in range(ends))
        self.hidden = nn.Linear(channels, channels)
        self.gate = _mix(channels)

    def forward(
        self,
        places: Places,
        edges: Tensor,
        streams: Sequence[tuple[Tensor, Tensor, Tensor]],
        scale: Scale | None = None,
        out: Out = "update",
    ) -> tuple[Sums, Tensor]:
        """Sums of what edges send to their ends, and the updated edges.

        Args:
            places: which neurons are at which end.
            edges: of all edges.
            streams: of the neurons at each end ``h, g, s`` as `EndMix` takes them.
            scale: what edges are multiplied by first, see `exchange`.
            out: which edges are returned.
        """
        first, *others = zip(self.ends, streams, strict=True)
        brought = first[0](*first[1], self.hidden.bias), *(mix(*x) for mix, x in others)
        ends = Ends(*zip(*brought, strict=True))
        return exchange(places, edges, self.hidden.weight, self.gate.weight, ends, scale, out)


class NeuronUpdate(nn.Module):
    """Sums of messages, mixed over channels; ``(V1 h) * (V2 g)`` of streams of opposite charges joins the invariants.

    Args:
        channels: of all streams.
        plan: which streams there are. Those that a parameter of one end transports from another one, as a gain does,
            get ``p * (A h)`` besides.
    """

    def __init__(self, channels: int, plan: Plan = CHAIN) -> None:
        super().__init__()
        self.plan, self.pairs = plan, plan.pairs
        self.mixes = nn.ModuleList(_mix(channels) for _ in range(len(plan.charges) - (not plan.reached)))
        self.first, self.second = (nn.ModuleList(_mix(channels) for _ in self.pairs) for _ in range(2))
        self.transports = nn.ModuleList(_mix(channels) for _ in plan.transports)
        self.inv = nn.Linear((2 + len(self.pairs)) * channels, channels)

    def forward(self, streams: Streams, sums: Sequence[Tensor], into: Tensor, out_of: Tensor) -> Streams:
        """Updates from the sums of messages into each stream, and the means of hidden over edges that lead to the
        neurons and over those that lead from them."""
        firsts = [mix(streams[i]) for mix, (i, _) in zip(self.first, self.pairs, strict=True)]
        products = [f * mix(streams[j]) for f, mix, (_, j) in zip(firsts, self.second, self.pairs, strict=True)]
        inv = self.inv(torch.cat([into, out_of, *products], -1))
        updates = [mix(total) for mix, total in zip(self.mixes, sums, strict=False)]
        for mix, (own, of, to) in zip(self.transports, self.plan.transports, strict=True):
            updates[to] = torch.addcmul(updates[to], streams[own], mix(streams[of]))
        return (*updates[:-1], updates[-1] + inv) if self.plan.reached else (*updates, inv)


class NeuronGate(nn.Module):
    """``s' = M s~, h' = h * (M' s~)`` for each other stream, with ``s~ = silu(M'' [s, degree0(h), ...])``.

    Args:
        channels: of all streams.
        streams: how many there are, ``inv`` included.
    """

    def __init__(self, channels: int, streams: int = 3) -> None:
        super().__init__()
        self.hidden = nn.Linear(streams * channels, 2 * channels)
        self.inv = nn.Linear(2 * channels, channels)
        self.gates = nn.Linear(2 * channels, (streams - 1) * channels) if streams > 1 else None
        if self.gates is not None:
            nn.init.ones_(self.gates.bias)

    def forward(self, streams: Streams, neutral: Sequence[Tensor]) -> Streams:
        """``neutral``: the charged streams with their charge killed, see `degree_zero`."""
        *charged, inv = streams
        hidden = silu(self.hidden(torch.cat([inv, *neutral], -1)))
        gates = () if self.gates is None else self.gates(hidden).chunk(len(charged), -1)
        return (*(x * gate for x, gate in zip(charged, gates, strict=True)), self.inv(hidden))


def _mix(channels: int) -> nn.Linear:
    return nn.Linear(channels, channels, bias=False)


class MessagePassing(NeuronLayer):
    """One round of messages along all weights, forwards and backwards, and the weights' own update.

    Neuron ``j`` gets the sum of the forward messages over its incoming weights and of the backward ones over its
    outgoing weights, and the means of the hidden invariants of both; see `EdgeMessages` for what a message is, and
    `NeuronUpdate` for what is made of the sums. Neurons of a nested node and those that they are nested in exchange
    their invariants, as do all neurons and parameters without an axis. Bilinear in the charged streams, with
    coefficients that are functions of invariants. The output is an update: add it to the input for a residual
    connection. Cost: two products with ``channels x channels`` matrices for every weight; nothing of size
    neurons x neurons but the weights is built.

    Shapes: `Features` of ``neuron_layout(space)`` with ``channels`` in every field, in and out.

    Args:
        space: the networks' weight space, any symmetries.
        channels: of all streams.
        tied: whether all layers of the network share their parameters, as they do on graphs: all edges with one number
            of ends, all nodes with the same streams. Otherwise every set of edges and every node has its own.
    """

    @checked
    def __init__(self, space: WeightSpace, channels: Count, *, tied: bool = False) -> None:
        super().__init__(space, channels)
        self.tied = tied
        plans = self.neurons.nodes
        grids = [Grid([end.at for end in e.ends], len(e.axes)) for e in self.neurons.edges]
        self._places = [Places(grid, grid, grid) for grid in grids]
        self._edge_keys = _shared([(e.key, len(e.ends)) for e in self.neurons.edges], tied)
        self._node_keys = dict(zip(plans, _shared(list(plans.items()), tied), strict=True))
        made = dict(zip(self._edge_keys, self.neurons.edges, strict=True))
        self.edges = nn.ModuleDict({key: EdgeMessages(channels, len(e.ends)) for key, e in made.items()})
        self.nodes = nn.ModuleDict({key: NeuronUpdate(channels, plans[node]) for node, key in self._node_keys.items()})
        inner = [node for node in plans if node in space.nesting]
        self._nest_keys = dict(zip(inner, _shared([(n, None) for n in inner], tied), strict=True))
        self.up, self.down = (nn.ModuleDict({k: _mix(channels) for k in self._nest_keys.values()}) for _ in range(2))
        self.const = nn.ModuleList(_mix(channels) for _ in range(2 if self.neurons.const else 0))

    def forward(self, features: Features) -> Features:
        """Neuron features -> their update."""
        edges, nodes, const = self.split(features)
        updated, updates, const = self.passed(edges, nodes, const, [None] * len(edges))
        return self.join(updated, updates.values(), const)

    def passed(
        self,
        edges: Sequence[Tensor],
        nodes: Mapping[str, Streams],
        const: Sequence[Tensor],
        scales: Sequence[Scale | None],
        out: Out = "update",
    ) -> tuple[list[Tensor], dict[str, Streams], list[Tensor]]:
        """Updates of fields as `split` returns them; ``scales`` and ``out``: of the edges, see `exchange`."""
        sums: dict[str, list[Tensor | None]] = {name: [None] * (len(streams) + 2) for name, streams in nodes.items()}
        updated = []
        each = zip(self.neurons.edges, self._edge_keys, self._places, edges, scales, strict=True)
        for edge, key, places, e, scale in each:
            layer = self.edges[key]
            assert isinstance(layer, EdgeMessages), "the dictionary is made of these"
            ends = [(x[end.against], x[end.along], x[-1]) for end in edge.ends for x in [nodes[end.node]]]
            found, new = layer(places, e, ends, scale, out)
            updated.append(new)
            for number, (end, message, hidden) in enumerate(zip(edge.ends, *found, strict=True)):
                at, count = sums[end.node], math.prod([n for i, n in enumerate(e.shape[1:-1]) if i not in end.at])
                of = -1 if number else -2
                at[end.along] = _joined(at[end.along], message)
                at[of] = _joined(at[of], hidden / count)
        updates = {}
        for name, streams in nodes.items():
            none = torch.zeros_like(streams[-1])
            *totals, into, out_of = (none if total is None else total for total in sums[name])
            updates[name] = list(self.nodes[self._node_keys[name]](streams, totals, into, out_of))
        for child, key in self._nest_keys.items():
            parent = self.space.nesting[child]
            updates[parent][-1] = updates[parent][-1] + self.up[key](nodes[child][-1].mean(-2))
            updates[child][-1] = updates[child][-1] + self.down[key](nodes[parent][-1]).unsqueeze(-2)
        if const:
            for update in updates.values():
                update[-1] = update[-1] + _broadcast(self.const[0](const[0]), update[-1])
            means = [streams[-1].flatten(1, -2).mean(1) for streams in nodes.values()]
            const = [self.const[1](_mean(means) if means else const[0])]
        return updated, {name: tuple(update) for name, update in updates.items()}, list(const)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, tied={self.tied}"


def _shared(named: Sequence[tuple[str, object]], tied: bool) -> list[str]:
    """A key for each of some modules: the same for those of the same kind where they are tied, else their names."""
    kinds = list(dict.fromkeys(kind for _, kind in named))
    return [f"all_{i}" if (i := kinds.index(kind)) else "all" for _, kind in named] if tied else [n for n, _ in named]


def _joined(total: Tensor | None, more: Tensor) -> Tensor:
    return more if total is None else total + more


def _broadcast(const: Tensor, like: Tensor) -> Tensor:
    return const.view(len(const), *[1] * (like.ndim - 2), const.shape[-1])


def _mean(tensors: Sequence[Tensor]) -> Tensor:
    return functools.reduce(operator.add, tensors) / len(tensors)


class GatedActivation(NeuronLayer):
    """The nonlinearity: equivariant neuron features times functions of their invariants, see `NeuronGate`.

    Legal under every symmetry, where a pointwise function is not: charged streams are multiplied by functions of
    ``inv`` and of themselves with their charge killed. Edges pass through; `MessagePassing` gates them by their own.

    Args:
        space: the networks' weight space.
        channels: of all streams.
        tied: whether all nodes with the same streams share one gate.
    """

    @checked
    def __init__(self, space: WeightSpace, channels: Count, *, tied: bool = False) -> None:
        super().__init__(space, channels)
        self.tied = tied
        plans = self.neurons.nodes
        self._keys = dict(zip(plans, _shared([(n, plan.charges) for n, plan in plans.items()], tied), strict=True))
        self.gates = nn.ModuleDict({key: NeuronGate(channels, len(plans[n].charges)) for n, key in self._keys.items()})
        self.const = NeuronGate(channels, 1) if self.neurons.const else None
        firsts = {node: self.neurons.first(node) for node in plans}
        self._felt = {node: self.in_layout.felt[i : i + len(plans[node].charges) - 1] for node, i in firsts.items()}

    def forward(self, features: Features) -> Features:
        """Neuron features -> gated ones."""
        edges, nodes, const = self.split(features)
        gated, const = self.gated(nodes, const)
        return self.join(edges, gated.values(), const)

    def gated(self, nodes: Mapping[str, Streams], const: Sequence[Tensor]) -> tuple[dict[str, Streams], list[Tensor]]:
        """Gated streams and ``const``, as `split` returns them."""
        gated = {}
        for name, streams in nodes.items():
            neutral = [degree_zero(t, felt) for t, felt in zip(streams[:-1], self._felt[name], strict=True)]
            gated[name] = self.gates[self._keys[name]](streams, neutral)
        return gated, [c for t in const if self.const is not None for c in self.const((t,), ())]


class MessageBlock(NeuronLayer):
    """Norm, messages, gate, and residual connections around them: ``x + gate(y + messages(y))`` with ``y = norm(x)``.

    Edges are read and written once: they are scaled and added to while messages pass. For that ``norm``, ``messages``
    and ``gate`` are not called as modules: forward hooks on these three are not run, those on the block are.

    Args:
        space: the networks' weight space.
        channels: of the neuron features.
        tied: see `MessagePassing`.
        norm: whether the norm is there. It keeps deep stacks in range, but a network's own sizes are divided out of
            what messages are made of; to compute with exact values (a network's outputs) leave it out.
        edges: whether edges change; a block behind which only neurons are read leaves them as they are.
    """

    @checked
    def __init__(
        self, space: WeightSpace, channels: Count, *, tied: bool = False, norm: bool = True, edges: bool = True
    ) -> None:
        super().__init__(space, channels)
        self.norm = EquivariantNorm(space, channels) if norm else None
        self.messages = MessagePassing(space, channels, tied=tied)
        self.gate = GatedActivation(space, channels, tied=tied)
        self._out: Out = "sum" if edges else "none"

    def forward(self, features: Features) -> Features:
        """Neuron features of the space, in and out."""
        edges, nodes, const = self.split(features)
        scales: Sequence[Scale | None] = [None] * len(edges)
        y, c = nodes, const
        if self.norm is not None:
            scales, y, c = self.norm.normed(edges, nodes, const)
        edges, updates, more = self.messages.passed(edges, y, c, scales, self._out)
        gated, more = self.gate.gated({n: _sums(y[n], updates[n]) for n in nodes}, _sums(c, more))
        return self.join(edges, (_sums(nodes[n], gated[n]) for n in nodes), _sums(const, more))


def _sums(first: Iterable[Tensor], second: Iterable[Tensor]) -> Streams:
    return tuple(map(torch.add, first, second))
