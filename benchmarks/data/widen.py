"""Function-preserving widening: networks with more neurons that compute the same functions.

Source: Chen, Goodfellow, Shlens, Net2Net (2016, arXiv:1511.05641), there with equal shares.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from nfn_monomial import Axis, WeightSpace
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.space import packing
from nfn_monomial.space.axes import flatten_dims, flow

__all__ = ["Widening", "can_widen", "draw_widening", "widen"]

LEAST = 0.1  # of a copy's part before parts are divided by their sum: no copy is left with next to nothing


def widen(
    tensors: Mapping[str, Tensor],
    space: WeightSpace,
    *,
    extra: int | Mapping[str, int] = 0,
    factor: float = 1.0,
    generator: torch.Generator | None = None,
) -> tuple[dict[str, Tensor], WeightSpace]:
    """Give hidden nodes more neurons without changing any network's function.

    A node of n neurons gets ``ceil(factor n) + extra``. Let wide neuron j copy neuron s(j) and have the share a_j > 0,
    where the shares of all copies of one neuron add to 1. Then

        x_j -> x_s(j) on axes of charge +1 (rows, biases),    x_j -> a_j x_s(j) on axes of charge -1 (columns),

    which is exact for every activation, because copies are active alike. The first n neurons keep their places; whom
    the others copy and all shares are random, and drawn for each network by itself.

    Args:
        tensors: parameter -> ``(B, C, *shape)``.
        space: their weight space.
        extra: neurons to add, one number for all hidden nodes, or node -> number.
        factor: at least 1; the same for all hidden nodes.
        generator: source of randomness, on the tensors' device.

    Returns:
        The wider tensors, and their weight space: the same parameters and symmetries, the new sizes.

    Raises:
        ValueError: if the tensors do not fit the space, an axis has another charge than +1 or -1 (canonicalised
            features are no networks), ``factor`` is below 1, or ``extra`` is negative or names no hidden node.
    """
    sizes = space.node_sizes(space.pack(tensors))
    first = next(iter(tensors.values()))
    drawn = draw_widening(
        space, sizes, len(first), extra=extra, factor=factor, generator=generator, device=first.device
    )  # fmt: skip
    return drawn.apply(tensors), drawn.wider


@dataclass(frozen=True)
class Widening:
    """What `widen` does to each of B networks, drawn beforehand: for all of them, or any some at a time.

    Attributes:
        space: of the networks.
        sizes: node -> neurons before.
        wide: node -> neurons afterwards.
        copies: node that changes -> whom each of its wide neurons copies, and its share of the outgoing weights, both
            ``(B, wide)``.
    """

    space: WeightSpace
    sizes: Mapping[str, int]
    wide: Mapping[str, int]
    copies: Mapping[str, tuple[Tensor, Tensor]]

    def __getitem__(self, index: Tensor) -> Widening:
        """That of the networks with these numbers, in this order."""
        return replace(self, copies={node: (a[index], b[index]) for node, (a, b) in self.copies.items()})

    @property
    def wider(self) -> WeightSpace:
        """The weight space of the wider networks: the same parameters and symmetries, the new sizes."""
        nodes = {name: node._replace(size=self.wide.get(name)) for name, node in self.space.nodes.items()}
        return WeightSpace(nodes, self.space.parameters)

    def apply(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The networks, wider: parameter -> ``(B, C, *shape)``, before and after."""
        pieces = packing.pieces(self.space, tensors, self.sizes)
        for name, x in pieces.items():
            for dim, axis in enumerate(self.space.axes[name], start=2):
                if isinstance(axis, Axis) and axis.node in self.copies:
                    shape = [-1 if i in (0, dim) else 1 for i in range(x.ndim)]
                    shape[0] = len(x)
                    source, share = (t.view(shape) for t in self.copies[axis.node])
                    x = torch.take_along_dim(x, source, dim)
                    x = x * share.to(x.dtype) if flow(axis.charge) < 0 else x
            pieces[name] = x
        return packing.whole(self.space, pieces, self.wide)


def draw_widening(
    space: WeightSpace,
    sizes: Mapping[str, int],
    count: int,
    *,
    extra: int | Mapping[str, int] = 0,
    factor: float = 1.0,
    generator: torch.Generator | None = None,
    device: torch.device | None = None,
) -> Widening:
    """Draw how ``count`` networks, whose nodes have ``sizes`` neurons, are widened; otherwise as `widen`."""
    wide = {**sizes, **_widths(space, sizes, extra, factor)}
    changed = [node for node in sizes if wide[node] != sizes[node]]
    return Widening(space, sizes, wide, {n: _draw(count, sizes[n], wide[n], generator, device) for n in changed})


def can_widen(space: WeightSpace) -> bool:
    """Whether `widen` knows how: rows and biases have charge +1, columns -1. Norms and attention have other axes."""
    return all(axis.charge in (1, -1) for _, axis in _charged(space))


def _charged(space: WeightSpace) -> list[tuple[str, Axis]]:
    return [(name, axis) for name, found in space.axes.items() for axis in found if isinstance(axis, Axis)]


def _widths(
    space: WeightSpace, sizes: Mapping[str, int], extra: int | Mapping[str, int], factor: float
) -> dict[str, int]:
    """Hidden node -> number of neurons asked for. Hidden is what is both written (+1) and read (-1)."""
    axes = _charged(space)
    for name, axis in axes:
        if axis.charge not in (1, -1):
            raise InvalidValueError(
                f"widen: {name} has an axis {axis} of charge {axis.charge}; rows and biases of networks have +1, "
                "columns -1: widen networks before they are canonicalised"
            )
    read = {axis.node for _, axis in axes if flow(axis.charge) < 0}
    hidden = [node for node in space.nodes if node in read & {axis.node for _, axis in axes if flow(axis.charge) > 0}]
    hidden = [node for node in hidden if node not in _factors(space)]
    more = dict.fromkeys(hidden, extra) if isinstance(extra, int) else dict(extra)
    if wrong := [node for node in more if node not in hidden]:
        raise InvalidValueError(
            f"widen: {', '.join(wrong)} is no hidden node of {space}; those are {', '.join(hidden)}"
        )
    if not 1 <= factor < math.inf:
        raise InvalidValueError(
            f"widen: factor is {factor}, but must be at least 1; 1.5 adds half as many neurons again"
        )
    if negative := {node: number for node, number in more.items() if number < 0}:
        raise InvalidValueError(f"widen: extra is {negative}, but neurons can only be added")
    return {node: math.ceil(factor * sizes[node]) + more.get(node, 0) for node in hidden}


def _factors(space: WeightSpace) -> set[str]:
    """Nodes of size 1 that are in a product with other nodes: a factor on whole tensors, and no neuron."""
    found = set()
    for dim in itertools.chain.from_iterable(piece.dims for piece in space.pieces.values()):
        axes = [axis.node for axis in flatten_dims((dim,)) if isinstance(axis, Axis)]
        found |= {node for node in axes if len(axes) > 1 and space.nodes[node].size == 1}
    return found


def _draw(
    batch: int, size: int, wide: int, generator: torch.Generator | None, device: torch.device | None
) -> tuple[Tensor, Tensor]:
    """Whom each wide neuron copies, and its share of the outgoing weights; both ``(B, wide)``."""
    copied = torch.randint(size, (batch, wide - size), generator=generator, device=device)
    source = torch.cat([torch.arange(size, device=device).expand(batch, size), copied], 1)
    part = LEAST + torch.rand(batch, wide, generator=generator, device=device, dtype=torch.float64)
    total = part.new_zeros(batch, size).scatter_add(1, source, part)
    return source, part / total.gather(1, source)
