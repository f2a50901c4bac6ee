"""Sizes of features, whatever their scale: no epsilon, nothing that overflows, and gradients that are finite."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .edges import watched


def length(x: Tensor, dims: Sequence[int]) -> Tensor:
    """Norms over dimensions, which are kept, in float64: nothing overflows, and sums of squares lose nothing."""
    if x.dtype != torch.float64 and not (torch.is_grad_enabled() and x.requires_grad):
        norm: Tensor = torch.linalg.vector_norm(x, 2, tuple(dims), True, dtype=torch.float64)
        return norm
    top = x.new_ones((), dtype=torch.float64)
    if x.dtype == torch.float64 and x.numel():  # whose squares overflow
        top = x.detach().abs().amax(tuple(dims), keepdim=True)
        top = torch.where(top > 0, top, 1.0)
    square = (x.double() / top).square().sum(tuple(dims), keepdim=True)
    # The root of 0 has no gradient.
    return torch.where(square > 0, square.clamp(min=torch.finfo(torch.float64).tiny).sqrt() * top, 0.0)


def over_size(x: Tensor, dims: Sequence[int], roots: Tensor) -> Tensor:
    """``roots / size`` with ``size`` the norm over dimensions, which are kept, and 1 where all is 0.

    No epsilon: as exact at sizes of 1e-30 as at 1. A gradient is of size 1 / size. Where that could overflow (below
    5e-32 in float32), features count as 0.

    Args:
        x: features.
        dims: of what is measured together.
        roots: float64, square roots of how many numbers a size is to be the mean of.
    """
    if watched(x):
        return over_length(length(x, dims), roots, x.dtype)
    over: Tensor = _OverSize.apply(x, tuple(dims), roots)  # type: ignore[no-untyped-call]
    return over


def over_length(size: Tensor, roots: Tensor, dtype: torch.dtype) -> Tensor:
    """`over_size` of features of this dtype whose norm is known."""
    size = torch.where(size > _tiny(dtype), size, roots)
    if dtype == torch.float64:  # in which the gradient of a quotient overflows
        return (roots.sqrt() / size.sqrt()).square()
    return (roots / size).to(_wide(dtype))


def over_sizes(lengths: Tensor, group: Tensor, groups: int, roots: Tensor, dtype: torch.dtype) -> Tensor:
    """`over_size` of vectors ``(rows, B)`` of these lengths which have their size in common with others of their group.

    Args:
        lengths: of rows, float64.
        group: of each row.
        groups: how many there are.
        roots: of each row, see `over_size`, ``(rows, 1)``.
        dtype: of the features.
    """
    none = lengths.new_zeros(groups, lengths.shape[1])
    if dtype != torch.float64:
        square = none.index_add(0, group, lengths.square()).index_select(0, group)
        # The root of 0 has no gradient.
        return over_length(square.clamp(min=torch.finfo(torch.float64).tiny).sqrt(), roots, dtype)
    # Squares overflow, of lengths and, in a gradient, of sizes.
    top = none.index_add(0, group, lengths.detach()).index_select(0, group)
    alive = top > _tiny(dtype)
    top = torch.where(alive, top, 1.0)
    square = none.index_add(0, group, (lengths / top).square()).index_select(0, group)
    by = over_length(torch.where(alive, square, 1.0).sqrt(), roots, dtype) / top
    return torch.where(alive, by, 1.0)


def _tiny(dtype: torch.dtype) -> float:
    """The size below which features count as 0."""
    return float(torch.finfo(dtype).max ** (-13 / 16))


class _OverSize(torch.autograd.Function):
    """`over_size`, of which only the input is kept for backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dims: tuple[int, ...], roots: Tensor) -> Tensor:
        factor = over_length(length(x, dims), roots, x.dtype)
        ctx.save_for_backward(x, factor, roots)
        return factor

    @staticmethod
    def backward(ctx: Any, by_factor: Tensor) -> tuple[Tensor | None, ...]:
        x, factor, roots = ctx.saved_tensors
        # Not times the third power of the factor, which overflows.
        by = by_factor * factor * (factor / -roots.square()).to(factor.dtype)
        return (x * factor * by).to(x.dtype), None, None


def reciprocal_frames(lengths: Tensor, opposite: Tensor, scaled: Tensor) -> Tensor:
    """For each stream g of a neuron the reciprocal of its frame: ``sqrt(|h_j| / |g_j|)`` with the one h of opposite
    charge; ``1 / |g|`` or ``|h|`` where the other one is 0 or not there; 0 where both are.

    Args:
        lengths: norms of streams.
        opposite: of those of opposite charge, 0 where there is none.
        scaled: whether scales act; frames are 1 where none does.
    """
    alive, reached = lengths > 0, opposite > 0
    below, above, both = torch.where(alive, lengths, 1.0), torch.where(reached, opposite, 1.0), alive & reached
    by = torch.where(both, above.sqrt(), above) / torch.where(both, below.sqrt(), below)
    return torch.where(scaled, torch.where(alive | reached, by, 0.0), 1.0)


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype == torch.float16 else dtype


def moments(x: Tensor, group: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
    """Means and standard deviations of the rows of each group.

    Args:
        x: ``(rows, ..., C)``.
        group: of each row.
        share: one over the number of rows in each group, ``(groups, *ones)``.
    """
    none, share = x.new_zeros(len(share), *x.shape[1:]), share.to(x.dtype)
    mean = none.index_add(0, group, x) * share
    away = x - mean.index_select(0, group)
    top = away.detach().abs().amax(0).clamp(min=1)  # whose squares may overflow
    square = none.index_add(0, group, (away / top).square()) * share
    # Not std: its gradient is infinite where all neurons are equal, or where there is one.
    return mean, (square + 1e-6 / top / top).clamp(min=torch.finfo(x.dtype).tiny).sqrt() * top


def square_sums(x: Tensor, dim: int) -> Tensor:
    """Sums of squares over a dimension, in float64; numbers beyond 1e150, whose squares overflow, count as 1e150."""
    return length(x, (dim,)).squeeze(dim).clamp(max=1e150).square()


def log_sums(squares: Tensor, at: Tensor, count: int) -> Tensor:
    """The logarithms of sums of rows: ``(rows, ...)`` -> ``(count, ...)``; ``at`` is the sum that a row is part of."""
    sums = squares.new_zeros(count, *squares.shape[1:]).index_add(0, at, squares)
    return (sums + 1e-6).log()
