"""Graphs of networks that are no chains of layers: every parameter is edges, every edge knows its charges.

A graph of any weight space without parameters of three or more ends: weights are edges between neurons, biases, gains
and depthwise kernels edges from a neuron to itself, parameters without an axis such edges of as many more nodes as they
have entries. The group acts on an edge by what its charges make of the scales of its two ends.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from nfn_monomial import Axis, Features, GroupElement, WeightSpace
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.nn.neurons import NeuronLayout, neuron_layout
from nfn_monomial.space import packing
from nfn_monomial.space.axes import Charge, powers
from nfn_monomial.space.links import Link

from .layout import crop, pad
from .places import GraphView

Flat = tuple[int, ...]
"""The charges of one end of an edge: for each gauge of what a neuron is nested in, the outermost first, and of it."""


class Widths(NamedTuple):
    """What graphs of one batch are padded to: numbers of gauges of a node, and of pairs of its streams."""

    gauges: int
    pairs: int


class Factor(NamedTuple):
    """One parameter, or piece of one, as edges.

    Attributes:
        piece: its name.
        sets: numbers of the node sets of its target and its source; the same for edges from neurons to themselves.
        at: for each of them, which of the piece's axes index its neurons.
        charges: at each of them.
        sizes: node of each axis, or the number of entries of a parameter without one.
        order: see `Place`.
        link: its kernel.
    """

    piece: str
    sets: tuple[int, int]
    at: tuple[tuple[int, ...], tuple[int, ...]]
    charges: tuple[Flat, Flat]
    sizes: tuple[str | int, ...]
    order: tuple[int, ...]
    link: Link


class FactorGraph(NamedTuple):
    """A weight space as node sets and factors.

    Attributes:
        nodes: the node sets: names of nodes, in the space's order, in front of the last those of parameters without an
            axis.
        factors: in the order of their edges.
        pairs: for each node set, the charges of which it has a pair of streams.
    """

    nodes: tuple[str, ...]
    factors: tuple[Factor, ...]
    pairs: tuple[tuple[Flat, ...], ...]

    def stream(self, node_set: int, charges: Flat) -> int:
        """The number of the stream that transforms as edges do at an end; -1 for ``inv``, the last."""
        if not any(charges):
            return -1
        positive = _positive(charges)
        return 2 * self.pairs[node_set].index(positive) + (charges != positive)


@functools.lru_cache(maxsize=256)
def factors_of(space: WeightSpace) -> FactorGraph:
    """Node sets and factors of a space.

    Raises:
        ValueError: naming the parameter, if one has three ends or more.
    """
    neurons = neuron_layout(space)
    loose = [name for name in space.pieces if not any(isinstance(a, Axis) for a in space.axes[name])]
    names = list(neurons.nodes)
    sets = (*names[:-1], *loose, *names[-1:])
    links = {link.parameter: link for link in space.links}
    factors: list[Factor] = []
    met: dict[str, set[Flat]] = {name: set() for name in neurons.nodes}
    for field in range(len(neurons.edges)):
        for node, _, of in _ends_of(neurons, field):
            met[node] |= {_flat(of), tuple(-q for q in _flat(of))}
    for place in neurons.places:
        axes, ends = neurons.layout.types[place.field], _ends_of(neurons, place.field)
        for name, order, kernel in zip(place.pieces, place.orders, place.kernels, strict=True):
            if len(ends) > 2:
                raise InvalidValueError(
                    f"{space}: {name} has {len(ends)} ends ({', '.join(node for node, _, _ in ends)}), and edges of "
                    "graphs have two: use the core's MessagePassing, which takes edges of any number of ends"
                )
            if not ends:
                number = sets.index(name)
                whole = Link(name, (), (), False)
                at = ((0,), (0,))
                factors.append(Factor(name, (number, number), at, ((), ()), (math.prod(kernel),), order, whole))
                continue
            first, last = ends[0], ends[-1]
            charges = (_flat(first[2]), _flat(last[2])) if len(ends) > 1 else _through(_flat(first[2]), met[first[0]])
            numbers = (sets.index(first[0]), sets.index(last[0]))
            link = links[name]._replace(kernel=kernel)
            factors.append(
                Factor(name, numbers, (first[1], last[1]), charges, tuple(a.node for a in axes), order, link)
            )
    found: list[dict[Flat, None]] = [{} for _ in sets]
    for factor in factors:
        for number, of in zip(factor.sets, factor.charges, strict=True):
            if any(of):
                found[number][_positive(of)] = None
    return FactorGraph(sets, tuple(factors), tuple(tuple(sorted(pairs)) for pairs in found))


def _ends_of(neurons: NeuronLayout, field: int) -> list[tuple[str, tuple[int, ...], tuple[Charge, ...]]]:
    """Node, positions of its axes and charges of each end of what lies in a field."""
    if field < len(neurons.edges):
        ends = neurons.edges[field].ends
        return [(end.node, end.at, neurons.nodes[end.node].charges[end.along]) for end in ends]
    axes = neurons.layout.types[field]
    return [(axes[-1].node, tuple(range(len(axes))), tuple(axis.charge for axis in axes))] if axes else []


def _through(own: Flat, met: set[Flat]) -> tuple[Flat, Flat]:
    """How the charge of a parameter of one end is divided between the two ends of its edges, which are one neuron.

    A gain leads from a stream that other edges meet to another one; what leads from none enters the stream of its
    charge.
    """
    pairs = [(to, q) for q in met if any(q) and (to := tuple(map(sum, zip(own, q, strict=True)))) in met and any(to)]
    if not any(own) or not pairs:
        return own, (0,) * len(own)
    to, q = max(pairs, key=lambda pair: pair[1])
    return to, tuple(-p for p in q)


def _flat(charges: Sequence[Charge]) -> Flat:
    return tuple(p for q in charges for p in powers(q))


def _positive(charges: Flat) -> Flat:
    """These charges or their opposites: those of which the first that is not 0 is positive."""
    return charges if next(q for q in charges if q) > 0 else tuple(-q for q in charges)


def widths_of(*spaces: WeightSpace) -> Widths:
    """The smallest numbers that all these spaces' graphs fit into."""
    gauges = [len(_gauges(space, name)) for space in spaces for name in factors_of(space).nodes]
    return Widths(max(gauges), max(1, *(len(of) for space in spaces for of in factors_of(space).pairs)))


def _gauges(space: WeightSpace, name: str) -> list[int]:
    """Values of the symmetries of a node's gauges behind those of what it is nested in; 0 of what has none."""
    if name not in space.nodes:
        return [0]
    return [gauge.value for above in space.ancestry(name) for gauge in space.nodes[above].gauges]


def skeleton(
    space: WeightSpace, sizes: Mapping[str, int], widths: Widths, device: torch.device
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """One network without its values: attributes of its nodes, and of its edges, ``edge_index`` as ``(E, 2)``."""
    graph = factors_of(space)
    counts = _counts(space, graph, sizes)
    starts = [0, *itertools.accumulate(counts)]
    layer = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    parent, inherited, gauges, felt = [], [], [], []
    for i, name in enumerate(graph.nodes):
        own, number = torch.arange(counts[i]), _gauges(space, name)
        above = space.nesting.get(name)
        inside = starts[graph.nodes.index(above)] + own // sizes[name] if above else starts[i] + own
        parent.append(inside)
        inherited.append(len(number) - len(space.nodes[name].gauges) if above else 0)
        gauges.append(number + [0] * (widths.gauges - len(number)))
        of_pairs = [_felt(number, charges) for charges in graph.pairs[i]]
        felt.append(of_pairs + [min(max(number), 1)] * (widths.pairs - len(of_pairs)))
    nodes = {
        "symmetry": torch.tensor([_felt(row, [1] * len(row)) for row in gauges])[layer],
        "layer": layer,
        "neuron": torch.cat([torch.arange(n) for n in counts]),
        "depth": torch.full_like(layer, len(counts) - 1),
        "has_bias": torch.zeros_like(layer, dtype=torch.bool),
        "parent_index": torch.cat(parent),
        "inherited": torch.tensor(inherited)[layer],
        "gauges": torch.tensor(gauges)[layer],
        "stream_symmetry": torch.tensor(felt)[layer],
    }
    index, links, charges, streams = list[Tensor](), list[Tensor](), list[Tensor](), list[Tensor]()
    for i, factor in enumerate(graph.factors):
        extent, ends = _extent(factor, sizes), []
        for of, at in zip(factor.sets, factor.at, strict=True):
            lengths = [length if d in at else 1 for d, length in enumerate(extent)]
            ends.append(starts[of] + torch.arange(math.prod(lengths)).view(lengths).expand(extent).flatten())
        index.append(torch.stack(ends[::-1], -1))
        links.append(torch.full((len(ends[0]),), i))
        padded = torch.tensor([[*q, *[0] * (widths.gauges - len(q))] for q in factor.charges])
        charges.append(padded.expand(len(ends[0]), -1, -1))
        at_ends = [graph.stream(*end) % (2 * widths.pairs + 1) for end in zip(factor.sets, factor.charges, strict=True)]
        streams.append(torch.tensor(at_ends).expand(len(ends[0]), -1))
    found = {"edge_index": index, "edge_layer": links, "edge_charge": charges, "edge_streams": streams}
    edges = {name: torch.cat(parts) for name, parts in found.items()}
    return {n: t.to(device) for n, t in nodes.items()}, {n: t.to(device) for n, t in edges.items()}


def _felt(gauges: Sequence[int], charges: Sequence[int]) -> int:
    """What charges feel of gauges: the bits of each that acts."""
    bits = min(max(gauges, default=0), 1)
    for gauge, charge in zip(gauges, charges, strict=True):
        bits |= gauge & ((4 if charge else 0) | (2 if charge % 2 else 0))
    return bits


def _counts(space: WeightSpace, graph: FactorGraph, sizes: Mapping[str, int]) -> list[int]:
    entries = {factor.piece: factor.sizes[0] for factor in graph.factors}
    return [space.count(n, sizes) if n in space.nodes else int(entries[n]) for n in graph.nodes]


def _extent(factor: Factor, sizes: Mapping[str, int]) -> list[int]:
    return [size if isinstance(size, int) else sizes[size] for size in factor.sizes]


def edge_values(
    space: WeightSpace, tensors: Mapping[str, Tensor], sizes: Mapping[str, int], kernel: tuple[int, ...]
) -> Tensor:
    """The parameters as edges of all networks ``(B, E, K C)``, in the order of `skeleton`."""
    taken = packing.pieces(space, tensors, sizes)
    parts = []
    for factor in factors_of(space).factors:
        values = taken[factor.piece].permute(factor.order)
        shape = (len(values), math.prod(_extent(factor, sizes)), 1, *factor.link.kernel, values.shape[-1])
        parts.append(pad(values.reshape(shape), factor.link, kernel))
    return torch.cat(parts, 1)


def read_factors(view: GraphView, space: WeightSpace, kernel: tuple[int, ...]) -> dict[str, Tensor]:
    """Graphs of one architecture -> parameter of the space -> ``(B, C, *shape)``; see `from_graph`."""
    graph, sizes, slot = arranged(view, space)
    channels = view.x.shape[1]
    _, expected = skeleton(space, sizes, widths_of(space), slot.device)
    n = len(slot) // view.networks

    def keys(links: Tensor, ends: Tensor) -> Tensor:
        return (links * n + ends[:, 1]) * n + ends[:, 0]

    wanted = keys(expected["edge_layer"], expected["edge_index"])
    ends = slot[view.edge_index].T
    found = keys(view.edge_layer, ends % n) + ends[:, 0] // n * (len(graph.factors) * n * n)
    shift = torch.arange(view.networks, device=slot.device)[:, None] * (len(graph.factors) * n * n)
    (have, at), (want, into) = found.sort(), (wanted + shift).flatten().sort()
    if not torch.equal(have, want):
        raise InvalidValueError(
            f"the edges are not those of networks of {space}: {len(have)} found, {len(want)} expected, one for each "
            "entry of every parameter, pruned ones as zeros. Were edges dropped, added or reversed by a transform?"
        )
    values = torch.empty_like(view.edge_attr[at])
    values = values.index_copy(0, into, view.edge_attr[at]).view(view.networks, len(wanted), -1)
    pieces = {}
    lengths = [math.prod(_extent(factor, sizes)) for factor in graph.factors]
    for factor, part in zip(graph.factors, torch.split(values, lengths, 1), strict=True):
        x = crop(part, factor.link, kernel, channels)
        inner = space.axes[factor.piece] if not factor.link.ends else (*_extent(factor, sizes), *factor.link.kernel)
        x = x.reshape(view.networks, *inner, channels)  # type: ignore[arg-type]  # of ints alone, or known sizes
        pieces[factor.piece] = x.permute([factor.order.index(i) for i in range(x.ndim)])
    return packing.whole(space, pieces, sizes)


def arranged(view: GraphView, space: WeightSpace) -> tuple[FactorGraph, dict[str, int], Tensor]:
    """Checked: the space's node sets, the sizes of its nodes, and the place of each graph node ``(N,)`` among all."""
    graph = factors_of(space)
    widths = view.widths()
    if len(set(widths)) > 1:
        raise InvalidValueError("graphs of different architectures: from_graphs takes one space a graph")
    counts, sizes = widths[0], dict[str, int]()
    for name, count in sorted(zip(graph.nodes, counts, strict=False), key=lambda pair: _depth(space, pair[0])):
        above = space.nesting.get(name)
        sizes[name] = count // (space.count(above, sizes) if above else 1)
    fits = len(counts) == len(graph.nodes) and list(counts) == _counts(space, graph, sizes)
    fixed = {n: node.size for n, node in space.nodes.items() if n in sizes and not node.permutes}
    if not fits or any(sizes[name] != size for name, size in fixed.items()):
        raise InvalidValueError(
            f"a graph of another weight space: its node sets have {counts} neurons; {space} is expected"
        )
    width = torch.tensor(counts, device=view.layer.device)
    slot = view.ids * sum(counts) + (width.cumsum(0) - width)[view.layer] + view.neuron
    if not torch.equal(slot.sort().values, torch.arange(len(slot), device=slot.device)):
        raise InvalidValueError(
            "neuron numbers of a node set are not 0 .. n - 1, once each: were nodes dropped or added?"
        )
    return graph, {name: size for name, size in sizes.items() if name in space.nodes}, slot


def node_element(element: GroupElement, view: GraphView, gauges: int) -> tuple[Tensor, Tensor]:
    """A weight space's element on nodes: scales ``(N, gauges)``, and the node that each one moves to ``(N,)``."""
    space = element.space
    assert isinstance(space, WeightSpace), "of which graphs are made"
    graph, sizes, slot = arranged(view, space)
    scales, targets, start = [], [], 0
    for name, count in zip(graph.nodes, _counts(space, graph, sizes), strict=True):
        above = space.ancestry(name) if name in space.nodes else ()
        shape = (view.networks, *(sizes[n] for n in above), 1) if above else (view.networks, count, 1)

        def moved(x: Tensor, field: tuple[Axis, ...], shape: tuple[int, ...] = shape) -> Tensor:
            x = x.expand(shape[0], *x.shape[1:]).reshape(shape)
            if field:
                x = element.act(Features(space.layout_of([field], fold=False), (x,))).tensors[0]
            return x.flatten(1)

        zero = [(0,) * len(space.nodes[n].gauges) for n in above]
        number = torch.arange(count, dtype=torch.float64, device=slot.device).view(1, -1)
        came = moved(number, tuple(map(_axis, above, zero))).round().long()
        columns = []
        for i, length in enumerate(map(len, zero)):
            for gauge in range(length):
                charges = [tuple(int((j, g) == (i, gauge)) for g in range(len(q))) for j, q in enumerate(zero)]
                columns.append(moved(torch.ones_like(number), tuple(map(_axis, above, charges))))
        columns += [torch.ones_like(number).expand(view.networks, -1)] * (gauges - len(columns))
        scales.append(torch.stack(columns, -1))
        targets.append(start + came.argsort(-1))
        start += count
    first = start * torch.arange(view.networks, device=slot.device)[:, None]
    node = slot.argsort()
    to = (first + torch.cat(targets, 1)).flatten()
    return torch.cat(scales, 1).flatten(0, 1)[slot], node[to[slot]]


def _depth(space: WeightSpace, name: str) -> int:
    return len(space.ancestry(name)) if name in space.nodes else 0


def _axis(node: str, charges: tuple[int, ...]) -> Axis:
    return Axis(node, charges if len(charges) > 1 else charges[0])
