"""The sum of squares of a batch of networks, as a function of the logarithms of their scales, and its minimum."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from .charges import along, onto

_ROUNDS = 5  # where no value is looked at, and one more for three unknowns: most networks are balanced by then
_MOST_ROUNDS = 300
_TOLERANCE = 1800  # of roundings, on log(in / out), whose quarter is the change of a log scale
_NOISE = 50  # roundings of a sum, relative to its summands
_STEPS = 10  # of conjugate gradients in a round
_PASSES = 2  # over all nodes, in which neurons die because their neighbours are dead


class ScaleFactor(NamedTuple):
    """One unknown that scales a term.

    Attributes:
        unknown: its number.
        charge: the power, not 0.
        dims: dimensions of the term along which its neurons lie; several for a nested node, the outermost first.
    """

    unknown: int
    charge: int
    dims: tuple[int, ...]


Factors: TypeAlias = tuple[ScaleFactor, ...]


class Terms:
    """Terms ``x exp(2 sum_factors q s)`` at log scales s that move, to where their sum is least.

    Attributes:
        logs: the logarithm of every term, as scaled.
        s: log scales ``(B, *sizes)``, a tensor for each unknown.
    """

    def __init__(self, logs: list[Tensor], terms: list[Factors], s: list[Tensor]) -> None:
        self.logs, self.terms, self.s = logs, terms, list(s)
        self.sizes, self.eps = [math.prod(x.shape[1:]) for x in s], torch.finfo(s[0].dtype).eps
        self.touching: list[list[tuple[int, ScaleFactor]]] = [[] for _ in self.s]
        for number, factors in enumerate(terms):
            for factor in factors:
                self.touching[factor.unknown].append((number, factor))
        # exp(2 q d) is at most |q| / Q exp(+-2 Q d) + const for |q| <= Q, and a term of several factors of one unknown
        # at most the mean over them with Q = sum |q|. So the step 1 / 4Q log(out / in) lowers the sum.
        self.bounds = [
            max(
                (sum(abs(f.charge) for f in terms[number] if f.unknown == unknown) for number, _ in touching), default=1
            )
            for unknown, touching in enumerate(self.touching)
        ]

    def among(self, chosen: Sequence[bool], mask: list[Tensor] | None = None) -> Terms:
        """Keeps some of the terms, without the entries of neurons outside of the mask."""
        logs, terms = list(itertools.compress(self.logs, chosen)), list(itertools.compress(self.terms, chosen))
        if mask is not None:
            open_ = self._logs_of(mask)
            logs = [_masked(x, factors, open_) for x, factors in zip(logs, terms, strict=True)]
        return Terms(logs, terms, self.s)

    def move(self, unknown: int, step: Tensor) -> None:
        """Adds to the log scales of an unknown."""
        self.s[unknown] = self.s[unknown] + step
        double = 2 * step
        for number, factor in self.touching[unknown]:
            x = self.logs[number]
            part = along(double, factor.dims, x.ndim)
            self.logs[number] = x + part if factor.charge == 1 else x + factor.charge * part

    def alive(self, converge: bool) -> list[Tensor]:
        """Finds the neurons that can be balanced: those with nonzero entries on both sides, next to such neurons."""
        alive = [torch.ones_like(s, dtype=torch.bool) for s in self.s]
        open_ = [torch.zeros_like(s) for s in self.s]
        for _ in itertools.count() if converge else range(_PASSES):
            before = list(alive)
            for unknown in _there_and_back(alive):
                inward, outward = self._sides(unknown, self._sums(unknown, open_))
                alive[unknown] = alive[unknown] & (torch.minimum(inward, outward) > -torch.inf)
                open_[unknown] = alive[unknown].to(inward.dtype).log()
            if converge and all(map(torch.equal, alive, before)):
                break
        return alive

    def settle(self, settled: list[Tensor]) -> list[Tensor]:
        """Gives neurons without a scale one of norm 1, from inputs to outputs, then back; returns the settled ones."""
        settled, open_ = list(settled), self._logs_of(settled)
        for unknown in _there_and_back(settled):
            norms: dict[bool, list[Tensor]] = {False: [], True: []}
            for charge, log in self._sums(unknown, open_):
                norms[charge < 0].append(log / (2 * abs(charge)))
            inward, outward = (self._combined(unknown, norms[side], torch.maximum) for side in (False, True))
            change = torch.where(inward > -torch.inf, -inward, outward)
            new = ~settled[unknown] & (change > -torch.inf)
            self.move(unknown, change.masked_fill(~new, 0))
            settled[unknown] = settled[unknown] | new
            open_[unknown] = settled[unknown].to(change.dtype).log()
        return settled

    def level(self, settled: list[Tensor], converge: bool) -> None:
        """Moves neurons that are not settled to where the entries that they scale have logarithms of least squares.

        Neurons without a scale of their own get one only together, and those with one start there: one linear problem
        takes away sizes that are far apart.
        """
        fixed = joined(settled)
        if converge and not bool((~fixed).any()):
            return
        known = [x.nan_to_num(neginf=0.0) for x in self.logs]
        pattern = Terms([(x > -torch.inf).to(x.dtype).log() for x in self.logs], self.terms, self.s)
        diagonal = pattern._diagonal(map(pattern._sums, range(len(self.s)))).masked_fill(fixed, -torch.inf)
        pulls = [
            sum((-factor.charge / 2 * onto(known[number], factor.dims) for number, factor in touching), zero)
            for touching, zero in zip(self.touching, map(torch.zeros_like, self.s), strict=True)
        ]
        size = torch.stack([x.abs().flatten(1).amax(-1) for x in (*known, *self.s)]).amax(0).unsqueeze(-1)
        steps = sum(self.sizes) + 10 if converge else _STEPS + 2
        inverse = _inverse_root(diagonal)
        noise = size * diagonal.logsumexp(-1, keepdim=True).exp().sqrt()
        step = pattern._solved(joined(pulls) * inverse.exp(), inverse, noise, steps, converge)
        self._move_all(step * inverse.exp())

    def balance(self, converge: bool) -> None:
        """Minimises over one unknown after the other, which always gets nearer, and by Newton steps, which get there.

        Neurons without entries stay where they are.
        """
        for _ in range((_MOST_ROUNDS if converge else _ROUNDS + len(self.s) // 3) if self.terms else 0):
            for unknown, bound in enumerate(self.bounds):
                self.move(unknown, _imbalance(*self._sides(unknown, self._sums(unknown))) / (4 * bound))
            sums = [list(self._sums(unknown)) for unknown in range(len(self.s))]
            inward, outward = map(joined, zip(*itertools.starmap(self._sides, enumerate(sums)), strict=True))
            if converge and bool((_imbalance(inward, outward).abs() <= _TOLERANCE * self.eps).all()):
                break
            # Gradient and Hessian without their factors 2 and 4, relative to the largest curvature.
            diagonal = self._diagonal(sums)
            inverse = _inverse_root(diagonal)
            half = diagonal.amax(-1, keepdim=True).nan_to_num(neginf=0.0) / 2
            pull = ((outward + (inverse - half)).exp() - (inward + (inverse - half)).exp()) / 2
            noise = (diagonal - 2 * half).exp().sum(-1, keepdim=True).sqrt()
            step = self._solved(pull, inverse, noise, _STEPS) * (inverse + half).exp()
            self._move_all(step / step.abs().amax(-1, keepdim=True).clamp_min(1))

    def _move_all(self, step: Tensor) -> None:
        for unknown, (part, s) in enumerate(zip(torch.split(step, self.sizes, -1), self.s, strict=True)):
            self.move(unknown, part.reshape(s.shape))

    def _logs_of(self, mask: list[Tensor]) -> list[Tensor]:
        """0 inside, -inf outside."""
        return [m.to(s.dtype).log() for m, s in zip(mask, self.s, strict=True)]

    def _sums(self, unknown: int, mask: list[Tensor] | None = None) -> Iterator[tuple[int, Tensor]]:
        """Yields a charge and log squared norms ``(B, *sizes)`` of each term of an unknown, next to a log mask."""
        for number, factor in self.touching[unknown]:
            x = self.logs[number]
            if mask is not None:
                x = _masked(x, [other for other in self.terms[number] if other is not factor], mask)
            yield factor.charge, onto(x, factor.dims, torch.logsumexp)

    def _combined(
        self, unknown: int, parts: list[Tensor], how: Callable[[Tensor, Tensor], Tensor] = torch.logaddexp
    ) -> Tensor:
        return functools.reduce(how, parts) if parts else torch.full_like(self.s[unknown], -torch.inf)

    def _sides(self, unknown: int, sums: Iterable[tuple[int, Tensor]]) -> tuple[Tensor, Tensor]:
        """Returns logs of the sums of the squares that a neuron's scale multiplies, and divides, times charges."""
        sides: dict[bool, list[Tensor]] = {False: [], True: []}
        for charge, log in sums:
            sides[charge < 0].append(_times(abs(charge), log))
        return self._combined(unknown, sides[False]), self._combined(unknown, sides[True])

    def _diagonal(self, sums: Iterable[Iterable[tuple[int, Tensor]]]) -> Tensor:
        """Returns the logarithm of the Hessian's diagonal, ``(B, N)``: sums of squares, times squared charges."""
        parts = [[_times(charge**2, log) for charge, log in of_unknown] for of_unknown in sums]
        return joined([self._combined(unknown, part) for unknown, part in enumerate(parts)])

    def _solved(self, pull: Tensor, inverse: Tensor, noise: Tensor, steps: int, look: bool = False) -> Tensor:
        """The least v with ``Hessian v = pull``, the Hessian divided by the roots of its diagonal on both sides.

        ``inverse`` has the logarithms of the inverses of these roots. ``noise (B, 1)`` is the norm of the numbers that
        ``pull`` was computed from: their rounding errors are no pull. For the rest see `conjugate_gradients`.
        """
        products = list(self._products(inverse))

        def hessian(v: Tensor) -> Tensor:
            parts = torch.split(v, self.sizes, -1)
            total = list(parts)
            for target, source, matrix in products:
                product = torch.bmm(matrix, parts[source].reshape(len(matrix), matrix.shape[-1], 1))
                total[target] = total[target] + product.reshape(total[target].shape)
            return torch.cat(total, -1)

        return conjugate_gradients(hessian, pull, _NOISE * self.eps * noise, steps, look)

    def _products(self, inverse: Tensor) -> Iterator[tuple[int, int, Tensor]]:
        """The Hessian off its diagonal, divided by the diagonal's roots: from one unknown's neurons to another's.

        The matrices are ``(B x shared neurons, .., ..)``.
        """
        parts = [x.reshape(s.shape) for x, s in zip(torch.split(inverse, self.sizes, -1), self.s, strict=True)]
        for x, factors in zip(self.logs, self.terms, strict=True):
            for a, b in itertools.combinations(factors, 2):
                shared = [d for d in a.dims if d in b.dims]
                alone = [[d for d in factor.dims if d not in shared] for factor in (a, b)]
                # Neurons that both are nested in are the outermost of both, so that none need change places.
                count, *sizes = (math.prod(x.shape[d] for d in dims) for dims in (shared, *alone))
                common = onto(_masked(x, (a, b), parts).exp(), [*shared, *alone[0], *alone[1]])
                matrix = common.reshape(len(x) * count, *sizes)
                matrix = matrix if a.charge * b.charge == 1 else matrix * (a.charge * b.charge)
                yield a.unknown, b.unknown, matrix
                yield b.unknown, a.unknown, matrix.mT


def conjugate_gradients(
    matrix: Callable[[Tensor], Tensor], right: Tensor, enough: Tensor | float, steps: int, look: bool = False
) -> Tensor:
    """Returns the least v ``(B, N)`` with ``matrix v = right``, without directions that the matrix takes to 0.

    Args:
        matrix: symmetric, no eigenvalue less than 0.
        right: ``(B, N)``, an image of the matrix.
        enough: the norm of the rest at which a row stops.
        steps: the most steps.
        look: whether to stop when no row takes a step any more.
    """
    v, rest, direction = torch.zeros_like(right), right, right
    square = rest.square().sum(-1, keepdim=True)
    for _ in range(steps):
        image = matrix(direction)
        curvature = (direction * image).sum(-1, keepdim=True)
        done = (curvature <= 0) | (square.sqrt() <= enough)
        if look and bool(done.all()):
            break
        length = (square / curvature).masked_fill(done, 0)
        v, rest = v + length * direction, rest - length * image
        before, square = square, rest.square().sum(-1, keepdim=True)
        direction = rest + (square / before).masked_fill(before <= 0, 0) * direction
    return v


def _imbalance(inward: Tensor, outward: Tensor) -> Tensor:
    """``log(out / in)``, 0 where one of them is nothing."""
    return (outward - inward).nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)


def _times(factor: int, log: Tensor) -> Tensor:
    return log + math.log(factor) if factor > 1 else log


def _inverse_root(logs: Tensor) -> Tensor:
    """The logarithm of ``x^(-1/2)``, but -inf for 0."""
    return (-logs / 2).nan_to_num(posinf=-torch.inf)


def joined(unknowns: Sequence[Tensor]) -> Tensor:
    return torch.cat([x.flatten(1) for x in unknowns], -1)


def _there_and_back(unknowns: Sequence[object]) -> list[int]:
    return [*range(len(unknowns)), *reversed(range(len(unknowns)))]


def _masked(x: Tensor, factors: Sequence[ScaleFactor], open_: Sequence[Tensor]) -> Tensor:
    """A term without the entries of neurons outside of a log mask."""
    for unknown, _, dims in factors:
        x = x + along(open_[unknown], dims, x.ndim)
    return x
