"""The moves that rules of operators are written in: they tie values, and write equations between their forms."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

from .atoms import Structure
from .equations import Demand, Unknown
from .forms import ZERO, Form, unknown
from .index_sets import IndexSets
from .values import (
    UNIT,
    Bundle,
    Dimension,
    Index,
    Segment,
    Value,
    blocks,
    changed,
    extent,
    formed,
    indices,
    indices_of,
    is_unit,
    product,
    settled,
    sizes,
    value_of,
)

Operand: TypeAlias = Value | float


class OpaqueError(Exception):
    """Is raised by a rule that cannot say what an operation does: all that meets in it is FIXED."""


class Meeting(NamedTuple):
    """Values that met in one step, and the pairs of tokens that it said are the same index."""

    values: tuple[Value, ...]
    ties: tuple[tuple[int, int], ...]


class Run:
    """One pass over a program. It holds the index sets, and hands on what operations demand of forms.

    Args:
        demands: where equations are entered; None for a pass that ties index sets alone.

    Attributes:
        sets: the index sets that all dimensions run over.
        unknowns: of all parameters, by number.
        flows: unknown of an axis -> +1 if the axis is written to, -1 if it is read along, 0 if it scales.
        steps: which values met, for finding nests.
        short: operations of which the example does not show what they do, as it has one place along their dimension.
        shapes: of the outputs of the current operation; ``shape`` is the first one.
        used: which of its outputs are read.
        real: whether its output holds no whole numbers and no truth values.
    """

    def __init__(self, demands: list[Demand] | None = None) -> None:
        self.sets = IndexSets(self.demand)
        self.unknowns: list[Unknown] = []
        self.flows: dict[int, int] = {}
        self.steps: list[Meeting] = []
        self.short: list[str] = []
        self.shapes: tuple[tuple[int, ...], ...] = ()
        self.used: frozenset[int] = frozenset()
        self.real = True
        self._demands = demands
        self._read: set[int] = set()  # constants of segments of parameters that operations have read

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the first output of the current operation."""
        return self.shapes[0] if self.shapes else ()

    # Where values come from.

    def parameter(self, name: str, structure: Sequence[Structure]) -> Value:
        """Returns a parameter whose dimensions are sums of products of these sizes, with new atoms and unknowns."""
        dims: list[Dimension] = []
        for d, sums in enumerate(structure):
            segments = []
            for s, (factors, lead) in enumerate(sums):
                axes = []
                for k, size in enumerate(factors):
                    index = self.sets.index(size)
                    number = self._unknown(Unknown(name, d, s, k, index.atom))
                    axes.append(index._replace(form=unknown(number), sources=frozenset((number,))))
                const = unknown(self._unknown(Unknown(name, d, s, None, None))) if len(sums) > 1 else ZERO
                segments.append(Segment(tuple(axes), const, lead))
            dims.append(tuple(segments))
        whole = unknown(self._unknown(Unknown(name, None, None, None, None))) if dims else ZERO
        return self.note(Value(tuple(dims), whole, raw=True))

    def _unknown(self, new: Unknown) -> int:
        self.unknowns.append(new)
        return len(self.unknowns) - 1

    def constant(self, data: Tensor) -> Value:
        """Returns a constant: a dimension along which it varies is FIXED."""
        dims = []
        data = data.detach()
        for dim, size in enumerate(data.shape):
            varies = size > 1 and data.numel() > 0 and not _same_along(data, dim)
            dims.append(self.sets.fresh(size, "a constant that varies along it" if varies else None))
        return Value(tuple(dims), zero=not bool(data.any()), data=data, raw=True)

    def again(self, x: Value) -> Value:
        """Returns a constant for another use: what it is tied to there says nothing about its other uses."""
        if x.data is None:
            return x
        dims = tuple(dim if self.sets.fixed(dim) else self.sets.fresh(extent(dim)) for dim in x.dims)
        return replace(x, dims=dims)

    def inert(self, shape: Sequence[int], reason: str = "input") -> Value:
        """Returns a value that depends on inputs and constants alone."""
        return Value(tuple(self.sets.fresh(n, reason) for n in shape), inert=True)

    def too_short(self, shape: Sequence[int]) -> Value:
        """Returns a constant of which the example shows one place; elsewhere it may be anything."""
        self.short.append(self.sets.operation)
        return self.inert(shape, "too short to tell")

    def pin(self, x: Value, reason: str) -> None:
        """Lets nothing at all act on a value."""
        for dim in (*x.dims, x.along or ()):
            self.sets.fix(dim, reason)
        self.vanish(x, reason=reason)

    def note(self, x: Value, *others: Value) -> Value:
        """Records values that met, with the ties since the last record, and returns the first value."""
        self.steps.append(Meeting((x, *others), tuple(self.sets.ties)))
        self.sets.ties.clear()
        return x

    # Equations.

    def demand(self, form: Form, reason: str = "") -> None:
        """Demands that a form vanishes; for a reason where that is because of what the operation computes."""
        if self._demands is not None and (form.scale or form.sign):
            self._demands.append(Demand(form, self.sets.operation, reason))

    def vanish(self, x: Value, *, scale: bool = True, sign: bool = True, reason: str = "") -> None:
        """Lets nothing but permutations act on a value; ``reason`` says what computes something else then."""
        if x.zero or x.inert or x.data is not None:
            return
        total = x.const
        for dim in map(self.sets.resolve, x.dims):
            self._constant_along(dim, reason, scale=scale, sign=sign)
            total += dim[0].const
        self.demand(total.kept(scale=scale, sign=sign), reason)

    def _constant_along(self, dim: Dimension, reason: str = "", *, scale: bool = True, sign: bool = True) -> None:
        """Demands that all entries along a dimension transform alike."""
        for segment in dim:
            for index in segment.indices:
                self.demand(index.form.kept(scale=scale, sign=sign), reason)
            if segment is not dim[0]:
                self.demand((segment.const - dim[0].const).kept(scale=scale, sign=sign), reason)

    def ignores_constants(self, x: Value, dims: Iterable[int]) -> None:
        """Notes that an operation ignores what is constant along dimensions, where the example has one place."""
        if not x.inert and x.data is None and all(is_unit(x.dims[dim]) for dim in dims):
            self.short.append(self.sets.operation)

    def even(self, x: Value, dims: Iterable[int], *, scale: bool = True, sign: bool = True, reason: str = "") -> Value:
        """Lets all entries along dimensions transform alike, and returns these dimensions without forms."""
        new = list(map(self.sets.resolve, x.dims))
        const = x.const
        for at in {dim % len(new) for dim in dims} if new else ():
            self._read.update(u for segment in new[at] for u in segment.const.unknowns)
            if not x.zero:
                self._constant_along(new[at], reason, scale=scale, sign=sign)
            const += new[at][0].const.kept(scale=scale, sign=sign)
            (new[at],) = formed((new[at],), lambda form: form.kept(scale=not scale, sign=not sign))
        return replace(x, dims=tuple(new), const=const)

    def kept(self, x: Value, *, scale: bool = True, sign: bool = True) -> Value:
        """Returns a value without its scales or its signs."""
        dims = formed(x.dims, lambda form: form.kept(scale=scale, sign=sign))
        return Value(dims, x.const.kept(scale=scale, sign=sign), x.raw, x.zero)

    def settle(self, x: Value, flow: int) -> Value:
        """Returns a value that is no longer a parameter as such: this is how its axes are used, see ``flows``."""
        if not x.raw:
            return x
        self._flow(indices_of(x), flow)
        self.reads(x)
        return replace(x, dims=tuple(map(settled, x.dims)), raw=False)

    def reads(self, x: Value) -> None:
        """Notes that a value is read, and so are the segments of parameters that it is made of."""
        self._read |= x.const.unknowns.union(*(s.const.unknowns for dim in x.dims for s in dim))

    def fix_unread(self, name: str, parameter: Value) -> None:
        """Fixes dimensions of a parameter that are read in part, such as rows of a table longer than the example.

        Another example is cut at another place. So all their entries stay where they are, and transform alike.
        """
        self.sets.operation, reason = f"{name}: slice", "read in part on the example"
        for dim in parameter.dims:
            if len(dim) > 1 and any(self._read.isdisjoint(segment.const.unknowns) for segment in dim):
                self.sets.fix(dim, reason)
                self._constant_along(dim, reason)

    def demand_neurons(self, parameter: Value) -> None:
        """Lets a parameter be scaled along neurons only: neither as a whole, nor along entries that stay."""
        for const in (parameter.const, *(segment.const for dim in parameter.dims for segment in dim)):
            self.demand(const)
        for index in indices_of(parameter):
            if self.sets.atoms.cause(index.atom) is not None:
                self.demand(index.form)

    def _flow(self, axes: Iterable[Index], flow: int) -> None:
        for index in axes:
            for source in index.sources:
                self.flows.setdefault(source, flow)

    def freed(self, dim: Dimension) -> Dimension:
        """Returns a dimension of zeros, beside others in one value: any form is theirs, a new unknown."""

        def any_form(atom: int | None) -> Form:
            return unknown(self._unknown(Unknown("", None, None, None, atom)))

        free = changed(dim, lambda i: i._replace(form=any_form(i.atom), sources=frozenset()))
        return tuple(segment._replace(const=any_form(None)) for segment in free)

    # Pointwise.

    def operand(self, x: Operand) -> Value:
        """Returns an operand as a value; numbers are constants."""
        return x if isinstance(x, Value) else self.constant(torch.tensor(x))

    def unary(
        self,
        x: Value,
        kind: Literal["linear", "homogeneous", "absolute", "odd", "even", "any"],
        *,
        zero: bool = False,
        reason: str | None = None,
    ) -> Value:
        """Applies a pointwise function of some kind; ``zero`` says that it keeps 0."""
        scales = kind in ("linear", "homogeneous", "absolute")
        self.vanish(x, scale=not scales, sign=kind in ("homogeneous", "any"), reason=reason or _KINDS[kind])
        out = self.kept(x, scale=scales, sign=kind in ("linear", "odd"))
        return self.note(replace(out, zero=x.zero and (zero or scales or kind == "odd")))

    def power(self, x: Value, exponent: float) -> Value:
        """Returns ``x ** exponent``."""
        ratio = Fraction(exponent).limit_denominator(64)
        if abs(float(ratio) - exponent) > 1e-12:
            return self.unary(x, "any", reason="an irrational power")
        if ratio.denominator > 1:
            self.vanish(x, scale=False, reason="a root")
        dims = formed(x.dims, lambda form: form.power(ratio))
        return self.note(Value(dims, x.const.power(ratio), x.raw, x.zero and exponent > 0))

    def aligned(self, *operands: Operand) -> list[Value]:
        """Broadcasts values against one another and ties what they share; missing first dimensions are added."""
        values = list(map(self.operand, operands))
        rank = max(len(x.dims) for x in values)
        rows = [[UNIT] * (rank - len(v.dims)) + list(v.dims) for v in map(self.sets.resolved, values)]
        rows = [rows[0], *([self._roles(row, rows[0]) for row in rows[1:]])]
        for at in range(rank):
            full = [row for row in rows if not is_unit(row[at])]
            for _ in range(2 if len(full) > 2 else 1):  # what the last one cut, the first ones have to hear of
                for row in full[1:]:
                    full[0][at], row[at] = self.sets.align(full[0][at], row[at])
        return [replace(v, dims=tuple(map(self.sets.resolve, row))) for v, row in zip(values, rows, strict=True)]

    def _roles(self, dims: list[Dimension], others: list[Dimension]) -> list[Dimension]:
        """Returns dimensions with other tokens, where some are those of another value."""
        taken = {i.token for i in indices_of(Value(tuple(others)))}
        if not any(i.token in taken for i in indices_of(Value(tuple(dims)))):
            return dims
        new = [changed(dim, self.sets.renamed) for dim in dims]
        kept, self.sets.ties = self.sets.ties, []
        pairs = zip(indices_of(Value(tuple(dims))), indices_of(Value(tuple(new))), strict=True)
        self.sets.ties.extend((i.token, j.token) for i, j in pairs)
        self.note(Value(tuple(dims)), Value(tuple(new)))
        self.sets.ties = kept
        return new

    def add(self, a: Operand, b: Operand) -> Value:
        """Returns ``a + b``, or anything else that is linear in both at once: their forms are equal."""
        a, b = self.aligned(a, b)
        if b.zero or not a.zero:
            a, b = self._met(a, b, +1)
        else:
            a, b = self._met(b, a, +1)
        plain = [v.inert or v.data is not None for v in (a, b)]
        reason = "a constant is added" if any(plain) else ""
        const = a.const - b.const
        for da, db in zip(a.dims, b.dims, strict=True) if not b.zero else ():
            const += self._alike(da, db, reason)
        if not b.zero:
            self.demand(const, reason)
        dims = tuple(map(product, a.dims, formed(b.dims, lambda _: ZERO)))
        return self.note(Value(dims, a.const, a.raw and b.raw, a.zero and b.zero), a, b)

    def _alike(self, a: Dimension, b: Dimension, reason: str = "") -> Form:
        """Demands that forms along a dimension are equal in two values, but for a constant, which is returned."""
        if is_unit(a) or is_unit(b):
            self._constant_along(b if is_unit(a) else a, reason)
            return a[0].const - b[0].const
        base = a[0].const - b[0].const
        for one, other in zip(a, b, strict=True):
            for i, j in zip(one.indices, other.indices, strict=True):
                self.demand(i.form - j.form, reason)
            self.demand(one.const - other.const - base, reason)
        return base

    def _met(self, a: Value, b: Value, flow: int) -> tuple[Value, Value]:
        """Settles two values that meet entry by entry, unless both are parameters as such."""
        if a.raw and b.raw:
            return a, b
        return self.settle(a, flow), self.settle(b, flow)

    def multiply(self, a: Operand, b: Operand, *, exponent: int = 1) -> Value:
        """Returns ``a * b ** exponent``."""
        b = self.power(self.operand(b), exponent) if exponent != 1 else b
        a, b = self.aligned(a, b)
        a, b = self._met(a, b, 0)
        dims = map(product, a.dims, b.dims)
        return self.note(value_of(dims, a.const + b.const, raw=a.raw and b.raw, zero=a.zero or b.zero), a, b)

    def extreme(self, a: Operand, b: Operand) -> Value:
        """Returns the larger or smaller one of two, entry by entry."""
        out = self.add(a, b)
        self.vanish(out, scale=False, reason="maximum of two")
        return out

    # Sums over dimensions.

    def contract(self, a: Value, left: str, b: Value, right: str, out: str) -> Value:
        """Returns an einsum of two values: what is summed over has to transform inversely in one and the other."""
        a, b = self.sets.resolved(a), self.sets.resolved(b)
        of_a = dict(zip(left, a.dims, strict=True))
        of_b = dict(zip(right, self._roles(list(b.dims), list(a.dims)), strict=True))
        both, raw, zero = a.raw and b.raw, a.raw or b.raw, a.zero or b.zero
        for letter in of_a:
            if letter in of_b and not is_unit(of_a[letter]) and not is_unit(of_b[letter]):
                of_a[letter], of_b[letter] = self.sets.align(of_a[letter], of_b[letter])
        const = a.const + b.const
        for letter in dict.fromkeys((*left, *right)):
            if letter in out:
                continue
            da, db = of_a.get(letter, UNIT), of_b.get(letter, UNIT)
            dim = product(da, db)
            if not zero:
                self._constant_along(dim)
            const += dim[0].const
            if raw:
                self._flow(indices(da), -1)
                self._flow(indices(db), +1 if both else -1)
        dims = []
        if raw and not both:
            self.reads(Value(tuple(of_a.values()), const))
            self.reads(Value(tuple(of_b.values())))
        for letter in out:
            dim = product(of_a.get(letter, UNIT), of_b.get(letter, UNIT))
            if raw and not both:
                shared = letter in of_a and letter in of_b
                self._flow(indices(dim), 0 if shared else +1)
                dim = settled(dim)
            dims.append(dim)
        met = Value(tuple(of_a.values())), Value(tuple(of_b.values()))
        return self.note(value_of(dims, const, raw=both, zero=zero), *met)

    def reduce(
        self,
        x: Value,
        dims: Iterable[int] | None,
        keepdim: bool = False,
        *,
        kind: Literal["linear", "homogeneous", "absolute", "any"] = "linear",
        reason: str = "sum over it",
    ) -> Value:
        """Sums over dimensions (all, for None), or reduces them in another way that keeps no order."""
        at = self.positions(x, dims)
        if kind == "any":
            self.vanish(x, reason=reason)
        out = self.even(x, at, scale=True, sign=kind != "absolute", reason=reason)
        if kind == "homogeneous":
            self.vanish(out, scale=False, reason=reason)
        if kind in ("absolute", "homogeneous"):
            out = self.kept(out, sign=False)
        new = [UNIT if n in at else dim for n, dim in enumerate(out.dims) if keepdim or n not in at]
        return self.note(x.over(new, out.const), x)

    @staticmethod
    def positions(x: Value, dims: Iterable[int] | int | None) -> set[int]:
        """Returns dimensions as a set of positions, counted from the first; all for None, and for none."""
        rank = len(x.dims)
        if isinstance(dims, int):
            dims = (dims,)
        chosen = {dim % rank for dim in dims} if dims is not None and rank else set()
        return chosen or set(range(rank))

    # Moving entries about.

    def placed(self, x: Value, dims: Iterable[int], reason: str) -> Value:
        """Fixes dimensions whose entries an operation tells apart by position."""
        x = self.sets.resolved(x)
        for at in dims:
            self.sets.fix(x.dims[at], reason)
        return x

    def without(self, x: Value, dims: Iterable[int], reason: str) -> Value:
        """Sums over dimensions whose entries an operation weighs by position."""
        at = {x.at(dim) for dim in dims}
        return self.reduce(self.placed(x, at, reason), at, reason=reason) if at else x

    def positional(self, x: Value, dims: Iterable[int], reason: str, shape: Sequence[int] | None = None) -> Value:
        """Mixes entries along dimensions linearly, by position: these become new FIXED ones of ``shape``."""
        shape = self.shape if shape is None else shape
        at = {dim % len(x.dims) for dim in dims}
        x = self.even(self.placed(x, at, reason), at, reason=reason)
        new = [self.sets.fresh(shape[n], reason) if n in at else dim for n, dim in enumerate(x.dims)]
        return self.note(x.over(new), x)

    def concatenated(self, parts: Sequence[Value], at: int) -> Value:
        """Concatenates values along a dimension; in the others their forms are equal but for constants."""
        at %= len(parts[0].dims)
        raw = all(part.raw for part in parts)
        parts = [part if raw else self.settle(part, +1) for part in parts if part.shape != (0,)]
        first = next((n for n, part in enumerate(parts) if not part.zero), 0)
        rest = [part.put(at, at + 1, UNIT) for part in parts]
        lead = rest[first]
        for n, other in enumerate(rest):
            if n != first:
                lead, rest[n] = self._beside(lead, other)
        base = _offset(self.sets.resolved(rest[first]))
        segments: list[Segment] = []
        made_of = {extent(part.dims[at]): sizes(self.sets.resolve(part.dims[at])) for part in parts if not part.zero}
        for part, other in zip(parts, rest, strict=True):
            const = ZERO if part.zero else _offset(self.sets.resolved(other)) - base
            dim = self.sets.resolve(part.dims[at])
            if part.zero and not self.sets.fixed(dim):  # cut like a part beside it, or the free form is lost in a cut
                dim = tuple(
                    Segment(tuple(map(self.sets.index, factors)), lead=shared)
                    for factors, shared in made_of.get(extent(dim), sizes(dim))
                )
            segments += self.freed(dim) if part.zero else [s._replace(const=s.const + const) for s in dim]
        dims = lead.put(at, at + 1, tuple(segments)).dims
        met = [other.put(at, at + 1, part.dims[at]) for part, other in zip(parts, rest, strict=True)]
        return self.note(value_of(dims, lead.const, raw=raw, zero=all(part.zero for part in parts)), *met)

    def _beside(self, a: Value, b: Value) -> tuple[Value, Value]:
        """Aligns two values whose forms are equal but for constants."""
        a, b = self.aligned(a, b)
        for da, db in zip(a.dims, b.dims, strict=True):
            if not (a.zero or b.zero):
                self._alike(da, db)
        return a, b

    def narrowed(self, x: Value, at: int, start: int, stop: int) -> Value:
        """Returns entries ``start`` to ``stop`` along a dimension."""
        at = x.at(at)
        if start == 0 and stop == x.shape[at]:
            return x
        dim = self.sets.resolve(x.dims[at])
        if self.sets.fixed(dim) and len(dim) == 1:
            flat = self.even(x, (at,), reason="slice")
            new = flat.put(at, at + 1, self.sets.fresh(stop - start, "slice"))
            return self.note(x.over(new.dims, flat.const), x)
        _, right = self.sets.split(dim, start)
        left, _ = self.sets.split(right, stop - start)
        return self.note(x.over(x.put(at, at + 1, left).dims))

    def selected(self, x: Value, at: int, index: int) -> Value:
        """Returns one entry along a dimension, which is dropped."""
        at = x.at(at)
        index %= x.shape[at]
        one = self.narrowed(x, at, index, index + 1)
        const = one.const + one.dims[at][0].const
        return self.note(one.over(one.put(at, at + 1).dims, const))

    def each(self, x: Value | Bundle, move: Callable[[Value], Value], at: int | None = None) -> Value | Bundle:
        """Applies a move to a value, or to every part of a bundle whose dimension is ``at`` after the move."""
        if isinstance(x, Value):
            return self.note(move(x))
        return Bundle(tuple(self.note(move(part)) for part in x.parts), x.dim if at is None else at)

    def regrouped(self, x: Value, shape: Sequence[int]) -> Value | Bundle:
        """Views the same entries, in row-major order, in another shape."""
        x = self.sets.resolved(x)
        dims: list[Dimension] = []
        for start, stop, target in _groups(x.shape, tuple(shape)):
            merged = self.sets.merged(x.dims[start:stop])
            outer = [n for n in target if n > 1]
            if len(outer) <= 1:
                dims += [merged if n > 1 else UNIT for n in target]
            elif len(merged) == 1:
                dims += self.sets.spread(merged[0], target)
            elif self.sets.fixed(merged) or not (ragged := _ragged(merged, target)):
                dims += self.sets.spread(self.sets.collapse(merged, "a view across a concatenation")[0], target)
            else:
                at = len(dims) + ragged[0]
                parts = [
                    self.regrouped(x.put(start, stop, part), (*shape[:at], size, *shape[at + 1 :]))
                    for size, part in ragged[1]
                ]
                return Bundle(tuple(map(self.joined, parts)), at)
        return x.over(dims)

    def viewed(self, x: Value, shape: Sequence[int]) -> Value:
        """Views the same entries in another shape, as one value."""
        return self.note(self.joined(self.regrouped(x, shape)))

    def joined(self, x: Value | Bundle) -> Value:
        """Returns a bundle as one value: where its parts differ, they become tied."""
        return x if isinstance(x, Value) else self.concatenated(x.parts, x.dim)


def _same_along(data: Tensor, dim: int) -> bool:
    first = data.narrow(dim, 0, 1)
    return bool(((data == first) | ((data != data) & (first != first))).all())  # NaN beside NaN


def _offset(x: Value) -> Form:
    """Returns the constant part of its form in the first segments."""
    return sum((dim[0].const for dim in x.dims), x.const)


def _ragged(dim: Dimension, target: Sequence[int]) -> tuple[int, list[tuple[int, Dimension]]] | None:
    """Splits a sum into parts that may be several dimensions each.

    Returns the dimension along which they are a concatenation, the first one after what the parts share, and each part
    with its size there; None where there is no such dimension, or only one part.
    """
    lead = min(segment.lead for segment in dim[1:])
    at = next((n for n, size in enumerate(target) if size > 1 and math.prod(target[:n]) == lead), None)
    if at is None:
        return None
    inner = lead * math.prod(target[at + 1 :])
    parts: list[Dimension] = []
    for block in blocks(dim, lead):  # as many as fill the dimensions after it
        parts = [*parts[:-1], (*parts[-1], *block)] if parts and extent(parts[-1]) % inner else [*parts, block]
    if len(parts) < 2 or extent(parts[-1]) % inner:
        return None
    return at, [(extent(part) // inner, part) for part in parts]


def _groups(old: Sequence[int], new: Sequence[int]) -> list[tuple[int, int, tuple[int, ...]]]:
    """Returns the smallest groups ``(start, stop)`` of old dimensions with the new sizes that each becomes."""
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
