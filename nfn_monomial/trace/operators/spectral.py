"""Rules of Fourier transforms and complex numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from nfn_monomial.trace.algebra.moves import Run
from nfn_monomial.trace.algebra.values import Value

from .table import operator

_PARTS = "real and imaginary parts"


@operator("_fft_r2c", "_fft_c2r", "_fft_c2c", linear=True)
def _transformed(run: Run, x: Value, dims: Sequence[int], *_: Any) -> Value:
    return run.positional(x, dims, "a Fourier transform")


@operator("view_as_complex", linear=True)
def _complex(run: Run, x: Value) -> Value:
    return run.without(x, (-1,), _PARTS)


@operator("view_as_real", linear=True)
def _parts(run: Run, x: Value) -> Value:
    end = len(x.dims)
    return run.note(x.put(end, end, run.fresh(2, _PARTS)))


@operator("real", "imag", linear=True)
def _part(run: Run, x: Value) -> Value:
    return run.unary(x, "linear")


@operator("complex")
def _of_parts(run: Run, a: Value, b: Value) -> Value:
    return run.add(a, b)


@operator("polar")
def _polar(run: Run, size: Value, angle: Value) -> Value:
    return run.multiply(size, run.unary(angle, "any", reason="an angle"))


@operator("angle")
def _angle(run: Run, x: Value) -> Value:
    out = run.unary(x, "homogeneous", reason="an angle")
    return replace(run.kept(out, scale=False), zero=False)
