"""Canonical forms: of all networks that scalings and sign flips turn into one another, pick one.

The scales are those of the network of least norm, found by convex minimisation; the signs make an odd statistic of
every neuron positive. What is left of the group is permutations (``space.restricted("permutation")``), so that any
permutation-equivariant model behind is equivariant, and any permutation-invariant one invariant, under all of it.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, overload

import torch
from torch import Tensor, nn

from .features import Axis, Features, FieldType
from .groups import GroupElement, MonomialMatrix
from .weight_space import WeightSpace

Charges: TypeAlias = "list[tuple[int, int]]"  # node and charge of each dimension behind the batch

_ITERATIONS = 200  # two to ten are used
_TOLERANCE = 4e-13  # on log(in / out), whose quarter is the change of a log scale
_CG_STEPS = 100
_CG_TOLERANCE = 1e-2  # on the norm of what is left: Newton's method needs no more


def balance(
    tensors: Mapping[str, Tensor], space: WeightSpace, *, scales: bool = True, signs: bool = True
) -> tuple[dict[str, Tensor], GroupElement]:
    """The canonical network with the same function, and the group element that leads to it.

    **Scales** (SCALE, MONOMIAL): the network of least squared norm, where for every neuron the squares that its
    scale multiplies and those it divides have equal sums: ``sum_{q>0} q ||entries||^2 = sum_{q<0} |q| ||entries||^2``,
    incoming and outgoing norm for ordinary layers. It is unique, since the norm is convex in the logarithms of
    scales. They are found in float64, from squares of the entries: exact for entries between 1e-150 and 1e150 in size.

    A neuron that has no nonzero entry on one side (dead) has no such scale, and as the limit is an entry 0, nor do its
    entries count for other neurons. It takes the scale at which its nonzero side has norm 1 (the larger of its bias
    and its weights), the incoming one if the two sides are nonzero but lead from or to dead neurons only. What is
    linked to nothing but dead neurons without a scale stays as it is; so does a neuron whose entries are all 0.

    **Signs** (SIGN, MONOMIAL): the sum of the entries that carry the neuron's sign, and no sign not yet settled, is
    made positive. Nodes are settled from inputs to outputs by incoming entries (where charges count modulo 2, those of
    the last layer as well), so that rows see columns whose signs are settled; what is left, neurons without incoming
    weights, backwards by outgoing ones. Where the sum is 0 within rounding, the sum of cubes
    counts, each weighted by its place among the entries that nothing permutes; where that is 0 too, as for weights
    ``(a, -a)`` from two permuted neurons and no bias, the sign stays as it is and the form is not unique.

    The element is computed without gradients: they flow through ``tensors`` with the element held constant.

    Args:
        tensors: parameter name -> ``(B, C, *shape)``; the element acts on all channels alike, norms are over all.
        space: the weight space.
        scales: whether to fix the scales.
        signs: whether to fix the signs. Without ``scales`` they depend on the scales of neighbours that scale.

    Returns:
        The balanced tensors ``element.act(tensors)``, and the element: a batch of B, scales in float64, no
        permutation. Permutation-equivariant: permuting neurons permutes the result.

    Raises:
        ValueError: as `WeightSpace.pack`, for names, shapes and values that do not fit.

    >>> space = WeightSpace.mlp([1, 1, 1], "relu", bias=False)
    >>> tensors = {"weight.0": torch.full((1, 1, 1, 1), 8.0), "weight.1": torch.full((1, 1, 1, 1), 2.0)}
    >>> balanced, element = balance(tensors, space)
    >>> [round(x.item(), 6) for x in balanced.values()], element.matrices["h1"].scale
    ([4.0, 4.0], tensor([[0.5000]], dtype=torch.float64))
    """
    factors = balance_factors(space, space.pack(tensors), scales=scales, signs=signs)
    matrices = {}
    for node, factor in factors.items():
        matrices[node] = MonomialMatrix(factor, torch.arange(factor.shape[1], device=factor.device).expand_as(factor))
    element = GroupElement(space, matrices)
    return element.act(tensors), element


class Balance(nn.Module):
    """`balance` as a layer without parameters: networks in, canonical networks out.

    Unlike the function, it works under ``torch.compile(fullgraph=True)`` and ``torch.func.vmap``. Features keep their
    layout, in which axes count as charged; `WeightSpace.unpack` and the ``pack`` of ``space.restricted("permutation")``
    turn them into features of permuted neurons.

    Args:
        space: the weight space.
        scales: whether to fix the scales.
        signs: whether to fix the signs.
    """

    def __init__(self, space: WeightSpace, *, scales: bool = True, signs: bool = True) -> None:
        super().__init__()
        self.space, self.scales, self.signs = space, scales, signs

    @overload
    def forward(self, networks: Features) -> Features: ...
    @overload
    def forward(self, networks: Mapping[str, Tensor]) -> dict[str, Tensor]: ...
    def forward(self, networks: Features | Mapping[str, Tensor]) -> Features | dict[str, Tensor]:
        """Features or named tensors ``(B, C, *shape)`` -> the same kind of thing, same shapes."""
        if not isinstance(networks, Features):
            return self.space.unpack(self(self.space.pack(networks)))
        if networks.layout is not self.space.layout:
            raise ValueError(f"Balance: found features [{networks.layout}], {self.space} has [{self.space.layout}]")
        return multiply(networks, balance_factors(self.space, networks, scales=self.scales, signs=self.signs))

    def extra_repr(self) -> str:
        return f"{self.space}, scales={self.scales}, signs={self.signs}"


def balance_factors(
    space: WeightSpace, features: Features, *, scales: bool = True, signs: bool = True
) -> dict[str, Tensor]:
    """What `balance` multiplies neurons by: node -> factors ``(B, n)`` in float64, without gradients.

    Values are not checked, so that it compiles; nodes on which neither scalings nor sign flips act are left out.
    """
    with torch.no_grad():
        precise = features.detach().to(torch.float64)
        factors = _scales(space, precise) if scales else {}
        if signs:
            # Rounding errors of the given entries, a few each, are no sign.
            noise = 32 * torch.finfo(features.tensors[0].dtype).eps
            for node, sign in _signs(space, multiply(precise, factors), noise).items():
                factors[node] = factors[node] * sign if node in factors else sign
    return factors


def multiply(features: Features, factors: Mapping[str, Tensor]) -> Features:
    """What ``GroupElement.act`` does, without permutations and without looking at values, so that it compiles.

    Args:
        features: features of any layout.
        factors: node -> ``(B, n)``, nonzero. Nodes left out are not multiplied.
    """
    moved = []
    for field_type, x in features.fields.items():
        for dim, axis in enumerate(field_type, start=1):
            if axis.node in factors and axis.charge:
                x = x * _along(factors[axis.node].pow(axis.charge).to(x.dtype), dim, x.ndim)
        moved.append(x)
    return Features(features.layout, tuple(moved))


def _along(v: Tensor, dim: int, ndim: int) -> Tensor:
    """``(B, n)`` as ``(B, 1, .., n, .., 1)`` with n in place ``dim`` of ``ndim``."""
    return v.reshape(v.shape[0], *(v.shape[1] if d == dim else 1 for d in range(1, ndim)))


def _onto(x: Tensor, dim: int) -> Tensor:
    """The sum over all dimensions but the batch and ``dim``."""
    others = [d for d in range(1, x.ndim) if d != dim]
    return x.sum(others) if others else x


# -- signs ------------------------------------------------------------------------------------------------------------


def _signs(space: WeightSpace, features: Features, noise: float) -> dict[str, Tensor]:
    """Node -> signs ``(B, n)``. ``known`` holds the sign of each neuron as far as it is settled, and 0 where not."""
    moments: list[tuple[list[Axis], list[tuple[Tensor, Tensor]]]] = []
    for field_type, x in features.fields.items():
        odd = {d: a for d, a in enumerate(field_type, 1) if space.nodes[a.node].symmetry.flips and a.charge % 2}
        if not odd:
            continue
        rest = [d for d in range(1, x.ndim) if d not in odd]
        cubes = x * x * x * torch.linspace(1, 2, x.shape[-1], dtype=x.dtype, device=x.device)
        # Signs can be taken out of these sums, which so need computing once: sums, and sums of sizes.
        moments.append((list(odd.values()), [(y.sum(rest), y.abs().sum(rest)) for y in (x, cubes)]))
    first, sizes = features.tensors[0], space.node_sizes(features)
    flipped = [name for name in space.nodes if any(axis.node == name for axes, _ in moments for axis in axes)]
    known = {name: first.new_zeros(first.shape[0], sizes[name]) for name in flipped}
    # Incoming entries alone at first: balanced, a single incoming and a single outgoing weight may cancel.
    for name, lowest in [*((name, 1) for name in flipped), *((name, -math.inf) for name in reversed(flipped))]:
        found = torch.zeros_like(known[name])
        for moment in range(2):
            total, size = torch.zeros_like(found), torch.zeros_like(found)
            for axes, sums in moments:
                own = [dim for dim, axis in enumerate(axes, 1) if axis.node == name]
                if len(own) != 1 or axes[own[0] - 1].charge < lowest:  # with two, it carries the signs of two neurons
                    continue
                x, absolute = sums[moment]
                for dim, (other, _) in enumerate(axes, 1):
                    if dim != own[0]:
                        x = x * _along(known[other], dim, x.ndim)
                        absolute = absolute * _along(known[other].abs(), dim, x.ndim)
                total, size = total + _onto(x, own[0]), size + _onto(absolute, own[0])
            found = torch.where(found != 0, found, total.sign() * (total.abs() > noise * size))
        known[name] = torch.where(known[name] != 0, known[name], found)
    return {name: torch.where(sign != 0, sign, 1) for name, sign in known.items()}


# -- scales -----------------------------------------------------------------------------------------------------------


def _scales(space: WeightSpace, features: Features) -> dict[str, Tensor]:
    """Node -> scales ``(B, n)``, from the squared norms of what each combination of neurons scales."""
    squares: dict[FieldType, Tensor] = {}
    for field_type, x in features.fields.items():
        scaled = [d for d, a in enumerate(field_type, 1) if space.nodes[a.node].symmetry.scales and a.charge]
        if scaled:
            rest = [d for d in range(1, x.ndim) if d not in scaled]
            axes, square = tuple(field_type[d - 1] for d in scaled), x.square().sum(rest)
            squares[axes] = squares[axes] + square if axes in squares else square
    if not squares:
        return {}
    order = [node for node in space.nodes if any(axis.node == node for axes in squares for axis in axes)]
    axes_of_all = list(itertools.chain.from_iterable(squares))
    logs = log_scales(
        list(squares.values()), [order.index(a.node) for a in axes_of_all], [a.charge for a in axes_of_all]
    )
    sizes = space.node_sizes(features)
    return dict(zip(order, logs.exp().split([sizes[node] for node in order], -1), strict=True))


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
                found.append((axes[dim - 1][1], _onto(seen, dim).log() + shift))
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
            terms.append((x * _along(shift.exp(), 1, x.ndim), axes))

        def collect(weights: Callable[[Tensor, Charges], Tensor], power: int) -> Tensor:
            total = [torch.zeros_like(x) for x in s]
            for x, axes in terms:
                x = weights(x, axes)
                for dim, (node, charge) in enumerate(axes, 1):
                    total[node] = total[node] + charge**power * _onto(x, dim)
            return torch.cat(total, -1)

        def hessian(v: Tensor) -> Tensor:
            parts = torch.split(v, sizes, -1)

            def slope(x: Tensor, axes: Charges) -> Tensor:
                return x * sum(q * _along(parts[node], dim, x.ndim) for dim, (node, q) in enumerate(axes, 1))

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
        x, shift = x * _along((log - top).exp(), dim, x.ndim), shift + top
    return x, shift


def _masked(x: Tensor, axes: Charges, mask: list[Tensor], besides: int = 0) -> Tensor:
    for dim, (node, _) in enumerate(axes, 1):
        if dim != besides:
            x = x * _along(mask[node], dim, x.ndim)
    return x


def _without_loops(x: Tensor, axes: Charges) -> Tensor:
    """Without weights from a neuron to itself, whose scale cancels."""
    if len(axes) == 2 and axes[0][0] == axes[1][0] and axes[0][1] == -axes[1][1]:
        return x * ~torch.eye(x.shape[1], dtype=torch.bool, device=x.device)
    return x
