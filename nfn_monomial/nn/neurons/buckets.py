"""Neurons and edges in buckets: sets of one shape are one tensor, so that the number of operators is that of shapes.

Edge sets of one shape are stacked, ``(S, *shape, B, C)`` for the ``S`` sets of a bucket, networks next to channels.
Streams of neurons are rows of one tensor ``(rows, B, C)``: of each bucket of nodes one stream after the other, of each
stream the nodes, of each node its neurons. The ends of edges are taken from rows by an index, and sums go to rows by an
index. Shapes that are nearly alike share a bucket, padded by zeros, which stay zeros: maps of charged streams have no
bias, and a mask keeps padding out of the means of hidden features.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from nfn_monomial.nn.incidence import Grid
from nfn_monomial.space.features import Features
from nfn_monomial.space.weight_space import WeightSpace

from .layout import EdgeSet, NodeKind, kinds_of, neuron_layout

Item = TypeVar("Item")
Shape = tuple[int, ...]

PADDING = 2**17
"""Bytes of padding for which two shapes share a tensor: as long as a CPU takes to start the operators of one more."""

LARGE = 2**24
"""Bytes of a tensor of edges on a CPU beyond which edge sets are stacked no more: it takes longer to get the memory."""


APART = 1024
"""The most neurons of a FIXED node that a pool keeps apart."""


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
        mask: ``(S, *shape, 1, 1)``, false for padding; None without padding.
    """

    kind: int
    sets: tuple[int, ...]
    ends: tuple[tuple[int, ...], ...]
    shape: Shape
    grid: Grid
    roots: Tensor
    entries: Tensor
    mask: Tensor | None


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


class EndGroup(NamedTuple):
    """Ends of edges with equally many neurons, which are multiplied by matrices at once.

    Attributes:
        kind: the number of the edges' kind.
        neurons: how many.
        sets: how many edge sets.
        of: bucket and position of each end, in the order of rows.
    """

    kind: int
    neurons: int
    sets: int
    of: tuple[tuple[int, int], ...]


class Pick(NamedTuple):
    """Slices of a stacked parameter: in which order, None for that of the parameter, and how many for each bucket."""

    order: Tensor | None
    counts: list[int]

    def of(self, parameter: Tensor | None) -> Sequence[Any]:
        """The slices for each bucket; None for each of no parameter."""
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
        parents: the rows of those that they are nested in.
    """

    numbers: tuple[int, ...]
    children: Tensor
    parents: Tensor


class Norms(NamedTuple):
    """What is normalised together.

    Attributes:
        group: for each row the number of its group: streams of a node, invariants of a neuron.
        groups: how many groups there are.
        roots: ``(rows, 1)`` in float64, for each row the square root of the number of channels of its group.
        gain: for each row the kind of its stream.
        opposite: the row of opposite charge, or the row itself.
        scaled: whether scales act on the row, ``(rows, 1)``; None where they act on none.
        alone: whether there is no row of opposite charge.
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
        pick: of means of all nodes, their deviations and all invariants, what is kept.
        root: float64, the square root of the number of channels.
    """

    rows: Tensor
    node: Tensor
    gain: Tensor
    share: Tensor
    pick: Tensor
    root: Tensor


class Buckets:
    """The arrangement of all neurons and edges of networks of some sizes, on one device.

    Attributes:
        layout: the fields that are arranged.
        channels: of all streams.
        sizes: node -> its number of neurons, for each one that it is nested in.
        nodes: buckets of nodes, in the order of rows.
        edges: buckets of edges.
        ends: all their ends.
        rows: the number of rows, of which ``const`` is the last where there is one.
        sums: the number of rows of sums.
        shapes: of all fields, without batch and channels.
        starts: for each field the number of its first entry.
        entries: the number of entries of all fields.
        take: rows at the ends: for each group, end and set those against the edges' charge, along it, and invariants.
        take_two: the same without those along it.
        padded: whether these have rows of zeros, which are numbered ``rows``.
        give: rows of sums for the sums at the ends: for each bucket and end those of messages, then means.
        slices: slices of parameters, by whether layers are tied.
        nests: nested nodes, and those that they are nested in.
        norms: what is normalised together.
        invariants: node -> rows of its invariants.
        invariant_rows: all of them, bucket by bucket, those of padding included.
        pool: how they are pooled.
    """

    # A compiler follows methods of constants only if nothing can be put in their place.
    __slots__ = (
        "_neurons", "_packed", "_rows", "_sum_rows", "_unpacked", "channels", "edges", "ends", "entries", "give",
        "invariant_rows", "invariants", "layout", "nests", "nodes", "norms", "padded", "pool", "rows", "shapes",
        "sizes", "slices", "starts", "sums", "take", "take_two",
    )  # fmt: skip

    def __init__(
        self, space: WeightSpace, sizes: Mapping[str, int], channels: int, device: torch.device, padding: int, most: int
    ) -> None:
        self.layout, self.sizes, self.channels = neuron_layout(space), dict(sizes), channels
        shapes = [[sizes[axis.node] for axis in axes] for axes in self.layout.layout.types]
        counts = [math.prod(shape) for shape in shapes]
        self.shapes = list(map(tuple, shapes))
        self.starts, self.entries = [*itertools.accumulate([0, *counts[:-1]])], sum(counts)
        self._neurons = {n: _numbered([sizes[above] for above in space.ancestry(n)]) for n in self.layout.nodes}
        self.nodes = self._node_buckets(padding)
        self._rows, self.rows = _placed(self.nodes, [bucket.rows for bucket in self.nodes])
        self._sum_rows, self.sums = _placed(self.nodes, [bucket.sums for bucket in self.nodes])
        self.rows += self.layout.const
        self.edges = self._edge_buckets(padding, most)
        self.ends = self._ends()
        self.invariants = {n: self.row(n, len(plan.charges) - 1) for n, plan in self.layout.nodes.items()}
        self.invariant_rows = _joint(
            [
                first + bucket.rows - torch.arange(len(bucket.nodes) * bucket.neurons, 0, -1)
                for bucket, first in self._firsts()
            ]
        )
        self.pool = self._pool(space)
        self.take, self.take_two = self._taken()
        self.padded = bool((self.take == self.rows).any())
        self.give = self._given()
        self.nests = self._nests()
        self.slices = self._slices(False), self._slices(True)
        self.norms, packed = self._norms()
        self._packed = torch.cat([*(bucket.entries.flatten() for bucket in self.edges), packed])
        self._unpacked = torch.zeros(self.entries + 1, dtype=torch.long)
        self._unpacked[self._packed] = torch.arange(len(self._packed))
        self._unpacked = self._unpacked[:-1]
        moved(self, device)

    def pack(self, features: Features) -> Neurons:
        """Neuron features as buckets."""
        channels = features.tensors[0].shape[-1]
        flat = [(x.flatten(1, -2) if x.ndim > 2 else x.unsqueeze(1)).movedim(0, 1) for x in features.tensors]
        flat.append(flat[0].new_zeros(1, *flat[0].shape[1:]))
        counts = [*(bucket.entries.numel() for bucket in self.edges), self.rows]
        *edges, rows = torch.split(torch.cat(flat).index_select(0, self._packed), counts)
        arranged = [x.view(*b.entries.shape, -1, channels) for b, x in zip(self.edges, edges, strict=True)]
        return Neurons(self, tuple(arranged), rows)

    def unpack(self, neurons: Neurons) -> Features:
        """The inverse of `pack`."""
        flat = [x.flatten(0, -3) for x in neurons.edges]
        counts = [math.prod(shape) for shape in self.shapes]
        fields = torch.split(torch.cat([*flat, neurons.rows]).index_select(0, self._unpacked), counts)
        return Features(
            self.layout.layout,
            tuple(
                torch.unflatten(x.movedim(1, 0), 1, shape) if shape else x[0]
                for x, shape in zip(fields, self.shapes, strict=True)
            ),
        )

    def of_nodes(self, rows: Tensor) -> list[Tensor]:
        """For each bucket of nodes its rows, ``(streams, V, neurons, B, C)``."""
        parts = torch.split(rows, [*(b.rows for b in self.nodes), *[1] * self.layout.const])
        pairs = zip(self.nodes, parts, strict=False)
        return [torch.unflatten(x, 0, (len(b.kind.order), len(b.nodes), b.neurons)) for b, x in pairs]

    def given(self, rows: Tensor, sums: list[Tensor]) -> list[Tensor]:
        """For each bucket of nodes the sums at the ends of its edges, ``(summed + 2, V, neurons, B, C)``; rows without
        any edges give the shape."""
        every = torch.cat(sums) if sums else rows[:0]
        total = every.new_zeros(self.sums, *rows.shape[1:]).index_add(0, self.give, every)
        parts = torch.split(total, [bucket.sums for bucket in self.nodes])
        pairs = zip(self.nodes, parts, strict=True)
        return [torch.unflatten(x, 0, (b.kind.summed + 2, len(b.nodes), b.neurons)) for b, x in pairs]

    def taken(self, rows: Tensor, kinds: int = 3) -> list[Tensor]:
        """Rows ``(rows, ...)`` at the ends of edges, for each group ``(sets, kinds, neurons, ...)``: against the edges'
        charge, along it and of invariants; without those along it where there are two kinds."""
        rows = torch.cat([rows, rows.new_zeros(1, *rows.shape[1:])]) if self.padded else rows
        taken = rows.index_select(0, self.take if kinds == 3 else self.take_two)
        parts = torch.split(taken, [group.sets * kinds * group.neurons for group in self.ends])
        pairs = zip(self.ends, parts, strict=True)
        return [torch.unflatten(x, 0, (group.sets, kinds, group.neurons)) for group, x in pairs]

    def at_ends(self, groups: Sequence[Tensor]) -> list[list[Tensor]]:
        """The same for each bucket of edges and each end, ``(S, kinds, *neurons, ...)``."""
        at = {}
        for group, x in zip(self.ends, groups, strict=True):
            parts = torch.split(x, [len(self.edges[i].sets) for i, _ in group.of])
            for (i, j), part in zip(group.of, parts, strict=True):
                at[i, j] = torch.unflatten(part, 2, self.edges[i].grid.neurons(self.edges[i].shape, j))
        return [[at[i, j] for j in range(len(bucket.grid.at))] for i, bucket in enumerate(self.edges)]

    def row(self, node: str, stream: int) -> Tensor:
        """The rows of a stream of a node, one for each neuron."""
        bucket, i, first = self._rows[node]
        return (
            self._neurons[node].flatten()
            + first
            + (bucket.kind.order.index(stream) * len(bucket.nodes) + i) * bucket.neurons
        )

    def place(self, field: int) -> Tensor:
        """The rows of a field of a node's stream, or of ``const``."""
        for node, first in self.layout.starts.items():
            if first <= field < first + len(self.layout.nodes[node].charges):
                return self.row(node, field - first)
        return torch.tensor([self.rows - 1])

    # ---- which sets share a tensor

    def _node_buckets(self, padding: int) -> tuple[NodeBucket, ...]:
        felt, buckets = self.layout.layout.felt, []
        for number, (kind, names) in enumerate(kinds_of(self.layout, tied=False).nodes.items()):
            for (neurons,), nodes in merged(
                [((self._neurons[n].numel(),), n) for n in names], padding // len(kind.order)
            ):
                of_streams = [[felt[self.layout.fields(n)][k] for n in nodes] for k in kind.order[:-1]]
                tables = [[[getattr(f, acts) for f in of] for of in of_streams] for acts in ("flips", "scales")]
                transports = torch.tensor(kind.transports).T if kind.transports else None
                flips, scales = (_one_answer(torch.tensor(t).view(-1, len(nodes), 1, 1, 1)) for t in tables)
                buckets.append(NodeBucket(number, kind, tuple(nodes), neurons, flips, scales, transports))
        return tuple(buckets)

    def _edge_buckets(self, padding: int, most: int) -> tuple[EdgeBucket, ...]:
        tables, patterns = {}, dict[tuple[Shape, ...], list[tuple[Shape, int]]]()
        for number, edge in enumerate(self.layout.edges):
            groups, at = _joined(edge)
            entries = _numbered(self.shapes[number]) + self.starts[number]
            table, ends = _reshaped(entries, groups), tuple(range(len(at)))
            if Grid(at, len(groups)).apart:
                # What happens on an edge treats all ends alike.
                ends = tuple(sorted(ends, key=lambda end: -table.shape[1 + end]))
                table = table.permute(0, *(1 + end for end in ends))
            tables[number] = table, ends
            patterns.setdefault(at, []).append((tuple(table.shape), number))
        buckets = []
        for at, sets in patterns.items():
            for shape, numbers in merged(sets, padding if Grid(at, len(sets[0][0])).apart else 0):
                step = max(1, most // math.prod(shape))
                parts = [numbers[i : i + step] for i in range(0, len(numbers), step)]
                buckets += [self._edge_bucket(part, shape, at, tables) for part in parts]
        return tuple(sorted(buckets, key=lambda bucket: (bucket.kind, bucket.sets)))

    def _edge_bucket(
        self, sets: Sequence[int], shape: Shape, at: Sequence[Shape], tables: Mapping[int, tuple[Tensor, Shape]]
    ) -> EdgeBucket:
        ends = tuple([tables[number][1] for number in sets])
        entries = torch.stack([_padded(tables[number][0], shape, self.entries) for number in sets])
        grid, ones = Grid(at, len(shape)), [1] * (len(shape) + 2)
        real = [tuple(tables[number][0].shape) for number in sets]
        counts = [grid.count(of, order.index(0)) * self.channels for of, order in zip(real, ends, strict=True)]
        padded = bool((entries == self.entries).any())
        if padded:
            # Means are taken over padding as well.
            parts = [
                [math.prod(shape[d - 1] for d in over) / math.prod(of[d - 1] for d in over) for of in real]
                for over in grid.over
            ]
            grid.shares = [
                torch.tensor(p, dtype=torch.float64).view(-1, *[1] * (len(a) + 2))
                for p, a in zip(parts, grid.at, strict=True)
            ]
        mask = (entries < self.entries)[..., None, None] if padded else None
        roots = torch.tensor(counts, dtype=torch.float64).sqrt().view(-1, *ones)
        kind = list(kinds_of(self.layout, tied=False).edges).index(len(at))
        return EdgeBucket(kind, tuple(sets), ends, shape, grid, roots, entries, mask)

    def _ends(self) -> tuple[EndGroup, ...]:
        alike: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for number, bucket in enumerate(self.edges):
            for position in range(len(bucket.grid.at)):
                key = bucket.kind, bucket.grid.count(bucket.shape, position)
                alike.setdefault(key, []).append((number, position))
        return tuple(
            [
                EndGroup(kind, n, sum(len(self.edges[i].sets) for i, _ in of), tuple(of))
                for (kind, n), of in alike.items()
            ]
        )

    # ---- indices

    def at(self, bucket: EdgeBucket, position: int) -> list[tuple[int, int, Tensor]]:
        """For each set of a bucket the set, its end at a position, and the numbers of its neurons, -1 for padding."""
        shape, at = bucket.grid.neurons(bucket.shape, position), []
        for number, order in zip(bucket.sets, bucket.ends, strict=True):
            edge, (groups, of_ends) = self.layout.edges[number], _joined(self.layout.edges[number])
            end = edge.ends[order[position]]
            axes = [[end.at.index(axis) for axis in groups[g]] for g in of_ends[order[position]]]
            at.append((number, order[position], _padded(_reshaped(self._neurons[end.node], axes), shape, -1).flatten()))
        return at

    def _taken(self) -> tuple[Tensor, Tensor]:
        three, two = list[Tensor](), list[Tensor]()
        for i, position in (of for group in self.ends for of in group.of):
            for number, end_number, neurons in self.at(self.edges[i], position):
                end = self.layout.edges[number].ends[end_number]
                first = self.layout.starts[end.node]
                against, along, inv = (
                    _picked(self.row(end.node, s - first), neurons, self.rows)
                    for s in (end.against, end.along, end.inv)
                )
                three += [against, along, inv]
                two += [against, inv]
        return _joint(three), _joint(two)

    def _given(self) -> Tensor:
        rows = []
        for bucket in self.edges:
            for position in range(len(bucket.grid.at)):
                sets, means = self.at(bucket, position), list[Tensor]()
                for number, end_number, neurons in sets:
                    end = self.layout.edges[number].ends[end_number]
                    of_node, i, first = self._sum_rows[end.node]
                    slots = (
                        of_node.kind.order.index(end.along - self.layout.starts[end.node]),
                        of_node.kind.summed + (end_number > 0),
                    )
                    message, mean = (
                        _picked(
                            self._neurons[end.node].flatten()
                            + first
                            + (slot * len(of_node.nodes) + i) * of_node.neurons,
                            neurons,
                            0,
                        )
                        for slot in slots
                    )
                    rows.append(message)
                    means.append(mean)
                rows += means
        return _joint(rows)

    def _slices(self, tied: bool) -> Slices:
        kinds = kinds_of(self.layout, tied)
        ends, edges, nodes, mixes = (list[Pick]() for _ in range(4))
        for of_edges, (count, number_of) in enumerate(kinds.edges.items()):
            groups = [group for group in self.ends if group.kind == of_edges]
            of_groups = [
                [
                    (number, order[j])
                    for i, j in group.of
                    for number, order in zip(self.edges[i].sets, self.edges[i].ends, strict=True)
                ]
                for group in groups
            ]
            ends.append(
                _pick(
                    [[number_of[number] * count + end for number, end in of] for of in of_groups],
                    (1 + max(number_of.values())) * count,
                )
            )
            buckets = [bucket for bucket in self.edges if bucket.kind == of_edges]
            edges.append(
                _pick(
                    [[number_of[number] for number in bucket.sets] for bucket in buckets], 1 + max(number_of.values())
                )
            )
        for number, (kind, slice_of) in enumerate(kinds.nodes.items()):
            of_kind = [bucket for bucket in self.nodes if bucket.number == number]
            nodes.append(
                _pick([[slice_of[node] for node in bucket.nodes] for bucket in of_kind], 1 + max(slice_of.values()))
            )
            slots = range(kind.mixes)
            each = [
                [slice_of[node] * kind.mixes + slot for slot in slots for node in bucket.nodes] for bucket in of_kind
            ]
            mixes.append(_pick(each, (1 + max(slice_of.values())) * kind.mixes))
        nests = [torch.tensor([0 if tied else number for number in nest.numbers]) for nest in self.nests]
        return Slices(tuple(ends), tuple(edges), tuple(nodes), tuple(mixes), tuple(nests))

    def _firsts(self) -> Iterable[tuple[NodeBucket, int]]:
        """Buckets of nodes, each with its first row."""
        return [(bucket, self._rows[bucket.nodes[0]][2]) for bucket in self.nodes]

    def _pool(self, space: WeightSpace) -> Pool:
        apart, pick, at = kept_apart(space), list[Tensor](), 0
        rows = [*self.invariants.values(), *[torch.tensor([self.rows - 1])] * self.layout.const]
        for i, (of, name) in enumerate(zip(rows, [*self.invariants, "const"], strict=False)):
            every = 2 * len(rows) + at + torch.arange(len(of))
            means = torch.tensor([i, len(rows) + i])
            pick.append(every if name in apart or i == len(self.invariants) else means)
            at += len(of)
        node = torch.arange(len(rows)).repeat_interleave(torch.tensor([len(of) for of in rows]))
        share = torch.tensor([1 / max(1, len(of)) for of in rows], dtype=torch.float64).view(-1, 1, 1)
        kinds = self.layout.invariant_kinds
        gains = [*(kinds.index(plan.charges[-1]) for plan in self.layout.nodes.values()), len(kinds)]
        return Pool(
            _joint(rows),
            node,
            torch.tensor(gains)[node],
            share,
            _joint(pick),
            torch.tensor(self.channels, dtype=torch.float64).sqrt(),
        )

    def _nests(self) -> tuple[Nest, ...]:
        alike: dict[tuple[int, int], list[int]] = {}
        rows = [(self.invariants[child], self.invariants[parent]) for child, parent in self.layout.nests]
        for number, (children, parents) in enumerate(rows):
            alike.setdefault((len(children), len(parents)), []).append(number)
        return tuple(
            [
                Nest(tuple(of), *(torch.cat(x) for x in zip(*(rows[i] for i in of), strict=True)))
                for of in alike.values()
            ]
        )

    def _norms(self) -> tuple[Norms, Tensor]:
        """What is normalised together, and for each row its entry among all fields."""
        rows, groups = self.rows, 0
        group, gain, opposite = torch.zeros(rows).long(), torch.zeros(rows).long(), torch.arange(rows)
        count = torch.ones(rows, dtype=torch.float64)
        scaled, alone = torch.zeros(2, rows, 1, dtype=torch.bool)
        packed = torch.full((rows,), self.entries)
        kinds = self.layout.stream_kinds
        for node, plan in self.layout.nodes.items():
            for stream, charges in enumerate(plan.charges):
                at, field = self.row(node, stream), self.layout.starts[node] + stream
                charged = stream < len(plan.charges) - 1
                packed[at] = torch.arange(len(at)) + self.starts[field]
                gain[at] = kinds.index(charges)
                group[at] = groups + (torch.zeros_like(at) if charged else torch.arange(len(at)))
                groups += 1 if charged else len(at)
                count[at] = float(len(at) if charged else 1)
                if charged and self.layout.layout.felt[field].scales:
                    other = plan.opposite(stream)
                    scaled[at], alone[at] = True, other is None
                    opposite[at] = at if other is None else self.row(node, other)
        # Padding is 0, but for invariants that nobody reads.
        group[packed == self.entries] = groups
        if self.layout.const:
            packed[-1], group[-1], gain[-1] = self.starts[-1], groups + 1, len(kinds)
        acts = bool(scaled.any())
        return Norms(
            group,
            groups + 2,
            (count * self.channels).sqrt().unsqueeze(1),
            gain,
            opposite,
            scaled if acts else None,
            alone,
        ), packed


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


def merged(items: Iterable[tuple[Shape, Item]], padding: int) -> list[tuple[Shape, list[Item]]]:
    """Items of one shape together, in their order; and those of neighbouring shapes, the cheapest first, as long as
    that takes at most so many entries of padding."""
    by_shape: dict[Shape, list[tuple[int, Item]]] = {}
    for number, (shape, item) in enumerate(items):
        by_shape.setdefault(shape, []).append((number, item))
    buckets = sorted(by_shape.items(), reverse=True)

    def join(i: int) -> tuple[int, Shape]:
        (first, some), (last, others) = buckets[i], buckets[i + 1]
        shape = tuple(map(max, first, last))
        before = math.prod(first) * len(some) + math.prod(last) * len(others)
        return math.prod(shape) * (len(some) + len(others)) - before, shape

    while len(buckets) > 1:
        (more, shape), i = min((join(i), i) for i in range(len(buckets) - 1))
        if more > padding:
            break
        buckets[i : i + 2] = [(shape, buckets[i][1] + buckets[i + 1][1])]
    ordered = sorted((sorted(of, key=lambda item: item[0]), shape) for shape, of in buckets)
    return [(shape, [item for _, item in of]) for of, shape in ordered]


def kept_apart(space: WeightSpace) -> dict[str, int]:
    """The FIXED nodes whose neurons a pool keeps apart, and how many neurons they have."""
    sizes = {name: node.size for name, node in space.nodes.items() if not node.permutes}
    return {name: size for name, size in sizes.items() if size is not None and size <= APART}


def buckets_of(space: WeightSpace, channels: int, device: str, padding: int, most: int, *sizes: int) -> Buckets:
    """The arrangement of networks whose nodes have these sizes.

    Args:
        space: the networks' weight space.
        channels: of all streams.
        device: of the indices.
        padding: entries of padding for which two shapes share a tensor.
        most: edges of a network that a tensor of several sets may have.
        sizes: of the space's nodes.
    """
    with _disable_current_modes(), torch.inference_mode(False), torch.device("cpu"):
        known = dict(zip(space.nodes, sizes, strict=True))
        return Buckets(space, known, channels, torch.device(device), padding, most)


def moved(thing: Any, device: torch.device) -> None:
    """Moves all tensors of an object to a device."""
    for name in thing.__slots__:
        setattr(thing, name, _moved(getattr(thing, name), device))


def _joined(edge: EdgeSet) -> tuple[tuple[Shape, ...], tuple[Shape, ...]]:
    """The axes of edges in groups that belong to the same ends; and for each end the numbers of its groups.

    Where each axis belongs to one end or to all, there is one group of those that all share, and one of each end.
    """
    of_axis = [
        tuple([number for number, end in enumerate(edge.ends) if axis in end.at]) for axis in range(len(edge.axes))
    ]
    count = len(edge.ends)
    alike = all(len(of) in (1, count) for of in of_axis)
    owners = [tuple(range(count)), *((end,) for end in range(count))] if alike else list(dict.fromkeys(of_axis))
    groups = tuple([tuple([axis for axis, of in enumerate(of_axis) if of == owner]) for owner in owners])
    return groups, tuple([tuple([g for g, of in enumerate(owners) if end in of]) for end in range(len(edge.ends))])


def _placed(buckets: Sequence[NodeBucket], counts: Sequence[int]) -> tuple[dict[str, tuple[NodeBucket, int, int]], int]:
    """Node -> its bucket, its place there, and the bucket's first row; and the number of rows."""
    starts = [0, *itertools.accumulate(counts)]
    return {
        node: (bucket, i, start)
        for bucket, start in zip(buckets, starts, strict=False)
        for i, node in enumerate(bucket.nodes)
    }, starts[-1]


def _pick(slices: Sequence[Sequence[int]], count: int) -> Pick:
    order = [i for of in slices for i in of]
    return Pick(None if order == list(range(count)) else torch.tensor(order), list(map(len, slices)))


def _numbered(shape: Sequence[int]) -> Tensor:
    return torch.arange(math.prod(shape)).view(*shape)


def _reshaped(x: Tensor, groups: Sequence[Sequence[int]]) -> Tensor:
    """The axes of each group as one."""
    return x.permute([i for group in groups for i in group]).reshape([math.prod(x.shape[i] for i in g) for g in groups])


def _padded(x: Tensor, shape: Sequence[int], by: int) -> Tensor:
    padded = x.new_full(tuple(shape), by)
    padded[tuple(map(slice, x.shape))] = x
    return padded


def _picked(rows: Tensor, at: Tensor, otherwise: int) -> Tensor:
    """Rows by number, and another one where the number is negative."""
    return torch.where(at < 0, otherwise, rows[at.clamp(min=0)])


def _joint(indices: Sequence[Tensor]) -> Tensor:
    return torch.cat([*indices, torch.zeros(0).long()])


def _one_answer(table: Tensor) -> Tensor | bool:
    return table if bool(table.any()) and not bool(table.all()) else bool(table.numel()) and bool(table.all())


def _moved(value: Any, device: torch.device) -> Any:
    """Anything with its tensors on a device."""
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, Grid):
        value.shares = _moved(value.shares, device)
        return value
    if isinstance(value, dict):
        return {key: _moved(x, device) for key, x in value.items()}
    if isinstance(value, tuple | list):
        parts = [_moved(x, device) for x in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return value
