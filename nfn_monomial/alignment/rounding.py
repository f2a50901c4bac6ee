"""Which tensors of two networks are equal within the rounding of their dtypes."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from nfn_monomial.space.axes import Axis
from nfn_monomial.space.groups import GroupElement
from nfn_monomial.space.monomial import MonomialMatrix

from .exact import wide_dtype

COUNTERS = "num_batches_tracked"  # of training steps, which no network reads in eval mode
EXACT = 1e-10  # to which scales are found in float64


def differing(a: Mapping[str, Tensor], b: Mapping[str, Tensor], *, leave_out: Collection[str] = ()) -> tuple[str, ...]:
    """Keys under which two networks have different tensors, or one of them none; sorted.

    Tensors of one dtype are to be equal, of two floating types within half a unit in the last place of each. Counters
    of batches are not looked at.

    Args:
        a: the one network.
        b: the other.
        leave_out: keys that are not looked at.
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


class Entries:
    """One parameter of two networks, in a dtype that holds both.

    Args:
        name: of the parameter.
        a: the one network.
        b: the other.
    """

    def __init__(self, name: str, a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> None:
        tensors = [network[name].detach() for network in (a, b)]
        self.name, self.limits = name, [torch.finfo(x.dtype) for x in tensors]
        self.alike = tensors[0].dtype == tensors[1].dtype
        # What is narrower than float32 is compared in it: it need not be held in float64.
        self.a, self.b = (x.to("cpu", wide_dtype(*(x.dtype for x in tensors))) for x in tensors)

    def moved(self, element: GroupElement) -> Tensor:
        """The other's values as an element moves them."""
        return element.act({self.name: self.b})[self.name]

    def error(self, element: GroupElement) -> tuple[float, bool]:
        """The largest relative difference of any entry from the other's, moved, and whether all are within rounding."""
        moved = self.moved(element)
        difference, size = (self.a - moved).abs_(), torch.maximum(self.a.abs(), moved.abs())
        relative = difference / size.masked_fill_(size == 0, 1)
        if self.alike and not element.matrices:
            return float(relative.max()), not difference.any()
        least = [tolerance(limit) * limit.smallest_normal for limit in self.limits]
        rounding = element.act({self.name: torch.full_like(self.b, least[1])})[self.name].abs_().add_(least[0])
        error = float(relative.masked_fill_(difference <= rounding, 0).max())
        if self._scaled(element):
            return error, error <= max(map(tolerance, self.limits))
        return error, error <= (0 if self.alike else sum(limit.eps / 2 for limit in self.limits))

    def _scaled(self, element: GroupElement) -> bool:
        """Whether any of the nodes on whose neurons it runs is scaled."""
        segments = itertools.chain(*element.space.concatenated[self.name])
        nodes = {axis.node for segment in segments for axis in segment if isinstance(axis, Axis)}
        return any(is_scaling(element.matrices[node]) for node in nodes if node in element.matrices)


def is_scaling(matrix: MonomialMatrix) -> bool:
    """Whether a matrix scales anything."""
    return any(bool((s.abs() != 1).any()) for s in matrix.scales)
