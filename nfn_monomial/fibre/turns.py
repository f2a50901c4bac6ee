"""Matrices on the axes of a node: how they act, and which of them lead to a normal form.

A node of ``n`` neurons that linear maps alone touch may be turned by any invertible ``G``: tensors that write to it by
``G``, those that read it by ``G^-T``. Where norms look at it besides, ``G`` is orthogonal, and both are the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from nfn_monomial.space.places import Place
from nfn_monomial.space.weight_space import WeightSpace


class Turn(NamedTuple):
    """A group of matrices that acts on a node.

    Attributes:
        node: its name.
        kind: ``"linear"`` for all invertible ones, ``"normed"`` for orthogonal ones, ``"centred"`` for those of them
            that leave ``(1, ..., 1)`` where it is; ``"rotary"`` for those that multiply pairs of entries, as complex
            numbers: these lie in what the node's neurons are made of.
        places: the axes that they act on; of linear and rotary ones, with the charge +1 or -1 that counts.
        gauge: of linear and rotary ones, the number of the node's gauge that they contain.
        pairs: of rotary ones.
    """

    node: str
    kind: str
    places: tuple[Place, ...]
    gauge: int = 0
    pairs: tuple[tuple[int, int], ...] = ()


def places_of(space: WeightSpace) -> dict[str, list[Place]]:
    """Node -> all axes on it."""
    places: dict[str, list[Place]] = {name: [] for name in space.nodes}
    for place in space.places:
        places[place.node].append(place)
    return places


def vectors_of(space: WeightSpace, place: Place) -> int:
    """How many vectors of a node's neurons a piece consists of, in each of what the node is nested in."""
    shape = shape_of(space, place.piece)
    return math.prod(shape) // math.prod(shape[i] for i in (*place.over, place.at))


def shape_of(space: WeightSpace, piece: str) -> list[int]:
    """Sizes of a piece's axes."""
    sizes = space.sizes()
    return [axis if isinstance(axis, int) else sizes[axis.node] for axis in space.axes[piece]]


def flattened(x: Tensor, place: Place) -> Tensor:
    """A piece ``(B, *axes)`` as ``(B, *what the node is nested in, n, all the rest)``."""
    return place.flatten(x)


def turned(x: Tensor, place: Place, matrix: Tensor) -> Tensor:
    """A piece ``(B, *axes)`` with matrices ``(B, *what the node is nested in, m, n)`` on one axis, of size m then."""
    return place.unflatten(matrix @ place.flatten(x), x)


def scaled(x: Tensor, place: Place, factor: Tensor) -> Tensor:
    """A piece ``(B, *axes)`` with a factor ``(B, *what the node is nested in, n)`` for each neuron of one axis."""
    return place.unflatten(factor.unsqueeze(-1) * place.flatten(x), x)


def centred(x: Tensor, place: Place) -> Tensor:
    """A piece without its mean over one axis."""
    return x - x.mean(1 + place.at, keepdim=True)


def stacked(tensors: Mapping[str, Tensor], places: Iterable[Place]) -> Tensor:
    """What lies along a node's axes, as one matrix ``(B, *what it is nested in, n, all of it)``."""
    return torch.cat([flattened(tensors[place.piece], place) for place in places], -1)


def balanced(writers: Tensor, readers: Tensor) -> tuple[Tensor, Tensor]:
    """``G`` and ``G^-T`` at which squares of writers and readers are least and diagonal.

    With ``P = L Q_1`` and ``Q = R^T Q_2``, and ``L^T R^T = U S V^T``, they are ``S^-1/2 V^T R`` and
    ``S^-1/2 U^T L^T``; ``(G P)(G P)^T = S`` is then that of the readers, too. Directions in which there is nothing on
    one side are 0 on both: what is least there is the limit.

    Args:
        writers: ``P`` of ``(B, ..., n, p)``.
        readers: ``Q`` of ``(B, ..., n, q)``.
    """
    left, right = (torch.linalg.qr(x.mT).R for x in (writers, readers))
    u, s, vh = torch.linalg.svd(left @ right.mT, full_matrices=False)
    there = s > s.shape[-1] * torch.finfo(s.dtype).eps * left.norm(dim=(-2, -1)).mul(
        right.norm(dim=(-2, -1))
    ).unsqueeze(-1)
    root = torch.where(there, s, 1).rsqrt().where(there, 0).unsqueeze(-1)
    empty = (0, 0, 0, writers.shape[-2] - s.shape[-1])
    sides = (root * (vh @ right), root * (u.mT @ left))
    return nn.functional.pad(sides[0], empty), nn.functional.pad(sides[1], empty)


def rotated(pairs: Sequence[tuple[int, int]], size: int, real: Tensor, imaginary: Tensor) -> Tensor:
    """Matrices ``(..., size, size)`` that multiply pairs of entries, as complex numbers, by ``(..., pairs)`` others."""
    first, second = (torch.tensor(ends) for ends in zip(*pairs, strict=True))
    matrix = real.new_zeros(*real.shape[:-1], size, size)
    matrix[..., first, first] = matrix[..., second, second] = real
    matrix[..., first, second] = -imaginary
    matrix[..., second, first] = imaginary
    return matrix


def upright(pairs: Sequence[tuple[int, int]], writers: Tensor, readers: Tensor) -> tuple[Tensor, Tensor]:
    """``G`` and ``G^-T`` for rotary pairs: equal norms of both sides, and a real positive sum of squares of writers.

    Args:
        pairs: rows that are the two parts of one complex number.
        writers, readers: ``(B, ..., n, p)`` and ``(B, ..., n, q)``: queries and keys.
    """
    first, second = (writers[..., [pair[i] for pair in pairs], :] for i in (0, 1))
    sides = [x[..., [i for pair in pairs for i in pair], :] for x in (writers, readers)]
    norms = [x.square().sum(-1).reshape(*x.shape[:-2], len(pairs), 2).sum(-1) for x in sides]
    there = (norms[0] > 0) & (norms[1] > 0)
    size = torch.where(there, norms[1] / norms[0].where(there, 1), 1).pow(0.25)
    square = (first.square() - second.square()).sum(-1), 2 * (first * second).sum(-1)
    angle = -torch.atan2(square[1], square[0]) / 2
    n = writers.shape[-2]
    real, imaginary = angle.cos(), angle.sin()
    return rotated(pairs, n, size * real, size * imaginary), rotated(pairs, n, real / size, imaginary / size)


def principal(gram: Tensor) -> Tensor:
    """The orthogonal matrix that makes a Gram matrix diagonal, the largest entry first."""
    vectors: Tensor = torch.linalg.eigh(gram).eigenvectors
    return vectors.flip(-1).mT


def complement(n: int) -> Tensor:
    """An orthonormal basis ``(n, n - 1)`` of what is orthogonal to ``(1, ..., 1)``."""
    k = torch.arange(1, n, dtype=torch.float64)
    basis = torch.ones(n, n - 1, dtype=torch.float64).triu() - torch.diag(k, -1)[:, : n - 1]
    return basis / (k * (k + 1)).sqrt()


def moved(pieces: Mapping[str, Tensor], turn: Turn, matrix: Tensor, inverse: Tensor) -> dict[str, Tensor]:
    """Pieces with a turn's matrix on axes that write, and the transpose of its inverse on those that read."""
    found = dict(pieces)
    for place in turn.places:
        found[place.piece] = turned(found[place.piece], place, matrix if place.writes else inverse)
    return found


def random_matrices(
    space: WeightSpace, turn: Turn, batch: int, generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """A random ``G`` of a turn, ``(batch, *what the node is nested in, n, n)``, and ``G^-T``."""
    *above, n = (space.sizes()[node] for node in space.ancestry(turn.node))

    def orthogonal(k: int) -> Tensor:
        q: Tensor = torch.linalg.qr(torch.randn(batch, *above, k, k, dtype=torch.float64, generator=generator)).Q
        return q

    if turn.kind == "rotary":
        size = 2 * len(turn.pairs)
        above = [*above, n] if any(place.over for place in turn.places) else []
        angle, log = torch.randn(2, batch, *above, len(turn.pairs), dtype=torch.float64, generator=generator)
        real, imaginary = (4 * angle).cos(), (4 * angle).sin()
        scale = (log / 2).exp()
        return (
            rotated(turn.pairs, size, scale * real, scale * imaginary),
            rotated(turn.pairs, size, real / scale, imaginary / scale),
        )
    if turn.kind == "linear":
        scale = torch.randn(batch, *above, n, 1, dtype=torch.float64, generator=generator).mul(0.5).exp()
        left, right = orthogonal(n), orthogonal(n)
        return left @ (scale * right), left @ (right / scale)
    if turn.kind == "normed":
        rotation = orthogonal(n)
    else:
        basis = complement(n)
        rotation = basis @ orthogonal(n - 1) @ basis.mT + torch.full((n, n), 1 / n, dtype=torch.float64)
    return rotation, rotation
