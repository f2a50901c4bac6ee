"""Equal functions in one frame, at the price of reading each parameter a few times, one after the other.

Where two networks are equal up to the group, nothing has to be searched: scales follow from the logarithms of the
entries, permutations and signs from the features of neurons (`Refinement`). Only what belongs to neurons, and a
slice of the parameter at hand, is in memory.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from nfn_monomial.canonical.charges import Charged, Gauge, along, charged_axes, onto, scaling
from nfn_monomial.canonical.neuron_features import Refinement, Slice
from nfn_monomial.canonical.newton import conjugate_gradients, joined
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
"""The logarithm of each neuron's scale ``(1, *sizes)``."""


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
        differing = [tuple(network[wrong[0]].shape[2:]) for network in shapes]
        raise InvalidValueError(f"{wrong[0]} has different shapes, {differing[0]}, {differing[1]}")
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


class _Balanced(Mapping[str, Iterable[Slice]]):
    """The pieces of a network with its scales taken away, made slice by slice when one is asked for."""

    def __init__(self, space: WeightSpace, network: Mapping[str, Tensor], sizes: Mapping[str, int]) -> None:
        self.space, self.network, self.sizes = space, network, sizes
        self.logs: _Logs = {}
        self.logs = _least_squares([e for name in self if (e := _equation(self, name))])

    def __getitem__(self, name: str) -> Iterator[Slice]:
        parameter = self.space.pieces[name].parameter
        x = dict(packing.cut(self.space, parameter, self.network[parameter].detach(), self.sizes))[name]
        if not x.ndim:
            x = x[None]
        wide, factors = wide_dtype(x.dtype), []
        for axis in charged_axes(self.space, self.space.axes[name], scaling):
            logs = [
                q * along(self.logs[gauge], axis.dims, 1 + x.ndim)[0] for gauge, q in axis.charges if gauge in self.logs
            ]
            factors += [sum(logs[1:], logs[0]).exp().to(wide)] if logs else []
        dims = [i for i, axis in enumerate(self.space.axes[name]) if isinstance(axis, Axis)] or [0]
        dim = max(dims, key=lambda i: x.shape[i])
        count = max(1, _SLICE * x.shape[dim] // max(1, x.numel()))
        for start in range(0, x.shape[dim], count):
            part = Slice(dim, start, x.narrow(dim, start, min(count, x.shape[dim] - start)).to("cpu", wide, copy=True))
            for factor in factors:
                part.values.mul_(factor if factor.shape[dim] == 1 else part.of(factor, dim))
            yield part

    def element(self) -> GroupElement:
        """What takes the network's scales away."""
        return element_of(self.space, self.sizes, scales={gauge: log.exp() for gauge, log in self.logs.items()})

    def __iter__(self) -> Iterator[str]:
        return iter(self.space.pieces)

    def __len__(self) -> int:
        return len(self.space.pieces)


class _Equation(NamedTuple):
    """One piece: what the mean of its squared logarithms is made of.

    Attributes:
        axes: on which scales act.
        share: of its entries those that are not 0, ``(1, *sizes)`` with size 1 where it does not depend on the place.
        means: for each axis the sum of logarithms along it, over the number of all entries but those; as ``share``.
    """

    axes: list[Charged]
    share: Tensor
    means: list[Tensor]


def _equation(pieces: _Balanced, name: str) -> _Equation | None:
    """Of one piece, which is read for it; None where it tells nothing about scales."""
    axes = [] if name in pieces.space.dead else charged_axes(pieces.space, pieces.space.axes[name], scaling)
    shape = [a if isinstance(a, int) else pieces.sizes[a.node] for a in pieces.space.axes[name]] or [1]
    charged = {dim for axis in axes for dim in axis.dims}
    countable = all(set(axis.dims) == charged for axis in axes)
    sums, zeros = [_zeros(shape, axis.dims) for axis in axes], _zeros(shape, charged if countable else ())
    for part in pieces[name]:
        x = part.values.abs_()
        least, most = (float(bound) for bound in x.aminmax())
        if not math.isfinite(most):
            raise InvalidValueError(f"{name} holds NaN or infinite values")
        if least == 0 and countable:
            _add(zeros, part, (x == 0).double())
        elif least == 0:
            axes = []
        if axes:
            logs = (x.masked_fill_(x == 0, 1) if least == 0 else x).log_()
            for total in sums:
                _add(total, part, logs)
    share, *means = (total * (total.numel() / math.prod(shape)) for total in (zeros, *sums))
    return _Equation(axes, 1 - share, means) if axes else None


def _zeros(shape: list[int], dims: Collection[int]) -> Tensor:
    """``(1, *sizes)``, as large as the shape says in the places ``dims``, 1 in the others."""
    return torch.zeros([1, *(n if dim in dims else 1 for dim, n in enumerate(shape, 1))], dtype=torch.float64)


def _add(total: Tensor, part: Slice, x: Tensor) -> None:
    """Add what a slice is made to, summed over where ``total`` has size 1."""
    place = total[0] if total.shape[1 + part.dim] == 1 else part.of(total[0], part.dim)
    place += x.sum_to_size(place.shape)


def _least_squares(equations: list[_Equation]) -> _Logs:
    """The log scales ``(1, *sizes)`` at which the logarithms of a network's entries have least squares.

    All pieces have equal weight, and so have all neurons of a node.
    """
    shapes = {
        gauge: [1, *(x.shape[dim] for dim in axis.dims)]
        for equation in equations
        for axis, x in zip(equation.axes, equation.means, strict=True)
        for gauge, _ in axis.charges
    }
    if not shapes:
        return {}
    sizes = [math.prod(shape) for shape in shapes.values()]
    root = torch.tensor(sizes, dtype=torch.float64).sqrt().repeat_interleave(torch.tensor(sizes))

    def pulls(terms: Iterable[list[list[Tensor]]]) -> Tensor:
        """What equations pull at each scale: for each of their axes the mean along it of a sum of some terms."""
        total = {gauge: torch.zeros(shape, dtype=torch.float64) for gauge, shape in shapes.items()}
        for equation, of_axes in zip(equations, terms, strict=True):
            for axis, parts in zip(equation.axes, of_axes, strict=True):
                for part, (gauge, q) in itertools.product(parts, axis.charges):
                    total[gauge] = total[gauge] + q * onto(part, axis.dims, torch.mean)
        return joined(list(total.values())) / root

    def logs_of(v: Tensor) -> _Logs:
        parts = torch.split(v * root, sizes, -1)
        return {gauge: part.reshape(shape) for (gauge, shape), part in zip(shapes.items(), parts, strict=True)}

    def matrix(v: Tensor) -> Tensor:
        logs, terms = logs_of(v), []
        for axes, share, _ in equations:
            parts = [
                share * q * along(logs[gauge], axis.dims, share.ndim) for axis in axes for gauge, q in axis.charges
            ]
            terms.append([parts] * len(axes))
        return pulls(terms)

    right = -pulls([[mean] for mean in equation.means] for equation in equations)
    return logs_of(conjugate_gradients(matrix, right, 1e-15 * float(right.norm()), _STEPS, look=True))
