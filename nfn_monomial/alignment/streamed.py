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

from nfn_monomial.canonical.charges import Gauge
from nfn_monomial.canonical.refinement import Parity, Refinement, Slice, Streams
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.space import packing
from nfn_monomial.space.axes import Axis, paths_of, powers
from nfn_monomial.space.groups import GroupElement
from nfn_monomial.space.monomial import MonomialMatrix
from nfn_monomial.space.weight_space import WeightSpace

from .signs import parity, sign_bases

_SLICE = 1 << 17  # entries that are looked at together: what is made of them stays in the processor's cache
_STEPS = 1000  # of conjugate gradients, of which as many are needed as nodes have gauges
_ROWS = 1024  # of neurons, compared with all others at a time
_MOST = 4096  # neurons that are assigned to one another where the nearest are taken by several

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
    match, told = _Match(space, sizes, mine.refine(), other.refine()), mine.told()
    before, changed = math.inf, sum(space.count(name, sizes) for name in space.nodes)
    while 0 < changed < before:
        other.streams, last = match.carried(mine.streams), match
        match = _Match(space, sizes, told, other.told())
        before, changed = changed, match.changes(last)
    frames = [_element(space, sizes, {g: s.exp() for g, s in pieces.logs.items()}) for pieces in balanced]
    return frames[0].inverse() @ _element(space, sizes, match.factors(), match.sources) @ frames[1]


def wide_dtype(*dtypes: torch.dtype) -> torch.dtype:
    """In which tensors are compared: float64, or float32 where all are narrower than that."""
    single = torch.finfo(torch.float32).eps
    return torch.float32 if min(torch.finfo(dtype).eps for dtype in dtypes) > single else torch.float64


def _shape_of(x: Tensor) -> Tensor:
    """A tensor with no values, one network without a channel: nothing of ``x`` need stay in memory."""
    return torch.empty((1, 1, *x.shape), dtype=x.dtype, device="meta")


class _Charged(NamedTuple):
    """An axis of a piece on which scales act: its gauges and charges, and the dimensions along which neurons lie."""

    charges: tuple[tuple[Gauge, int], ...]
    dims: tuple[int, ...]


def _charged(space: WeightSpace, name: str) -> list[_Charged]:
    axes, found = space.axes[name], []
    for axis, path in zip(axes, paths_of(axes, space.nesting), strict=True):
        if isinstance(axis, Axis):
            gauges = enumerate(zip(space.nodes[axis.node].gauges, powers(axis.charge), strict=True))
            charges = tuple((Gauge(axis.node, i), q) for i, (gauge, q) in gauges if gauge.scales and q)
            found += [_Charged(charges, path)] if charges else []
    return found


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
        for axis in _charged(self.space, name):
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
    axes: list[_Charged]
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
            axes = [] if name in pieces.space.dead else _charged(pieces.space, name)
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


def _sources(
    space: WeightSpace, a: Mapping[str, Streams], b: Mapping[str, Streams], sizes: Mapping[str, int]
) -> dict[str, Tensor]:
    """Node -> for every neuron of a the place of b's that is most like it, among those of a parent's like one."""
    found: dict[str, Tensor] = {}
    for name in sorted(space.nodes, key=lambda name: len(space.ancestry(name))):
        n, above = sizes[name], space.nesting.get(name)
        one, other = (_apart(_colours(space, x, name, sizes), n) for x in (a, b))
        blocks = torch.arange(len(one)) if above is None else found[above]
        inside = torch.arange(n).expand(len(one), n)
        if space.nodes[name].permutes and one.shape[-1]:
            inside = torch.stack([_nearest(one[i], other[block]) for i, block in enumerate(blocks.tolist())])
        found[name] = (inside + n * blocks[:, None]).flatten()
    return found


def _colours(space: WeightSpace, streams: Mapping[str, Streams], name: str, sizes: Mapping[str, int]) -> Tensor:
    """What no sign changes of a node's neurons, ``(neurons, colours)``: their own, and means over those inside."""
    parts = [h.flatten(0, -2) for path, h in streams.get(name, {}).items() if not any(map(any, path))]
    inner = [child for child, parent in space.nesting.items() if parent == name]
    parts += [_apart(_colours(space, streams, child, sizes), sizes[child]).mean(1) for child in inner]
    return torch.cat([torch.zeros(space.count(name, sizes), 0, dtype=torch.float64), *parts], -1)


def _apart(x: Tensor, n: int) -> Tensor:
    """``(blocks x n, ..)`` as ``(blocks, n, ..)``."""
    return x.reshape(len(x) // n, n, *x.shape[1:])


def _nearest(a: Tensor, b: Tensor) -> Tensor:
    """For each of a's rows the row of b that is nearest, each taken once: what several want is assigned among these."""
    nearest = torch.cat([torch.cdist(rows, b).argmin(-1) for rows in torch.split(a, _ROWS)])
    wanted = torch.bincount(nearest, minlength=len(b))
    rows, free = (wanted[nearest] > 1).nonzero()[:, 0], (wanted != 1).nonzero()[:, 0]
    if 0 < len(rows) <= _MOST:
        from scipy.optimize import linear_sum_assignment

        free = free[torch.from_numpy(linear_sum_assignment(torch.cdist(a[rows], b[free]).numpy())[1])]
    nearest[rows] = free  # of more than that none can be told from the others: no symmetry turns one into the other
    return nearest


class _Match:
    """Which of b's neurons are a's, by their features.

    Attributes:
        sources: node -> for every neuron of a its place in b.
        signs: node -> the signs ``(rank, neurons)`` that turn b's features into a's, of the classes of `SignBasis`.
    """

    def __init__(
        self, space: WeightSpace, sizes: Mapping[str, int], a: Mapping[str, Streams], b: Mapping[str, Streams]
    ) -> None:
        self.space, self.bases = space, sign_bases(space)
        self.sources = _sources(space, a, b, sizes)
        self.signs: dict[str, Tensor] = {}
        for name, basis in self.bases.items():
            if not basis.rank:
                continue
            sums: dict[int, Tensor] = {}
            for path, h in a[name].items() if name in a else ():
                if path in b[name]:
                    fits = (h.flatten(0, -2) * b[name][path].flatten(0, -2)[self.sources[name]]).sum(-1)
                    fits, key = fits * self._sign(name, path[:-1], len(fits)), _class(space, name, path[-1])
                    sums[key] = sums[key] + fits if key in sums else fits
            count = space.count(name, sizes)
            self.signs[name] = basis.best(sums)[1] if sums else torch.ones(basis.rank, count, dtype=torch.float64)

    def _sign(self, name: str, path: Parity, count: int) -> Tensor:
        """Of a stream: the signs of a node's neurons, and of those that they are nested in, as far as the path goes."""
        total = torch.ones(count, dtype=torch.float64)
        for above, odd in zip(self.space.ancestry(name), path, strict=False):
            if any(odd):
                own = self.bases[above].sign(self.signs[above], _class(self.space, above, odd))
                total = total * own.repeat_interleave(count // len(own))
        return total

    def carried(self, a: Mapping[str, Streams]) -> dict[str, Streams]:
        """The features of a, for the neurons of b that match."""
        found: dict[str, Streams] = {}
        for name, streams in a.items():
            places = self.sources[name].argsort()
            for path, h in streams.items():
                flat = h.flatten(0, -2)
                signed = flat * self._sign(name, path, len(flat))[:, None]
                found.setdefault(name, {})[path] = signed[places].reshape(h.shape)
        return found

    def changes(self, other: _Match) -> int:
        """The number of neurons that another match has in another place, or with another sign."""
        total = sum(int((x != other.sources[name]).sum()) for name, x in self.sources.items())
        return total + sum(int((x != other.signs[name]).sum()) for name, x in self.signs.items())

    def factors(self) -> dict[Gauge, Tensor]:
        """The signs of each gauge."""
        return {
            Gauge(name, i): sign
            for name, signs in self.signs.items()
            for i, sign in enumerate(self.bases[name].of_gauges(signs, len(self.space.nodes[name].gauges)))
        }


def _class(space: WeightSpace, node: str, odd: tuple[int, ...]) -> int:
    return parity(space, node, odd if len(odd) > 1 else odd[0])


def _element(
    space: WeightSpace,
    sizes: Mapping[str, int],
    factors: Mapping[Gauge, Tensor],
    sources: Mapping[str, Tensor] | None = None,
) -> GroupElement:
    matrices = {}
    for name, node in space.nodes.items():
        if node.permutes:
            places = torch.arange(space.count(name, sizes))
            one = torch.ones(len(places), dtype=torch.float64)
            gauges = [Gauge(name, i) for i in range(len(node.gauges))]
            scales = [factors[g].flatten() if g in factors else one for g in gauges]
            if sources is None:
                matrices[name] = MonomialMatrix.diagonal(scales)
            else:
                # Neurons that these are nested in have moved already.
                inside = sources[name] % sizes[name] + places // sizes[name] * sizes[name]
                matrices[name] = MonomialMatrix(scales, inside.argsort())
    return GroupElement(space, matrices)
