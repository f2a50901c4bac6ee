"""Parameters of networks as entries of neuron features: which number of a network lies where."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from nfn_monomial.space import packing
from nfn_monomial.space.weight_space import WeightSpace

from .buckets import Buckets, buckets_of, merged, moved

Extra = tuple[tuple[int, int], ...]
"""Further features of neurons: field, and how many there are for each of its entries."""


class Group(NamedTuple):
    """Entries of fields that are multiplied by matrices at once: ``Q`` fields of ``N`` entries and ``K`` numbers each.

    Attributes:
        shape: ``(Q, N, K)``.
        numbers: ``(Q N K)``, of a network; those past the last are of padding.
        maps: ``(Q K)``, rows of the parameter that maps them; those past the last are of padding.
    """

    shape: tuple[int, int, int]
    numbers: Tensor
    maps: Tensor


class Entries:
    """Where the numbers of a network lie, those of one parameter after another; of a parameter channels come first.

    Attributes:
        buckets: the arrangement of neurons and edges.
        groups: the entries of each bucket of edges, then those of streams.
        rows: the rows of the latter.
        maps: the number of rows of the map.
        count: how many numbers there are.
        numbers: those of all groups.
        padded: whether there is padding among them.
        back: for each number its place in all groups.
        log_at: where the sums of squares at the ends of edges go, then those of the parameters in streams: three for
            each neuron, of incoming and outgoing edges and of its own parameters.
        logs: how many there are.
        start: for each row the row of what it starts with: of hidden nodes' invariants, of FIXED neurons' streams, 0.
        nodes: numbers of the nodes, bucket by bucket.
    """

    __slots__ = (
        "back", "buckets", "count", "groups", "log_at", "logs", "maps", "nodes", "numbers", "padded", "rows", "start"
    )  # fmt: skip

    def __init__(self, space: WeightSpace, buckets: Buckets, channels: int, extra: Extra, padding: int) -> None:
        self.buckets, layout = buckets, buckets.layout
        numbers, total = {}, 0
        for name in space.parameters:
            shape = space.shape_of(name, buckets.sizes)
            count = channels * math.prod(shape)
            numbers[name] = torch.arange(total, total + count).view(1, channels, *shape)
            total += count
        pieces = packing.pieces(space, numbers, buckets.sizes)
        sources, self.maps = dict[int, list[tuple[Tensor, int]]](), 0
        for place in layout.places:
            rank = len(layout.layout.types[place.field])
            named = zip(place.pieces, place.orders, strict=True)
            table = torch.cat([pieces[name].permute(order).flatten(1 + rank) for name, order in named], -1)
            table = table.reshape(-1, table.shape[-1])
            sources[place.field] = [(table, self.maps)]
            self.maps += table.shape[1]
        own = self.maps
        for field, width in extra:
            count = math.prod(buckets.shapes[field])
            table = torch.arange(total, total + count * width).view(count, width)
            sources.setdefault(field, []).append((table, self.maps))
            self.maps, total = self.maps + width, total + count * width
        self.count = total
        self.groups = [self._edges(bucket.sets, bucket.entries, sources) for bucket in buckets.edges]
        of_streams = [
            ((len(table), table.shape[1]), (field, table, first))
            for field, of in sources.items() for table, first in of if field >= len(layout.edges)
        ]  # fmt: skip
        rows, squares = list[Tensor](), list[Tensor]()
        neurons = dict(zip(self._order(), self._positions(), strict=True))
        node_of = {field: node for node in layout.nodes for field in layout.numbers(node)}
        for (length, width), fields in merged(of_streams, padding):
            table = torch.full((len(fields), length, width), self.count)
            maps = torch.full((len(fields), width), self.maps)
            for i, (field, of, first) in enumerate(fields):
                table[i, : of.shape[0], : of.shape[1]] = of
                maps[i, : of.shape[1]] = first + torch.arange(of.shape[1])
                at = buckets.place(field)
                rows.append(torch.cat([at, torch.zeros(length - len(at)).long()]))
                counts = field in node_of and first < own
                after = neurons[node_of[field]] * 3 + 2 if counts else torch.zeros(0).long()
                squares.append(torch.cat([after, torch.full((length - len(after),), -1)]))
            self.groups.append(Group((len(fields), length, width), table.flatten(), maps.flatten()))
        empty = torch.zeros(0).long()
        self.rows = torch.cat([*rows, empty])
        self.numbers = torch.cat([*(group.numbers for group in self.groups), empty])
        self.padded = bool((self.numbers == self.count).any())
        self.back = torch.zeros(self.count + 1).long()
        self.back[self.numbers] = torch.arange(len(self.numbers))
        self.back = self.back[:-1]
        self.logs = 3 * sum(len(bucket.nodes) * bucket.neurons for bucket in buckets.nodes) + 1
        self.log_at = torch.cat([*self._ends(neurons), *squares, empty])
        self.log_at[self.log_at < 0] = self.logs - 1
        self.start = self._start(space)
        names = list(layout.nodes)
        self.nodes = torch.tensor([names.index(node) for node in self._order()])

    def matrices(self, maps: Tensor) -> list[Tensor]:
        """The maps of each group, ``(Q, K, C)``, of the parameter ``(maps, C)``."""
        if self.padded:
            maps = torch.cat([maps, maps.new_zeros(1, maps.shape[1])])
        rows = maps.index_select(0, torch.cat([group.maps for group in self.groups]))
        parts = torch.split(rows, [len(group.maps) for group in self.groups])
        return [x.view(g.shape[0], g.shape[2], -1) for g, x in zip(self.groups, parts, strict=True)]

    def _order(self) -> list[str]:
        return [node for bucket in self.buckets.nodes for node in bucket.nodes]

    def _positions(self) -> list[Tensor]:
        """For each node, bucket by bucket, the positions of its neurons among all, padded ones included."""
        at, found = 0, []
        for bucket in self.buckets.nodes:
            for node in bucket.nodes:
                found.append(at + torch.arange(len(self.buckets.invariants[node])))
                at += bucket.neurons
        return found

    def _edges(self, sets: Sequence[int], entries: Tensor, sources: Mapping[int, list[tuple[Tensor, int]]]) -> Group:
        width = max(sources[number][0][0].shape[1] for number in sets)
        table = torch.full((len(sets), entries[0].numel(), width), self.count)
        maps = torch.full((len(sets), width), self.maps)
        for i, number in enumerate(sets):
            of, first = sources[number][0]
            at = entries[i].flatten() - self.buckets.starts[number]
            real = at < len(of)
            table[i, :, : of.shape[1]] = torch.where(real[:, None], of[at.clamp(max=len(of) - 1)], self.count)
            maps[i, : of.shape[1]] = first + torch.arange(of.shape[1])
        return Group((len(sets), table.shape[1], width), table.flatten(), maps.flatten())

    def _ends(self, neurons: Mapping[str, Tensor]) -> list[Tensor]:
        at = []
        for bucket in self.buckets.edges:
            for position in range(len(bucket.grid.at)):
                for number, end, numbers in self.buckets.at(bucket, position):
                    of = neurons[self.buckets.layout.edges[number].ends[end].node]
                    at.append(torch.where(numbers < 0, -1, of[numbers.clamp(min=0)] * 3 + (end > 0)))
        return at

    def _start(self, space: WeightSpace) -> Tensor:
        layout, at = self.buckets.layout, torch.zeros(self.buckets.rows).long() - 1
        hidden = [name for name in layout.nodes if space.nodes[name].permutes]
        first = len(hidden)
        for name, plan in layout.nodes.items():
            streams = len(plan.charges)
            if name in hidden:
                at[self.buckets.row(name, streams - 1)] = hidden.index(name)
                continue
            size = space.nodes[name].size or 1
            for stream in range(streams):
                rows = self.buckets.row(name, stream)
                at[rows] = first + (torch.arange(len(rows)) % size) * streams + stream
            first += size * streams
        return torch.where(at < 0, first, at)


def entries_of(
    space: WeightSpace, in_channels: int, extra: Extra, channels: int, device: str, padding: int, most: int, *sizes: int
) -> Entries:
    """Where the numbers of networks lie; see `buckets_of` for the last five.

    Args:
        space: the networks' weight space.
        in_channels: channels of the networks.
        extra: further features of neurons, whose numbers follow those of the parameters.
        channels: of all streams.
        device: of the indices.
        padding: entries of padding for which two shapes share a tensor.
        most: edges of a network that a tensor of several sets may have.
        sizes: of the space's nodes.
    """
    with _disable_current_modes(), torch.inference_mode(False), torch.device("cpu"):
        entries = Entries(
            space, space.lately(buckets_of, channels, "cpu", padding, most, *sizes), in_channels, extra, padding
        )
        entries.buckets = space.lately(buckets_of, channels, device, padding, most, *sizes)
        moved(entries, torch.device(device))
    return entries
