"""The scales of least norm: a convex problem in the logarithms of scales, solved for a batch of networks at once."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

Charges: TypeAlias = "list[tuple[int, int]]"  # node and charge of each dimension behind the batch

_ITERATIONS = 200  # two to ten are used
_TOLERANCE = 4e-13  # on log(in / out), whose quarter is the change of a log scale
_CG_STEPS = 100
_CG_TOLERANCE = 1e-2  # on the norm of what is left: Newton's method needs no more


def along(v: Tensor, dim: int, ndim: int) -> Tensor:
    """``(B, n)`` as ``(B, 1, .., n, .., 1)`` with n in place ``dim`` of ``ndim``."""
    return v.reshape(v.shape[0], *(v.shape[1] if d == dim else 1 for d in range(1, ndim)))


def onto(x: Tensor, dim: int) -> Tensor:
    """The sum over all dimensions but the batch and ``dim``."""
    others = [d for d in range(1, x.ndim) if d != dim]
    return x.sum(others) if others else x


# An operator of its own, so that its loop to convergence is one node for torch.compile and torch.func.vmap.
@torch.library.custom_op(
    "nfn_monomial::log_scales", mutates_args=(), schema="(Tensor[] squares, int[] nodes, int[] charges) -> Tensor"
)
def log_scales(squares: Sequence[Tensor], nodes: Sequence[int], charges: Sequence[int]) -> Tensor:
    """The logarithms of the scales of least norm, ``(B, N)``, nodes one after the other.

    Args:
        squares: tensors ``(B, *sizes)`` of squared norms, of entries that several neurons scale, in float64.
        nodes: the node of each dimension behind the batch, for all tensors in a row, numbered from 0.
        charges: of the same dimensions, none 0.
    """
    problem = _Problem(squares, nodes, charges)
    nothing = [torch.zeros_like(s, dtype=torch.bool) for s in problem.zero]
    alive = problem.alive()
    # Starting from unit norms, a point that moves along with the group, makes every later step invariant, whether it
    # is the last one or not.
    s = problem.among(alive).solve(problem.settle(problem.zero, nothing))
    return torch.cat(problem.settle(s, alive), -1)


@log_scales.register_fake
def _(squares: Sequence[Tensor], nodes: Sequence[int], charges: Sequence[int]) -> Tensor:
    return squares[0].new_empty(squares[0].shape[0], sum(_node_sizes(squares, nodes)))


@log_scales.register_vmap
def _(info: Any, dims: Any, squares: Sequence[Tensor], nodes: Any, charges: Any) -> tuple[Tensor, int]:
    batched = [
        x.expand(info.batch_size, *x.shape) if dim is None else x.movedim(dim, 0)
        for x, dim in zip(squares, dims[0], strict=True)
    ]
    out = log_scales([x.flatten(0, 1) for x in batched], nodes, charges)
    return out.unflatten(0, (info.batch_size, -1)), 0


def _node_sizes(squares: Sequence[Tensor], nodes: Sequence[int]) -> list[int]:
    extents = itertools.chain.from_iterable(x.shape[1:] for x in squares)
    return [size for _, size in sorted(dict(zip(nodes, extents, strict=True)).items())]


class _Problem:
    """Minimise ``E(s) = sum_entries squares * exp(2 sum_axes q s)`` over the log scales s, one tensor a node."""

    def __init__(self, squares: Sequence[Tensor], nodes: Sequence[int], charges: Sequence[int]) -> None:
        axes = list(zip(nodes, charges, strict=True))
        cuts = itertools.pairwise(itertools.accumulate((x.ndim - 1 for x in squares), initial=0))
        self.terms = [(_without_loops(x, axes[a:b]), axes[a:b]) for x, (a, b) in zip(squares, cuts, strict=True)]
        self.zero = [squares[0].new_zeros(squares[0].shape[0], n) for n in _node_sizes(squares, nodes)]
        # exp(2 q d) is at most |q| / Q exp(+-2 Q d) + const for |q| <= Q, and a term of several axes on one node at
        # most the mean over them with Q = sum |q|. So the step 1 / 4Q log(out / in) lowers E, whatever the charges.
        self.bounds = [
            max(sum(abs(q) for m, q in axes if m == node) for _, axes in self.terms) for node in range(len(self.zero))
        ]

    def among(self, mask: list[Tensor]) -> _Problem:
        """The same without the entries of neurons outside of the mask."""
        other = copy.copy(self)
        other.terms = [(_masked(x, axes, mask), axes) for x, axes in self.terms]
        return other

    def alive(self) -> list[Tensor]:
        """Neurons with something on both sides, next to such neurons: those that can be balanced."""
        alive = [torch.ones_like(s, dtype=torch.bool) for s in self.zero]
        while True:
            before = list(alive)
            for node in _there_and_back(alive):
                inward, outward = self._sides(node, self.zero, alive)
                alive[node] = alive[node] & inward.isfinite() & outward.isfinite()
            if all(map(torch.equal, alive, before)):
                return alive

    def settle(self, s: list[Tensor], settled: list[Tensor]) -> list[Tensor]:
        """Give neurons without a scale one of norm 1, from inputs to outputs, then back: see `balance`."""
        s, settled = list(s), list(settled)
        for node in _there_and_back(s):
            if bool(settled[node].all()):
                continue
            norms = [torch.full_like(s[node], -torch.inf) for _ in range(2)]
            for charge, log in self._touching(node, s, settled):
                norms[charge < 0] = torch.maximum(norms[charge < 0], log / (2 * abs(charge)))
            change = torch.where(norms[0] > -torch.inf, -norms[0], norms[1])
            new = ~settled[node] & (change > -torch.inf)
            s[node] = torch.where(new, s[node] + change, s[node])
            settled[node] = settled[node] | new
        return s

    def solve(self, s: list[Tensor]) -> list[Tensor]:
        """Minimise over one node after the other, which always gets nearer, and by Newton's method, which gets there.

        Neurons without entries stay where they are.
        """
        s = list(s)
        for _ in range(_ITERATIONS):
            for node, bound in enumerate(self.bounds):
                s[node] = s[node] + self._imbalance(node, s) / (4 * bound)
            error = self._error(s)
            if bool((error <= _TOLERANCE).all()):
                break
            moved = [a + b for a, b in zip(s, self._newton_step(s), strict=True)]
            better = (self._error(moved) < error)[:, None]
            s = [torch.where(better, a, b) for a, b in zip(moved, s, strict=True)]
        return s

    def _touching(self, node: int, s: list[Tensor], mask: list[Tensor] | None = None) -> list[tuple[int, Tensor]]:
        """(charge, log squared norms ``(B, n)``) of all that a node's neurons scale, next to neurons in the mask."""
        found = []
        for x, axes in self.terms:
            own = [dim for dim, (m, _) in enumerate(axes, 1) if m == node]
            x, shift = _scaled(x, axes, s) if own else (x, x)
            for dim in own:
                seen = x if mask is None else _masked(x, axes, mask, besides=dim)
                found.append((axes[dim - 1][1], onto(seen, dim).log() + shift))
        return found

    def _sides(self, node: int, s: list[Tensor], mask: list[Tensor] | None = None) -> tuple[Tensor, Tensor]:
        """Log squared norms of what each neuron's scale multiplies, and of what it divides; -inf for nothing."""
        sides = [torch.full_like(s[node], -torch.inf) for _ in range(2)]
        for charge, log in self._touching(node, s, mask):
            sides[charge < 0] = torch.logaddexp(sides[charge < 0], log + math.log(abs(charge)))
        return sides[0], sides[1]

    def _imbalance(self, node: int, s: list[Tensor]) -> Tensor:
        inward, outward = self._sides(node, s)
        return torch.where(inward.isfinite() & outward.isfinite(), outward - inward, 0)

    def _error(self, s: list[Tensor]) -> Tensor:
        """The largest imbalance in each network, ``(B,)``."""
        return torch.cat([self._imbalance(node, s) for node in range(len(s))], -1).abs().amax(-1)

    def _newton_step(self, s: list[Tensor]) -> list[Tensor]:
        """By conjugate gradients, with the Hessian's diagonal as preconditioner."""
        sizes = [x.shape[1] for x in s]
        terms = []
        for x, axes in self.terms:
            x, shift = _scaled(x, axes, s)
            terms.append((x * along(shift.exp(), 1, x.ndim), axes))

        def collect(weights: Callable[[Tensor, Charges], Tensor], power: int) -> Tensor:
            total = [torch.zeros_like(x) for x in s]
            for x, axes in terms:
                x = weights(x, axes)
                for dim, (node, charge) in enumerate(axes, 1):
                    total[node] = total[node] + charge**power * onto(x, dim)
            return torch.cat(total, -1)

        def hessian(v: Tensor) -> Tensor:
            parts = torch.split(v, sizes, -1)

            def slope(x: Tensor, axes: Charges) -> Tensor:
                return x * sum(q * along(parts[node], dim, x.ndim) for dim, (node, q) in enumerate(axes, 1))

            return collect(slope, 1)

        diagonal = collect(lambda x, _: x, 2)
        inverse = torch.where(diagonal > 0, 1 / diagonal, 0)
        rest = -collect(lambda x, _: x, 1) / 2  # gradient and Hessian without their factors 2 and 4
        step = torch.zeros_like(rest)
        direction = inverse * rest
        size = (rest * direction).sum(-1, keepdim=True)
        enough = _CG_TOLERANCE**2 * size
        for _ in range(_CG_STEPS):
            image = hessian(direction)
            curvature = (direction * image).sum(-1, keepdim=True)
            length = torch.where(curvature > 0, size / curvature, 0)
            step, rest = step + length * direction, rest - length * image
            new_size = (rest * inverse * rest).sum(-1, keepdim=True)
            direction = inverse * rest + torch.where(size > 0, new_size / size, 0) * direction
            size = new_size
            if bool((size <= enough).all()):
                break
        return list(torch.split(step, sizes, -1))


def _there_and_back(nodes: Sequence[object]) -> list[int]:
    return [*range(len(nodes)), *reversed(range(len(nodes)))]


def _scaled(x: Tensor, axes: Charges, s: list[Tensor]) -> tuple[Tensor, Tensor]:
    """``x exp(2 sum q s)`` as a tensor without overflow, and the logarithm ``(B, 1)`` of its factor."""
    shift = x.new_zeros(x.shape[0], 1)
    for dim, (node, charge) in enumerate(axes, 1):
        log = 2 * charge * s[node]
        top = log.amax(-1, keepdim=True)
        x, shift = x * along((log - top).exp(), dim, x.ndim), shift + top
    return x, shift


def _masked(x: Tensor, axes: Charges, mask: list[Tensor], besides: int = 0) -> Tensor:
    for dim, (node, _) in enumerate(axes, 1):
        if dim != besides:
            x = x * along(mask[node], dim, x.ndim)
    return x


def _without_loops(x: Tensor, axes: Charges) -> Tensor:
    """Without weights from a neuron to itself, whose scale cancels."""
    if len(axes) == 2 and axes[0][0] == axes[1][0] and axes[0][1] == -axes[1][1]:
        return x * ~torch.eye(x.shape[1], dtype=torch.bool, device=x.device)
    return x
