"""Gradients of what reads a network, at random weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from nfn_monomial.errors import InvalidValueError
from nfn_monomial.running import Float64, called_with, doubled, evaluating
from nfn_monomial.space.weight_space import WeightSpace
from nfn_monomial.verify.points import Point

Tensors = Mapping[str, Tensor]

_POINTS = 3
_DRAWS = 16


class Slope(NamedTuple):
    """What reads a network, at one point.

    Attributes:
        tensors: its parameters.
        gradients: of a random sum of answers, by them; NaN of buffers, which nothing may turn.
        length: the sum of the norms of all gradients.
    """

    tensors: Tensors
    gradients: Tensors
    length: float


class Slopes:
    """Gradients of random sums of what a module answers, at random weights, buffers and inputs.

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
        own = Point(module, pytree.tree_map_only(Tensor, doubled, inputs))
        self.space = space
        self.points = [point for _ in range(_POINTS) for point, _ in own.near(generator, _DRAWS)]
        # What holds for the example's numbers of tokens or pixels alone is none.
        self.points += [other.point for other in own.resized(generator) if other.point is not None]
        if not self.points:
            raise InvalidValueError(
                f"{type(module).__name__} could be tested at no weights near its own: its outputs there are not "
                "finite, or it raises an error; give weights and inputs with room around them"
            )
        self._kept = {name: t for name, t in own.weights().items() if name in frozen}

    def at(self, change: Callable[[dict[str, Tensor]], dict[str, Tensor]] = dict) -> Iterator[Slope]:
        """At each point, where parameters are what a change makes of them."""
        return (self._at(n, change) for n in range(len(self.points)))

    def _at(self, n: int, change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> Slope:
        module, (args, kwargs) = self.points[n].module, self.points[n].inputs
        weights = self.points[n].weights() | self._kept
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
            found = (
                torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
                if isinstance(total, Tensor)
                else [torch.full_like(x, torch.nan) for x in leaves.values()]
            )
        known = {n: torch.zeros_like(x) if g is None else g for (n, x), g in zip(leaves.items(), found, strict=True)}
        length = sum(float(g.nan_to_num().norm()) for g in known.values())
        return Slope(tensors, {n: known.get(n, torch.full_like(t, torch.nan)) for n, t in tensors.items()}, length)
