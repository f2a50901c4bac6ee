"""Features of networks as entries of neuron features: which number of a network lies where."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

import torch
from torch import Tensor

from nfn_monomial.space.features import Features
from nfn_monomial.space.weight_space import WeightSpace

from .arrange import buckets_of, ends_at, joined, merged, move, unseen
from .buckets import Buckets

Extra = tuple[tuple[int, int], ...]
"""Further features of neurons: field, and how many there are for each of its entries."""

Source = tuple[Tensor, int]
"""Numbers of a network that a field is made of, ``(entries, K)``, and the first of the ``K`` rows of their map."""


class Entries:
    """Places of a network's numbers, those of one field of its `Features` after another.

    Fields of nearly one shape are a group, multiplied by matrices at once: ``Q`` fields of ``N`` entries, each made of
    ``K`` numbers.

    Attributes:
        buckets: the arrangement of neurons and edges.
        fields: the shapes of the fields of a network's `Features`.
        shapes: ``(Q, N, K)`` of each group: of each bucket of edges, then of streams.
        numbers: of all groups, ``Q N K`` each; the one past the last stands for padding.
        map_rows: likewise rows of the parameter that maps them, ``Q K`` each.
        rows: those of neuron features that the groups of streams lie in.
        padded: whether there is padding among them.
        back: for each number its place in all groups.
        log_at: where the sums of squares at the ends of edges go, then those of the parameters in streams: three for
            each neuron, of incoming and outgoing edges and of its own parameters.
        logs: how many there are.
        start: for each row the row of what it starts with: of hidden nodes' invariants, of FIXED neurons' streams, 0.
        nodes: numbers of the nodes, bucket by bucket.
    """

    __slots__ = (
        "back", "buckets", "fields", "log_at", "logs", "map_rows", "nodes", "numbers", "padded", "rows", "shapes",
        "start",
    )  # fmt: skip

    def __init__(self, space: WeightSpace, buckets: Buckets, channels: int, extra: Extra, padding: int) -> None:
        self.buckets, layout = buckets, buckets.layout
        axes_of_fields = zip(space.layout.types, space.layout.multiplicities, strict=True)
        self.fields = [
            (*(buckets.sizes[axis.node] for axis in axes), multiplicity * channels)
            for axes, multiplicity in axes_of_fields
        ]
        sources, parameter_maps, count, maps = self._sources(space, extra)
        groups: list[tuple[int, int, list[Source]]] = []
        for bucket in buckets.edges:
            tables = list[Source]()
            for number, entries in zip(bucket.sets, bucket.entries.flatten(1), strict=True):
                table, first = sources[number][0]
                with_padding = torch.cat([table, torch.full((1, table.shape[1]), count)])
                at = (entries - buckets.starts[number]).clamp(max=len(table))
                tables.append((with_padding[at], first))
            width = max(table.shape[1] for table, _ in tables)
            groups.append((bucket.entries[0].numel(), width, tables))

        of_streams = []
        for field, of_field in sources.items():
            if field >= len(layout.edges):
                of_streams += [(tuple(table.shape), (field, (table, first))) for table, first in of_field]
        rows, squares = list[Tensor](), list[Tensor]()
        names = [node for bucket in buckets.nodes for node in bucket.nodes]
        counts = [bucket.neurons for bucket in buckets.nodes for _ in bucket.nodes]
        first_neuron = dict(zip(names, [0, *itertools.accumulate(counts)], strict=False))
        all_fields = range(len(layout.layout.types))
        node_of = {field: node for node in layout.nodes for field in all_fields[layout.fields(node)]}
        for (length, width), members in merged(of_streams, padding):
            groups.append((length, width, [source for _, source in members]))
            for field, (_, first) in members:
                at = buckets.rows_of[field]
                rows += [at, torch.zeros(length - len(at)).long()]
                # Norms are of the network's own parameters, on neurons.
                counted = field in node_of and first < parameter_maps
                neurons = first_neuron[node_of[field]] + torch.arange(len(at)) if counted else at[:0]
                squares += [neurons * 3 + 2, torch.full((length - len(neurons),), -1)]

        numbers, map_rows = list[Tensor](), list[Tensor]()
        for length, width, tables in groups:
            for table, first in tables:
                padded = torch.full((length, width), count)
                padded[: len(table), : table.shape[1]] = table
                numbers.append(padded.flatten())
                map_rows += [first + torch.arange(table.shape[1]), torch.full((width - table.shape[1],), maps)]
        self.shapes = [(len(tables), length, width) for length, width, tables in groups]
        self.rows, self.numbers, self.map_rows = joined(rows), joined(numbers), joined(map_rows)
        self.padded = bool((self.numbers == count).any())
        back = torch.zeros(count + 1).long()
        back[self.numbers] = torch.arange(len(self.numbers))
        self.back = back[:-1]

        self.logs = 3 * sum(counts) + 1
        self.log_at = joined([*self._squares_at_ends(first_neuron), *squares])
        self.log_at[self.log_at < 0] = self.logs - 1
        self.start = self._start(space)
        numbered = {node: number for number, node in enumerate(layout.nodes)}
        self.nodes = torch.tensor([numbered[node] for node in names])

    def matrices(self, maps: Tensor) -> list[Tensor]:
        """The maps of each group, ``(Q, K, C)``, of the parameter ``(maps, C)``."""
        if self.padded:
            maps = torch.cat([maps, maps.new_zeros(1, maps.shape[1])])
        parts = torch.split(maps.index_select(0, self.map_rows), [count * width for count, _, width in self.shapes])
        return [x.view(count, width, -1) for (count, _, width), x in zip(self.shapes, parts, strict=True)]

    def _sources(self, space: WeightSpace, extra: Extra) -> tuple[dict[int, list[Source]], int, int, int]:
        """For each field the parameters that lie in it, and its extra features; how many rows the map of parameters
        has; how many numbers there are; how many rows the whole map has."""
        layout, maps, sources = self.buckets.layout, 0, dict[int, list[Source]]()
        lengths = [math.prod(shape) for shape in self.fields]
        count = sum(lengths)
        parts = zip(torch.split(torch.arange(count), lengths), self.fields, strict=True)
        numbers = Features(space.layout, tuple([part.view(1, *shape) for part, shape in parts]))
        pieces = dict(zip(space.pieces, space.folding.unfold(numbers), strict=True))
        for place in layout.places:
            rank = len(layout.layout.types[place.field])
            named = zip(place.pieces, place.orders, strict=True)
            table = torch.cat([pieces[name].permute(order).flatten(1 + rank) for name, order in named], -1)
            sources[place.field] = [(table.reshape(-1, table.shape[-1]), maps)]
            maps += table.shape[-1]
        parameter_maps = maps
        for field, width in extra:
            entries = math.prod(self.buckets.shapes[field])
            table = count + torch.arange(entries * width).view(entries, width)
            sources.setdefault(field, []).append((table, maps))
            maps, count = maps + width, count + entries * width
        return sources, parameter_maps, count, maps

    def _squares_at_ends(self, first_neuron: Mapping[str, int]) -> list[Tensor]:
        at = []
        for bucket in self.buckets.edges:
            for position, neurons in enumerate(bucket.neurons):
                ends = ends_at(self.buckets.layout, bucket, position)
                firsts = torch.tensor([first_neuron[end.node] for end in ends]).unsqueeze(1)
                leaving = torch.tensor([order[position] > 0 for order in bucket.ends]).unsqueeze(1)
                at.append(torch.where(neurons < 0, -1, (firsts + neurons) * 3 + leaving).flatten())
        return at

    def _start(self, space: WeightSpace) -> Tensor:
        layout, at = self.buckets.layout, torch.zeros(self.buckets.rows).long() - 1
        hidden = [name for name in layout.nodes if space.nodes[name].permutes]
        first = len(hidden)
        for name, plan in layout.nodes.items():
            streams = len(plan.charges)
            if name in hidden:
                at[self.buckets.rows_of[layout.stream(name)]] = hidden.index(name)
                continue
            size = space.nodes[name].size or 1
            for stream in range(streams):
                rows = self.buckets.rows_of[layout.starts[name] + stream]
                at[rows] = first + (torch.arange(len(rows)) % size) * streams + stream
            first += size * streams
        return torch.where(at < 0, first, at)


def entries_of(
    space: WeightSpace, in_channels: int, extra: Extra, channels: int, device: str, padding: int, most: int, *sizes: int
) -> Entries:
    """Returns the places of networks' numbers; see `buckets_of` for the last five.

    Args:
        space: the networks' weight space.
        in_channels: channels of the networks.
        extra: further features of neurons, whose numbers follow those of the networks.
        channels: of all streams.
        device: of the indices.
        padding: entries of padding for which two shapes share a tensor.
        most: edges of a network that a tensor of several sets may have.
        sizes: of the space's nodes.
    """
    with unseen():
        buckets = space.lately(buckets_of, channels, "cpu", padding, most, *sizes)
        entries = Entries(space, buckets, in_channels, extra, padding)
        entries.buckets = space.lately(buckets_of, channels, device, padding, most, *sizes)
        move(entries, torch.device(device))
    return entries
