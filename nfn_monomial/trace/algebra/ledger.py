"""One pass over a program: values of parameters and constants, unknowns, and the equations that hold so far."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from torch import Tensor

from .atoms import Cause
from .atoms import Structure as Shape
from .forms import ZERO, Form, unknown
from .structure import Structure
from .values import Dimension, Index, Segment, Value, changed, extent, formed, indices, indices_of, is_unit, settled


class Unknown(NamedTuple):
    """One unknown: of an axis of a parameter (``atom``), or constant on one of its segments or on all of it.

    Attributes:
        parameter: its name; none for the unknown form of zeros.
        dim, segment, position: of the index; for a constant, position is None, and so are dim and segment for that of
            the whole parameter.
        atom: of the index.
    """

    parameter: str
    dim: int | None
    segment: int | None
    position: int | None
    atom: int | None


class Step(NamedTuple):
    """Values that met in one step, and the pairs of tokens that it said are the same index."""

    values: tuple[Value, ...]
    ties: tuple[tuple[int, int], ...]


class OpaqueError(Exception):
    """What a rule raises that cannot say what an operation does: all that meets in it is FIXED."""


class Ledger(Structure):
    """One pass over a program: the state that rules change, and the moves that they are made of.

    Attributes:
        unknowns: of all parameters, by number.
        flows: unknown -> +1 for an axis that is written to, -1 for one that is read along, 0 for one that scales.
        steps: for finding nests.
        shape: of the output of the current operation (of the first one).
        used: which outputs of the current operation are read.
        real: whether its output holds no whole numbers and no truth values.
        read: unknowns that are constant on a segment of a parameter which an operation has read.
        short: operations of which the example does not show what they do, as it has one place along their dimension.
    """

    def __init__(self) -> None:
        super().__init__()
        self.unknowns: list[Unknown] = []
        self.flows: dict[int, int] = {}
        self.steps: list[Step] = []
        self.shape: tuple[int, ...] = ()
        self.shapes: tuple[tuple[int, ...], ...] = ()
        self.used: frozenset[int] = frozenset()
        self.real = True
        self.read: set[int] = set()
        self.short: list[str] = []

    # Where values come from.

    def parameter(self, name: str, structure: Sequence[Shape]) -> Value:
        """A parameter whose dimensions are concatenations of products of these sizes, with new atoms and unknowns."""
        dims: list[Dimension] = []
        for d, sums in enumerate(structure):
            segments = []
            for s, product in enumerate(sums):
                indices = []
                for k, size in enumerate(product.factors):
                    index = self.index(size)
                    number = self._unknown(Unknown(name, d, s, k, index.atom))
                    indices.append(index._replace(form=unknown(number), sources=frozenset((number,))))
                const = unknown(self._unknown(Unknown(name, d, s, None, None))) if len(sums) > 1 else ZERO
                segments.append(Segment(tuple(indices), const, product.lead))
            dims.append(tuple(segments))
        whole = unknown(self._unknown(Unknown(name, None, None, None, None))) if dims else ZERO
        return self.note(Value(tuple(dims), whole, raw=True))

    def _unknown(self, found: Unknown) -> int:
        self.unknowns.append(found)
        return len(self.unknowns) - 1

    def constant(self, data: Tensor) -> Value:
        """A constant: a dimension along which it varies is FIXED."""
        dims = []
        data = data.detach()
        for dim, size in enumerate(data.shape):
            varies = size > 1 and data.numel() > 0 and not _same_along(data, dim)
            dims.append(self.fresh(size, "a constant that varies along it" if varies else None))
        return Value(tuple(dims), zero=not bool(data.any()), data=data, raw=True)

    def again(self, found: Value) -> Value:
        """A constant for another use: what it is tied to there says nothing about its other uses."""
        if found.data is None:
            return found
        dims = tuple(dim if self.fixed(dim) else self.fresh(extent(dim)) for dim in found.dims)
        return replace(found, dims=dims)

    def inert(self, shape: Sequence[int], reason: str = "input") -> Value:
        """What depends on inputs and constants alone."""
        return Value(tuple(self.fresh(n, reason) for n in shape), inert=True)

    def untold(self, shape: Sequence[int]) -> Value:
        """A constant of which the example shows one place: what it is elsewhere may be anything."""
        self.short.append(self.cause.operation)
        return self.inert(shape, "too short to tell")

    def placeholder(self, found: Value, reason: str) -> None:
        """Nothing at all may act on a value."""
        for dim in (*found.dims, found.along or ()):
            self.fix(dim, reason)
        self.vanish(found, reason=reason)

    def note(self, found: Value, *others: Value) -> Value:
        """Record values that met, with the ties since the last record; gives the first one back."""
        self.steps.append(Step((found, *others), tuple(self.ties)))
        self.ties.clear()
        return found

    # Equations.

    def because(self, reason: str) -> Cause:
        """The current operation as the cause of something."""
        return Cause(self.cause.operation, reason)

    def vanish(self, found: Value, *, scale: bool = True, sign: bool = True, reason: str = "") -> None:
        """Nothing but permutations may act on a value; without a reason that goes without saying."""
        if found.zero or found.inert or found.data is not None:
            return
        cause = self.because(reason) if reason else None
        total = found.const
        for dim in map(self.resolve, found.dims):
            self._constant_along(dim, scale, sign, cause)
            total += dim[0].const
        self.equations.demand(total.kept(scale=scale, sign=sign), cause)

    def _constant_along(self, dim: Dimension, scale: bool, sign: bool, cause: Cause | None) -> None:
        for segment in dim:
            for index in segment.indices:
                self.equations.demand(index.form.kept(scale=scale, sign=sign), cause)
            if segment is not dim[0]:
                self.equations.demand((segment.const - dim[0].const).kept(scale=scale, sign=sign), cause)

    def ignores_constants(self, found: Value, dims: Iterable[int]) -> None:
        """What is constant along these dimensions does not matter: along one place all is, whatever it is of more."""
        if not found.inert and found.data is None and all(is_unit(found.dims[dim]) for dim in dims):
            self.short.append(self.cause.operation)

    def even(
        self, found: Value, dims: Iterable[int], *, scale: bool = True, sign: bool = True, reason: str = ""
    ) -> Value:
        """All entries along these dimensions transform alike; they come back with no form of their own."""
        new = list(map(self.resolve, found.dims))
        const = found.const
        for at in {dim % len(new) for dim in dims} if new else ():
            self.read.update(u for segment in new[at] for u in segment.const.unknowns)
            if not found.zero:
                self._constant_along(new[at], scale, sign, self.because(reason))
            const += new[at][0].const.kept(scale=scale, sign=sign)
            (new[at],) = formed((new[at],), lambda form: form.kept(scale=not scale, sign=not sign))
        return replace(found, dims=tuple(new), const=const)

    def kept(self, found: Value, *, scale: bool = True, sign: bool = True) -> Value:
        """The same, its scales or its signs dropped."""
        dims = formed(found.dims, lambda form: form.kept(scale=scale, sign=sign))
        return Value(dims, found.const.kept(scale=scale, sign=sign), found.raw, found.zero)

    def settle(self, found: Value, flow: int) -> Value:
        """A value that is no longer a parameter as such: its axes run this way."""
        if not found.raw:
            return found
        for index in indices_of(found):
            self._meets(index, flow)
        self.reads(found)
        return replace(found, dims=tuple(map(settled, found.dims)), raw=False)

    def reads(self, found: Value) -> None:
        """A value is read: so are the segments of parameters that it is made of."""
        self.read |= found.const.unknowns.union(*(s.const.unknowns for dim in found.dims for s in dim))

    def fix_unread(self, name: str, root: Value) -> None:
        """Dimensions of a parameter that are read in part, as rows of a table that is longer than the example.

        Another example is cut at another place. So all their entries stay where they are, and transform alike.
        """
        self.cause, reason = Cause(f"{name}: slice", ""), "read in part on the example"
        for dim in root.dims:
            if len(dim) > 1 and any(self.read.isdisjoint(segment.const.unknowns) for segment in dim):
                self.fix(dim, reason)
                self._constant_along(dim, True, True, self.because(reason))

    def demand_neurons(self, root: Value) -> None:
        """Nothing acts on a parameter but along neurons: neither on all of it, nor on entries that stay."""
        for const in (root.const, *(segment.const for dim in root.dims for segment in dim)):
            self.equations.demand(const)
        for index in indices_of(root):
            if self.atoms.cause(index.atom) is not None:
                self.equations.demand(index.form)

    def _meets(self, index: Index, flow: int) -> None:
        for source in index.sources:
            self.flows.setdefault(source, flow)

    def _flow(self, dim: Dimension, flow: int) -> None:
        for index in indices(dim):
            self._meets(index, flow)

    def freed(self, dim: Dimension) -> Dimension:
        """A dimension of zeros, beside others in one value: any form is theirs, a new unknown."""
        free = changed(dim, lambda i: i._replace(form=self._auxiliary(i.atom), sources=frozenset()))
        return tuple(segment._replace(const=self._auxiliary(None)) for segment in free)

    def _auxiliary(self, atom: int | None) -> Form:
        return unknown(self._unknown(Unknown("", None, None, None, atom)))


def _same_along(data: Tensor, dim: int) -> bool:
    first = data.narrow(dim, 0, 1)
    return bool(((data == first) | ((data != data) & (first != first))).all())  # NaN beside NaN
