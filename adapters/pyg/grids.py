"""Which edges of a graph join all pairs of two ranges of nodes, as those of a layer do: read off the indices.

Messages along such edges need no index, as in dense layers: what nodes bring broadcasts, and sums run over an axis. All
other edges, in whatever order, are done one by one.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from nfn_monomial.errors import InvalidValueError
from nfn_monomial.nn.incidence import Adder, summing, zeros_to_add_to


class Segment(NamedTuple):
    """Edges of a network that follow one another: a grid as `to_graph` sorts it, or any others.

    Attributes:
        start: the first edge.
        rows: how many targets a grid has, or how many edges there are.
        columns: how many sources a grid has, 1 otherwise.
        is_grid: whether an edge leads from every source to every target, row by row.
        alone: of a grid, whether no other edges lead to its targets; and whether none lead from its sources.
    """

    start: int
    rows: int
    columns: int = 1
    is_grid: bool = False
    alone: tuple[bool, ...] = ()


class Outline(NamedTuple):
    """A graph as equal networks, one after the other; where they differ, as one network.

    Attributes:
        networks: how many.
        segments: all edges of a network, in order.
        degrees: how many edges lead to each node of a network, and from it ``(n,)``.
    """

    networks: int
    segments: list[Segment]
    degrees: list[Tensor]


def whole(edge_index: Tensor, nodes: int) -> Outline:
    """A graph of which nothing is known."""
    ones = edge_index.new_ones(edge_index.shape[1])
    degrees = [edge_index.new_zeros(nodes).index_add(0, end, ones) for end in edge_index.flip(0)]
    return Outline(1, [Segment(0, len(ones))], degrees)


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
    edges = edge_index if kinds is None else torch.cat([edge_index, kinds.T])
    networks = _networks(edges, nodes) if edges.shape[1] >= least else 1
    edges = edges[:, : edges.shape[1] // networks]
    if bool((wrong := (edges[:2] < 0) | (edges[:2] >= nodes // networks)).any()):
        edge = int(wrong.any(0).nonzero()[0])
        source, target = edges[:2, edge].tolist()
        raise InvalidValueError(
            f"edge {edge} of edge_index leads from node {source} to node {target}, and x has {nodes} nodes: was it "
            "made for another graph?"
        )
    network = whole(edges[:2], nodes // networks)
    if edge_index.shape[1] < least:
        return network
    segments, end = list[Segment](), 0
    for start, rows, columns in _grids(edges):
        if rows * columns * networks >= least:
            if start > end:
                segments.append(Segment(end, start - end))
            ends = zip(network.degrees, edges[:2, start].flip(0).tolist(), (rows, columns), strict=True)
            alone = tuple(bool((n[first : first + count] * count == rows * columns).all()) for n, first, count in ends)
            segments.append(Segment(start, rows, columns, True, alone))
            end = start + rows * columns
    if end < edges.shape[1]:
        segments.append(Segment(end, edges.shape[1] - end))
    return Outline(networks, segments, network.degrees)


def _networks(edges: Tensor, nodes: int) -> int:
    """Into how many networks of the same edges, each between nodes of its own, a graph can be cut; the most."""
    count = edges.shape[1]
    most = math.gcd(count, nodes)
    # The first edge of the second network joins nodes that are one network further on.
    further = edges[:2, :: count // most] - edges[:2, :1] == torch.arange(most) * (nodes // most)
    for part in further.all(0).nonzero().flatten().tolist()[1:]:
        each = part * (count // most)
        step = edges[:, each : each + 1] - edges[:, :1]
        inside = most % part == 0 and int(edges[:2, :each].max()) < int(step[0])
        if inside and torch.equal(edges[:, each:], edges[:, :-each] + step):
            return int(most // part)
    return 1


def _grids(edges: Tensor) -> list[list[int]]:
    """First edge, rows and columns of grids among edges, of which source, target and kind are given."""
    source, target, *kinds = edges.diff()
    starts = _starts((source == 1) & (target == 0), kinds)
    columns = starts.diff(append=starts.new_tensor([edges.shape[1]]))
    source, target, *kinds = edges[:, starts].diff()
    firsts = _starts((source == 0) & (target == 1) & (columns.diff() == 0), kinds)
    rows = firsts.diff(append=firsts.new_tensor([len(starts)]))
    grids: list[list[int]] = torch.stack([starts[firsts], rows, columns[firsts]], 1).tolist()
    return grids


def _starts(joined: Tensor, kinds: list[Tensor]) -> Tensor:
    """Where runs begin; ``joined`` says of each but the first whether it goes on with the run of the one before."""
    for step in kinds:
        joined = joined & (step == 0)
    return torch.cat([joined.new_zeros(1, dtype=torch.long), (~joined).nonzero().flatten() + 1])


class Block(NamedTuple):
    """Some rows of a segment of some networks: of the first, and ``(networks, rows, columns)``."""

    segment: Segment
    network: int
    row: int
    shape: tuple[int, int, int]


class Grids:
    """What `Grid` says, of edges ``(E, C)`` and neurons ``(N, C)``; blocks are ``(networks, rows, columns, C)``.

    Args:
        at: for each end, which row of features is at that end of each edge ``(E,)``.
        graph: what the edges are made of.
        step: how many rows of features, one after the other, nodes have.
    """

    def __init__(self, at: tuple[Tensor, ...], graph: Outline, step: int = 1) -> None:
        self._at, self._graph, self._step = at, graph, step
        self._firsts = {s: [int(end[s.start]) for end in at] for s in graph.segments if s.is_grid}

    def plan(self, edges: Tensor, size: int) -> list[Block]:
        blocks = []
        for segment in self._graph.segments:
            row = segment.columns * edges.shape[1]
            networks, rows = max(1, size // (row * segment.rows)), max(1, min(segment.rows, size // row))
            starts = itertools.product(range(0, self._graph.networks, networks), range(0, segment.rows, rows))
            for b, i in starts:
                shape = min(networks, self._graph.networks - b), min(rows, segment.rows - i), segment.columns
                blocks.append(Block(segment, b, i, shape))
        return sorted(blocks, key=lambda block: -math.prod(block.shape))

    def parts(self, x: Tensor, plan: list[Block]) -> Iterable[Tensor]:
        if len(x) != len(self._at[0]):
            return [x] * len(plan)
        return (self._edges(x, block) for block in plan)

    def take(self, neurons: Tensor, end: int) -> Tensor:
        return neurons.index_select(0, self._at[end])

    def taken(self, neurons: Tensor, end: int, plan: list[Block]) -> Iterable[Tensor]:
        for block in plan:
            if block.segment.is_grid:
                yield self._nodes(neurons, end, block)
            else:
                yield neurons.index_select(0, self._index(end, block)).view(*block.shape, -1)

    def sum(self, values: Tensor, end: int, like: Tensor) -> Tensor:
        total = zeros_to_add_to(like.to(values.dtype))
        return total.index_add(0, self._at[end], values.to(total.dtype)).to(values.dtype)

    def adders(self, total: Tensor, end: int, plan: list[Block]) -> Iterable[Adder]:
        for block in plan:
            if block.segment.is_grid:
                once = block.segment.alone[end] and (end == 0 or block.shape[1] == block.segment.rows)
                yield summing(self._nodes(total, end, block), [2 - end], once)
            else:
                yield functools.partial(_add_rows, total, self._index(end, block))

    def _edges(self, x: Tensor, block: Block) -> Tensor:
        """What a block has of what all edges have. One operator: views upon views take as long as small blocks."""
        (row, channel), each = x.stride(), len(x) // self._graph.networks
        first = block.network * each + block.segment.start + block.row * block.shape[2]
        strides = each * row, block.shape[2] * row, row, channel
        return x.as_strided((*block.shape, x.shape[1]), strides, x.storage_offset() + first * row)

    def _nodes(self, neurons: Tensor, end: int, block: Block) -> Tensor:
        """Features at an end of a grid: targets ``(networks, rows, 1, C)``, sources ``(networks, 1, columns, C)``."""
        (row, channel), each = neurons.stride(), len(neurons) // self._graph.networks
        first = block.network * each + self._firsts[block.segment][end] + (0 if end else block.row * self._step)
        shape, strides = [block.shape[0], 1, 1, neurons.shape[1]], [each * row, 0, 0, channel]
        shape[1 + end], strides[1 + end] = block.shape[1 + end], self._step * row
        return neurons.as_strided(shape, strides, neurons.storage_offset() + first * row)

    def _index(self, end: int, block: Block) -> Tensor:
        """Which rows of features are at an end of edges of no grid."""
        return self._edges(self._at[end][:, None], block).reshape(-1)


def _add_rows(total: Tensor, at: Tensor, values: Tensor) -> None:
    """Adds values of edges to those rows of the totals that are at their end."""
    total.index_add_(0, at, values.to(total.dtype).view(len(at), -1))
