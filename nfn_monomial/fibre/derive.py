"""Derives all that leaves a module's function as it is: from its program, its space, and gradients at random points."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from nfn_monomial.space.axes import powers
from nfn_monomial.space.packing import pieces, whole
from nfn_monomial.space.places import Place
from nfn_monomial.space.weight_space import WeightSpace
from nfn_monomial.trace.graph import Program

from .constants import Constants
from .kinds import Gain, Linear, Mean, Remaining, Rotary, Rotation, Shift, Turn, fold, places_of, shape_of
from .slopes import Slopes, Tensors


@dataclass
class Fibre:
    """The directions that leave a network's function as it is.

    Attributes:
        whole: the space of its parameters, with the monomial group.
        constants: what flows from parameter to parameter.
        unused: names of parameters that nothing reads.
        gains: what is folded into others, one after the other.
        charges: node and charge of an axis -> its charge under what is left when gains are 1, and axes of what acted
            on the gains as a whole, see `fold`.
        shifts: biases of norms that the means of their readers carry.
        means: axes along which anything may be added to all entries alike, once gains are folded.
        turns: matrices on nodes.
    """

    whole: WeightSpace
    constants: Constants
    unused: frozenset[str]
    gains: list[Gain] = field(default_factory=list)
    charges: dict[tuple[str, tuple[int, ...]], Remaining] = field(default_factory=dict)
    shifts: list[Shift] = field(default_factory=list)
    means: list[Place] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)

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
        constant_free = torch.func.vmap(self.constants.given_away)(dict(tensors))
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
        dead = {*self.whole.dead, *self.pieces_of(self.constants.idle)}
        return {n: torch.zeros_like(t) if n in dead else t for n, t in x.items()}


def fibre_of(program: Program, space: WeightSpace, slopes: Slopes) -> Fibre:
    """Finds everything that leaves a module's function as it is, of the kinds that are known here.

    Each kind has candidates, by the charges of axes, which have to survive at every random point.

    Args:
        program: the module's computation.
        space: of its parameters.
        slopes: its gradients at random points.
    """
    every = places_of(space)
    parts = {name: [math.prod(shape_of(space, p)) for p in names] for name, names in space.pieces_of.items()}
    nodes = [name for name in space.nodes if space.count(name, space.sizes()) > 1]
    places = {name: [place for place in every[name] if place.piece not in space.dead] for name in nodes}

    # Matrices that contain scales, and constants: at the weights as they are.
    turns: list[Turn] = [*Linear.candidates(space, places), *Rotary.candidates(space, every)]
    constants = Constants(program, space, parts)
    for slope in constants.settled_at(slopes):
        turns = [turn for turn in turns if turn.survives(slope)]
    constants.find_idle(slopes)
    fibre = Fibre(space, constants, frozenset(program.unused))
    empty = fibre.pieces_of(constants.emptied())
    fibre.turns = [t for t in turns if len({place.writes for place in t.places if place.piece not in empty}) == 2]

    # Gains, on nodes that no other matrices act on.
    free = [name for name in nodes if all(turn.node != name for turn in fibre.turns)]
    for name in free:
        gains, charges = fold(space, places[name])
        fibre.gains += gains
        fibre.charges |= {(name, powers(place.axis.charge)): left for place, left in charges.items()}

    # Rotations and means that norms allow, where gains are folded.
    gone = {gain.place.piece for gain in fibre.gains} | empty
    left = {name: [place for place in places[name] if place.piece not in gone] for name in free}
    candidates: list[Mean | Rotation] = [*Mean.candidates(space, left), *Rotation.candidates(space, left)]
    normed = slopes.survivors(candidates, fibre.folded)
    fibre.means = [mean.place for mean in normed if isinstance(mean, Mean)]
    unseen = {place.piece for place in fibre.means}
    constants.leave_out_means({name for name, parts in space.pieces_of.items() if unseen.issuperset(parts)})
    fibre.shifts = [
        shift
        for shift in Shift.candidates(space, left, fibre.gains, fibre.means)
        if slopes.survivors([shift], functools.partial(fibre.folded, empty=shift.place.piece))
    ]
    added = {shift.place for shift in fibre.shifts}
    subtracted = {*fibre.means, *(place for shift in fibre.shifts for place in shift.readers)}
    for turn in (turn for turn in normed if isinstance(turn, Rotation)):
        centred = not subtracted.isdisjoint(turn.places)
        allowed = subtracted | added >= {*turn.places} if centred else space.nodes[turn.node].flips
        if turn.centred == centred and allowed:
            fibre.turns.append(replace(turn, places=tuple(place for place in turn.places if place not in added)))
    return fibre
