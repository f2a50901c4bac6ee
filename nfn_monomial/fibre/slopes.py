"""Gradients of a random sum of a network's answers, at random weights."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from nfn_monomial.running import answers, random_sum
from nfn_monomial.space.packing import pieces
from nfn_monomial.space.places import Place
from nfn_monomial.space.weight_space import WeightSpace
from nfn_monomial.verify.points import Point

Tensors = Mapping[str, Tensor]

_RTOL = 1e-9  # of rounding in float64, far below what any other direction changes
_DEAD = 1e-12  # of all gradients: nothing is known of a tensor that has less


@dataclass(frozen=True)
class Slope:
    """A network at one point, and the gradient there.

    Attributes:
        space: of its parameters.
        tensors: its parameters.
        gradients: of a random sum of answers, by them; NaN for buffers, which nothing may turn.
        length: the sum of the norms of all gradients.
    """

    space: WeightSpace
    tensors: Tensors
    gradients: Tensors
    length: float

    @functools.cached_property
    def pieces(self) -> tuple[Tensors, Tensors]:
        """Parameters and gradients as pieces of a batch of one."""
        both = ({n: t.unsqueeze(0) for n, t in tensors.items()} for tensors in (self.tensors, self.gradients))
        x, gradients = (pieces(self.space, tensors, self.space.sizes()) for tensors in both)
        return x, gradients

    def product(self, place: Place) -> tuple[Tensor, Tensor]:
        """``G X^T`` of a piece and its gradient, over all but the place's neurons, and the norms ``|G| |X|``."""
        x, gradient = (place.flatten(tensors[place.piece]) for tensors in self.pieces)
        return gradient @ x.mT, gradient.norm() * x.norm()

    def ignores_mean(self, place: Place) -> bool:
        """True if the same may be added to all entries along an axis, to first order."""
        gradient = self.pieces[1][place.piece]
        return bool(gradient.norm() > _DEAD * self.length) and vanishes(gradient.sum(1 + place.at), gradient.norm())

    def ignores(self, parameter: str) -> bool:
        """True if a parameter may change in any way, to first order."""
        return bool(self.gradients[parameter].norm() <= _DEAD * self.length)


def small(values: Tensor, size: Tensor) -> Tensor:
    """A mask of the sums of products that are 0 within rounding, by the size of their terms."""
    return values.abs() <= _RTOL * size


def vanishes(values: Tensor, size: Tensor) -> bool:
    """True if all of them are; nothing is known where there is no gradient."""
    return bool(size > 0) and bool(small(values, size).all())


class Candidate(Protocol):
    """A way in which weights may move without a change of the function, such as the classes of `kinds`."""

    def survives(self, slope: Slope) -> bool:
        """Returns True if the function stays as it is at one more point, to first order."""


_Candidate = TypeVar("_Candidate", bound=Candidate)


class Slopes:
    """Gradients of random sums of a module's answers, at random weights, buffers and inputs.

    They are as large as several networks, so there are those of one point at a time.

    Args:
        space: of the module's parameters.
        points: the random points.
        kept: tensors that are the module's own at all points.
    """

    def __init__(self, space: WeightSpace, points: Sequence[Point], kept: Tensors) -> None:
        self.space, self.points, self.kept = space, points, kept

    def at(self, change: Callable[[dict[str, Tensor]], dict[str, Tensor]] = dict) -> Iterator[Slope]:
        """Yields the gradient at each point, for parameters that a change has been made to."""
        for number, point in enumerate(self.points):
            weights = point.weights() | dict(self.kept)
            tensors = change({name: weights.pop(name) for name in self.space.parameters})
            parameters = dict(point.module.named_parameters())
            leaves = {name: t.detach().requires_grad_() for name, t in tensors.items() if name in parameters}
            outputs = answers(point.module, weights | tensors | leaves, *point.inputs, gradients=True)
            total = random_sum(outputs, torch.Generator().manual_seed(number))
            gradients = {name: torch.full_like(t, torch.nan) for name, t in tensors.items()}
            if total is not None:
                known = torch.autograd.grad(total, list(leaves.values()), allow_unused=True, materialize_grads=True)
                gradients |= dict(zip(leaves, known, strict=True))
            length = sum(float(gradients[name].nan_to_num().norm()) for name in leaves)
            yield Slope(self.space, tensors, gradients, length)

    def survivors(
        self,
        candidates: Sequence[_Candidate],
        change: Callable[[dict[str, Tensor]], dict[str, Tensor]] = dict,
    ) -> list[_Candidate]:
        """Returns the candidates that survive at every point; no more points are looked at than are needed."""
        candidates = list(candidates)
        for slope in self.at(change) if candidates else ():
            candidates = [candidate for candidate in candidates if candidate.survives(slope)]
            if not candidates:
                break
        return candidates
