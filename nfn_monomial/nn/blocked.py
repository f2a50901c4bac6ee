"""The exchange on edges by hand: `plain_exchange`, in fewer operators, and where edges are many in blocks of them.

In blocks nothing as large as all edges is kept for backward but the edges themselves: the rest is computed again, block
by block, so that it stays in a processor's cache. The names are those of `EdgeMessages`: of a block of edges ``x`` with
factor ``f`` and gain ``g``, between first ends (their tensors F0, F1, F2) and last ends (L0, L1, L2)::

    e = x f g        a = e L0        b = e F0        t = a F0        p = t W + F2 + L2        z = silu(p)
    y = z G          out = x + e + e y + F1 L1
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import silu

from .edges import AtEnd, Matrices, plain_exchange, watched
from .incidence import Grid
from .norm import length, over_length, over_size

BLOCK = 2**19
"""Bytes of the edges of one block."""

KEPT = 2**20
"""Bytes of edges up to which what is computed is kept for backward."""

Part = tuple[slice, ...]
"""A block: ranges of sets, of the first dimension of edges and of the second; none for all."""


class Size(NamedTuple):
    """The norm of edges: ``gain (C,)``, and the square roots of how many numbers sizes are means of, ``(S, *ones)``."""

    gain: Tensor
    roots: Tensor


def exchange(
    at: Grid,
    edges: Tensor,
    ends: Sequence[Tensor],
    matrices: Matrices,
    size: Size | None = None,
    scale: Tensor | None = None,
    residual: bool = False,
    mask: Tensor | None = None,
) -> tuple[list[tuple[Tensor, Tensor]], Tensor]:
    """`plain_exchange` of edges that are scaled to a size, if one is given; ``ends`` hold the tensors of `AtEnd` as one,
    ``(S, 3 or 2, *neurons, B, C)``.

    The plain form runs where somebody needs to see operators (torch.compile, torch.func, autocast), in other dtypes, on
    edges of more ends than two, and on those that are scaled otherwise.
    """
    exact = edges.dtype in (torch.float32, torch.float64) and all(x.dtype == edges.dtype for x in ends)
    if len(ends) > 2 or scale is not None or watched(edges) or not exact:
        return _plain(at, edges, ends, matrices, size, scale, residual, mask)
    gain, roots = (None, None) if size is None else size
    *sums, out = _Exchange.apply(at, residual, mask, roots, edges, gain, *matrices, *ends)  # type: ignore[no-untyped-call]
    return [(sums[0], sums[1]), (sums[2], sums[3])], edges if out is None else out


def _plain(
    at: Grid,
    edges: Tensor,
    ends: Sequence[Tensor],
    matrices: Matrices,
    size: Size | None,
    scale: Tensor | None,
    residual: bool,
    mask: Tensor | None,
) -> tuple[list[tuple[Tensor, Tensor]], Tensor]:
    scale = scale if size is None else over_size(edges, _of_network(edges), size.roots) * size.gain
    each = [end.unbind(1) for end in ends]
    tensors = [AtEnd(end[0], end[1] if len(end) > 2 else None, end[-1]) for end in each]
    return plain_exchange(at, edges, tensors, matrices, scale, residual, mask)


def _of_network(edges: Tensor) -> tuple[int, ...]:
    """The dimensions of the edges of one network and set."""
    return (*range(1, edges.ndim - 2), -1)


class _Exchange(torch.autograd.Function):
    """`exchange` of edges ``x (S, p, n, m, B, C)`` with first ends ``F (S, 3, p, n, B, C)`` and last ends ``L (S, 3, p, m,
    B, C)``."""

    @staticmethod
    def forward(
        ctx: Any, at: Grid, residual: bool, mask: Tensor | None, roots: Tensor | None, x: Tensor, gain: Tensor | None,
        W: Tensor, w: Tensor, G: Tensor | None, F: Tensor, L: Tensor,
    ) -> tuple[Tensor | None, ...]:  # fmt: skip
        x = x.contiguous()
        f = None if roots is None else over_length(_length(x), roots, x.dtype)
        first, last = (x.new_empty(2, len(x), *end.shape[2:]) for end in (F, L))
        out = None if G is None else torch.empty_like(x)
        parts = _parts(x)
        for part in parts:
            v = _computed(part, mask, x, f, gain, W, w, G, F, L)
            _sum(v.a, 3, first[0], part)
            _sum(v.z, 3, first[1], part)
            _sum(torch.mul(v.e, v.F0, out=v.a), 2, last[0], part)
            _sum(v.z, 2, last[1], part)
            if out is not None:
                new = torch.mul(v.F1, v.L1, out=_at(out, part)).addcmul_(v.e, v.y)
                if residual:  # x + e
                    new.add_(v.x, alpha=2) if v.by is None else new.addcmul_(v.x, v.by + 1)
        first[1].mul_(_share(at, x, 0))
        last[1].mul_(_share(at, x, 1))
        ctx.at, ctx.residual, ctx.mask, ctx.roots, ctx.parts = at, residual, mask, roots, parts
        ctx.kept = v._replace(a=None) if len(parts) == 1 and x.nbytes <= KEPT else None
        ctx.save_for_backward(x, f, gain, W, w, G, F, L)
        ctx.set_materialize_grads(False)
        return first[0], first[1], last[0], last[1], out

    @staticmethod
    def backward(ctx: Any, *by: Tensor | None) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            return None, None, None, None, *_Exchange._differentiable(ctx, by)
        x, f, gain, W, w, G, F, L = ctx.saved_tensors
        by_a, by_z_first, by_b, by_z_last = (
            end.new_zeros(()).expand(len(x), *end.shape[2:]) if grad is None else grad
            for grad, end in zip(by[:4], (F, F, L, L), strict=True)
        )
        by_z_first, by_z_last, by_out = by_z_first * _share(ctx.at, x, 0), by_z_last * _share(ctx.at, x, 1), by[4]
        into = torch.empty_like if by_out is not None else torch.zeros_like  # streams that were not read
        by_x, by_F, by_L = torch.empty_like(x), into(F), into(L)
        by_W, by_G = torch.empty_like(W), None if by_out is None else torch.empty_like(W)
        by_size = None if f is None else f.new_empty(*f.shape[:-1], len(gain))
        for part in ctx.parts:
            v = ctx.kept or _computed(part, ctx.mask, x, f, gain, W, w, None if by_out is None else G, F, L)
            of_sets, of_last, new = part[:1], part[:2], all(of.start == 0 for of in part[1:])
            of_first, of_lasts = [_at(t, part) for t in by_F.unbind(1)], [_at(t, of_last) for t in by_L.unbind(1)]
            g_a, g_b = _at(by_a, part).unsqueeze(3), _at(by_b, of_last).unsqueeze(2)
            g_z = _at(by_z_first, part).unsqueeze(3) + _at(by_z_last, of_last).unsqueeze(2)
            if by_out is not None:
                g_out = _at(by_out, part)
                g_y = g_out * v.e
                _product(_rows(v.z).mT, _rows(g_y), _at(by_G, of_sets), new)
                _rows(g_z).baddbmm_(_rows(g_y), _at(G, of_sets).mT)
                torch.sum(torch.mul(g_out, v.L1, out=g_y), 3, out=of_first[1])
                _sum_last(torch.mul(g_out, v.F1, out=g_y), of_lasts[1], part)
            if ctx.mask is not None:
                g_z.mul_(_at(ctx.mask, part))
            g_p = torch.ops.aten.silu_backward(g_z, v.p)
            torch.sum(g_p, 3, out=of_first[-1])
            _sum_last(g_p, of_lasts[-1], part)
            _product(_rows(v.t).mT, _rows(g_p), _at(by_W, of_sets), new)
            g_t = torch.bmm(_rows(g_p), _at(W, of_sets).mT, out=_rows(g_z)).view(v.x.shape)
            over_L0 = torch.addcmul(g_a, g_t, v.F0)
            over_F0 = torch.addcmul(g_b, g_t, v.L0, out=g_p)
            torch.sum(torch.mul(v.e, over_F0, out=g_t), 3, out=of_first[0])
            _sum_last(torch.mul(v.e, over_L0, out=g_t), of_lasts[0], part)
            g_e = over_L0.mul_(v.L0).addcmul_(g_b, v.F0)
            more = None  # of x itself
            if by_out is not None:
                g_e.addcmul_(g_out, v.y)
                if ctx.residual:
                    more = g_out
                    g_e.add_(g_out)
            into_x = _at(by_x, part)
            if v.by is None:
                torch.add(g_e, more, out=into_x) if more is not None else into_x.copy_(g_e)
                continue
            torch.addcmul(more, g_e, v.by, out=into_x) if more is not None else torch.mul(g_e, v.by, out=into_x)
            total = torch.mul(g_e, v.x, out=g_t).sum((1, 2, 3), keepdim=True)
            of_size = _at(by_size, of_sets)
            of_size.copy_(total) if new else of_size.add_(total)
        by_gain = None
        if f is not None:
            # Sizes depend on all edges of a set. Not times a power of the factor, which overflows.
            by_gain = (by_size * f).sum((0, 1, 2, 3, 4))
            change = (by_size @ gain).unsqueeze(-1).mul_(f / ctx.roots).mul_(f / ctx.roots)
            for part in ctx.parts:
                of_sets, into_x = part[:1], _at(by_x, part)
                into_x.addcmul_(_at(x, part) * _at(f, of_sets), _at(change, of_sets), value=-1)
        by_w = by_F[:, -1].sum((1, 2, 3))
        return None, None, None, None, by_x, by_gain, by_W, by_w, by_G, by_F, by_L

    @staticmethod
    def _differentiable(ctx: Any, by: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Gradients that have gradients themselves: those of `plain_exchange`."""
        # Inputs depend on one another, as messages do on edges. Views of them do not: a gradient that comes through
        # another input is left to the operator that made that input.
        x, _, gain, W, w, G, F, L = [None if t is None else t.view_as(t) for t in ctx.saved_tensors]
        size = None if gain is None else Size(gain, ctx.roots)
        sums, out = _plain(ctx.at, x, [F, L], Matrices(W, w, G), size, None, ctx.residual, ctx.mask)
        outputs = zip([t for pair in sums for t in pair] + [out], by, strict=True)
        used, by_used = zip(*((y, g) for y, g in outputs if g is not None), strict=True)
        needed = ctx.needs_input_grad[4:]
        wanted = list(itertools.compress([x, gain, W, w, G, F, L], needed))
        gradients = iter(torch.autograd.grad(used, wanted, by_used, create_graph=True, allow_unused=True))
        return [next(gradients) if need else None for need in needed]


class _Values(NamedTuple):
    """What is computed of a block of edges, by the names of the module."""

    x: Tensor
    by: Tensor | None  # f g
    F0: Tensor
    F1: Tensor | None
    L0: Tensor
    L1: Tensor | None
    e: Tensor
    a: Tensor | None
    t: Tensor
    p: Tensor
    z: Tensor
    y: Tensor | None


def _computed(
    part: Part, mask: Tensor | None, x: Tensor, f: Tensor | None, gain: Tensor | None, W: Tensor, w: Tensor,
    G: Tensor | None, F: Tensor, L: Tensor,
) -> _Values:  # fmt: skip
    of_sets, x = part[:1], _at(x, part)
    F0, *others_F, F2 = (_at(t, part).unsqueeze(3) for t in F.unbind(1))
    L0, *others_L, L2 = (_at(t, part[:2]).unsqueeze(2) for t in L.unbind(1))
    by = None if f is None else _at(f, of_sets) * gain
    e = x if by is None else x * by
    a = e * L0
    t = a * F0
    p = (F2 + _at(w, of_sets).view(-1, 1, 1, 1, 1, w.shape[-1])) + L2
    _rows(p).baddbmm_(_rows(t), _at(W, of_sets))
    z = silu(p)
    if mask is not None:
        z.mul_(_at(mask, part))
    y = None if G is None else torch.bmm(_rows(z), _at(G, of_sets)).view(x.shape)
    F1, L1 = (others_F[0], others_L[0]) if others_F else (None, None)
    return _Values(x, by, F0, F1, L0, L1, e, a, t, p, z, y)


def _length(x: Tensor) -> Tensor:
    """`length` of the edges of a network and set. In float32 it takes a third of the time if the largest is found first:
    then squares can be added up in float32."""
    if x.dtype != torch.float32 or x.nbytes <= KEPT:
        return length(x, _of_network(x))
    flat = x.flatten(1, 3)
    top = torch.maximum(flat.amax(1), -flat.amin(1)).amax(-1)
    top = torch.where(top > torch.finfo(x.dtype).tiny, top, 1.0).view(len(x), 1, 1, 1, -1, 1)
    return (x / top).square_().sum((1, 2, 3), keepdim=True).sum(-1, keepdim=True).double().sqrt() * top


def _rows(x: Tensor) -> Tensor:
    """``(S, ..., C)`` as ``(S, rows, C)``."""
    return x.view(x.shape[0], math.prod(x.shape[1:-1]), x.shape[-1])


def _at(x: Tensor, part: Part) -> Tensor:
    return x[part] if part else x


def _sum(x: Tensor, dim: int, into: Tensor, part: Part) -> None:
    """Sums of a block over the last ends (3) or the first ends (2), for the others."""
    torch.sum(x, 3, out=_at(into, part)) if dim == 3 else _sum_last(x, _at(into, part[:2]), part)


def _sum_last(x: Tensor, into: Tensor, part: Part) -> None:
    """Sums of a block over its first ends; of the first block they are written, of others added."""
    torch.sum(x, 2, out=into) if not part or part[2].start == 0 else into.add_(x.sum(2))


def _product(x: Tensor, y: Tensor, into: Tensor, new: bool) -> None:
    torch.bmm(x, y, out=into) if new else into.baddbmm_(x, y)


def _share(at: Grid, x: Tensor, end: int) -> Tensor | float:
    """What sums are multiplied by to be means."""
    share = 1 / math.prod(x.shape[dim] for dim in at.over[end])
    return share if at.shares is None else share * at.shares[end].to(x.dtype)


def _parts(x: Tensor) -> list[Part]:
    """Blocks of edges ``(S, p, n, m, B, C)``: of some sets, of a part of one, or of a part of that."""
    every = slice(0, 2**62)
    if x.nbytes <= KEPT:
        return [()]
    sets, shared, rows = x.shape[:3]
    row = x.element_size() * math.prod(x.shape[3:])
    if row * rows * shared <= BLOCK:
        return [(of, every, every) for of in _ranges(sets, BLOCK // (row * rows * shared))]
    if row * rows <= BLOCK:
        return [(of, some, every) for of in _ranges(sets, 1) for some in _ranges(shared, BLOCK // (row * rows))]
    ones = itertools.product(_ranges(sets, 1), _ranges(shared, 1))
    return [(*of, some) for of in ones for some in _ranges(rows, max(1, BLOCK // row))]


def _ranges(count: int, step: int) -> Iterator[slice]:
    return (slice(i, min(i + step, count)) for i in range(0, count, step))
