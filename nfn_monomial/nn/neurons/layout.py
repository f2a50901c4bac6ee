"""Neuron features: what every neuron and every weight carries while messages pass between them.

Where weight-space features fold input and output neurons into channels, here every neuron of every node, FIXED ones
included, has streams of its own, and so has every weight:

=========  ==========================  ==========================================================================
field      field type                  what it is like
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
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple, TypeAlias

from torch import Tensor, nn

from nfn_monomial.checks import Count, checked
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.space.axes import Axis, Charge, FieldType, combined, opposite, powers
from nfn_monomial.space.features import Features, Layout
from nfn_monomial.space.links import Link
from nfn_monomial.space.weight_space import WeightSpace

Charges: TypeAlias = tuple[Charge, ...]
"""Of a stream: the charge on each axis of its neurons, one for a node that is nested in no other."""

Streams: TypeAlias = tuple[Tensor, ...]
"""The streams of some neurons, ``(..., n, C)`` each, in the order of their charges; ``inv`` is the last."""


class EdgeEnd(NamedTuple):
    """One end of the edges of an `EdgeSet`.

    Attributes:
        node: whose neurons it is.
        at: positions of their axes among the edges' axes.
        along: number of the node's stream that transforms as the edge does at this end.
        against: number of the stream of opposite charge, with which the edge is contracted.
    """

    node: str
    at: tuple[int, ...]
    along: int
    against: int


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


class Plan(NamedTuple):
    """Which streams the neurons of a node have, and which products of them are streams again.

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
        found = [(i, self.opposite(i)) for i in range(len(self.charges) - 1)]
        return [(i, j) for i, j in found if j is not None and i < j]

    def opposite(self, stream: int) -> int | None:
        """The stream of opposite charge, if there is one."""
        charges = _opposite(self.charges[stream])
        return self.charges.index(charges) if charges in self.charges else None


CHAIN = Plan(((1,), (-1,), (0,)))
"""The streams of a neuron in a chain of layers."""


class Place(NamedTuple):
    """Where parameters lie in neuron features: each as some channels of one field.

    Attributes:
        key: a name for module dictionaries.
        field: number of the field.
        pieces: names of the parameters, or of pieces of them.
        orders: for each, the permutation of ``(B, C, *space.axes[piece])`` to ``(B, *axes, *kernel, C)``.
        kernels: for each, the sizes of what nothing acts on.
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
        places: where the parameters lie.
        const: whether there are parameters without an axis, and so a field for them.
        starts: index of the first field of each node.
    """

    layout: Layout
    edges: tuple[EdgeSet, ...]
    nodes: dict[str, Plan]
    places: tuple[Place, ...]
    const: bool
    starts: dict[str, int]

    def first(self, node: str) -> int:
        """Index of a node's first field."""
        return self.starts[node]

    def stream(self, node: str, *charges: Charge) -> int:
        """Index of a node's field of these charges, one for each axis of its neurons; without any, of ``inv``."""
        found = self.nodes[node].charges
        return self.first(node) + (found.index(charges) if charges else len(found) - 1)


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
    numbers = {name: plan.charges.index for name, plan in plans.items()}
    edges: dict[FieldType, EdgeSet] = {}
    taken_keys = set(plans)
    for tree in trees.values():
        if len(tree.ends) > 1 and tree.axes not in edges:
            names = [node for node, _, _ in tree.ends]
            taken_keys.add(key := _unused(f"{names[0]}_from_{'_'.join(names[1:])}", taken_keys))
            ends = (EdgeEnd(n, at, numbers[n](q), numbers[n](_opposite(q))) for n, at, q in tree.ends)
            edges[tree.axes] = EdgeSet(key, tree.axes, tuple(ends))
    loose = [name for name in space.pieces if name not in trees]
    types: list[FieldType] = list(edges)
    starts = {}
    for node, plan in plans.items():
        ancestry, starts[node] = space.ancestry(node), len(types)
        types += [tuple(map(Axis, ancestry, charges)) for charges in plan.charges]
    types += [()] if loose else []
    number = {axes: i for i, axes in enumerate(types)}
    fields: dict[int, list[str]] = {}
    for name in (*trees, *loose):
        fields.setdefault(number[trees[name].axes if name in trees else ()], []).append(name)
    places: list[Place] = []
    used = set[str]()  # a node's name stands for one of its fields, for the others it is taken
    for field, pieces in fields.items():
        own = types[field][-1].node if types[field] else "const"
        if types[field] in edges:
            key = edges[types[field]].key
        else:
            key = own if own in plans and own not in used else _unused(own, taken_keys)
        taken = [trees[name].order if name in trees else () for name in pieces]
        rest = [[i for i in range(len(space.axes[n])) if i not in t] for n, t in zip(pieces, taken, strict=True)]
        orders = tuple((0, *(2 + i for i in (*t, *r)), 1) for t, r in zip(taken, rest, strict=True))
        kernels = tuple(tuple(space.axes[n][i] for i in r) for n, r in zip(pieces, rest, strict=True))
        places.append(Place(key, field, tuple(pieces), orders, kernels))  # type: ignore[arg-type]  # axes are all taken
        used.add(key)
        taken_keys.add(key)
    layout = space.layout_of(types, fold=False)
    return NeuronLayout(layout, tuple(edges.values()), plans, tuple(places), bool(loose), starts)


class _Tree(NamedTuple):
    """A link's axes in the order of a field: nested ones behind what they are nested in, in front of the next.

    Attributes:
        order: their positions in ``space.axes``.
        axes: the field type.
        ends: node, positions in ``axes`` and charges of each end. The charge of what several ends are nested in is
            the first one's, so that charges of all ends add up to those of the axes.
    """

    order: tuple[int, ...]
    axes: FieldType
    ends: tuple[tuple[str, tuple[int, ...], Charges], ...]


def _tree(space: WeightSpace, link: Link) -> _Tree:
    axes = space.axes[link.parameter]
    paths = [end.at for end in link.ends]
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
    return _Tree(order, kind, tuple(ends))


def _plans(space: WeightSpace, trees: Sequence[_Tree]) -> dict[str, Plan]:
    plans = {}
    at_node: dict[str, list[tuple[Charges, int]]] = {}
    for tree in trees:
        for name, _, of_end in tree.ends:
            at_node.setdefault(name, []).append((of_end, len(tree.ends)))
    met = {above for name in at_node for above in space.ancestry(name)}
    for node in (node for node in space.nodes if node in met):
        zero: Charges = tuple(space.nodes[name].charge(0) for name in space.ancestry(node))
        ends = at_node.get(node, [])
        found = {zero, *(charges for charges, _ in ends), *(_opposite(charges) for charges, n in ends if n > 1)}
        charges = tuple(sorted(found, key=lambda q: (q == zero, sum(map(abs, _flat(q))), [-p for p in _flat(q)])))
        number = charges.index
        transports = {
            (number(own), number(q), number(total))
            for own in {q for q, n in ends if n == 1} - {zero}
            for q in charges[:-1]
            if (total := tuple(combined(pair) for pair in zip(own, q, strict=True))) in charges[:-1]
        }
        reached = any(q == zero and n > 1 for q, n in ends)
        plans[node] = Plan(charges, tuple(sorted(transports)), reached)
    return plans


def _flat(charges: Charges) -> list[int]:
    return [p for q in charges for p in powers(q)]


def _opposite(charges: Charges) -> Charges:
    return tuple(map(opposite, charges))


def _unused(name: str, taken: set[str]) -> str:
    numbered = (f"{name}_{i}" for i in itertools.count(1))
    return next(found for found in itertools.chain([name], numbered) if found not in taken)


class NeuronLayer(nn.Module):
    """A layer from neuron features to neuron features of one space.

    Args:
        space: the networks' weight space.
        channels: of all streams, at least 1.
        reads: numbers of the output's fields that are read behind the layer, by default all. What only the others need
            is neither computed nor has it parameters.
        zeros: numbers of the input's fields that are 0 in all networks, as streams are before the first message comes
            to them, if all of these are known. What would multiply zeros has no parameters then.
    """

    @checked
    def __init__(
        self,
        space: WeightSpace,
        channels: Count,
        reads: Collection[int] | None = None,
        zeros: Collection[int] | None = None,
    ) -> None:
        super().__init__()
        self.space, self.channels = space, channels
        self.neurons: NeuronLayout = neuron_layout(space)
        self.in_layout = self.out_layout = self.neurons.layout
        every = frozenset(range(len(self.in_layout)))
        self.reads = every if reads is None else frozenset(reads)
        self.zeros = frozenset(() if zeros is None else zeros)
        if unknown := (self.reads | self.zeros) - every:
            raise InvalidValueError(
                f"{type(self).__name__}: reads and zeros must be numbers of the {len(every)} fields of "
                f"neuron_layout(space), from 0, found {sorted(unknown)}"
            )

    @property
    def reads_edges(self) -> bool:
        """Whether edges are read."""
        return not self.reads.isdisjoint(range(len(self.neurons.edges)))

    def reads_of(self, node: str) -> list[bool]:
        """Which streams of a node are read."""
        first = self.neurons.first(node)
        return [first + i in self.reads for i in range(len(self.neurons.nodes[node].charges))]

    def split(self, features: Features) -> tuple[list[Tensor], dict[str, Streams], list[Tensor]]:
        """Checked features as those of each edge set, streams of each node, and ``const`` in a list, if it exists."""
        self.in_layout.require(features, self.channels, type(self).__name__, next(self.parameters(), None))
        tensors, first = features.tensors, self.neurons.first
        nodes = {n: tensors[first(n) : first(n) + len(plan.charges)] for n, plan in self.neurons.nodes.items()}
        return list(tensors[: len(self.neurons.edges)]), nodes, list(tensors[-1:] if self.neurons.const else ())

    def join(self, edges: Iterable[Tensor], nodes: Iterable[Streams], const: Iterable[Tensor]) -> Features:
        """The inverse of `split`."""
        return Features(self.out_layout, (*edges, *(t for streams in nodes for t in streams), *const))

    def extra_repr(self) -> str:
        return f"{self.space}, {self.channels}"
