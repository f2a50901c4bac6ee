"""Rules of what moves entries about: views, permutations, cuts and joins, paddings, look-ups by position."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from nfn_monomial.space.trace.algebra.moves import Run
from nfn_monomial.space.trace.algebra.values import UNIT, Bundle, Dimension, Value, extent, is_unit, value

from .table import operator

Found = Value | Bundle


def _rank(found: Found) -> int:
    return len(found.dims) if isinstance(found, Value) else len(found.parts[0].dims)


def _shape(found: Found) -> tuple[int, ...]:
    if isinstance(found, Value):
        return found.shape
    first = found.parts[0].shape
    return (*first[: found.dim], sum(part.shape[found.dim] for part in found.parts), *first[found.dim + 1 :])


def permuted(run: Run, found: Found, order: Sequence[int]) -> Found:
    """Dimensions in another order."""
    order = [dim % max(_rank(found), 1) for dim in order]
    at = order.index(found.dim) if isinstance(found, Bundle) else None
    return run.each(found, lambda v: replace(v, dims=tuple(v.dims[n] for n in order)), at)


@operator("permute", bundles=True)
def _permute(run: Run, x: Found, *order: Any) -> Found:
    return permuted(run, x, order[0] if isinstance(order[0], list | tuple) else order)


@operator("transpose", "swapaxes", "swapdims", bundles=True)
def _transpose(run: Run, x: Found, a: int, b: int) -> Found:
    order = list(range(_rank(x)))
    order[a], order[b] = order[b], order[a]
    return permuted(run, x, order)


@operator("t", "numpy_T", "mT", "adjoint", "matrix_H", bundles=True)
def _t(run: Run, x: Found) -> Found:
    rank = _rank(x)
    return permuted(run, x, [*range(rank - 2), rank - 1, rank - 2]) if rank > 1 else x


@operator("movedim", "moveaxis", bundles=True)
def _movedim(run: Run, x: Found, source: Any, target: Any) -> Found:
    rank = _rank(x)
    old = [n % rank for n in ([source] if isinstance(source, int) else source)]
    new = [n % rank for n in ([target] if isinstance(target, int) else target)]
    rest = iter(n for n in range(rank) if n not in old)
    return permuted(run, x, [old[new.index(n)] if n in new else next(rest) for n in range(rank)])


@operator("unsqueeze", bundles=True)
def _unsqueeze(run: Run, x: Found, dim: int) -> Found:
    dim %= _rank(x) + 1
    at = x.dim + (dim <= x.dim) if isinstance(x, Bundle) else None
    return run.each(x, lambda v: replace(v, dims=(*v.dims[:dim], UNIT, *v.dims[dim:])), at)


@operator("squeeze", bundles=True)
def _squeeze(run: Run, x: Found, dims: Any = None) -> Found:
    shape, rank = _shape(x), _rank(x)
    chosen = range(rank) if dims is None else [dims] if isinstance(dims, int) else dims
    gone = {n % rank for n in chosen if shape[n] == 1} if rank else set()
    at = x.dim - sum(n < x.dim for n in gone) if isinstance(x, Bundle) else None
    return run.each(x, lambda v: replace(v, dims=tuple(d for n, d in enumerate(v.dims) if n not in gone)), at)


@operator("view", "reshape", "_unsafe_view", "_reshape_alias", "view_as", "reshape_as", bundles=True)
def _view(run: Run, x: Found, *_: Any, **__: Any) -> Found:
    if not _ and not __:
        return x
    return reshaped(run, x, run.shape)


@operator("flatten", "unflatten", "view_copy", bundles=True)
def _flatten(run: Run, x: Found, *_: Any, **__: Any) -> Found:
    return reshaped(run, x, run.shape)


def reshaped(run: Run, x: Found, shape: Sequence[int]) -> Found:
    """The same entries in another shape; a bundle stays one where its dimension does."""
    if isinstance(x, Value):
        found = run.regrouped(x, shape)
        return run.each(found, lambda v: v)
    old, at = _shape(x), x.dim
    lead = math.prod(old[:at])
    places = [n for n in range(len(shape)) if shape[n] == old[at] and math.prod(shape[:n]) == lead]
    if not places:
        return reshaped(run, run.joined(x), shape)
    new = places[-1] if old[at] == 1 else places[0]
    parts = []
    for part in x.parts:
        size = part.shape[at]
        found = run.regrouped(part, (*shape[:new], size, *shape[new + 1 :]))
        if isinstance(found, Bundle):
            return reshaped(run, run.joined(x), shape)
        parts.append(run.note(found))
    return Bundle(tuple(parts), new)


@operator("expand", "expand_as", "broadcast_to", "expand_copy")
def _expand(run: Run, x: Value, *_: Any, **__: Any) -> Value:
    dims = [UNIT] * (len(run.shape) - len(x.dims)) + list(x.dims)
    new = [run.fresh(n) if is_unit(dim) else dim for dim, n in zip(dims, run.shape, strict=True)]
    return run.note(replace(x, dims=tuple(new), data=None, inert=False))


@operator("repeat", "tile")
def _repeat(run: Run, x: Value, counts: Sequence[int], *_: Any) -> Value:
    dims = [UNIT] * (len(run.shape) - len(x.dims)) + list(x.dims)
    counts = [1] * (len(dims) - len(counts)) + list(counts)
    new = [run.merged((run.fresh(n), dim)) for n, dim in zip(counts, dims, strict=True)]
    return run.note(value(new, x.const, raw=x.raw, zero=x.zero))


@operator("repeat_interleave")
def _repeat_interleave(run: Run, x: Value, count: int, dim: int | None = None, **_: Any) -> Value:
    if not isinstance(count, int) or dim is None:
        return run.opaque("repeated unevenly", x)
    at = x.at(dim)
    new = run.merged((x.dims[at], run.fresh(count)))
    return run.note(value((*x.dims[:at], new, *x.dims[at + 1 :]), x.const, raw=x.raw, zero=x.zero))


# Cuts and joins.


@operator("select", bundles=True)
def _select(run: Run, x: Found, dim: int, index: int) -> Found:
    dim, shape = dim % _rank(x), _shape(x)
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


def sliced(run: Run, x: Found, dim: int, start: int, stop: int) -> Found:
    """Entries ``start`` to ``stop`` along a dimension."""
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


@operator("slice", "narrow", bundles=True)
def _slice(run: Run, x: Found, dim: int = 0, start: int | None = None, stop: int | None = None, step: int = 1) -> Found:
    size = _shape(x)[dim]
    if step != 1:
        return run.positional(run.joined(x), (dim,), "slice with a step")
    first, last, _ = slice(start, stop).indices(size)
    if last - first != run.shape[dim]:  # narrow(dim, start, length)
        last = first + run.shape[dim]
    return sliced(run, x, dim, first, last)


@operator("split", "split_with_sizes", "chunk", "tensor_split", "unsafe_split", "unsafe_chunk", bundles=True)
def _split(run: Run, x: Found, _: Any, dim: int = 0) -> tuple[Found, ...]:
    ends = [0, *itertools.accumulate(shape[dim] for shape in run.shapes)]
    return tuple(sliced(run, x, dim, a, b) for a, b in itertools.pairwise(ends))


@operator("unbind", bundles=True)
def _unbind(run: Run, x: Found, dim: int = 0) -> tuple[Found, ...]:
    return tuple(_select(run, x, dim, n) for n in range(_shape(x)[dim]))


@operator("cat", "concat", "concatenate")
def _cat(run: Run, parts: Sequence[Value], dim: int = 0) -> Value:
    return run.concatenated(parts, dim)


@operator("stack")
def _stack(run: Run, parts: Sequence[Value], dim: int = 0) -> Value:
    dim %= len(parts[0].dims) + 1
    return run.concatenated([replace(p, dims=(*p.dims[:dim], UNIT, *p.dims[dim:]), data=None) for p in parts], dim)


@operator("hstack", "column_stack")
def _hstack(run: Run, parts: Sequence[Value]) -> Value:
    return run.concatenated(parts, 0 if len(parts[0].dims) == 1 else 1)


@operator("vstack")
def _vstack(run: Run, parts: Sequence[Value]) -> Value:
    return run.concatenated([replace(p, dims=(UNIT, *p.dims)) if len(p.dims) == 1 else p for p in parts], 0)


@operator("select_scatter")
def _select_scatter(run: Run, x: Value, part: Value, dim: int, index: int) -> Value:
    dim = x.at(dim)
    return _written(run, x, replace(part, dims=(*part.dims[:dim], UNIT, *part.dims[dim:]), data=None), dim)


@operator("slice_scatter")
def _slice_scatter(run: Run, x: Value, part: Value, dim: int = 0, *_: Any) -> Value:
    dim = x.at(dim)
    if part.shape == x.shape:
        return part
    part = run.even(run.placed(part, (dim,), "written by position"), (dim,), reason="written by position")
    return _written(run, x, replace(part, dims=(*part.dims[:dim], UNIT, *part.dims[dim + 1 :]), data=None), dim)


def _written(run: Run, x: Value, part: Value, dim: int) -> Value:
    x = run.even(run.placed(x, (dim,), "written by position"), (dim,), reason="written by position")
    return run.add(x, part)


@operator("copy", "fill")
def _copy(run: Run, x: Value, source: Any, *_: Any) -> Value:
    source = source if isinstance(source, Value) else run.inert(())
    dims = [UNIT] * (len(x.dims) - len(source.dims)) + list(source.dims)
    new = [run.fresh(n) if is_unit(dim) else dim for dim, n in zip(dims, x.shape, strict=True)]
    return run.note(replace(source, dims=tuple(new), data=None, inert=False))


# By position.


@operator("pad", "constant_pad_nd")
def _pad(run: Run, x: Value, pads: Sequence[int], *options: Any, **named: Any) -> Value:
    mode = next((o for o in (*options, named.get("mode")) if isinstance(o, str)), "constant")
    number = next((o for o in (*options, named.get("value")) if isinstance(o, int | float)), 0)
    x = run.resolved(x)
    ends = {len(x.dims) - 1 - n: tuple(pads[2 * n : 2 * n + 2]) for n in range(len(pads) // 2)}
    padded = [n for n, (a, b) in ends.items() if a or b]
    if mode == "constant" and number:
        run.vanish(x, reason=f"padded with {number}")
    if mode == "constant":
        moving = [n for n in padded if not run.fixed(x.dims[n]) and min(ends[n]) >= 0]
        x = run.positional(x, [n for n in padded if n not in moving], "padding") if len(moving) < len(padded) else x
        for n in moving:
            a, b = (run.freed(run.fresh(size)) if size else () for size in ends[n])
            x = run.note(replace(x, dims=(*x.dims[:n], (*a, *x.dims[n], *b), *x.dims[n + 1 :])))
        return x
    return run.positional(x, padded, f"{mode} padding") if padded else x


def _along(names: str, reason: str, dims_of: Callable[..., Any]) -> None:
    """Rules of what mixes entries by position along dimensions that its arguments name."""

    def rule(run: Run, x: Value, *arguments: Any, **options: Any) -> Value:
        dims = dims_of(x, *arguments, **options)
        return run.positional(x, [dims] if isinstance(dims, int) else dims, reason)

    operator(*names.split())(rule)


_along("flip", "flip", lambda x, dims: dims)
_along("roll", "roll", lambda x, shifts, dims=(): dims or range(len(x.dims)))
_along("cumsum cumprod_linear", "cumulative sum", lambda x, dim, **_: dim)
_along("index_select", "index", lambda x, dim, index: dim)
_along("tril triu", "a triangle", lambda x, *_: (-2, -1))
_along("rot90", "rotation", lambda x, k, dims: dims)
_along(
    "reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d replication_pad3d "
    "upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_linear1d upsample_bilinear2d "
    "upsample_trilinear3d upsample_bicubic2d _upsample_nearest_exact1d _upsample_nearest_exact2d "
    "_upsample_nearest_exact3d _upsample_bilinear2d_aa _upsample_bicubic2d_aa avg_pool1d avg_pool2d avg_pool3d "
    "adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d _adaptive_avg_pool2d _adaptive_avg_pool3d",
    "position",
    lambda x, *arguments, **_: _spatial(x, arguments),
)


def _spatial(x: Value, arguments: Sequence[Any]) -> range:
    return range(min(2, len(x.dims) - 1) if len(x.dims) != 3 else _channels_of_three(arguments), len(x.dims))


def _channels_of_three(arguments: Sequence[Any]) -> int:
    """Of a value with three dimensions, the first spatial one: 1 in an image without batch, 2 in a sequence."""
    first = arguments[0] if arguments else ()
    return 1 if isinstance(first, list | tuple) and len(first) >= 2 and len(first) != 4 else 2


@operator(
    "max_pool1d", "max_pool2d", "max_pool3d", "adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d",
    "max_pool2d_with_indices", "max_pool1d_with_indices", "max_pool3d_with_indices",
)  # fmt: skip
def _max_pool(run: Run, x: Value, *arguments: Any, **_: Any) -> Any:
    out = run.unary(run.positional(x, _spatial(x, arguments), "position"), "homogeneous", reason="max-pool")
    return out if len(run.shapes) == 1 else (out, run.inert(run.shapes[1]))


@operator("pixel_shuffle")
def _pixel_shuffle(run: Run, x: Value, r: int) -> Value:
    *lead, channels, _, _ = x.shape
    at = len(lead)
    flat = run.reduce(run.placed(x, (-2, -1), "position"), (-2, -1), reason="position")
    parts = run.joined(run.regrouped(flat, (*lead, channels // (r * r), r, r)))
    out = run.reduce(run.placed(parts, (-2, -1), "position"), (-2, -1), reason="position")
    places = [run.fresh(n, "position") for n in run.shape[at + 1 :]]
    return run.note(replace(out, dims=(*out.dims, *places)))


@operator("pixel_unshuffle")
def _pixel_unshuffle(run: Run, x: Value, r: int) -> Value:
    flat = run.reduce(run.placed(x, (-2, -1), "position"), (-2, -1), reason="position")
    channels = run.merged((flat.dims[-1], run.fresh(r, "position"), run.fresh(r, "position")))
    places = [run.fresh(n, "position") for n in run.shape[-2:]]
    return run.note(replace(flat, dims=(*flat.dims[:-1], channels, *places)))


@operator("channel_shuffle")
def _channel_shuffle(run: Run, x: Value, groups: int) -> Value:
    batch, channels, *places = x.shape
    parts = run.joined(run.regrouped(x, (batch, groups, channels // groups, *places)))
    turned = replace(parts, dims=(parts.dims[0], parts.dims[2], parts.dims[1], *parts.dims[3:]))
    return run.joined(run.regrouped(turned, x.shape))


@operator("unfold", "im2col", "as_strided", "take", "diagonal", "diag", "index_put", "scatter", "scatter_add")
def _opaque(run: Run, *arguments: Any, **_: Any) -> Value:
    return run.opaque("told apart by position", *[a for a in arguments if isinstance(a, Value)])


@operator("index")
def _index(run: Run, x: Value, indices: Sequence[Value | None]) -> Value:
    chosen = [n for n, index in enumerate(indices) if index is not None]
    if not chosen:
        return x
    for index in indices:
        if index is not None:
            run.placeholder(index, "an index")
    rows = run.reduce(run.placed(x, chosen, "looked up"), chosen, reason="looked up")
    new = len(run.shape) - len(rows.dims)
    adjacent = chosen == list(range(chosen[0], chosen[-1] + 1))
    at = chosen[0] if adjacent else 0
    places = [run.fresh(n, "looked up") for n in run.shape[at : at + new]]
    return run.note(replace(rows, dims=(*rows.dims[:at], *places, *rows.dims[at:])))


@operator("gather")
def _gather(run: Run, x: Value, dim: int, index: Value, **_: Any) -> Value:
    at = x.at(dim)
    rows = run.even(run.placed(x, (at,), "looked up"), (at,), reason="looked up")
    dims: list[Dimension] = []
    for n, (own, other) in enumerate(zip(rows.dims, index.dims, strict=True)):
        if n == at:
            dims.append(run.fresh(extent(other), "looked up"))
        elif is_unit(own) or extent(own) != extent(other):
            run.fix(own, "looked up")
            dims.append(run.fresh(extent(other), "looked up"))
        else:
            dims.append(run.align(own, other)[0])
    run.placeholder(index, "an index")
    return run.note(value(dims, rows.const, raw=rows.raw, zero=rows.zero), rows)
