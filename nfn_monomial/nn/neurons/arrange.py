"""Makes the arrangement of neurons and edges in `Buckets`: which sets share a tensor, and all indices.

Nodes and edge sets are first put in buckets, by their shapes. Rows are then numbered bucket by bucket, and every index
follows: the neurons of a node are side by side in each of its streams, so that the first row says where all are.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from nfn_monomial.nn.incidence import Grid
from nfn_monomial.space.weight_space import WeightSpace

from .buckets import Buckets, EdgeBucket, EndGroup, Nest, NodeBucket, Norms, Pick, Pool, Shape, Slices
from .layout import EdgeEnd, EdgeSet, Kinds, NeuronLayout, kinds_of, neuron_layout

Item = TypeVar("Item")

PADDING = 2**17
"""Bytes of padding for which two shapes share a tensor: as long as a CPU takes to start the operators of one more."""

LARGE = 2**24
"""Bytes of a tensor of edges on a CPU beyond which edge sets are stacked no more: it takes longer to get the memory."""

APART = 1024
"""The most neurons of a FIXED node that a pool keeps apart."""


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
    with unseen():
        buckets = _arranged(space, dict(zip(space.nodes, sizes, strict=True)), channels, padding, most)
        move(buckets, torch.device(device))
    return buckets


@contextlib.contextmanager
def unseen() -> Iterator[None]:
    """Lets ordinary tensors be made on the CPU, whatever modes, transforms or default device are active."""
    with _disable_current_modes(), torch.inference_mode(False), torch._C.DisableTorchFunction():
        yield


def _arranged(space: WeightSpace, sizes: dict[str, int], channels: int, padding: int, most: int) -> Buckets:
    layout = neuron_layout(space)
    kinds = kinds_of(layout, tied=False)
    shapes = [tuple([sizes[axis.node] for axis in axes]) for axes in layout.layout.types]
    starts = [0, *itertools.accumulate(map(math.prod, shapes))]
    entries = starts.pop()
    nodes = _node_buckets(layout, kinds, shapes, padding)
    edges = _edge_buckets(layout, kinds, shapes, channels, padding, most)
    ends = _end_groups(edges)

    # The first row of every stream, and of the sums of its messages; and of the means over edges into a node and out.
    first_row, rows = dict[int, int](), 0
    first_message, first_mean, sums = dict[int, int](), dict[tuple[str, bool], int](), 0
    for bucket in nodes:
        for stream, node in itertools.product(bucket.kind.order, bucket.nodes):
            first_row[layout.starts[node] + stream] = rows
            rows += bucket.neurons
        for stream, node in itertools.product(bucket.kind.order[: bucket.kind.summed], bucket.nodes):
            first_message[layout.starts[node] + stream] = sums
            sums += bucket.neurons
        for leaving, node in itertools.product((False, True), bucket.nodes):
            first_mean[node, leaving] = sums
            sums += bucket.neurons
    if layout.const:
        first_row[len(shapes) - 1] = rows
        rows += 1
    rows_of = {field: first + torch.arange(math.prod(shapes[field])) for field, first in first_row.items()}
    invariants = {node: rows_of[layout.stream(node)] for node in layout.nodes}
    of_buckets = [
        first_row[layout.stream(bucket.nodes[0])] + torch.arange(len(bucket.nodes) * bucket.neurons) for bucket in nodes
    ]

    at_ends = []
    for i, position in itertools.chain.from_iterable(group.ends for group in ends):
        of_sets = ends_at(layout, edges[i], position)
        firsts = [[first_row[field] for field in (end.against, end.along, end.inv)] for end in of_sets]
        at_ends.append(_from(firsts, edges[i].neurons[position], padding=rows))
    end_rows = joined([x.flatten() for x in at_ends])

    from_ends = list[Tensor]()
    for edge_bucket in edges:
        for position, numbers in enumerate(edge_bucket.neurons):
            of_sets = ends_at(layout, edge_bucket, position)
            leaves = [order[position] > 0 for order in edge_bucket.ends]
            messages = [[first_message[end.along]] for end in of_sets]
            means = [[first_mean[end.node, leaving]] for end, leaving in zip(of_sets, leaves, strict=True)]
            # Sums of padding are 0 and may go anywhere.
            from_ends += [_from(firsts, numbers, padding=0).flatten() for firsts in (messages, means)]

    # For every row its entry; padding gets the one past the last, a zero.
    packed = torch.full((rows,), entries)
    for field, at in rows_of.items():
        packed[at] = starts[field] + torch.arange(len(at))
    norms = _norms(layout, rows, rows_of, channels, padding=packed == entries)
    packed = torch.cat([*(bucket.entries.flatten() for bucket in edges), packed])
    unpacked = torch.zeros(entries + 1, dtype=torch.long)
    unpacked[packed] = torch.arange(len(packed))

    nests = _nests(layout, invariants)
    return Buckets(
        layout=layout,
        sizes=sizes,
        shapes=shapes,
        starts=starts,
        nodes=nodes,
        edges=edges,
        ends=ends,
        rows=rows,
        sums=sums,
        rows_of=rows_of,
        invariants=tuple(invariants.values()),
        invariant_rows=joined(of_buckets),
        end_rows=end_rows,
        end_rows_two=joined([x[:, ::2].flatten() for x in at_ends]),
        padded=bool((end_rows == rows).any()),
        sum_rows=joined(from_ends),
        packed=packed,
        unpacked=unpacked[:-1],
        slices=(_slices(layout, False, nodes, edges, ends, nests), _slices(layout, True, nodes, edges, ends, nests)),
        nests=nests,
        norms=norms,
        pool=_pool(space, layout, rows_of, invariants, channels),
    )


# ---- which sets share a tensor


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


def _node_buckets(layout: NeuronLayout, kinds: Kinds, shapes: Sequence[Shape], padding: int) -> tuple[NodeBucket, ...]:
    felt, buckets = layout.layout.felt, []
    for number, (kind, names) in enumerate(kinds.nodes.items()):
        counted = [((math.prod(shapes[layout.stream(node)]),), node) for node in names]
        for (neurons,), nodes in merged(counted, padding // len(kind.order)):
            of_streams = [[felt[layout.starts[node] + stream] for node in nodes] for stream in kind.order[:-1]]
            flips = _one_answer([[symmetry.flips for symmetry in stream] for stream in of_streams], len(nodes))
            scales = _one_answer([[symmetry.scales for symmetry in stream] for stream in of_streams], len(nodes))
            transports = torch.tensor(kind.transports).T if kind.transports else None
            buckets.append(NodeBucket(number, kind, tuple(nodes), neurons, flips, scales, transports))
    return tuple(buckets)


def _one_answer(table: Sequence[Sequence[bool]], nodes: int) -> Tensor | bool:
    """A table for streams of nodes as a mask; or the one answer if all agree."""
    answers = set(itertools.chain.from_iterable(table))
    if len(answers) == 2:
        return torch.tensor(table).view(-1, nodes, 1, 1, 1)
    return True in answers


def _edge_buckets(
    layout: NeuronLayout, kinds: Kinds, shapes: Sequence[Shape], channels: int, padding: int, most: int
) -> tuple[EdgeBucket, ...]:
    total = sum(map(math.prod, shapes))
    entries, orders, neurons = list[Tensor](), list[Shape](), list[list[Tensor]]()
    by_pattern, start = dict[tuple[Shape, ...], list[tuple[Shape, int]]](), 0
    for number, edge in enumerate(layout.edges):
        groups, at = _grouped_axes(edge)
        table, order = _regrouped(_numbered(shapes[number]) + start, groups), tuple(range(len(at)))
        start += table.numel()
        if Grid(at, len(groups)).apart:
            # An edge treats all its ends alike: sorted by their sizes, more sets have one shape.
            order = tuple(sorted(order, key=lambda end: -table.shape[1 + end]))
            table = table.permute(0, *(1 + end for end in order))
        entries.append(table)
        orders.append(order)
        neurons.append([])
        for end in order:
            of_node = _numbered(shapes[edge.ends[end].inv])
            axes = [[edge.ends[end].at.index(axis) for axis in groups[group]] for group in at[end]]
            neurons[-1].append(_regrouped(of_node, axes))
        by_pattern.setdefault(at, []).append((tuple(table.shape), number))

    buckets = []
    for at, sets in by_pattern.items():
        kind = list(kinds.edges).index(len(at))
        for shape, numbers in merged(sets, padding if Grid(at, len(sets[0][0])).apart else 0):
            step = max(1, most // math.prod(shape))
            for of in (tuple(numbers[i : i + step]) for i in range(0, len(numbers), step)):
                stacked = torch.stack([_padded(entries[i], shape, total) for i in of])
                real = stacked < total
                mask = None if bool(real.all()) else real[..., None, None]
                grid = Grid(at, len(shape))
                if mask is not None:
                    grid.shares = _shares(grid, shape, [entries[i].shape for i in of])
                targets = [grid.count(entries[i].shape, orders[i].index(0)) * channels for i in of]
                roots = torch.tensor(targets, dtype=torch.float64).sqrt().view(-1, *[1] * (len(shape) + 2))
                at_ends = [
                    torch.stack([_padded(neurons[i][end], grid.neurons(shape, end), -1).flatten() for i in of])
                    for end in range(len(at))
                ]
                ends = tuple([orders[i] for i in of])
                buckets.append(EdgeBucket(kind, of, ends, shape, grid, roots, stacked, tuple(at_ends), mask))
    return tuple(sorted(buckets, key=lambda bucket: (bucket.kind, bucket.sets)))


def _grouped_axes(edge: EdgeSet) -> tuple[tuple[Shape, ...], tuple[Shape, ...]]:
    """The axes of edges in groups that belong to the same ends; and for each end the numbers of its groups.

    Where each axis belongs to one end or to all, there is one group of those that all share, and one of each end.
    """
    count = len(edge.ends)
    of_axis = [tuple([i for i, end in enumerate(edge.ends) if axis in end.at]) for axis in range(len(edge.axes))]
    owners = list(dict.fromkeys(of_axis))
    if all(len(of) in (1, count) for of in of_axis):
        owners = [tuple(range(count)), *((end,) for end in range(count))]
    groups = tuple([tuple([axis for axis, of in enumerate(of_axis) if of == owner]) for owner in owners])
    return groups, tuple([tuple([g for g, of in enumerate(owners) if end in of]) for end in range(count)])


def _shares(grid: Grid, shape: Shape, real: Sequence[Shape]) -> list[Tensor]:
    """Factors of means that are taken over padding as well, for each end ``(S, *ones)``."""
    shares = []
    for over, at in zip(grid.over, grid.at, strict=True):
        padded = math.prod(shape[dim - 1] for dim in over)
        factors = [padded / math.prod(of[dim - 1] for dim in over) for of in real]
        shares.append(torch.tensor(factors, dtype=torch.float64).view(-1, *[1] * (len(at) + 2)))
    return shares


def _end_groups(edges: Sequence[EdgeBucket]) -> tuple[EndGroup, ...]:
    alike: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for i, bucket in enumerate(edges):
        for position, neurons in enumerate(bucket.neurons):
            alike.setdefault((bucket.kind, neurons.shape[1]), []).append((i, position))
    sets = [sum(len(edges[i].sets) for i, _ in of) for of in alike.values()]
    return tuple([EndGroup(*key, n, tuple(of)) for (key, of), n in zip(alike.items(), sets, strict=True)])


# ---- indices


def ends_at(layout: NeuronLayout, bucket: EdgeBucket, position: int) -> list[EdgeEnd]:
    """For each set of a bucket its end at a position."""
    pairs = zip(bucket.sets, bucket.ends, strict=True)
    return [layout.edges[number].ends[order[position]] for number, order in pairs]


def _slices(
    layout: NeuronLayout,
    tied: bool,
    nodes: Sequence[NodeBucket],
    edges: Sequence[EdgeBucket],
    groups: Sequence[EndGroup],
    nests: Sequence[Nest],
) -> Slices:
    kinds = kinds_of(layout, tied)
    of_ends, of_edges, of_nodes, of_mixes = (list[Pick]() for _ in range(4))
    for number, (count, slice_of) in enumerate(kinds.edges.items()):
        slices, of_groups = 1 + max(slice_of.values()), list[list[int]]()
        for group in (group for group in groups if group.kind == number):
            of_groups.append([])
            for i, position in group.ends:
                pairs = zip(edges[i].sets, edges[i].ends, strict=True)
                of_groups[-1] += [slice_of[edge_set] * count + order[position] for edge_set, order in pairs]
        of_ends.append(_pick(of_groups, slices * count))
        sets = [bucket.sets for bucket in edges if bucket.kind == number]
        of_edges.append(_pick([[slice_of[i] for i in of] for of in sets], slices))
    for number, (kind, slice_of_node) in enumerate(kinds.nodes.items()):
        slices = 1 + max(slice_of_node.values())
        names = [bucket.nodes for bucket in nodes if bucket.number == number]
        each = [[slice_of_node[node] for node in of] for of in names]
        of_nodes.append(_pick(each, slices))
        mixes = [[i * kind.mixes + mix for mix in range(kind.mixes) for i in of] for of in each]
        of_mixes.append(_pick(mixes, slices * kind.mixes))
    of_nests = [torch.tensor([0 if tied else number for number in nest.numbers]) for nest in nests]
    return Slices(tuple(of_ends), tuple(of_edges), tuple(of_nodes), tuple(of_mixes), tuple(of_nests))


def _pick(slices: Sequence[Sequence[int]], count: int) -> Pick:
    """The slices for each bucket, of a parameter of so many."""
    order = list(itertools.chain.from_iterable(slices))
    return Pick(None if order == list(range(count)) else torch.tensor(order), list(map(len, slices)))


def _nests(layout: NeuronLayout, invariants: Mapping[str, Tensor]) -> tuple[Nest, ...]:
    alike: dict[tuple[int, int], list[int]] = {}
    for number, (child, parent) in enumerate(layout.nests):
        alike.setdefault((len(invariants[child]), len(invariants[parent])), []).append(number)
    nests = []
    for numbers in alike.values():
        children = torch.cat([invariants[layout.nests[number][0]] for number in numbers])
        parents = torch.cat([invariants[layout.nests[number][1]] for number in numbers])
        nests.append(Nest(tuple(numbers), children, parents))
    return tuple(nests)


def _norms(layout: NeuronLayout, rows: int, rows_of: Mapping[int, Tensor], channels: int, padding: Tensor) -> Norms:
    group, gain, opposite = torch.zeros(rows).long(), torch.zeros(rows).long(), torch.arange(rows)
    count = torch.ones(rows, dtype=torch.float64)
    scaled, alone = torch.zeros(2, rows, 1, dtype=torch.bool)
    groups, kinds = 0, layout.stream_kinds
    for node, plan in layout.nodes.items():
        for stream, charges in enumerate(plan.charges):
            field = layout.starts[node] + stream
            at = rows_of[field]
            gain[at] = kinds.index(charges)
            if stream == len(plan.charges) - 1:
                group[at] = groups + torch.arange(len(at))
                groups += len(at)
                continue
            group[at] = groups
            count[at] = float(len(at))
            groups += 1
            if layout.layout.felt[field].scales:
                other = plan.opposite(stream)
                scaled[at], alone[at] = True, other is None
                opposite[at] = at if other is None else rows_of[layout.starts[node] + other]
    # Padding is 0, except for invariants that nobody reads.
    group[padding] = groups
    if layout.const:
        group[-1], gain[-1] = groups + 1, len(kinds)
    roots = (count * channels).sqrt().unsqueeze(1)
    return Norms(group, groups + 2, roots, gain, opposite, scaled if bool(scaled.any()) else None, alone)


def _pool(
    space: WeightSpace,
    layout: NeuronLayout,
    rows_of: Mapping[int, Tensor],
    invariants: Mapping[str, Tensor],
    channels: int,
) -> Pool:
    apart, kinds = kept_apart(space), layout.invariant_kinds
    pooled = [*invariants.values(), *[rows_of[len(layout.layout.types) - 1]] * layout.const]
    # The output's rows, among the means of all nodes, their deviations and all invariants.
    pick, first = list[Tensor](), 2 * len(pooled)
    for i, (name, of) in enumerate(itertools.zip_longest(invariants, pooled)):
        every, moments = first + torch.arange(len(of)), torch.tensor([i, len(pooled) + i])
        pick.append(every if name is None or name in apart else moments)
        first += len(of)
    counts = [len(of) for of in pooled]
    node = torch.arange(len(pooled)).repeat_interleave(torch.tensor(counts))
    gains = [*(kinds.index(plan.charges[-1]) for plan in layout.nodes.values()), len(kinds)]
    share = torch.tensor([1 / max(1, count) for count in counts], dtype=torch.float64).view(-1, 1, 1)
    root = torch.tensor(channels, dtype=torch.float64).sqrt()
    return Pool(joined(pooled), node, torch.tensor(gains)[node], share, joined(pick), root)


def kept_apart(space: WeightSpace) -> dict[str, int]:
    """The FIXED nodes whose neurons a pool keeps apart, and how many neurons they have."""
    sizes = {name: node.size for name, node in space.nodes.items() if not node.permutes}
    return {name: size for name, size in sizes.items() if size is not None and size <= APART}


# ---- tensors of numbers


def joined(indices: Sequence[Tensor]) -> Tensor:
    """Indices one after the other, of which there may be none."""
    return torch.cat([*indices, torch.zeros(0).long()])


def _numbered(shape: Sequence[int]) -> Tensor:
    return torch.arange(math.prod(shape)).view(*shape)


def _regrouped(x: Tensor, groups: Sequence[Sequence[int]]) -> Tensor:
    """The axes of each group as one."""
    order = [axis for group in groups for axis in group]
    return x.permute(order).reshape([math.prod(x.shape[axis] for axis in group) for group in groups])


def _padded(x: Tensor, shape: Sequence[int], by: int) -> Tensor:
    if tuple(x.shape) == tuple(shape):
        return x
    padded = x.new_full(tuple(shape), by)
    padded[tuple(map(slice, x.shape))] = x
    return padded


def _from(firsts: Sequence[Sequence[int]], neurons: Tensor, padding: int) -> Tensor:
    """Rows ``(S, K, n)`` of neurons ``(S, n)``, counted from the first rows ``(S, K)``; negative ones are padding."""
    numbers = neurons.unsqueeze(1)
    return torch.where(numbers < 0, padding, torch.tensor(firsts).unsqueeze(2) + numbers)


def move(arrangement: Any, device: torch.device) -> None:
    """Moves all tensors of an object with slots to a device; they are made on the CPU."""
    if device.type != "cpu":
        for name in arrangement.__slots__:
            setattr(arrangement, name, _moved(getattr(arrangement, name), device))


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
