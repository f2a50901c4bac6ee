"""What acts on a network besides its monomial group: found on every node of its weight space by one gradient.

Whatever reads a network's outputs has a gradient that is orthogonal to all directions in which the function stays as it
is. So at generic weights, buffers and inputs, in float64, the gradient ``G`` of a random sum of outputs tells for every
node whether a whole group of matrices acts there: with writers ``P`` (tensors that lead to its neurons) and readers
``Q``, every invertible matrix does where ``G_P P^T = Q G_Q^T``, every rotation where ``G_P P^T + G_Q Q^T`` is
symmetric. What a gradient shows at random points holds at all points near, since groups and networks
are analytic there; `NormalForm` tests whole elements of it besides.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self, TypeVar

import torch
from torch import Tensor, nn

from nfn_monomial.space.axes import Axis, combined, flow, powers
from nfn_monomial.space.packing import pieces, whole
from nfn_monomial.space.places import Place
from nfn_monomial.space.weight_space import WeightSpace
from nfn_monomial.symmetry import Symmetry
from nfn_monomial.trace.graph import program_of

from .constants import Constants
from .places import places_of, shape_of
from .slopes import Slope, Slopes
from .sources import Statistics, statistics_of
from .turns import Linear, Rotary, Rotation, Turn

Tensors = Mapping[str, Tensor]


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


class Mean(NamedTuple):
    """An axis along which anything may be added to all entries alike, once gains are folded.

    Attributes:
        place: the axis.
    """

    place: Place

    @classmethod
    def candidates(cls, space: WeightSpace, places: Mapping[str, Sequence[Place]]) -> list[Self]:
        """All axes of several entries."""
        return [cls(p) for on_node in places.values() for p in on_node if shape_of(space, p.piece)[p.at] > 1]

    def survives(self, slope: Slope) -> bool:
        """True if the function stays as it is at one more point, to first order."""
        return slope.ignores_mean(self.place)


class Shift(NamedTuple):
    """A bias that a norm adds and no later bias can take: it becomes 1, and the means of its readers carry it.

    Attributes:
        place: its axis.
        readers: axes whose means nothing but the bias sees.
    """

    place: Place
    readers: tuple[Place, ...]

    @classmethod
    def candidates(
        cls,
        space: WeightSpace,
        places: Mapping[str, Sequence[Place]],
        gains: Sequence[Gain],
        means: Collection[Place],
    ) -> Iterator[Self]:
        """The one bias beside a gain, if there are readers whose means it keeps from vanishing."""
        for gain in gains:
            beside = [place for place, _ in gain.powers if place in places.get(gain.place.axis.node, ())]
            added = []
            for place in (place for place in beside if place.writes):
                sizes = (n for i, n in enumerate(shape_of(space, place.piece)) if i not in place.over)
                added += [place] * (sum(n > 1 for n in sizes) == 1)
            readers = tuple(place for place in beside if not place.writes and place not in means)
            if len(added) == 1 and readers:
                yield cls(added[0], readers)

    def survives(self, slope: Slope) -> bool:
        """True if nothing sees the means at one more point, at which the bias is 0."""
        return all(map(slope.ignores_mean, self.readers))


@dataclass
class Fibre:
    """Everything that leaves a network's function as it is.

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
        shifts: biases of norms that the means of their readers carry.
        means: axes along which anything may be added to all entries alike, once gains are folded.
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
    shifts: list[Shift] = field(default_factory=list)
    means: list[Place] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)

    def emptied(self) -> set[str]:
        """Parameters that hold nothing once constants are given away."""
        return self.constants.emptied() | self.idle

    def pieces_of(self, parameters: Iterable[str]) -> set[str]:
        """The pieces of some parameters."""
        return {piece for name in parameters for piece in self.whole.pieces_of[name]}

    def folded(self, tensors: Tensors, empty: str = "") -> dict[str, Tensor]:
        """Parameters of one network, reduced; one piece becomes 0, if it is named."""
        reduced = self.reduced({n: t.unsqueeze(0) for n, t in tensors.items()})
        if empty:
            reduced[empty] = torch.zeros_like(reduced[empty])
        return {n: t.squeeze(0) for n, t in whole(self.whole, reduced, self.whole.sizes()).items()}

    def reduced(self, tensors: Tensors) -> dict[str, Tensor]:
        """Networks ``(B, *shape)`` as pieces: without what other parameters take over, and means that nobody sees."""
        tensors = dict(tensors)
        for norm in self.statistics:
            fresh = torch.zeros_like(tensors[norm.mean]), torch.ones_like(tensors[norm.variance])
            tensors = norm.replaced(tensors, *fresh)
        constant_free = torch.func.vmap(self.constants.given_away)(tensors)
        x = pieces(self.whole, constant_free, self.whole.sizes())
        carried = {
            place: place.mean(place.scaled(x[place.piece], shift.per_neuron(x[shift.piece])))
            for shift, readers in self.shifts
            for place in readers
        }
        for gain, _, taking in self.gains:
            factor = gain.per_neuron(x[gain.piece])
            for place, power in taking:
                scaled = place.scaled(x[place.piece], factor**power)
                x[place.piece] = torch.where(x[place.piece] == 0, 0, scaled)
            x[gain.piece] = torch.ones_like(x[gain.piece])
        for shift, _ in self.shifts:
            x[shift.piece] = torch.ones_like(x[shift.piece])
        for place, mean in carried.items():
            x[place.piece] = place.centred(x[place.piece]) + mean
        for place in self.means:
            x[place.piece] = place.centred(x[place.piece])
        dead = {*self.whole.dead, *self.pieces_of(self.idle)}
        return {n: torch.zeros_like(t) if n in dead else t for n, t in x.items()}


_Candidate = TypeVar("_Candidate", bound=Turn | Mean | Shift)


def surviving(candidates: Sequence[_Candidate], slopes: Iterable[Slope]) -> list[_Candidate]:
    """Candidates that survive at every point; no more points are looked at than are needed."""
    candidates = list(candidates)
    for slope in slopes if candidates else ():
        candidates = [candidate for candidate in candidates if candidate.survives(slope)]
        if not candidates:
            break
    return candidates


def fibre_of(module: nn.Module, inputs: tuple[Any, ...], kwargs: Mapping[str, Any], frozen: frozenset[str]) -> Fibre:
    """Finds everything that leaves a module's function as it is, of the kinds that are known here.

    Each kind has candidates, by the charges of axes, which have to survive at every random point.
    """
    program = program_of(module, inputs, kwargs, frozen)
    if program.optional:  # buffers that are no statistics are constants, as the base of an adapter
        frozen = frozen | program.optional
        program = program_of(module, inputs, kwargs, frozen)
    space = WeightSpace.from_module(module, inputs, kwargs=kwargs, frozen=frozen)
    slopes = Slopes(module, (inputs, dict(kwargs)), space, frozen)
    parts = {name: [math.prod(shape_of(space, p)) for p in names] for name, names in space.pieces_of.items()}
    constants = Constants(program, parts)
    fibre = Fibre(space, constants, statistics_of(program, space), frozen, frozenset(program.unused))
    nodes = [name for name in space.nodes if space.count(name, space.sizes()) > 1]
    every = places_of(space)
    places = {name: [place for place in every[name] if place.piece not in space.dead] for name in nodes}

    # Matrices that contain scales, and constants: at the weights as they are.
    turns: list[Turn] = [*Linear.candidates(space, places), *Rotary.candidates(space, every)]
    for slope in constants.settled_at(slopes):
        turns = [turn for turn in turns if turn.survives(slope)]
    idle = constants.generating & {*space.parameters} - constants.emptied()
    for slope in slopes.at(fibre.folded) if idle else ():
        idle = {name for name in idle if slope.ignores(name)}
    fibre.idle = idle
    constants.leave_out(idle)
    empty = fibre.pieces_of(fibre.emptied())
    fibre.turns = [t for t in turns if len({place.writes for place in t.places if place.piece not in empty}) == 2]

    # Rotations and means that norms allow: where gains are folded, on nodes that no other matrices act on.
    free = [name for name in nodes if all(turn.node != name for turn in fibre.turns)]
    for name in free:
        _fold(fibre, places[name])
    gone = {gain.place.piece for gain in fibre.gains} | fibre.pieces_of(fibre.emptied())
    left = {name: [place for place in places[name] if place.piece not in gone] for name in free}
    candidates: list[Mean | Rotation] = [*Mean.candidates(space, left), *Rotation.candidates(space, left)]
    normed = surviving(candidates, slopes.at(fibre.folded))
    fibre.means = [mean.place for mean in normed if isinstance(mean, Mean)]
    unseen = {place.piece for place in fibre.means}
    # A norm subtracts the means of these parameters anyhow.
    constants.leave_out({n for n, parts in space.pieces_of.items() if unseen.issuperset(parts)}, ("mean", "norm"))
    fibre.shifts = [
        shift
        for shift in Shift.candidates(space, left, fibre.gains, fibre.means)
        if surviving([shift], slopes.at(functools.partial(fibre.folded, empty=shift.place.piece)))
    ]
    added = {shift.place for shift in fibre.shifts}
    subtracted = {*fibre.means, *(place for shift in fibre.shifts for place in shift.readers)}
    for turn in (turn for turn in normed if isinstance(turn, Rotation)):
        centred = not subtracted.isdisjoint(turn.places)
        allowed = subtracted | added >= {*turn.places} if centred else space.nodes[turn.node].flips
        if turn.centred == centred and allowed:
            fibre.turns.append(replace(turn, places=tuple(place for place in turn.places if place not in added)))
    return fibre


def _fold(fibre: Fibre, places: Sequence[Place]) -> None:
    """Folds the gains on a node into its other parameters, one after the other.

    A gain f on an axis with charges c, of which ``c_k`` is 1 or -1 for a gauge k of any scale and sign, becomes 1 by
    the factors ``d_k = f^(-c_k)`` of that gauge, which multiply an axis with charges q by ``f^(-q_k c_k)``. What leaves
    a gain of 1 as it is has ``d_k = prod_(i != k) d_i^(-c_k c_i)``. So charges q become ``q - q_k c_k c``: 0 on gauge
    k, and 0 on the gain.
    """
    space = fibre.whole
    charges = {place: powers(place.axis.charge) for place in places}
    extra: dict[Place, list[Axis]] = {place: [] for place in places}
    for place in places:
        gain, gauges = charges[place], space.nodes[place.axis.node].gauges
        fits = (k for k, (c, g) in enumerate(zip(gain, gauges, strict=True)) if abs(c) == 1 and g is Symmetry.MONOMIAL)
        k = next(fits, None) if _is_gain(space, place) else None
        if k is None:
            continue
        shares = {other: q[k] * gain[k] for other, q in charges.items()}
        taking = tuple((other, -share) for other, share in shares.items() if share and other != place)
        fibre.gains.append(Gain(place, k, taking))
        charges = {p: tuple(a - shares[p] * c for a, c in zip(q, gain, strict=True)) for p, q in charges.items()}
        # What acted on the gain as a whole acts on the others in its place.
        path = (*place.over, place.at)
        constants = [axis for i, axis in enumerate(space.axes[place.piece]) if i not in path and isinstance(axis, Axis)]
        constants += extra[place]
        for other, share in shares.items():
            extra[other] = [*extra[other], *(Axis(a.node, combined([a.charge], [-share])) for a in constants if share)]
    for place, charge in charges.items():
        fibre.charges[place.axis.node, powers(place.axis.charge)] = charge, extra[place]


def _is_gain(space: WeightSpace, place: Place) -> bool:
    """True for a parameter with one entry for each neuron, on which no scale of these themselves acts.

    Factors of what the neurons are nested in are not taken over: a gain that has one stays.
    """
    axes, path = space.axes[place.piece], (*place.over, place.at)
    along = [axis for i in path if isinstance(axis := axes[i], Axis)]
    sizes = shape_of(space, place.piece)
    return (
        space.pieces_of[space.pieces[place.piece].parameter] == [place.piece]
        and all(n == 1 for i, n in enumerate(sizes) if i not in path)
        and not any(flow(axis.charge) for axis in along if (space.nodes[axis.node].size or 0) > 1)
        and not any(any(powers(axis.charge)) for axis in along[:-1])
    )
