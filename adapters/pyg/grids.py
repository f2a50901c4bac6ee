"""Which edges of a graph join all pairs of two ranges of nodes, as those of a layer do: read off the indices.

Messages along such edges need no index, as in dense layers: what nodes bring broadcasts, and sums run over an axis. All
other edges, in whatever order, are done one by one.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from nfn_monomial.errors import InvalidValueError
from nfn_monomial.nn.incidence import Adder, Pairs, summing

REMEMBERED = 2**14
"""Edges of a network up to which it is remembered, by the values of its indices."""


class Segment(NamedTuple):
    """Edges of a network that follow one another: of a grid, row by row, or a column of any others.

    All edges of a row have one node, the next row the next; at their other end they have nodes that follow one another,
    the same for all rows.

    Attributes:
        start: the first edge.
        rows: see above.
        columns: see above.
        along: of a grid, for each end (target, source) which of the two says at which of its nodes an edge is: 0 rows,
            1 columns.
        alone: whether the nodes at the targets are those of no other edges; and those at the sources.
    """

    start: int
    rows: int
    columns: int = 1
    along: tuple[int, int] | None = None
    alone: tuple[bool, bool] = (False, False)


class Outline(NamedTuple):
    """A graph as equal networks, one after the other; where they differ, as one network.

    Attributes:
        networks: how many.
        nodes: ``n``, of one of them.
        segments: all edges of a network, in order.
        degrees: how many edges lead to each node of a network, and from it, at least 1: ``(n,)``.
    """

    networks: int
    nodes: int
    segments: tuple[Segment, ...]
    degrees: tuple[Tensor, Tensor]


def whole(edge_index: Tensor, nodes: int) -> Outline:
    """A graph of which nothing is known."""
    target, source = (torch.bincount(edge_index[1 - end], minlength=nodes).clamp(min=1) for end in range(2))
    return Outline(1, nodes, (Segment(0, edge_index.shape[1]),), (target, source))


def outline(edge_index: Tensor, nodes: int, least: int, kinds: Tensor | None = None) -> Outline:
    """What a graph is made of, in time linear in its edges. Reads values, and so waits for another device.

    Args:
        edge_index: of every edge source and target ``(2, E)``.
        nodes: ``N``.
        least: how many edges a grid must have in all networks together; others are not worth it.
        kinds: ``(E, K)``; all edges of a grid are of one kind.

    Raises:
        ValueError: naming the first edge with an end that is no node.
    """
    edges = edge_index.shape[1]
    networks = _networks(edge_index, nodes, kinds) if edges >= least else 1
    own, each = nodes // networks, edges // networks
    first = edge_index[:, :each] if kinds is None else torch.cat([edge_index[:, :each], kinds[:each].T])
    if edges and bool((wrong := (first[:2] < 0) | (first[:2] >= own)).any()):
        edge = int(wrong.any(0).nonzero()[0])
        source, target = edge_index[:, edge].tolist()
        raise InvalidValueError(
            f"edge {edge} of edge_index leads from node {source} to node {target}, and x has {nodes} nodes: was it "
            "made for another graph?"
        )
    if edges < least:
        return whole(edge_index, nodes)
    least = -(-least // networks)
    if each > REMEMBERED:
        return Outline(networks, own, *_cut(first, own, least))
    return Outline(networks, own, *_remembered(first.long().numpy().tobytes(), each, own, least))


def _networks(edge_index: Tensor, nodes: int, kinds: Tensor | None) -> int:
    """Into how many networks of the same edges, each between nodes of its own, a graph can be cut; the most."""
    edges = edge_index.shape[1]
    numbers = _divisors(math.gcd(edges, nodes))
    fit = (edge_index[:, edges // numbers] - edge_index[:, :1] == nodes // numbers).all(0)
    for number in numbers[fit].tolist():
        own, each = nodes // number, edges // number
        if (
            int(edge_index[:, :each].max()) < own
            and torch.equal(edge_index[:, each:], edge_index[:, :-each] + own)
            and (kinds is None or torch.equal(kinds[each:], kinds[:-each]))
        ):
            return int(number)
    return 1


@functools.lru_cache(maxsize=64)
def _divisors(number: int) -> Tensor:
    """All but 1, from the largest."""
    small = [i for i in range(1, math.isqrt(number) + 1) if number % i == 0]
    return torch.tensor(sorted({*small, *(number // i for i in small)} - {1}, reverse=True), dtype=torch.long)


Cut: TypeAlias = tuple[tuple[Segment, ...], tuple[Tensor, Tensor]]
"""Segments and degrees of one network."""


@functools.lru_cache(maxsize=32)
def _remembered(values: bytes, edges: int, nodes: int, least: int) -> Cut:
    return _cut(torch.frombuffer(bytearray(values), dtype=torch.long).view(-1, edges), nodes, least)


def _cut(edges: Tensor, nodes: int, least: int) -> Cut:
    """Of source, target and kinds of the edges of a network."""
    degrees = whole(edges[:2], nodes).degrees
    steps = edges.diff()
    # In a row one end stays and the other goes on by one: the sources, as to_graph sorts edges, or the targets.
    inside = [(steps[i] == 1) & (steps[1 - i] == 0) & (steps[2:] == 0).all(0) for i in range(2)]
    moving = int(inside[1].sum() > inside[0].sum())
    found = _found(edges, inside[moving], moving, least) if 2 * inside[moving].sum() >= least else []
    segments, at = list[Segment](), 0
    for start, rows, columns, source, target in found:
        if start > at:
            segments.append(Segment(at, start - at))
        shape = (columns, rows) if moving else (rows, columns)
        sides = zip(degrees, (target, source), shape, reversed(shape), strict=True)
        full, of = (bool((degree[first : first + n] == others).all()) for degree, first, n, others in sides)
        segments.append(Segment(start, rows, columns, (moving, 1 - moving), (full, of)))
        at = start + rows * columns
    if at < edges.shape[1]:
        segments.append(Segment(at, edges.shape[1] - at))
    return tuple(segments), degrees


def _found(edges: Tensor, inside: Tensor, moving: int, least: int) -> list[list[int]]:
    """Grids: first edge, rows, columns, and source and target of the first edge."""
    starts = _starts(inside)
    lengths = starts.diff(append=starts.new_tensor([edges.shape[1]]))
    steps = edges[:, starts].diff()
    next_row = (steps[moving] == 0) & (steps[1 - moving] == 1) & (steps[2:] == 0).all(0) & (lengths.diff() == 0)
    firsts = _starts(next_row)
    rows, columns = firsts.diff(append=firsts.new_tensor([len(starts)])), lengths[firsts]
    found = torch.stack([starts[firsts], rows, columns, *edges[:2, starts[firsts]]])
    grids: list[list[int]] = found[:, rows * columns >= least].T.tolist()
    return grids


def _starts(joined: Tensor) -> Tensor:
    """Where runs begin; ``joined`` says of each but the first whether it goes on with the run of the one before."""
    return torch.cat([joined.new_zeros(1, dtype=torch.long), (~joined).nonzero().flatten() + 1])


class Block(NamedTuple):
    """Some rows of a segment of some networks.

    Attributes:
        segment: its number.
        network: the first.
        row: the first.
        shape: ``(networks, rows, columns)``.
    """

    segment: int
    network: int
    row: int
    shape: tuple[int, int, int]


class Grids(Pairs):
    """`Pairs` that need no index where they are those of a grid; blocks of edges are ``(networks, rows, columns, C)``.

    Args:
        at: for each end, which row of features is at that end of each edge ``(E,)``.
        graph: what the edges are made of.
        step: how many rows of features, one after the other, nodes have.
    """

    def __init__(self, at: tuple[Tensor, ...], graph: Outline, step: int = 1) -> None:
        super().__init__(at)
        self._graph, self._step = graph, step
        self._own, self._each = graph.nodes * step, len(at[0]) // graph.networks

    @functools.cached_property
    def _firsts(self) -> list[list[int]]:
        """For each end, the row of features at the first edge of each segment."""
        starts = torch.tensor([segment.start for segment in self._graph.segments])
        return [at[starts].tolist() for at in self._at]

    def plan(self, edges: Tensor, size: int) -> list[Block]:  # type: ignore[override]
        found = []
        for number, (_, rows, columns, *_) in enumerate(self._graph.segments):
            row = columns * edges.shape[1]
            networks, once = max(1, size // (row * rows)), max(1, min(rows, size // row))
            starts = itertools.product(range(0, self._graph.networks, networks), range(0, rows, once))
            found += [
                Block(number, b, i, (min(networks, self._graph.networks - b), min(once, rows - i), columns))
                for b, i in starts
            ]
        return sorted(found, key=lambda block: -math.prod(block.shape))

    def parts(self, x: Tensor, plan: list[Block]) -> Iterable[Tensor]:  # type: ignore[override]
        if len(x) != len(self._at[0]):
            return [x] * len(plan)
        row, channel = x.stride()
        return (
            x.as_strided(
                (*block.shape, x.shape[1]),
                (self._each * row, block.shape[-1] * row, row, channel),
                x.storage_offset() + self._edge(block) * row,
            )
            for block in plan
        )

    def taken(self, neurons: Tensor, end: int, plan: list[Block]) -> Iterable[Tensor]:  # type: ignore[override]
        for block in plan:
            along = self._graph.segments[block.segment].along
            if along is None:
                yield neurons.index_select(0, self._index(end, block)).view(*block.shape, -1)
            else:
                yield self._of(neurons, end, along[end], block)

    def adders(self, total: Tensor, end: int, plan: list[Block]) -> Iterable[Adder]:  # type: ignore[override]
        for block in plan:
            _, rows, _, along, alone = self._graph.segments[block.segment]
            if along is None:
                yield functools.partial(_add_rows, total, self._index(end, block))
            else:
                once = along[end] == 0 or block.shape[1] == rows
                yield summing(self._of(total, end, along[end], block), [2 - along[end]], alone[end] and once)

    def _edge(self, block: Block) -> int:
        """The number of its first edge."""
        return block.network * self._each + self._graph.segments[block.segment].start + block.row * block.shape[-1]

    def _of(self, neurons: Tensor, end: int, along: int, block: Block) -> Tensor:
        """Features of the nodes at an end of a grid, ``(networks, n, 1, C)`` or ``(networks, 1, n, C)``."""
        row, channel = neurons.stride()
        shape, strides = [block.shape[0], 1, 1, neurons.shape[1]], [self._own * row, 0, 0, channel]
        shape[1 + along], strides[1 + along] = block.shape[1 + along], self._step * row
        first = self._firsts[end][block.segment] + block.network * self._own + (0 if along else block.row * self._step)
        return neurons.as_strided(shape, strides, neurons.storage_offset() + first * row)

    def _index(self, end: int, block: Block) -> Tensor:
        """Which rows of features are at an end of edges of no grid."""
        at = self._at[end]
        step = at.stride(0)
        offset = at.storage_offset() + self._edge(block) * step
        return at.as_strided(block.shape[:2], (self._each * step, step), offset).reshape(-1)


def _add_rows(total: Tensor, at: Tensor, values: Tensor) -> None:
    total.index_add_(0, at, values.view(len(at), -1))
