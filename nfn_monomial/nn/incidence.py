"""The neurons at the ends of edges, and the edges that make up a block."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

Adder: TypeAlias = Callable[[Tensor], object]
"""Adds the sums over the edges of a block to the totals of the neurons at one end of them."""


class Grid:
    """All pairs (or tuples) of neurons have an edge: ``(B, *axes, C)``.

    Args:
        at: for each end the positions of its neurons' axes among those of the edges.
        axes: how many axes the edges have.
    """

    def __init__(self, at: Sequence[Sequence[int]], axes: int) -> None:
        self._missing = [[1 + i for i in range(axes) if i not in of_end] for of_end in at]

    def plan(self, edges: Tensor, size: int) -> tuple[int, list[int]]:
        """Blocks of about so many numbers, the largest first: how many networks each has, or of one how many of the
        neurons of its first axis."""
        rows, row = edges.shape[1], edges[:1, :1].numel()
        once = max(1, min(rows, size // row))
        return max(1, size // (row * rows)), [min(once, rows - i) for i in range(0, rows, once)]

    def parts(self, x: Tensor, plan: tuple[int, list[int]]) -> Iterable[Tensor]:
        """For each block views of the edges, or of a tensor that a network's edges share, ``(networks, 1, ..., C)``."""
        networks, rows = plan
        parts = torch.split(x, networks)
        if len(rows) == 1:
            return parts
        return [p for part in parts for p in ([part] * len(rows) if part.shape[1] == 1 else torch.split(part, rows, 1))]

    def take(self, neurons: Tensor, end: int) -> Tensor:
        """Features of the neurons at an end, as they broadcast against the edges."""
        for dim in self._missing[end]:
            neurons = neurons.unsqueeze(dim)
        return neurons

    def taken(self, neurons: Tensor, end: int, plan: tuple[int, list[int]]) -> Iterable[Tensor]:
        """The same for each block."""
        return self.parts(self.take(neurons, end), plan)

    def sum(self, values: Tensor, end: int, like: Tensor) -> Tensor:
        """Sums over the edges of each neuron at an end, whose features are ``like`` others."""
        return values.sum(self._missing[end])

    def adders(self, total: Tensor, end: int, plan: tuple[int, list[int]]) -> Iterable[Adder]:
        """For each block an adder to the totals, which start at 0, of all neurons at an end."""
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


Incidence: TypeAlias = Any
"""A `Grid`, or another class with its methods, as edges of graphs have."""


class Places(NamedTuple):
    """Where edges meet the streams of the neurons at their ends.

    Attributes:
        against: the one whose charge is opposite to theirs, which messages are made of.
        along: the one of the same charge, to which messages go.
        inv: their invariants.
    """

    against: Incidence
    along: Incidence
    inv: Incidence
