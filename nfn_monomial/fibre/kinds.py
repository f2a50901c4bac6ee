"""What acts on a network besides its monomial group: found on every node of its weight space by one gradient.

Whatever reads a network's outputs has a gradient that is orthogonal to all directions in which the function stays as it
is. So at generic weights, buffers and inputs, in float64, the gradient ``G`` of a random sum of outputs tells for every
node whether a whole group of matrices acts there: with writers ``P`` (tensors that lead to its neurons) and readers
``Q``, every invertible matrix does where ``G_P P^T = Q G_Q^T``, every rotation where ``G_P P^T + G_Q Q^T`` is
symmetric. What a gradient shows at random points holds at all points near, since groups and networks
are analytic there; `NormalForm` tests whole elements of it besides.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from nfn_monomial.space.axes import Axis, combined, flow, powers
from nfn_monomial.space.packing import cut, joined
from nfn_monomial.space.places import Place
from nfn_monomial.space.weight_space import WeightSpace
from nfn_monomial.symmetry import Symmetry
from nfn_monomial.trace.graph import program_of

from .constants import Constants
from .slopes import Slopes
from .sources import Statistics, statistics_of
from .turns import Turn, centred, complement, flattened, places_of, scaled

Tensors = Mapping[str, Tensor]

_RTOL = 1e-9  # of rounding in float64, far below what any other direction changes
_DEAD = 1e-12  # of all gradients: nothing is known of what has less


class Gain(NamedTuple):
    """A parameter with one factor for each neuron, which others can take over.

    Attributes:
        place: its axis.
        gauge: number of the node's gauge by which it becomes 1.
        powers: other axes on the node, and with what power of the factor they are multiplied then.
    """

    place: Place
    gauge: int
    powers: tuple[tuple[Place, int], ...]


@dataclass
class Fibre:
    """All that leaves a network's function as it is.

    Attributes:
        whole: the space of its parameters, with the monomial group.
        constants: what flows from parameter to parameter.
        statistics: of batch norms, which become those of a fresh one.
        frozen: names of tensors that stay as they are.
        unused: names of parameters that nothing reads.
        idle: names of parameters that do not matter once constants are given away.
        gains: what is folded into others, one after the other.
        charges: node and charge of an axis -> its charge under what is left when gains are 1, and axes of what acted
            on the gains as a whole.
        shifts: what norms add and no later bias can take: it becomes 1, and readers carry what it did in their means.
        ones: axes along which anything may be added to all entries alike, once gains are folded.
        turns: matrices on nodes.
    """

    whole: WeightSpace
    constants: Constants
    statistics: list[Statistics]
    frozen: frozenset[str]
    unused: frozenset[str]
    idle: set[str] = field(default_factory=set)
    gains: list[Gain] = field(default_factory=list)
    charges: dict[tuple[str, tuple[int, ...]], tuple[tuple[int, ...], list[Axis]]] = field(default_factory=dict)
    shifts: list[tuple[Place, tuple[Place, ...]]] = field(default_factory=list)
    ones: list[Place] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)

    def emptied(self) -> set[str]:
        """Parameters that hold nothing once constants are given away."""
        return self.constants.emptied() | self.idle

    def opened(self, tensors: Tensors) -> dict[str, Tensor]:
        """Parameters ``(B, *shape)`` as pieces ``(B, *axes)``."""
        sizes = self.whole.sizes()
        return {p: x for name in self.whole.parameters for p, x in cut(self.whole, name, tensors[name], sizes)}

    def of_network(self, tensors: Tensors) -> dict[str, Tensor]:
        """Parameters of one network as pieces of a batch of one."""
        return self.opened({n: t.unsqueeze(0) for n, t in tensors.items()})

    def folded(self, tensors: Tensors, empty: str = "") -> dict[str, Tensor]:
        """Parameters of one network, reduced; one piece becomes 0, if it is named."""
        pieces = self.reduced({n: t.unsqueeze(0) for n, t in tensors.items()})
        if empty:
            pieces[empty] = torch.zeros_like(pieces[empty])
        return {n: t.squeeze(0) for n, t in self.closed(pieces).items()}

    def closed(self, pieces: Tensors) -> dict[str, Tensor]:
        """The inverse of `opened`."""
        sizes = self.whole.sizes()
        return {name: joined(self.whole, name, pieces, sizes) for name in self.whole.parameters}

    def reduced(self, tensors: Tensors) -> dict[str, Tensor]:
        """Networks ``(B, *shape)`` as pieces: without what other parameters take over, and means that nobody sees."""
        tensors = dict(tensors)
        for norm in self.statistics:
            fresh = torch.zeros_like(tensors[norm.mean]), torch.ones_like(tensors[norm.variance])
            tensors = norm.replaced(tensors, *fresh)
        found = self.opened(torch.func.vmap(self.constants.given_away)(tensors))
        carried = {
            place: scaled(found[place.piece], place, _of_neurons(found[own.piece], own)).mean(
                1 + place.at, keepdim=True
            )
            for own, readers in self.shifts
            for place in readers
        }
        for own, _, taking in self.gains:
            factor = _of_neurons(found[own.piece], own)
            for place, power in taking:
                moved = scaled(found[place.piece], place, factor**power)
                found[place.piece] = torch.where(found[place.piece] == 0, 0, moved)
            found[own.piece] = torch.ones_like(found[own.piece])
        for own, _ in self.shifts:
            found[own.piece] = torch.ones_like(found[own.piece])
        for place, mean in carried.items():
            found[place.piece] = centred(found[place.piece], place) + mean
        for place in self.ones:
            found[place.piece] = centred(found[place.piece], place)
        dead = {*self.whole.dead, *(piece for name in self.idle for piece in self.whole.pieces_of[name])}
        return {n: torch.zeros_like(x) if n in dead else x for n, x in found.items()}


def _of_neurons(x: Tensor, place: Place) -> Tensor:
    """A piece with one entry for each neuron, as ``(B, *what the node is nested in, n)``."""
    return flattened(x, place).squeeze(-1)


def fibre_of(module: nn.Module, inputs: tuple[Any, ...], kwargs: Mapping[str, Any], frozen: frozenset[str]) -> Fibre:
    """All that leaves a module's function as it is, of the kinds that are known here."""
    program = program_of(module, inputs, kwargs, frozen)
    if program.optional:  # buffers that are no statistics are constants, as the base of an adapter
        frozen = frozen | program.optional
        program = program_of(module, inputs, kwargs, frozen)
    space = WeightSpace.from_module(module, inputs, kwargs=kwargs, frozen=frozen)
    slopes = Slopes(module, (inputs, dict(kwargs)), space, frozen)
    parts = {name: [_extent(space, piece) for piece in pieces] for name, pieces in space.pieces_of.items()}
    constants = Constants(program, parts)
    fibre = Fibre(space, constants, statistics_of(program, space), frozen, frozenset(program.unused))
    every = {name: [p for p in found if p.piece not in space.dead] for name, found in places_of(space).items()}
    nodes = [name for name, node in space.nodes.items() if space.count(name, space.sizes()) > 1]
    linear = [turn for name in nodes if (turn := _linear(space, name, every[name]))]
    rotary = rotary_places(space)
    for slope in constants.found_at(slopes):
        pieces = fibre.of_network(slope.tensors), fibre.of_network(slope.gradients)
        linear = [turn for turn in linear if _vanishes(*_moment(turn, *pieces))]
        rotary = [turn for found in rotary if (turn := _rotary(found, *pieces))]
    idle = constants.generating & {*space.parameters} - constants.emptied()
    for slope in slopes.at(fibre.folded) if idle else ():
        idle = {name for name in idle if slope.gradients[name].norm() <= _DEAD * slope.length}
    fibre.idle = idle
    constants.leave_out(idle)
    linear = [turn for turn in linear if _on_both_sides(turn, {p for n in fibre.emptied() for p in space.pieces_of[n]})]
    fibre.turns = [*linear, *rotary]
    free = [name for name in nodes if all(turn.node != name for turn in fibre.turns)]
    for name in free:
        _fold(fibre, every[name])
    gone = {gain.place.piece for gain in fibre.gains} | fibre.emptied()
    left = {name: [p for p in every[name] if p.piece not in gone] for name in free}
    streams = [Turn(name, "normed", tuple(left[name])) for name in free if left[name] and space.nodes[name].permutes]
    ones = [p for name in free for p in left[name] if _size(space, p.axis) > 1]
    moments: dict[str, list[tuple[Tensor, Tensor]]] = defaultdict(list)
    for slope in slopes.at(fibre.folded):
        tensors, gradients = fibre.of_network(slope.tensors), fibre.of_network(slope.gradients)
        ones = [p for p in ones if _unseen(gradients[p.piece], p, slope.length)]
        streams = [t for t in streams if space.nodes[t.node].flips or not set(ones).isdisjoint(t.places)]
        for turn in streams:
            moments[turn.node].append(_moment(turn, tensors, gradients))
    fibre.ones, seen = ones, {p.piece for p in ones}
    means = {name for name, pieces in space.pieces_of.items() if seen.issuperset(pieces)}
    constants.leave_out(means, ("mean", "norm"))  # a norm subtracts them anyhow
    fibre.shifts = _shifts(fibre, left, slopes)
    fibre.turns += [turn for found in streams if (turn := _rotation(fibre, found, moments[found.node]))]
    return fibre


def _shifts(fibre: Fibre, left: Mapping[str, list[Place]], slopes: Slopes) -> list[tuple[Place, tuple[Place, ...]]]:
    """What norms add that no bias takes over, with what reads it: without it, means of these would not matter."""
    found = []
    for own, _, taking in fibre.gains:
        places = [p for p, _ in taking if p in left.get(own.axis.node, ())]
        added = [p for p in places if p.writes and len(_neurons(fibre, p)) == 1]
        readers = tuple(p for p in places if not p.writes and p not in fibre.ones)
        if len(added) == 1 and readers:

            def without(tensors: Tensors, piece: str = added[0].piece) -> dict[str, Tensor]:
                return fibre.folded(tensors, empty=piece)

            points = ((fibre.of_network(slope.gradients), slope.length) for slope in slopes.at(without))
            if all(_unseen(g[p.piece], p, length) for g, length in points for p in readers):
                found.append((added[0], readers))
    return found


def _neurons(fibre: Fibre, place: Place) -> list[int]:
    """Sizes of a piece's axes but those of 1 and those that the place's node is nested in."""
    sizes = [_size(fibre.whole, axis) for axis in fibre.whole.axes[place.piece]]
    return [n for i, n in enumerate(sizes) if n > 1 and i not in place.over]


def _rotation(fibre: Fibre, turn: Turn, moments: Sequence[tuple[Tensor, Tensor]]) -> Turn | None:
    """What turns a node when gains are folded: all rotations, or where means are not seen those of what is left."""
    node, added = fibre.whole.nodes[turn.node], {place for place, _ in fibre.shifts}
    unseen = {*fibre.ones, *(place for _, readers in fibre.shifts for place in readers)}
    centre = not unseen.isdisjoint(turn.places)
    fits = unseen | added >= {*turn.places} if centre else node.flips
    if not fits or (node.size or 0) <= 1 + centre:
        return None
    if centre:
        basis = complement(node.size or 0)
        moments = [(basis.mT @ total @ basis, size) for total, size in moments]
    if not all(_vanishes(*moment) for moment in moments):
        return None
    return Turn(turn.node, "centred" if centre else "normed", tuple(p for p in turn.places if p not in added))


def _linear(space: WeightSpace, name: str, places: list[Place]) -> Turn | None:
    """All invertible matrices, where each axis has the charge +1 or -1 of one scale and sign."""
    node = space.nodes[name]
    scales = [n for n, gauge in enumerate(node.gauges) if gauge.scales]
    if len(scales) != 1 or node.gauges[scales[0]] is not Symmetry.MONOMIAL or (node.size or 0) < 2:
        return None
    charged = [p._replace(axis=Axis(name, powers(p.axis.charge)[scales[0]])) for p in places]
    return (
        Turn(name, "linear", tuple(charged), scales[0]) if all(abs(flow(p.axis.charge)) == 1 for p in charged) else None
    )


def _on_both_sides(turn: Turn, gone: Collection[str]) -> bool:
    """Whether something writes to a node and something reads it, among what is not gone."""
    return len({place.writes for place in turn.places if place.piece not in gone}) == 2


def rotary_places(space: WeightSpace) -> list[Turn]:
    """Where queries and keys may be made of rotary pairs: one scale multiplies some tensors and divides others.

    The pairs lie along an axis of theirs on which nothing acts, of one even size in all of them.
    """
    found = []
    for name, places in places_of(space).items():
        for number, gauge in enumerate(space.nodes[name].gauges):
            charged = [(p, powers(p.axis.charge)[number]) for p in places if powers(p.axis.charge)[number]]
            if gauge.flips and {q for _, q in charged} == {1, -1}:
                inner = [_inside(space, place)._replace(axis=Axis(name, q)) for place, q in charged]
                sizes = {_size(space, space.axes[p.piece][p.at]) for p in inner if p.at >= 0}
                if all(p.at >= 0 for p in inner) and len(sizes) == 1:
                    found.append(Turn(name, "rotary", tuple(inner), number))
    return found


def _inside(space: WeightSpace, place: Place) -> Place:
    """The first axis of a piece along which nothing acts and which is written to, in a node's neurons; -1 for none."""
    axes = space.axes[place.piece]
    over = (*place.over, place.at) if _size(space, axes[place.at]) > 1 else ()
    for at, axis in enumerate(axes):
        still = axis if isinstance(axis, int) else flow(axis.charge) > 0 and not space.nodes[axis.node].permutes
        if still and at not in over and _size(space, axis) % 2 == 0:
            return place._replace(path=(*over, at))
    return place._replace(path=(-1,))


def _rotary(turn: Turn, pieces: Tensors, slopes: Tensors) -> Turn | None:
    """The pairs of entries that may be multiplied by complex numbers at one point, to first order, if these are all.

    Where pairs are known from other points, no other pairs are found.
    """
    angles, scales = torch.zeros(()), torch.zeros(())
    size = torch.zeros(())
    for place in turn.places:
        g, x = (flattened(t[place.piece], place) for t in (slopes, pieces))
        own = (g @ x.mT).flatten(0, -3)
        angles = angles + own
        scales = scales + (own if place.writes else -own)
        size = size + g.norm() * x.norm()
    diagonal = scales.diagonal(dim1=-2, dim2=-1)
    turns = (angles - angles.mT).abs().amax(0) <= _RTOL * size
    stretches = (diagonal.unsqueeze(-1) + diagonal.unsqueeze(-2)).abs().amax(0) <= _RTOL * size
    fits = (turns & stretches).triu(1)
    pairs = tuple((i, j) for i, j in fits.nonzero().tolist() if not turn.pairs or (i, j) in turn.pairs)
    return turn._replace(pairs=pairs) if sorted(sum(pairs, ())) == list(range(len(fits))) else None


def _fold(fibre: Fibre, places: list[Place]) -> None:
    """Find parameters that scale a node's neurons, of those gauges in which any sign and scale acts."""
    space = fibre.whole
    charges = {place: powers(place.axis.charge) for place in places}
    extra: dict[Place, list[Axis]] = {place: [] for place in places}
    for place in places:
        path = (*place.over, place.at)
        axes = [space.axes[place.piece][i] for i in path]
        rest = [a for i, a in enumerate(space.axes[place.piece]) if i not in path]
        still = all(not flow(a.charge) for a in axes if isinstance(a, Axis) and (space.nodes[a.node].size or 0) > 1)
        # Factors of what the neurons are nested in are not taken over: a gain that has one stays.
        still = still and not any(any(powers(a.charge)) for a in axes[:-1] if isinstance(a, Axis))
        alone = space.pieces_of[space.pieces[place.piece].parameter] == [place.piece]
        own, gauges = charges[place], space.nodes[place.axis.node].gauges
        fits = (n for n, (q, g) in enumerate(zip(own, gauges, strict=True)) if abs(q) == 1 and g is Symmetry.MONOMIAL)
        gauge = next(fits, None) if still and alone and all(_size(space, a) == 1 for a in rest) else None
        if gauge is None:
            continue
        shares = {p: q[gauge] * own[gauge] for p, q in charges.items()}
        taking = tuple((p, -share) for p, share in shares.items() if share and p != place)
        fibre.gains.append(Gain(place, gauge, taking))
        # What is left moves that gauge along with the others, so that the gain stays as it is.
        charges = {p: tuple(a - shares[p] * b for a, b in zip(q, own, strict=True)) for p, q in charges.items()}
        constants = [a for a in rest if isinstance(a, Axis)] + extra[place]
        for p, share in shares.items():
            extra[p] = [*extra[p], *(Axis(a.node, combined([a.charge], [-share])) for a in constants if share)]
    for place, charge in charges.items():
        fibre.charges[place.axis.node, powers(place.axis.charge)] = charge, extra[place]


def _extent(space: WeightSpace, piece: str) -> int:
    return math.prod(_size(space, axis) for axis in space.axes[piece])


def _size(space: WeightSpace, axis: Axis | int) -> int:
    return axis if isinstance(axis, int) else space.sizes()[axis.node]


def _moment(turn: Turn, pieces: Tensors, slopes: Tensors) -> tuple[Tensor, Tensor]:
    """What has to be 0 for a turn to act, and the size of what is added up to it."""
    total, size = torch.zeros(()), torch.zeros(())
    for place in turn.places:
        x, g = (flattened(t[place.piece], place) for t in (pieces, slopes))
        own = g @ x.mT
        total = total + (-own.mT if turn.kind == "linear" and not place.writes else own)
        size = size + g.norm() * x.norm()
    return total if turn.kind == "linear" else total - total.mT, size


def _unseen(gradient: Tensor, place: Place, length: float) -> bool:
    """Whether entries along an axis may all be changed alike, to first order at one point."""
    alive = bool(gradient.norm() > _DEAD * length)
    return alive and _vanishes(gradient.sum(1 + place.at), gradient.norm())


def _vanishes(total: Tensor, size: Tensor) -> bool:
    """Whether sums of products are 0 within rounding; of what has no gradient nothing is known."""
    return bool(size > 0) and bool(total.abs().max() <= _RTOL * size)
