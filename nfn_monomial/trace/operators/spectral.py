"""Rules of Fourier transforms and complex numbers."""

from __future__ import annotations

from dataclasses import replace

from nfn_monomial.trace.algebra.run import Run
from nfn_monomial.trace.algebra.values import Value

from .table import enter, operator

_PARTS = "real and imaginary parts"

enter(
    "_fft_r2c _fft_c2r _fft_c2c", lambda run, x, dims, *_: run.positional(x, dims, "a Fourier transform"), linear=True
)
enter("view_as_complex", lambda run, x: run.without(x, (-1,), _PARTS), linear=True)
enter("real imag", lambda run, x: run.unary(x, "linear"), linear=True)
enter("complex", lambda run, a, b: run.add(a, b))
enter("polar", lambda run, size, angle: run.multiply(size, run.unary(angle, "any", reason="an angle")))


@operator("view_as_real", linear=True)
def _parts(run: Run, x: Value) -> Value:
    end = len(x.dims)
    return run.note(x.put(end, end, run.sets.fresh(2, _PARTS)))


@operator("angle")
def _angle(run: Run, x: Value) -> Value:
    out = run.unary(x, "homogeneous", reason="an angle")
    return replace(run.kept(out, scale=False), zero=False)
