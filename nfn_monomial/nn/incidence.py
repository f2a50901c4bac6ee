"""Where edges meet neurons: `Grid`, all tuples of neurons of a few nodes; graphs have a class with the same methods."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, Protocol

from torch import Tensor

Kind = Literal["against", "along", "inv"]
"""A stream at an end of edges: the one whose charge is opposite to theirs, the one of the same charge, invariants."""


class Incidence(Protocol):
    """Takes features of neurons at the ends of edges, and sums features of edges there.

    Neurons are ``(S, *neurons, C)``, edges ``(S, *edges, C)``, for each of ``S`` sets of edges.
    """

    def take(self, neurons: Tensor, end: int, kind: Kind) -> Tensor:
        """Features of the neurons at an end, as they broadcast against edges."""

    def sum(self, edges: Tensor, end: int, kind: Kind) -> Tensor:
        """Sums over the edges of each neuron at an end."""

    def mean(self, edges: Tensor, end: int) -> Tensor:
        """Means over them, of invariants."""


class Grid:
    """All tuples of neurons have an edge: ``(S, *axes, B, C)``.

    Args:
        at: for each end the positions of its neurons' axes among those of the edges.
        axes: how many axes the edges have.
        shares: for each end what its means are multiplied by where edges are padded, ``(S, *ones)``.
    """

    __slots__ = ("apart", "at", "axes", "over", "shares")

    def __init__(self, at: Sequence[Sequence[int]], axes: int, shares: Sequence[Tensor] | None = None) -> None:
        self.at, self.axes, self.shares = [tuple(of_end) for of_end in at], axes, shares
        # Whether an axis that all ends share, or that is 1, is followed by one of each end.
        self.apart = self.at == [(0, 1 + i) for i in range(len(at))] and axes == 1 + len(at)
        self.over = [[1 + i for i in range(axes) if i not in of_end] for of_end in at]

    def take(self, neurons: Tensor, end: int, kind: Kind = "inv") -> Tensor:
        """See `Incidence`."""
        for dim in self.over[end]:
            neurons = neurons.unsqueeze(dim)
        return neurons

    def sum(self, edges: Tensor, end: int, kind: Kind = "inv") -> Tensor:
        """See `Incidence`."""
        return edges.sum(self.over[end]) if self.over[end] else edges

    def mean(self, edges: Tensor, end: int) -> Tensor:
        """See `Incidence`."""
        mean = edges.mean(self.over[end]) if self.over[end] else edges
        return mean if self.shares is None else mean * self.shares[end].to(mean.dtype)

    def neurons(self, shape: Sequence[int], end: int) -> tuple[int, ...]:
        """The sizes of an end's axes, given those of the edges."""
        return tuple([shape[i] for i in self.at[end]])

    def count(self, shape: Sequence[int], end: int) -> int:
        """The number of neurons there."""
        return math.prod(self.neurons(shape, end))
