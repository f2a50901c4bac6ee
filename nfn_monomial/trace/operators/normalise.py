"""Rules of normalisation layers: statistics, a quotient, a gain, a shift."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nfn_monomial.trace.algebra.run import Run
from nfn_monomial.trace.algebra.values import Value

from .pointwise import along
from .table import operator


def _affine(run: Run, x: Value, gain: Value | None, shift: Value | None, *, channels: bool = True) -> Value:
    for part, meet in ((gain, run.multiply), (shift, run.add)):
        if part is not None:
            x = meet(x, along(part, len(x.dims)) if channels else part)
    return x


def _standard(run: Run, x: Value, dims: Sequence[int], eps: float, *, centred: bool = True) -> Value:
    """``(x - mean) / sqrt(variance + eps)`` over dimensions: odd, and without scale."""
    if centred:
        run.ignores_constants(x, dims)
    x = run.even(x, dims, scale=True, sign=centred, reason="a mean is subtracted" if centred else "its norm")
    if eps:
        run.vanish(x, sign=False, reason="eps of a norm")
    x = run.note(run.kept(x, scale=False))
    run.reduce(x, dims, kind="absolute")  # one statistic for all along these: nothing else is nested in them
    return x


@operator("layer_norm", bias=(3, -1))
@operator("native_layer_norm")
def _layer_norm(
    run: Run, x: Value, shape: Sequence[int], gain: Any = None, shift: Any = None, eps: float = 1e-5, *_: Any
) -> Value:
    return _affine(run, _standard(run, x, range(-len(shape), 0), eps), gain, shift, channels=False)


@operator("rms_norm", "_fused_rms_norm")
def _rms_norm(run: Run, x: Value, shape: Sequence[int], gain: Any = None, eps: float | None = None) -> Value:
    out = _standard(run, x, range(-len(shape), 0), 1.0 if eps is None else eps, centred=False)
    return _affine(run, out, gain, None, channels=False)


@operator("native_group_norm")
def _group_norm(run: Run, x: Value, gain: Any, shift: Any, n: int, c: int, hw: int, groups: int, eps: float) -> Value:
    batch, channels, *places = x.shape
    parts = run.viewed(x, (batch, groups, channels // groups, *places))
    inner = range(2, len(parts.dims))
    out = _standard(run, run.placed(parts, inner[1:], "position"), inner, eps)
    return _affine(run, run.viewed(out, x.shape), gain, shift)


def _tracked(run: Run, x: Value, gain: Any, shift: Any, mean: Value, variance: Value, eps: float) -> Value:
    """With statistics that were tracked: ``(x - mean) / sqrt(variance + eps)``."""
    rank = len(x.dims)
    shifted = run.add(run.settle(x, +1), along(mean, rank))
    spread = run.settle(along(variance, rank), 0)
    run.vanish(spread, scale=False)  # no variance has a sign
    if eps:
        run.vanish(spread, reason="eps of a norm")
    return _affine(run, run.multiply(shifted, run.power(spread, -0.5)), gain, shift)


@operator("batch_norm", statistics=(3, 4), bias=(2, 1))
def _batch_norm(
    run: Run,
    x: Value,
    gain: Any,
    shift: Any,
    mean: Any,
    variance: Any,
    training: bool,
    momentum: float,
    eps: float,
    *_: Any,
) -> Value:
    if training or mean is None:
        others = [n for n in range(len(x.dims)) if n != 1]
        return _affine(run, _standard(run, x, others, eps), gain, shift)
    return _tracked(run, x, gain, shift, mean, variance, eps)


@operator("_native_batch_norm_legit_no_training", statistics=(3, 4))
def _batch_norm_eval(
    run: Run, x: Value, gain: Any, shift: Any, mean: Value, variance: Value, momentum: float, eps: float
) -> Any:
    return _tracked(run, x, gain, shift, mean, variance, eps)


@operator("_native_batch_norm_legit")
def _batch_norm_of_batch(run: Run, x: Value, gain: Any, shift: Any, *rest: Any) -> Any:
    return _batch_norm(run, x, gain, shift, None, None, True, 0.0, rest[-1])


@operator("instance_norm", statistics=(3, 4))
def _instance_norm(
    run: Run, x: Value, gain: Any, shift: Any, mean: Any, variance: Any, of_input: bool, momentum: float, eps: float,
    *_: Any,
) -> Value:  # fmt: skip
    if not of_input:
        return _tracked(run, x, gain, shift, mean, variance, eps)
    places = range(2, len(x.dims))
    return _affine(run, _standard(run, run.placed(x, places, "position"), places, eps), gain, shift)
