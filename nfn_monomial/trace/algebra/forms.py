"""Log-scales and signs of values, as linear forms in unknowns.

A parameter ``W`` whose entries are acted on as ``W_jk -> exp(s_j + s'_k + c) (-1)^(t_j + t'_k + c') W_jk`` has the
unknowns ``s, t`` and ``s', t'``, one for each index of an axis, and ``c, c'``. Scales are forms over the integers (the
rationals, where a root is taken), signs over GF(2). One number stands for the unknowns of an axis.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias

Scale: TypeAlias = Mapping[int, int | Fraction]
Sign: TypeAlias = frozenset[int]


@dataclass(frozen=True, slots=True)
class Form:
    """Action on one axis of a value, or on all of it: unknown -> coefficient, and the unknowns of odd sign."""

    scale: Scale
    sign: Sign

    def __add__(self, other: Form) -> Form:
        if other is ZERO:
            return self
        return other if self is ZERO else Form(_sum(self.scale, other.scale, 1), self.sign ^ other.sign)

    def __sub__(self, other: Form) -> Form:
        if other is ZERO:
            return self
        return Form(_sum(self.scale, other.scale, -1), self.sign ^ other.sign)

    def power(self, exponent: int | Fraction) -> Form:
        """Returns the form of ``x ** exponent``; for a fraction the caller demands that there is no sign."""
        if self is ZERO or exponent == 1:
            return self
        scale = {u: q * exponent for u, q in self.scale.items()} if exponent else {}
        odd = Fraction(exponent).denominator == 1 and exponent % 2
        return Form(scale, self.sign if odd else frozenset())

    @property
    def unknowns(self) -> frozenset[int]:
        """All unknowns in it."""
        return self.sign.union(self.scale)

    def kept(self, *, scale: bool = True, sign: bool = True) -> Form:
        """Returns the form without its scale, or without its sign."""
        if self is ZERO or (scale and sign):
            return self
        return Form(self.scale if scale else {}, self.sign if sign else frozenset()) if scale or sign else ZERO


ZERO = Form({}, frozenset())


def unknown(number: int) -> Form:
    """Returns the form that is one unknown."""
    return Form({number: 1}, frozenset((number,)))


def _sum(a: Scale, b: Scale, factor: int) -> Scale:
    if not b:
        return a
    total = dict(a)
    for u, q in b.items():
        value = total.get(u, 0) + factor * q
        if value:
            total[u] = value
        else:
            del total[u]
    return total
