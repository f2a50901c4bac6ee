"""Axes of parameters and fields: which neurons they run over, and how those transform."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from nfn_monomial.checks import checked
from nfn_monomial.errors import InvalidValueError

Charge: TypeAlias = int | tuple[int, ...]
"""With what powers of a node's gauges an axis transforms: a number on a node with one gauge, else one for each."""


class Axis(NamedTuple):
    """One axis of a parameter: which neurons it runs over, and with what power of their scales it transforms.

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

    Parts are axes, sizes on which nothing acts, row-major products of those, or sums again. They stand side by side in
    every item of what the first ``shared`` factors of all of them are, which is why they have to be of one size: the
    rows of ``Sum(((heads, q), (heads, k), (heads, v)), shared=1)`` are queries, keys and values of one head, then of
    the next.
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
"""The axes of a field. Of a weight space's own, the non-fixed ones: last node first, charges reduced, every axis
followed by those of nodes nested in its own."""


def powers(charge: Charge) -> tuple[int, ...]:
    """A charge as one number for each gauge."""
    return (charge,) if isinstance(charge, int) else charge


def flow(charge: Charge) -> int:
    """Which way a network runs along an axis: > 0 where it leads to the neurons, < 0 where it leads from them."""
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
    """The parts that a dimension is the concatenation of, one if it is no sum, each as the factors of a product."""
    if isinstance(dim, Sum):
        return tuple(segment for part in dim.parts for segment in segments_of(part))
    return ((dim,),) if isinstance(dim, Axis | int) else (tuple(dim),)


def sums_in(dim: Dim) -> Iterator[Sum]:
    """A dimension's sum and those that are parts of it."""
    if isinstance(dim, Sum):
        yield dim
        for part in dim.parts:
            yield from sums_in(part)


def size_of(dim: Dim, sizes: Mapping[str, int]) -> int:
    """The size of a dimension, for those of nodes."""
    return sum(math.prod([p if isinstance(p, int) else sizes[p.node] for p in parts]) for parts in segments_of(dim))


def each_axis(dim: Dim, change: Callable[[Axis], Collection[Axis | int]]) -> Dim:
    """A dimension with every axis replaced by others: one, several, or none, which is for axes of one neuron."""
    if isinstance(dim, Sum):
        shared = sum(1 if isinstance(factor, int) else len(change(factor)) for factor in dim.lead)
        return Sum(tuple(each_axis(part, change) for part in dim.parts), shared)
    factors: list[Axis | int] = []
    for factor in (dim,) if isinstance(dim, Axis | int) else dim:
        factors += [factor] if isinstance(factor, int) else change(factor)
    return tuple(factors) if len(factors) > 1 else factors[0] if factors else 1


def parents_of(axes: Sequence[Axis | int], nesting: dict[str, str]) -> tuple[int | None, ...]:
    """For each axis the position of the axis that it is nested in, or None.

    An axis of a nested node belongs to the nearest axis of its parent before it, so that two may share one: the
    output and input channels of a grouped convolution's weight, in ``(groups, out, in)``.

    Args:
        axes: of one tensor, products and sums taken apart.
        nesting: nested node -> its parent.

    Raises:
        ValueError: if the parent has no axis there.
    """
    found: list[int | None] = []
    for i, axis in enumerate(axes):
        parent = nesting.get(axis.node) if isinstance(axis, Axis) else None
        if parent is None:
            found.append(None)
            continue
        before = [j for j, other in enumerate(axes[:i]) if isinstance(other, Axis) and other.node == parent]
        if not before:
            raise InvalidValueError(
                f"axis {axis} is nested in {parent!r}, which has no axis before it: put Axis({parent!r}, 0)"
            )
        found.append(before[-1])
    return tuple(found)


def paths_of(axes: Sequence[Axis | int], nesting: dict[str, str]) -> list[tuple[int, ...]]:
    """For each axis its position, behind those of the axes that it is nested in, the outermost first."""
    paths: list[tuple[int, ...]] = []
    for i, parent in enumerate(parents_of(axes, nesting)):
        paths.append((i,) if parent is None else (*paths[parent], i))
    return paths
