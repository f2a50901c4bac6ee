"""Rules of sums of products over a dimension: matrix products, convolutions, einsum."""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from nfn_monomial.trace.algebra.run import OpaqueError, Run
from nfn_monomial.trace.algebra.values import UNIT, Value

from .table import operator

_LETTERS = string.ascii_letters


@operator("linear", bias=(2, -1))
def linear(run: Run, x: Value, weight: Value, bias: Value | None = None) -> Value:
    """``x W^T + b``."""
    x = run.settle(x, +1)
    lead = _LETTERS[2 : 1 + len(x.dims)]
    rows = "b" if len(weight.dims) == 2 else ""
    out = run.contract(x, lead + "a", weight, rows + "a", lead + rows)
    return out if bias is None else run.add(out, bias)


@operator("matmul", "mm", "bmm", "mv", "dot", "vdot", family="matrix product")
def matmul(run: Run, a: Value, b: Value, *_: Any) -> Value:
    """``a b``, leading dimensions broadcast."""
    left, right, out = letters_of_product(len(a.dims), len(b.dims))
    return run.contract(a, left, b, right, out)


def letters_of_product(left: int, right: int) -> tuple[str, str, str]:
    """Returns a matrix product of tensors of so many dimensions as an einsum: letters of both, and of the output."""
    batch = max(left, right, 2) - 2
    shared = _LETTERS[3 : 3 + batch]
    rows, columns = "b" * (left > 1), "c" * (right > 1)
    first, second = (shared[batch - max(rank - 2, 0) :] for rank in (left, right))
    return first + rows + "a", second + "a" + columns, shared + rows + columns


@operator("addmm", bias=(0, -1))
@operator("addmv", "baddbmm", "addbmm")
def _addmm(run: Run, bias: Value, a: Value, b: Value, *, beta: float = 1, alpha: float = 1) -> Value:
    summed = len(a.dims) > len(run.shape) > 1  # addbmm sums over the batch
    out = run.contract(a, "xba", b, "xac", "bc") if summed else matmul(run, a, b)
    return run.add(out, bias) if beta else out


@operator("bilinear")
def _bilinear(run: Run, a: Value, b: Value, weight: Value, bias: Value | None = None) -> Value:
    lead = _LETTERS[3 : 2 + len(a.dims)]
    half = run.contract(run.settle(a, +1), lead + "a", weight, "cab", lead + "cb")
    out = run.contract(half, lead + "cb", run.settle(b, +1), lead + "b", lead + "c")
    return out if bias is None else run.add(out, bias)


@operator("einsum")
def _einsum(run: Run, equation: str, operands: Sequence[Value], **_: Any) -> Value:
    inputs, out = spelled(equation.replace(" ", ""), [len(x.dims) for x in operands])
    if any(len(set(letters)) < len(letters) for letters in inputs):
        raise OpaqueError("einsum along a diagonal")
    x, letters = operands[0], inputs[0]
    for n, (other, right) in enumerate(zip(operands[1:], inputs[1:], strict=True), start=2):
        later = out + "".join(inputs[n:])
        kept = "".join(dict.fromkeys(c for c in letters + right if c in later)) if n < len(inputs) else out
        x, letters = run.contract(x, letters, other, right, kept), kept
    if len(operands) == 1:
        gone = [n for n, c in enumerate(letters) if c not in out]
        x = run.reduce(x, gone) if gone else x
        rest = [c for c in letters if c in out]
        x = x.over([x.dims[rest.index(c)] for c in out])
    return x


def spelled(equation: str, ranks: Sequence[int]) -> tuple[list[str], str]:
    """Returns the letters of every operand and of the output, an ellipsis as letters of its own."""
    left, arrow, out = equation.partition("->")
    inputs = left.split(",")
    spare = [c for c in reversed(_LETTERS) if c not in equation]
    longest = max([rank - len(t) + 3 for t, rank in zip(inputs, ranks, strict=True) if "..." in t], default=0)
    dots = "".join(spare[:longest])
    named = left.replace("...", "").replace(",", "")
    if not arrow:
        out = "..." * ("..." in left) + "".join(sorted(c for c in set(named) if named.count(c) == 1))
    full = [
        t.replace("...", dots[longest - (rank - len(t) + 3) :]) if "..." in t else t
        for t, rank in zip(inputs, ranks, strict=True)
    ]
    return full, out.replace("...", dots)


def _convolved(run: Run, x: Value, weight: Value, bias: Value | None, groups: int, *, transposed: bool) -> Value:
    spatial = len(weight.dims) - 2
    batched = len(x.dims) == spatial + 2
    lead = "b" if batched else ""
    kernel = run.without(weight, range(2, 2 + spatial), "kernel")
    x = run.without(run.settle(x, +1), range(-spatial, 0), "position")
    if groups == 1:
        out = run.contract(x, lead + "i", kernel, "io" if transposed else "oi", lead + "o")
    else:
        x = run.viewed(x, (*x.shape[:-1], groups, x.shape[-1] // groups))
        kernel = run.viewed(kernel, (groups, kernel.shape[0] // groups, kernel.shape[1]))
        parts = run.contract(x, lead + "gi", kernel, "gio" if transposed else "goi", lead + "go")
        out = run.viewed(parts, (*parts.shape[: len(lead)], parts.shape[-1] * groups))
    rank = len(out.dims)
    out = run.note(out.put(rank, rank, *(run.sets.fresh(n, "position") for n in run.shape[rank:])))
    return out if bias is None else run.add(out, replace(bias, dims=(*bias.dims, *[UNIT] * spatial)))


@operator("conv1d", "conv2d", "conv3d", family="convolution", bias=(2, 1))
def _convolution(
    run: Run, x: Value, weight: Value, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1,
    groups: int = 1,
) -> Value:  # fmt: skip
    return _convolved(run, x, weight, bias, groups, transposed=False)


@operator("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def _transposed_convolution(
    run: Run, x: Value, weight: Value, bias: Any = None, stride: Any = 1, padding: Any = 0, output_padding: Any = 0,
    groups: int = 1, dilation: Any = 1,
) -> Value:  # fmt: skip
    return _convolved(run, x, weight, bias, groups, transposed=True)


@operator("convolution", family="convolution", bias=(2, 1))
def _any_convolution(
    run: Run, x: Value, weight: Value, bias: Any, stride: Any, padding: Any, dilation: Any, transposed: bool,
    output_padding: Any, groups: int,
) -> Value:  # fmt: skip
    return _convolved(run, x, weight, bias, groups, transposed=transposed)
