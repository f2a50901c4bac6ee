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

from functools import partial

import torch
from torch import Tensor, nn

from nfn_monomial.checks import Count, checked
from nfn_monomial.space.weight_space import WeightSpace

from .blocked import Size, exchange
from .canonicalize import neutral
from .edges import mixed, mixed_from, untouched
from .neurons.buckets import ALL, Neurons
from .neurons.layers import NeuronLayer
from .neurons.layout import kinds_of
from .neurons.mixes import EdgeMessages, NeuronGate, NeuronUpdate, gated, updated
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
        last: whether only invariants of neurons are read after the layer: edges then stay as they are.

    Attributes:
        edges: number of ends -> `EdgeMessages` of all edges that have so many.
        nodes: `NeuronUpdate` of each kind of nodes.
        up: ``(nested nodes, C, C)``, from their invariants to those that they are nested in.
        down: the same, back.
        const: ``(2, C, C)``, from parameters without an axis, and to them.
    """

    @checked
    def __init__(self, space: WeightSpace, channels: Count, *, tied: bool = False, last: bool = False) -> None:
        super().__init__(space, channels)
        self.tied, self.last = tied, last
        kinds = kinds_of(self.neurons, tied)
        slices = {ends: 1 + max(of.values()) for ends, of in kinds.edges.items()}
        self.edges = nn.ModuleDict({str(ends): EdgeMessages(channels, n, ends, not last) for ends, n in slices.items()})
        self.nodes = nn.ModuleList(
            NeuronUpdate(channels, kind, 1 + max(of.values())) for kind, of in kinds.nodes.items()
        )
        nests = len(self.neurons.nests) if not tied else min(1, len(self.neurons.nests))
        self.up, self.down = (nn.Parameter(torch.empty(nests, channels, channels)) if nests else None for _ in range(2))
        self.const = nn.Parameter(torch.empty(2, channels, channels)) if self.neurons.const else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws all parameters anew."""
        for module in (*self.edges.values(), *self.nodes):
            module.reset_parameters()
        for parameter in (self.up, self.down, self.const):
            if parameter is not None:
                nn.init.uniform_(parameter, -(self.channels**-0.5), self.channels**-0.5)

    def on(self, neurons: Neurons) -> Neurons:
        """Neuron features -> their update."""
        return self.updates(neurons)

    def updates(
        self,
        neurons: Neurons,
        norm: EquivariantNorm | None = None,
        frames: Tensor | None = None,
        residual: bool = False,
    ) -> Neurons:
        """Neuron features -> their updates.

        Args:
            neurons: the features, of which a norm may have normalised the rows.
            norm: scales the edges.
            frames: the reciprocal frames of rows, if scales act on any, see `EquivariantNorm.of_rows`.
            residual: see `plain_exchange`.
        """
        buckets, slices = neurons.buckets, neurons.buckets.slices[self.tied]
        modules = zip(self.edges.values(), slices.ends, slices.edges, strict=True)
        # For each kind of edges the matrices of its groups of ends, and those of its buckets.
        of_kinds = [module(of_ends, of_edges) for module, of_ends, of_edges in modules]
        kinds = 2 if self.last else 3
        groups = buckets.rows_at_ends(neurons.rows, kinds)
        for i, (group, index) in enumerate(zip(buckets.ends, buckets.end_rows_of(kinds), strict=True)):
            x, matrices = groups[i].flatten(0, 1), next(of_kinds[group.kind][0]).flatten(0, 1)
            out = mixed_from(x, matrices, None, partial(buckets.rows_at, index), neurons.rows)
            groups[i] = out.view(groups[i].shape)
        scales = None if norm is None or frames is None else norm.edge_scales(neurons, frames)
        edges, sums = list(neurons.edges), []
        for i, (bucket, ends) in enumerate(zip(buckets.edges, buckets.at_edges(groups), strict=True)):
            size = None if norm is None or scales is not None else Size(norm.edge_gain, bucket.roots)
            matrices, scale = next(of_kinds[bucket.kind][1]), None if scales is None else scales[i]
            at_ends, edges[i] = exchange(bucket.grid, edges[i], ends, matrices, size, scale, residual, bucket.mask)
            sums += [x.flatten(0, -3) for pair in at_ends for x in pair]
        return Neurons(buckets, tuple(edges), self._rows(neurons, sums))

    def _rows(self, neurons: Neurons, sums: list[Tensor]) -> Tensor:
        """The update of all rows, given the sums at all ends of edges."""
        buckets, x = neurons.buckets, neurons.rows
        slices = buckets.slices[self.tied]
        of_kinds = [module(*picks) for module, *picks in zip(self.nodes, slices.mixes, slices.nodes, strict=True)]
        new = []
        of_buckets = zip(buckets.nodes, buckets.streams_of_nodes(x), buckets.sums_of_nodes(x, sums), strict=True)
        for bucket, streams, of_messages in of_buckets:
            mixes, inv, bias = next(of_kinds[bucket.number])
            updates = updated(bucket.kind, streams, of_messages, mixes, inv, bias, bucket.transports)
            new += [t.flatten(0, 2) for t in updates]
        if self.neurons.const:
            new.append(x[-1:])
        rows = torch.cat(new)
        if self.up is not None and self.down is not None:
            for nest, pick in zip(buckets.nests, slices.nests, strict=True):
                up, down = (p.index_select(0, pick) for p in (self.up, self.down))
                parents = torch.unflatten(x.index_select(0, nest.parents), 0, (len(pick), -1))
                children = torch.unflatten(x.index_select(0, nest.children), 0, (*parents.shape[:2], -1))
                ups, downs = mixed(children.mean(2), up), mixed(parents, down).unsqueeze(2).expand_as(children)
                new_inv = torch.cat([ups.flatten(0, 1), downs.flatten(0, 2)])
                rows = rows.index_add(0, torch.cat([nest.parents, nest.children]), new_inv.to(rows.dtype))
        return rows if self.const is None else self._with_const(neurons, rows)

    def _with_const(self, neurons: Neurons, rows: Tensor) -> Tensor:
        assert self.const is not None
        x, nodes = neurons.rows, neurons.buckets.invariants
        # Parameters without an axis get the mean of all nodes' means; without nodes, their own stream.
        out, into = x[-1:] @ self.const[0], x[-1:]
        if nodes:
            into = torch.stack([x.index_select(0, at).mean(0) for at in nodes]).mean(0, keepdim=True)
            at = torch.cat(nodes)
            rows = rows.index_add(0, at, out.to(rows.dtype).expand(len(at), -1, -1))
        return torch.cat([rows[:-1], into @ self.const[1]])

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, tied={self.tied}"


class GatedActivation(NeuronLayer):
    """The nonlinearity: equivariant neuron features times functions of their invariants, see `NeuronGate`.

    Legal under every symmetry, where a pointwise function is not: charged streams are multiplied by functions of
    ``inv`` and of themselves with their charge killed. Edges pass through; `MessagePassing` gates them by their own.

    Args:
        space: the networks' weight space.
        channels: of all streams.
        tied: whether all nodes with the same streams share one gate.
        last: whether only invariants are read after the layer: charged streams then pass through.
    """

    @checked
    def __init__(self, space: WeightSpace, channels: Count, *, tied: bool = False, last: bool = False) -> None:
        super().__init__(space, channels)
        self.tied, self.last = tied, last
        kinds = kinds_of(self.neurons, tied).nodes.items()
        self.gates = nn.ModuleList(
            NeuronGate(channels, len(kind.order), 1 + max(of.values()), not last) for kind, of in kinds
        )
        self.const = NeuronGate(channels, 1) if self.neurons.const else None

    def reset_parameters(self) -> None:
        """Draws all parameters anew."""
        for gate in self.children():
            for module in gate.modules():
                if isinstance(module, NeuronGate):
                    module.reset_parameters()

    def on(self, neurons: Neurons) -> Neurons:
        """Neuron features -> gated ones."""
        buckets, x = neurons.buckets, neurons.rows
        of_kinds = [gate(nodes) for gate, nodes in zip(self.gates, buckets.slices[self.tied].nodes, strict=True)]
        new = []
        for bucket, streams in zip(buckets.nodes, buckets.streams_of_nodes(x), strict=True):
            kill = partial(neutral, flips=bucket.flips, scales=bucket.scales)
            outputs = gated(streams, kill, *next(of_kinds[bucket.number]))
            new += [t.flatten(0, 2) for t in ([streams[:-1], *outputs] if self.last else outputs)]
        if self.const is not None:
            const = x[-1:].unsqueeze(0)
            new += [t.flatten(0, 1) for t in gated(const, lambda none: none, *next(self.const(ALL)))]
        return Neurons(buckets, neurons.edges, torch.cat(new))


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
        last: whether only invariants of neurons are read after the block: edges then stay as they are.
    """

    @checked
    def __init__(
        self, space: WeightSpace, channels: Count, *, tied: bool = False, norm: bool = True, last: bool = False
    ) -> None:
        super().__init__(space, channels)
        self.last = last
        self.norm = EquivariantNorm(space, channels) if norm else None
        self.messages = MessagePassing(space, channels, tied=tied, last=last)
        self.gate = GatedActivation(space, channels, tied=tied, last=last)

    def on(self, neurons: Neurons) -> Neurons:
        """Neuron features -> the same, one round of messages later."""
        kinds = {"norm": EquivariantNorm, "messages": MessagePassing, "gate": GatedActivation}
        if all(untouched(part, kinds[name]) for name, part in self.named_children()):
            rows, frames = (neurons.rows, None) if self.norm is None else self.norm.of_rows(neurons)
            y = Neurons(neurons.buckets, neurons.edges, rows)
            new = self.messages.updates(y, self.norm, frames, residual=True)
            out = self.gate.on(Neurons(neurons.buckets, new.edges, rows + new.rows))
            return Neurons(neurons.buckets, out.edges, neurons.rows + out.rows)
        y = neurons if self.norm is None else self.norm(neurons)
        update = self.messages(y)
        # Edges that stay as they are have no update.
        new = Neurons(y.buckets, y.edges, y.rows + update.rows) if self.last else y + update
        change: Neurons = self.gate(new)
        if self.last:
            return Neurons(neurons.buckets, neurons.edges, neurons.rows + change.rows)
        return neurons + change
