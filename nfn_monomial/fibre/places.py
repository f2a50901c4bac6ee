"""The places of a whole space by their nodes, and tensors along them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from nfn_monomial.space.places import Place
from nfn_monomial.space.weight_space import WeightSpace


def places_of(space: WeightSpace) -> dict[str, list[Place]]:
    """Node -> all axes on it."""
    places: dict[str, list[Place]] = {name: [] for name in space.nodes}
    for place in space.places:
        places[place.node].append(place)
    return places


def shape_of(space: WeightSpace, piece: str) -> list[int]:
    """Sizes of a piece's axes."""
    sizes = space.sizes()
    return [axis if isinstance(axis, int) else sizes[axis.node] for axis in space.axes[piece]]


def stacked(tensors: Mapping[str, Tensor], places: Iterable[Place]) -> Tensor:
    """Everything along a node's axes, as one matrix ``(B, *what it is nested in, n, everything)``."""
    return torch.cat([place.flatten(tensors[place.piece]) for place in places], -1)
