"""Equal functions in one frame, at the price of reading each parameter a few times, one after the other.

Where two networks are equal up to the group, nothing has to be searched: scales follow from the logarithms of the
entries, permutations and signs from the features of neurons (`Refinement`). Only what belongs to neurons, and a
slice of the parameter at hand, is in memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from nfn_monomial.canonical.charges import Charged, Gauge, charged_axes, scaling
from nfn_monomial.canonical.neuron_features import Refinement, Slice
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.space import packing
from nfn_monomial.space.axes import Axis
from nfn_monomial.space.groups import GroupElement
from nfn_monomial.space.weight_space import WeightSpace

from .assignment import element_of
from .matching import Match

_SLICE = 1 << 17  # entries that are looked at together: what is made of them stays in the processor's cache
_STEPS = 1000  # of conjugate gradients, of which as many are needed as nodes have gauges

_Logs = dict[Gauge, Tensor]
"""The logarithm of each neuron's scale ``(*sizes)``."""


def matched(space: WeightSpace, a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> GroupElement:
    """The element that turns network b into a, if there is one; else one that need not mean anything.

    Scales are those at which the logarithms of the entries have least squares, the mean over each parameter: a linear
    problem that one pass prepares, which permutations and signs do not change, and whose solution moves along with the
    scales. Entries of 0 count for parameters with one scaled axis; others with zeros are left out of it.

    Neurons are matched by features that their neighbours give them in several rounds, over which rounding adds up. So
    b's neurons then take over the features of those of a that they match, and are matched once more, by what these
    tell their neighbours: neurons that were confused have like features, and hardly disturb that. This goes on while
    it changes ever fewer.

    Args:
        space: the weight space.
        a: parameter name -> tensor ``(*shape)``, of one dtype; read one at a time.
        b: the same, of the network to be moved.

    Raises:
        ValueError: for networks that do not fit the space or one another, or that hold NaN or infinite values.
    """
    shapes = [{name: _shape_of(network[name]) for name in space.parameters} for network in (a, b)]
    if wrong := [name for name, x in shapes[0].items() if x.shape != shapes[1][name].shape]:
        found = [tuple(network[wrong[0]].shape[2:]) for network in shapes]
        raise InvalidValueError(f"{wrong[0]} has different shapes, {found[0]}, {found[1]}")
    sizes = {name: node.size or 1 for name, node in space.nodes.items()} | packing.check_tensors(space, shapes[0])
    balanced = [_Balanced(space, network, sizes) for network in (a, b)]
    mine, other = (Refinement(space, pieces, sizes) for pieces in balanced)
    match, told = Match(space, sizes, mine.refine(), other.refine()), mine.told()
    before, changed = math.inf, sum(space.count(name, sizes) for name in space.nodes)
    while 0 < changed < before:
        other.streams, last = match.carried(mine.streams), match
        match = Match(space, sizes, told, other.told())
        before, changed = changed, match.changes(last)
    return balanced[0].element().inverse() @ match.element() @ balanced[1].element()


def wide_dtype(*dtypes: torch.dtype) -> torch.dtype:
    """In which tensors are compared: float64, or float32 where all are narrower than that."""
    single = torch.finfo(torch.float32).eps
    return torch.float32 if min(torch.finfo(dtype).eps for dtype in dtypes) > single else torch.float64


def _shape_of(x: Tensor) -> Tensor:
    """A tensor with no values, one network without a channel: nothing of ``x`` need stay in memory."""
    return torch.empty((1, 1, *x.shape), dtype=x.dtype, device="meta")


def _scaled_axes(space: WeightSpace, name: str) -> list[Charged]:
    return charged_axes(space, space.axes[name], scaling, lead=0)


class _Balanced(Mapping[str, Iterable[Slice]]):
    """The pieces of a network with its scales taken away, made slice by slice when one is asked for."""

    def __init__(self, space: WeightSpace, network: Mapping[str, Tensor], sizes: Mapping[str, int]) -> None:
        self.space, self.network, self.sizes = space, network, sizes
        self.logs: _Logs = {}
        self.logs = _LogScales(self).solved()

    def __getitem__(self, name: str) -> Iterator[Slice]:
        parameter = self.space.pieces[name].parameter
        x = dict(packing.cut(self.space, parameter, self.network[parameter].detach(), self.sizes))[name]
        if not x.ndim:
            x = x[None]
        wide, factors = wide_dtype(x.dtype), []
        for axis in _scaled_axes(self.space, name):
            log = sum((q * self.logs[g] for g, q in axis.charges if g in self.logs), torch.zeros(()))
            factors += [_along(log.exp().to(wide), axis.dims, x.ndim)] if log.ndim else []
        dims = [i for i, axis in enumerate(self.space.axes[name]) if isinstance(axis, Axis)] or [0]
        dim = max(dims, key=lambda i: x.shape[i])
        count = max(1, _SLICE * x.shape[dim] // max(1, x.numel()))
        for start in range(0, x.shape[dim], count):
            given = x.narrow(dim, start, min(count, x.shape[dim] - start))
            found = Slice(dim, start, given.to("cpu", wide, copy=True))
            for factor in factors:
                found.values.mul_(factor if factor.shape[dim] == 1 else found.of(factor, dim))
            yield found

    def element(self) -> GroupElement:
        """What takes the network's scales away."""
        return element_of(self.space, self.sizes, scales={gauge: log.exp() for gauge, log in self.logs.items()})

    def __iter__(self) -> Iterator[str]:
        return iter(self.space.pieces)

    def __len__(self) -> int:
        return len(self.space.pieces)


def _along(x: Tensor, dims: tuple[int, ...], ndim: int) -> Tensor:
    """``(*sizes)`` with its sizes in the places ``dims``, which count up, of ``ndim``, and 1 in the others."""
    shape = [1] * ndim
    for dim, size in zip(dims, x.shape, strict=True):
        shape[dim] = size
    return x.reshape(shape)


class _Equation(NamedTuple):
    """One piece: what the mean of its squared logarithms is made of.

    Attributes:
        ndim: its dimensions.
        axes: on which scales act.
        share: of its entries those that are not 0, along the axes' dimensions; a number where none is 0.
        means: for each axis the sum of logarithms along it, over the number of all entries but those.
    """

    ndim: int
    axes: list[Charged]
    share: Tensor
    means: list[Tensor]


def _zeros(shape: list[int], dims: Iterable[int]) -> Tensor:
    """In the places ``dims`` as large as the shape says, 1 in the others."""
    return torch.zeros([n if dim in dims else 1 for dim, n in enumerate(shape)], dtype=torch.float64)


def _add(total: Tensor, part: Slice, x: Tensor) -> None:
    """Add what a slice is made to, summed over where ``total`` has size 1."""
    own = total if total.shape[part.dim] == 1 else part.of(total, part.dim)
    own += x.sum_to_size(own.shape)


class _LogScales:
    """The scales at which the logarithms of a network's entries have least squares."""

    def __init__(self, pieces: _Balanced) -> None:
        self.equations: list[_Equation] = []
        self.zero: _Logs = {}
        for name in pieces:
            axes = [] if name in pieces.space.dead else _scaled_axes(pieces.space, name)
            shape = [a if isinstance(a, int) else pieces.sizes[a.node] for a in pieces.space.axes[name]]
            kept = sorted({dim for axis in axes for dim in axis.dims})
            counted = all(set(axis.dims) == set(kept) for axis in axes)
            sums, zeros = [_zeros(shape, axis.dims) for axis in axes], _zeros(shape, kept if counted else ())
            for part in pieces[name]:
                x = part.values.abs_()
                least, most = (float(bound) for bound in x.aminmax())
                if not math.isfinite(most):
                    raise InvalidValueError(f"{name} holds NaN or infinite values")
                if least == 0 and counted:
                    _add(zeros, part, (x == 0).double())
                elif least == 0:
                    axes = []
                if axes:
                    logs = (x.masked_fill_(x == 0, 1) if least == 0 else x).log_()
                    for total in sums:
                        _add(total, part, logs)
            if not axes:
                continue
            share = 1 - zeros * (zeros.numel() / math.prod(shape))
            means = [total * (total.numel() / math.prod(shape)) for total in sums]
            self.equations.append(_Equation(len(shape), axes, share, means))
            for axis in axes:
                for gauge, _ in axis.charges:
                    self.zero[gauge] = torch.zeros([shape[dim] for dim in axis.dims], dtype=torch.float64)

    @staticmethod
    def _mean(x: Tensor, dims: tuple[int, ...]) -> Tensor:
        others = [dim for dim in range(x.ndim) if dim not in dims]
        return x.mean(others, keepdim=True) if others else x

    def _forces(self, means: list[list[Tensor]]) -> _Logs:
        """What the equations' parts along each axis add up to for each scale, its neurons' number divided out."""
        total = {gauge: torch.zeros_like(s) for gauge, s in self.zero.items()}
        for equation, parts in zip(self.equations, means, strict=True):
            for axis, part in zip(equation.axes, parts, strict=True):
                for gauge, q in axis.charges:
                    total[gauge] = total[gauge] + q * part.expand(
                        [total[gauge].shape[axis.dims.index(d)] if d in axis.dims else 1 for d in range(equation.ndim)]
                    ).reshape(total[gauge].shape)
        return total

    def _apply(self, s: _Logs) -> _Logs:
        means = []
        for equation in self.equations:
            placed = [
                _along(sum((q * s[g] for g, q in axis.charges), torch.zeros(())), axis.dims, equation.ndim)
                for axis in equation.axes
            ]
            means.append(
                [
                    sum((self._mean(equation.share * x, axis.dims) for x in placed), torch.zeros(()))
                    for axis in equation.axes
                ]
            )
        return self._forces(means)

    def solved(self) -> _Logs:
        """By conjugate gradients; neurons of one node have equal weight, and so have all of a piece's axes."""
        residual = {gauge: -x for gauge, x in self._forces([equation.means for equation in self.equations]).items()}
        weight = {gauge: 1 / x.numel() for gauge, x in residual.items()}

        def product(one: _Logs, other: _Logs) -> float:
            return sum(weight[g] * float((one[g] * other[g]).sum()) for g in one)

        found, direction = dict(self.zero), dict(residual)
        square = first = product(residual, residual)
        for _ in range(_STEPS):
            if square <= 1e-30 * first or not square:
                break
            applied = self._apply(direction)
            curvature = product(direction, applied)
            if curvature <= 0:
                break
            step = square / curvature
            found = {g: x + step * direction[g] for g, x in found.items()}
            residual = {g: x - step * applied[g] for g, x in residual.items()}
            square, before = product(residual, residual), square
            direction = {g: residual[g] + square / before * x for g, x in direction.items()}
        return found
