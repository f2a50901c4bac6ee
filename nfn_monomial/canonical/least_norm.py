"""The scales of least norm: a convex problem in the logarithms of scales, solved for a batch of networks at once.

An unknown is the log scale of one gauge on one node's neurons, one number for each. Entries of a network that the same
neurons scale are one entry of a *term*, the logarithm of the sum of their squares; its *factors* say which unknowns
scale it. All sums are sums of logarithms' exponentials, so sizes may be any that a dtype holds.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from nfn_monomial.space.packing import concrete

from .buckets import Factors, ScaleFactor, Shapes, buckets_of
from .charges import along, onto
from .newton import Terms, joined


def encoded(terms: Sequence[Factors]) -> list[int]:
    """Writes factors as a list of numbers, because an operator takes no other."""
    return [n for term in terms for n in (len(term), *(m for f in term for m in (*f[:2], len(f.dims), *f.dims)))]


def _decoded(numbers: Sequence[int]) -> list[Factors]:
    rest = iter(numbers)

    def factor() -> ScaleFactor:
        unknown, charge, depth = next(rest), next(rest), next(rest)
        return ScaleFactor(unknown, charge, tuple(itertools.islice(rest, depth)))

    return [tuple(factor() for _ in range(count)) for count in rest]


def log_scales(log_squares: Sequence[Tensor], terms: Sequence[Factors], *, converge: bool) -> list[Tensor]:
    """Returns the logarithms of the scales of least norm, ``(B, *sizes)`` for each unknown.

    The start, neurons of norm 1, moves along with the group, and so does every step: to logarithms of least squares,
    which is one linear problem however far the sizes are apart, and from there to the least norm. So equal functions
    get equal forms after any number of rounds, and whether or not the scales of least norm are unique.

    Args:
        log_squares: terms ``(B, *sizes)``: logarithms of sums of squares, -inf for 0.
        terms: the factors of each. No two of a term are of one unknown, unless on different neurons.
        converge: look after every round whether all networks are balanced, where values can be looked at; otherwise
            there is a fixed number of rounds, and nothing is looked at.
    """
    if torch.compiler.is_compiling():
        logs: Tensor = _operator(log_squares, encoded(terms))
    else:
        logs = _log_scales(log_squares, terms, converge and concrete(log_squares))
    shapes = _shapes(log_squares, terms)
    parts = torch.split(logs, [math.prod(shape) for shape in shapes], -1)
    return [part.reshape(part.shape[0], *shape) for part, shape in zip(parts, shapes, strict=True)]


# An operator of its own, so that its loops are one node for torch.compile.
@torch.library.custom_op(
    "nfn_monomial::log_scales", mutates_args=(), schema="(Tensor[] log_squares, int[] factors) -> Tensor"
)
def _operator(log_squares: Sequence[Tensor], factors: Sequence[int]) -> Tensor:
    return _log_scales(log_squares, _decoded(factors), False)


@_operator.register_fake
def _(log_squares: Sequence[Tensor], factors: Sequence[int]) -> Tensor:
    shapes = _shapes(log_squares, _decoded(factors))
    return log_squares[0].new_empty(log_squares[0].shape[0], sum(map(math.prod, shapes)))


@_operator.register_vmap
def _(info: Any, dims: Any, log_squares: Sequence[Tensor], factors: Any) -> tuple[Tensor, int]:
    batched = [
        x.expand(info.batch_size, *x.shape) if dim is None else x.movedim(dim, 0)
        for x, dim in zip(log_squares, dims[0], strict=True)
    ]
    out = _operator([x.flatten(0, 1) for x in batched], factors)
    return out.unflatten(0, (info.batch_size, -1)), 0


def _log_scales(log_squares: Sequence[Tensor], terms: Sequence[Factors], converge: bool) -> Tensor:
    """Returns the log scales of all unknowns, one after the other, ``(B, N)``."""
    shapes = tuple(_shapes(log_squares, terms))
    kept = supported(tuple(terms))
    whole = Terms(buckets_of(tuple(terms), shapes, log_squares[0]), log_squares, converge)
    able = whole
    if not all(kept):
        some = tuple(itertools.compress(terms, kept))
        able = Terms(buckets_of(some, shapes, log_squares[0]), list(itertools.compress(log_squares, kept)), converge)
    s = log_squares[0].new_zeros(len(log_squares[0]), sum(map(math.prod, shapes)))
    alive = able.alive() if any(kept) else torch.zeros_like(s, dtype=torch.bool)
    if converge and all(kept) and bool(alive.all()):
        return able.balance(s, regular=True)
    s, settled = settle(log_squares, terms, shapes, s, torch.zeros_like(alive))
    if not converge or not bool(settled.all()):
        s = s + whole.level(s, ~settled)
    if any(kept):
        s = able.among(alive).balance(s)
    return settle(log_squares, terms, shapes, s, alive)[0]


def settle(
    log_squares: Sequence[Tensor], terms: Sequence[Factors], shapes: Shapes, s: Tensor, settled: Tensor
) -> tuple[Tensor, Tensor]:
    """Gives neurons that are not settled a norm of 1, from inputs to outputs, then back; returns log scales, and which
    neurons have one."""
    sizes = [math.prod(shape) for shape in shapes]
    scales, have = (
        [part.reshape(len(x), *shape) for part, shape in zip(torch.split(x, sizes, -1), shapes, strict=True)]
        for x in (s, settled)
    )
    order = list(range(len(shapes)))
    for unknown in [*order, *reversed(order)]:
        nothing = torch.full_like(scales[unknown], -torch.inf)
        norms = {False: nothing, True: nothing}
        for x, factors in zip(log_squares, terms, strict=True):
            for factor in (f for f in factors if f.unknown == unknown):
                scaled = x
                for f in factors:
                    log = 2 * f.charge * scales[f.unknown]
                    log = log if f is factor else log.masked_fill(~have[f.unknown], -torch.inf)
                    scaled = scaled + along(log, f.dims, x.ndim)
                norm = onto(scaled, factor.dims, torch.logsumexp) / (2 * abs(factor.charge))
                norms[factor.charge < 0] = torch.maximum(norms[factor.charge < 0], norm)
        change = torch.where(norms[False] > -torch.inf, -norms[False], norms[True])
        new = ~have[unknown] & (change > -torch.inf)
        scales[unknown] = scales[unknown] + change.masked_fill(~new, 0)
        have[unknown] = have[unknown] | new
    return joined(scales), joined(have)


def _shapes(log_squares: Sequence[Tensor], terms: Sequence[Factors]) -> list[tuple[int, ...]]:
    """The shape of each unknown, without the batch."""
    pairs = zip(log_squares, terms, strict=True)
    shapes = {f.unknown: tuple(x.shape[d] for d in f.dims) for x, factors in pairs for f in factors}
    return [shapes[unknown] for unknown in sorted(shapes)]


@functools.lru_cache
def supported(terms: tuple[Factors, ...]) -> tuple[bool, ...]:
    """Finds the terms of a network without zeros that have a size at the minimum: the others could shrink for ever.

    With one neuron in each node, a term is supported if some combination of all terms' charges with coefficients >= 0,
    its own > 0, is 0: the minimum of the sum of exponentials has such coefficients. The simplex method looks for the
    largest coefficient of one term after the other, in whole numbers and by Bland's rule, which does not cycle. It
    ends with a combination, all of whose terms are supported, or with an equation that has no negative coefficient, so
    that all of its terms are 0 in every combination.
    """
    # Equations sum(entry * coefficient) = 0, each solved for one coefficient, whose entry is positive.
    rows: dict[int, dict[int, int]] = {}
    for number, term in enumerate(terms):
        for factor in term:
            row = rows.setdefault(~factor.unknown, {})  # not yet solved for any
            row[number] = row.get(number, 0) + factor.charge

    def solve_for(entering: int, leaving: int) -> None:
        row = rows.pop(leaving)
        if row[entering] < 0:
            row = {k: -entry for k, entry in row.items()}
        for other in rows.values():
            if factor := other.get(entering):
                common = math.gcd(factor, row[entering])
                if (times := row[entering] // common) > 1:
                    other.update({k: times * entry for k, entry in other.items()})
                for k, entry in row.items():
                    other[k] = other.get(k, 0) - factor // common * entry
                    if not other[k]:
                        del other[k]
                if times > 1 and (shared := math.gcd(*other.values())) > 1:  # else digits double with every step
                    other.update({k: entry // shared for k, entry in other.items()})
        rows[entering] = row

    rows = {unsolved: {k: entry for k, entry in row.items() if entry} for unsolved, row in rows.items()}
    for unsolved in list(rows):
        if rows[unsolved]:
            solve_for(min(rows[unsolved]), unsolved)
        else:
            del rows[unsolved]

    support: dict[int, bool] = {}
    for number in range(len(terms)):
        while number not in support:
            # The coefficient of this term grows with those that its equation has negative entries of.
            growing = [k for k, entry in rows[number].items() if entry < 0] if number in rows else [number]
            if not growing:
                zeros = rows.pop(number)
                support |= dict.fromkeys(zeros, False)
                rows = {k: {j: x for j, x in row.items() if j not in zeros} for k, row in rows.items()}
                continue
            entering = min(growing)
            limits = [k for k, row in rows.items() if row.get(entering, 0) > 0]
            if limits:
                solve_for(entering, min(limits))
            else:
                support |= dict.fromkeys([entering, *(k for k, row in rows.items() if entering in row)], True)
    return tuple(support[number] for number in range(len(terms)))
