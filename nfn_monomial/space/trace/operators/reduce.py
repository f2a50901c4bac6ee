"""Rules of what reduces dimensions without regard to order: sums, moments, norms, extremes, softmax."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from nfn_monomial.space.trace.algebra.moves import Run
from nfn_monomial.space.trace.algebra.values import UNIT, Value

from .table import operator

Dims = int | Sequence[int] | None


def _dims(dim: Dims) -> Sequence[int] | None:
    return (dim,) if isinstance(dim, int) else dim


@operator("sum", "mean", "nansum")
def _sum(run: Run, x: Value, dim: Dims = None, keepdim: bool = False, **_: Any) -> Value:
    return run.reduce(x, _dims(dim), keepdim)


@operator("amax", "amin")
def _extreme(run: Run, x: Value, dim: Dims = None, keepdim: bool = False) -> Value:
    return run.reduce(x, _dims(dim), keepdim, kind="homogeneous", reason="largest entry")


@operator("max", "min")
def _max(run: Run, x: Value, dim: Any = None, keepdim: bool = False) -> Any:
    if isinstance(dim, Value):
        return run.extreme(x, dim)
    if dim is None:
        return _extreme(run, x)
    if 1 in run.used:
        run.fix(x.dims[dim], "position of the largest entry")
    return _extreme(run, x, dim, keepdim), run.inert(run.shapes[1])


@operator("argmax", "argmin")
def _argmax(run: Run, x: Value, dim: Dims = None, keepdim: bool = False) -> Value:
    for at in run.positions(x, _dims(dim)):
        run.fix(run.resolve(x.dims[at]), "position of the largest entry")
    return run.kept(_extreme(run, x, dim, keepdim), scale=False, sign=False)


@operator("logsumexp", "prod", "any", "all", "median", "nanmean")
def _any(run: Run, x: Value, dim: Dims = None, keepdim: bool = False, **_: Any) -> Value:
    return run.reduce(x, _dims(dim), keepdim, kind="any", reason="no linear reduction")


@operator("softmax", "log_softmax", "_softmax", "_log_softmax", "softmin", "special_log_softmax", "special_softmax")
def softmax(run: Run, x: Value, dim: int = -1, *_: Any, **__: Any) -> Value:
    """A distribution over a dimension; what is constant along it does not matter."""
    run.ignores_constants(x, (dim,), "softmax")
    return run.unary(x, "any", reason="softmax")


@operator("logcumsumexp", "cumprod")
def _cumulative(run: Run, x: Value, dim: int, **_: Any) -> Value:
    return run.positional(run.unary(x, "any"), (dim,), "cumulative")


def _moment(run: Run, x: Value, dim: Any, options: dict[str, Any], rest: Sequence[Any], exponent: int) -> Value:
    dims = None if isinstance(dim, bool) else _dims(dim)
    flags = [flag for flag in rest if isinstance(flag, bool)]
    keepdim = options.get("keepdim", flags[-1] if flags else False)
    centred = run.even(x, run.positions(x, dims), reason="a mean is subtracted")
    return run.power(run.reduce(centred, dims, keepdim, kind="absolute"), exponent)


@operator("var")
def _var(run: Run, x: Value, dim: Any = None, *rest: Any, **options: Any) -> Value:
    return _moment(run, x, dim, options, rest, 2)


@operator("std")
def _std(run: Run, x: Value, dim: Any = None, *rest: Any, **options: Any) -> Value:
    return _moment(run, x, dim, options, rest, 1)


@operator("var_mean")
def _var_mean(run: Run, x: Value, dim: Any = None, *rest: Any, **options: Any) -> tuple[Value, Value]:
    mean = run.reduce(x, None if isinstance(dim, bool) else _dims(dim), options.get("keepdim", False))
    return _moment(run, x, dim, options, rest, 2), mean


@operator("std_mean")
def _std_mean(run: Run, x: Value, dim: Any = None, *rest: Any, **options: Any) -> tuple[Value, Value]:
    mean = run.reduce(x, None if isinstance(dim, bool) else _dims(dim), options.get("keepdim", False))
    return _moment(run, x, dim, options, rest, 1), mean


@operator("linalg_vector_norm", "norm", "frobenius_norm", "linalg_norm", "norm_except_dim")
def _norm(run: Run, x: Value, order: Any = 2, dim: Dims = None, keepdim: bool = False, **_: Any) -> Value:
    return run.reduce(x, _dims(dim), keepdim, kind="absolute", reason="a norm over it")


@operator("cdist", "_cdist_forward", "_euclidean_dist")
def _distances(run: Run, a: Value, b: Value, *_: Any, **__: Any) -> Value:
    left = replace(a, dims=(*a.dims[:-1], UNIT, a.dims[-1]))
    right = replace(b, dims=(*b.dims[:-2], UNIT, *b.dims[-2:]))
    return run.reduce(run.add(left, right), (-1,), kind="absolute", reason="a distance along it")


@operator("_weight_norm", "_weight_norm_interface")
def _weight_norm(run: Run, v: Value, g: Value, dim: int = 0) -> Any:
    others = [n for n in range(len(v.dims)) if n != dim]
    size = run.reduce(v, others, True, kind="absolute", reason="a norm over it")
    out = run.multiply(run.multiply(v, g), size, exponent=-1)
    return out if len(run.shapes) < 2 else (out, size)


@operator("cosine_similarity")
def _cosine(run: Run, a: Value, b: Value, dim: int = 1, *_: Any, **__: Any) -> Value:
    a, b = run.aligned(a, b)
    sides = [run.kept(run.even(v, (dim,), sign=False, reason="a norm over it"), scale=True) for v in (a, b)]
    for side in sides:
        run.vanish(side, sign=False, reason="a norm with eps")
    return run.reduce(run.multiply(*[replace(run.kept(s, scale=False), data=None) for s in sides]), (dim,))
