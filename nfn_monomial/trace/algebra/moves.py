"""What rules of operators are written in: the moves that tie values and write equations between their forms."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Literal, TypeAlias

import torch

from .atoms import Cause
from .forms import ZERO, Form
from .ledger import Ledger
from .values import (
    UNIT,
    Bundle,
    Dimension,
    Segment,
    Value,
    blocks,
    changed,
    extent,
    formed,
    indices_of,
    is_unit,
    product,
    settled,
    sizes,
    value,
)

Operand: TypeAlias = Value | float


class Run(Ledger):
    """The moves that rules are made of."""

    # Pointwise.

    def operand(self, found: Operand) -> Value:
        """An operand as a value; numbers are constants."""
        return found if isinstance(found, Value) else self.constant(torch.tensor(found))

    def unary(
        self,
        found: Value,
        kind: Literal["linear", "homogeneous", "absolute", "odd", "even", "any"],
        *,
        zero: bool = False,
        reason: str | None = None,
    ) -> Value:
        """A pointwise function; ``zero`` says that it keeps 0."""
        scales = kind in ("linear", "homogeneous", "absolute")
        self.vanish(found, scale=not scales, sign=kind in ("homogeneous", "any"), reason=reason or _KINDS[kind])
        out = self.kept(found, scale=scales, sign=kind in ("linear", "odd"))
        return self.note(replace(out, zero=found.zero and (zero or scales or kind == "odd")))

    def power(self, found: Value, exponent: float) -> Value:
        """``x ** exponent``."""
        ratio = Fraction(exponent).limit_denominator(64)
        if abs(float(ratio) - exponent) > 1e-12:
            return self.unary(found, "any", reason="an irrational power")
        if ratio.denominator > 1:
            self.vanish(found, scale=False, reason="a root")
        dims = formed(found.dims, lambda form: form.power(ratio))
        return self.note(Value(dims, found.const.power(ratio), found.raw, found.zero and exponent > 0))

    def aligned(self, *operands: Operand) -> list[Value]:
        """Values broadcast against one another, with what they share tied; the first dimensions are added."""
        values = list(map(self.operand, operands))
        rank = max(len(found.dims) for found in values)
        rows = [[UNIT] * (rank - len(v.dims)) + list(v.dims) for v in map(self.resolved, values)]
        rows = [rows[0], *([self._roles(row, rows[0]) for row in rows[1:]])]
        for at in range(rank):
            full = [row for row in rows if not is_unit(row[at])]
            for _ in range(2 if len(full) > 2 else 1):  # what the last one cut, the first ones have to hear of
                for row in full[1:]:
                    full[0][at], row[at] = self.align(full[0][at], row[at])
        return [replace(v, dims=tuple(map(self.resolve, row))) for v, row in zip(values, rows, strict=True)]

    def _roles(self, dims: list[Dimension], others: list[Dimension]) -> list[Dimension]:
        """The same with other tokens, where some are those of another value."""
        taken = {i.token for i in indices_of(Value(tuple(others)))}
        if not any(i.token in taken for i in indices_of(Value(tuple(dims)))):
            return dims
        new = [changed(dim, self.renamed) for dim in dims]
        kept, self.ties = self.ties, []
        pairs = zip(indices_of(Value(tuple(dims))), indices_of(Value(tuple(new))), strict=True)
        self.ties.extend((i.token, j.token) for i, j in pairs)
        self.note(Value(tuple(dims)), Value(tuple(new)))
        self.ties = kept
        return new

    def add(self, a: Operand, b: Operand) -> Value:
        """``a + b``, or anything else that is linear in both at once: their forms are equal."""
        a, b = self.aligned(a, b)
        if b.zero or not a.zero:
            a, b = self._met(a, b, +1)
        else:
            a, b = self._met(b, a, +1)
        plain = [v.inert or v.data is not None for v in (a, b)]
        cause = self.because("a constant is added") if any(plain) else None
        const = a.const - b.const
        for da, db in zip(a.dims, b.dims, strict=True) if not b.zero else ():
            const += self._alike(da, db, cause)
        if not b.zero:
            self.equations.demand(const, cause)
        dims = tuple(map(product, a.dims, formed(b.dims, lambda _: ZERO)))
        return self.note(Value(dims, a.const, a.raw and b.raw, a.zero and b.zero), a, b)

    def _alike(self, a: Dimension, b: Dimension, cause: Cause | None) -> Form:
        """Demand that forms along a dimension are equal in two values, but for a constant: that is given back."""
        if is_unit(a) or is_unit(b):
            self._constant_along(b if is_unit(a) else a, True, True, cause)
            return a[0].const - b[0].const
        base = a[0].const - b[0].const
        for one, other in zip(a, b, strict=True):
            for i, j in zip(one.indices, other.indices, strict=True):
                self.equations.demand(i.form - j.form, cause)
            self.equations.demand(one.const - other.const - base, cause)
        return base

    def _met(self, a: Value, b: Value, flow: int) -> tuple[Value, Value]:
        """Two values that meet entry by entry: a parameter that meets anything else has found its place."""
        if a.raw and b.raw:
            return a, b
        return self.settle(a, flow), self.settle(b, flow)

    def multiply(self, a: Operand, b: Operand, *, exponent: int = 1) -> Value:
        """``a * b ** exponent``."""
        b = self.power(self.operand(b), exponent) if exponent != 1 else b
        a, b = self.aligned(a, b)
        a, b = self._met(a, b, 0)
        dims = map(product, a.dims, b.dims)
        return self.note(value(dims, a.const + b.const, raw=a.raw and b.raw, zero=a.zero or b.zero), a, b)

    def extreme(self, a: Operand, b: Operand) -> Value:
        """The larger or smaller one of two, entry by entry."""
        out = self.add(a, b)
        self.vanish(out, scale=False, reason="maximum of two")
        return out

    # Sums over dimensions.

    def contract(self, a: Value, left: str, b: Value, right: str, out: str) -> Value:
        """An einsum of two values: what is summed over has to transform inversely in one and the other."""
        a, b = self.resolved(a), self.resolved(b)
        of_a = dict(zip(left, a.dims, strict=True))
        of_b = dict(zip(right, self._roles(list(b.dims), list(a.dims)), strict=True))
        both, raw, zero = a.raw and b.raw, a.raw or b.raw, a.zero or b.zero
        for letter in of_a:
            if letter in of_b and not is_unit(of_a[letter]) and not is_unit(of_b[letter]):
                of_a[letter], of_b[letter] = self.align(of_a[letter], of_b[letter])
        const = a.const + b.const
        for letter in dict.fromkeys((*left, *right)):
            if letter in out:
                continue
            da, db = of_a.get(letter, UNIT), of_b.get(letter, UNIT)
            dim = product(da, db)
            if not zero:
                self._constant_along(dim, True, True, None)
            const += dim[0].const
            if raw:
                self._flow(da, -1)
                self._flow(db, +1 if both else -1)
        dims = []
        if raw and not both:
            self.reads(Value(tuple(of_a.values()), const))
            self.reads(Value(tuple(of_b.values())))
        for letter in out:
            dim = product(of_a.get(letter, UNIT), of_b.get(letter, UNIT))
            if raw and not both:
                shared = letter in of_a and letter in of_b
                self._flow(dim, 0 if shared else +1)
                dim = settled(dim)
            dims.append(dim)
        met = Value(tuple(of_a.values())), Value(tuple(of_b.values()))
        return self.note(value(dims, const, raw=both, zero=zero), *met)

    def reduce(
        self,
        found: Value,
        dims: Iterable[int] | None,
        keepdim: bool = False,
        *,
        kind: Literal["linear", "homogeneous", "absolute", "any"] = "linear",
        reason: str = "sum over it",
    ) -> Value:
        """Dimensions summed over (all, for None), or reduced in another way that keeps no order."""
        at = self.positions(found, dims)
        if kind == "any":
            self.vanish(found, reason=reason)
        out = self.even(found, at, scale=True, sign=kind != "absolute", reason=reason)
        if kind == "homogeneous":
            self.vanish(out, scale=False, reason=reason)
        if kind in ("absolute", "homogeneous"):
            out = self.kept(out, sign=False)
        new = [UNIT if n in at else dim for n, dim in enumerate(out.dims) if keepdim or n not in at]
        return self.note(found.over(new, out.const), found)

    @staticmethod
    def positions(found: Value, dims: Iterable[int] | int | None) -> set[int]:
        """Dimensions as a set of positions from the front; all for None, and for none."""
        rank = len(found.dims)
        if isinstance(dims, int):
            dims = (dims,)
        chosen = {dim % rank for dim in dims} if dims is not None and rank else set()
        return chosen or set(range(rank))

    # Moving entries about.

    def placed(self, found: Value, dims: Iterable[int], reason: str) -> Value:
        """The same with dimensions FIXED whose entries an operation tells apart by position."""
        found = self.resolved(found)
        for at in dims:
            self.fix(found.dims[at], reason)
        return found

    def without(self, found: Value, dims: Iterable[int], reason: str) -> Value:
        """The sum over dimensions, whose entries it weighs by position."""
        at = {found.at(dim) for dim in dims}
        return self.reduce(self.placed(found, at, reason), at, reason=reason) if at else found

    def positional(self, found: Value, dims: Iterable[int], reason: str, shape: Sequence[int] | None = None) -> Value:
        """What mixes entries along some dimensions linearly, by position: these become new FIXED ones of ``shape``."""
        shape = self.shape if shape is None else shape
        at = {dim % len(found.dims) for dim in dims}
        found = self.even(self.placed(found, at, reason), at, reason=reason)
        new = [self.fresh(shape[n], reason) if n in at else dim for n, dim in enumerate(found.dims)]
        return self.note(found.over(new), found)

    def concatenated(self, parts: Sequence[Value], at: int) -> Value:
        """Values behind one another along a dimension; in the others their forms are equal but for constants."""
        at %= len(parts[0].dims)
        raw = all(part.raw for part in parts)
        parts = [part if raw else self.settle(part, +1) for part in parts if part.shape != (0,)]
        first = next((n for n, part in enumerate(parts) if not part.zero), 0)
        rest = [part.put(at, at + 1, UNIT) for part in parts]
        lead = rest[first]
        for n, other in enumerate(rest):
            if n != first:
                lead, rest[n] = self._beside(lead, other)
        base = _offset(self.resolved(rest[first]))
        segments: list[Segment] = []
        made_of = {extent(part.dims[at]): sizes(self.resolve(part.dims[at])) for part in parts if not part.zero}
        for part, other in zip(parts, rest, strict=True):
            const = ZERO if part.zero else _offset(self.resolved(other)) - base
            dim = self.resolve(part.dims[at])
            if part.zero and not self.fixed(dim):  # cut like a part beside it: else their free form is lost in the cut
                dim = tuple(
                    Segment(tuple(map(self.index, factors)), lead=shared)
                    for factors, shared in made_of.get(extent(dim), sizes(dim))
                )
            segments += self.freed(dim) if part.zero else [s._replace(const=s.const + const) for s in dim]
        dims = lead.put(at, at + 1, tuple(segments)).dims
        met = [other.put(at, at + 1, part.dims[at]) for part, other in zip(parts, rest, strict=True)]
        return self.note(value(dims, lead.const, raw=raw, zero=all(part.zero for part in parts)), *met)

    def _beside(self, a: Value, b: Value) -> tuple[Value, Value]:
        """Two values whose forms are equal but for constants, aligned."""
        a, b = self.aligned(a, b)
        for da, db in zip(a.dims, b.dims, strict=True):
            if not (a.zero or b.zero):
                self._alike(da, db, None)
        return a, b

    def narrowed(self, found: Value, at: int, start: int, stop: int) -> Value:
        """Entries ``start`` to ``stop`` along a dimension."""
        at = found.at(at)
        if start == 0 and stop == found.shape[at]:
            return found
        dim = self.resolve(found.dims[at])
        if self.fixed(dim) and len(dim) == 1:
            flat = self.even(found, (at,), reason="slice")
            new = flat.put(at, at + 1, self.fresh(stop - start, "slice"))
            return self.note(found.over(new.dims, flat.const), found)
        _, right = self.split(dim, start)
        left, _ = self.split(right, stop - start)
        return self.note(found.over(found.put(at, at + 1, left).dims))

    def selected(self, found: Value, at: int, index: int) -> Value:
        """One entry along a dimension, which is dropped."""
        at = found.at(at)
        index %= found.shape[at]
        one = self.narrowed(found, at, index, index + 1)
        const = one.const + one.dims[at][0].const
        return self.note(one.over(one.put(at, at + 1).dims, const))

    def each(self, found: Value | Bundle, move: Callable[[Value], Value], at: int | None = None) -> Value | Bundle:
        """A move on a value, or on every part of a bundle whose dimension is ``at`` behind the move."""
        if isinstance(found, Value):
            return self.note(move(found))
        return Bundle(tuple(self.note(move(part)) for part in found.parts), found.dim if at is None else at)

    def regrouped(self, found: Value, shape: Sequence[int]) -> Value | Bundle:
        """A view: the same entries in row-major order with another shape."""
        found = self.resolved(found)
        dims: list[Dimension] = []
        for start, stop, target in _groups(found.shape, tuple(shape)):
            merged = self.merged(found.dims[start:stop])
            outer = [n for n in target if n > 1]
            if len(outer) <= 1:
                dims += [merged if n > 1 else UNIT for n in target]
            elif len(merged) == 1:
                dims += self.spread(merged[0], target)
            elif self.fixed(merged) or not (ragged := _ragged(merged, target)):
                dims += self.spread(self.collapse(merged, "a view across a concatenation")[0], target)
            else:
                at = len(dims) + ragged[0]
                parts = [
                    self.regrouped(found.put(start, stop, part), (*shape[:at], size, *shape[at + 1 :]))
                    for size, part in ragged[1]
                ]
                return Bundle(tuple(map(self.joined, parts)), at)
        return found.over(dims)

    def viewed(self, found: Value, shape: Sequence[int]) -> Value:
        """A view, as one value."""
        return self.note(self.joined(self.regrouped(found, shape)))

    def joined(self, found: Value | Bundle) -> Value:
        """A bundle as one value: what its parts have apart becomes tied."""
        return found if isinstance(found, Value) else self.concatenated(found.parts, found.dim)


def _offset(found: Value) -> Form:
    """The constant part of its form in the first segments."""
    return sum((dim[0].const for dim in found.dims), found.const)


def _ragged(dim: Dimension, target: Sequence[int]) -> tuple[int, list[tuple[int, Dimension]]] | None:
    """Parts of a sum that may be several dimensions each: that along which they are a concatenation, their sizes there.

    It is the first one behind what the parts share. None where there is no such dimension, or but one part.
    """
    lead = min(segment.lead for segment in dim[1:])
    at = next((n for n, size in enumerate(target) if size > 1 and math.prod(target[:n]) == lead), None)
    if at is None:
        return None
    inner = lead * math.prod(target[at + 1 :])
    parts: list[Dimension] = []
    for block in blocks(dim, lead):  # as many as fill what stands behind
        parts = [*parts[:-1], (*parts[-1], *block)] if parts and extent(parts[-1]) % inner else [*parts, block]
    if len(parts) < 2 or extent(parts[-1]) % inner:
        return None
    return at, [(extent(part) // inner, part) for part in parts]


def _groups(old: Sequence[int], new: Sequence[int]) -> list[tuple[int, int, tuple[int, ...]]]:
    """Smallest groups ``(start, stop)`` of old dimensions with the new sizes that each becomes."""
    groups, start, begin = [], 0, 0
    while start < len(old) or begin < len(new):
        stop, end, left, right = start, begin, 1, 1
        while True:
            if stop < len(old) and (left <= right and (left != right or stop == start or old[stop] == 1)):
                left, stop = left * old[stop], stop + 1
            elif end < len(new) and (right < left or end == begin or new[end] == 1):
                right, end = right * new[end], end + 1
            else:
                break
        groups.append((start, stop, tuple(new[begin:end])))
        start, begin = stop, end
    return groups


_KINDS: Mapping[str, str] = {
    "linear": "",
    "homogeneous": "positively homogeneous, not odd",
    "absolute": "even",
    "odd": "odd, not homogeneous",
    "even": "even, not homogeneous",
    "any": "neither odd nor homogeneous",
}
