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
from typing import TypeAlias

import torch
from torch import Tensor

from nfn_monomial.space import packing
from nfn_monomial.space.axes import Axis
from nfn_monomial.space.weight_space import WeightSpace

Reasons: TypeAlias = dict[str, str]
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


def pieces_by_node(space: WeightSpace, still: Collection[str]) -> dict[str, list[str]]:
    """Node -> the pieces of which it is the last node, and has one axis; those that others are nested in first.

    Nodes that stay as they are (``still``) are left out, and so are those without a piece.
    """
    order = sorted(space.nodes, key=lambda name: len(space.ancestry(name)))
    pieces: dict[str, list[str]] = {name: [] for name in order if space.nodes[name].permutes and name not in still}
    rank = {name: i for i, name in enumerate(pieces)}
    for piece, axes in space.axes.items():
        nodes = [axis.node for axis in axes if isinstance(axis, Axis) and axis.node in rank]
        if nodes and nodes.count(last := max(nodes, key=rank.__getitem__)) == 1:
            pieces[last].append(piece)
    return {name: of_node for name, of_node in pieces.items() if of_node}


def rows_of(
    space: WeightSpace, network: Mapping[str, Tensor], name: str, pieces: Sequence[str], sizes: Mapping[str, int]
) -> list[Tensor]:
    """The entries of a node's neurons, piece by piece: ``(blocks, n, columns, kernel)``."""
    rows = []
    for piece in pieces:
        axes, parameter = space.axes[piece], space.pieces[piece].parameter
        x = dict(packing.cut(space, parameter, network[parameter].detach(), sizes))[piece]
        (at,) = (place.path for place in space.pieces[piece].places if place.node == name)
        rest = [i for i in range(x.ndim) if i not in at]
        columns = [i for i in rest if isinstance(axes[i], Axis)] or rest[:1]
        kernel = [i for i in rest if i not in columns]
        lengths = [math.prod(x.shape[i] for i in dims) for dims in (columns, kernel)]
        x = x.permute(*at, *columns, *kernel)
        rows.append(x.reshape(space.count(name, sizes) // sizes[name], sizes[name], *lengths))
    return rows


def unit_vectors(parts: Sequence[Tensor]) -> Tensor:
    """Rows ``(blocks, n, ...)`` of all pieces as one, centred over neurons, of unit length or 0."""
    flat = [x.flatten(2) - x.flatten(2).mean(1, keepdim=True) for x in parts]
    vectors = torch.cat([x * (x.numel() ** 0.5 / (float(x.norm()) or 1.0)) for x in flat], -1)
    lengths: Tensor = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    return vectors / lengths.clamp_min(1e-300)


def count_bound(count: Tensor, sets: int) -> Tensor:
    """Logarithm of a bound on the probability of a count of neurons in place, where sets are each in a random order."""
    return count * math.log(sets) - torch.lgamma(count + 1)


def fisher(logs: Tensor) -> Tensor:
    """Joins logarithms of independent p-values along the first dimension by Fisher's method."""
    half = -logs.sum(0)  # of the statistic, chi-squared with 2 k degrees
    k = torch.arange(len(logs), dtype=torch.float64)
    joined: Tensor = torch.logsumexp(torch.special.xlogy(k, half[..., None]) - torch.lgamma(k + 1), -1) - half
    return joined


def places_in(
    space: WeightSpace,
    network: Mapping[str, Tensor],
    sizes: Mapping[str, int],
    still: Collection[str],
    sure: float = SURE,
) -> Reasons:
    """Finds nodes whose neurons have places of their own in a network, if some are ``still``, and what shows it.

    Args:
        space: the weight space.
        network: parameter name -> tensor ``(*shape)``.
        sizes: of all nodes.
        still: nodes that are not looked at.
        sure: the largest probability with which neurons that are treated alike are said to have places, by each thing
            that is looked for: on one node, or on all.
    """
    return _until_none(space, still, lambda name, pieces: _orders(space, network, name, pieces, sizes), sure)


def places_in_both(
    space: WeightSpace,
    a: Mapping[str, Tensor],
    b: Mapping[str, Tensor],
    sizes: Mapping[str, int],
    still: Collection[str],
    sure: float = SURE,
) -> Reasons:
    """Finds nodes along which two networks have zeros, or entries that stand out, in the same places."""

    def tested(name: str, pieces: Sequence[str]) -> dict[str, float]:
        both = [_some_rows(space, network, name, pieces, sizes)[0] for network in (a, b)]
        p_values = {}
        for reason, marks in _MARKS.items():
            one, other = (unit_vectors([marks(x).double() for x in parts]) for parts in both)
            if one.any() and other.any():
                p_values[reason] = _in_place(one @ other.mT)
        return p_values

    return _until_none(space, still, tested, sure)


def marked(space: WeightSpace, network: Mapping[str, Tensor], sizes: Mapping[str, int], still: Collection[str]) -> bool:
    """True if a network has any zeros, or entries that stand out, for `places_in_both`."""
    nodes = pieces_by_node(space, still).items()
    parts = (x for name, pieces in nodes for x in _some_rows(space, network, name, pieces, sizes)[0])
    return any(bool(marks(x).any()) for x in parts for marks in _MARKS.values())


def _until_none(
    space: WeightSpace, still: Collection[str], tested: Callable[[str, Sequence[str]], dict[str, float]], sure: float
) -> Reasons:
    """Nodes that a test has a reason for, then those that it has one for when these stay as they are, and so on.

    The test is of a node and its pieces, and returns reason -> p-value.
    """
    reasons: Reasons = {}
    known: dict[tuple[str, ...], dict[str, float]] = {}
    while True:
        nodes = pieces_by_node(space, {*still, *reasons})
        for name, pieces in nodes.items():
            if (name, *pieces) not in known:
                known[name, *pieces] = tested(name, pieces)
        p = {name: known[name, *pieces] for name, pieces in nodes.items()}
        new = {name: min(of, key=of.__getitem__) for name, of in p.items() if min(of.values(), default=1.0) <= sure}
        for reason in () if new else {reason for of in p.values() for reason in of}:
            values = {name: of[reason] for name, of in p.items() if reason in of}
            logs = torch.tensor([*values.values()], dtype=torch.float64).log()
            if float(fisher(logs)) <= math.log(sure):  # which no node shows alone
                new[min(values, key=values.__getitem__)] = reason
        if not new:
            return reasons
        reasons |= new


def _some_rows(
    space: WeightSpace, network: Mapping[str, Tensor], name: str, pieces: Sequence[str], sizes: Mapping[str, int]
) -> tuple[list[Tensor], Tensor]:
    """Entries of some of a node's neurons, as of `rows_of`, in float64; and their places among all, ``(blocks, n)``."""
    n, count = sizes[name], space.count(name, sizes)
    blocks, half = min(count // n, max(1, _NEURONS // n)), _NEURONS // 2
    chosen = torch.arange(n)
    if n > _NEURONS:
        chosen = torch.cat([chosen[:half], torch.linspace(half, n - 1, half).round().long()])
    parts = [
        x[:blocks, :, :_COLUMNS][:, chosen.to(x.device)].to("cpu", torch.float64)
        for x in rows_of(space, network, name, pieces, sizes)
    ]
    return parts, torch.arange(blocks)[:, None] * n + chosen


def _orders(
    space: WeightSpace, network: Mapping[str, Tensor], name: str, pieces: Sequence[str], sizes: Mapping[str, int]
) -> dict[str, float]:
    """P-values of all orders that are looked for, on one node."""
    rows, places = _some_rows(space, network, name, pieces, sizes)
    vectors, p_values = unit_vectors(rows), {}
    for reason, entry in _MATRICES.items():
        like = [
            entry(places[..., None, None], torch.arange(x.shape[2])[:, None], space.count(name, sizes), x.shape[2])
            .double()
            .expand(x.shape)
            for x in rows
        ]
        p_values[reason] = _in_place(vectors @ unit_vectors(like).mT)
    if min(p_values.values()) <= SURE:  # which says more than likeness of neighbours
        return p_values
    for reason, (view, shift) in _VIEWS.items():
        views = [view(x) for x in rows]
        shifted = unit_vectors([x.roll(shift, 2) for x in views])
        p_values[reason] = _rank(shifted @ unit_vectors(views).mT, lambda orders: (orders[..., :-1], orders[..., 1:]))
    return p_values


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
    """1 for a number with an odd number of bits, else 0."""
    for shift in (16, 8, 4, 2, 1):
        x = x ^ (x >> shift)
    return x & 1


def _waves(t: Tensor, channel: Tensor, channels: int) -> Tensor:
    """The table of sines and cosines, in turns, that transformers add to their streams."""
    angle = t / 1e4 ** (channel // 2 * 2 / channels)
    return torch.where(channel % 2 == 0, angle.sin(), angle.cos())


def _halves(t: Tensor, channel: Tensor, channels: int) -> Tensor:
    """The same table with all sines first."""
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
