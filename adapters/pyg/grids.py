"""Which edges of a graph join all pairs of two ranges of nodes, as those of a layer do: read off the indices.

Messages along such edges need no index, as in dense layers: what nodes bring broadcasts, and sums run over an axis. All
other edges, in whatever order, are done one by one.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

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
        segments: all edges of a network, in order.
        degrees: how many edges lead to each node of a network, and from it, at least 1: ``(n,)``.
    """

    networks: int
    segments: tuple[Segment, ...]
    degrees: tuple[Tensor, Tensor]


def whole(edge_index: Tensor, nodes: int) -> Outline:
    """A graph of which nothing is known."""
    ones = edge_index.new_ones(edge_index.shape[1])
    source, target = (edge_index.new_zeros(nodes).index_add(0, end, ones).clamp(min=1) for end in edge_index)
    return Outline(1, (Segment(0, len(ones)),), (target, source))


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
    if edge_index.shape[1] < least:
        return whole(edge_index, nodes)
    cut = _remembered if edges.shape[1] <= REMEMBERED else _cut
    values = edges.contiguous().numpy().tobytes()
    segments, degrees = cut(values, edges.dtype, len(edges), nodes // networks, -(-least // networks))
    return Outline(networks, segments, degrees)


def _cut(
    values: bytes, dtype: torch.dtype, kinds: int, nodes: int, least: int
) -> tuple[tuple[Segment, ...], tuple[Tensor, Tensor]]:
    """Segments and degrees of a network."""
    edges = torch.frombuffer(bytearray(values), dtype=dtype).view(kinds, -1)
    degrees = whole(edges[:2], nodes).degrees
    segments, end = list[Segment](), 0
    for grid in _grids(edges, least, degrees):
        if grid.start > end:
            segments.append(Segment(end, grid.start - end))
        segments.append(grid)
        end = grid.start + grid.rows * grid.columns
    if end < edges.shape[1]:
        segments.append(Segment(end, edges.shape[1] - end))
    return tuple(segments), degrees


_remembered = functools.lru_cache(maxsize=32)(_cut)


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


def _grids(edges: Tensor, least: int, degrees: Sequence[Tensor]) -> Iterator[Segment]:
    """Grids among edges, of which source, target and kind are given."""
    # In a row one end stays and the other goes on by one: the sources, as to_graph sorts edges, or the targets.
    steps = edges.diff()
    inside = [(steps[i] == 1) & (steps[1 - i] == 0) & (steps[2:] == 0).all(0) for i in range(2)]
    moving = int(inside[1].sum() > inside[0].sum())
    if not bool(inside[moving].any()):
        return
    starts = _starts(inside[moving])
    lengths = starts.diff(append=starts.new_tensor([edges.shape[1]]))
    steps = edges[:, starts].diff()
    next_row = (steps[moving] == 0) & (steps[1 - moving] == 1) & (steps[2:] == 0).all(0) & (lengths.diff() == 0)
    firsts = _starts(next_row)
    rows, columns = firsts.diff(append=firsts.new_tensor([len(starts)])), lengths[firsts]
    grids = torch.stack([starts[firsts], rows, columns, *edges[:2, starts[firsts]].flip(0)])
    for start, *shape, target, source in grids[:, rows * columns >= least].T.tolist():
        along = (moving, 1 - moving)
        at = zip(degrees, (target, source), along, strict=True)
        full, of_sources = (bool((degree[first : first + shape[i]] == shape[1 - i]).all()) for degree, first, i in at)
        yield Segment(start, shape[0], shape[1], along, (full, of_sources))


def _starts(joined: Tensor) -> Tensor:
    """Where runs begin; ``joined`` says of each but the first whether it goes on with the run of the one before."""
    return torch.cat([joined.new_zeros(1, dtype=torch.long), (~joined).nonzero().flatten() + 1])


class Block(NamedTuple):
    """Some rows of a segment of some networks: of the first, and ``(networks, rows, columns)``."""

    number: int
    segment: Segment
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
        self._rows, self._each = len(graph.degrees[0]) * step, len(at[0]) // graph.networks

    @functools.cached_property
    def _firsts(self) -> list[list[int]]:
        """For each end, the row of features at the first edge of each segment."""
        starts = torch.tensor([segment.start for segment in self._graph.segments])
        return [at[starts].tolist() for at in self._at]

    def plan(self, edges: Tensor, size: int) -> list[Block]:  # type: ignore[override]
        blocks = []
        for number, segment in enumerate(self._graph.segments):
            row = segment.columns * edges.shape[1]
            networks, rows = max(1, size // (row * segment.rows)), max(1, min(segment.rows, size // row))
            starts = itertools.product(range(0, self._graph.networks, networks), range(0, segment.rows, rows))
            for b, i in starts:
                shape = min(networks, self._graph.networks - b), min(rows, segment.rows - i), segment.columns
                blocks.append(Block(number, segment, b, i, shape))
        return sorted(blocks, key=lambda block: -math.prod(block.shape))

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
            if block.segment.along is None:
                yield neurons.index_select(0, self._index(end, block)).view(*block.shape, -1)
            else:
                yield self._nodes(neurons, end, block.segment.along[end], block)

    def adders(self, total: Tensor, end: int, plan: list[Block]) -> Iterable[Adder]:  # type: ignore[override]
        for block in plan:
            if block.segment.along is None:
                yield functools.partial(_add_rows, total, self._index(end, block))
            else:
                segment, along = block.segment, block.segment.along[end]
                once = segment.alone[end] and (along == 0 or block.shape[1] == segment.rows)
                yield summing(self._nodes(total, end, along, block), [2 - along], once)

    def _edge(self, block: Block) -> int:
        """The number of its first edge."""
        return block.network * self._each + block.segment.start + block.row * block.shape[-1]

    def _nodes(self, neurons: Tensor, end: int, along: int, block: Block) -> Tensor:
        """Features of the nodes at an end of a grid, ``(networks, n, 1, C)`` or ``(networks, 1, n, C)``."""
        row, channel = neurons.stride()
        shape, strides = [block.shape[0], 1, 1, neurons.shape[1]], [self._rows * row, 0, 0, channel]
        shape[1 + along], strides[1 + along] = block.shape[1 + along], self._step * row
        first = self._firsts[end][block.number] + block.network * self._rows + (0 if along else block.row * self._step)
        return neurons.as_strided(shape, strides, neurons.storage_offset() + first * row)

    def _index(self, end: int, block: Block) -> Tensor:
        """Which rows of features are at an end of edges of no grid."""
        (part,) = self.parts(self._at[end][:, None], [block])
        return part.reshape(-1)


def _add_rows(total: Tensor, at: Tensor, values: Tensor) -> None:
    total.index_add_(0, at, values.to(total.dtype).view(len(at), -1))
