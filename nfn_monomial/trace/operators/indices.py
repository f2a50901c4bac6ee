"""Rules of look-ups by an index, and writes by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from nfn_monomial.trace.algebra.run import OpaqueError, Run
from nfn_monomial.trace.algebra.values import UNIT, Bundle, Dimension, Value, extent
from nfn_monomial.trace.algebra.values import indices as indices_of

from .shape import sliced
from .table import operator

_LARGEST = 2  # torch's number of the mode that takes the largest entry of each column in a bag


def _counts(run: Run, index: Value, dim: Dimension) -> bool:
    """Ties a dimension to the one that positions count along, if they may; else nothing may act on these."""
    if index.along is None or extent(index.along) != extent(dim):
        run.pin(index, "an index")
        return False
    run.sets.align(dim, index.along)
    return True


def _picked(run: Run, x: Value, dim: int, index: Value) -> Value:
    """Returns entries at positions that count along them."""
    rows = run.settle(run.reduce(x, (dim,), reason="looked up"), +1)
    return run.note(rows.put(dim, dim, *run.sets.resolved(index).dims))


@operator("index", bundles=True, linear=True, family="look-up", positions="followed")
def _index(run: Run, x: Value | Bundle, indices: Sequence[Any]) -> Value | Bundle:
    indices = [index if index is None else run.joined(index) for index in indices]
    (at, index), *more = [(at, index) for at, index in enumerate(indices) if index is not None]
    if not more and index.data is not None and index.shape == (1,) and index.data.dtype != torch.bool:
        first = int(index.data) % x.shape[at]  # as x[:, [-1]]
        return sliced(run, x, at, first, first + 1)
    x = run.joined(x)
    if not more and _counts(run, index, x.dims[at]):
        return _picked(run, x, at, index)
    for index in indices:
        if index is not None:
            run.pin(index, "an index")
    chosen = _indexed(len(x.dims), indices, len(run.shape))
    rows = run.without(x, chosen, "looked up")
    new = len(run.shape) - len(rows.dims)
    adjacent = chosen == list(range(chosen[0], chosen[0] + len(chosen))) if chosen else True
    at = chosen[0] if chosen and adjacent else 0
    places = [run.sets.fresh(n, "looked up") for n in run.shape[at : at + new]]
    return run.note(rows.put(at, at, *places))


def _indexed(rank: int, indices: Sequence[Value | None], result: int) -> list[int]:
    """Returns the dimensions that are indexed: a mask, alone, indexes as many as it has, and makes one of them."""
    chosen = [n for n, index in enumerate(indices) if index is not None]
    masked = len(indices[chosen[0]].dims) if chosen else 0  # type: ignore[union-attr]
    new = max((len(index.dims) for index in indices if index is not None), default=0)
    if rank - len(chosen) + new != result and len(chosen) == 1 and rank - masked + 1 == result:
        return list(range(chosen[0], chosen[0] + masked))
    return chosen


@operator("index_select", linear=True, family="look-up", positions="followed")
def _index_select(run: Run, x: Value, dim: int, index: Value) -> Value:
    if _counts(run, index, x.dims[x.at(dim)]):
        return _picked(run, x, x.at(dim), index)
    return run.positional(x, (dim,), "index")


def _counting(run: Run, index: Value, x: Value, dim: int) -> Value:
    """Returns an index without what it counts along, if that is no such dimension: this stays as it is then."""
    if index.along is not None and extent(index.along) != x.shape[dim]:
        run.sets.fix(index.along, "an index")
        index = replace(index, along=None)
    return run.sets.resolved(index)


def _apart_by(run: Run, x: Value, index: Value, dim: int) -> Value:
    """Lets a value and an index of as many dimensions move together in all but one, and those read in part."""
    run.vanish(index, reason="an index")
    x, index = run.sets.resolved(x), _counting(run, index, x, dim)
    parts = [n for n, size in enumerate(index.shape) if n == dim or size != x.shape[n]]  # those it reads in part, too
    if index.along is not None:
        run.sets.align(x.dims[dim], index.along)
    apart = parts if index.along is None else [n for n in parts if n != dim]
    x = run.even(run.placed(x, apart, "looked up"), parts, reason="looked up")
    run.placed(index, [n for n in parts if n != dim], "looked up")
    whole = (replace(v, dims=tuple(UNIT if n in parts else d for n, d in enumerate(v.dims))) for v in (x, index))
    rest, other = run.aligned(*whole)
    run.note(rest, other)
    return replace(x, dims=tuple(x.dims[n] if n in parts else d for n, d in enumerate(rest.dims)), data=None)


@operator("gather", linear=True, positions="followed")
def _gather(run: Run, x: Value, dim: int, index: Value, **_: Any) -> Value:
    at, apart = x.at(dim), _apart_by(run, x, index, x.at(dim))
    dims = [
        entries if n != at and extent(entries) == extent(places) else places
        for n, (entries, places) in enumerate(zip(apart.dims, run.sets.resolved(index).dims, strict=True))
    ]
    return run.note(apart.over(dims))


@operator("one_hot", positions="followed")
def _one_hot(run: Run, index: Value, count: int = -1) -> Value:
    codes = run.sets.fresh(run.shape[-1])
    if not _counts(run, index, codes):
        return run.inert(run.shape, "one-hot codes")
    return run.note(index.over((*index.dims, run.sets.resolve(codes))))


@operator("embedding", linear=True, family="look-up", positions="followed")
def _embedding(run: Run, weight: Value, places: Value, *_: Any) -> Value:
    if _counts(run, places, weight.dims[0]):
        return _picked(run, weight, 0, places)
    run.sets.fix(run.sets.resolve(weight.dims[0]), "looked up")
    for index in indices_of(run.sets.resolve(weight.dims[0])):
        for source in index.sources:
            run.flows.setdefault(source, -1)
    rows = run.settle(run.reduce(weight, (0,), reason="looked up"), +1)
    return run.note(rows.put(0, 0, *(run.sets.fresh(n, "position") for n in places.shape)))


@operator("embedding_bag")
def _embedding_bag(
    run: Run,
    weight: Value,
    indices: Value,
    offsets: Value,
    by_frequency: bool = False,
    mode: int = 0,
    sparse: bool = False,
    factors: Value | None = None,
    *_: Any,
) -> Value:
    for places in (indices, offsets):
        run.pin(places, "an index")
    rows = _embedding(run, weight, run.inert(run.shape[:1]))
    if factors is not None:
        rows = run.multiply(rows, run.reduce(run.placed(factors, (0,), "looked up"), None))
    if mode == _LARGEST:
        rows = run.unary(rows, "homogeneous", reason="largest entry")
    return rows


# Written by index: forms are those of what is written to and of what is written, as in a sum.


def _into(
    run: Run, x: Value, source: Value | float, dims: Sequence[int], reduction: str | None, *, still: bool = True
) -> Value:
    """Writes along dimensions, to positions that stay, or move with what they count along."""
    x = run.placed(x, dims if still else (), "written by position")
    x = run.even(x, dims, reason="written by position")
    if isinstance(source, Value) and len(source.dims) == len(x.dims):
        source = run.even(run.placed(source, dims, "written by position"), dims, reason="written by position")
        kept = tuple(UNIT if n in dims else dim for n, dim in enumerate(source.dims))
        source = replace(source, dims=kept, data=None)
    out = run.add(x, source)
    if reduction in ("amax", "amin"):
        return run.unary(out, "homogeneous", reason="largest entry")
    return run.unary(out, "any", reason="a product") if reduction in ("prod", "multiply") else out


@operator("index_add", "index_copy", "index_fill", "index_reduce", positions="followed")
def _index_add(
    run: Run, x: Value, dim: int, index: Value, source: Any, reduction: str | None = None, **_: Any
) -> Value:
    still = not _counts(run, index, x.dims[x.at(dim)])
    return _into(run, x, source, (x.at(dim),), reduction, still=still)


@operator("scatter", "scatter_add", "scatter_reduce", positions="followed")
def _scatter(
    run: Run, x: Value, dim: int, index: Value, source: Any, reduction: str | None = None, **options: Any
) -> Value:
    at = x.at(dim)
    run.sets.fix(run.sets.resolve(index.dims[at]), "an index")
    index = _counting(run, index, x, at)
    x = _apart_by(run, x, index, at)
    if isinstance(source, Value):  # its entries lie beside those of the index
        source = _apart_by(run, source, replace(index, along=None), at)
    return _into(run, x, source, (at,), options.get("reduce", reduction), still=index.along is None)


@operator("index_put", positions="followed")
def _index_put(run: Run, x: Value, indices: Sequence[Value | None], source: Value, accumulate: bool = False) -> Value:
    chosen = [n for n, index in enumerate(indices) if index is not None]
    moving = len(chosen) == 1 and _counts(run, indices[chosen[0]], x.dims[chosen[0]])  # type: ignore[arg-type]
    for n in () if moving else chosen:
        run.pin(indices[n], "an index")  # type: ignore[arg-type]
    new = max(len(index.dims) for index in indices if index is not None)
    if len(chosen) == 1 and new > 1:  # a mask, perhaps
        if chosen[0]:
            raise OpaqueError("written by a mask")
        chosen = list(range(min(new, len(x.dims))))
    rank, adjacent = len(x.dims), chosen == list(range(chosen[0], chosen[0] + len(chosen)))
    tail = rank - 1 - chosen[-1] if adjacent else rank - len(chosen)
    lead = max(len(source.dims) - tail - new, 0) if adjacent and chosen[0] else 0
    written = range(lead, max(len(source.dims) - tail, 0))
    source = run.without(source, written, "written by position")
    rest = [UNIT] * (rank - len(chosen) - len(source.dims)) + list(source.dims)
    for n in chosen:
        rest.insert(n, UNIT)
    return _into(run, x, replace(source, dims=tuple(rest), data=None), chosen, None, still=not moving)


@operator("slice_scatter")
def _slice_scatter(
    run: Run, x: Value, part: Value, dim: int = 0, start: int | None = None, stop: int | None = None, step: int = 1
) -> Value:
    at = x.at(dim)
    size = x.shape[at]
    if step != 1:
        return _into(run, x, part, (at,), None)
    first, last, _ = slice(start, stop).indices(size)
    ahead = [run.narrowed(x, at, 0, first)] if first else []
    behind = [run.narrowed(x, at, last, size)] if last < size else []
    return run.concatenated([*ahead, part, *behind], at)
