"""Neuron features: the streams of every neuron and every weight while messages pass between them.

Where weight-space features fold input and output neurons into channels, here every neuron of every node, FIXED ones
included, has streams of its own, and so has every weight:

=========  ==========================  ==========================================================================
field      field type                  behaves like
=========  ==========================  ==========================================================================
edges      ``(target^+1, source^-1)``  a weight: ``e_jk -> d_j / d_k e_jk``
stream +1  ``(node^+1,)``              an activation or a bias: ``h_j -> d_j h_j``
stream -1  ``(node^-1,)``              a gradient by an activation: ``g_j -> g_j / d_j``
inv        ``(node^0,)``               an invariant of its neuron: only permuted
=========  ==========================  ==========================================================================

Those are the fields of a chain of layers. In general a node has a stream for each charge of its axes and, of those of
parameters with several ends, for its opposite; the last is ``inv``. Neurons of a nested node are pairs of one of its
parent and one of its own. Edges have any number of ends. Parameters with one end lie in the stream of their charge,
those with none in ``const``.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from nfn_monomial.checks import checked
from nfn_monomial.space.axes import Axis, Charge, FieldType, combined, opposite, powers
from nfn_monomial.space.features import Layout
from nfn_monomial.space.links import Link
from nfn_monomial.space.weight_space import WeightSpace

Charges: TypeAlias = tuple[Charge, ...]
"""The charge of a stream on each axis of its neurons, one for a node that is nested in no other."""


class EdgeEnd(NamedTuple):
    """One end of the edges of an `EdgeSet`.

    Attributes:
        node: whose neurons it is.
        at: positions of their axes among the edges' axes.
        along: number of the field with the node's stream that transforms as the edge does at this end.
        against: of the one of opposite charge, with which the edge is contracted.
        inv: of the node's invariants.
    """

    node: str
    at: tuple[int, ...]
    along: int
    against: int
    inv: int


class EdgeSet(NamedTuple):
    """The weights between the neurons of the same nodes: one field.

    Attributes:
        key: for module dictionaries.
        axes: the field type.
        ends: the node that the weights lead to first, then those that they lead from.
    """

    key: str
    axes: FieldType
    ends: tuple[EdgeEnd, ...]


class StreamPlan(NamedTuple):
    """The streams of the neurons of a node, and the products of them that are streams again.

    Attributes:
        charges: of the streams, ``inv`` last.
        transports: triples of streams, of which the first, that of a parameter of one end such as a gain, times the
            second is of the charge of the third; without ``inv``, whose products are made otherwise.
        reached: whether edges lead into ``inv``, as they do where charges are 0.
    """

    charges: tuple[Charges, ...]
    transports: tuple[tuple[int, int, int], ...] = ()
    reached: bool = False

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """Streams of opposite charges, whose product is invariant."""
        opposites = [(i, self.opposite(i)) for i in range(len(self.charges) - 1)]
        return [(i, j) for i, j in opposites if j is not None and i < j]

    def opposite(self, stream: int) -> int | None:
        """The stream of opposite charge, if there is one."""
        charges = _opposite(self.charges[stream])
        return self.charges.index(charges) if charges in self.charges else None


class NodeKind(NamedTuple):
    """The formulas of a node's neurons: nodes of one kind share a parameter, of which each has a slice.

    Attributes:
        order: its streams as they are arranged: those that are multiplied by one of opposite charge, these in the same
            order, the others, ``inv``.
        pairs: how many such products there are.
        transports: see `StreamPlan`, as positions in ``order``.
        reached: see `StreamPlan`.
    """

    order: tuple[int, ...]
    pairs: int
    transports: tuple[tuple[int, int, int], ...]
    reached: bool

    @property
    def summed(self) -> int:
        """The number of streams that messages come to: all that are charged, and ``inv`` where it is reached."""
        return len(self.order) - (not self.reached)

    @property
    def mixes(self) -> int:
        """The number of matrices that streams and sums of messages are multiplied by, see `NeuronUpdate`."""
        return self.summed + 2 * self.pairs + len(self.transports)


def kind_of(plan: StreamPlan) -> NodeKind:
    """The kind of nodes with these streams."""
    firsts, seconds = [i for i, _ in plan.pairs], [j for _, j in plan.pairs]
    others = [i for i in range(len(plan.charges)) if i not in (*firsts, *seconds)]
    order = (*firsts, *seconds, *others)
    transports = [tuple(map(order.index, three)) for three in plan.transports]
    return NodeKind(order, len(firsts), tuple(transports), plan.reached)  # type: ignore[arg-type]


class Kinds(NamedTuple):
    """Kinds of edges, by their number of ends, and of nodes: each with the slice of its parameters of every member."""

    edges: dict[int, dict[int, int]]
    nodes: dict[NodeKind, dict[str, int]]


CHAIN = StreamPlan(((1,), (-1,), (0,)))
"""The streams of a neuron in a chain of layers."""


class Slot(NamedTuple):
    """Places of parameters in neuron features: each as some channels of one field.

    Attributes:
        key: a name for module dictionaries.
        field: number of the field.
        pieces: names of the parameters, or of pieces of them.
        orders: for each, the permutation of ``(B, C, *space.axes[piece])`` to ``(B, *axes, *kernel, C)``.
        kernels: for each, the sizes of the dimensions on which nothing acts.
    """

    key: str
    field: int
    pieces: tuple[str, ...]
    orders: tuple[tuple[int, ...], ...]
    kernels: tuple[tuple[int, ...], ...]

    @property
    def entries(self) -> int:
        """Number of parameters' entries for each entry of the field."""
        return sum(map(math.prod, self.kernels))


class NeuronLayout(NamedTuple):
    """The fields of neuron features of a space, see `neuron_layout`.

    Attributes:
        layout: all edges, then the streams of every node, then ``const`` where there is one.
        edges: the edge fields, in the layout's order.
        nodes: node -> its streams, in the layout's order; only nodes on which parameters have axes.
        nests: nested nodes, each with the one that it is nested in.
        places: where the parameters lie.
        const: whether there are parameters without an axis, and so a field for them.
        starts: index of the first field of each node.
    """

    layout: Layout
    edges: tuple[EdgeSet, ...]
    nodes: dict[str, StreamPlan]
    nests: tuple[tuple[str, str], ...]
    places: tuple[Slot, ...]
    const: bool
    starts: dict[str, int]

    @property
    def stream_kinds(self) -> list[Charges]:
        """The charges of all streams, each once."""
        return list(dict.fromkeys(charges for plan in self.nodes.values() for charges in plan.charges))

    @property
    def invariant_kinds(self) -> list[Charges]:
        """The charges of invariants, which are of neurons of one, of two or more nodes, each once."""
        return list(dict.fromkeys(plan.charges[-1] for plan in self.nodes.values()))

    def fields(self, node: str) -> slice:
        """Indices of a node's fields."""
        return slice(self.starts[node], self.starts[node] + len(self.nodes[node].charges))

    def stream(self, node: str, *charges: Charge) -> int:
        """Index of a node's field of these charges, one for each axis of its neurons; without any, of ``inv``."""
        return self.starts[node] + self.nodes[node].charges.index(charges or self.nodes[node].charges[-1])


def kinds_of(layout: NeuronLayout, tied: bool) -> Kinds:
    """The kinds of edges and nodes.

    Args:
        layout: of a space.
        tied: whether all edges with one number of ends share a slice, and all nodes with the same streams. Otherwise
            each has its own.
    """
    edges, nodes = dict[int, dict[int, int]](), dict[NodeKind, dict[str, int]]()
    plans = dict[NodeKind, list[StreamPlan]]()
    for number, edge in enumerate(layout.edges):
        of_kind = edges.setdefault(len(edge.ends), {})
        of_kind[number] = 0 if tied else len(of_kind)
    for node, plan in layout.nodes.items():
        kind = kind_of(plan)
        slices, alike = nodes.setdefault(kind, {}), plans.setdefault(kind, [])
        if plan not in alike:
            alike.append(plan)
        slices[node] = alike.index(plan) if tied else len(slices)
    return Kinds(edges, nodes)


@checked
def neuron_layout(space: WeightSpace) -> NeuronLayout:
    """The layout of neuron features of a space.

    Charges are not reduced: forward and backward streams differ also where the group cannot tell them apart.
    """
    return _layout(space)


@functools.lru_cache(maxsize=16)  # every layer of a model asks for the one of its space
def _layout(space: WeightSpace) -> NeuronLayout:
    trees = {link.parameter: _tree(space, link) for link in space.links}
    plans = _plans(space, list(trees.values()))
    without_axes = [name for name in space.pieces if name not in trees]
    trees |= dict.fromkeys(without_axes, _LinkAxes((), (), ()))
    joining: dict[FieldType, _LinkAxes] = {}
    for tree in trees.values():
        if len(tree.ends) > 1:
            joining.setdefault(tree.axes, tree)
    types: list[FieldType] = list(joining)
    starts = {}
    for node, plan in plans.items():
        ancestry, starts[node] = space.ancestry(node), len(types)
        types += [tuple(map(Axis, ancestry, charges)) for charges in plan.charges]
    types += [()] if without_axes else []

    keys, edges = set(plans), list[EdgeSet]()
    for tree in joining.values():
        nodes = [node for node, _, _ in tree.ends]
        keys.add(key := _unused(f"{nodes[0]}_from_{'_'.join(nodes[1:])}", keys))
        ends = []
        for node, at, charges in tree.ends:
            numbers = [plans[node].charges.index(q) for q in (charges, _opposite(charges), plans[node].charges[-1])]
            ends.append(EdgeEnd(node, at, *(starts[node] + number for number in numbers)))
        edges.append(EdgeSet(key, tree.axes, tuple(ends)))

    field_of = {axes: i for i, axes in enumerate(types)}
    pieces_of: dict[int, list[str]] = {}
    for name, tree in trees.items():
        pieces_of.setdefault(field_of[tree.axes], []).append(name)
    places = list[Slot]()
    for field, pieces in pieces_of.items():
        key = types[field][-1].node if types[field] else "const"
        if field < len(edges):
            key = edges[field].key
        elif key not in plans or any(place.key == key for place in places):
            # A node's name stands for the first of its fields that parameters lie in.
            keys.add(key := _unused(key, keys))
        tables = [_table(space, name, trees[name].order) for name in pieces]
        places.append(Slot(key, field, tuple(pieces), *zip(*tables, strict=True)))
    layout = space.layout_of(types, fold=False)
    nests = tuple([(node, space.nesting[node]) for node in plans if node in space.nesting])
    return NeuronLayout(layout, tuple(edges), plans, nests, tuple(places), bool(without_axes), starts)


def _table(space: WeightSpace, name: str, order: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The permutation of a parameter that leaves axes in this order, then its kernel, then channels; and that kernel's
    sizes."""
    axes = space.axes[name]
    kernel = [i for i in range(len(axes)) if i not in order]
    sizes = [axis for i in kernel if isinstance(axis := axes[i], int)]
    return (0, *(2 + i for i in (*order, *kernel)), 1), tuple(sizes)


class _LinkAxes(NamedTuple):
    """A link's axes in the order of a field: nested ones follow the axes that they are nested in.

    Attributes:
        order: their positions in ``space.axes``.
        axes: the field type.
        ends: node, positions in ``axes`` and charges of each end. The charge of a node that several ends are nested in
            is the first one's, so that charges of all ends add up to those of the axes.
    """

    order: tuple[int, ...]
    axes: FieldType
    ends: tuple[tuple[str, tuple[int, ...], Charges], ...]


def _tree(space: WeightSpace, link: Link) -> _LinkAxes:
    axes = space.axes[link.parameter]
    paths = [end.path for end in link.ends]
    # Sorted by when each axis of their path is first met, ends that share an axis come together.
    met = {at: i for i, at in enumerate(dict.fromkeys(at for path in paths for at in path))}
    paths.sort(key=lambda path: [met[at] for at in path])
    order = tuple(dict.fromkeys(at for path in paths for at in path))
    kind = tuple(axis for axis in (axes[i] for i in order) if isinstance(axis, Axis))
    ends, counted = [], set[int]()
    for path in paths:
        at = tuple(order.index(i) for i in path)
        charges = tuple(combined([kind[i].charge], [i not in counted]) for i in at)
        counted.update(at)
        ends.append((kind[at[-1]].node, at, charges))
    return _LinkAxes(order, kind, tuple(ends))


def _plans(space: WeightSpace, trees: Sequence[_LinkAxes]) -> dict[str, StreamPlan]:
    plans = {}
    at_node: dict[str, list[tuple[Charges, int]]] = {}
    for tree in trees:
        for name, _, of_end in tree.ends:
            at_node.setdefault(name, []).append((of_end, len(tree.ends)))
    met = {above for name in at_node for above in space.ancestry(name)}
    for node in (node for node in space.nodes if node in met):
        zero: Charges = tuple(space.nodes[name].charge(0) for name in space.ancestry(node))
        ends = at_node.get(node, [])
        met_here = {zero, *(charges for charges, _ in ends), *(_opposite(charges) for charges, n in ends if n > 1)}
        charges = tuple(sorted(met_here, key=lambda q: (q == zero, sum(map(abs, _flat(q))), [-p for p in _flat(q)])))
        number = charges.index
        transports = {
            (number(gain), number(q), number(total))
            for gain in {q for q, n in ends if n == 1} - {zero}
            for q in charges[:-1]
            if (total := tuple(combined(pair) for pair in zip(gain, q, strict=True))) in charges[:-1]
        }
        reached = any(q == zero and n > 1 for q, n in ends)
        plans[node] = StreamPlan(charges, tuple(sorted(transports)), reached)
    return plans


def _flat(charges: Charges) -> list[int]:
    return [p for q in charges for p in powers(q)]


def _opposite(charges: Charges) -> Charges:
    return tuple(map(opposite, charges))


def _unused(name: str, taken: set[str]) -> str:
    numbered = (f"{name}_{i}" for i in itertools.count(1))
    return next(key for key in itertools.chain([name], numbered) if key not in taken)
