"""Values of a traced program: for every dimension the atoms that it runs over, and how each of these is acted on.

A dimension is a concatenation of segments, a segment a row-major product of indices; one of size 1 has no index. An
entry is acted on by the sum of the forms of its indices, of its segments' constants, and of the value's constant.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

from torch import Tensor

from .atoms import Structure, Term
from .forms import ZERO, Form


class Index(NamedTuple):
    """One index of a segment.

    Attributes:
        atom: what it runs over.
        size: of the atom.
        token: a number of its own, which stays with it from value to value as long as it is the same index.
        form: how it is acted on.
        sources: the unknowns of its axis, for a parameter that only parameters and constants have met so far.
    """

    atom: int
    size: int
    token: int
    form: Form = ZERO
    sources: frozenset[int] = frozenset()


class Segment(NamedTuple):
    """A product of indices, with the part of the form that is constant on it.

    ``lead`` is the size of the leading indices in each of which it stands beside the segment before it, such as keys
    beside queries in every head; 1 where it comes after all of that.
    """

    indices: tuple[Index, ...]
    const: Form = ZERO
    lead: int = 1

    @property
    def size(self) -> int:
        """Number of entries."""
        return math.prod(index.size for index in self.indices)


Dimension: TypeAlias = tuple[Segment, ...]
UNIT: Dimension = (Segment(()),)


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor of the program.

    Attributes:
        dims: its dimensions.
        const: the part of its form that all entries share.
        raw: whether it is made of parameters and constants alone.
        zero: whether all entries are 0: any form is its form.
        data: the entries of a constant.
        inert: whether it depends on inputs and constants alone, so that nothing acts on it.
        along: the dimension along which positions of entries count, for a value that holds such positions. They move
            with that dimension, so only operations that know of it may read them.
    """

    dims: tuple[Dimension, ...]
    const: Form = ZERO
    raw: bool = False
    zero: bool = False
    data: Tensor | None = None
    inert: bool = False
    along: Dimension | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of its dimensions."""
        return tuple(map(extent, self.dims))

    def at(self, dim: int) -> int:
        """Returns the position of a dimension that may be counted from the end."""
        return dim % max(len(self.dims), 1)

    def put(self, start: int, stop: int, *dims: Dimension) -> Value:
        """Returns the value with other dimensions in place of those from ``start`` to ``stop``."""
        return replace(self, dims=(*self.dims[:start], *dims, *self.dims[stop:]))

    def over(self, dims: Iterable[Dimension], const: Form | None = None) -> Value:
        """Returns the same entries, moved about or summed, over other dimensions."""
        return value_of(dims, self.const if const is None else const, raw=self.raw, zero=self.zero)


@dataclass(frozen=True, slots=True)
class Bundle:
    """A concatenation of values along ``dim`` whose other dimensions need not be alike: queries, keys and values."""

    parts: tuple[Value, ...]
    dim: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of its dimensions."""
        first, whole = self.parts[0].shape, sum(part.shape[self.dim] for part in self.parts)
        return (*first[: self.dim], whole, *first[self.dim + 1 :])


def value_of(
    dims: Iterable[Dimension],
    const: Form = ZERO,
    *,
    raw: bool = False,
    zero: bool = False,
) -> Value:
    """Returns a value; the constants of dimensions of one segment are moved to its own."""
    kept = []
    for dim in dims:
        if len(dim) == 1 and dim[0].const is not ZERO:
            const = const + dim[0].const
            dim = (dim[0]._replace(const=ZERO),)
        kept.append(dim)
    return Value(tuple(kept), const, raw, zero)


def extent(dim: Dimension) -> int:
    """Returns the size of a dimension."""
    return sum(segment.size for segment in dim)


def sizes(dim: Dimension) -> Structure:
    """Returns a dimension as a sum of products of sizes."""
    return tuple(Term(tuple(index.size for index in segment.indices), segment.lead) for segment in dim)


def blocks(dim: Dimension, lead: int = 1) -> list[Dimension]:
    """Returns the parts that a dimension is a concatenation of in every item of its leading indices of that size."""
    parts: list[Dimension] = []
    for segment in dim:
        parts = [*parts, (segment,)] if segment.lead <= lead else [*parts[:-1], (*parts[-1], segment)]
    return parts


def is_unit(dim: Dimension) -> bool:
    """Returns whether the size of a dimension is 1."""
    return len(dim) == 1 and not dim[0].indices


def indices(dim: Dimension) -> list[Index]:
    """Returns all indices of a dimension."""
    return [index for segment in dim for index in segment.indices]


def indices_of(x: Value) -> list[Index]:
    """Returns all indices of a value."""
    return [index for dim in x.dims for index in indices(dim)]


def changed(dim: Dimension, change: Callable[[Index], Index]) -> Dimension:
    """Returns a dimension with other indices."""
    return tuple(segment._replace(indices=tuple(map(change, segment.indices))) for segment in dim)


def formed(dims: Sequence[Dimension], change: Callable[[Form], Form]) -> tuple[Dimension, ...]:
    """Returns dimensions with other forms on all indices and constants."""
    return tuple(
        tuple(Segment(tuple(i._replace(form=change(i.form)) for i in s.indices), change(s.const), s.lead) for s in dim)
        for dim in dims
    )


def product(a: Dimension, b: Dimension) -> Dimension:
    """Returns a dimension of the product of two values: their forms add up."""
    if is_unit(a) or is_unit(b):
        return b if is_unit(a) else a
    return tuple(
        Segment(
            tuple(
                i._replace(form=i.form + j.form, sources=i.sources | j.sources)
                for i, j in zip(s.indices, t.indices, strict=True)
            ),
            s.const + t.const,
            s.lead,
        )
        for s, t in zip(a, b, strict=True)
    )


def settled(dim: Dimension) -> Dimension:
    """Returns a dimension of what is no longer a parameter as such."""
    return changed(dim, lambda index: index._replace(sources=frozenset()))
