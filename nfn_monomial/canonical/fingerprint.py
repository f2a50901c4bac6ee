"""Fingerprints: a short text that is the same for all networks that a space's group turns into one another.

The network is balanced, which takes its scales away. Then every neuron looks at its neighbours: sums of their features,
weighted by the weights between them, go through a fixed function and become its own. Permutations and signs move these
features as they move neurons, step by step; no decision is taken that rounding could turn. What is left at the end is
averaged over the neurons of each node, rounded, and hashed.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import TypeAlias

import torch
from torch import Tensor

from nfn_monomial.errors import InvalidTypeError, InvalidValueError
from nfn_monomial.space import packing
from nfn_monomial.space.axes import Axis, powers
from nfn_monomial.space.links import Link
from nfn_monomial.space.weight_space import WeightSpace

from .balance import balancing_element

_CHANNELS = 8
_SWEEPS = 4  # forwards and backwards, twice
_NUMBERS = 8  # that are hashed
_VERSION = 1  # of what is computed: networks have another fingerprint under another one

_Parity: TypeAlias = tuple[tuple[int, ...], ...]
"""Whether a sign flips a stream, for each gauge of a node and of those that it is nested in."""

_Streams: TypeAlias = dict[_Parity, Tensor]
"""The features of a node's neurons ``(*sizes, channels)``, for each parity."""


def fingerprint(space: WeightSpace, network: Mapping[str, Tensor]) -> str:
    """A text of 32 hexadecimal digits: the same for all networks that the group turns into one another.

    Equal functions that a symmetry of the space relates have equal fingerprints, whatever the scales between them, so
    checkpoints can be looked up by what they compute. The network is balanced (`balance`), so that only permutations
    and signs are left. A neuron ``j`` has features ``h_j`` that flip with its sign, and others that do not. Those of
    all nodes, one after the other, forwards and backwards, become ::

        h_j <- asinh(A h_j + sum over parameters W of B_W (sum over k of W_jk h_k)),

    with fixed random matrices ``A`` and ``B_W``; those that do not flip also see sums of ``W_jk^2``. Means over
    neurons, and the logarithms of the parameters' root mean squares, are added up with random factors to 8 numbers.
    They are rounded to multiples of ``8 sqrt(eps)``, of the precision ``eps`` of the dtype, and hashed, together with
    the nodes' sizes and symmetries and the parameters' axes, in order, but with no name. Parameters that do not matter
    (``space.dead``) are left out.

    **Limits.** Numbers that lie just between two multiples are rounded apart: the same function has another fingerprint
    about once in 100,000 networks in float64, once in some hundreds in float32; `compare` decides. Networks that differ
    by less than the rounding may have the same one, as where one weight of many is changed by little. A network in
    float32 and in float64 has two, and so have networks that are the same function without a symmetry of the space
    between them. Where no bias and no fixed input or output says which sign a neuron has, signs that only products of
    several weights show are not seen. All is held in float64.

    Args:
        space: the weight space.
        network: parameter name -> tensor ``(*shape)``; what is no parameter of the space is not looked at.

    Raises:
        ValueError: as `WeightSpace.pack`, for names, shapes and values that do not fit.
        TypeError: for tensors that are not floating point.

    >>> space = WeightSpace.mlp([1, 2, 1], "relu", bias=False)
    >>> a = {"weight.0": torch.tensor([[1.0], [2.0]]), "weight.1": torch.tensor([[3.0, 4.0]])}
    >>> b = {"weight.0": torch.tensor([[8.0], [1.0]]), "weight.1": torch.tensor([[1.0, 3.0]])}
    >>> fingerprint(space, a) == fingerprint(space, b)
    True
    """
    given, sizes = _checked(space, network)
    step = 8 * math.sqrt(max(torch.finfo(x.dtype).eps for x in given.values()))
    rounded = (invariants(space, given, sizes) / step).round().to(torch.int64).tolist()
    text = f"{_VERSION};{_structure(space, sizes)};{step};{rounded}"
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def invariants(space: WeightSpace, network: Mapping[str, Tensor], sizes: Mapping[str, int]) -> Tensor:
    """The numbers that `fingerprint` rounds: equal, but for rounding errors, for all networks of an orbit.

    Args:
        space: the weight space.
        network: parameter name -> tensor ``(*shape)``.
        sizes: of all nodes.
    """
    with torch.no_grad():
        alive = {name: packing.without_dead(space, name, network[name], sizes) for name in space.parameters}
        features = space.pack({name: x.detach().to("cpu", torch.float64)[None, None] for name, x in alive.items()})
        balanced = space.unpack(balancing_element(space, features, signs=False).act(features))
        taken = packing.pieces(space, {name: x[0, 0] for name, x in balanced.items()}, sizes)
        return _Refinement(space, taken, sizes).numbers()


def _checked(space: WeightSpace, network: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, int]]:
    """The parameters of the space, and the sizes of all nodes."""
    missing = [name for name in space.parameters if name not in network]
    if missing:
        expected = ", ".join(map(space.describe, missing))
        raise InvalidValueError(f"fingerprint: the network has no {', '.join(missing)}; {space} expects {expected}")
    given = {name: network[name] for name in space.parameters}
    for name, x in given.items():
        if not isinstance(x, Tensor) or not x.is_floating_point():
            found = x.dtype if isinstance(x, Tensor) else type(x).__name__
            raise InvalidTypeError(f"fingerprint: {name} is {found}; a floating point tensor is expected")
    one = {name: x.detach().to("cpu", torch.float64)[None, None] for name, x in given.items()}
    return given, space.node_sizes(space.pack(one))


def _structure(space: WeightSpace, sizes: Mapping[str, int]) -> str:
    """Nodes, symmetries and axes as text, without names."""
    number = {name: i for i, name in enumerate(space.nodes)}
    nodes = [
        (*map(str, node.gauges), sizes.get(name), number.get(node.parent or "")) for name, node in space.nodes.items()
    ]
    axes = [
        [(number[a.node], space.nodes[a.node].charge(a.charge)) if isinstance(a, Axis) else a for a in found]
        for found in space.axes.values()
    ]
    return f"{nodes};{axes}"


class _Refinement:
    """Features of neurons, refined by those of their neighbours.

    Args:
        space: the weight space.
        taken: its pieces, balanced, in float64.
        sizes: of all nodes.
    """

    def __init__(self, space: WeightSpace, taken: Mapping[str, Tensor], sizes: Mapping[str, int]) -> None:
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
        self.streams: dict[str, _Streams] = {}
        for node in space.nodes:
            shape = [sizes[name] for name in space.ancestry(node)] if self.into[node] else []
            if self.into[node]:
                own = (1,) * len(shape) if space.nodes[node].permutes else tuple(shape)
                start = _random(f"start {self.number[node]}", *own, _CHANNELS).expand(*shape, -1)
                self.streams[node] = {self._even(node): start}
        self.start = {node: next(iter(streams.values())) for node, streams in self.streams.items()}

    def numbers(self) -> Tensor:
        """What is hashed, before it is rounded."""
        nodes = list(self.streams)
        for sweep in range(_SWEEPS):
            for node in reversed(nodes) if sweep % 2 else nodes:
                self._update(node)
        total = torch.zeros(_NUMBERS, dtype=torch.float64)
        for node, streams in self.streams.items():
            for parity, h in streams.items():
                mean = (h.square() if any(map(any, parity)) else h).flatten(0, -2).mean(0)
                total += mean @ _random(f"read {self.number[node]} {parity}", _CHANNELS, _NUMBERS)
        for name, x in self.taken.items():
            size = x.square().mean().sqrt()
            # 0 is far from all other sizes.
            total += torch.where(size > 0, size.log(), -1e3) * _random(f"size {self.place[name]}", _NUMBERS)
            if not self._axes(name):  # it has no neurons to speak for it
                total += x.flatten() @ _random(f"entries {self.place[name]}", x.numel(), _NUMBERS)
        return total

    def _update(self, node: str) -> None:
        """New features of a node's neurons, from their own and those of their neighbours."""
        streams, even, number = self.streams[node], self._even(node), self.number[node]
        totals = {parity: h @ _mix(f"own {number} {parity}") for parity, h in streams.items()}
        totals[even] = totals[even] + self.start[node]
        for link, i in self.into[node]:
            for squared in (False, True):
                parity, message = self._message(link, i, squared)
                if message is not None:
                    mixed = message @ _mix(f"message {self.place[link.parameter]} {i} {squared}")
                    totals[parity] = totals[parity] + mixed if parity in totals else mixed
        for parity in totals:
            if parity != even:
                streams[parity] = totals[parity].asinh()
                totals[even] = totals[even] + streams[parity].square() @ _mix(f"square {number} {parity}")
        streams[even] = totals[even].asinh()

    def _message(self, link: Link, target: int, squared: bool) -> tuple[_Parity, Tensor | None]:
        """What comes to the neurons at one end, and its parity; None where a neighbour has nothing to give.

        Args:
            link: the parameter.
            target: number of the end.
            squared: whether the entries' squares count, which no sign flips.
        """
        name, end, axes = link.parameter, link.ends[target], self._axes(link.parameter)
        parity = {i: tuple(0 for _ in p) if squared else p for i, p in self.parity[name].items()}
        x = self.taken[name]
        x = x.permute(*axes, *(i for i in range(x.ndim) if i not in axes)).reshape(*(x.shape[i] for i in axes), -1)
        dim = {at: i for i, at in enumerate(axes)}
        kernel, channel = len(axes), len(axes) + 1
        weights = _random(f"kernel {self.place[name]}", x.shape[-1], _CHANNELS)
        others, dims = weights.abs() if squared else weights, [kernel, channel]
        counted = set(end.at)
        for other in (other for i, other in enumerate(link.ends) if i != target):
            # The sign of what two ends are both nested in counts once.
            path = tuple(tuple(0 for _ in parity[i]) if i in counted else parity[i] for i in other.at)
            counted |= set(other.at)
            h = self.streams[other.node].get(path)
            if h is None:
                return (), None
            own = [dim[i] for i in other.at]
            out = sorted({*dims, *own})
            others, dims = torch.einsum(others, dims, h, [*own, channel], out), out
        x = x.square() if squared else x
        count = x.numel() / math.prod([x.shape[dim[i]] for i in end.at])
        size = x.mean() * count if squared else (x.square().mean() * count).sqrt()
        if not size:
            return (), None
        found = torch.einsum(x, list(range(kernel + 1)), others, dims, [*(dim[i] for i in end.at), channel]) / size
        return tuple(parity[i] for i in end.at), found

    def _axes(self, name: str) -> list[int]:
        return [i for i, axis in enumerate(self.space.axes[name]) if isinstance(axis, Axis)]

    def _parity(self, axis: Axis) -> tuple[int, ...]:
        gauges = self.space.nodes[axis.node].gauges
        return tuple(q % 2 if gauge.flips else 0 for gauge, q in zip(gauges, powers(axis.charge), strict=True))

    def _even(self, node: str) -> _Parity:
        return tuple((0,) * len(self.space.nodes[name].gauges) for name in self.space.ancestry(node))


def _mix(key: str) -> Tensor:
    return _random(key, _CHANNELS, _CHANNELS) * math.sqrt(3 / _CHANNELS)


def _random(key: str, *shape: int) -> Tensor:
    """Numbers between -1 and 1 that are the same on every machine and in every version."""
    drawn = hashlib.shake_128(key.encode()).digest(4 * math.prod(shape))
    integers: Tensor = torch.frombuffer(bytearray(drawn), dtype=torch.int32)
    return integers.to(torch.float64).reshape(shape) / 2.0**31
