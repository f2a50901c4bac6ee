"""Axes of a node, and how matrices and factors act on tensors along them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from nfn_monomial.space.axes import Axis, flow, paths_of
from nfn_monomial.space.specification import Specification


class Place(NamedTuple):
    """An axis of a piece of a parameter.

    Attributes:
        piece: its name in the space.
        at: position among the piece's axes.
        over: positions of the axes that it is nested in, the outermost first.
        axis: the axis.
    """

    piece: str
    at: int
    over: tuple[int, ...]
    axis: Axis

    @property
    def writes(self) -> bool:
        """True if the piece leads to the node; one that leads from it reads it."""
        return flow(self.axis.charge) > 0

    @property
    def _dims(self) -> tuple[int, ...]:
        """Dimensions of a piece ``(B, *axes)``: the batch, what the node is nested in, and its neurons."""
        return (0, *(1 + i for i in self.over), 1 + self.at)

    def flattened(self, x: Tensor) -> Tensor:
        """The piece ``(B, *axes)`` as ``(B, *what the node is nested in, n, all the rest)``."""
        first = x.movedim(self._dims, tuple(range(len(self._dims))))
        return first.reshape(*first.shape[: len(self._dims)], -1)

    def _restored(self, flat: Tensor, like: Tensor) -> Tensor:
        """The inverse of `flattened`, for a piece that was ``like`` this one but for the size of the axis."""
        rest = [n for dim, n in enumerate(like.shape) if dim not in self._dims]
        return flat.reshape(*flat.shape[:-1], *rest).movedim(tuple(range(len(self._dims))), self._dims)

    def turned(self, x: Tensor, matrix: Tensor) -> Tensor:
        """The piece with matrices ``(B, *what the node is nested in, m, n)`` on the axis, of size m then."""
        return self._restored(matrix @ self.flattened(x), x)

    def scaled(self, x: Tensor, factor: Tensor) -> Tensor:
        """The piece with a factor ``(B, *what the node is nested in, n)`` for each neuron."""
        return self._restored(factor.unsqueeze(-1) * self.flattened(x), x)

    def per_neuron(self, x: Tensor) -> Tensor:
        """A piece with one entry for each neuron, as such a factor."""
        return self.flattened(x).squeeze(-1)

    def mean(self, x: Tensor) -> Tensor:
        """The mean over the axis, which stays with size 1."""
        return x.mean(1 + self.at, keepdim=True)

    def centred(self, x: Tensor) -> Tensor:
        """The piece without its mean over the axis."""
        return x - self.mean(x)


def places_of(space: Specification) -> dict[str, list[Place]]:
    """Node -> all axes on it."""
    places: dict[str, list[Place]] = {name: [] for name in space.nodes}
    for piece, axes in space.axes.items():
        for axis, (*over, at) in zip(axes, paths_of(axes, space.nesting), strict=True):
            if isinstance(axis, Axis):
                places[axis.node].append(Place(piece, at, tuple(over), axis))
    return places


def shape_of(space: Specification, piece: str) -> list[int]:
    """Sizes of a piece's axes."""
    sizes = space.sizes()
    return [axis if isinstance(axis, int) else sizes[axis.node] for axis in space.axes[piece]]


def stacked(tensors: Mapping[str, Tensor], places: Iterable[Place]) -> Tensor:
    """Everything along a node's axes, as one matrix ``(B, *what it is nested in, n, everything)``."""
    return torch.cat([place.flattened(tensors[place.piece]) for place in places], -1)
