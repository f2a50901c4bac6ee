"""Kernels of sparse linear systems over the integers and over GF(2), with exact numbers.

Almost every equation of a network has a coefficient +-1, so it is solved for that unknown and substituted: time and
memory grow about linearly. What is left over (none, in most networks) goes through unimodular column operations.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import TypeAlias

Vector: TypeAlias = dict[int, int]


def kernel(
    equations: Iterable[Mapping[int, int | Fraction]], variables: Sequence[int], modulus: int = 0
) -> list[Vector]:
    """A basis of the solutions of ``sum_u q_u x_u = 0`` for all equations.

    Args:
        equations: variable -> coefficient; variables that are not in ``variables`` are 0.
        variables: in order: the basis is written in the earlier ones.
        modulus: 0 for integers (the basis spans all integer solutions), 2 for GF(2).

    >>> kernel([{0: 1, 1: 1}, {1: 2, 2: -2}], [0, 1, 2])
    [{0: 1, 1: -1, 2: -1}]
    >>> kernel([{0: 2, 1: -3}], [0, 1]), kernel([{0: 2, 1: -3}], [0, 1], 2)
    ([{0: 3, 1: 2}], [{0: 1}])
    """
    rank = {u: n for n, u in enumerate(variables)}
    system = _System(rank, modulus)
    pending = [_whole(equation, rank, modulus) for equation in equations]
    while True:
        left: list[Vector] = []
        for equation in pending:
            rest = system.reduce(equation)
            if rest and not system.solve(rest):
                left.append(rest)
        if len(left) == len(pending) or not left:
            break
        pending = left
    free = [u for u in variables if u not in system.solved]
    basis: list[Vector] = [{u: 1} for u in free]
    if left:
        involved = sorted({u for equation in left for u in equation}, key=rank.__getitem__)
        basis = [{u: 1} for u in free if u not in involved] + _null_space(left, involved)
    return [system.complete(vector) for vector in basis]


class _System:
    """Variables solved for, each in terms of those that are not."""

    def __init__(self, rank: Mapping[int, int], modulus: int) -> None:
        self.solved: dict[int, Vector] = {}
        self._rank, self._modulus = rank, modulus
        self._used: dict[int, set[int]] = {}

    def reduce(self, equation: Vector) -> Vector:
        """The same without variables that are solved for, divided by what its coefficients share."""
        found: Vector = {}
        for u, q in equation.items():
            if u in self.solved:
                for v, p in self.solved[u].items():
                    _increase(found, v, q * p, self._modulus)
            else:
                _increase(found, u, q, self._modulus)
        divisor = math.gcd(*found.values())
        return {u: q // divisor for u, q in found.items()} if divisor > 1 else found

    def solve(self, equation: Vector) -> bool:
        """Solve an equation for its last variable with coefficient +-1, if there is one."""
        units = [u for u, q in equation.items() if abs(q) == 1]
        if not units:
            return False
        pivot = max(units, key=self._rank.__getitem__)
        sign = -equation[pivot]
        rest = {u: (q * sign) % 2 if self._modulus else q * sign for u, q in equation.items() if u != pivot}
        self.solved[pivot] = rest
        for v in rest:
            self._used.setdefault(v, set()).add(pivot)
        for other in self._used.pop(pivot, ()):
            expression = self.solved[other]
            q = expression.pop(pivot, 0)
            for v, p in rest.items() if q else ():
                _increase(expression, v, q * p, self._modulus)
                if v in expression:
                    self._used.setdefault(v, set()).add(other)
        return True

    def complete(self, vector: Vector) -> Vector:
        """Values of all variables, given those of the free ones."""
        found = dict(vector)
        for u, q in vector.items():
            for pivot in self._used.get(u, ()):
                _increase(found, pivot, q * self.solved[pivot].get(u, 0), self._modulus)
        return dict(sorted(found.items(), key=lambda item: self._rank[item[0]]))


def _increase(vector: Vector, u: int, q: int, modulus: int) -> None:
    total = vector.get(u, 0) + q
    total = total % modulus if modulus else total
    if total:
        vector[u] = total
    else:
        vector.pop(u, None)


def _whole(equation: Mapping[int, int | Fraction], rank: Mapping[int, int], modulus: int) -> Vector:
    factor = math.lcm(*(Fraction(q).denominator for q in equation.values()))
    found = {u: int(q * factor) for u, q in equation.items() if u in rank}
    return {u: q % modulus for u, q in found.items() if q % modulus} if modulus else found


def _null_space(equations: Sequence[Vector], variables: Sequence[int]) -> list[Vector]:
    """Integer null space by unimodular operations on the columns of the system."""
    columns = [([eq.get(u, 0) for eq in equations], {u: 1}) for u in variables]
    for row in range(len(equations)):
        active = [column for column in columns if column[0][row]]
        while len(active) > 1:
            pivot = min(active, key=lambda column: abs(column[0][row]))
            for column in active:
                if column is not pivot and (factor := column[0][row] // pivot[0][row]):
                    column[0][:] = [a - factor * b for a, b in zip(column[0], pivot[0], strict=True)]
                    for u, q in pivot[1].items():
                        _increase(column[1], u, -factor * q, 0)
            active = [column for column in active if column[0][row]]
        columns = [column for column in columns if column not in active] if active else columns
    return [v if next(iter(v.values())) > 0 else {u: -q for u, q in v.items()} for _, v in columns]


class Span:
    """The span of vectors over the rationals or GF(2), one added at a time."""

    def __init__(self, modulus: int = 0, vectors: Iterable[Mapping[int, int]] = ()) -> None:
        self._rows: dict[int, Vector] = {}
        self._modulus = modulus
        for vector in vectors:
            self.add(vector)

    def __contains__(self, vector: Mapping[int, int]) -> bool:
        return not self._outside(vector)

    def add(self, vector: Mapping[int, int]) -> bool:
        """Adds a vector to the span; returns whether it lay outside before."""
        if rest := self._outside(vector):
            self._rows[min(rest)] = rest
        return bool(rest)

    def _outside(self, vector: Mapping[int, int]) -> Vector:
        """A multiple of the vector without what lies inside: whole numbers, no common divisor."""
        rest: Vector = {}
        for u, q in vector.items():
            _increase(rest, u, q, self._modulus)
        while rest and (row := self._rows.get(pivot := min(rest))) is not None:
            shared = math.gcd(row[pivot], rest[pivot])
            own, other = row[pivot] // shared, rest[pivot] // shared
            rest = {u: own * q for u, q in rest.items()} if own != 1 else rest
            for u, q in row.items():
                _increase(rest, u, -other * q, self._modulus)
        divisor = math.gcd(*rest.values())
        return {u: q // divisor for u, q in rest.items()} if divisor > 1 else rest


def shortened(basis: Sequence[Vector], modulus: int = 0) -> list[Vector]:
    """Another basis of the same lattice whose vectors have smaller entries, by adding one vector to another.

    Only vectors that share a variable are compared, and of these none that is at least twice as long.
    """
    found = [dict(vector) for vector in basis]
    length = [sum(map(abs, vector.values())) for vector in found]
    having: dict[int, set[int]] = {}
    for i, vector in enumerate(found):
        for u in vector:
            having.setdefault(u, set()).add(i)

    def beside(i: int, behind: int = -1) -> list[int]:
        shared = set[int]().union(*(having[u] for u in found[i]))
        return sorted((j for j in shared if j > behind and j != i), reverse=True)

    improved = True
    while improved:
        improved = False
        for i in range(len(found)):
            left = beside(i)
            while left:
                j = left.pop()
                for sign in (1,) if modulus else (1, -1):
                    if length[j] >= 2 * length[i]:
                        continue
                    total = dict(found[i])
                    for u, q in found[j].items():
                        _increase(total, u, sign * q, modulus)
                    size = sum(map(abs, total.values()))
                    if size < length[i]:
                        for u in found[i].keys() - total.keys():
                            having[u].remove(i)
                        for u in total.keys() - found[i].keys():
                            having[u].add(i)
                        found[i], length[i], improved = total, size, True
                        left = beside(i, behind=j)
    return found
