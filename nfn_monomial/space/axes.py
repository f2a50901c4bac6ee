"""Axes of parameters and fields: which neurons they run over, and how those transform."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, TypeAlias


class Axis(NamedTuple):
    """One axis of a parameter: which neurons it runs over, and with what power of their scales it transforms.

    ``charge`` is +1 on a weight's rows and on biases, -1 on a weight's columns (paper Def. 4.2:
    ``W_jk -> d_j d'_k^{-1} W``). The node carries the symmetry, not the axis.
    """

    node: str
    charge: int = 1

    def __str__(self) -> str:
        return f"{self.node}^{self.charge:+d}" if self.charge else self.node


Dim: TypeAlias = Axis | int | tuple[Axis | int, ...]
"""A dimension of a tensor: an axis, a size on which nothing acts, or the row-major product of several of those."""

FieldType: TypeAlias = tuple[Axis, ...]
"""The axes of a field. Of a weight space's own, the non-fixed ones: last node first, charges reduced."""


def field_name(field_type: FieldType) -> str:
    """A field type as text, for messages: ``h2^+1 h1^-1``, or ``const`` where no axis is left."""
    return " ".join(map(str, field_type)) or "const"


def flatten_dims(dims: Iterable[Dim]) -> tuple[Axis | int, ...]:
    """Dimensions with products replaced by their parts."""
    flat: list[Axis | int] = []
    for dim in dims:
        if isinstance(dim, tuple) and not isinstance(dim, Axis):
            flat.extend(dim)
        else:
            flat.append(dim)
    return tuple(flat)
