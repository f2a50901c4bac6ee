"""Rules of functions that act entry by entry: activations, arithmetic, comparisons, choices."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from nfn_monomial.symmetry import FUNCTIONS
from nfn_monomial.trace.algebra.run import Operand, Run
from nfn_monomial.trace.algebra.values import UNIT, Value

from .table import enter, operator

_COPIES = "contiguous clone detach alias to _to_copy"
_KINDS = {(1, None): "homogeneous", (1, 0): "absolute", (None, 1): "odd", (None, 0): "even", (None, None): "any"}


def _pointwise(names: str, kind: Any, *, zero: bool = False) -> None:
    """Enters functions of each entry; ``zero`` says that they keep 0."""
    enter(names, lambda run, x, *_, **__: run.unary(x, kind, zero=zero))


for _name, _parity in FUNCTIONS.items():
    if hasattr(torch.ops.aten, _name) and _parity[:2] in _KINDS:
        _pointwise(_name, _KINDS[_parity[:2]], zero=_parity.zero)
_pointwise("isnan isinf", "any")
enter("sqrt", lambda run, x: run.power(x, 0.5))
enter("rsqrt", lambda run, x: run.power(x, -0.5))
enter("reciprocal", lambda run, x: run.power(x, -1))
enter("sign", lambda run, x: run.kept(x, scale=False))
enter("add sub", lambda run, a, b, alpha=1: run.add(a, b) if alpha else run.operand(a), family="sum")
enter("fmod remainder", lambda run, a, b: run.add(a, b))
enter("hypot", lambda run, a, b: run.unary(run.add(a, b), "absolute"))
enter("maximum minimum fmax fmin", lambda run, a, b: run.extreme(a, b))
enter(
    "logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor",
    lambda run, a, b: mask_of(run, run.multiply(a, b)),
)
enter("logical_not bitwise_not", lambda run, x: mask_of(run, x))


@operator(*_COPIES.split(), bundles=True, linear=True, positions="kept")
@operator("neg", "lift_fresh_copy", "dropout", "native_dropout", bundles=True, linear=True)
def _linear(run: Run, x: Any, *_: Any, **__: Any) -> Any:
    return x if run.real else run.unary(run.joined(x), "any", reason="cast to whole numbers")


@operator("mul", family="product")
def _mul(run: Run, a: Operand, b: Operand) -> Value:
    if isinstance(b, Value) and isinstance(a, Value):
        return run.multiply(a, b)
    x, number = (a, b) if isinstance(a, Value) else (b, a)
    assert isinstance(x, Value), "a product of numbers is no operation of a graph"
    return x if number else run.constant(torch.zeros(x.shape))


@operator("div", family="product")
def _div(run: Run, a: Operand, b: Operand, *, rounding_mode: str | None = None) -> Value:
    out = run.multiply(a, b, exponent=-1) if isinstance(b, Value) else run.operand(a)
    return out if rounding_mode is None else run.unary(out, "any")


@operator("pow")
def _pow(run: Run, x: Operand, exponent: Operand) -> Value:
    if isinstance(x, Value) and not isinstance(exponent, Value):
        return run.power(x, exponent)
    a, b = run.operand(x), run.operand(exponent)
    for part in (a, b):
        run.vanish(part, reason="neither odd nor homogeneous in both")
    return _nonzero(run.multiply(a, b))


@operator("atan2")
def _angle(run: Run, a: Value, b: Value) -> Value:
    out = run.unary(run.add(a, b), "homogeneous", reason="an angle")
    return _nonzero(run.kept(out, scale=False))


def _nonzero(x: Value) -> Value:
    """Returns a value of which zeros do not lead to zeros."""
    return replace(x, zero=False)


def mask_of(run: Run, x: Value) -> Value:
    """Returns what may be read off the entries of a value, whatever acts on them."""
    return _nonzero(run.kept(x, scale=False, sign=False))


@operator("clamp")
def _clamp(run: Run, x: Value, low: Any = None, high: Any = None, **options: Any) -> Value:
    low, high = options.get("min", low), options.get("max", high)
    for bound in (low, high):
        if isinstance(bound, Value):
            x = run.extreme(x, bound)
    ends = [bound for bound in (low, high) if isinstance(bound, int | float)]
    if all(end == 0 for end in ends):
        return run.unary(x, "homogeneous") if ends else x
    odd = len(ends) == 2 and ends[0] == -ends[1] <= 0
    return run.unary(x, "odd" if odd else "any", zero=len(ends) == 2 and ends[0] <= 0 <= ends[1])


enter("hardtanh", lambda run, x, low=-1, high=1: _clamp(run, x, low, high))


def _compared(*names: str, signs: bool) -> None:
    """Enters comparisons; ``signs`` says that they do not change if both sides change their sign."""

    def rule(run: Run, a: Value, b: Operand) -> Value:
        out = run.add(a, b)  # with a constant, equal forms are none, but for 0
        run.vanish(out, scale=False, sign=not signs, reason="compared")
        return mask_of(run, out)

    operator(*names)(rule)


_compared("gt", "ge", "lt", "le", signs=False)
_compared("eq", "ne", signs=True)


@operator("where")
def where(run: Run, condition: Value, a: Operand, b: Operand) -> Value:
    """Chooses entries of one or the other, which transform alike."""
    run.vanish(condition, reason="a condition")
    return run.multiply(run.add(a, b), mask_of(run, condition))


@operator("masked_fill")
def _masked_fill(run: Run, x: Value, mask: Value, number: Operand) -> Value:
    if isinstance(number, int | float) and number in (float("inf"), float("-inf")):
        run.vanish(x, scale=False, reason="filled with an infinity")
        return run.multiply(x, mask_of(run, mask))
    return where(run, mask, number, x)


def along(vector: Value, rank: int) -> Value:
    """Returns a vector over channels as a tensor that broadcasts."""
    return replace(vector, dims=(UNIT, vector.dims[0], *[UNIT] * (rank - 2)))


@operator("prelu", "_prelu_kernel")
def _prelu(run: Run, x: Value, slope: Value) -> Value:
    run.vanish(slope, reason="a slope")
    if len(slope.dims) == 1 and len(x.dims) > 1:
        slope = along(slope, len(x.dims))
    return run.unary(run.multiply(x, _nonzero(run.settle(slope, 0))), "homogeneous")
