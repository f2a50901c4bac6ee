"""The sum of squares of a batch of networks, as a function of the logarithms of their scales, and its minimum."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from .buckets import Buckets
from .buckets import ScaleFactor as ScaleFactor
from .charges import onto

_SWEEPS = 10  # where no value is looked at, before Newton steps
_ROUNDS = 6  # of Newton steps there, and one more for three unknowns: most networks are balanced by then
_MOST_ROUNDS = 300
_TOLERANCE = 450  # of roundings, on changes of log scales
_LAST = 2e-8  # after a Newton step of this length the next one would be its square
_NEAR = 1.0  # changes of log scales from which Newton steps get there
_FAR = 4.0  # changes beyond which sizes are levelled first
_NOISE = 50  # roundings of a number that a step is computed from
_STEPS = 10  # of conjugate gradients in a round, where no value is looked at
_FEW, _AT_ONCE = 64, 2**29  # networks, and multiplications of them all, whose matrices are solved at once
_LEVELLED_AT_ONCE = 128  # neurons, so that those that zeros cut off have one form whatever their number


class Terms:
    """Terms ``x exp(2 sum_factors q s)`` at log scales ``s (B, N)``, which move to where their sum is least.

    Args:
        buckets: where neurons are.
        logs: the logarithm of every term.
        look: whether values are looked at.
    """

    def __init__(self, buckets: Buckets, logs: Sequence[Tensor], look: bool) -> None:
        self.buckets, self.logs, self.look = buckets, buckets.packed(logs), look
        self.eps, self.count = torch.finfo(buckets.charge.dtype).eps, sum(buckets.sizes)

    def alive(self) -> Tensor:
        """Finds the neurons ``(B, N)`` that can be balanced: with nonzero entries on both sides, next to such ones."""
        self.unmoved = self._sides(self.logs)
        alive = (self.unmoved[0] > -torch.inf).all(1)
        for _ in itertools.count() if self.look else range(len(self.buckets.sizes)):
            if self.look and bool(alive.all()):
                break
            before, alive = alive, (self._sides(self.among(alive).logs)[0] > -torch.inf).all(1)
            if self.look and torch.equal(before, alive):
                break
        return alive

    def among(self, mask: Tensor) -> Terms:
        """Returns the terms without the entries of neurons outside of a mask ``(B, N)``."""
        ends, some = self.buckets.ends(mask.to(self.buckets.charge.dtype).log()), copy.copy(self)
        some.logs = [sum(of_bucket, x) for x, of_bucket in zip(self.logs, ends, strict=True)]
        return some

    def balance(self, s: Tensor, regular: bool = False) -> Tensor:
        """Returns the log scales of least norm; neurons without entries stay where they are.

        All neurons move at once by a quarter of ``log(out / in)``, over the charges of a term, which lowers the sum:
        ``exp(2 sum_f q_f d_f)`` is at most ``sum_f |q_f| / Q exp(2 Q sign(q_f) d_f)`` for ``Q = sum_f |q_f|``. Networks
        that are near take Newton steps.

        Args:
            s: where to start.
            regular: whether no neuron is dead and no entry is outside of the terms. Scales that change no term then
                change nothing, and any way to the minimum will do: the one with the fewest operators.
        """
        at_once = regular and len(s) <= _FEW and len(s) * self.count**3 <= _AT_ONCE
        close, curvature = False, s
        for number in range(_MOST_ROUNDS if self.look else _SWEEPS + _ROUNDS + len(self.buckets.sizes) // 3):
            logs = self._moved(s)
            if regular and close:
                entries = self._relative(logs, curvature)
                sides, weight = self._sums(entries)
                sides, curvature = sides.log() + curvature.unsqueeze(1), curvature + weight.log()
            else:
                sides, curvature = self.unmoved if regular and number == 0 else self._sides(logs)
                entries, weight = None, None
            inward, outward = sides.unbind(1)
            change = (outward - inward).nan_to_num(nan=0.0, posinf=0.0, neginf=0.0) / 4
            size = torch.linalg.vector_norm(change, torch.inf, -1, keepdim=True)
            sizes = (size.flatten().tolist() or [0.0]) if self.look else [0.0, torch.inf]
            if max(sizes) <= _TOLERANCE * self.eps:
                break
            near, close = max(sizes) <= _NEAR, max(sizes) <= _FAR
            step = change / self.buckets.bound
            if number == 0 and max(sizes) > _FAR:
                step = torch.where(size > _FAR, self.level(s), step)
            elif min(sizes) <= _NEAR and (regular or number >= _SWEEPS):
                slope = (2 * change).tanh() / 2  # (out - in) / 2 (in + out)
                if not self.buckets.simple:
                    slope = slope * (sides.logsumexp(1) - curvature).exp().nan_to_num(0.0)
                if at_once:
                    entries = self._relative(logs, curvature) if entries is None else entries
                    newton = self._solved_at_once(entries, weight, slope)
                else:
                    newton = self._solved(logs, curvature, slope, size.clamp_max(1) / 10)
                length = torch.linalg.vector_norm(newton, torch.inf, -1, keepdim=True)
                newton = newton / length.clamp_min(1)
                step = newton if near else torch.where(size <= _NEAR, newton, step)
                if near and max(length.flatten().tolist()) <= _LAST:
                    return s + step
            s = s + step
        return s

    def level(self, s: Tensor, free: Tensor | None = None) -> Tensor:
        """Returns changes of log scales to where the logarithms of the entries have least squares.

        One linear problem takes away sizes that are far apart.

        Args:
            s: log scales.
            free: the neurons that move, all by default. With it the terms have to be all entries of the networks:
                what changes none of them may be added to a solution.
        """
        logs = self._moved(s)
        pattern = [(x > -torch.inf).to(x.dtype).log() for x in logs]
        known = [x.nan_to_num(neginf=0.0) for x in logs]
        curvature = self._sides(pattern)[1]
        pull = self._gathered(0.0, self._onto(known, torch.sum) * self.buckets.charge).sum((1, 2)) / -2
        right = (pull * (-curvature).exp()).nan_to_num(posinf=0.0, neginf=0.0)
        if free is not None:
            curvature, right = curvature.masked_fill(~free, -torch.inf), right.masked_fill(~free, 0)
            if self.count <= _LEVELLED_AT_ONCE:
                return self._solved_at_once(self._relative(pattern, curvature), None, right)
        size = torch.stack([x.abs().flatten(1).amax(-1) for x in known]).amax(0).unsqueeze(-1)
        return self._solved(pattern, curvature, right, 0.0, size)

    def _moved(self, s: Tensor) -> list[Tensor]:
        ends = self.buckets.along(s.index_select(1, self.buckets.neuron) * (2 * self.buckets.charge))
        return [sum(of_bucket, x) for x, of_bucket in zip(self.logs, ends, strict=True)]

    def _onto(self, terms: list[Tensor], total: Callable[[Tensor, list[int]], Tensor]) -> Tensor:
        """Totals of the entries at every end, ``(B, M)``."""
        pairs = zip(terms, self.buckets.buckets, strict=True)
        return torch.cat([onto(x, dims, total).flatten(1) for x, bucket in pairs for dims in bucket.dims], -1)

    def _gathered(self, nothing: float, *ends: Tensor) -> Tensor:
        """Numbers of the ends of each neuron, ``(B, 2, most ends of a side, N)``; ``nothing`` where there are fewer."""
        parts = [*ends, ends[0].new_full((len(ends[0]), 1), nothing)]
        places = self.buckets.places
        return torch.cat(parts, -1).index_select(1, places.flatten()).reshape(len(ends[0]), *places.shape)

    def _sides(self, logs: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Returns logs of the sums of squares that a scale multiplies and divides, times charges ``(B, 2, N)``; and of
        the Hessian's diagonal ``(B, N)``, sums of squares times squared charges."""
        ends = self._onto(logs, torch.logsumexp)
        if self.buckets.simple:
            sides = self._gathered(-torch.inf, ends).logsumexp(2)
            return sides, torch.logaddexp(*sides.unbind(1))
        weight = self.buckets.charge.abs().log()
        sides, squares = (self._gathered(-torch.inf, ends + k * weight).logsumexp(2) for k in (1, 2))
        return sides, squares.logsumexp(1)

    def _relative(self, logs: list[Tensor], curvature: Tensor) -> list[list[Tensor]]:
        """For each factor of each bucket, entries of terms over the curvatures of its neurons."""
        ends = self.buckets.ends((-curvature).nan_to_num(posinf=-torch.inf))
        return [[(x + end).exp() for end in of_bucket] for x, of_bucket in zip(logs, ends, strict=True)]

    def _sums(self, entries: list[list[Tensor]]) -> tuple[Tensor, Tensor]:
        """The same as `_sides`, not their logarithms."""
        pairs = [
            z for x, bucket in zip(entries, self.buckets.buckets, strict=True) for z in zip(x, bucket.dims, strict=True)
        ]
        ends = torch.cat([onto(x, dims).flatten(1) for x, dims in pairs], -1)
        if self.buckets.simple:
            sides = self._gathered(0.0, ends).sum(2)
            return sides, sides.sum(1)
        sides, squares = (self._gathered(0.0, ends * self.buckets.charge.abs() ** k).sum(2) for k in (1, 2))
        return sides, squares.sum(1)

    def _solved_at_once(self, entries: list[list[Tensor]], weight: Tensor | None, right: Tensor) -> Tensor:
        """The same as `_solved`, of entries over curvatures that are now larger by the factor ``weight``."""
        diagonal = torch.full_like(right, 1 + 100 * self.eps) if weight is None else weight * (1 + 100 * self.eps)
        values = [diagonal] + [
            (x[i] * product).flatten(1)
            for x, products in zip(entries, self.buckets.products, strict=True)
            for pair, product in products.items()
            for i in pair
        ]
        matrix = right.new_zeros(len(right), self.count**2)
        matrix = matrix.scatter_add_(1, self.buckets.pairs.expand(len(right), -1), torch.cat(values, -1))
        right = right if weight is None else right * weight
        solved: Tensor = torch.linalg.solve_ex(matrix.reshape(len(right), self.count, self.count), right.unsqueeze(-1))[
            0
        ]
        return solved.squeeze(-1)

    def _solved(
        self, logs: list[Tensor], curvature: Tensor, right: Tensor, enough: Tensor | float, size: Tensor | float = 1.0
    ) -> Tensor:
        """Returns v with ``v + (Hessian off its diagonal) v / diagonal = right``, 0 where the diagonal is 0.

        Args:
            logs: terms whose sums are the Hessian.
            curvature: logarithms of its diagonal ``(B, N)``.
            right: ``(B, N)``.
            enough: the part of ``right`` that may be left.
            size: of the numbers that ``right`` was computed from: their rounding errors are not solved for.
        """
        inverse = (-curvature).nan_to_num(posinf=-torch.inf)
        # Divided by the roots of the diagonal on both sides it is symmetric.
        ends, products, number = self.buckets.ends(inverse / 2), [], 0
        for x, of_bucket, bucket, pairs in zip(logs, ends, self.buckets.buckets, self.buckets.products, strict=True):
            for (a, b), product in pairs.items():
                shared = [d for d in bucket.dims[a] if d in bucket.dims[b]]
                alone = [[d for d in bucket.dims[i] if d not in shared] for i in (a, b)]
                # Neurons that both are nested in are the outermost of both, so that none need change places.
                common = onto((x + of_bucket[a] + of_bucket[b]).exp() * product, [*shared, *alone[0], *alone[1]])
                matrix = common.reshape(*(math.prod(x.shape[d] for d in dims) for dims in ((0, *shared), *alone)))
                products += [(number + a, number + b, matrix), (number + b, number + a, matrix.mT)]
            number += len(bucket.dims)

        nothing = self.buckets.split(right.new_zeros(len(right), len(self.buckets.neuron)))

        def hessian(v: Tensor) -> Tensor:
            parts = self.buckets.split(v.index_select(1, self.buckets.neuron))
            total: dict[int, Tensor] = {}
            for target, source, matrix in products:
                product = torch.bmm(matrix, parts[source].reshape(*matrix.mT.shape[:2], 1)).reshape(parts[target].shape)
                total[target] = total[target] + product if target in total else product
            return v + self._gathered(0.0, *(total.get(i, part) for i, part in enumerate(nothing))).sum((1, 2))

        root = (-inverse / 2).nan_to_num(posinf=-torch.inf)
        root = (root - root.amax(-1, keepdim=True).nan_to_num(neginf=0.0)).exp()
        pull = right * root
        norms = (torch.linalg.vector_norm(x, dim=-1, keepdim=True) for x in (pull, root))
        least = torch.maximum(enough * next(norms), _NOISE * self.eps * size * next(norms))
        steps = (self.count + 10 if isinstance(enough, float) else 10 * _STEPS) if self.look else _STEPS
        return (conjugate_gradients(hessian, pull, least, steps, self.look) / root).nan_to_num(
            nan=0.0, posinf=0.0, neginf=0.0
        )


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
    square, least = rest.square().sum(-1, keepdim=True), enough**2
    for _ in range(steps):
        image = matrix(direction)
        curvature = (direction * image).sum(-1, keepdim=True)
        done = (curvature <= 0) | (square <= least)
        if look and bool(done.all()):
            break
        length = (square / curvature).masked_fill(done, 0)
        v, rest = torch.addcmul(v, length, direction), torch.addcmul(rest, length, image, value=-1)
        before, square = square, rest.square().sum(-1, keepdim=True)
        direction = torch.addcmul(rest, (square / before).nan_to_num(nan=0.0), direction)
    return v


def joined(unknowns: Sequence[Tensor]) -> Tensor:
    return torch.cat([x.flatten(1) for x in unknowns], -1)
