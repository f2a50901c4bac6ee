"""The space that is left of a network's weights when they are in normal form."""

from __future__ import annotations

from collections import Counter

from nfn_monomial.linear_algebra import Span
from nfn_monomial.space.axes import Axis, each_axis, flatten_dims, powers, segments_of
from nfn_monomial.space.nodes import Node
from nfn_monomial.space.weight_space import WeightSpace
from nfn_monomial.symmetry import Symmetry

from .derive import Fibre
from .kinds import Linear, Rotary, Rotation, Turn


def left_of(fibre: Fibre) -> WeightSpace:
    """Returns the space of normal forms.

    Folded gains, statistics and emptied parameters are left out. Signs and permutations are left on a node that
    matrices act on, and one neuron less on a node whose mean nobody sees. An axis has the charges that folding leaves,
    without the gauges that have become 1; on a node with rotations it has the charge 1 of a sign. Where a tensor reads
    the 1 that a norm adds in place of its bias, its means are a tensor of their own, see `mean_of`.
    """
    space = fibre.whole
    gone = {gain.place.piece for gain in fibre.gains} | {place.piece for place, _ in fibre.shifts}
    gone |= {name for norm in fibre.constants.statistics for name in (norm.mean, norm.variance)}
    gone |= fibre.constants.emptied()
    turns = {turn.node: turn for turn in fibre.turns}
    folded: dict[str, set[int]] = {}
    for gain in fibre.gains:
        folded.setdefault(gain.place.axis.node, set()).add(gain.gauge)
    nodes = {name: _node(node, turns.get(name), folded.get(name, set())) for name, node in space.nodes.items()}

    def changed(axis: Axis) -> list[Axis]:
        turn, without = turns.get(axis.node), folded.get(axis.node, set())
        charges, extra = fibre.charges.get((axis.node, powers(axis.charge)), (powers(axis.charge), []))
        if isinstance(turn, Rotation):
            return [Axis(axis.node, (charges[0], 1)), *extra]
        kept = tuple(q for n, q in enumerate(charges) if n not in without)
        if not kept and space.nodes[axis.node].size == 1:
            return extra
        kept = kept or charges[:1]
        return [Axis(axis.node, kept if len(kept) > 1 else kept[0]), *extra]

    parameters = {
        name: tuple(each_axis(dim, changed) for dim in dims)
        for name, dims in space.parameters.items()
        if name not in gone
    }
    for shift, readers in fibre.shifts:
        for place in readers:
            # A product of the two, summed over the node: factors of both act on it, and the reader's other axes.
            rest = [a for at, a in enumerate(space.axes[place.piece]) if at != place.at]
            shared = {place.axis.node, *space.ancestry(place.axis.node)}
            both = [*rest, *(a for a in space.axes[shift.piece] if isinstance(a, Axis) and a.node not in shared)]
            both += [a for axis in (place.axis, shift.axis) for a in changed(axis)[1:]]
            single = [a for a in both if isinstance(a, Axis) and space.nodes[a.node].size == 1]
            dims = [each_axis(a, changed) for a in both if a not in single]
            parameters[mean_of(place.piece)] = (*dims[:-1], (*flatten_dims(dims[-1:]), *single)) if dims else (*single,)
    parts = [part for dims in parameters.values() for dim in dims for part in segments_of(dim)]
    used = {axis.node for part in parts for axis in part if isinstance(axis, Axis)}
    parents = {nodes[name].parent for name in used}
    nodes = {name: node for name, node in nodes.items() if name in used | parents}
    ties = {other: name for other, name in space.ties.items() if name not in gone}
    dead = [piece for piece in space.dead if space.pieces[piece].parameter not in gone]

    # A node of one neuron with nothing but a sign is left out if its flip is that of other nodes' neurons all at once,
    # as the sign of a whole stream is, once its entries have signs of their own.
    flips: dict[str, dict[int, Counter[int]]] = {name: {} for name in nodes}  # gauge -> pieces that it flips
    for number, axes in enumerate(WeightSpace(nodes, parameters).axes.values()):
        for axis in (axis for axis in axes if isinstance(axis, Axis)):
            for gauge, (kind, q) in enumerate(zip(nodes[axis.node].gauges, powers(axis.charge), strict=True)):
                if kind.flips:
                    flips[axis.node].setdefault(gauge, Counter())[number] += q
    spare: set[str] = set()
    for name, node in nodes.items():
        if node.size == 1 and node.gauges == (Symmetry.SIGN,):
            others = (x for other, of_node in flips.items() if other not in {name, *spare} for x in of_node.values())
            if flips[name].get(0, {}) in Span(2, others):
                spare.add(name)
    parameters = {
        name: tuple(each_axis(dim, lambda axis: [] if axis.node in spare else [axis]) for dim in dims)
        for name, dims in parameters.items()
    }
    nodes = {name: node for name, node in nodes.items() if name not in spare}
    return WeightSpace(nodes, parameters, label=space.label and f"{space.label}.normal", dead=dead, ties=ties)


def mean_of(piece: str) -> str:
    """Returns the name of a tensor that holds the means of a piece, where these matter though its norm's do not."""
    return f"{piece}.mean"


def _node(node: Node, turn: Turn | None, folded: set[int]) -> Node:
    if isinstance(turn, Rotation):
        assert node.size is not None, "a module's nodes have sizes"
        return Node((Symmetry.PERMUTATION, Symmetry.SIGN), node.size - turn.centred, node.parent)
    if isinstance(turn, Linear | Rotary):
        return node._replace(gauges=tuple(Symmetry.SIGN if n == turn.gauge else g for n, g in enumerate(node.gauges)))
    kept = tuple(gauge for n, gauge in enumerate(node.gauges) if n not in folded)
    return node._replace(gauges=kept or (Symmetry.PERMUTATION,))
