"""Which tensors of two networks are equal within the rounding of their dtypes."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from nfn_monomial.space.axes import Axis
from nfn_monomial.space.groups import GroupElement
from nfn_monomial.space.monomial import MonomialMatrix

COUNTERS = "num_batches_tracked"  # of training steps, which no network reads in eval mode
EXACT = 1e-10  # to which scales are found in float64


def differing(a: Mapping[str, Tensor], b: Mapping[str, Tensor], *, leave_out: Collection[str] = ()) -> tuple[str, ...]:
    """Keys under which two networks have different tensors, or one of them none; sorted.

    Tensors of one dtype are to be equal, of two floating types within half a unit in the last place of each. Counters
    of batches are not looked at.
    """
    keys = sorted(key for key in {*a, *b} if key not in leave_out and not key.endswith(COUNTERS))
    return tuple(key for key in keys if not (key in a and key in b and _equal(a[key], b[key])))


def _equal(x: Tensor, y: Tensor) -> bool:
    if x.shape != y.shape:
        return False
    x, y = x.detach().cpu(), y.detach().cpu()
    same = (x == y) | ((x != x) & (y != y))
    if x.dtype != y.dtype and x.is_floating_point() and y.is_floating_point():
        units = [torch.finfo(t.dtype).eps * (t.double().abs() + torch.finfo(t.dtype).smallest_normal) for t in (x, y)]
        same |= (x.double() - y.double()).abs() <= (units[0] + units[1]) / 2
    return bool(same.all())


def tolerance(limit: torch.finfo) -> float:
    """To which an entry of this precision that was scaled is right, see `compare`."""
    half_units = 3 if limit.bits < 32 else 32
    return max(half_units * limit.eps / 2, EXACT if limit.bits == 64 else 0.0)


def largest_error(
    name: str, element: GroupElement, dtypes: tuple[torch.dtype, torch.dtype], a: Tensor, moved: Tensor
) -> tuple[float, bool]:
    """The largest relative difference of any entry of a parameter, and whether all are within rounding.

    Its tensors were of the ``dtypes`` before they were made one that holds both; the ``element`` has moved the second.
    """
    limits = [torch.finfo(dtype) for dtype in dtypes]
    difference, size = (a - moved).abs_(), torch.maximum(a.abs(), moved.abs())
    relative = difference / size.masked_fill_(size == 0, 1)
    if dtypes[0] == dtypes[1] and not element.matrices:
        return float(relative.max()), not difference.any()
    least = [tolerance(limit) * limit.smallest_normal for limit in limits]
    rounding = element.act({name: torch.full_like(moved, least[1])})[name].abs_().add_(least[0])
    error = float(relative.masked_fill_(difference <= rounding, 0).max())
    segments = itertools.chain(*element.space.concatenated[name])
    nodes = {axis.node for segment in segments for axis in segment if isinstance(axis, Axis)}
    if any(is_scaling(element.matrices[node]) for node in nodes if node in element.matrices):
        return error, error <= max(map(tolerance, limits))
    return error, error <= (0 if dtypes[0] == dtypes[1] else sum(limit.eps / 2 for limit in limits))


def is_scaling(matrix: MonomialMatrix) -> bool:
    """Whether a matrix scales anything."""
    return any(bool((s.abs() != 1).any()) for s in matrix.scales)
