"""Equal networks in one frame, found by reading each parameter a few times, one after the other.

Where two networks are equal up to the group, nothing has to be searched: scales follow from the logarithms of the
entries, permutations and signs from the features of neurons (`Refinement`). Only what belongs to neurons, and a
slice of the parameter at hand, is in memory.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from nfn_monomial.canonical.charges import NodeGauge, along, charged_axes, scaling
from nfn_monomial.canonical.neuron_features import Refinement, Slice
from nfn_monomial.space import packing
from nfn_monomial.space.axes import Axis
from nfn_monomial.space.groups import GroupElement
from nfn_monomial.space.weight_space import WeightSpace

from .matching import Match, element_of
from .networks import comparison_dtype, sizes_of
from .scales import LogEquation, least_log_scales

_SLICE = 1 << 17  # entries that are looked at together, so that they and their logarithms stay in the processor's cache

_Logs = dict[NodeGauge, Tensor]
"""The logarithm of each neuron's scale ``(1, *sizes)``."""


def matched(space: WeightSpace, a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> GroupElement:
    """Returns the element that turns network b into a, if there is one; else one that need not mean anything.

    Scales are those at which the logarithms of the entries have least squares, the mean over each parameter: a linear
    problem that one pass prepares, which permutations and signs do not change, and whose solution moves along with the
    scales. Entries of 0 count for parameters with one scaled axis; others with zeros are left out of it.

    Neurons are matched by features that their neighbours give them in several rounds, over which rounding adds up. So
    b's neurons then take over the features of those of a that they match, and are matched once more, by what these
    tell their neighbours: neurons that were confused have like features, and hardly disturb that. This goes on while
    it changes ever fewer.

    Raises:
        MonomialError: as `sizes_of`.
    """
    sizes = sizes_of(space, {"a": a, "b": b})
    logs = []
    for network in (a, b):
        equations = map(_equation, _pieces(space, network, sizes, {}).values())
        logs.append(least_log_scales([equation for equation in equations if equation]))
    balanced = [_pieces(space, network, sizes, scales) for network, scales in zip((a, b), logs, strict=True)]
    refined_a, refined_b = (Refinement(space, pieces, sizes) for pieces in balanced)
    match, features = Match(space, sizes, refined_a.refine(), refined_b.refine()), refined_a.from_neighbours()
    before, changed = math.inf, sum(space.count(name, sizes) for name in space.nodes)
    while 0 < changed < before:
        refined_b.streams, last = match.carried(refined_a.streams), match
        match = Match(space, sizes, features, refined_b.from_neighbours())
        before, changed = changed, match.changes(last)
    frames = [element_of(space, sizes, scales={gauge: x.exp() for gauge, x in scales.items()}) for scales in logs]
    return frames[0].inverse() @ match.element() @ frames[1]


@dataclass(frozen=True)
class _Piece:
    """A piece of a network, scaled by some log scales: in slices, which are made whenever someone goes over it."""

    space: WeightSpace
    name: str
    network: Mapping[str, Tensor]
    sizes: Mapping[str, int]
    logs: _Logs

    def __iter__(self) -> Iterator[Slice]:
        parameter, axes = self.space.pieces[self.name].parameter, self.space.axes[self.name]
        whole = self.network[parameter].detach()
        x = dict(packing.cut(self.space, parameter, whole, self.sizes))[self.name]
        x = x if x.ndim else x[None]
        wide = comparison_dtype(x.dtype)
        factors = [
            (q * along(self.logs[gauge], axis.dims, 1 + x.ndim)[0]).exp().to(wide)
            for axis in charged_axes(self.space, axes, scaling)
            for gauge, q in axis.charges
            if gauge in self.logs
        ]
        dim = max((i for i, axis in enumerate(axes) if isinstance(axis, Axis)), key=lambda i: x.shape[i], default=0)
        count = max(1, _SLICE * x.shape[dim] // max(1, x.numel()))
        for start in range(0, x.shape[dim], count):
            part = Slice(dim, start, x.narrow(dim, start, min(count, x.shape[dim] - start)).to("cpu", wide, copy=True))
            for factor in factors:
                part.values.mul_(factor if factor.shape[dim] == 1 else part.of(factor, dim))
            yield part


def _pieces(
    space: WeightSpace, network: Mapping[str, Tensor], sizes: Mapping[str, int], logs: _Logs
) -> dict[str, _Piece]:
    return {name: _Piece(space, name, network, sizes, logs) for name in space.pieces}


def _equation(piece: _Piece) -> LogEquation | None:
    """Reads one piece; None where it says nothing about scales."""
    space, name = piece.space, piece.name
    axes = [] if name in space.dead else charged_axes(space, space.axes[name], scaling)
    if not axes:
        return None
    shape = [a if isinstance(a, int) else piece.sizes[a.node] for a in space.axes[name]]
    charged = {dim for axis in axes for dim in axis.dims}
    countable = all(set(axis.dims) == charged for axis in axes)
    sums, zeros = [_zeros(shape, axis.dims) for axis in axes], _zeros(shape, charged if countable else ())
    for part in piece:
        x = part.values.abs_()
        if float(x.min()) == 0:
            if not countable:
                return None
            _add(zeros, part, (x == 0).double())
            x.masked_fill_(x == 0, 1)
        x.log_()
        for total in sums:
            _add(total, part, x)
    share, *means = (total * (total.numel() / math.prod(shape)) for total in (zeros, *sums))
    return LogEquation(axes, 1 - share, means)


def _zeros(shape: list[int], dims: Collection[int]) -> Tensor:
    """``(1, *sizes)``, as large as the shape says in the places ``dims``, 1 in the others."""
    return torch.zeros([1, *(n if dim in dims else 1 for dim, n in enumerate(shape, 1))], dtype=torch.float64)


def _add(total: Tensor, part: Slice, x: Tensor) -> None:
    """Adds a function of a slice's values, summed over dimensions where ``total`` has size 1."""
    place = total[0] if total.shape[1 + part.dim] == 1 else part.of(total[0], part.dim)
    place += x.sum_to_size(place.shape)
