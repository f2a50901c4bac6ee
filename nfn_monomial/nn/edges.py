"""The exchange on edges: `plain_exchange` is the definition; `blocked` does the same by hand, in fewer operators."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import silu
from torch.nn.modules import module as torch_module

from nfn_monomial.space.packing import wide

from .incidence import Incidence

KEPT = 2**18
"""Bytes of an input that is kept for backward even if it can be made again."""


class AtEnd(NamedTuple):
    """The tensors that neurons bring to one end of edges, see `EdgeMessages`; no product where edges stay."""

    message: Tensor
    product: Tensor | None
    hidden: Tensor


def at_end(brought: Tensor) -> AtEnd:
    """The tensors of an end, given all of them: ``(S, 3 or 2, *neurons, C)``."""
    message, *products, hidden = brought.unbind(1)
    return AtEnd(message, products[0] if products else None, hidden)


class Matrices(NamedTuple):
    """The maps of ``S`` sets of edges: the matrix ``(S, C, C)`` and bias ``(S, C)`` of hidden features, and the matrix
    of the edges' change, None where edges stay."""

    hidden: Tensor
    bias: Tensor
    gate: Tensor | None


def plain_exchange(
    at: Incidence,
    edges: Tensor,
    ends: Sequence[AtEnd],
    matrices: Matrices,
    scale: Tensor | None = None,
    residual: bool = False,
    mask: Tensor | None = None,
) -> tuple[list[tuple[Tensor, Tensor]], Tensor]:
    """Sums of messages to every end and means of hidden features there, and the updated edges: see `EdgeMessages`.

    Args:
        at: which neurons are at which end.
        edges: ``x (S, *edges, C)``.
        ends: the tensors that their neurons bring.
        matrices: of the sets.
        scale: edges are ``e = x * scale`` in all formulas.
        residual: whether ``x + e + update`` is returned, not the update.
        mask: 0 where there is no edge.
    """
    e = edges if scale is None else scaled(edges, scale)
    sent, z = edge_messages(at, e, ends, matrices)
    z = z if mask is None else z * mask
    updated = edges
    if matrices.gate is not None:
        update = edge_change(at, e, z, ends, matrices.gate)
        updated = edges + e + update if residual else update
    return at_ends(at, sent, z), updated


def edge_messages(at: Incidence, e: Tensor, ends: Sequence[AtEnd], matrices: Matrices) -> tuple[list[Tensor], Tensor]:
    """The messages that edges send to each end, and their hidden features."""
    messages = [at.take(end.message, i, "against") for i, end in enumerate(ends)]
    sent = [e * product(messages, i) for i in range(len(ends))]
    invariants = [at.take(end.hidden, i, "inv") for i, end in enumerate(ends)]
    return sent, silu(mixed(sent[0] * messages[0], matrices.hidden, matrices.bias) + sum_of(invariants))


def edge_change(at: Incidence, e: Tensor, z: Tensor, ends: Sequence[AtEnd], gate: Tensor) -> Tensor:
    """The update of edges that have hidden features ``z``; the matrices ``gate`` are G."""
    new = product([at.take(end.product, i, "along") for i, end in enumerate(ends) if end.product is not None])
    return torch.addcmul(new, e, mixed(z, gate))


def at_ends(at: Incidence, sent: Sequence[Tensor], z: Tensor) -> list[tuple[Tensor, Tensor]]:
    """The sum of the messages to each end, and the mean of hidden features there."""
    return [(at.sum(x, i, "along"), at.mean(z, i)) for i, x in enumerate(sent)]


def mixed(x: Tensor, matrices: Tensor, bias: Tensor | None = None) -> Tensor:
    """``(S, ..., C)`` times a matrix for each set, ``(S, C, C')``, plus a bias ``(S, C')``."""
    flat = x.reshape(x.shape[0], math.prod(x.shape[1:-1]), x.shape[-1])
    out = torch.bmm(flat, matrices) if bias is None else torch.baddbmm(bias.unsqueeze(1), flat, matrices)
    return out.view(*x.shape[:-1], matrices.shape[-1])


def mixed_from(
    x: Tensor, matrices: Tensor, bias: Tensor | None, make: Callable[..., Tensor], *pieces: Tensor
) -> Tensor:
    """`mixed` of ``x = make(*pieces)``, of which only the pieces are kept for backward if it is large."""
    if watched(x) or x.untyped_storage().nbytes() <= KEPT:  # a view keeps all of its storage
        return mixed(x, matrices, bias)
    out: Tensor = _MixedFrom.apply(make, x, matrices, bias, *pieces)  # type: ignore[no-untyped-call]
    return out


class _MixedFrom(torch.autograd.Function):
    """`mixed_from`. Gradients pass through ``x``, to whose pieces its own operators lead."""

    @staticmethod
    def forward(
        ctx: Any, make: Callable[..., Tensor], x: Tensor, matrices: Tensor, bias: Tensor | None, *pieces: Tensor
    ) -> Tensor:
        ctx.make = make
        ctx.save_for_backward(matrices, *pieces)
        return mixed(x, matrices, bias)

    @staticmethod
    def backward(ctx: Any, by: Tensor) -> tuple[Tensor | None, ...]:
        matrices, *pieces = ctx.saved_tensors
        x, rows = ctx.make(*pieces), by.reshape(len(by), -1, by.shape[-1])
        by_x = torch.bmm(rows, matrices.mT).view(x.shape)
        by_matrices = torch.bmm(x.view(len(x), -1, x.shape[-1]).mT, rows)
        by_bias = rows.sum(1) if ctx.needs_input_grad[3] else None
        return None, by_x, by_matrices, by_bias, *[None] * len(pieces)


def added_up(x: Tensor, index: Tensor, rows: int) -> Tensor:
    """The sums of all rows of ``x`` that have one number, ``(rows, ...)``; backward keeps the numbers alone."""
    if watched(x):
        return x.new_zeros(rows, *x.shape[1:]).index_add(0, index, x)
    total: Tensor = _AddedUp.apply(x, index, rows)  # type: ignore[no-untyped-call]
    return total


class _AddedUp(torch.autograd.Function):
    """`added_up`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor, rows: int) -> Tensor:
        ctx.save_for_backward(index)
        return x.new_zeros(rows, *x.shape[1:]).index_add_(0, index, x)

    @staticmethod
    def backward(ctx: Any, by: Tensor) -> tuple[Tensor, None, None]:
        return by.index_select(0, *ctx.saved_tensors), None, None


def scaled(x: Tensor, factor: Tensor) -> Tensor:
    """The product in the dtype of ``x``, whatever that of the factor."""
    return (wide(x) * factor).to(x.dtype)


def untouched(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Returns whether a module is of this class and does what that says: no hooks, and no method replaced."""
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    of_all_modules = (
        torch_module._global_forward_hooks,
        torch_module._global_forward_pre_hooks,
        torch_module._global_backward_hooks,
        torch_module._global_backward_pre_hooks,
    )
    return type(module) is kind and not any((*hooks, *of_all_modules)) and "forward" not in vars(module)


def watched(x: Tensor) -> bool:
    """Returns whether somebody sees the operators on a tensor: a compiler, a tracer, a transform, autocast, or its
    class."""
    return (
        torch.compiler.is_compiling()
        or torch._C._get_tracing_state() is not None
        or type(x) not in (Tensor, nn.Parameter)
        or x.is_meta
        or torch.is_autocast_enabled(x.device.type)
        or torch._C._functorch.maybe_current_level() is not None
        or torch.autograd.forward_ad._current_level >= 0
    )


def product(tensors: Sequence[Tensor], *but: int) -> Any:
    """The product of all but some; 1 of none."""
    left: list[Any] = [t for i, t in enumerate(tensors) if i not in but]
    return reduce(operator.mul, left or [1])


def sum_of(tensors: Sequence[Tensor]) -> Tensor:
    """The sum of one or more tensors."""
    return reduce(operator.add, tensors)
