"""Gradients of what reads a network, at random weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from nfn_monomial.errors import InvalidValueError
from nfn_monomial.space.certificate import Float64, Point, doubled, evaluating
from nfn_monomial.space.weight_space import WeightSpace

Tensors = Mapping[str, Tensor]

_POINTS = 3
_DRAWS = 16


class Slopes:
    """Gradients of random sums of what a module answers, at random weights, buffers and inputs.

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
        for other in own.resized():  # what holds for the example's numbers of tokens or pixels alone is none
            self.points += [point for point, _ in other.near(generator, 1)]
        if not self.points:
            raise InvalidValueError(
                f"{type(module).__name__} could be tested at no weights near its own: its outputs there are not "
                "finite, or it raises an error; give weights and inputs with room around them"
            )
        kept = {name: t for name, t in own.weights().items() if name in frozen}
        self.weights = [point.weights() | kept for point in self.points]

    def own(self, n: int) -> dict[str, Tensor]:
        """The space's parameters at one of the points."""
        return {name: self.weights[n][name] for name in self.space.parameters}

    def at(self, change: Callable[[dict[str, Tensor]], dict[str, Tensor]] = dict) -> list[tuple[Tensors, Tensors]]:
        """For each point, parameters after a change, and gradients by them; NaN of buffers, which nothing may turn."""
        return [self._at(n, change(self.own(n))) for n in range(len(self.points))]

    def _at(self, n: int, tensors: Tensors) -> tuple[Tensors, Tensors]:
        module, (args, kwargs) = self.points[n].module, self.points[n].inputs
        parameters = dict(module.named_parameters())
        leaves = {n: t.detach().clone().requires_grad_() for n, t in tensors.items() if n in parameters}
        arguments = pytree.tree_map_only(Tensor, torch.clone, (args, dict(kwargs)))
        with evaluating(module), Float64(), torch.enable_grad():  # type: ignore[no-untyped-call]
            answer = torch.func.functional_call(module, self.weights[n] | dict(tensors) | leaves, *arguments)
            outputs = [t for t in pytree.tree_leaves(answer) if isinstance(t, Tensor) and t.requires_grad]
            generator = torch.Generator().manual_seed(n)
            weights = [torch.randn(t.shape, dtype=torch.float64, generator=generator) for t in outputs]
            total = sum((t.double() * w).sum() for t, w in zip(outputs, weights, strict=True))
            if not isinstance(total, Tensor):
                return tensors, {name: torch.full_like(t, torch.nan) for name, t in tensors.items()}
            found = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
        slopes = {n: torch.zeros_like(x) if g is None else g for (n, x), g in zip(leaves.items(), found, strict=True)}
        return tensors, {n: slopes.get(n, torch.full_like(t, torch.nan)) for n, t in tensors.items()}
