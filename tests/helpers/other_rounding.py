"""Another processor, as far as tests can tell: matrix products of the CPU sum in another order, and in two parts.

``ROUNDING=1`` (any whole number draws another order) has ``conftest.py`` install this in the process of the tests:

    sum_k a[i, k] b[k, j] = sum_{k in P} a[i, k] b[k, j] + sum_{k in Q} a[i, k] b[k, j]    for P and Q in any order

is true of numbers, and of floats up to rounding. The order depends on the shapes, as it does in libraries of linear
algebra: a row of a larger batch may round otherwise. What no order changes stays as it is (sums of whole numbers,
products with the matrix of a permutation), and the same product twice is the same. Child processes sum as usual: to a
test that compares with one, it is a second machine.
"""

from __future__ import annotations

import functools
import warnings
from random import Random
from typing import Any

import torch
from torch import Tensor

_PRODUCTS = {(2, 2): "mm", (3, 3): "bmm", (2, 1): "mv", (1, 1): "dot"}  # by the dimensions of the factors
# Operators with a product, and where its factors are among their arguments.
_OPERATORS = {
    "mm": 0, "mm.out": 0, "bmm": 0, "bmm.out": 0, "mv": 0, "mv.out": 0, "dot": 0,
    "addmm": 1, "addmm.out": 1, "addmm_": 1, "addmv": 1, "addmv.out": 1, "addmv_": 1,
    "baddbmm": 1, "baddbmm.out": 1, "baddbmm_": 1,
}  # fmt: skip


def install(seed: str) -> torch.library.Library:
    """Have products sum in the order that ``seed`` draws, for as long as the library that is returned lives."""
    library = torch.library.Library("aten", "IMPL")
    kernels = {name: torch.library.get_kernel(f"aten::{name}", "CPU") for name in _OPERATORS}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of replaced kernels: that is the point
        for name in _OPERATORS:
            otherwise = functools.partial(_in_two_parts, kernels, name, seed)
            library.impl(name, otherwise, "CPU", with_keyset=True, allow_override=True)
    return library


def _in_two_parts(kernels: Any, name: str, seed: str, keys: Any, *arguments: Any, **options: Any) -> Any:
    at = _OPERATORS[name]
    left, right = arguments[at : at + 2]
    if left.shape[-1] < 2 or left.shape[-1] != right.shape[max(right.dim() - 2, 0)]:  # which is an error of the call
        return kernels[name].call_boxed(keys, *arguments, **options)
    with torch.no_grad():
        (a, b), others = (
            (left.index_select(-1, part), right.index_select(max(right.dim() - 2, 0), part))
            for part in _parts(seed, tuple(left.shape), tuple(right.shape))
        )
        rest = kernels[_PRODUCTS[left.dim(), right.dim()]].call_boxed(keys, *others)
        result = kernels[name].call_boxed(keys, *arguments[:at], a, b, *arguments[at + 2 :], **options)
        return result.add_(rest, alpha=options.get("alpha", 1))


@functools.cache
def _parts(seed: str, left: tuple[int, ...], right: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Where to sum first, and where then; drawn anew for every pair of shapes."""
    order, random = list(range(left[-1])), Random(f"{seed} {left} {right}")
    random.shuffle(order)
    first = random.randint(1, len(order) - 1)
    return torch.tensor(order[:first]), torch.tensor(order[first:])
