"""Weight spaces as graphs: their node sets, the biases that nodes hold, and all other parameters as edges.

A weight is an edge for each pair of neurons that it connects, a gain or a depthwise kernel an edge from each neuron to
itself, a parameter without an axis such edges of as many more nodes as it has entries. The group acts on an edge by the
edge's charges and the scales of its two ends.

A node of size 1 is a factor on whole tensors, such as the sign of all of a transformer's stream. Where it is the third
end of a parameter, it becomes one more gauge of the neurons at another end. The group in which each of these has a
factor of its own contains the group of the space: layers that respect the one respect the other.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from nfn_monomial import Axis, WeightSpace
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.space.links import End, Link

Flat = tuple[int, ...]
"""The charges of one end of an edge: for each gauge of what a neuron is nested in, the outermost first, and of it."""

FLIPS, SCALES = 2, 4
"""Bits of a `Symmetry`'s value: whether signs may flip, and whether there are positive scales."""


class Factor(NamedTuple):
    """A parameter, or a piece of one, as edges: in the order of their targets, those of one target by their sources.

    Attributes:
        piece: its name.
        sets: numbers of the node sets of its targets and its sources; one and the same for edges to themselves.
        charges: at its targets and at its sources.
        rows: nodes along which only targets vary; along what both ends are nested in, edges do not cross over.
        columns: nodes along which only sources vary.
        order: permutation of the piece's axes to those of the targets, of the sources, and the kernel.
        kernel: see `Link`.
        folded: see `Link`.
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
        sets: names of nodes in the space's order; in front of the last, those of parameters without an axis.
        biases: for each node set the parameter in ``x``: one of charge +1 and with one number for each neuron.
        factors: all other parameters, in the order of their edges.
        gauges: for each node set, what is felt of each gauge of the node, behind those of what it is nested in.
        inherited: for each node set, how many of these are of what it is nested in.
        pairs: for each node set, the charges of which it has a pair of streams.
        hosted: node -> nodes of size 1 whose gauges it has, behind its own.
    """

    sets: tuple[str, ...]
    biases: tuple[str | None, ...]
    factors: tuple[Factor, ...]
    gauges: tuple[tuple[int, ...], ...]
    inherited: tuple[int, ...]
    pairs: tuple[tuple[Flat, ...], ...]
    hosted: dict[str, tuple[str, ...]]

    @property
    def is_chain(self) -> bool:
        """Whether each node set is joined to the next alone, with charge +1 at targets and -1 at sources."""
        steps = [(i + 1, i) for i in range(len(self.sets) - 1)]
        return [f.sets for f in self.factors] == steps and all(
            len(self.gauges[number]) == 1 and _feels_as(self.gauges[number][0], charges[0], usual)
            for factor in self.factors
            for number, charges, usual in zip(factor.sets, factor.charges, (1, -1), strict=True)
        )

    def stream(self, number: int, charges: Flat) -> int:
        """The stream of a node set that transforms as edges of these charges do; -1 for ``inv``, the last."""
        if not any(charges):
            return -1
        positive = _positive(charges)
        return 2 * self.pairs[number].index(positive) + (charges != positive)

    def counts(self, space: WeightSpace, sizes: Mapping[str, int]) -> list[int]:
        """The number of nodes in each node set."""
        of_nodes = {name: space.count(name, sizes) for name in self.sets if name in space.nodes}
        return [of_nodes[n] if n in of_nodes else math.prod(space.shape_of(n, sizes)) for n in self.sets]

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
    hosted, carried = _hosts(space)
    ends = {link.parameter: _flat_ends(space, link, hosted, carried.get(link.parameter, {})) for link in space.links}
    met = {above for of in ends.values() for end, _ in of for above in space.ancestry(end.node)}
    names = [node for node in space.nodes if node in met]
    loose = [name for name in space.pieces if not any(isinstance(a, Axis) for a in space.axes[name])]
    sets = (*names[:-1], *loose, *names[-1:])
    gauges = {name: gauges_of(space, name, hosted) for name in sets}
    felt = _felt_gauges(space, gauges, ends)
    crossing: dict[str, set[Flat]] = {name: set() for name in names}
    for of in ends.values():
        for end, charges in of if len(of) > 1 else ():
            crossing[end.node] |= {charges, tuple(-q for q in charges)}
    biases: dict[str, str] = {}
    weights = any(len(of) > 1 for of in ends.values())  # without any, a graph would have no edges
    factors = []
    for link in space.links:
        of = ends[link.parameter]
        if len(of) > 2:
            raise InvalidValueError(
                f"{space}: {link.parameter} has {len(of)} ends ({', '.join(end.node for end, _ in of)}), and edges of "
                "graphs have two: use the core's MessagePassing, which takes edges of any number of ends"
            )
        (target, first), (source, last) = of[0], of[-1]
        node = target.node
        if len(of) == 1:
            first, last = _through(first, crossing[node])
            usual = len(gauges[node]) == 1 and _feels_as(felt[node][0], first[0], 1)
            if weights and usual and not any(last) and not link.kernel and node not in biases:
                biases[node] = link.parameter
                continue
        factors.append(_factor(space, link, (target, source), (first, last), sets))
    for name in loose:
        number, order = sets.index(name), tuple(range(len(space.axes[name])))
        factors.append(Factor(name, (number, number), ((), ()), (), (), order, (), False))
    # Edges from neurons to others come first, those of a chain of layers in the order of its layers.
    factors.sort(key=lambda factor: factor.sets[0] == factor.sets[1])
    charged: list[set[Flat]] = [{(1,)} if name in biases and felt[name][0] > 1 else set() for name in sets]
    for factor in factors:
        for number, charges in zip(factor.sets, factor.charges, strict=True):
            charged[number] |= {_positive(charges)} if any(charges) else set()
    return FactorGraph(
        sets,
        tuple(biases.get(name) for name in sets),
        tuple(factors),
        tuple(felt[name] for name in sets),
        tuple(len(gauges[space.nesting[n]]) if n in space.nesting else 0 for n in sets),
        tuple(tuple(sorted(of)) for of in charged),
        hosted,
    )


_Carried = dict[End, list[End]]
"""Ends of a parameter -> those of size 1 whose charges they take over."""


def _hosts(space: WeightSpace) -> tuple[dict[str, tuple[str, ...]], dict[str, _Carried]]:
    """Node -> the nodes of size 1 whose gauges it takes over, and which ends do of each parameter of three or more."""
    small = {
        name
        for name, node in space.nodes.items()
        if node.size == 1 and node.permutes and node.parent is None and name not in space.nesting.values()
    }
    pairs: dict[str, set[str]] = {}
    carried: dict[str, _Carried] = {}
    for link in space.links if small else ():
        hosts = [end for end in link.ends if end.node not in small and space.nodes[end.node].permutes]
        if len(link.ends) < 3 or not hosts:
            continue
        for end in link.ends:
            if end.node in small:
                # Factors of the same dimension follow one another among the axes.
                host = min(hosts, key=lambda other: (abs(other.at[-1] - end.at[-1]), -other.at[-1]))
                carried.setdefault(link.parameter, {}).setdefault(host, []).append(end)
                pairs.setdefault(host.node, set()).add(end.node)
    return {host: tuple(n for n in space.nodes if n in of) for host, of in pairs.items()}, carried


def _flat_ends(
    space: WeightSpace, link: Link, hosted: Mapping[str, Sequence[str]], carried: _Carried
) -> list[tuple[End, Flat]]:
    """The ends of a parameter's edges and their charges; the first has those of what several are nested in."""
    taken_over = [end for of in carried.values() for end in of]
    ends, counted = [], set[int]()
    for end in link.ends:
        if end in taken_over:
            continue
        charges: list[int] = []
        for at, name in zip(end.at, space.ancestry(end.node), strict=True):
            axis = space.axes[link.parameter][at]
            assert isinstance(axis, Axis), "ends are axes"
            charges += space.nodes[name].spelled(0 if at in counted else axis.charge)
            for small in hosted.get(name, ()):
                at_small = [e.charge for e in carried.get(end, []) if e.node == small] if name == end.node else []
                charges += _total([space.nodes[small].spelled(q) for q in (0, *at_small)])
        counted.update(end.at)
        ends.append((end, tuple(charges)))
    return ends


def gauges_of(space: WeightSpace, name: str, hosted: Mapping[str, Sequence[str]]) -> list[tuple[str, int]]:
    """Node and number of each gauge of a node set, behind those of what it is nested in; one of no node at others."""
    if name not in space.nodes:
        return [("", 0)]
    nodes = [node for above in space.ancestry(name) for node in (above, *hosted.get(above, ()))]
    return [(node, i) for node in nodes for i in range(len(space.nodes[node].gauges))]


def _felt_gauges(
    space: WeightSpace,
    gauges: Mapping[str, list[tuple[str, int]]],
    ends: Mapping[str, list[tuple[End, Flat]]],
) -> dict[str, tuple[int, ...]]:
    """For each node set, what any parameter at it, or at what is nested in it, feels of each gauge."""
    values = {name: [space.nodes[node].gauges[i].value if node else 0 for node, i in of] for name, of in gauges.items()}
    felt = {name: [min(value, 1) for value in of] for name, of in values.items()}
    for end, charges in (pair for of in ends.values() for pair in of):
        for above in space.ancestry(end.node):
            for i, (value, charge) in enumerate(zip(values[above], charges, strict=False)):
                felt[above][i] |= felt_of(value, charge)
    for name in gauges:
        for above in space.ancestry(name)[:-1] if name in space.nodes else ():
            felt[name][: len(felt[above])] = felt[above]
    return {name: tuple(values) for name, values in felt.items()}


def felt_of(gauge: int, charge: int) -> int:
    """The bits of a gauge's symmetry that a charge feels."""
    return gauge & ((SCALES if charge else 0) | (FLIPS if charge % 2 else 0) | 1)


def _feels_as(gauge: int, charge: int, usual: int) -> bool:
    """Whether a gauge acts on one charge as on another one."""
    return (not gauge & SCALES or charge == usual) and (not gauge & FLIPS or (charge - usual) % 2 == 0)


def _through(charges: Flat, crossing: set[Flat]) -> tuple[Flat, Flat]:
    """How the charge of a parameter of one end is divided between the two ends of its edges, which are one neuron.

    A gain leads from a stream that other edges meet to another one; what leads from none enters the stream of its
    charge.
    """
    pairs = [(to, q) for q in crossing if any(q) and (to := _total([charges, q])) in crossing and any(to)]
    if not any(charges) or not pairs:
        return charges, (0,) * len(charges)
    to, q = max(pairs, key=lambda pair: pair[1])
    return to, tuple(-p for p in q)


def _factor(
    space: WeightSpace, link: Link, ends: tuple[End, End], charges: tuple[Flat, Flat], sets: Sequence[str]
) -> Factor:
    target, source = ends
    both = sum(at in source.at for at in target.at)  # what both are nested in is in front for both
    at = (*target.at, *(i for i in source.at if i not in target.at))
    return Factor(
        link.parameter,
        (sets.index(target.node), sets.index(source.node)),
        charges,
        space.ancestry(target.node)[both:],
        space.ancestry(source.node)[both:],
        (*at, *(i for i in range(len(space.axes[link.parameter])) if i not in at)),
        link.kernel,
        link.folded,
    )


def _positive(charges: Flat) -> Flat:
    """These charges or their opposites: those of which the first that is not 0 is positive."""
    return charges if next(q for q in charges if q) > 0 else tuple(-q for q in charges)


def _total(charges: Sequence[Sequence[int]]) -> Flat:
    return tuple(map(sum, zip(*charges, strict=True)))


class Padding(NamedTuple):
    """What graphs of one batch are padded to: numbers of gauges of a node, and of pairs of its streams."""

    gauges: int
    pairs: int


def padding_of(spaces: Sequence[WeightSpace]) -> Padding | None:
    """The smallest numbers that all these spaces' graphs fit into; None if all are chains of layers."""
    graphs = list(map(factors_of, spaces))
    if all(graph.is_chain for graph in graphs):
        return None
    pairs = [len(of) for graph in graphs for of in graph.pairs]
    return Padding(max(len(of) for graph in graphs for of in graph.gauges), max(1, *pairs))


def structure(
    space: WeightSpace, sizes: Mapping[str, int], padding: Padding | None, device: torch.device
) -> dict[str, Tensor]:
    """The attributes of one network but for its values and ``kernel``; see `nfn_monomial.adapters.pyg`."""
    graph = factors_of(space)
    counts = graph.counts(space, sizes)
    starts = [0, *itertools.accumulate(counts)]
    numbers = [torch.arange(n, device=device) for n in counts]

    def of_nodes(values: Sequence[object]) -> Tensor:
        return torch.tensor(values, device=device).repeat_interleave(torch.tensor(counts, device=device), 0)

    edges = graph.edges(space, sizes)
    ends = []
    for factor, count in zip(graph.factors, edges, strict=True):
        entry, columns = torch.arange(count, device=device), math.prod([sizes[n] for n in factor.columns])
        target = entry // columns
        source = target // math.prod([sizes[n] for n in factor.rows]) * columns + entry % columns
        ends.append(torch.stack([source + starts[factor.sets[1]], target + starts[factor.sets[0]]]))

    def of_edges(values: Sequence[object]) -> Tensor:
        return torch.tensor(values, device=device).repeat_interleave(torch.tensor(edges, device=device), 0)

    values = {
        "edge_index": torch.cat(ends, 1),
        "edge_layer": of_edges(range(len(edges))),
        "symmetry": of_nodes([functools.reduce(int.__or__, of) for of in graph.gauges]),
        "layer": of_nodes(range(len(counts))),
        "neuron": torch.cat(numbers),
        "depth": of_nodes([len(counts) - 1] * len(counts)),
        "has_bias": of_nodes([name is not None for name in graph.biases]),
    }
    if padding is None:
        return values
    parents = []
    for name, start, neuron in zip(graph.sets, starts, numbers, strict=False):
        above = space.nesting.get(name)
        parents.append(neuron + start if above is None else neuron // sizes[name] + starts[graph.sets.index(above)])
    streams = [[graph.stream(*end) for end in zip(f.sets, f.charges, strict=True)] for f in graph.factors]
    return values | {
        "gauges": of_nodes([_padded(of, padding.gauges) for of in graph.gauges]),
        "inherited": of_nodes(graph.inherited),
        "parent_index": torch.cat(parents),
        "stream_symmetry": of_nodes([_of_streams(graph, i, padding.pairs) for i in range(len(counts))]),
        "edge_charge": of_edges([[_padded(q, padding.gauges) for q in f.charges] for f in graph.factors]),
        "edge_streams": of_edges(streams) % (2 * padding.pairs + 1),
    }


def _padded(values: Sequence[int], length: int, by: int = 0) -> list[int]:
    return [*values, *[by] * (length - len(values))]


def _of_streams(graph: FactorGraph, number: int, pairs: int) -> list[int]:
    """What each pair of streams of a node set feels; those that it does not have are only permuted."""
    gauges = graph.gauges[number]
    permuted = min(max(gauges), 1)
    felt = [
        functools.reduce(int.__or__, [felt_of(*pair) for pair in zip(gauges, charges, strict=True)])
        for charges in graph.pairs[number]
    ]
    return _padded(felt, pairs, permuted)
