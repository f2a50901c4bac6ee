"""Rules of what reduces dimensions without regard to order: sums, moments, norms, extremes, softmax."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from nfn_monomial.trace.algebra.ledger import OpaqueError
from nfn_monomial.trace.algebra.moves import Run
from nfn_monomial.trace.algebra.values import UNIT, Value

from .pointwise import mask_of
from .table import operator

Dims = int | Sequence[int] | None
SOFTMAX = ("softmax", "log_softmax", "_softmax", "_log_softmax")


def _dims(dim: Dims) -> Sequence[int] | None:
    return (dim,) if isinstance(dim, int) else dim


@operator("sum", "mean", linear=True)
@operator("nansum")
def _sum(run: Run, x: Value, dim: Dims = None, keepdim: bool = False, **_: Any) -> Value:
    return run.reduce(x, _dims(dim), keepdim)


@operator("amax", "amin")
def _extreme(run: Run, x: Value, dim: Dims = None, keepdim: bool = False) -> Value:
    return run.reduce(x, _dims(dim), keepdim, kind="homogeneous", reason="largest entry")


def _with_position(run: Run, x: Value, dim: int, keepdim: bool) -> tuple[Value, Value]:
    """An entry picked by its size, and where it is: in other dimensions, that moves along."""
    out = run.reduce(x, (dim,), keepdim, kind="homogeneous", reason="an entry of some rank")
    return out, replace(mask_of(run, out), along=x.dims[dim])


def _ranked(run: Run, x: Value, dim: int) -> tuple[Value, Value]:
    at = x.at(dim)
    rest, places = _with_position(run, x, at, False)
    order = run.fresh(run.shape[at], "entries by their rank")
    return run.note(rest.put(at, at, order)), run.note(places.put(at, at, order))


@operator("topk")
def _topk(run: Run, x: Value, count: int, dim: int = -1, largest: bool = True, ordered: bool = True) -> Any:
    if not ordered:
        raise OpaqueError("the largest entries in no order")
    return _ranked(run, x, dim)


@operator("sort")
def _sort(run: Run, x: Value, dim: int = -1, descending: bool = False, **_: Any) -> tuple[Value, Value]:
    return _ranked(run, x, dim)


@operator("max", "min", "median", "nanmedian")
def _max(run: Run, x: Value, dim: Any = None, keepdim: bool = False) -> Any:
    if isinstance(dim, Value):
        return run.extreme(x, dim)
    return _extreme(run, x) if dim is None else _with_position(run, x, dim, keepdim)


@operator("kthvalue")
def _kth(run: Run, x: Value, rank: int, dim: int = -1, keepdim: bool = False) -> tuple[Value, Value]:
    return _with_position(run, x, dim, keepdim)


operator("mode")(lambda run, x, dim=-1, keepdim=False: _with_position(run, x, dim, keepdim))


@operator("argmax", "argmin")
def _argmax(run: Run, x: Value, dim: Dims = None, keepdim: bool = False) -> Value:
    if isinstance(dim, int):
        return _with_position(run, x, dim, keepdim)[1]
    return mask_of(run, _extreme(run, run.placed(x, range(len(x.dims)), "position of the largest entry")))


@operator("prod", "any")
def _any(run: Run, x: Value, dim: Dims = None, keepdim: bool = False, **_: Any) -> Value:
    return replace(run.reduce(x, _dims(dim), keepdim, kind="any", reason="no linear reduction"), zero=False)


@operator(*SOFTMAX)
def softmax(run: Run, x: Value, dim: int = -1, *_: Any, **__: Any) -> Value:
    """A distribution over a dimension; what is constant along it does not matter."""
    run.ignores_constants(x, (dim,))
    out = run.unary(x, "any", reason="softmax")
    run.reduce(out, (dim,))  # one sum for all along it: nothing else is nested in it
    return out


@operator("logcumsumexp", "cumprod")
def _cumulative(run: Run, x: Value, dim: int, **_: Any) -> Value:
    return run.positional(run.unary(x, "any"), (dim,), "cumulative")


@operator("var", "var_mean")
def _var(run: Run, x: Value, dim: Any = None, *_: Any, **__: Any) -> Any:
    dims = None if isinstance(dim, bool) else _dims(dim)
    keepdim = len(run.shape) == len(x.dims)
    centred = run.even(x, run.positions(x, dims), reason="a mean is subtracted")
    out = run.power(run.reduce(centred, dims, keepdim, kind="absolute"), 2)
    return out if len(run.shapes) == 1 else (out, run.reduce(x, dims, keepdim))


@operator("linalg_vector_norm", "linalg_norm")
def _norm(run: Run, x: Value, order: Any = 2, dim: Dims = None, keepdim: bool = False, *_: Any, **__: Any) -> Value:
    if order == 0:  # how many entries are not 0
        x = run.kept(x, scale=False)
    return run.reduce(x, _dims(dim), keepdim, kind="absolute", reason="a norm over it")


@operator("nuclear_norm")
def _nuclear_norm(run: Run, x: Value, dim: Any = None, keepdim: bool = False) -> Value:
    return _norm(run, x, None, None if isinstance(dim, bool) else dim, len(run.shape) == len(x.dims))


@operator("_cdist_forward")
def _distances(run: Run, a: Value, b: Value, order: float = 2, *_: Any) -> Value:
    return _norm(run, run.add(a.put(-1, len(a.dims) - 1, UNIT), b.put(-2, len(b.dims) - 2, UNIT)), order, (-1,))
