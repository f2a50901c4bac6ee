"""Layers beyond linear: messages between neurons along weights, and gates; all equivariant.

An equivariant linear layer lets a hidden weight see only itself. Bilinear maps lift that (see the guide): contracting a
weight's charge -1 axis with a neuron feature of charge +1 gives a feature of charge +1 at its target (a forward pass),
contracting the other axis with one of charge -1 gives charge -1 at its source (a backward pass, without reciprocals),
the product of a target's +1 and a source's -1 is an edge again, and uncharged products (``h_j g_j``, ``e_jk g_j h_k``)
are invariant, so that any function of them may gate the rest. The same holds for edges of any number of ends, of any
charges (a factor graph): all ends but one are contracted with their opposites.

The formulas on an edge and at a neuron, however neurons are laid out, are in `nfn_monomial.nn.neurons.mixes`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import torch
from torch import Tensor, nn

from nfn_monomial.checks import Count, checked
from nfn_monomial.space.features import Features
from nfn_monomial.space.weight_space import WeightSpace

from .canonicalize import degree_zero
from .edges import scaled, sum_of, untouched
from .incidence import Places
from .neurons import NeuronLayer
from .neurons.mixes import EdgeMessages, NeuronGate, NeuronUpdate, mix_of
from .norm import EquivariantNorm


class MessagePassing(NeuronLayer):
    """One round of messages along all weights, forwards and backwards, and the weights' own update.

    Neuron ``j`` gets the sum of the forward messages over its incoming weights and of the backward ones over its
    outgoing weights, and the means of the hidden invariants of both; `EdgeMessages` defines a message, and
    `NeuronUpdate` the use of the sums. Neurons of a nested node and those that they are nested in exchange
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
        zeros = None if tied else zeros  # a shared matrix multiplies some streams that are not 0
        super().__init__(space, channels, reads, zeros)
        self.tied = tied
        plans, edges = self.neurons.nodes, self.neurons.edges
        self._places = [Places(edge.grid, edge.grid, edge.grid) for edge in edges]
        self._edge_keys = _shared([(edge.key, len(edge.ends)) for edge in edges], tied)
        keys = zip(plans, _shared(list(plans.items()), tied), strict=True)
        self._node_keys = {node: key for node, key in keys if self.reads_of(node)}
        self.edges, self.nodes = nn.ModuleDict(), nn.ModuleDict()
        reached = set[int]()  # fields that messages come to which are not 0
        for key, edge in zip(self._edge_keys, edges, strict=True):
            silent = {number for number, end in enumerate(edge.ends) if end.against in self.zeros}
            reached.update(end.along for number, end in enumerate(edge.ends) if silent <= {number})
            changed = self.reads_edges and self.zeros.isdisjoint(end.along for end in edge.ends)
            mixed = [i not in silent and len(silent) < 2 for i in range(len(edge.ends))]
            if key not in self.edges:
                self.edges[key] = EdgeMessages(channels, mixed, changed, self.reads_edges)
        transported = set[int]()
        for node, plan in plans.items():
            fields = self.neurons.numbers(node)
            silent = {i for i, field in enumerate(fields) if field in self.zeros}
            unreached = [] if zeros is None else [i for i, field in enumerate(fields) if field not in reached]
            transported.update(fields[target] for *factors, target in plan.transports if silent.isdisjoint(factors))
            if node in self._node_keys and self._node_keys[node] not in self.nodes:
                self.nodes[self._node_keys[node]] = NeuronUpdate(channels, plan, silent, unreached)
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
        fields = self.fields(features)
        return Features(self.out_layout, tuple(self.updates(fields, [None] * len(self._places))))

    def updates(self, x: Sequence[Tensor], scales: Sequence[Tensor | None], residual: bool = False) -> list[Tensor]:
        """Fields -> their updates, those that are not read as they are; ``scales`` and ``residual``: see `exchange`."""
        updates = list(x)
        messages: list[list[Tensor]] = [[] for _ in x]
        into: dict[str, list[Tensor]] = {node: [] for node in self.neurons.nodes}
        out_of: dict[str, list[Tensor]] = {node: [] for node in self.neurons.nodes}
        each = zip(self.neurons.edges, self._edge_keys, self._places, scales, strict=True)
        for field, (edge, key, places, scale) in enumerate(each):
            ends = [(x[end.against], x[end.along], x[end.inv]) for end in edge.ends]
            (sent, hidden), updates[field] = self.edges[key](places, x[field], ends, scale, residual)
            for number, end in enumerate(edge.ends):
                count = math.prod([size for i, size in enumerate(x[field].shape[1:-1]) if i not in end.at])
                messages[end.along].append(sent[number])
                (out_of if number else into)[end.node].append(hidden[number] / count)
        for node, key in self._node_keys.items():
            fields = self.neurons.fields(node)
            summands = [*messages[fields], into[node], out_of[node]]
            *sums, z_into, z_out_of = (sum_of(t) if t else torch.zeros_like(x[fields][-1]) for t in summands)
            updates[fields] = self.nodes[key](x[fields], sums, z_into, z_out_of)
        for child, parent, key in self._nests:
            of_child, of_parent = self.neurons.stream(child), self.neurons.stream(parent)
            if parent in self._node_keys:
                updates[of_parent] = updates[of_parent] + self.up[key](x[of_child].mean(-2))
            if child in self._node_keys:
                updates[of_child] = updates[of_child] + self.down[key](x[of_parent]).unsqueeze(-2)
        if self.neurons.const:
            for i in map(self.neurons.stream, self._node_keys):
                updates[i] = updates[i] + _broadcast(self.const[0](x[-1]), updates[i])
            means = [x[i].flatten(1, -2).mean(1) for i in map(self.neurons.stream, self.neurons.nodes)]
            updates[-1] = self.const[1](sum_of(means) / len(means) if means else x[-1])
        return updates

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, tied={self.tied}"


def _shared(named: Sequence[tuple[str, object]], tied: bool) -> list[str]:
    """A key for each of some modules: the same for those of the same kind where they are tied, else their names."""
    kinds = list(dict.fromkeys(kind for _, kind in named))
    return [f"all_{i}" if (i := kinds.index(kind)) else "all" for _, kind in named] if tied else [n for n, _ in named]


def _broadcast(const: Tensor, like: Tensor) -> Tensor:
    return const.view(const.shape[0], *[1] * (like.ndim - 2), const.shape[-1])


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
        self._keys = {node: key for node, key in zip(plans, keys, strict=True) if self.reads_of(node)}
        self.gates = nn.ModuleDict()
        for key in dict.fromkeys(self._keys.values()):
            nodes = [self.neurons.numbers(n) for n, k in self._keys.items() if k == key]
            charged = any(field in self.reads - self.zeros for fields in nodes for field in fields[:-1])
            invariant = any(fields[-1] in self.reads for fields in nodes)
            self.gates[key] = NeuronGate(channels, len(nodes[0]), charged, invariant)
        self.const = NeuronGate(channels, 1) if self.neurons.const else None

    def forward(self, features: Features) -> Features:
        """Neuron features -> gated ones."""
        return Features(self.out_layout, tuple(self.gated(self.fields(features))))

    def gated(self, x: Sequence[Tensor]) -> list[Tensor]:
        """Fields -> the same, gated where they are read."""
        gated = list(x)
        for node, key in self._keys.items():
            fields = self.neurons.fields(node)
            charged = zip(x[fields][:-1], self.in_layout.felt[fields][:-1], strict=True)
            gated[fields] = self.gates[key](x[fields], [degree_zero(t, felt) for t, felt in charged])
        if self.const is not None:
            gated[-1:] = self.const(x[-1:], ())
        return gated


class MessageBlock(NeuronLayer):
    """Norm, messages, gate, and residual connections around them: ``x + gate(y + messages(y))`` with ``y = norm(x)``.

    Edges are read and written once: they are scaled and added to while messages pass. Where the norm, the messages or
    the gate have hooks or were replaced, they are called one after the other.

    Args:
        space: the networks' weight space.
        channels: of the neuron features.
        tied: see `MessagePassing`.
        norm: whether the norm is there. It keeps deep stacks in range, but a network's own sizes are divided out
            before messages are made; to compute with exact values (a network's outputs) leave it out.
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
            out = self._at_once(self.fields(features))
        else:
            y = features if self.norm is None else self.norm(features)
            out = (features + self.gate(y + self.messages(y))).tensors
        pairs = zip(features.tensors, out, strict=True)
        return Features(self.out_layout, tuple(new if i in self.reads else x for i, (x, new) in enumerate(pairs)))

    def _at_once(self, x: Sequence[Tensor]) -> Sequence[Tensor]:
        edges = len(self.neurons.edges)
        factors = [None] * len(x) if self.norm is None else self.norm.factors(x)
        y = [t if by is None or i < edges else scaled(t, by) for i, (t, by) in enumerate(zip(x, factors, strict=True))]
        updates = self.messages.updates(y, factors[:edges], residual=True)
        added = [t if i < edges else t + update for i, (t, update) in enumerate(zip(y, updates, strict=True))]
        gated = self.gate.gated(added)
        return [*updates[:edges], *(t + g for t, g in zip(x[edges:], gated[edges:], strict=True))]
