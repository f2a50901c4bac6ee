"""Values of a traced program: for every dimension the atoms that it runs over, and how each of these is acted on.

A dimension is a concatenation of segments, a segment a row-major product of indices; one of size 1 has no index. An
entry is acted on by the sum of the forms of its indices, of its segments' constants, and of the value's constant.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

from torch import Tensor

from .forms import ZERO, Form


class Index(NamedTuple):
    """One index of a segment.

    Attributes:
        atom: what it runs over.
        size: of the atom.
        token: a number of its own, which stays with it from value to value as long as it is the same index.
        form: how it is acted on.
        sources: of a parameter that nothing but parameters and constants has met yet, the unknowns of its axis.
    """

    atom: int
    size: int
    token: int
    form: Form = ZERO
    sources: frozenset[int] = frozenset()


class Segment(NamedTuple):
    """A product of indices, with the part of the form that is constant on it."""

    indices: tuple[Index, ...]
    const: Form = ZERO

    @property
    def size(self) -> int:
        """Number of entries."""
        return math.prod(index.size for index in self.indices)


Dimension: TypeAlias = tuple[Segment, ...]
UNIT: Dimension = (Segment(()),)


class Shift(NamedTuple):
    """A parameter that was added to a value.

    Attributes:
        sources: index of the value (its token) -> unknowns of the parameter that lie along it.
        constant: tokens of indices on which it does not depend.
    """

    sources: tuple[tuple[int, frozenset[int]], ...]
    constant: frozenset[int]


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
        shifts: parameters that it is the sum of others with.
    """

    dims: tuple[Dimension, ...]
    const: Form = ZERO
    raw: bool = False
    zero: bool = False
    data: Tensor | None = None
    inert: bool = False
    shifts: tuple[Shift, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of its dimensions."""
        return tuple(map(extent, self.dims))

    def at(self, dim: int) -> int:
        """A dimension's position, where it may be given from behind."""
        return dim % max(len(self.dims), 1)


@dataclass(frozen=True, slots=True)
class Bundle:
    """A concatenation of values along ``dim`` whose other dimensions need not be alike, as queries, keys and values."""

    parts: tuple[Value, ...]
    dim: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of its dimensions."""
        first, whole = self.parts[0].shape, sum(part.shape[self.dim] for part in self.parts)
        return (*first[: self.dim], whole, *first[self.dim + 1 :])


def value(
    dims: Iterable[Dimension],
    const: Form = ZERO,
    *,
    raw: bool = False,
    zero: bool = False,
    shifts: tuple[Shift, ...] = (),
) -> Value:
    """A value; the constants of dimensions of one segment are moved to its own."""
    kept = []
    for dim in dims:
        if len(dim) == 1 and dim[0].const is not ZERO:
            const = const + dim[0].const
            dim = (Segment(dim[0].indices),)
        kept.append(dim)
    return Value(tuple(kept), const, raw, zero, shifts=shifts)


def extent(dim: Dimension) -> int:
    """Size of a dimension."""
    return sum(segment.size for segment in dim)


def sizes(dim: Dimension) -> tuple[tuple[int, ...], ...]:
    """What a dimension is made of, as sizes."""
    return tuple(tuple(index.size for index in segment.indices) for segment in dim)


def is_unit(dim: Dimension) -> bool:
    """Whether its size is 1."""
    return len(dim) == 1 and not dim[0].indices


def indices_of(found: Value) -> list[Index]:
    """All indices of a value."""
    return [index for dim in found.dims for segment in dim for index in segment.indices]


def tokens_of(dim: Dimension) -> frozenset[int]:
    """Tokens of a dimension's indices."""
    return frozenset(index.token for segment in dim for index in segment.indices)


def mapped(dim: Dimension, form: Form | None = None, *, drop_sources: bool = False) -> Dimension:
    """The same with other forms on all indices and constants, or without sources."""
    return tuple(
        Segment(
            tuple(
                index._replace(
                    form=index.form if form is None else form,
                    sources=frozenset() if drop_sources else index.sources,
                )
                for index in segment.indices
            ),
            segment.const if form is None else form,
        )
        for segment in dim
    )


def stripped(dim: Dimension, *, scale: bool, sign: bool) -> Dimension:
    """The same with the scales of all forms kept or not, and their signs."""
    return tuple(
        Segment(
            tuple(index._replace(form=index.form.kept(scale=scale, sign=sign)) for index in segment.indices),
            segment.const.kept(scale=scale, sign=sign),
        )
        for segment in dim
    )


def settled(found: Value) -> Value:
    """The same, no longer a parameter as such."""
    if not found.raw:
        return found
    return replace(found, dims=tuple(mapped(dim, drop_sources=True) for dim in found.dims), raw=False)
