"""Log-scales and signs of values as linear forms in unknowns, and the equations between them.

A parameter ``W`` whose entries are acted on as ``W_jk -> exp(s_j + s'_k + c) (-1)^(t_j + t'_k + c') W_jk`` has the
unknowns ``s, t`` and ``s', t'``, one for each index of an axis, and ``c, c'``. Scales are forms over the integers (the
rationals, where a root is taken), signs over GF(2). One number stands for the unknowns of an axis.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias

from .atoms import Cause

Scale: TypeAlias = Mapping[int, int | Fraction]
Sign: TypeAlias = frozenset[int]


@dataclass(frozen=True, slots=True)
class Form:
    """How one axis of a value, or all of it, is acted on: unknown -> coefficient, and the unknowns of odd sign."""

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
        """Of ``x ** exponent``; a fraction's sign has to be none, which the caller demands."""
        if self is ZERO or exponent == 1:
            return self
        scale = {u: q * exponent for u, q in self.scale.items()} if exponent else {}
        odd = Fraction(exponent).denominator == 1 and exponent % 2
        return Form(scale, self.sign if odd else frozenset())

    @property
    def unknowns(self) -> frozenset[int]:
        """All that it is made of."""
        return self.sign.union(self.scale)

    def kept(self, *, scale: bool = True, sign: bool = True) -> Form:
        """The same without its scale, or without its sign."""
        if self is ZERO or (scale and sign):
            return self
        return Form(self.scale if scale else {}, self.sign if sign else frozenset()) if scale or sign else ZERO


ZERO = Form({}, frozenset())


def unknown(number: int) -> Form:
    """One unknown."""
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


class Equations:
    """What operations demand: forms that are 0, each with the operation that demands it.

    Attributes:
        scales: forms of log-scales.
        signs: forms of sign bits.
        costs: places of those of either that an operation wants to vanish because of what it computes.
        causes: of an unknown, the first operation that wants a form with it to vanish because of what it computes, not
            because two things are added: for the report. One for scales, one for signs.
    """

    def __init__(self) -> None:
        self.scales: list[Scale] = []
        self.signs: list[Sign] = []
        self.costs: tuple[set[int], set[int]] = (set(), set())
        self.causes: tuple[dict[int, Cause], dict[int, Cause]] = ({}, {})

    def demand(self, form: Form, cause: Cause | None = None) -> None:
        """``form = 0``."""
        kinds = zip((self.scales, self.signs), (form.scale, form.sign), self.causes, self.costs, strict=True)
        for forms, own, causes, costs in kinds:
            if own and cause:
                costs.add(len(forms))  # type: ignore[arg-type]
            if own:
                forms.append(own)  # type: ignore[attr-defined]
            for u in own if cause else ():
                causes.setdefault(u, cause)  # type: ignore[arg-type]
