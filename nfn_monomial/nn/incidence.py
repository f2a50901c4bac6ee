"""Which neurons are at the ends of edges, and which edges make up a block."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

import torch
from torch import Tensor

Plan = TypeVar("Plan")

Adder: TypeAlias = Callable[[Tensor], object]
"""Adds the sums over the edges of a block to the totals of the neurons at one end of them."""


class Incidence(Protocol[Plan]):
    """Which neurons are at the ends of edges; a block is some of the edges, a plan says which they all are."""

    def plan(self, edges: Tensor, size: int) -> Plan:
        """All edges in blocks of about so many numbers, of which the first is the largest."""

    def parts(self, x: Tensor, plan: Plan) -> Iterable[Tensor]:
        """For each block views of the edges, or of what all edges of a network share, ``(networks, 1, ..., C)``."""

    def take(self, neurons: Tensor, end: int) -> Tensor:
        """Features of the neurons at an end, as they broadcast against the edges."""

    def taken(self, neurons: Tensor, end: int, plan: Plan) -> Iterable[Tensor]:
        """The same for each block."""

    def sum(self, values: Tensor, end: int, like: Tensor) -> Tensor:
        """Sums over the edges of each neuron at an end, whose features are ``like`` others."""

    def adders(self, total: Tensor, end: int, plan: Plan) -> Iterable[Adder]:
        """For each block what adds to the totals, which start at 0, of all neurons at an end."""


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
        self._missing = [[1 + i for i in range(axes) if i not in of_end] for of_end in at]

    def plan(self, edges: Tensor, size: int) -> tuple[int, list[int]]:
        """Several networks, or one and some of the neurons of its first axis; the numbers of these."""
        rows, row = edges.shape[1], edges[:1, :1].numel()
        once = max(1, min(rows, size // row))
        return max(1, size // (row * rows)), [min(once, rows - i) for i in range(0, rows, once)]

    def parts(self, x: Tensor, plan: tuple[int, list[int]]) -> Iterable[Tensor]:
        networks, rows = plan
        parts = torch.split(x, networks)
        if len(rows) == 1:
            return parts
        return [p for part in parts for p in ([part] * len(rows) if part.shape[1] == 1 else torch.split(part, rows, 1))]

    def take(self, neurons: Tensor, end: int) -> Tensor:
        for dim in self._missing[end]:
            neurons = neurons.unsqueeze(dim)
        return neurons

    def taken(self, neurons: Tensor, end: int, plan: tuple[int, list[int]]) -> Iterable[Tensor]:
        return self.parts(self.take(neurons, end), plan)

    def sum(self, values: Tensor, end: int, like: Tensor) -> Tensor:
        return values.sum(self._missing[end])

    def adders(self, total: Tensor, end: int, plan: tuple[int, list[int]]) -> Iterable[Adder]:
        dims = self._missing[end]
        alone = 1 not in dims or len(plan[1]) == 1
        return [summing(total, dims, alone) for total in self.taken(total, end, plan)]


def summing(total: Tensor, dims: list[int], alone: bool) -> Adder:
    """Sums over dimensions, which totals keep; they are written where nothing else is added to the same: ``alone``."""
    if alone:
        return partial(torch.sum, dim=dims, keepdim=True, dtype=total.dtype, out=total)
    return lambda values: total.add_(values.sum(dims, keepdim=True, dtype=total.dtype))


def zeros_to_add_to(like: Tensor) -> Tensor:
    """Totals that start at 0: in float32 of half precision, in which a sum soon is too large to change."""
    dtype = torch.float32 if like.dtype in (torch.float16, torch.bfloat16) else like.dtype
    return torch.zeros_like(like, dtype=dtype, memory_format=torch.contiguous_format)


class Pairs:
    """Neurons joined one by one: edges are rows ``(E, C)``, neurons ``(N, C)``.

    Args:
        at: for each end, which neuron is at that end of each edge.
    """

    def __init__(self, at: tuple[Tensor, ...]) -> None:
        self._at = at

    def plan(self, edges: Tensor, size: int) -> list[int]:
        """Numbers of edges."""
        rows = max(1, size // edges.shape[1])
        return [min(rows, len(edges) - i) for i in range(0, len(edges), rows)]

    def parts(self, x: Tensor, plan: list[int]) -> Iterable[Tensor]:
        return torch.split(x, plan) if len(x) == len(self._at[0]) else [x] * len(plan)

    def take(self, neurons: Tensor, end: int) -> Tensor:
        return neurons.index_select(0, self._at[end])

    def taken(self, neurons: Tensor, end: int, plan: list[int]) -> Iterable[Tensor]:
        return (neurons.index_select(0, at) for at in torch.split(self._at[end], plan))

    def sum(self, values: Tensor, end: int, like: Tensor) -> Tensor:
        total = zeros_to_add_to(like.to(values.dtype))
        return total.index_add(0, self._at[end], values.to(total.dtype)).to(values.dtype)

    def adders(self, total: Tensor, end: int, plan: list[int]) -> Iterable[Adder]:
        return (partial(add_rows, total, at) for at in torch.split(self._at[end], plan))


def add_rows(total: Tensor, at: Tensor, values: Tensor) -> None:
    """Adds values of edges to those rows of the totals that are at their end."""
    total.index_add_(0, at, values.to(total.dtype).view(len(at), -1))
