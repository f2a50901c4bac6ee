"""Layers beyond linear: messages between neurons along weights, and gates; all equivariant.

An equivariant linear layer lets a hidden weight see only itself. Bilinear maps lift that (see the guide): contracting a
weight's charge -1 axis with a neuron feature of charge +1 gives a feature of charge +1 at its target (a forward pass),
contracting the other axis with one of charge -1 gives charge -1 at its source (a backward pass, without reciprocals),
the product of a target's +1 and a source's -1 is an edge again, and what is left uncharged (``h_j g_j``,
``e_jk g_j h_k``) is invariant, so that any function of it may gate the rest. The same holds for edges of any number of
ends, of any charges (a factor graph): all ends but one are contracted with their opposites.

What happens on an edge and at a neuron, however neurons are laid out, is in `nfn_monomial.nn.neurons.mixes`.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Collection, Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from nfn_monomial.checks import Count, checked
from nfn_monomial.space.features import Features
from nfn_monomial.space.weight_space import WeightSpace

from .canonicalize import degree_zero
from .edges import untouched
from .incidence import Grid, Places
from .neurons import NeuronLayer, Streams
from .neurons.mixes import EdgeMessages, MixedEnd, NeuronGate, NeuronUpdate, mix_of
from .norm import EquivariantNorm


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
        reads: see `NeuronLayer`. Edges of which none is read stay as they are, as do the streams of such a node.
        zeros: see `NeuronLayer`.

    Attributes:
        zeros_after: the fields of input and update that are 0.
    """

    @checked
    def __init__(
        self,
        space: WeightSpace,
        channels: Count,
        *,
        tied: bool = False,
        reads: Collection[int] | None = None,
        zeros: Collection[int] | None = None,
    ) -> None:
        zeros = None if tied else zeros  # what is shared multiplies some streams that are not 0
        super().__init__(space, channels, reads, zeros)
        self.tied = tied
        plans, edges = self.neurons.nodes, self.neurons.edges
        grids = [Grid([end.at for end in edge.ends], len(edge.axes)) for edge in edges]
        self._places = [Places(grid, grid, grid) for grid in grids]
        self._edge_keys = _shared([(edge.key, len(edge.ends)) for edge in edges], tied)
        keys = zip(plans, _shared(list(plans.items()), tied), strict=True)
        self._node_keys = {node: key for node, key in keys if any(self.reads_of(node))}
        self.edges, self.nodes = nn.ModuleDict(), nn.ModuleDict()
        reached = set[int]()  # fields that messages come to which are not 0
        for key, edge in zip(self._edge_keys, edges, strict=True):
            against = [self.neurons.first(end.node) + end.against for end in edge.ends]
            along = [self.neurons.first(end.node) + end.along for end in edge.ends]
            silent = {number for number, field in enumerate(against) if field in self.zeros}
            reached.update(field for number, field in enumerate(along) if silent <= {number})
            changed = self.reads_edges and self.zeros.isdisjoint(along)
            ends = [MixedEnd(number not in silent and len(silent) < 2, changed) for number in range(len(along))]
            if key not in self.edges:
                self.edges[key] = EdgeMessages(channels, ends, self.reads_edges)
        for node, key in self._node_keys.items():
            first, plan = self.neurons.first(node), plans[node]
            fields = range(first, first + len(plan.charges))
            silent = {field - first for field in fields if field in self.zeros}
            unreached = [] if zeros is None else [field - first for field in fields if field not in reached]
            if key not in self.nodes:
                self.nodes[key] = NeuronUpdate(channels, plan, silent, unreached)
        transported = {
            self.neurons.first(node) + target
            for node, plan in plans.items()
            for *factors, target in plan.transports
            if self.zeros.isdisjoint(self.neurons.first(node) + i for i in factors)
        }
        self.zeros_after = self.zeros - reached - transported
        inner = [node for node in plans if node in space.nesting]
        nests = zip(inner, _shared([(node, None) for node in inner], tied), strict=True)
        self._nests = [(node, space.nesting[node], key) for node, key in nests]
        up = [key for _, parent, key in self._nests if parent in self._node_keys]
        down = [key for child, _, key in self._nests if child in self._node_keys]
        self.up, self.down = (nn.ModuleDict({key: mix_of(channels) for key in keys}) for keys in (up, down))
        self.const = nn.ModuleList(mix_of(channels) for _ in range(2 if self.neurons.const else 0))

    def forward(self, features: Features) -> Features:
        """Neuron features -> their update."""
        edges, nodes, const = self.split(features)
        updated, updates, const = self.passed(edges, nodes, const, [None] * len(edges))
        return self.join(updated, (nodes | updates).values(), const)

    def passed(
        self,
        edges: Sequence[Tensor],
        nodes: Mapping[str, Streams],
        const: Sequence[Tensor],
        scales: Sequence[Tensor | None],
        residual: bool = False,
    ) -> tuple[list[Tensor], dict[str, Streams], list[Tensor]]:
        """Updates of edges, nodes that are read and ``const``; ``scales`` and ``residual``: see `exchange`."""
        # Into each stream of each node, then the hidden features of edges that lead to it and from it.
        sums: dict[str, list[list[Tensor]]] = {n: [[] for _ in range(len(x) + 2)] for n, x in nodes.items()}
        updated = []
        each = zip(self.neurons.edges, self._edge_keys, self._places, edges, scales, strict=True)
        for edge, key, places, e, scale in each:
            at_ends = [(nodes[end.node], end) for end in edge.ends]
            ends = [(streams[end.against], streams[end.along], streams[-1]) for streams, end in at_ends]
            (messages, hidden), new = self.edges[key](places, e, ends, scale, residual)
            updated.append(new)
            for number, (end, message, z) in enumerate(zip(edge.ends, messages, hidden, strict=True)):
                count = math.prod([size for i, size in enumerate(e.shape[1:-1]) if i not in end.at])
                sums[end.node][end.along].append(message)
                sums[end.node][-1 if number else -2].append(z / count)
        updates = {}
        for name, key in self._node_keys.items():
            none = torch.zeros_like(nodes[name][-1])
            *totals, into, out_of = (_sum(tensors) if tensors else none for tensors in sums[name])
            updates[name] = list(self.nodes[key](nodes[name], totals, into, out_of))
        for child, parent, key in self._nests:
            if parent in updates:
                updates[parent][-1] = updates[parent][-1] + self.up[key](nodes[child][-1].mean(-2))
            if child in updates:
                updates[child][-1] = updates[child][-1] + self.down[key](nodes[parent][-1]).unsqueeze(-2)
        if const:
            for update in updates.values():
                update[-1] = update[-1] + _broadcast(self.const[0](const[0]), update[-1])
            means = [streams[-1].flatten(1, -2).mean(1) for streams in nodes.values()]
            const = [self.const[1](_sum(means) / len(means) if means else const[0])]
        return updated, {name: tuple(update) for name, update in updates.items()}, list(const)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, tied={self.tied}"


def _shared(named: Sequence[tuple[str, object]], tied: bool) -> list[str]:
    """A key for each of some modules: the same for those of the same kind where they are tied, else their names."""
    kinds = list(dict.fromkeys(kind for _, kind in named))
    return [f"all_{i}" if (i := kinds.index(kind)) else "all" for _, kind in named] if tied else [n for n, _ in named]


def _broadcast(const: Tensor, like: Tensor) -> Tensor:
    return const.view(const.shape[0], *[1] * (like.ndim - 2), const.shape[-1])


def _sum(tensors: Sequence[Tensor]) -> Tensor:
    return functools.reduce(operator.add, tensors)


class GatedActivation(NeuronLayer):
    """The nonlinearity: equivariant neuron features times functions of their invariants, see `NeuronGate`.

    Legal under every symmetry, where a pointwise function is not: charged streams are multiplied by functions of
    ``inv`` and of themselves with their charge killed. Edges pass through; `MessagePassing` gates them by their own.

    Args:
        space: the networks' weight space.
        channels: of all streams.
        tied: whether all nodes with the same streams share one gate.
        reads: see `NeuronLayer`.
        zeros: see `NeuronLayer`.
    """

    @checked
    def __init__(
        self,
        space: WeightSpace,
        channels: Count,
        *,
        tied: bool = False,
        reads: Collection[int] | None = None,
        zeros: Collection[int] | None = None,
    ) -> None:
        super().__init__(space, channels, reads, zeros)
        self.tied = tied
        plans = self.neurons.nodes
        keys = _shared([(node, plan.charges) for node, plan in plans.items()], tied)
        self._keys = {node: key for node, key in zip(plans, keys, strict=True) if any(self.reads_of(node))}
        self.gates = nn.ModuleDict()
        for key in dict.fromkeys(self._keys.values()):
            nodes = [(self.neurons.first(n), self.reads_of(n)) for n, of_node in self._keys.items() if of_node == key]
            charged = any(read and first + i not in self.zeros for first, r in nodes for i, read in enumerate(r[:-1]))
            self.gates[key] = NeuronGate(channels, len(nodes[0][1]), charged, any(reads[-1] for _, reads in nodes))
        self.const = NeuronGate(channels, 1) if self.neurons.const else None

    def forward(self, features: Features) -> Features:
        """Neuron features -> gated ones."""
        edges, nodes, const = self.split(features)
        gated, const = self.gated(nodes, const)
        return self.join(edges, (nodes | gated).values(), const)

    def gated(self, nodes: Mapping[str, Streams], const: Sequence[Tensor]) -> tuple[dict[str, Streams], list[Tensor]]:
        """Gated streams of nodes that are read, and ``const``, as `split` returns them."""
        gated = {}
        for name, key in self._keys.items():
            felt = self.in_layout.felt[self.neurons.first(name) :]
            neutral = [degree_zero(x, acting) for x, acting in zip(nodes[name][:-1], felt, strict=False)]
            gated[name] = self.gates[key](nodes[name], neutral)
        return gated, [c for x in const if self.const is not None for c in self.const((x,), ())]


class MessageBlock(NeuronLayer):
    """Norm, messages, gate, and residual connections around them: ``x + gate(y + messages(y))`` with ``y = norm(x)``.

    Edges are read and written once: they are scaled and added to while messages pass. Where the norm, the messages or
    the gate have hooks or were replaced, they are called one after the other.

    Args:
        space: the networks' weight space.
        channels: of the neuron features.
        tied: see `MessagePassing`.
        norm: whether the norm is there. It keeps deep stacks in range, but a network's own sizes are divided out of
            what messages are made of; to compute with exact values (a network's outputs) leave it out.
        reads: see `NeuronLayer`; other fields stay as they are.
        zeros: see `NeuronLayer`.
    """

    @checked
    def __init__(
        self,
        space: WeightSpace,
        channels: Count,
        *,
        tied: bool = False,
        norm: bool = True,
        reads: Collection[int] | None = None,
        zeros: Collection[int] | None = None,
    ) -> None:
        super().__init__(space, channels, reads, zeros)
        self.norm = EquivariantNorm(space, channels) if norm else None
        self.messages = MessagePassing(space, channels, tied=tied, reads=reads, zeros=zeros)
        self.gate = GatedActivation(space, channels, tied=tied, reads=reads, zeros=self.messages.zeros_after)

    def forward(self, features: Features) -> Features:
        """Neuron features of the space, in and out."""
        kinds = {"norm": EquivariantNorm, "messages": MessagePassing, "gate": GatedActivation}
        parts = [(part, kinds[name]) for name, part in self.named_children()]
        if all(untouched(part, kind) for part, kind in parts):
            out = self._at_once(features)
        else:
            y = features if self.norm is None else self.norm(features)
            out = features + self.gate(y + self.messages(y))
        pairs = zip(features.tensors, out.tensors, strict=True)
        return Features(self.out_layout, tuple(new if i in self.reads else x for i, (x, new) in enumerate(pairs)))

    def _at_once(self, features: Features) -> Features:
        edges, nodes, const = self.split(features)
        scales: Sequence[Tensor | None] = [None] * len(edges)
        y, c = nodes, const
        if self.norm is not None:
            scales, y, c = self.norm.normed(edges, nodes, const)
        edges, updates, more = self.messages.passed(edges, y, c, scales, residual=True)
        gated, more = self.gate.gated({n: _sums(y[n], update) for n, update in updates.items()}, _sums(c, more))
        new = nodes | {n: _sums(nodes[n], streams) for n, streams in gated.items()}
        return self.join(edges, new.values(), _sums(const, more))


def _sums(first: Iterable[Tensor], second: Iterable[Tensor]) -> Streams:
    return tuple(map(torch.add, first, second))
