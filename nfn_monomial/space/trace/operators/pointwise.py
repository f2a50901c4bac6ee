"""Rules of functions that act entry by entry: activations, arithmetic, comparisons, choices."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from nfn_monomial.space.trace.algebra.moves import Run
from nfn_monomial.space.trace.algebra.values import UNIT, Value

from .table import operator

Operand = Value | float | int | bool

# (keeps 0, names)
_LINEAR = (
    "neg negative contiguous clone detach alias lift_fresh lift_fresh_copy dropout dropout_ feature_dropout "
    "alpha_dropout feature_alpha_dropout native_dropout positive real conj resolve_conj resolve_neg _conj to _to_copy "
    "type_as float double half bfloat16 requires_grad_ detach_ deg2rad rad2deg"
)
_HOMOGENEOUS = "relu leaky_relu rrelu"
_ODD = (
    "tanh sin erf erfinv atan arctan asin arcsin asinh arcsinh atanh arctanh sinh tan tanhshrink softshrink hardshrink "
    "softsign round trunc fix"
)
_EVEN = "cos cosh sinc"
_ANY_ZERO = "gelu silu mish elu selu celu hardswish relu6 expm1 log1p floor ceil frac"
_ANY = (
    "sigmoid special_expit softplus log_sigmoid exp exp2 log log2 log10 hardsigmoid erfc special_erfcx lgamma digamma "
    "acos arccos acosh arccosh logit threshold isnan isinf isfinite i0 special_i0 nan_to_num"
)


def _enter(names: str, kind: Any, *, zero: bool = False) -> None:
    def rule(run: Run, x: Value, *_: Any, **__: Any) -> Value:
        return run.unary(x, kind, zero=zero)

    operator(*names.split())(rule)


_enter(_HOMOGENEOUS, "homogeneous", zero=True)
_enter(_ODD, "odd", zero=True)
_enter(_EVEN, "even")
_enter(_ANY_ZERO, "any", zero=True)
_enter(_ANY, "any")
operator("abs", "absolute")(lambda run, x: run.unary(x, "absolute", zero=True))
operator("sqrt")(lambda run, x: run.power(x, 0.5))
operator("rsqrt")(lambda run, x: run.power(x, -0.5))
operator("reciprocal")(lambda run, x: run.power(x, -1))
operator("square")(lambda run, x: run.power(x, 2))


@operator(*_LINEAR.split(), bundles=True)
def _linear(run: Run, x: Any, *_: Any, **options: Any) -> Any:
    target = next((a for a in (*_, options.get("dtype")) if isinstance(a, torch.dtype)), None)
    if target is not None and not target.is_floating_point:
        return run.unary(run.joined(x), "any", reason="cast to whole numbers")
    return x


def value_of(run: Run, x: Operand) -> Value:
    """An operand as a value; numbers are constants."""
    return x if isinstance(x, Value) else run.constant(torch.tensor(x))


@operator("add", "sub", "subtract")
def _add(run: Run, a: Operand, b: Operand, *, alpha: float = 1) -> Value:
    return run.add(value_of(run, a), value_of(run, b)) if alpha else value_of(run, a)


@operator("rsub")
def _rsub(run: Run, a: Value, b: Operand, alpha: float = 1) -> Value:
    return _add(run, b, a, alpha=alpha)


@operator("mul", "multiply")
def _mul(run: Run, a: Operand, b: Operand) -> Value:
    if isinstance(b, Value) and isinstance(a, Value):
        return run.multiply(a, b)
    x, number = (a, b) if isinstance(a, Value) else (b, a)
    assert isinstance(x, Value), "a product of numbers is no operation of a graph"
    return x if number else run.constant(torch.zeros(x.shape))


@operator("div", "divide", "true_divide")
def _div(run: Run, a: Operand, b: Operand, *, rounding_mode: str | None = None) -> Value:
    out = run.multiply(value_of(run, a), value_of(run, b), exponent=-1) if isinstance(b, Value) else value_of(run, a)
    return out if rounding_mode is None else run.unary(out, "any")


@operator("addcmul", "addcdiv")
def _addcmul(run: Run, x: Value, a: Value, b: Value, *, value: float = 1) -> Value:
    return run.add(x, run.multiply(a, b)) if value else x


@operator("lerp")
def _lerp(run: Run, a: Value, b: Value, weight: Operand) -> Value:
    out = run.add(a, b)
    weight = value_of(run, weight)
    run.vanish(weight, reason="weight of a mean")
    return run.multiply(out, weight) if isinstance(weight, Value) else out


@operator("pow")
def _pow(run: Run, x: Operand, exponent: Operand) -> Value:
    if isinstance(x, Value) and not isinstance(exponent, Value):
        return run.power(x, exponent)
    a, b = value_of(run, x), value_of(run, exponent)
    for part in (a, b):
        run.vanish(part, reason="a power of what is no constant")
    return run.add(a, b)


@operator("atan2", "hypot", "fmod", "remainder", "floor_divide", "xlogy", "logaddexp")
def _both_any(run: Run, a: Operand, b: Operand) -> Value:
    a, b = value_of(run, a), value_of(run, b)
    for part in (a, b):
        run.vanish(part, reason="neither odd nor homogeneous")
    return run.multiply(a, b)


@operator("maximum", "minimum", "fmax", "fmin")
def _maximum(run: Run, a: Operand, b: Operand) -> Value:
    return run.extreme(value_of(run, a), value_of(run, b))


@operator("hardtanh")
def _hardtanh(run: Run, x: Value, low: float = -1, high: float = 1) -> Value:
    return _clamp(run, x, low, high)


@operator("clamp", "clip")
def _clamp(run: Run, x: Value, low: Any = None, high: Any = None, **options: Any) -> Value:
    low, high = options.get("min", low), options.get("max", high)
    for bound in (low, high):
        if isinstance(bound, Value):
            x = run.extreme(x, bound)
    ends = [bound for bound in (low, high) if isinstance(bound, int | float)]
    if all(end == 0 for end in ends):
        return run.unary(x, "homogeneous") if ends else x
    odd = len(ends) == 2 and ends[0] == -ends[1]
    return run.unary(x, "odd" if odd else "any", zero=len(ends) == 2 and ends[0] <= 0 <= ends[1])


@operator("clamp_min")
def _clamp_min(run: Run, x: Value, low: Any) -> Value:
    return _clamp(run, x, low)


@operator("clamp_max")
def _clamp_max(run: Run, x: Value, high: Any) -> Value:
    return _clamp(run, x, None, high)


@operator("sign", "sgn")
def _sign(run: Run, x: Value) -> Value:
    return run.kept(x, scale=False)


@operator("gt", "ge", "lt", "le", "eq", "ne", "isclose", "greater", "less", "not_equal")
def _compare(run: Run, a: Value, b: Operand, *_: Any) -> Value:
    b = value_of(run, b)
    out = run.add(a, b)
    if not b.zero:
        run.vanish(out, reason="compared with what is not 0") if b.data is not None else None
    run.vanish(out, scale=False, reason="compared")
    return run.kept(out, scale=False, sign=False)


@operator("logical_and", "logical_or", "logical_xor", "bitwise_and", "bitwise_or", "bitwise_xor", "__and__", "__or__")
def _logical(run: Run, a: Value, b: Operand) -> Value:
    return run.kept(run.multiply(a, value_of(run, b)), scale=False, sign=False)


@operator("logical_not", "bitwise_not")
def _logical_not(run: Run, a: Value) -> Value:
    return run.kept(a, scale=False, sign=False)


@operator("where")
def _where(run: Run, condition: Value, a: Operand, b: Operand) -> Value:
    run.vanish(condition, reason="a condition")
    return run.multiply(run.add(value_of(run, a), value_of(run, b)), run.kept(condition, scale=False, sign=False))


@operator("masked_fill")
def _masked_fill(run: Run, x: Value, mask: Value, number: Operand) -> Value:
    if isinstance(number, int | float) and number in (float("inf"), float("-inf")):
        run.vanish(x, scale=False, reason="filled with an infinity")
        out = run.multiply(x, run.kept(mask, scale=False, sign=False))
        return replace(out, shifts=x.shifts)
    return _where(run, mask, number, x)


@operator("prelu", "_prelu_kernel")
def _prelu(run: Run, x: Value, slope: Value) -> Value:
    run.vanish(slope, reason="a slope")
    rank = len(x.dims)
    if len(slope.dims) == 1 and rank > 1:
        dims = [UNIT] * rank
        dims[1] = slope.dims[0]
        slope = Value(tuple(dims), slope.const, slope.raw)
    return run.unary(run.multiply(x, run.settle(slope, 0)), "homogeneous")


@operator("glu")
def _glu(run: Run, x: Value, dim: int = -1) -> Value:
    half = x.shape[dim] // 2
    gate = run.unary(run.narrowed(x, dim, half, 2 * half), "any")
    return run.multiply(run.narrowed(x, dim, 0, half), gate)
