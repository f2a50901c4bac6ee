"""Compares tensors of two networks within the rounding of their dtypes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from nfn_monomial.canonical.charges import along, charged_axes, scaling
from nfn_monomial.space import packing
from nfn_monomial.space.groups import GroupElement
from nfn_monomial.space.monomial import MonomialMatrix
from nfn_monomial.space.weight_space import WeightSpace

EXACT = 1e-10  # to which scales are found in float64


def differing(a: Mapping[str, Tensor], b: Mapping[str, Tensor], *, leave_out: Collection[str] = ()) -> tuple[str, ...]:
    """Returns the keys under which two networks have different tensors, or one of them none; sorted.

    Tensors of one dtype are to be equal, of two floating types within half a unit in the last place of each.
    """
    keys = sorted(key for key in {*a, *b} if key not in leave_out)
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


def tolerance(dtype: torch.dtype) -> float:
    """Returns the relative error that an entry of this dtype may have once it was multiplied, see `compare`."""
    limit = torch.finfo(dtype)
    half_units = 3 if limit.bits < 32 else 32
    return max(half_units * limit.eps / 2, EXACT if limit.bits == 64 else 0.0)


class Rounding(NamedTuple):
    """The agreement of two tensors, of which the second was moved next to the first.

    Attributes:
        error: largest relative difference of any entry; of a subnormal one, relative to the smallest normal number.
        equal: whether all entries that were not multiplied are equal; in two dtypes, but for one rounding to each.
        close: whether all entries agree within rounding (`tolerance`).
    """

    error: float
    equal: bool
    close: bool


def rounding_of(
    a: Tensor, moved: Tensor, multiplied: Tensor | None, dtypes: tuple[torch.dtype, torch.dtype]
) -> Rounding:
    """Compares two tensors entry by entry.

    Args:
        a: the first tensor.
        moved: the second one, moved next to it.
        multiplied: mask of the entries that the move multiplied, see `multiplied_by`; None where there are none.
        dtypes: of the two tensors as they are stored.
    """
    difference, size = (a - moved).abs_(), torch.maximum(a.abs(), moved.abs())
    limits = [torch.finfo(dtype) for dtype in dtypes]
    if dtypes[0] == dtypes[1]:
        equal = difference == 0
    else:
        equal = difference <= sum(limit.eps / 2 * (size + limit.smallest_normal) for limit in limits)
    close = difference <= max(map(tolerance, dtypes)) * size
    if multiplied is not None:
        # Subnormal numbers have no more digits than their unit says, and two of them have been rounded.
        close |= multiplied & (difference <= 2 * max(limit.smallest_normal * limit.eps for limit in limits))
        equal_or_multiplied = equal | multiplied
    else:
        equal_or_multiplied = equal
    error = float((difference / size.clamp_(min=max(limit.smallest_normal for limit in limits))).max())
    return Rounding(error, bool(equal_or_multiplied.all()), bool((close | equal).all()))


def multiplied_by(
    space: WeightSpace, element: GroupElement, name: str, shape: Sequence[int], sizes: Mapping[str, int]
) -> Tensor | None:
    """Returns a mask of the entries of a parameter that an element multiplies; None where it multiplies none.

    An entry on which a scale and its inverse act counts, because both have rounded it.

    Args:
        space: of the element.
        element: the element.
        name: of the parameter.
        shape: of the parameter.
        sizes: node -> number of neurons.
    """
    parts = {}
    if not any(map(is_scaling, element.matrices.values())):
        return None
    for piece, mask in packing.cut(space, name, torch.zeros(tuple(shape), dtype=torch.bool), sizes):
        for axis in charged_axes(space, space.axes[piece], scaling):
            lengths = [mask.shape[dim - 1] for dim in axis.dims]
            for gauge, _ in axis.charges:
                if gauge.node in element.matrices:
                    scaled = element.matrices[gauge.node].scales[gauge.number].abs() != 1
                    mask = mask | along(scaled.reshape(1, *lengths), axis.dims, 1 + mask.ndim)[0]
        parts[piece] = mask
    return packing.joined(space, name, parts, sizes)


def is_scaling(matrix: MonomialMatrix) -> bool:
    """True if a matrix scales anything."""
    return any(bool((s.abs() != 1).any()) for s in matrix.scales)
