"""Places that first weights give to neurons, as far as the weights themselves show them.

Where an initialisation treats neurons alike, a network is as likely as the same with its neurons in any other order.
Whatever is looked at in a network is then compared with what it is in random orders of a node's neurons, which is
exact. Looked at are likenesses to matrices with an order that initialisations are known to have, and of neighbours;
and, of two networks, zeros and entries that stand out in the same places.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from nfn_monomial.space import packing
from nfn_monomial.space.axes import Axis
from nfn_monomial.space.weight_space import WeightSpace

Found: TypeAlias = dict[str, str]
"""Node -> what gives its neurons places of their own, in words."""

LOOKED_FOR = "identities, Hadamard matrices, cosines, sines, neighbours that are alike, zeros in common"

COUNTED = 1e-3  # the share of all errors that is left to the count of neurons in place

SURE = 1e-4  # p-values of an order, of a node or of all, that are taken for one
_DRAWS, _MORE, _LOOK_AGAIN = 499, 14_999, 0.01  # orders; more of them, up to this p-value of the first
_WORK, _AT_ONCE = 6_500_000, 1_000_000  # neurons that are put in order; of these at once
_NEURONS, _COLUMNS = 512, 4096  # that are looked at: the first and, of neurons, others at equal distances
_TIES = 1e-9  # differences of cosines that count as none
_NOTHING = 1e-6  # of the usual size of entries: as good as 0
_WIDE = 16  # columns of a matrix in which an entry that is half of its row is no accident


def own_pieces(space: WeightSpace, still: Collection[str]) -> dict[str, list[str]]:
    """Node -> the pieces of which it is the last node, and has one axis; those that others are nested in first, without
    those that stay as they are.
    """
    order = sorted(space.nodes, key=lambda name: len(space.ancestry(name)))
    own: dict[str, list[str]] = {name: [] for name in order if space.nodes[name].permutes and name not in still}
    rank = {name: i for i, name in enumerate(own)}
    for piece, axes in space.axes.items():
        nodes = [axis.node for axis in axes if isinstance(axis, Axis) and axis.node in rank]
        if nodes and nodes.count(last := max(nodes, key=rank.__getitem__)) == 1:
            own[last].append(piece)
    return own


def rows_of(
    space: WeightSpace, network: Mapping[str, Tensor], name: str, own: Sequence[str], sizes: Mapping[str, int]
) -> list[Tensor]:
    """The entries of a node's neurons, piece by piece: ``(blocks, n, columns, kernel)``."""
    found = []
    for piece in own:
        axes, parameter = space.axes[piece], space.pieces[piece].parameter
        x = dict(packing.cut(space, parameter, network[parameter].detach(), sizes))[piece]
        (at,) = (place.path for place in space.pieces[piece].places if place.node == name)
        rest = [i for i in range(x.ndim) if i not in at]
        columns = [i for i in rest if isinstance(axes[i], Axis)] or rest[:1]
        kernel = [i for i in rest if i not in columns]
        lengths = [math.prod(x.shape[i] for i in dims) for dims in (columns, kernel)]
        x = x.permute(*at, *columns, *kernel)
        found.append(x.reshape(space.count(name, sizes) // sizes[name], sizes[name], *lengths))
    return found


def unit_vectors(parts: Sequence[Tensor]) -> Tensor:
    """Rows ``(blocks, n, ...)`` of all pieces as one, centred over neurons, of unit length or 0."""
    flat = [x.flatten(2) - x.flatten(2).mean(1, keepdim=True) for x in parts]
    vectors = torch.cat([x * (x.numel() ** 0.5 / (float(x.norm()) or 1.0)) for x in flat], -1)
    lengths: Tensor = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    return vectors / lengths.clamp_min(1e-300)


def count_bound(count: Tensor, sets: int) -> Tensor:
    """Logarithm of the probability of so many neurons in place, at most, of sets that are each in a random order."""
    return count * math.log(sets) - torch.lgamma(count + 1)


def fisher(logs: Tensor) -> Tensor:
    """Logarithm of the p-value that Fisher's method makes of those of independent ones: along the first dimension."""
    half = -logs.sum(0)  # of the statistic, chi-squared with 2 k degrees
    k = torch.arange(len(logs), dtype=torch.float64)
    joined: Tensor = torch.logsumexp(torch.special.xlogy(k, half[..., None]) - torch.lgamma(k + 1), -1) - half
    return joined


class _Rows(NamedTuple):
    """Some of a node's neurons: entries ``(blocks, n, columns, kernel)`` piece by piece, in float64 on the CPU; their
    places among all ``(blocks, n, 1, 1)``; and how many there are.
    """

    parts: list[Tensor]
    places: Tensor
    neurons: int


_Tested: TypeAlias = Callable[[str, Sequence[str]], dict[str, float]]


def places_in(
    space: WeightSpace,
    network: Mapping[str, Tensor],
    sizes: Mapping[str, int],
    still: Collection[str],
    sure: float = SURE,
) -> Found:
    """Nodes whose neurons have places of their own in a network, if some are ``still``, and what shows it.

    Args:
        space: the weight space.
        network: parameter name -> tensor ``(*shape)``.
        sizes: of all nodes.
        still: nodes that are not looked at.
        sure: how likely neurons that are treated alike are to be said to have places by each thing that is looked for,
            at most: of a node, or of all.
    """
    return _until_none(space, still, lambda name, own: _orders(_rows(space, network, name, own, sizes)), sure)


def places_in_both(
    space: WeightSpace,
    a: Mapping[str, Tensor],
    b: Mapping[str, Tensor],
    sizes: Mapping[str, int],
    still: Collection[str],
    sure: float = SURE,
) -> Found:
    """Nodes along which two networks have zeros, or entries that stand out, in the same places, and which of these."""

    def tested(name: str, own: Sequence[str]) -> dict[str, float]:
        both = [_rows(space, network, name, own, sizes).parts for network in (a, b)]
        found = {}
        for what, marks in _MARKS.items():
            one, other = (unit_vectors([marks(x).double() for x in parts]) for parts in both)
            if one.any() and other.any():
                found[what] = _in_place(one @ other.mT)
        return found

    return _until_none(space, still, tested, sure)


def marked(space: WeightSpace, network: Mapping[str, Tensor], sizes: Mapping[str, int], still: Collection[str]) -> bool:
    """Whether a network has any zeros, or entries that stand out, for `places_in_both`."""
    rows = (_rows(space, network, name, own, sizes) for name, own in own_pieces(space, still).items() if own)
    return any(bool(marks(x).any()) for of in rows for x in of.parts for marks in _MARKS.values())


def _until_none(space: WeightSpace, still: Collection[str], tested: _Tested, sure: float) -> Found:
    """Nodes of which a test finds something, then those of which it does when these stay as they are, and so on."""
    found: Found = {}
    known: dict[tuple[str, ...], dict[str, float]] = {}
    while True:
        own = {name: pieces for name, pieces in own_pieces(space, {*still, *found}).items() if pieces}
        for name, pieces in own.items():
            if (name, *pieces) not in known:
                known[name, *pieces] = tested(name, pieces)
        p = {name: known[name, *pieces] for name, pieces in own.items()}
        new = {name: min(of, key=of.__getitem__) for name, of in p.items() if min(of.values(), default=1.0) <= sure}
        for what in () if new else {what for of in p.values() for what in of}:
            values = {name: of[what] for name, of in p.items() if what in of}
            logs = torch.tensor([*values.values()], dtype=torch.float64).log()
            if float(fisher(logs)) <= math.log(sure):  # what no node shows alone
                new[min(values, key=values.__getitem__)] = what
        if not new:
            return found
        found |= new


def _rows(
    space: WeightSpace, network: Mapping[str, Tensor], name: str, own: Sequence[str], sizes: Mapping[str, int]
) -> _Rows:
    n, count = sizes[name], space.count(name, sizes)
    blocks, half = min(count // n, max(1, _NEURONS // n)), _NEURONS // 2
    chosen = torch.arange(n)
    if n > _NEURONS:
        chosen = torch.cat([chosen[:half], torch.linspace(half, n - 1, half).round().long()])
    parts = [
        x[:blocks, :, :_COLUMNS][:, chosen.to(x.device)].to("cpu", torch.float64)
        for x in rows_of(space, network, name, own, sizes)
    ]
    return _Rows(parts, (torch.arange(blocks)[:, None] * n + chosen)[..., None, None], count)


def _orders(rows: _Rows) -> dict[str, float]:
    """P-values of all orders that are looked for."""
    own, found = unit_vectors(rows.parts), {}
    for what, entry in _MATRICES.items():
        like = [
            entry(rows.places, torch.arange(x.shape[2])[:, None], rows.neurons, x.shape[2]).double().expand(x.shape)
            for x in rows.parts
        ]
        found[what] = _in_place(own @ unit_vectors(like).mT)
    if min(found.values()) <= SURE:  # which says more than likeness of neighbours
        return found
    for what, (view, shift) in _VIEWS.items():
        parts = [view(x) for x in rows.parts]
        shifted = unit_vectors([x.roll(shift, 2) for x in parts])
        found[what] = _rank(shifted @ unit_vectors(parts).mT, lambda orders: (orders[..., :-1], orders[..., 1:]))
    return found


def _in_place(cosines: Tensor) -> float:
    """P-value of cosines ``(blocks, n, n)`` of neurons in the same place: of their sum, and of how many are largest."""
    blocks, n, _ = cosines.shape
    sizes, same = cosines.abs(), torch.eye(n, dtype=torch.bool)
    count = (sizes.diagonal(dim1=1, dim2=2) > sizes.masked_fill(same, -2.0).amax(-1) + _TIES).sum()
    by_count = float(count_bound(count.double(), blocks).exp()) / COUNTED
    if by_count <= SURE:
        return by_count
    return min(_rank(cosines, lambda orders: (torch.arange(n), orders)) / (1 - COUNTED), by_count, 1.0)


def _rank(cosines: Tensor, pairs: Callable[[Tensor], tuple[Tensor, Tensor]]) -> float:
    """P-value of how far the sum of some cosines ``(blocks, n, n)`` is from its mean over random orders of neurons."""
    blocks, n, _ = cosines.shape
    start, p = torch.arange(blocks)[:, None] * n * n, 1.0
    for draws in (_DRAWS, min(_MORE, _WORK // (blocks * n))):
        sums = []
        for orders in torch.split(_random_orders(draws, blocks, n), max(1, _AT_ONCE // (blocks * n))):
            one, other = pairs(orders.long())
            sums.append(cosines.flatten()[(start + one * n + other).flatten(1)].sum(-1))
        apart = torch.cat(sums)
        apart = (apart - apart.mean()).abs()
        p = float((apart >= apart[0] - _TIES * blocks * n).double().mean())
        if p > _LOOK_AGAIN:
            break
    return p


@functools.lru_cache(4)
def _random_orders(draws: int, blocks: int, n: int) -> Tensor:
    """The order that neurons have, and random ones: ``(draws + 1, blocks, n)``."""
    orders = torch.rand(draws + 1, blocks, n, generator=torch.Generator().manual_seed(draws)).argsort(-1)
    orders[0] = torch.arange(n)
    return orders.to(torch.int32)


def _parity(x: Tensor) -> Tensor:
    """Whether a number has an odd number of bits."""
    for shift in (16, 8, 4, 2, 1):
        x = x ^ (x >> shift)
    return x & 1


def _waves(t: Tensor, channel: Tensor, channels: int) -> Tensor:
    """The table of sines and cosines, in turns, that transformers add to their streams."""
    angle = t / 1e4 ** (channel // 2 * 2 / channels)
    return torch.where(channel % 2 == 0, angle.sin(), angle.cos())


def _halves(t: Tensor, channel: Tensor, channels: int) -> Tensor:
    """The same, all sines in front."""
    half = (channels + 1) // 2
    angle = t / 1e4 ** (channel % half / half)
    return torch.where(channel < half, angle.sin(), angle.cos())


_MATRICES: dict[str, Callable[[Tensor, Tensor, int, int], Tensor]] = {  # of row and column, of so many
    "an identity": lambda i, j, n, m: i == j,
    "a reversed identity": lambda i, j, n, m: i + j == m - 1,
    "a Hadamard matrix": lambda i, j, n, m: _parity(i & j),
    "cosines": lambda i, j, n, m: (math.pi * (j + 0.5) * i / m).cos(),
    "cosines, transposed": lambda i, j, n, m: (math.pi * (i + 0.5) * j / n).cos(),
    "sines": lambda i, j, n, m: _waves(j, i, n),
    "sines, transposed": lambda i, j, n, m: _waves(i, j, m),
    "sines beside cosines": lambda i, j, n, m: _halves(j, i, n),
    "sines beside cosines, transposed": lambda i, j, n, m: _halves(i, j, m),
}
_VIEWS: dict[str, tuple[Callable[[Tensor], Tensor], int]] = {  # by how many columns a neuron is shifted to the next one
    "neighbours that are alike": (lambda x: x, 0),
    "neighbours of alike sizes": (torch.abs, 0),
    "neighbours that change alike": (lambda x: x * x.roll(1, 2), 0),
    "a diagonal": (torch.abs, 1),
    "a reversed diagonal": (torch.abs, -1),
}
_MARKS: dict[str, Callable[[Tensor], Tensor]] = {
    "zeros in the same places of both": lambda x: x.abs() <= _NOTHING * x.square().mean().sqrt(),
    "large entries in the same places of both": lambda x: (
        x.square() > (0.5 if x.shape[2] >= _WIDE else 1.0) * x.square().sum((2, 3), keepdim=True)
    ),
}
