"""Weight spaces as graphs: their node sets, the biases that nodes hold, and all other parameters as edges.

A weight is an edge for each pair of neurons that it connects, a gain or a depthwise kernel an edge from each neuron to
itself; a parameter without an axis becomes edges from further nodes to themselves, one for each of its entries. The
group acts on an edge by the edge's charges and the scales of its two ends.

A node of size 1 is a factor on whole tensors, such as the sign of all of a transformer's stream. Where it is the third
end of a parameter, it becomes one more gauge of the neurons at another end. The group in which each of these has a
factor of its own contains the group of the space: layers that respect the one respect the other.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from nfn_monomial import Axis, WeightSpace
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.space.links import Link
from nfn_monomial.space.places import Place

Flat = tuple[int, ...]
"""The charges of one end of an edge: for each gauge of the nodes that a neuron is nested in, then of its own node."""

FLIPS, SCALES = 2, 4
"""Bits of a `Symmetry`'s value: whether signs may flip, and whether there are positive scales."""


class NeuronGauge(NamedTuple):
    """A gauge of a node set's neurons: of their node, of one that they are nested in, or of a node of size 1."""

    carrier: str  # their own node, or one that they are nested in
    node: str  # the same, or a node of size 1 whose gauge it carries
    number: int


class EdgeFactor(NamedTuple):
    """A parameter, or a piece of one, as edges: in the order of their targets, those of one target by their sources.

    Attributes:
        piece: its name.
        sets: numbers of the node sets of its targets and its sources; one and the same for edges to themselves.
        charges: at its targets and at its sources.
        rows: nodes along which only targets vary; edges do not cross over along nodes that both ends are nested in.
        columns: nodes along which only sources vary.
        order: permutation of the piece's axes to those of the targets, of the sources, and the kernel.
        kernel: see `Link`, as for ``folded``.
    """

    piece: str
    sets: tuple[int, int]
    charges: tuple[Flat, Flat]
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    order: tuple[int, ...]
    kernel: tuple[int, ...]
    folded: bool


class FactorGraph(NamedTuple):
    """A weight space as node sets, biases and factors.

    Attributes:
        sets: names of nodes in the space's order; before the last, those of parameters without an axis.
        biases: for each node set the parameter in ``x``: one of charge +1 and with one number for each neuron.
        factors: all other parameters, in the order of their edges.
        felt: for each node set, the part of each gauge's symmetry that acts, first of the nodes that it is nested in.
        inherited: for each node set, the number of gauges of nodes that it is nested in.
        pairs: for each node set, the charges of which it has a pair of streams.
    """

    sets: tuple[str, ...]
    biases: tuple[str | None, ...]
    factors: tuple[EdgeFactor, ...]
    felt: tuple[tuple[int, ...], ...]
    inherited: tuple[int, ...]
    pairs: tuple[tuple[Flat, ...], ...]

    @property
    def is_chain(self) -> bool:
        """True if each node set is joined to the next alone, with charge +1 at targets and -1 at sources."""
        steps = [(i + 1, i) for i in range(len(self.sets) - 1)]
        return [f.sets for f in self.factors] == steps and all(
            _acts_as(self.felt[number], charges, usual)
            for factor in self.factors
            for number, charges, usual in zip(factor.sets, factor.charges, (1, -1), strict=True)
        )

    def stream(self, number: int, charges: Flat) -> int:
        """The stream of a node set that transforms as edges of these charges do; -1 for ``inv``, the last."""
        if not any(charges):
            return -1
        positive = max(charges, _negative(charges))
        return 2 * self.pairs[number].index(positive) + (charges != positive)

    def counts(self, space: WeightSpace, sizes: Mapping[str, int]) -> list[int]:
        """The number of nodes in each node set."""
        return [
            space.count(name, sizes) if name in space.nodes else math.prod(space.shape_of(name, sizes))
            for name in self.sets
        ]

    def edges(self, space: WeightSpace, sizes: Mapping[str, int]) -> list[int]:
        """The number of edges of each factor."""
        counts = self.counts(space, sizes)
        return [counts[f.sets[0]] * math.prod([sizes[n] for n in f.columns]) for f in self.factors]


@functools.lru_cache(maxsize=256)
def factors_of(space: WeightSpace) -> FactorGraph:
    """Node sets, biases and factors of a space.

    Raises:
        ValueError: naming the parameter, if one has three ends or more.
    """
    charged = {link.parameter: _charged_ends(space, link) for link in space.links}
    met = {above for of in charged.values() for end, _ in of for above in space.ancestry(end.node)}
    names = [node for node in space.nodes if node in met]
    loose = [name for name in space.pieces if not any(isinstance(a, Axis) for a in space.axes[name])]
    sets = (*names[:-1], *loose, *names[-1:])
    gauges, felt = _gauges(space, names, [charges for of in charged.values() for _, charges in of])
    ends_of = {
        name: [(end, tuple(charges[gauge] for gauge in gauges[end.node])) for end, charges in of]
        for name, of in charged.items()
    }
    crossing: dict[str, set[Flat]] = {name: set() for name in names}
    weights = [of for of in ends_of.values() if len(of) > 1]
    for end, flat in itertools.chain(*weights):
        crossing[end.node] |= {flat, _negative(flat)}
    biases: dict[str, str] = {}
    factors = []
    for link in space.links:
        ends = ends_of[link.parameter]
        if len(ends) > 2:
            raise InvalidValueError(
                f"{space}: {link.parameter} has {len(ends)} ends ({', '.join(end.node for end, _ in ends)}), and edges "
                "of graphs have two: use the core's MessagePassing, which takes edges of any number of ends"
            )
        (target, first), (source, last) = ends[0], ends[-1]
        node = target.node
        if len(ends) == 1:
            first, last = _through(first, crossing[node])
            usual = _acts_as(felt[node], first, 1) and not any(last) and not link.kernel
            if weights and usual and node not in biases:  # without weights, a graph would have no edges
                biases[node] = link.parameter
                continue
        factors.append(_factor(space, link, target, source, (first, last), sets))
    for name in loose:
        number, order = sets.index(name), tuple(range(len(space.axes[name])))
        factors.append(EdgeFactor(name, (number, number), ((), ()), (), (), order, (), False))
    # Edges from neurons to others come first, those of a chain of layers in the order of its layers.
    factors.sort(key=lambda factor: factor.sets[0] == factor.sets[1])
    pairs: list[set[Flat]] = [{(1,)} if name in biases and felt[name][0] > 1 else set() for name in sets]
    for factor in factors:
        for number, flat in zip(factor.sets, factor.charges, strict=True):
            pairs[number] |= {max(flat, _negative(flat))} if any(flat) else set()
    return FactorGraph(
        sets,
        tuple(biases.get(name) for name in sets),
        tuple(factors),
        tuple(felt.get(name, (0,)) for name in sets),
        tuple(sum(gauge.carrier != name for gauge in gauges.get(name, ())) for name in sets),
        tuple(tuple(sorted(of)) for of in pairs),
    )


def _charged_ends(space: WeightSpace, link: Link) -> list[tuple[Place, Counter[NeuronGauge]]]:
    """The ends of a parameter's edges and their charges; the first has those of what several are nested in."""
    nested = {*space.nesting, *space.nesting.values()}
    movable = [end for end in link.ends if space.nodes[end.node].permutes]
    factors = [end for end in movable if space.nodes[end.node].size == 1 and end.node not in nested]
    hosts = [end for end in movable if end not in factors]
    if len(link.ends) < 3 or not hosts:
        factors = []
    charges: dict[Place, Counter[NeuronGauge]] = {end: Counter() for end in link.ends if end not in factors}
    counted = set[int]()
    for end in charges:
        for at, name in zip(end.path, space.ancestry(end.node), strict=True):
            axis = space.axes[link.parameter][at]
            assert isinstance(axis, Axis), "ends are axes"
            for i, q in enumerate(space.nodes[name].spelled(axis.charge) if at not in counted else ()):
                charges[end][NeuronGauge(name, name, i)] = q
        counted.update(end.path)
    for end in factors:
        # Factors of the same dimension follow one another among the axes.
        host = min(hosts, key=lambda other: (abs(other.at - end.at), -other.at))
        for i, q in enumerate(space.nodes[end.node].spelled(end.charge)):
            charges[host][NeuronGauge(host.node, end.node, i)] += q
    return list(charges.items())


def _gauges(
    space: WeightSpace, names: Sequence[str], charged: Sequence[Mapping[NeuronGauge, int]]
) -> tuple[dict[str, list[NeuronGauge]], dict[str, tuple[int, ...]]]:
    """The gauges of each node set, first those that it is nested in; and the part of each that acts on some charge."""
    felt: dict[NeuronGauge, int] = defaultdict(int)
    for charges in charged:
        for gauge, q in charges.items():
            felt[gauge] |= felt_of(space.nodes[gauge.node].gauges[gauge.number].value, q)
    gauges = {}
    for name in names:
        gauges[name] = [
            NeuronGauge(carrier, node, i)
            for carrier in space.ancestry(name)
            for node in (carrier, *(n for n in space.nodes if n != carrier and NeuronGauge(carrier, n, 0) in felt))
            for i in range(len(space.nodes[node].gauges))
        ]
    return gauges, {name: tuple(felt[gauge] for gauge in of) for name, of in gauges.items()}


def felt_of(gauge: int, charge: int) -> int:
    """The bits of a gauge's symmetry that a charge feels."""
    return gauge & ((SCALES if charge else 0) | (FLIPS if charge % 2 else 0) | 1)


def _acts_as(gauges: Sequence[int], charges: Flat, usual: int) -> bool:
    """Returns whether there is one gauge, which acts on one charge as on another one."""
    return len(gauges) == 1 and felt_of(gauges[0], charges[0] - usual) < FLIPS


def _through(charges: Flat, crossing: set[Flat]) -> tuple[Flat, Flat]:
    """Divides the charge of a parameter of one end between the two ends of its edges, which are one neuron.

    A gain leads from a stream that other edges meet to another one; a parameter that leads from none enters the stream
    of its charge.
    """
    to = {q: tuple(map(sum, zip(charges, q, strict=True))) for q in crossing if any(q) and any(charges)}
    streams = [q for q in to if to[q] in crossing and any(to[q])]
    if not streams:
        return charges, (0,) * len(charges)
    return to[max(streams)], _negative(max(streams))


def _factor(
    space: WeightSpace, link: Link, target: Place, source: Place, charges: tuple[Flat, Flat], sets: Sequence[str]
) -> EdgeFactor:
    both = sum(at in source.path for at in target.path)  # what both are nested in is in front for both
    at = (*target.path, *(i for i in source.path if i not in target.path))
    return EdgeFactor(
        link.parameter,
        (sets.index(target.node), sets.index(source.node)),
        charges,
        space.ancestry(target.node)[both:],
        space.ancestry(source.node)[both:],
        (*at, *(i for i in range(len(space.axes[link.parameter])) if i not in at)),
        link.kernel,
        link.folded,
    )


def _negative(charges: Flat) -> Flat:
    return tuple(-q for q in charges)


class Padding(NamedTuple):
    """The numbers of gauges of a node, and of pairs of its streams, that graphs of one batch are padded to."""

    gauges: int
    pairs: int


def padding_of(spaces: Sequence[WeightSpace]) -> Padding | None:
    """The smallest numbers that all these spaces' graphs fit into; None if all are chains of layers."""
    graphs = list(map(factors_of, spaces))
    if all(graph.is_chain for graph in graphs):
        return None
    pairs = [len(of) for graph in graphs for of in graph.pairs]
    return Padding(max(len(of) for graph in graphs for of in graph.felt), max(1, *pairs))


def structure(
    space: WeightSpace, sizes: Mapping[str, int], padding: Padding | None, device: torch.device
) -> dict[str, Tensor]:
    """The attributes of one network but for its values and ``kernel``; see `nfn_monomial.adapters.pyg`."""
    graph = factors_of(space)
    counts, edges = graph.counts(space, sizes), graph.edges(space, sizes)
    starts = [0, *itertools.accumulate(counts)]
    numbers = [torch.arange(n, device=device) for n in counts]

    def each(values: Sequence[object], counts: Sequence[int]) -> Tensor:
        return torch.tensor(values, device=device).repeat_interleave(torch.tensor(counts, device=device), 0)

    ends = []
    for factor, count in zip(graph.factors, edges, strict=True):
        entry, columns = torch.arange(count, device=device), math.prod([sizes[n] for n in factor.columns])
        target = entry // columns
        source = target // math.prod([sizes[n] for n in factor.rows]) * columns + entry % columns
        ends.append(torch.stack([source + starts[factor.sets[1]], target + starts[factor.sets[0]]]))
    values = {
        "edge_index": torch.cat(ends, 1),
        "edge_layer": each(range(len(edges)), edges),
        "symmetry": each([functools.reduce(int.__or__, of) for of in graph.felt], counts),
        "layer": each(range(len(counts)), counts),
        "neuron": torch.cat(numbers),
        "depth": each([len(counts) - 1] * len(counts), counts),
        "has_bias": each([name is not None for name in graph.biases], counts),
    }
    if padding is None:
        return values
    parents = []
    for name, start, neuron in zip(graph.sets, starts, numbers, strict=False):
        above = space.nesting.get(name)
        parents.append(neuron + start if above is None else neuron // sizes[name] + starts[graph.sets.index(above)])
    streams = [[graph.stream(*end) for end in zip(f.sets, f.charges, strict=True)] for f in graph.factors]
    return values | {
        "gauges": each([_padded(of, padding.gauges) for of in graph.felt], counts),
        "inherited": each(graph.inherited, counts),
        "parent_index": torch.cat(parents),
        "stream_symmetry": each([_felt_by_streams(graph, i, padding.pairs) for i in range(len(counts))], counts),
        "edge_charge": each([[_padded(q, padding.gauges) for q in f.charges] for f in graph.factors], edges),
        "edge_streams": each(streams, edges) % (2 * padding.pairs + 1),
    }


def _padded(values: Sequence[int], length: int, by: int = 0) -> list[int]:
    return [*values, *[by] * (length - len(values))]


def _felt_by_streams(graph: FactorGraph, number: int, pairs: int) -> list[int]:
    """The symmetry that acts on each pair of streams of a node set; pairs that it does not have are only permuted."""
    gauges = graph.felt[number]
    felt = [
        functools.reduce(int.__or__, [felt_of(*pair) for pair in zip(gauges, charges, strict=True)])
        for charges in graph.pairs[number]
    ]
    return _padded(felt, pairs, min(max(gauges), 1))
