"""Function-preserving widening: networks with more neurons that compute the same functions.

Source: Chen, Goodfellow, Shlens, Net2Net (2016, arXiv:1511.05641), there with equal shares.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

import torch
from torch import Tensor

from nfn_monomial import Axis, WeightSpace
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.space import packing
from nfn_monomial.space.axes import flatten_dims, flow

__all__ = ["can_widen", "widen"]

LEAST = 0.1  # of a copy's part before parts are divided by their sum: no copy is left with next to nothing


def widen(
    space: WeightSpace, tensors: Mapping[str, Tensor], factor: float, generator: torch.Generator | None = None
) -> tuple[dict[str, Tensor], WeightSpace]:
    """B networks with more neurons: parameter -> ``(B, C, *shape)``, and their weight space.

    A hidden node of n neurons gets ``ceil(factor n)``. Let wide neuron j copy neuron s(j) and have the share a_j > 0,
    where the shares of all copies of one neuron add to 1. Then

        x_j -> x_s(j) on axes of charge +1 (rows, biases),    x_j -> a_j x_s(j) on axes of charge -1 (columns),

    which is exact for every activation, because copies are active alike. The first n neurons keep their places; which
    ones the others copy, and all shares, are random, and drawn for each network by itself.

    Raises:
        ValueError: if an axis has another charge than +1 or -1 (canonicalised features are no networks), or ``factor``
            is below 1.
    """
    for parameter, wrong in _charged(space):
        if wrong.charge not in (1, -1):
            raise InvalidValueError(
                f"widen: {parameter} has an axis {wrong} of charge {wrong.charge}; rows and biases of networks have "
                "+1, columns -1: widen networks before they are canonicalised"
            )
    if not 1 <= factor < math.inf:
        raise InvalidValueError(
            f"widen: factor is {factor}, but must be at least 1; 1.5 adds half as many neurons again"
        )
    batch, sizes = len(next(iter(tensors.values()))), space.node_sizes(space.pack(tensors))
    wide = {**sizes, **{node: math.ceil(factor * sizes[node]) for node in _hidden(space)}}
    changed = [node for node in sizes if wide[node] != sizes[node]]
    copies = {node: _draw(batch, sizes[node], wide[node], generator) for node in changed}
    pieces = packing.pieces(space, tensors, sizes)
    for name, x in pieces.items():
        for dim, axis in enumerate(space.axes[name], start=2):
            if isinstance(axis, Axis) and axis.node in copies:
                shape = [-1 if i in (0, dim) else 1 for i in range(x.ndim)]
                shape[0] = len(x)
                source, share = (t.view(shape) for t in copies[axis.node])
                x = torch.take_along_dim(x, source, dim)
                x = x * share.to(x.dtype) if flow(axis.charge) < 0 else x
        pieces[name] = x
    nodes = {name: node._replace(size=wide.get(name)) for name, node in space.nodes.items()}
    return packing.whole(space, pieces, wide), WeightSpace(nodes, space.parameters)


def can_widen(space: WeightSpace) -> bool:
    """Returns True if rows and biases have charge +1 and columns -1. Norms and attention have other axes."""
    return all(axis.charge in (1, -1) for _, axis in _charged(space))


def _charged(space: WeightSpace) -> list[tuple[str, Axis]]:
    return [(name, axis) for name, axes in space.axes.items() for axis in axes if isinstance(axis, Axis)]


def _hidden(space: WeightSpace) -> list[str]:
    """Returns nodes that are both written (+1) and read (-1), and are no factor on whole tensors.

    Nodes of size 1 that are in a product with other nodes are such factors, and no neurons.
    """
    factors = set()
    for dim in itertools.chain.from_iterable(piece.dims for piece in space.pieces.values()):
        nodes = [axis.node for axis in flatten_dims((dim,)) if isinstance(axis, Axis)]
        factors |= {node for node in nodes if len(nodes) > 1 and space.nodes[node].size == 1}
    read, written = ({axis.node for _, axis in _charged(space) if flow(axis.charge) == way} for way in (-1, 1))
    return [node for node in space.nodes if node in (read & written) - factors]


def _draw(batch: int, size: int, wide: int, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
    """Draws the neuron that each wide one copies, and its share of the outgoing weights; both ``(B, wide)``."""
    copied = torch.randint(size, (batch, wide - size), generator=generator)
    source = torch.cat([torch.arange(size).expand(batch, size), copied], 1)
    part = LEAST + torch.rand(batch, wide, generator=generator, dtype=torch.float64)
    total = part.new_zeros(batch, size).scatter_add(1, source, part)
    return source, part / total.gather(1, source)
