"""The scales of least norm: a convex problem in the logarithms of scales, solved for a batch of networks at once.

An unknown is the log scale of one gauge on one node's neurons, one number for each. Entries of a network that the same
neurons scale are one entry of a *term*, the sum of their squares; its *factors* say which unknowns scale it.
"""

from __future__ import annotations

import copy
import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from nfn_monomial.space.packing import concrete

_ITERATIONS = 200  # two to ten are used
_TOLERANCE = 4e-13  # on log(in / out), whose quarter is the change of a log scale
_CG_STEPS = 100
_CG_TOLERANCE = 1e-2  # on the norm of what is left: Newton's method needs no more
_NOISE = 1e-14  # rounding errors of sums, relative to what is summed
_SUPPORTED = 1e-8  # terms that can be balanced have sizes near 1, others vanish


class Factor(NamedTuple):
    """One unknown that scales a term.

    Attributes:
        unknown: its number.
        charge: with what power, not 0.
        dims: dimensions of the term along which its neurons lie; several for a nested node, the outermost first.
    """

    unknown: int
    charge: int
    dims: tuple[int, ...]


Factors: TypeAlias = tuple[Factor, ...]
Term: TypeAlias = tuple[Tensor, Factors]


def along(v: Tensor, dims: Sequence[int], ndim: int) -> Tensor:
    """``(B, *sizes)`` with its sizes in the places ``dims`` of ``ndim``, and 1 in the others."""
    order = sorted(range(len(dims)), key=lambda i: dims[i])
    sizes = dict(zip(dims, v.shape[1:], strict=True))
    moved = v.permute(0, *(1 + i for i in order))
    return moved.reshape(v.shape[0], *(sizes.get(d, 1) for d in range(1, ndim)))


def onto(x: Tensor, dims: Sequence[int]) -> Tensor:
    """The sum over all dimensions but the batch and ``dims``, which stand in that order."""
    others = [d for d in range(1, x.ndim) if d not in dims]
    kept = sorted(dims)
    return (x.sum(others) if others else x).permute(0, *(1 + kept.index(d) for d in dims))


def encoded(terms: Sequence[Factors]) -> list[int]:
    """Factors as the list of numbers that an operator can be given."""
    return [n for term in terms for n in (len(term), *(m for f in term for m in (*f[:2], len(f.dims), *f.dims)))]


def _decoded(numbers: Sequence[int]) -> list[Factors]:
    rest = iter(numbers)

    def factor() -> Factor:
        unknown, charge, depth = next(rest), next(rest), next(rest)
        return Factor(unknown, charge, tuple(itertools.islice(rest, depth)))

    return [tuple(factor() for _ in range(count)) for count in rest]


def log_scales(squares: Sequence[Tensor], factors: Sequence[int]) -> Tensor:
    """The logarithms of the scales of least norm, ``(B, N)``, unknowns one after the other.

    Args:
        squares: terms ``(B, *sizes)``: sums of squares, in float64.
        factors: of each term, see `encoded`. No two of a term are of one unknown, unless on different neurons.
    """
    # Its first call has torch import its compiler, which takes seconds: where nothing is traced, nobody needs it.
    return _log_scales(squares, factors) if concrete(squares) else _traceable(squares, factors)


# An operator of its own, so that its loop to convergence is one node for torch.compile and torch.func.vmap.
@torch.library.custom_op(
    "nfn_monomial::log_scales", mutates_args=(), schema="(Tensor[] squares, int[] factors) -> Tensor"
)
def _traceable(squares: Sequence[Tensor], factors: Sequence[int]) -> Tensor:
    return _log_scales(squares, factors)


def rough_log_scales(squares: Sequence[Tensor], factors: Sequence[int], sweeps: int) -> Tensor:
    """Those after so many rounds over all unknowns, which move along with the group just as well; see `log_scales`."""
    return _log_scales(squares, factors, sweeps)


def _log_scales(squares: Sequence[Tensor], factors: Sequence[int], sweeps: int | None = None) -> Tensor:
    terms = _decoded(factors)
    problem = _Problem(squares, terms)
    solvable = problem.of(_supported(tuple(terms)))
    nothing = [torch.zeros_like(s, dtype=torch.bool) for s in problem.zero]
    alive = solvable.alive()
    # Starting from unit norms, a point that moves along with the group, makes every later step invariant, whether it
    # is the last one or not, and whether or not the scales of least norm are unique.
    s = solvable.among(alive).solve(problem.level(*problem.settle(problem.zero, nothing)), sweeps)
    return _joined(problem.settle(s, alive)[0])


@_traceable.register_fake
def _(squares: Sequence[Tensor], factors: Sequence[int]) -> Tensor:
    shapes = _shapes(squares, _decoded(factors))
    return squares[0].new_empty(squares[0].shape[0], sum(map(math.prod, shapes)))


@_traceable.register_vmap
def _(info: Any, dims: Any, squares: Sequence[Tensor], factors: Any) -> tuple[Tensor, int]:
    batched = [
        x.expand(info.batch_size, *x.shape) if dim is None else x.movedim(dim, 0)
        for x, dim in zip(squares, dims[0], strict=True)
    ]
    out = _traceable([x.flatten(0, 1) for x in batched], factors)
    return out.unflatten(0, (info.batch_size, -1)), 0


def _shapes(squares: Sequence[Tensor], terms: Sequence[Factors]) -> list[tuple[int, ...]]:
    """The shape of each unknown, without the batch."""
    pairs = zip(squares, terms, strict=True)
    found = {f.unknown: tuple(x.shape[d] for d in f.dims) for x, factors in pairs for f in factors}
    return [found[unknown] for unknown in sorted(found)]


@functools.lru_cache
def _supported(terms: tuple[Factors, ...]) -> tuple[bool, ...]:
    """Which terms of a network without zeros have a size at the minimum: the others could shrink for ever.

    One neuron of each node and ones for entries decide, by averaging over neurons: a term is supported if some
    combination of all terms' charges with coefficients >= 0, its own > 0, is 0. The minimum of the sum of exponentials
    has such coefficients; what is left out tends to 0.
    """
    ones = [torch.ones([1] * (1 + max(d for f in term for d in f.dims)), dtype=torch.float64) for term in terms]
    problem = _Problem(ones, terms)
    alive = problem.alive()
    s = problem.among(alive).solve(problem.zero)
    sizes = [bool((_masked(x, f, alive) * _entries(x, f, s)).sum() > _SUPPORTED) for x, f in problem.terms]
    return tuple(sizes)


class _Problem:
    """Minimise ``E(s) = sum_entries squares * exp(2 sum_factors q s)`` over the log scales s, a tensor an unknown."""

    def __init__(self, squares: Sequence[Tensor], terms: Sequence[Factors]) -> None:
        self.terms: list[Term] = list(zip(squares, terms, strict=True))
        batch = squares[0].shape[0]
        self.zero = [squares[0].new_zeros(batch, *shape) for shape in _shapes(squares, terms)]
        # exp(2 q d) is at most |q| / Q exp(+-2 Q d) + const for |q| <= Q, and a term of several factors of one unknown
        # at most the mean over them with Q = sum |q|. So the step 1 / 4Q log(out / in) lowers E, whatever the charges.
        self.bounds = [
            max(sum(abs(f.charge) for f in term if f.unknown == unknown) for term in terms)
            for unknown in range(len(self.zero))
        ]

    def of(self, chosen: Sequence[bool]) -> _Problem:
        """The same with some of the terms."""
        other = copy.copy(self)
        other.terms = list(itertools.compress(self.terms, chosen))
        return other

    def among(self, mask: list[Tensor]) -> _Problem:
        """The same without the entries of neurons outside of the mask."""
        other = copy.copy(self)
        other.terms = [(_masked(x, factors, mask), factors) for x, factors in self.terms]
        return other

    def alive(self) -> list[Tensor]:
        """Neurons with something on both sides, next to such neurons: those that can be balanced."""
        alive = [torch.ones_like(s, dtype=torch.bool) for s in self.zero]
        while True:
            before = list(alive)
            for unknown in _there_and_back(alive):
                inward, outward = self._sides(unknown, self.zero, alive)
                alive[unknown] = alive[unknown] & inward.isfinite() & outward.isfinite()
            if all(map(torch.equal, alive, before)):
                return alive

    def settle(self, s: list[Tensor], settled: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Give neurons without a scale one of norm 1, from inputs to outputs, then back: see `balance`.

        Returns:
            Log scales, and which neurons are settled now.
        """
        s, settled = list(s), list(settled)
        for unknown in _there_and_back(s):
            if bool(settled[unknown].all()):
                continue
            norms = [torch.full_like(s[unknown], -torch.inf) for _ in range(2)]
            for charge, log in self._touching(unknown, s, settled):
                norms[charge < 0] = torch.maximum(norms[charge < 0], log / (2 * abs(charge)))
            change = torch.where(norms[0] > -torch.inf, -norms[0], norms[1])
            new = ~settled[unknown] & (change > -torch.inf)
            s[unknown] = torch.where(new, s[unknown] + change, s[unknown])
            settled[unknown] = settled[unknown] | new
        return s, settled

    def solve(self, s: list[Tensor], sweeps: int | None = None) -> list[Tensor]:
        """Minimise over one unknown after the other, which always gets nearer, and by Newton steps, which get there.

        Neurons without entries stay where they are. With a number of ``sweeps`` there are so many, and no Newton steps.
        """
        s = list(s)
        for _ in range((_ITERATIONS if sweeps is None else sweeps) if self.terms else 0):
            for unknown, bound in enumerate(self.bounds):
                s[unknown] = s[unknown] + self._imbalance(unknown, s) / (4 * bound)
            if sweeps is not None:
                continue
            error = self._error(s)
            if bool((error <= _TOLERANCE).all()):
                break
            moved = self._newton_step(s)
            better = self._error(moved) < error
            s = [torch.where(along(better, (), a.ndim), a, b) for a, b in zip(moved, s, strict=True)]
        return s

    def _touching(self, unknown: int, s: list[Tensor], mask: list[Tensor] | None = None) -> list[tuple[int, Tensor]]:
        """(charge, log squared norms ``(B, *sizes)``) of all that an unknown scales, next to neurons in the mask."""
        found = []
        for x, factors in self.terms:
            for own in factors:
                if own.unknown != unknown:
                    continue
                log, others = 2 * own.charge * s[unknown], []
                for factor in factors:
                    if factor is not own:
                        scale, top = _scale(factor, s)
                        log = log + along(top, (), log.ndim)
                        others.append((scale if mask is None else scale * mask[factor.unknown], factor.dims))
                found.append((own.charge, log + _contracted(x, others, own.dims).log()))
        return found

    def _sides(self, unknown: int, s: list[Tensor], mask: list[Tensor] | None = None) -> tuple[Tensor, Tensor]:
        """Log squared norms of what each neuron's scale multiplies, and of what it divides; -inf for nothing."""
        sides = [torch.full_like(s[unknown], -torch.inf) for _ in range(2)]
        for charge, log in self._touching(unknown, s, mask):
            sides[charge < 0] = torch.logaddexp(sides[charge < 0], log + math.log(abs(charge)))
        return sides[0], sides[1]

    def _imbalance(self, unknown: int, s: list[Tensor]) -> Tensor:
        inward, outward = self._sides(unknown, s)
        return torch.where(inward.isfinite() & outward.isfinite(), outward - inward, 0)

    def _error(self, s: list[Tensor]) -> Tensor:
        """The largest imbalance in each network, ``(B,)``."""
        return _joined([self._imbalance(unknown, s) for unknown in range(len(s))]).abs().amax(-1)

    def _newton_step(self, s: list[Tensor]) -> list[Tensor]:
        """One step to the minimum of the quadratic approximation."""
        terms = [(_entries(x, factors, s), factors) for x, factors in self.terms]
        # Gradient and Hessian without their factors 2 and 4.
        pulls, sizes = [-x / 2 for x, _ in terms], [x for x, _ in terms]
        step = _least_squares(terms, pulls, sizes, s, steps=_CG_STEPS, tolerance=_CG_TOLERANCE)
        return [a + b for a, b in zip(s, step, strict=True)]

    def level(self, s: list[Tensor], settled: list[Tensor]) -> list[Tensor]:
        """Scales of neurons that are not settled at which what they scale has logarithms of least squares.

        Such neurons scale nothing that another one like them does not scale as well: only together can they be told.
        """
        free = [~mask for mask in settled]
        touched = [
            torch.stack([log.isfinite() for _, log in self._touching(unknown, s)]).any(0) & free[unknown]
            for unknown in range(len(s))
        ]
        if not bool(_joined(touched).any()):
            return s
        present = [((x > 0).to(x.dtype), factors) for x, factors in self.terms]
        logs = [torch.where(x > 0, x, 1).log() / 2 for x, _ in self.terms]
        slopes = [_slope(factors, s, one.ndim) for one, factors in present]
        pulls = [-one * (a + b) for (one, _), a, b in zip(present, logs, slopes, strict=True)]
        sizes = [one * (a.abs() + b.abs()) for (one, _), a, b in zip(present, logs, slopes, strict=True)]
        count = sum(unknown[0].numel() for unknown in s)
        step = _least_squares(present, pulls, sizes, s, steps=count + 10, tolerance=_NOISE, free=touched)
        return [a + b for a, b in zip(s, step, strict=True)]


def _least_squares(
    terms: Sequence[Term], pulls: Sequence[Tensor], sizes: Sequence[Tensor], s: list[Tensor], *,
    steps: int, tolerance: float, free: list[Tensor] | None = None,
) -> list[Tensor]:  # fmt: skip
    """The least v with ``sum x q (q v) = sum q pull`` for every unknown, by conjugate gradients.

    The Hessian's diagonal is the preconditioner. Directions that move no entry stay out of v.

    Args:
        terms: weights x of entries, with their factors.
        pulls: right-hand side, entry by entry.
        sizes: of what they were computed from, whose rounding errors are no pull.
        s: log scales, for their shapes.
        steps: at most so many.
        tolerance: on the norm of what is left, relative to the norm at the start.
        free: which neurons may move; all by default.
    """
    zero = [torch.zeros_like(x) for x in s]

    def among_free(total: list[Tensor]) -> list[Tensor]:
        return total if free is None else [torch.where(a, b, 0) for a, b in zip(free, total, strict=True)]

    def collect(entries: Sequence[Tensor], power: int) -> list[Tensor]:
        total = list(zero)
        for x, (_, factors) in zip(entries, terms, strict=True):
            for unknown, charge, dims in factors:
                total[unknown] = total[unknown] + charge**power * onto(x, dims)
        return among_free(total)

    sums = [[onto(x, factor.dims) for factor in factors] for x, factors in terms]

    def hessian(v: Tensor) -> Tensor:
        parts, total = _parted(v, s), list(zero)
        for (x, factors), own in zip(terms, sums, strict=True):
            for (a, sum_a), b in itertools.product(zip(factors, own, strict=True), factors):
                part = parts[b.unknown]
                seen = sum_a * part if a.dims == b.dims else _contracted(x, [(part, b.dims)], a.dims)
                total[a.unknown] = total[a.unknown] + a.charge * b.charge * seen
        return _joined(among_free(total))

    diagonal = _joined(collect([x for x, _ in terms], 2))
    inverse = torch.where(diagonal > 0, 1 / diagonal, 0)
    rest = _joined(collect(pulls, 1))
    step = torch.zeros_like(rest)
    direction = inverse * rest
    size = (rest * direction).sum(-1, keepdim=True)
    noise = _NOISE**2 * (inverse * _joined(collect(sizes, 2)).square()).sum(-1, keepdim=True)
    enough = (tolerance**2 * size).maximum(noise)
    for _ in range(steps):
        image = hessian(direction)
        curvature = (direction * image).sum(-1, keepdim=True)
        length = torch.where((curvature > 0) & (size > enough), size / curvature, 0)
        step, rest = step + length * direction, rest - length * image
        new_size = (rest * inverse * rest).sum(-1, keepdim=True)
        direction = inverse * rest + torch.where(size > 0, new_size / size, 0) * direction
        size = new_size
        if bool((size <= enough).all()):
            break
    return _parted(step, s)


def _joined(unknowns: Sequence[Tensor]) -> Tensor:
    return torch.cat([x.flatten(1) for x in unknowns], -1)


def _parted(v: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    parts = torch.split(v, [x[0].numel() for x in like], -1)
    return [part.reshape(x.shape) for part, x in zip(parts, like, strict=True)]


def _there_and_back(unknowns: Sequence[object]) -> list[int]:
    return [*range(len(unknowns)), *reversed(range(len(unknowns)))]


def _slope(factors: Factors, v: Sequence[Tensor], ndim: int) -> Tensor:
    """``sum q v`` of every entry of a term."""
    return functools.reduce(torch.add, [charge * along(v[unknown], dims, ndim) for unknown, charge, dims in factors])


def _scale(factor: Factor, s: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """``exp(2 q s)`` without overflow, and the logarithm ``(B,)`` of what it is to be multiplied with."""
    log = 2 * factor.charge * s[factor.unknown]
    top = log.flatten(1).amax(-1)
    return (log - along(top, (), log.ndim)).exp(), top


def _entries(x: Tensor, factors: Factors, s: Sequence[Tensor]) -> Tensor:
    """``x exp(2 sum q s)``."""
    shift = x.new_zeros(x.shape[0])
    for factor in factors:
        scale, top = _scale(factor, s)
        x, shift = x * along(scale, factor.dims, x.ndim), shift + top
    return x * along(shift.exp(), (), x.ndim)


def _contracted(x: Tensor, others: Sequence[tuple[Tensor, tuple[int, ...]]], dims: tuple[int, ...]) -> Tensor:
    """``x`` times what lies along some of its dimensions each, summed onto ``dims``."""
    operands = [part for v, at in others for part in (v, [0, *at])]
    total: Tensor = torch.einsum(x, list(range(x.ndim)), *operands, [0, *dims])
    return total


def _masked(x: Tensor, factors: Sequence[Factor], mask: Sequence[Tensor]) -> Tensor:
    for unknown, _, dims in factors:
        x = x * along(mask[unknown], dims, x.ndim)
    return x
