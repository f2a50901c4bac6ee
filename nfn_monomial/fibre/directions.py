"""Of which kind what acts on a network is, and where: in how many directions, and on which parameters."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from typing import NamedTuple

from nfn_monomial.space.weight_space import WeightSpace

from .kinds import Fibre
from .turns import shape_of, vectors_of

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
    found = []
    for gain in fibre.gains:
        node, taking = gain.place.axis.node, tuple(place.piece for place, power in gain.powers if power > 0)
        found.append(SharedTurn("gains", node, sizes[node], (gain.place.piece,), taking))
    for turn in fibre.turns:
        kind = turn.kind if turn.kind in KINDS else "rotations"
        size = 2 * len(turn.pairs) or sizes[turn.node]
        writers, readers = (tuple(p.piece for p in turn.places if p.writes == side) for side in (True, False))
        found.append(SharedTurn(kind, turn.node, size, writers, readers, turn.kind == "centred"))
    return found


def directions_of(fibre: Fibre, left: WeightSpace) -> dict[str, dict[str, int]]:
    """Kind -> node or parameter -> number of directions; ``left`` is the space of normal forms."""
    space = fibre.whole
    sizes, shapes, emptied = space.sizes(), space.shapes(), fibre.emptied()
    found: dict[str, dict[str, int]] = defaultdict(Counter)
    if scaled_nodes := [name for name, node in left.nodes.items() if node.scales]:
        found["scales"][", ".join(scaled_nodes)] = left.group_dimension
    for turn in fibre.turns:
        n = sizes[turn.node]
        blocks = space.count(turn.node, sizes) // n
        if turn.kind == "linear":
            there = [place for place in turn.places if space.pieces[place.piece].parameter not in emptied]
            p, q = (sum(vectors_of(space, place) for place in there if place.writes == side) for side in (True, False))
            found["linear"][turn.node] += blocks * (n * n - max(n - p, 0) * max(n - q, 0))
        elif turn.kind == "rotary":
            inner = blocks * n if any(p.over for p in turn.places) else 1
            found["rotary"][turn.node] += 2 * len(turn.pairs) * inner
        else:
            k = n - (turn.kind == "centred")
            found["rotations"][turn.node] += blocks * k * (k - 1) // 2
    for gain in fibre.gains:
        found["gains"][gain.place.piece] += space.count(gain.place.axis.node, sizes)
    along: dict[str, set[int]] = {}
    for place in fibre.ones:
        along.setdefault(place.piece, set()).add(place.at)
    for piece, dims in along.items():
        shape = shape_of(space, piece)
        found["means"][piece] = math.prod(shape) - math.prod([n - (i in dims) for i, n in enumerate(shape)])
    for source in fibre.constants.sources:
        mean = source.kind == "rows" and source.parameter in along  # that has it already
        found["constants"][source.parameter] += source.dimension(shapes[source.parameter]) - mean
    for place, _ in fibre.shifts:
        found["constants"][place.piece] += space.count(place.axis.node, sizes)
    for name in fibre.idle:
        found["constants"][name] += math.prod(shapes[name])
    given = {source.parameter for source in fibre.constants.sources} | fibre.idle
    for piece in space.dead:
        if space.pieces[piece].parameter not in given:
            found["constants"][piece] += math.prod(shape_of(space, piece))
    return {kind: dict(found[kind]) for kind in KINDS if kind in found}
