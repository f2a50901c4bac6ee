"""The directions that leave a network's function as it is: how many of which kind, and on which parameters."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from typing import NamedTuple

from nfn_monomial.space.weight_space import WeightSpace

from .derive import Fibre
from .kinds import Rotary, Rotation, shape_of

KINDS = {
    "scales": "positive scales of neurons",
    "linear": "invertible matrices",
    "rotary": "rotary pairs of queries and keys",
    "rotations": "rotations that norms allow",
    "gains": "gains that readers take over",
    "means": "means that norms subtract",
    "constants": "constants that flow to later parameters, or to none",
}


class SharedTurn(NamedTuple):
    """Parameters that share a matrix: what writes to a node is multiplied by it, what reads it by its inverse.

    Attributes:
        kind: as `NormalForm.dimensions` has it: ``"linear"``, any invertible matrix; ``"rotary"``, a complex number for
            each rotary pair; ``"rotations"``, an orthogonal matrix, once gains are folded; ``"gains"``, a gain of a
            norm, which its readers take over.
        node: their node.
        size: of the matrices; there is one in each neuron of what the node is nested in.
        writers, readers: pieces of parameters.
        centred: whether a rotation has to leave ``(1, ..., 1)`` where it is, as layer norms subtract a mean.
    """

    kind: str
    node: str
    size: int
    writers: tuple[str, ...]
    readers: tuple[str, ...]
    centred: bool = False


def mappings_of(fibre: Fibre) -> list[SharedTurn]:
    """See `NormalForm.mappings`."""
    sizes = fibre.whole.sizes()
    shared = []
    for gain in fibre.gains:
        node, taking = gain.place.axis.node, tuple(place.piece for place, power in gain.powers if power > 0)
        shared.append(SharedTurn("gains", node, sizes[node], (gain.place.piece,), taking))
    for turn in fibre.turns:
        size = 2 * len(turn.pairs) if isinstance(turn, Rotary) else sizes[turn.node]
        writers, readers = (tuple(place.piece for place in turn.side(writes)) for writes in (True, False))
        centred = isinstance(turn, Rotation) and turn.centred
        shared.append(SharedTurn(turn.kind, turn.node, size, writers, readers, centred))
    return shared


def directions_of(fibre: Fibre, left: WeightSpace) -> dict[str, dict[str, int]]:
    """Kind -> node or parameter -> number of directions; ``left`` is the space of normal forms."""
    space = fibre.whole
    sizes, shapes, empty = space.sizes(), space.shapes(), fibre.pieces_of(fibre.constants.emptied())
    counts: dict[str, dict[str, int]] = defaultdict(Counter)
    if scaled_nodes := [name for name, node in left.nodes.items() if node.scales]:
        counts["scales"][", ".join(scaled_nodes)] = left.group_dimension
    for turn in fibre.turns:
        counts[turn.kind][turn.node] += turn.dimension(space, empty)
    for gain in fibre.gains:
        counts["gains"][gain.place.piece] += space.count(gain.place.axis.node, sizes)
    along: dict[str, set[int]] = {}
    for place in fibre.means:
        along.setdefault(place.piece, set()).add(place.at)
    for piece, dims in along.items():
        shape = shape_of(space, piece)
        counts["means"][piece] = math.prod(shape) - math.prod([n - (i in dims) for i, n in enumerate(shape)])
    for source in fibre.constants.sources:
        mean = source.kind == "rows" and source.parameter in along  # that has it already
        counts["constants"][source.parameter] += source.dimension(shapes[source.parameter]) - mean
    for place, _ in fibre.shifts:
        counts["constants"][place.piece] += space.count(place.axis.node, sizes)
    for name in fibre.constants.idle:
        counts["constants"][name] += math.prod(shapes[name])
    counted = {source.parameter for source in fibre.constants.sources} | fibre.constants.idle
    for piece in space.dead:
        if space.pieces[piece].parameter not in counted:
            counts["constants"][piece] += math.prod(shape_of(space, piece))
    return {kind: dict(counts[kind]) for kind in KINDS if kind in counts}
