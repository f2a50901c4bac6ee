"""Features of neurons, computed from their neighbours: equal for all networks of an orbit, and moved as neurons move.

Sums of the features of a neuron's neighbours, weighted by the weights between them, go through a fixed function and
become the neuron's. No decision is taken that rounding could turn.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from nfn_monomial.space.axes import Axis, powers
from nfn_monomial.space.links import Link
from nfn_monomial.space.weight_space import WeightSpace

CHANNELS = 8
_SWEEPS = 4  # forwards and backwards, twice

Parity: TypeAlias = tuple[tuple[int, ...], ...]
"""Whether a sign flips a stream, for each gauge of a node and of those that it is nested in."""

Streams: TypeAlias = dict[Parity, Tensor]
"""The features of a node's neurons ``(*sizes, channels)``, for each parity."""


class Slice(NamedTuple):
    """Some of a piece's entries: those from a place on along one of its axes.

    Attributes:
        dim: the axis's position.
        start: the first place.
        values: ``(*axes)``, with as many places along the axis as are in the slice.
    """

    dim: int
    start: int
    values: Tensor

    def of(self, whole: Tensor, dim: int) -> Tensor:
        """The part of a tensor, along its dimension ``dim``, that belongs to these entries."""
        return whole.narrow(dim, self.start, self.values.shape[self.dim])


def whole_slices(space: WeightSpace, pieces: Mapping[str, Tensor]) -> dict[str, list[Slice]]:
    """Pieces that are in memory, in one slice each."""
    return {link.parameter: [Slice(link.axes[0], 0, pieces[link.parameter])] for link in space.links}


class _Neighbours(NamedTuple):
    """The features of the neurons at the other ends of a parameter, ready to be summed at one of them.

    Attributes:
        parity: of the sums, weighted by entries or by their squares.
        factors: tensors that entries are multiplied with, each with its dimensions: the kernel's places come after the
            axes, and channels after those.
    """

    parity: Parity
    factors: list[tuple[Tensor, list[int]]]


class Refinement:
    """Features of neurons, refined by those of their neighbours.

    Args:
        space: the weight space.
        taken: its pieces, balanced, each in slices that are iterated over again and again.
        sizes: of all nodes.
    """

    def __init__(self, space: WeightSpace, taken: Mapping[str, Iterable[Slice]], sizes: Mapping[str, int]) -> None:
        self.space, self.taken, self.sizes = space, taken, sizes
        self.number, self.place = ({name: i for i, name in enumerate(names)} for names in (space.nodes, space.pieces))
        self.parity = {
            name: {i: self._parity(axis) for i, axis in enumerate(axes) if isinstance(axis, Axis)}
            for name, axes in space.axes.items()
        }
        self.into: dict[str, list[tuple[Link, int]]] = {name: [] for name in space.nodes}
        for link in space.links:
            for i, end in enumerate(link.ends):
                self.into[end.node].append((link, i))
        self._squares: dict[str, float] = {}
        self.streams: dict[str, Streams] = {}
        for node in filter(self.into.get, space.nodes):
            shape = [sizes[name] for name in space.ancestry(node)]
            distinct = [1] * len(shape) if space.nodes[node].permutes else shape
            start = random_numbers(f"start {self.number[node]}", *distinct, CHANNELS).expand(*shape, -1)
            self.streams[node] = {self._even(node): start}
        self.start = {node: next(iter(streams.values())) for node, streams in self.streams.items()}

    def refine(self) -> dict[str, Streams]:
        """Goes over all nodes, forwards and backwards; returns their features."""
        nodes = list(self.streams)
        for sweep in range(_SWEEPS):
            for node in reversed(nodes) if sweep % 2 else nodes:
                mixed = {p: h @ _mix(f"own {self.number[node]} {p}") for p, h in self.streams[node].items()}
                self.streams[node] = self._updated(node, mixed)
        return self.streams

    def told(self) -> dict[str, Streams]:
        """Returns the features that each neuron has from its neighbours alone; the features stay as they are."""
        return {node: self._updated(node, {}) for node in self.streams}

    def _updated(self, node: str, totals: Streams) -> Streams:
        """New features of a node's neurons: ``totals`` of their present ones, and those of their neighbours."""
        streams: Streams = {}
        even, number = self._even(node), self.number[node]
        totals[even] = totals.get(even, 0) + self.start[node]
        for link, i in self.into[node]:
            for squared, parity, message in self._messages(link, i):
                mixed = message @ _mix(f"message {self.place[link.parameter]} {i} {squared}")
                totals[parity] = totals[parity] + mixed if parity in totals else mixed
        for parity in totals:
            if parity != even:
                streams[parity] = totals[parity].asinh()
                totals[even] = totals[even] + streams[parity].square() @ _mix(f"square {number} {parity}")
        return {even: totals[even].asinh(), **streams}

    def _messages(self, link: Link, target: int) -> Iterator[tuple[bool, Parity, Tensor]]:
        """Returns what comes to the neurons at one end: whether through the entries' squares, its parity, and sums."""
        name, at, axes = link.parameter, link.ends[target].path, self._axes(link.parameter)
        neurons, kernel, channel = [axes.index(i) for i in at], len(axes), len(axes) + 1
        sizes = [self.sizes[axis.node] for i in at if isinstance(axis := self.space.axes[name][i], Axis)]
        neighbours = {squared: self._neighbours(link, target, squared) for squared in (False, True)}
        features = {squared: some for squared, some in neighbours.items() if some is not None}
        sums = {squared: torch.zeros(*sizes, CHANNELS, dtype=torch.float64) for squared in features}
        squares = 0.0
        for part in self.taken[name]:
            x = part.values.permute(*axes, *(i for i in range(part.values.ndim) if i not in axes))
            x = x.reshape(*x.shape[:kernel], -1)
            if name not in self._squares:
                squares += float(x.square().sum(dtype=torch.float64))
            along = axes.index(part.dim)
            for squared, total in sums.items():
                operands: list[Tensor | list[int]] = [x.square() if squared else x, list(range(x.ndim))]
                for factor, dims in features[squared].factors:
                    operands += [(part.of(factor, dims.index(along)) if along in dims else factor).to(x), dims]
                message = torch.einsum(*operands, [*neurons, channel])
                (part.of(total, neurons.index(along)) if along in neurons else total).add_(message)
        size = self._squares.setdefault(name, squares) / math.prod(sizes)
        for squared, total in sums.items():
            if size:
                yield squared, features[squared].parity, total / (size if squared else math.sqrt(size))

    def _neighbours(self, link: Link, target: int, squared: bool) -> _Neighbours | None:
        """Returns what the other ends give to one; None where one of them has nothing to give."""
        name, end, axes = link.parameter, link.ends[target], self._axes(link.parameter)
        parity = {i: tuple(0 for _ in p) if squared else p for i, p in self.parity[name].items()}
        kernel, channel = len(axes), len(axes) + 1
        weights = random_numbers(f"kernel {self.place[name]}", math.prod(link.kernel), CHANNELS)
        weights = weights.abs() if squared else weights
        factors = [(weights, [kernel, channel])]
        counted = set(end.path)
        for other in (other for i, other in enumerate(link.ends) if i != target):
            # The sign of what two ends are both nested in counts once.
            path = tuple(tuple(0 for _ in parity[i]) if i in counted else parity[i] for i in other.path)
            counted |= set(other.path)
            if path not in self.streams[other.node]:
                return None
            factors.append((self.streams[other.node][path], [*(axes.index(i) for i in other.path), channel]))
        if len(factors) > 1:
            (h, dims), *others = factors[1:]
            out = sorted({kernel, *dims})
            factors = [(torch.einsum(weights, [kernel, channel], h, dims, out), out), *others]
        return _Neighbours(tuple(parity[i] for i in end.path), factors)

    def _axes(self, name: str) -> list[int]:
        return [i for i, axis in enumerate(self.space.axes[name]) if isinstance(axis, Axis)]

    def _parity(self, axis: Axis) -> tuple[int, ...]:
        gauges = self.space.nodes[axis.node].gauges
        return tuple(q % 2 if gauge.flips else 0 for gauge, q in zip(gauges, powers(axis.charge), strict=True))

    def _even(self, node: str) -> Parity:
        return tuple((0,) * len(self.space.nodes[name].gauges) for name in self.space.ancestry(node))


def _mix(key: str) -> Tensor:
    return random_numbers(key, CHANNELS, CHANNELS) * math.sqrt(3 / CHANNELS)


@functools.lru_cache(1024)
def random_numbers(key: str, *shape: int) -> Tensor:
    """Numbers between -1 and 1 that are the same on every machine and in every version."""
    drawn = hashlib.shake_128(key.encode()).digest(4 * math.prod(shape))
    integers: Tensor = torch.frombuffer(bytearray(drawn), dtype=torch.int32)
    return integers.to(torch.float64).reshape(shape) / 2.0**31
