"""The exchange on edges by hand: `plain_exchange`, in fewer operators, and on a CPU in blocks of edges.

Nothing that is as large as all edges is kept for backward but the edges themselves: the rest is computed again, block
by block, so that it stays in a processor's cache. Only of edges that fit into one block t and p are kept. In the
formulas below, edges ``x`` have the factor ``f`` and the gain ``g``; end ``i`` brings ``M_i`` to messages, ``N_i`` to
products and ``H_i`` to hidden features; W, w and G are those of `EdgeMessages`::

    e = x f g          a_i = e prod_{j != i} M_j      t = a_0 M_0      p = t W + sum_i H_i + w      z = silu(p)
    y = z G            out = x + e + e y + prod_i N_i

and backward, ``d`` before a name being the gradient by it::

    dM_i = sum e r_i   with r_i = dt prod_{j != i} M_j + sum_{j != i} da_j prod_{l != i, j} M_l
    de   = r_i M_i + da_i prod_{j != i} M_j + dout (y + 1)            for any i
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import reduce
from operator import mul
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import silu

from .edges import Matrices, at_end, plain_exchange, product, sum_of, watched
from .incidence import Incidence, Kind, Part
from .sizes import length, over_length, over_size

BLOCK = 2**19
"""Bytes of the edges of one block on a CPU; on a GPU all edges of a call are one."""

KINDS: dict[int, tuple[Kind, ...]] = {2: ("against", "inv"), 3: ("against", "along", "inv")}
"""The kinds of tensors that an end brings, by their number: without products where edges stay."""


class Size(NamedTuple):
    """The norm of edges: ``gain (C,)``, and the square roots of how many numbers sizes are means of, ``(S, *ones)``."""

    gain: Tensor
    roots: Tensor


def exchange(
    at: Incidence,
    edges: Tensor,
    ends: Sequence[Tensor],
    matrices: Matrices,
    size: Size | None = None,
    scale: Tensor | None = None,
    residual: bool = False,
    mask: Tensor | None = None,
) -> tuple[list[tuple[Tensor, Tensor]], Tensor]:
    """`plain_exchange` of edges that are scaled to a size, if one is given; ``ends`` hold the tensors of `AtEnd`,
    ``(S, 3 or 2, *neurons, B, C)``.

    The plain form runs where somebody needs to see operators (torch.compile, torch.func, autocast), in other dtypes, on
    edges that are scaled otherwise, and on those whose ends are nested in other nodes than one that all share.
    """
    exact = edges.dtype in (torch.float32, torch.float64) and all(x.dtype == edges.dtype for x in ends)
    if not at.apart or scale is not None or watched(edges) or not exact:
        return _plain(at, edges, ends, matrices, size, scale, residual, mask)
    gain, roots = (None, None) if size is None else size
    edges = edges.contiguous()
    *sums, out = _Exchange.apply(at, residual, mask, roots, edges, gain, *matrices, *ends)  # type: ignore[no-untyped-call]
    return list(zip(sums[::2], sums[1::2], strict=True)), edges if out is None else out


def _plain(
    at: Incidence,
    edges: Tensor,
    ends: Sequence[Tensor],
    matrices: Matrices,
    size: Size | None,
    scale: Tensor | None,
    residual: bool,
    mask: Tensor | None,
) -> tuple[list[tuple[Tensor, Tensor]], Tensor]:
    scale = scale if size is None else over_size(edges, _of_network(edges), size.roots) * size.gain
    return plain_exchange(at, edges, list(map(at_end, ends)), matrices, scale, residual, mask)


def _of_network(edges: Tensor) -> tuple[int, ...]:
    """The dimensions of the edges of one network and set."""
    return (*range(1, edges.ndim - 2), -1)


class _Exchange(torch.autograd.Function):
    """`exchange` of edges ``x (S, shared, n_0, n_1, ..., B, C)`` with ends ``(S, 3 or 2, shared, n_i, B, C)``."""

    @staticmethod
    def forward(
        ctx: Any, at: Incidence, residual: bool, mask: Tensor | None, roots: Tensor | None, x: Tensor,
        gain: Tensor | None, hidden: Tensor, bias: Tensor, gate: Tensor | None, *ends: Tensor,
    ) -> tuple[Tensor | None, ...]:  # fmt: skip
        f = None if roots is None else over_length(_length(x), roots, x.dtype)
        out = None if gate is None else torch.empty_like(x)
        parts = at.parts(x, BLOCK) if x.is_cpu else [()]
        sums = [at.totals(x, (2, len(x), *end.shape[2:])).unbind(0) if parts[0] else () for end in ends]
        for part in parts:
            v = _computed(part, at, mask, x, f, gain, hidden, bias, gate, ends)
            for i, of_end in enumerate(sums):
                # The messages to the first end are there, and not needed any more when the others are computed.
                sent = v.a if i == 0 else torch.mul(v.e, product(v.messages, i), out=v.a)
                if not part:
                    sums[i] = at.sum(sent, i, "along"), at.mean(v.z, i)
                    continue
                at.add(sent, i, "along", of_end[0], part)
                at.add(v.z, i, "inv", of_end[1], part)
            if out is not None:
                new = torch.mul(v.products[0], product(v.products, 0), out=_at(out, part)).addcmul_(v.e, v.y)
                if residual:  # x + e
                    new.add_(v.x, alpha=2) if v.by is None else new.addcmul_(v.x, v.by + 1)
        for i, of_end in enumerate(sums if parts[0] else ()):
            of_end[1].mul_(at.share(x, i))
        ctx.at, ctx.residual, ctx.mask, ctx.roots, ctx.parts = at, residual, mask, roots, parts
        ctx.kept = (v.by, v.t, v.p) if x.nbytes <= BLOCK else None
        ctx.save_for_backward(x, f, gain, hidden, bias, gate, *ends)
        ctx.set_materialize_grads(False)
        return *(t for of_end in sums for t in of_end), out

    @staticmethod
    def backward(ctx: Any, *by: Tensor | None) -> tuple[Tensor | None, ...]:
        # Gradients of gradients, and many gradients at once, are those of the formulas.
        batched = any(grad is not None and torch._C._functorch.is_legacy_batchedtensor(grad) for grad in by)
        if torch.is_grad_enabled() or batched:
            with torch.enable_grad():
                return None, None, None, None, *_Exchange._differentiable(ctx, by)
        at, (x, f, gain, hidden, bias, gate, *ends) = ctx.at, ctx.saved_tensors
        *by_sums, by_out = by
        by_out = None if by_out is None else by_out.contiguous()
        given = [
            x.new_zeros(()).expand(len(x), *end.shape[2:]) if grad is None else grad
            for grad, end in zip(by_sums, [end for end in ends for _ in range(2)], strict=True)
        ]
        by_messages = given[::2]
        by_means = [grad * at.share(x, i) for i, grad in enumerate(given[1::2])]
        into = at.totals if by_out is not None else torch.Tensor.new_zeros  # streams that were not read
        by_x, by_ends = torch.empty_like(x), [into(x, end.shape) for end in ends]
        by_hidden, by_gate = torch.empty_like(hidden), None if by_out is None else torch.empty_like(gate)
        by_size = None if f is None else f.new_empty(*f.shape[:-1], len(gain))
        for part in ctx.parts:
            v = _computed(
                part, at, ctx.mask, x, f, gain, hidden, bias, None if by_out is None else gate, ends, ctx.kept
            )
            of_sets, new = part[:1], all(of.start == 0 for of in part[1:])
            totals = [grad.unbind(1) for grad in by_ends]
            d_a = [at.take(grad, i, "along", part) for i, grad in enumerate(by_messages)]
            d_z = sum_of([at.take(grad, i, "inv", part) for i, grad in enumerate(by_means)])
            if by_out is not None:
                d_out = _at(by_out, part)
                d_y = d_out * v.e
                _product(_rows(v.z).mT, _rows(d_y), _at(by_gate, of_sets), new)
                _rows(d_z).baddbmm_(_rows(d_y), _at(gate, of_sets).mT)
                for i, total in enumerate(totals):
                    at.add(torch.mul(d_out, product(v.products, i), out=d_y), i, "along", total[1], part)
            if ctx.mask is not None:
                d_z.mul_(_at(ctx.mask, part))
            d_p = torch.ops.aten.silu_backward(d_z, v.p)
            for i, total in enumerate(totals):
                at.add(d_p, i, "inv", total[-1], part)
            _product(_rows(v.t).mT, _rows(d_p), _at(by_hidden, of_sets), new)
            d_t = torch.bmm(_rows(d_p), _at(hidden, of_sets).mT, out=_rows(d_z)).view(v.x.shape)
            r, scratch = d_p, None
            for i, total in enumerate(totals):
                others = [reduce(mul, v.but(i, j), d_a[j]) for j in range(len(ends)) if j != i]
                torch.addcmul(sum_of(others), d_t, product(v.messages, i), out=r)
                scratch = torch.mul(v.e, r, out=scratch)
                at.add(scratch, i, "against", total[0], part)
            d_e = r.mul_(v.messages[-1]).addcmul_(d_a[-1], product(v.messages, len(ends) - 1))
            more = None  # of x itself
            if by_out is not None:
                d_e.addcmul_(d_out, v.y)
                if ctx.residual:
                    more = d_out
                    d_e.add_(d_out)
            into_x = _at(by_x, part)
            if by_size is None:
                torch.add(d_e, more, out=into_x) if more is not None else into_x.copy_(d_e)
                continue
            torch.addcmul(more, d_e, v.by, out=into_x) if more is not None else torch.mul(d_e, v.by, out=into_x)
            by_sets = torch.mul(d_e, v.x, out=scratch).sum(_of_network(x)[:-1], keepdim=True)
            of_size = _at(by_size, of_sets)
            of_size.copy_(by_sets) if new else of_size.add_(by_sets)
        by_gain = None
        if by_size is not None:
            # Sizes depend on all edges of a set. Not times the third power of the factor, which overflows.
            by_gain = (by_size * f).flatten(0, -2).sum(0)
            over = f / ctx.roots
            change = (by_size @ gain).unsqueeze(-1).mul_(over).mul_(over)
            for part in ctx.parts:
                of_sets, into_x = part[:1], _at(by_x, part)
                into_x.addcmul_(_at(x, part) * _at(f, of_sets), _at(change, of_sets), value=-1)
        by_bias = by_ends[0][:, -1].flatten(1, -2).sum(1)
        return None, None, None, None, by_x, by_gain, by_hidden, by_bias, by_gate, *by_ends

    @staticmethod
    def _differentiable(ctx: Any, by: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Gradients that have gradients themselves: those of `plain_exchange`."""
        # Inputs depend on one another, as messages do on edges. Views of them do not: a gradient that comes through
        # another input is left to the operator that made that input.
        inputs: list[Any] = [None if t is None else t.view_as(t) for t in ctx.saved_tensors]
        x, _, gain, hidden, bias, gate, *ends = inputs
        size = None if gain is None else Size(gain, ctx.roots)
        sums, out = _plain(ctx.at, x, ends, Matrices(hidden, bias, gate), size, None, ctx.residual, ctx.mask)
        outputs = zip([t for pair in sums for t in pair] + [out], by, strict=True)
        used, by_used = zip(*((y, g) for y, g in outputs if g is not None), strict=True)
        needed = ctx.needs_input_grad[4:]
        wanted = list(itertools.compress([x, gain, hidden, bias, gate, *ends], needed))
        gradients = iter(torch.autograd.grad(used, wanted, by_used, create_graph=True, allow_unused=True))
        return [next(gradients) if need else None for need in needed]


class _Values(NamedTuple):
    """The tensors of a block of edges, by the names of the module."""

    x: Tensor
    by: Any  # f g
    messages: list[Tensor]
    products: list[Tensor]
    e: Tensor
    a: Any
    t: Tensor
    p: Tensor
    z: Tensor
    y: Any

    def but(self, *ends: int) -> list[Tensor]:
        """The tensors that all ends but some bring to messages."""
        return [message for i, message in enumerate(self.messages) if i not in ends]


def _computed(
    part: Part,
    at: Incidence,
    mask: Tensor | None,
    x: Tensor,
    f: Tensor | None,
    gain: Tensor | None,
    hidden: Tensor,
    bias: Tensor,
    gate: Tensor | None,
    ends: Sequence[Tensor],
    kept: tuple[Any, Tensor, Tensor] | None = None,
) -> _Values:
    """The tensors of a block; ``kept`` are its factors ``f g``, and t and p."""
    kinds = KINDS[ends[0].shape[1]]
    brought = [
        [at.take(t, i, kind, part) for t, kind in zip(end.unbind(1), kinds, strict=True)] for i, end in enumerate(ends)
    ]
    messages, invariants = [of_end[0] for of_end in brought], [of_end[-1] for of_end in brought]
    products = [of_end[1] for of_end in brought if len(of_end) > 2]
    of_sets, x = part[:1], _at(x, part)
    if kept is None:
        by = None if f is None else _at(f, of_sets) * gain
        e = x if by is None else x * by
        a = e * product(messages, 0)
        t = a * messages[0]
        first, *others = invariants
        p = first + _at(bias, of_sets).view(-1, *[1] * (x.ndim - 2), bias.shape[-1]) + sum_of(others)
        _rows(p).baddbmm_(_rows(t), _at(hidden, of_sets))
    else:
        by, t, p = kept
        e, a = x if by is None else x * by, None
    z = silu(p)
    if mask is not None:
        z.mul_(_at(mask, part))
    y = None if gate is None else torch.bmm(_rows(z), _at(gate, of_sets)).view(x.shape)
    return _Values(x, by, messages, products, e, a, t, p, z, y)


def _at(x: Any, part: Part) -> Any:
    return x[part] if part else x


def _product(x: Tensor, y: Tensor, into: Tensor, new: bool) -> None:
    torch.bmm(x, y, out=into) if new else into.baddbmm_(x, y)


def _length(x: Tensor) -> Tensor:
    """`length` of the edges of a network and set. In float32 it takes a third of the time to find the largest first:
    then squares can be added up in float32."""
    if x.dtype != torch.float32 or x.nbytes <= BLOCK:
        return length(x, _of_network(x))
    flat, ones = x.flatten(1, -3), [1] * (x.ndim - 3)
    top = torch.maximum(flat.amax(1), -flat.amin(1)).amax(-1)
    top = torch.where(top > torch.finfo(x.dtype).tiny, top, 1.0).view(len(x), *ones, -1, 1)
    squares = (x / top).square_().sum(_of_network(x)[:-1], keepdim=True)
    return squares.sum(-1, keepdim=True).double().sqrt() * top


def _rows(x: Tensor) -> Tensor:
    """``(S, ..., C)`` as ``(S, rows, C)``."""
    return x.view(x.shape[0], math.prod(x.shape[1:-1]), x.shape[-1])
