"""Which neurons are at the ends of edges, and which edges make up a block."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

Block = TypeVar("Block")


class Incidence(Protocol[Block]):
    """Which neurons are at the ends of edges; a block is some of the edges."""

    def blocks(self, edges: Tensor, size: int) -> Iterator[Block]:
        """All edges in blocks of about so many numbers."""

    def part(self, edges: Tensor, block: Block) -> Tensor:
        """The edges of a block, a view."""

    def shared(self, values: Tensor, block: Block) -> Tensor:
        """What all edges of a network share, ``(networks, 1, ..., C)``: that of a block's networks, a view."""

    def take(self, neurons: Tensor, end: int, block: Block | None = None) -> Tensor:
        """Features of the neurons at an end, as they broadcast against the edges of a block, or against all."""

    def sum(self, values: Tensor, end: int, like: Tensor) -> Tensor:
        """Sums over the edges of each neuron at an end, whose features are ``like`` others."""

    def total(self, like: Tensor) -> Tensor:
        """Where to add sums for neurons whose features are ``like`` others."""

    def add(self, total: Tensor, values: Tensor, end: int, block: Block) -> None:
        """Add the sums over the edges of a block to the total of all neurons at an end."""


class Places(NamedTuple):
    """Where edges meet the streams of the neurons at their ends.

    Attributes:
        against: the one whose charge is opposite to theirs, which messages are made of.
        along: the one of the same charge, to which messages go.
        inv: their invariants.
    """

    against: Incidence[Any]
    along: Incidence[Any]
    inv: Incidence[Any]


class Grid:
    """All pairs (or tuples) of neurons have an edge: ``(B, *axes, C)``.

    Args:
        at: for each end the positions of its neurons' axes among those of the edges.
        axes: how many axes the edges have.
    """

    def __init__(self, at: Sequence[Sequence[int]], axes: int) -> None:
        self._missing = [[1 + i for i in range(axes) if i not in own] for own in at]

    def blocks(self, edges: Tensor, size: int) -> Iterator[tuple[slice, slice]]:
        """Of several networks, or of one and some of the neurons of its first axis."""
        batch, rows = edges.shape[:2]
        row = edges[:1, :1].numel()
        networks, rows_once = max(1, size // (row * rows)), max(1, min(rows, size // row))
        starts = itertools.product(range(0, batch, networks), range(0, rows, rows_once))
        return ((slice(b, b + networks), slice(r, r + rows_once)) for b, r in starts)

    def part(self, edges: Tensor, block: tuple[slice, slice]) -> Tensor:
        return edges[block]

    def shared(self, values: Tensor, block: tuple[slice, slice]) -> Tensor:
        return values[block[0]]

    def take(self, neurons: Tensor, end: int, block: tuple[slice, slice] | None = None) -> Tensor:
        neurons = neurons if block is None else self._of(neurons, end, block)
        for dim in self._missing[end]:
            neurons = neurons.unsqueeze(dim)
        return neurons

    def sum(self, values: Tensor, end: int, like: Tensor) -> Tensor:
        return values.sum(self._missing[end])

    def total(self, like: Tensor) -> Tensor:
        return torch.empty_like(like, memory_format=torch.contiguous_format)

    def add(self, total: Tensor, values: Tensor, end: int, block: tuple[slice, slice]) -> None:
        into, dims = self._of(total, end, block), self._missing[end]
        if 1 not in dims or block[1].start == 0:
            torch.sum(values, dims, out=into)
        else:
            into += values.sum(dims)

    def _of(self, neurons: Tensor, end: int, block: tuple[slice, slice]) -> Tensor:
        """Those at the ends of a block."""
        return neurons[block[0]] if 1 in self._missing[end] else neurons[block]


class Pairs:
    """Neurons joined one by one: edges are rows ``(E, C)``, neurons ``(N, C)``.

    Args:
        at: for each end, which neuron is at that end of each edge.
    """

    def __init__(self, at: tuple[Tensor, ...]) -> None:
        self._at = at

    def blocks(self, edges: Tensor, size: int) -> Iterator[slice]:
        rows = max(1, size // edges.shape[1])
        return (slice(i, i + rows) for i in range(0, len(edges), rows))

    def part(self, edges: Tensor, block: slice) -> Tensor:
        return edges[block]

    def shared(self, values: Tensor, block: slice) -> Tensor:
        return values

    def take(self, neurons: Tensor, end: int, block: slice | None = None) -> Tensor:
        return neurons.index_select(0, self._at[end][slice(None) if block is None else block])

    def sum(self, values: Tensor, end: int, like: Tensor) -> Tensor:
        return torch.zeros_like(like, dtype=values.dtype).index_add(0, self._at[end], values)

    def total(self, like: Tensor) -> Tensor:
        return torch.zeros_like(like)

    def add(self, total: Tensor, values: Tensor, end: int, block: slice) -> None:
        total.index_add_(0, self._at[end][block], values)
