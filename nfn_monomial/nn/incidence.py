"""Incidence of edges and neurons: `Grid` has all tuples of neurons of a few nodes; graphs have a class like it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Literal, Protocol

import torch
from torch import Tensor

Kind = Literal["against", "along", "inv"]
"""A stream at an end of edges: the one whose charge is opposite to theirs, the one of the same charge, invariants."""


Part = tuple[slice, ...]
"""A block of edges, as ranges of their dimensions; none for all edges."""


class Incidence(Protocol):
    """Takes features of neurons at the ends of edges, and sums features of edges there.

    Neurons are ``(S, *neurons, C)``, edges ``(S, *edges, C)``, for each of ``S`` sets of edges.

    Attributes:
        apart: whether edges come in blocks, too.
    """

    apart: bool

    def take(self, neurons: Tensor, end: int, kind: Kind, part: Part = ()) -> Tensor:
        """Features of the neurons at an end, as they broadcast against edges, or against those of a block."""

    def sum(self, edges: Tensor, end: int, kind: Kind) -> Tensor:
        """Sums over the edges of each neuron at an end."""

    def mean(self, edges: Tensor, end: int) -> Tensor:
        """Means over them, of invariants."""

    def share(self, edges: Tensor, end: int) -> Tensor | float:
        """The factor that makes sums means."""

    def parts(self, edges: Tensor, size: int) -> list[Part]:
        """Blocks of at most so many bytes."""

    def totals(self, edges: Tensor, shape: Sequence[int]) -> Tensor:
        """A tensor of a shape, to which `add` adds the edges of all blocks."""

    def add(self, edges: Tensor, end: int, kind: Kind, totals: Tensor, part: Part) -> None:
        """Adds the edges of a block to their neurons at an end; blocks are added in their order."""


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

    def take(self, neurons: Tensor, end: int, kind: Kind = "inv", part: Part = ()) -> Tensor:
        """See `Incidence`."""
        neurons = _of_block(neurons, end, part)
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

    def share(self, edges: Tensor, end: int) -> Tensor | float:
        """See `Incidence`."""
        share = 1 / math.prod(edges.shape[dim] for dim in self.over[end])
        return share if self.shares is None else share * self.shares[end].to(edges.dtype)

    def parts(self, edges: Tensor, size: int) -> list[Part]:
        """See `Incidence`; blocks are of some sets, of a part of the axis that all ends share, or of a part of the
        first end's neurons."""
        every = slice(0, 2**62)
        if edges.nbytes <= size:
            return [()]
        sets, shared, rows = edges.shape[:3]
        row = edges.element_size() * math.prod(edges.shape[3:])
        if row * rows * shared <= size:
            return [(of, every, every) for of in ranges(sets, size // (row * rows * shared))]
        if row * rows <= size:
            return [(of, some, every) for of in ranges(sets, 1) for some in ranges(shared, size // (row * rows))]
        ones = itertools.product(ranges(sets, 1), ranges(shared, 1))
        return [(*of, some) for of in ones for some in ranges(rows, max(1, size // row))]

    def totals(self, edges: Tensor, shape: Sequence[int]) -> Tensor:
        """See `Incidence`; the first block of a neuron's edges is written, not added."""
        return edges.new_empty(shape)

    def add(self, edges: Tensor, end: int, kind: Kind, totals: Tensor, part: Part) -> None:
        """See `Incidence`."""
        of_block = _of_block(totals, end, part)
        if end == 0 or not part or part[2].start == 0:
            torch.sum(edges, self.over[end], out=of_block)
        else:
            of_block.add_(edges.sum(self.over[end]))

    def neurons(self, shape: Sequence[int], end: int) -> tuple[int, ...]:
        """The sizes of an end's axes, given those of the edges."""
        return tuple([shape[i] for i in self.at[end]])

    def count(self, shape: Sequence[int], end: int) -> int:
        """The number of neurons there."""
        return math.prod(self.neurons(shape, end))


def _of_block(neurons: Tensor, end: int, part: Part) -> Tensor:
    """Features of the neurons ``(S, shared, n, ...)`` at an end of a block of edges."""
    return neurons[part if end == 0 else part[:2]] if part else neurons


def ranges(count: int, step: int) -> Iterator[slice]:
    """Numbers from 0 on, in ranges of so many."""
    return (slice(i, min(i + step, count)) for i in range(0, count, step))
