"""Neurons and edges in buckets: sets of one shape are one tensor, so that the number of operators is that of shapes.

Edge sets of one shape are stacked, ``(S, *shape, B, C)`` for the ``S`` sets of an `EdgeBucket`, networks next to
channels. Streams of neurons are rows of one tensor ``(rows, B, C)``: of each `NodeBucket` one stream after the other,
of each stream the nodes, of each node its neurons. A layer takes rows to the ends of edges by an index, computes on
each bucket of edges, and adds the sums at the ends to rows by another index::

    rows  -- rows_at_ends, at_edges -->  ends of edges  -- exchange -->  sums at ends  -- sums_of_nodes -->  nodes

Shapes that are nearly alike share a bucket, padded by zeros, which stay zeros: maps of charged streams have no bias,
and a mask keeps padding out of the means of hidden features. `nfn_monomial.nn.neurons.arrange` makes the indices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from nfn_monomial.nn.edges import added_up
from nfn_monomial.nn.incidence import Grid
from nfn_monomial.space.features import Features

from .layout import NeuronLayout, NodeKind

Shape = tuple[int, ...]


class NodeBucket(NamedTuple):
    """Nodes whose streams are rows ``(streams x V x neurons, B, C)``.

    Attributes:
        number: that of their kind, see `Kinds`.
        kind: their formulas.
        nodes: their names.
        neurons: the number of rows of each stream of each node.
        flips: whether the signs of a charged stream flip, ``(streams - 1, V, 1, 1, 1)``, or one answer for all.
        scales: likewise whether scales act on it.
        transports: those of the kind, ``(3, transports)``; None if there are none.
    """

    number: int
    kind: NodeKind
    nodes: tuple[str, ...]
    neurons: int
    flips: Tensor | bool
    scales: Tensor | bool
    transports: Tensor | None

    @property
    def rows(self) -> int:
        """The number of rows of all streams."""
        return len(self.kind.order) * len(self.nodes) * self.neurons

    @property
    def sums(self) -> int:
        """The number of rows of all sums: of messages, and of the means over edges that lead in and out."""
        return (self.kind.summed + 2) * len(self.nodes) * self.neurons


class EdgeBucket(NamedTuple):
    """Edge sets whose edges are one tensor ``(S, *shape, B, C)``.

    Attributes:
        kind: the number of their kind, see `Kinds`.
        sets: their numbers.
        ends: for each set the numbers of its ends, in the order of the grid's.
        shape: sizes of the axes; axes that belong to the same ends are one.
        grid: which axes each end has.
        roots: ``(S, *ones)`` in float64, for each set the square root of the number of the channels of all neurons that
            its edges lead to.
        entries: ``(S, *shape)``, for each edge its number among all entries of the layout's fields.
        neurons: for each end ``(S, n)``, the numbers of its neurons among those of their node, -1 for padding.
        mask: ``(S, *shape, 1, 1)``, false for padding; None without padding.
    """

    kind: int
    sets: tuple[int, ...]
    ends: tuple[tuple[int, ...], ...]
    shape: Shape
    grid: Grid
    roots: Tensor
    entries: Tensor
    neurons: tuple[Tensor, ...]
    mask: Tensor | None


class EndGroup(NamedTuple):
    """Ends of edges with equally many neurons, which are multiplied by matrices at once.

    Attributes:
        kind: the number of the edges' kind.
        neurons: how many.
        sets: how many edge sets.
        ends: bucket and position of each end, in the order of rows.
    """

    kind: int
    neurons: int
    sets: int
    ends: tuple[tuple[int, int], ...]


class Pick(NamedTuple):
    """Slices of a stacked parameter: in which order, None for that of the parameter, and how many for each bucket."""

    order: Tensor | None
    counts: list[int]

    def of(self, parameter: Tensor | None) -> Sequence[Any]:
        """The slices for each bucket; None for each where there is no parameter."""
        if parameter is None:
            return [None] * len(self.counts)
        ordered = parameter if self.order is None else parameter.index_select(0, self.order)
        return torch.split(ordered, self.counts)


ALL = Pick(None, [1])
"""The one slice that there is."""


class Slices(NamedTuple):
    """Slices of parameters: of ends and of edges of each kind; of nodes of each kind, their mixes; of nested nodes."""

    ends: tuple[Pick, ...]
    edges: tuple[Pick, ...]
    nodes: tuple[Pick, ...]
    mixes: tuple[Pick, ...]
    nests: tuple[Tensor, ...]


class Nest(NamedTuple):
    """Nodes of one size that are nested in nodes of one size: rows of their invariants, one node after the other.

    Attributes:
        numbers: of the nested nodes.
        children: their rows, those with the same parent side by side.
        parents: the rows of the neurons that they are nested in.
    """

    numbers: tuple[int, ...]
    children: Tensor
    parents: Tensor


class Norms(NamedTuple):
    """Groups of rows that are normalised together: a charged stream of a node, the invariants of a neuron.

    Attributes:
        group: for each row the number of its group.
        groups: how many groups there are.
        roots: ``(rows, 1)`` in float64, for each row the square root of the number of channels of its group.
        gain: for each row the kind of its stream.
        opposite: the row of opposite charge, or the row itself.
        scaled: whether scales act on the row, ``(rows, 1)``; None where they act on none.
        alone: whether there is no row of opposite charge, ``(rows, 1)``.
    """

    group: Tensor
    groups: int
    roots: Tensor
    gain: Tensor
    opposite: Tensor
    scaled: Tensor | None
    alone: Tensor


class Pool(NamedTuple):
    """Invariants of all neurons, node by node, then ``const``, and how they are pooled.

    Attributes:
        rows: where they lie.
        node: for each of them the number of its node.
        gain: the kind of its stream, among those of invariants and ``const``.
        share: ``(nodes, 1, 1)``, 1 / neurons.
        pick: the rows of the output, among means of all nodes, their deviations and all invariants.
        root: float64, the square root of the number of channels.
    """

    rows: Tensor
    node: Tensor
    gain: Tensor
    share: Tensor
    pick: Tensor
    root: Tensor


@dataclass(eq=False, repr=False, slots=True)  # a compiler follows methods of constants only if none can be replaced
class Buckets:
    """The arrangement of all neurons and edges of networks of some sizes, on one device.

    Attributes:
        layout: the fields that are arranged.
        sizes: node -> its number of neurons, for each one that it is nested in.
        shapes: of all fields, without batch and channels.
        starts: for each field the number of its first entry.
        nodes: buckets of nodes, in the order of rows.
        edges: buckets of edges.
        ends: all their ends.
        rows: the number of rows, of which ``const`` is the last where there is one.
        sums: the number of rows of sums.
        rows_of: field of a stream, or ``const`` -> its rows, one for each neuron.
        invariants: for each node the rows of its invariants.
        invariant_rows: all of them, bucket by bucket, those of padding included.
        end_rows: for each group, end and set the rows against the edges' charge, along it, and of invariants. The
            number ``rows`` stands for padding.
        end_rows_two: the same without those along it.
        padded: whether there is padding among them.
        sum_rows: for each bucket and end the rows of sums that messages go to, then those of means.
        packed: for edges, bucket by bucket, then for rows: numbers among all entries of the fields, of which the one
            past the last stands for padding.
        unpacked: the inverse.
        slices: slices of parameters, by whether layers are tied.
        nests: nested nodes, and those that they are nested in.
        norms: rows that are normalised together.
        pool: how invariants are pooled.
    """

    layout: NeuronLayout
    sizes: dict[str, int]
    shapes: list[Shape]
    starts: list[int]
    nodes: tuple[NodeBucket, ...]
    edges: tuple[EdgeBucket, ...]
    ends: tuple[EndGroup, ...]
    rows: int
    sums: int
    rows_of: dict[int, Tensor]
    invariants: tuple[Tensor, ...]
    invariant_rows: Tensor
    end_rows: Tensor
    end_rows_two: Tensor
    padded: bool
    sum_rows: Tensor
    packed: Tensor
    unpacked: Tensor
    slices: tuple[Slices, Slices]
    nests: tuple[Nest, ...]
    norms: Norms
    pool: Pool

    def pack(self, features: Features) -> Neurons:
        """Neuron features as buckets."""
        # Every field as (entries, B, C), then a row of zeros for padding.
        flat = [(x.flatten(1, -2) if x.ndim > 2 else x.unsqueeze(1)).movedim(0, 1) for x in features.tensors]
        flat.append(flat[0].new_zeros(1, *flat[0].shape[1:]))
        counts = [*(bucket.entries.numel() for bucket in self.edges), self.rows]
        *edges, rows = torch.split(torch.cat(flat).index_select(0, self.packed), counts)
        pairs = zip(self.edges, edges, strict=True)
        return Neurons(self, tuple([x.view(*bucket.entries.shape, *x.shape[1:]) for bucket, x in pairs]), rows)

    def unpack(self, neurons: Neurons) -> Features:
        """The inverse of `pack`."""
        flat = [x.flatten(0, -3) for x in neurons.edges]
        counts = [math.prod(shape) for shape in self.shapes]
        fields = torch.split(torch.cat([*flat, neurons.rows]).index_select(0, self.unpacked), counts)
        pairs = zip(fields, self.shapes, strict=True)
        tensors = [torch.unflatten(x.movedim(1, 0), 1, shape) if shape else x[0] for x, shape in pairs]
        return Features(self.layout.layout, tuple(tensors))

    def streams_of_nodes(self, rows: Tensor) -> list[Tensor]:
        """For each bucket of nodes its rows, ``(streams, V, neurons, B, C)``."""
        parts = torch.split(rows, [*(bucket.rows for bucket in self.nodes), *[1] * self.layout.const])
        pairs = zip(self.nodes, parts, strict=False)
        return [torch.unflatten(x, 0, (len(b.kind.order), len(b.nodes), b.neurons)) for b, x in pairs]

    def rows_at_ends(self, rows: Tensor, kinds: int = 3) -> list[Tensor]:
        """Rows ``(rows, ...)`` at the ends of edges, for each group ``(sets, kinds, neurons, ...)``: against the edges'
        charge, along it and of invariants; without those along it where there are two kinds."""
        at_ends = self.rows_at(self.end_rows if kinds == 3 else self.end_rows_two, rows)
        parts = torch.split(at_ends, [group.sets * kinds * group.neurons for group in self.ends])
        pairs = zip(self.ends, parts, strict=True)
        return [torch.unflatten(x, 0, (group.sets, kinds, group.neurons)) for group, x in pairs]

    def end_rows_of(self, kinds: int) -> list[Tensor]:
        """For each group which rows `rows_at_ends` takes, ``(sets x kinds, neurons)``."""
        index = self.end_rows if kinds == 3 else self.end_rows_two
        parts = torch.split(index, [group.sets * kinds * group.neurons for group in self.ends])
        return [part.view(-1, group.neurons) for group, part in zip(self.ends, parts, strict=True)]

    def rows_at(self, index: Tensor, rows: Tensor) -> Tensor:
        """Rows of these numbers, ``(*index, ...)``; the number past the last is that of zeros."""
        rows = torch.cat([rows, rows.new_zeros(1, *rows.shape[1:])]) if self.padded else rows
        return rows.index_select(0, index.flatten()).view(*index.shape, *rows.shape[1:])

    def at_edges(self, groups: Sequence[Tensor]) -> list[list[Tensor]]:
        """Groups as `rows_at_ends` returns them -> for each bucket of edges and end ``(S, kinds, *neurons, ...)``."""
        of_end = {}
        for group, x in zip(self.ends, groups, strict=True):
            parts = torch.split(x, [len(self.edges[i].sets) for i, _ in group.ends])
            for (i, end), part in zip(group.ends, parts, strict=True):
                of_end[i, end] = torch.unflatten(part, 2, self.edges[i].grid.neurons(self.edges[i].shape, end))
        return [[of_end[i, end] for end in range(len(bucket.grid.at))] for i, bucket in enumerate(self.edges)]

    def sums_of_nodes(self, rows: Tensor, sums: list[Tensor]) -> list[Tensor]:
        """For each bucket of nodes the sums at the ends of its edges, ``(summed + 2, V, neurons, B, C)``.

        Args:
            rows: of the neurons, which give the shape where there are no edges.
            sums: for each bucket of edges and each end those of messages, then means, ``(S x neurons, B, C)``.
        """
        at_ends = torch.cat(sums) if sums else rows[:0]
        total = added_up(at_ends, self.sum_rows, self.sums)
        pairs = zip(self.nodes, torch.split(total, [bucket.sums for bucket in self.nodes]), strict=True)
        return [torch.unflatten(x, 0, (b.kind.summed + 2, len(b.nodes), b.neurons)) for b, x in pairs]


@dataclass(eq=False, repr=False, slots=True)
class Neurons:
    """Neuron features in buckets: edges ``(S, *shape, B, C)`` for each bucket, and the rows ``(rows, B, C)``.

    A pytree and a dataclass, as `Features` are, so that transforms and ``torch.distributed`` see the tensors.
    """

    buckets: Buckets
    edges: tuple[Tensor, ...]
    rows: Tensor

    def __add__(self, other: Neurons) -> Neurons:
        pairs = zip(self.edges, other.edges, strict=True)
        return Neurons(self.buckets, tuple(x + y for x, y in pairs), self.rows + other.rows)


pytree.register_pytree_node(
    Neurons,
    lambda neurons: ([*neurons.edges, neurons.rows], neurons.buckets),
    lambda tensors, buckets: Neurons(buckets, tuple(list(tensors)[:-1]), list(tensors)[-1]),
)
