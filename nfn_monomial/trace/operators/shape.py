"""Rules of operators that move entries: views, permutations, cuts and joins, paddings, look-ups by position."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from nfn_monomial.trace.algebra.run import OpaqueError, Run
from nfn_monomial.trace.algebra.values import UNIT, Bundle, Value, is_unit

from .table import enter, operator

Tensor = Value | Bundle


def _rank(x: Tensor) -> int:
    return len(x.shape)


def _arranged(run: Run, x: Tensor, order: Sequence[int | None]) -> Tensor:
    """Returns dimensions in another order, None for a new one of size 1; those left out have that size."""
    at = order.index(x.dim) if isinstance(x, Bundle) else None
    return run.each(x, lambda v: replace(v, dims=tuple(UNIT if n is None else v.dims[n] for n in order)), at)


@operator("permute", bundles=True, linear=True, positions="kept")
def _permute(run: Run, x: Tensor, order: Sequence[int]) -> Tensor:
    return _arranged(run, x, [dim % _rank(x) for dim in order])


@operator("transpose", bundles=True, linear=True, positions="kept")
def _transpose(run: Run, x: Tensor, a: int, b: int) -> Tensor:
    order = list(range(_rank(x)))
    order[a], order[b] = order[b], order[a]
    return _arranged(run, x, order)


@operator("unsqueeze", bundles=True, linear=True, positions="kept")
def _unsqueeze(run: Run, x: Tensor, dim: int) -> Tensor:
    order: list[int | None] = [*range(_rank(x))]
    order.insert(dim % (_rank(x) + 1), None)
    return _arranged(run, x, order)


@operator("squeeze", bundles=True, linear=True, positions="kept")
def _squeeze(run: Run, x: Tensor, dims: Any = None) -> Tensor:
    rank = _rank(x)
    chosen = range(rank) if dims is None else [dims] if isinstance(dims, int) else dims
    gone = {n % rank for n in chosen if x.shape[n] == 1} if rank else set()
    return _arranged(run, x, [n for n in range(rank) if n not in gone])


@operator("view", "reshape", "flatten", "unflatten", "view_copy", bundles=True, linear=True, positions="kept")
def _view(run: Run, x: Tensor, *arguments: Any, **_: Any) -> Tensor:
    if any(isinstance(a, torch.dtype) for a in arguments):
        raise OpaqueError("its bits are read as another type")
    return reshaped(run, x, run.shape)


def reshaped(run: Run, x: Tensor, shape: Sequence[int]) -> Tensor:
    """Returns the same entries in another shape; a bundle stays one where its dimension does."""
    if isinstance(x, Value):
        return run.each(run.regrouped(x, shape), lambda v: v)
    old, at = x.shape, x.dim
    lead = math.prod(old[:at])
    places = [n for n in range(len(shape)) if shape[n] == old[at] and math.prod(shape[:n]) == lead]
    if not places:
        return reshaped(run, run.joined(x), shape)
    new = places[-1] if old[at] == 1 else places[0]
    parts = []
    for part in x.parts:
        size = part.shape[at]
        viewed = run.regrouped(part, (*shape[:new], size, *shape[new + 1 :]))
        if isinstance(viewed, Bundle):
            return reshaped(run, run.joined(x), shape)
        parts.append(run.note(viewed))
    return Bundle(tuple(parts), new)


@operator("expand", linear=True, positions="kept", constants="repeated")
def _expand(run: Run, x: Value, *_: Any, **__: Any) -> Value:
    dims = [UNIT] * (len(run.shape) - len(x.dims)) + list(x.dims)
    new = [run.sets.fresh(n) if is_unit(dim) else dim for dim, n in zip(dims, run.shape, strict=True)]
    return run.note(replace(x, dims=tuple(new), data=None, inert=False))


@operator("repeat", linear=True, positions="kept", constants="repeated")
def _repeat(run: Run, x: Value, counts: Sequence[int], *_: Any) -> Value:
    dims = [UNIT] * (len(run.shape) - len(x.dims)) + list(x.dims)
    counts = [1] * (len(dims) - len(counts)) + list(counts)
    new = [run.sets.merged((run.sets.fresh(n), dim)) for n, dim in zip(counts, dims, strict=True)]
    return run.note(x.over(new))


@operator("repeat_interleave", linear=True, constants="repeated")
def _repeat_interleave(run: Run, x: Value, count: int, dim: int | None = None, **_: Any) -> Value:
    if dim is None:
        raise OpaqueError("repeated in one row")
    at = x.at(dim)
    if isinstance(count, Value):
        run.pin(count, "a count")
        return run.positional(x, (at,), "repeated unevenly")
    new = run.sets.merged((x.dims[at], run.sets.fresh(count)))
    return run.note(x.over(x.put(at, at + 1, new).dims))


# Cuts and joins.


@operator("select", bundles=True, linear=True, positions="kept")
def _select(run: Run, x: Tensor, dim: int, index: Any) -> Tensor:
    if isinstance(index, Value):  # a number that the program has read from a tensor
        x = run.joined(x)
        return run.without(x, (dim,), "looked up")
    dim, shape = dim % _rank(x), x.shape
    if isinstance(x, Value):
        return run.selected(x, dim, index)
    if dim != x.dim:
        return run.each(x, lambda v: run.selected(v, dim, index), x.dim - (dim < x.dim))
    index %= shape[dim]
    for part in x.parts:
        if index < part.shape[dim]:
            return run.selected(part, dim, index)
        index -= part.shape[dim]
    raise AssertionError("an index lies in some part")


def sliced(run: Run, x: Tensor, dim: int, start: int, stop: int) -> Tensor:
    """Returns entries ``start`` to ``stop`` along a dimension."""
    dim %= _rank(x)
    if isinstance(x, Value):
        return run.narrowed(x, dim, start, stop)
    if dim != x.dim:
        return run.each(x, lambda v: run.narrowed(v, dim, start, stop))
    ends = [0, *itertools.accumulate(part.shape[dim] for part in x.parts)]
    parts = [
        run.narrowed(part, dim, max(start - a, 0), min(stop, b) - a)
        for part, a, b in zip(x.parts, ends, ends[1:], strict=False)
        if start < b and stop > a
    ]
    return parts[0] if len(parts) == 1 else Bundle(tuple(parts), dim)


@operator("slice", bundles=True, linear=True, positions="kept")
def _slice(
    run: Run, x: Tensor, dim: int = 0, start: int | None = None, stop: int | None = None, step: int = 1
) -> Tensor:
    size = x.shape[dim]
    if step != 1:
        return run.positional(run.joined(x), (dim,), "slice with a step")
    return sliced(run, x, dim, *slice(start, stop).indices(size)[:2])


@operator("split", "split_with_sizes", bundles=True, linear=True)
def _split(run: Run, x: Tensor, _: Any, dim: int = 0) -> tuple[Tensor, ...]:
    ends = [0, *itertools.accumulate(shape[dim] for shape in run.shapes)]
    return tuple(sliced(run, x, dim, a, b) for a, b in itertools.pairwise(ends))


enter("cat", lambda run, parts, dim=0: run.concatenated(parts, dim), constants="joined")


@operator("copy")
def _copy(run: Run, x: Value, source: Any, *_: Any) -> Value:
    source = source if isinstance(source, Value) else run.inert(())
    dims = [UNIT] * (len(x.dims) - len(source.dims)) + list(source.dims)
    new = [run.sets.fresh(n) if is_unit(dim) else dim for dim, n in zip(dims, x.shape, strict=True)]
    return run.note(replace(source, dims=tuple(new), data=None, inert=False))


# By position.


@operator("constant_pad_nd", linear=True)  # with zeros
def _pad(run: Run, x: Value, pads: Sequence[int], number: float = 0) -> Value:
    x = run.sets.resolved(x)
    ends = {len(x.dims) - 1 - n: tuple(pads[2 * n : 2 * n + 2]) for n in range(len(pads) // 2)}
    padded = [n for n, (a, b) in ends.items() if a or b]
    if number:
        run.vanish(x, reason=f"padded with {number}")
    moving = [n for n in padded if not run.sets.fixed(x.dims[n]) and min(ends[n]) >= 0]
    x = run.positional(x, [n for n in padded if n not in moving], "padding") if len(moving) < len(padded) else x
    for n in moving:
        ahead, behind = (
            (run.sets.fresh(size) if number else run.freed(run.sets.fresh(size))) if size else () for size in ends[n]
        )
        x = run.note(x.put(n, n + 1, (*ahead, *x.dims[n], *behind)))
    return x


def _along(names: str, reason: str, dims_of: Callable[..., Any], **facts: Any) -> None:
    """Enters what mixes entries linearly, by position, along dimensions that its arguments name."""

    def rule(run: Run, x: Value, *arguments: Any, **options: Any) -> Value:
        dims = dims_of(x, *arguments, **options)
        return run.positional(x, [dims] if isinstance(dims, int) else dims, reason)

    enter(names, rule, linear=True, **facts)


_along("flip", "flip", lambda x, dims: dims)
_along("roll", "roll", lambda x, shifts, dims=(): dims or range(len(x.dims)))
_along("cumsum", "cumulative sum", lambda x, dim, **_: dim, constants="counted")


def _last(count: int) -> Callable[..., range]:
    """Returns a function that names the last dimensions, those of places."""
    return lambda x, *_, **__: range(-count, 0)


def _enter_places(count: int) -> None:
    names = "reflection_pad replication_pad upsample_nearest _upsample_nearest_exact avg_pool adaptive_avg_pool"
    _along(" ".join(f"{name}{count}d" for name in names.split()), "position", _last(count))

    def largest(run: Run, x: Value, *_: Any, **__: Any) -> Any:
        out = run.unary(run.positional(x, range(-count, 0), "position"), "homogeneous", reason="max-pool")
        return out if len(run.shapes) == 1 else (out, replace(run.kept(out, scale=False), zero=False))

    operator(f"max_pool{count}d", f"max_pool{count}d_with_indices", f"adaptive_max_pool{count}d")(largest)

    def back(run: Run, x: Value, places: Value, *_: Any) -> Value:
        dims = range(-count, 0)
        run.vanish(places, reason="an index")
        met = run.multiply(run.placed(x, dims, "position"), replace(run.placed(places, dims, "an index"), zero=False))
        return run.positional(replace(met, zero=x.zero), dims, "position")

    if count > 1:
        operator(f"max_unpool{count}d")(back)


for _count in (1, 2, 3):
    _enter_places(_count)
_along("upsample_linear1d", "position", _last(1))
_along("upsample_bilinear2d upsample_bicubic2d _upsample_bilinear2d_aa _upsample_bicubic2d_aa", "position", _last(2))
_along("_adaptive_avg_pool2d", "position", _last(2))
_along("upsample_trilinear3d _adaptive_avg_pool3d", "position", _last(3))


@operator("grid_sampler_2d", "grid_sampler_3d", linear=True)
def _sampled(run: Run, x: Value, grid: Value, *_: Any) -> Value:
    run.pin(grid, "places to look at")
    return run.positional(x, range(2, len(x.dims)), "position")


@operator("unfold", linear=True)
def _unfold(run: Run, x: Value, dim: int, size: int, step: int) -> Value:
    at = x.at(dim)
    rows = run.without(x, (at,), "windows")
    windows, inside = (run.sets.fresh(run.shape[n], "windows") for n in (at, -1))
    return run.note(replace(rows, dims=(*rows.dims[:at], windows, *rows.dims[at:], inside)))
