"""Axes of parameters and fields: which neurons they run over, and how those transform."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

from nfn_monomial.checks import checked

Charge: TypeAlias = int | tuple[int, ...]
"""The powers of a node's gauges with which an axis transforms: a number on a node with one gauge, else one for each."""


class Axis(NamedTuple):
    """One axis of a parameter: the node whose neurons it runs over, and its charge, a power of their scales.

    ``charge`` is +1 on a weight's rows and on biases, -1 on a weight's columns (paper Def. 4.2:
    ``W_jk -> d_j d'_k^{-1} W``). The node carries the symmetry, not the axis.
    """

    node: str
    charge: Charge = 1

    def __str__(self) -> str:
        if not any(powers(self.charge)):
            return self.node
        signed = " ".join(f"{q:+d}" for q in powers(self.charge))
        return f"{self.node}^{signed}" if isinstance(self.charge, int) else f"{self.node}^({signed})"


class Sum(NamedTuple):
    """A dimension of a tensor that is the concatenation of several: ``Sum((Axis("q"), Axis("k"), Axis("v")))``.

    Parts are axes, sizes on which nothing acts, row-major products of those, or sums again. The first ``shared``
    factors are common to all parts, which lie side by side in each of their entries, and so have one size in all parts:
    the rows of ``Sum(((heads, q), (heads, k), (heads, v)), shared=1)`` are queries, keys and values of one head, then
    those of the next.
    """

    parts: tuple[Axis | int | tuple[Axis | int, ...] | Sum, ...]
    shared: int = 0

    @property
    def lead(self) -> tuple[Axis | int, ...]:
        """The factors that are shared, as the first part has them."""
        return segments_of(self)[0][: self.shared] if self.shared else ()


Dim: TypeAlias = Axis | int | tuple[Axis | int, ...] | Sum
"""A dimension of a tensor: an axis, a size on which nothing acts, the row-major product of several, or their sum."""

FieldType: TypeAlias = tuple[Axis, ...]
"""The axes of a field. Fields of a weight space's parameters have the non-fixed ones: last node first, charges reduced,
every axis followed by those of nodes nested in its node."""


def powers(charge: Charge) -> tuple[int, ...]:
    """A charge as one number for each gauge."""
    return (charge,) if isinstance(charge, int) else charge


def flow(charge: Charge) -> int:
    """The direction of a network along an axis: > 0 where it leads to the neurons, < 0 where it leads from them."""
    return powers(charge)[0]


def combined(charges: Iterable[Charge], signs: Iterable[int] | None = None) -> Charge:
    """The sum of charges on one node, each times its sign where signs are given.

    >>> combined([1, -1]), combined([(1, 0), (1, 1)], [1, -1])
    (0, (0, -1))
    """
    charges = list(charges)
    factors = [1] * len(charges) if signs is None else list(signs)
    total = tuple(sum(f * q for f, q in zip(factors, column, strict=True)) for column in zip(*map(powers, charges)))  # noqa: B905
    return total if charges and not isinstance(charges[0], int) else total[0] if total else 0


def opposite(charge: Charge) -> Charge:
    """The charge with which an axis is contracted."""
    return combined([charge], [-1])


@checked
def field_name(field_type: FieldType) -> str:
    """A field type as text, for messages: ``h2^+1 h1^-1``, or ``const`` where no axis is left."""
    return " ".join(map(str, field_type)) or "const"


def flatten_dims(dims: Iterable[Dim]) -> tuple[Axis | int, ...]:
    """Dimensions with products, and sums that have one part, replaced by their parts."""
    flat: list[Axis | int] = []
    for dim in dims:
        (part,) = segments_of(dim)
        flat.extend(part)
    return tuple(flat)


def segments_of(dim: Dim) -> tuple[tuple[Axis | int, ...], ...]:
    """The parts whose concatenation a dimension is, one if it is no sum, each as the factors of a product."""
    if isinstance(dim, Sum):
        return tuple(segment for part in dim.parts for segment in segments_of(part))
    return ((dim,),) if isinstance(dim, Axis | int) else (tuple(dim),)


def factors_of(dims: Iterable[Dim]) -> Iterator[Axis | int]:
    """All axes and sizes of some dimensions, sums and products taken apart."""
    for dim in dims:
        for segment in segments_of(dim):
            yield from segment


def sums_in(dim: Dim) -> Iterator[Sum]:
    """A dimension's sum and those that are parts of it."""
    if isinstance(dim, Sum):
        yield dim
        for part in dim.parts:
            yield from sums_in(part)


def size_of(dim: Dim, sizes: Mapping[str, int]) -> int:
    """The size of a dimension, given the sizes of nodes."""
    return sum(math.prod([p if isinstance(p, int) else sizes[p.node] for p in parts]) for parts in segments_of(dim))


def each_axis(dim: Dim, change: Callable[[Axis], Collection[Axis | int]]) -> Dim:
    """A dimension with every axis replaced by one axis or several, or left out, which an axis of one neuron may be."""
    if isinstance(dim, Sum):
        shared = sum(1 if isinstance(factor, int) else len(change(factor)) for factor in dim.lead)
        return Sum(tuple(each_axis(part, change) for part in dim.parts), shared)
    factors: list[Axis | int] = []
    for factor in (dim,) if isinstance(dim, Axis | int) else dim:
        factors += [factor] if isinstance(factor, int) else change(factor)
    return tuple(factors) if len(factors) > 1 else factors[0] if factors else 1
