"""Gradients of a random sum of a network's answers, at random weights."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from nfn_monomial.errors import InvalidValueError
from nfn_monomial.running import Float64, called_with, doubled, evaluating
from nfn_monomial.space.packing import pieces
from nfn_monomial.space.places import Place
from nfn_monomial.space.weight_space import WeightSpace
from nfn_monomial.verify.points import Point

Tensors = Mapping[str, Tensor]

_POINTS = 3
_DRAWS = 16
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


class Slopes:
    """Gradients of random sums of a module's answers, at random weights, buffers and inputs.

    They are as large as several networks, so there are those of one point at a time.

    Args:
        module: the network.
        inputs: its positional arguments and those with names.
        space: of its parameters.
        frozen: names of tensors that are the module's own at all points.

    Raises:
        ValueError: if there are no weights near its own at which its answers are finite.
    """

    def __init__(self, module: nn.Module, inputs: tuple[Any, Any], space: WeightSpace, frozen: frozenset[str]) -> None:
        generator = torch.Generator().manual_seed(0)
        example = Point(module, pytree.tree_map_only(Tensor, doubled, inputs))
        self.space = space
        self.points = [point for _ in range(_POINTS) for point, _ in example.near(generator, _DRAWS)]
        # What holds for the example's numbers of tokens or pixels alone is no symmetry.
        self.points += [other.point for other in example.resized(generator) if other.point is not None]
        if not self.points:
            raise InvalidValueError(
                f"{type(module).__name__} could be tested at no weights near its own: its outputs there are not "
                "finite, or it raises an error; give weights and inputs with room around them"
            )
        self._frozen = {name: t for name, t in example.weights().items() if name in frozen}

    def at(self, change: Callable[[dict[str, Tensor]], dict[str, Tensor]] = dict) -> Iterator[Slope]:
        """The gradient at each point, for parameters that a change has been made to."""
        return (self._at(n, change) for n in range(len(self.points)))

    def _at(self, n: int, change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> Slope:
        module, (args, kwargs) = self.points[n].module, self.points[n].inputs
        weights = self.points[n].weights() | self._frozen
        tensors = change({name: weights.pop(name) for name in self.space.parameters})
        parameters = dict(module.named_parameters())
        leaves = {n: t.detach().requires_grad_() for n, t in tensors.items() if n in parameters}
        arguments = pytree.tree_map_only(Tensor, torch.clone, (args, dict(kwargs)))
        with evaluating(module), Float64(), torch.enable_grad():  # type: ignore[no-untyped-call]
            answer = called_with(module, weights | dict(tensors) | leaves, *arguments)
            outputs = [t for t in pytree.tree_leaves(answer) if isinstance(t, Tensor) and t.requires_grad]
            generator = torch.Generator().manual_seed(n)
            random = [torch.randn(t.shape, dtype=torch.float64, generator=generator) for t in outputs]
            total = sum((t.double() * w).sum() for t, w in zip(outputs, random, strict=True))
            gradients = (
                torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
                if isinstance(total, Tensor)
                else [torch.full_like(x, torch.nan) for x in leaves.values()]
            )
        known = dict(zip(leaves, gradients, strict=True))
        known = {name: torch.zeros_like(leaves[name]) if g is None else g for name, g in known.items()}
        length = sum(float(g.nan_to_num().norm()) for g in known.values())
        by_name = {n: known[n] if n in known else torch.full_like(t, torch.nan) for n, t in tensors.items()}
        return Slope(self.space, tensors, by_name, length)
