"""The table of places: for every axis of a piece its node, its charge, and the axes that it is nested in.

A parameter whose dimensions are sums is cut into pieces, one for each choice of a segment of every sum; any other
parameter is one piece. The axes of a piece are its dimensions with products taken apart. Whoever follows neurons
through tensors reads this table: links, the group's action, partitions, neuron features, canonical forms, fibres and
graphs.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torch import Tensor

from nfn_monomial.errors import InvalidValueError

from .axes import Axis, Charge, Dim, Sum, each_axis, factors_of, flatten_dims, flow, segments_of
from .nodes import Node, ancestry


class Place(NamedTuple):
    """An axis of a piece, or of a field, along which the neurons of a node lie.

    Attributes:
        piece: name of the piece; empty for an axis of a field.
        axis: its node and its charge.
        path: its position among the axes of the piece, after the positions of the axes that it is nested in, the
            outermost first.
    """

    piece: str
    axis: Axis
    path: tuple[int, ...]

    @property
    def node(self) -> str:
        """The node whose neurons lie along the axis."""
        return self.axis.node

    @property
    def charge(self) -> Charge:
        """The charge of the axis."""
        return self.axis.charge

    @property
    def at(self) -> int:
        """The position of the axis itself."""
        return self.path[-1]

    @property
    def over(self) -> tuple[int, ...]:
        """The positions of the axes that it is nested in, the outermost first."""
        return self.path[:-1]

    @property
    def writes(self) -> bool:
        """True where the piece leads to the node, False where it leads from it."""
        return flow(self.axis.charge) > 0

    def dims(self, leading: int = 1) -> tuple[int, ...]:
        """The dimensions of ``path`` in a tensor ``(*leading, *axes)``."""
        return tuple(leading + i for i in self.path)

    def flatten(self, x: Tensor, leading: int = 1) -> Tensor:
        """``(*leading, *axes)`` as ``(*leading, *sizes, rest)``: the node's neurons, then all other axes as one."""
        front = range(leading, leading + len(self.path))
        moved = x.movedim(self.dims(leading), tuple(front))
        return moved.reshape(*moved.shape[: front.stop], -1)

    def unflatten(self, flat: Tensor, like: Tensor, leading: int = 1) -> Tensor:
        """The inverse of `flatten` for a tensor whose other axes are those of ``like``."""
        front = range(leading, leading + len(self.path))
        rest = [size for dim, size in enumerate(like.shape) if dim >= leading and dim not in self.dims(leading)]
        return flat.reshape(*flat.shape[:-1], *rest).movedim(tuple(front), self.dims(leading))

    def turned(self, x: Tensor, matrix: Tensor) -> Tensor:
        """The piece ``(B, *axes)`` with matrices ``(B, *outer sizes, m, n)`` on the axis, of size m then."""
        return self.unflatten(matrix @ self.flatten(x), x)

    def scaled(self, x: Tensor, factor: Tensor) -> Tensor:
        """The piece ``(B, *axes)`` with a factor ``(B, *outer sizes, n)`` for each neuron."""
        return self.unflatten(factor.unsqueeze(-1) * self.flatten(x), x)

    def per_neuron(self, x: Tensor) -> Tensor:
        """A piece with one entry for each neuron, as such a factor."""
        return self.flatten(x).squeeze(-1)

    def mean(self, x: Tensor) -> Tensor:
        """The mean over the axis, which stays with size 1."""
        return x.mean(1 + self.at, keepdim=True)

    def centred(self, x: Tensor) -> Tensor:
        """The piece without its mean over the axis."""
        return x - self.mean(x)


class Piece(NamedTuple):
    """A parameter, or the part of a parameter that lies in one segment of each of its dimensions that are sums.

    Attributes:
        parameter: its name.
        dims: the dimensions of the piece, without sums.
        places: where its axes lie, in their order.
    """

    parameter: str
    dims: tuple[Dim, ...]
    places: tuple[Place, ...]

    @property
    def axes(self) -> tuple[Axis | int, ...]:
        """Its dimensions with products taken apart: axes, and sizes on which nothing acts."""
        return flatten_dims(self.dims)


def places_of(axes: Sequence[Axis | int], nodes: Mapping[str, Node], piece: str = "") -> tuple[Place, ...]:
    """The places of some axes, in their order.

    An axis of a nested node is nested in the nearest axis of the parent before it, so that two may share one: the
    output and input channels of a grouped convolution's weight, in ``(groups, out, in)``.

    Args:
        axes: of a piece or a field; sizes among them count as positions.
        nodes: of the weight space.
        piece: the name of the piece.

    Raises:
        ValueError: if the parent of a node has no axis before it.

    >>> from nfn_monomial import Symmetry
    >>> nodes = {"head": Node((Symmetry.SIGN,)), "q": Node((Symmetry.SCALE,), parent="head")}
    >>> [(place.node, place.path) for place in places_of((4, Axis("head", 0), Axis("q")), nodes)]
    [('head', (1,)), ('q', (1, 2))]
    """
    places: list[Place] = []
    nearest: dict[str, Place] = {}
    for position, axis in enumerate(axes):
        if isinstance(axis, int):
            continue
        parent = nodes[axis.node].parent if axis.node in nodes else None
        if parent is not None and parent not in nearest:
            raise InvalidValueError(
                f"axis {axis} is nested in {parent!r}, which has no axis before it: put Axis({parent!r}, 0)"
            )
        outer = () if parent is None else nearest[parent].path
        nearest[axis.node] = Place(piece, axis, (*outer, position))
        places.append(nearest[axis.node])
    return tuple(places)


def cut_parameter(parameter: str, dims: Sequence[Dim], nodes: Mapping[str, Node]) -> dict[str, Piece]:
    """The pieces of a parameter by their names: its own name, or ``name[0,1]`` where two of its dimensions are sums."""
    segments = [segments_of(dim) for dim in dims]
    sums = [i for i, dim in enumerate(dims) if isinstance(dim, Sum)]
    pieces = {}
    for choice in itertools.product(*(range(len(parts)) for parts in segments)):
        chosen = [parts[i] for parts, i in zip(segments, choice, strict=True)]
        name = f"{parameter}[{','.join(str(choice[i]) for i in sums)}]" if sums else parameter
        whole = tuple([factors[0] if len(factors) == 1 else factors for factors in chosen])
        pieces[name] = Piece(parameter, whole, places_of(flatten_dims(whole), nodes, name))
    return pieces


def completed(dims: Sequence[Dim], nodes: Mapping[str, Node]) -> tuple[Dim, ...]:
    """Dimensions whose axes have a charge for every gauge, and stand after axes of all that they are nested in.

    Only nodes that have no axis among the dimensions are put there, with charge 0.
    """
    named = {factor.node for factor in factors_of(dims) if isinstance(factor, Axis)}

    def spelled(name: str, charge: Charge) -> Axis:
        charges = nodes[name].spelled(charge)
        return Axis(name, charges if len(charges) > 1 else charges[0])

    def complete(axis: Axis) -> list[Axis]:
        missing = itertools.takewhile(lambda name: name not in named, ancestry(nodes, axis.node)[-2::-1])
        return [*reversed([spelled(name, 0) for name in missing]), spelled(*axis)]

    return tuple([each_axis(dim, complete) for dim in dims])
