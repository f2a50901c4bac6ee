"""Rules of reductions without regard to order: sums, moments, norms, extremes, softmax."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from nfn_monomial.trace.algebra.run import OpaqueError, Run
from nfn_monomial.trace.algebra.values import UNIT, Value

from .pointwise import mask_of
from .table import enter, operator

Dims = int | Sequence[int] | None
Kind = Literal["linear", "homogeneous", "absolute", "any"]


def _reduced(
    run: Run, x: Value, dim: Dims, keepdim: bool = False, *, kind: Kind = "linear", reason: str = "sum over it"
) -> Value:
    return run.reduce(x, (dim,) if isinstance(dim, int) else dim, keepdim, kind=kind, reason=reason)


def _reduction(names: str, kind: Kind = "linear", reason: str = "sum over it", **facts: Any) -> None:
    """Enters reductions ``(x, dim, keepdim)``."""

    def rule(run: Run, x: Value, dim: Dims = None, keepdim: bool = False, **_: Any) -> Value:
        out = _reduced(run, x, dim, keepdim, kind=kind, reason=reason)
        return replace(out, zero=False) if kind == "any" else out

    enter(names, rule, **facts)


_reduction("sum mean", linear=True)
_reduction("nansum")
_reduction("amax amin", "homogeneous", "largest entry")
_reduction("prod any", "any", "no linear reduction")


def _with_position(run: Run, x: Value, dim: int, keepdim: bool) -> tuple[Value, Value]:
    """Returns entries picked by their size, and their positions, which move with what they count along."""
    out = run.reduce(x, (dim,), keepdim, kind="homogeneous", reason="an entry of some rank")
    return out, replace(mask_of(run, out), along=x.dims[dim])


def _ranked(run: Run, x: Value, dim: int) -> tuple[Value, Value]:
    at = x.at(dim)
    rest, places = _with_position(run, x, at, False)
    order = run.sets.fresh(run.shape[at], "entries by their rank")
    return run.note(rest.put(at, at, order)), run.note(places.put(at, at, order))


@operator("topk")
def _topk(run: Run, x: Value, count: int, dim: int = -1, largest: bool = True, ordered: bool = True) -> Any:
    if not ordered:
        raise OpaqueError("the largest entries in no order")
    return _ranked(run, x, dim)


@operator("max", "min", "median", "nanmedian")
def _max(run: Run, x: Value, dim: Any = None, keepdim: bool = False) -> Any:
    if isinstance(dim, Value):
        return run.extreme(x, dim)
    if dim is None:
        return _reduced(run, x, None, kind="homogeneous", reason="largest entry")
    return _with_position(run, x, dim, keepdim)


enter("sort", lambda run, x, dim=-1, descending=False, **_: _ranked(run, x, dim))
enter("kthvalue", lambda run, x, rank, dim=-1, keepdim=False: _with_position(run, x, dim, keepdim))
enter("mode", lambda run, x, dim=-1, keepdim=False: _with_position(run, x, dim, keepdim))


@operator("argmax", "argmin")
def _argmax(run: Run, x: Value, dim: Dims = None, keepdim: bool = False) -> Value:
    if isinstance(dim, int):
        return _with_position(run, x, dim, keepdim)[1]
    placed = run.placed(x, range(len(x.dims)), "position of the largest entry")
    return mask_of(run, _reduced(run, placed, None, kind="homogeneous", reason="largest entry"))


@operator("softmax", "log_softmax", "_softmax", "_log_softmax", family="softmax")
def softmax(run: Run, x: Value, dim: int = -1, *_: Any, **__: Any) -> Value:
    """Returns distributions over a dimension; what is constant along it does not matter."""
    run.ignores_constants(x, (dim,))
    out = run.unary(x, "any", reason="softmax")
    run.reduce(out, (dim,))  # one sum for all along it: nothing else is nested in it
    return out


enter(
    "logcumsumexp cumprod",
    lambda run, x, dim, **_: run.positional(run.unary(x, "any"), (dim,), "cumulative"),
    constants="counted",
)


@operator("var", "var_mean")
def _var(run: Run, x: Value, dim: Any = None, *_: Any, **__: Any) -> Any:
    dims = None if isinstance(dim, bool) else dim
    keepdim = len(run.shape) == len(x.dims)
    centred = run.even(x, run.positions(x, dims), reason="a mean is subtracted")
    out = run.power(_reduced(run, centred, dims, keepdim, kind="absolute"), 2)
    return out if len(run.shapes) == 1 else (out, _reduced(run, x, dims, keepdim))


@operator("linalg_vector_norm", "linalg_norm")
def _norm(run: Run, x: Value, order: Any = 2, dim: Dims = None, keepdim: bool = False, *_: Any, **__: Any) -> Value:
    if order == 0:  # how many entries are not 0
        x = run.kept(x, scale=False)
    return _reduced(run, x, dim, keepdim, kind="absolute", reason="a norm over it")


@operator("nuclear_norm")
def _nuclear_norm(run: Run, x: Value, dim: Any = None, keepdim: bool = False) -> Value:
    return _norm(run, x, None, None if isinstance(dim, bool) else dim, len(run.shape) == len(x.dims))


@operator("_cdist_forward")
def _distances(run: Run, a: Value, b: Value, order: float = 2, *_: Any) -> Value:
    return _norm(run, run.add(a.put(-1, len(a.dims) - 1, UNIT), b.put(-2, len(b.dims) - 2, UNIT)), order, (-1,))
