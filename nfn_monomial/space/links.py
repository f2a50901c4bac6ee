"""Parameters that lead from one node to another: one table, for all that follow a network from layer to layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from .axes import Charge, flow
from .places import Piece, Place


class SharedScale(NamedTuple):
    """A positive number for each neuron of a node, by which some parameters are multiplied and others divided.

    Attributes:
        node: their node.
        gauge: number of the node's gauge.
        powers: names of pieces, and the power of the numbers by which an axis of each is multiplied. A piece with two
            axes on the node, such as the weight of a recurrent layer, is there twice.
        size: how many numbers there are; None where the node's size is not known.
    """

    node: str
    gauge: int
    powers: tuple[tuple[str, int], ...]
    size: int | None

    @property
    def smooth(self) -> tuple[str, ...]:
        """The pieces that are multiplied, such as the gain of a norm, or the rows and the bias of a linear layer."""
        return tuple(piece for piece, power in self.powers if power > 0)

    @property
    def balance(self) -> tuple[str, ...]:
        """The pieces that are divided, such as the columns of the linear layers after it."""
        return tuple(piece for piece, power in self.powers if power < 0)


class Link(NamedTuple):
    """A parameter as a joint between neurons: a weight has two ends, a bias or gain one, a stack of weights three.

    Attributes:
        parameter: its name; for a parameter whose dimensions are sums, the name of one of its pieces.
        ends: the places of its axes in which no other axis is nested: those on the node that it leads to first, then
            those on nodes that it leads from.
        kernel: sizes on which nothing acts, in order: kernel dimensions and positions folded by a flatten.
        folded: True where a dimension of its tensor is a product, such as neurons times positions after a flatten.
    """

    parameter: str
    ends: tuple[Place, ...]
    kernel: tuple[int, ...]
    folded: bool

    @property
    def target(self) -> str:
        """The node that it leads to; for a bias or gain, the node that it lies on."""
        return self.ends[0].node

    @property
    def source(self) -> str | None:
        """The node that it leads from; None for a parameter that does not have two ends."""
        return self.ends[1].node if len(self.ends) == 2 else None

    @property
    def charges(self) -> tuple[Charge, ...]:
        """The charges of its ends: ``(1, -1)`` for a weight, ``(1,)`` for a bias."""
        return tuple(end.charge for end in self.ends)

    @property
    def axes(self) -> tuple[int, ...]:
        """Positions of all its axes, in the order of its ends; an axis that two ends are nested in counts once."""
        return tuple(dict.fromkeys(at for end in self.ends for at in end.path))

    @property
    def order(self) -> tuple[int, ...]:
        """Permutation of ``(B, C, *space.axes[parameter])`` to ``(B, *axes of its ends, *kernel, C)``."""
        at = self.axes
        count = len(at) + len(self.kernel)
        return (0, *(2 + i for i in at), *(2 + i for i in range(count) if i not in at), 1)


def links_of(pieces: Mapping[str, Piece], nodes: Sequence[str]) -> tuple[Link, ...]:
    """The links of all pieces, in the order in which a network runs: by target, in the order of the nodes.

    The end with the largest charge is the target; where there are several gauges, the charge of the first counts. Where
    charges are equal (``space.uncharged()``), the target is the end on the later node, or else the first end. Pieces
    without an axis have no link.

    Args:
        pieces: of all parameters, by name.
        nodes: names, from the network's inputs to its outputs.
    """
    rank = {name: i for i, name in enumerate(nodes)}
    links = []
    for name, piece in pieces.items():
        nesting = {i for place in piece.places for i in place.over}
        ends = [place for place in piece.places if place.at not in nesting]
        if not ends:
            continue
        ends.sort(key=lambda end: (-flow(end.charge), -rank[end.node]))
        kernel = tuple(size for size in piece.axes if isinstance(size, int))
        links.append(Link(name, tuple(ends), kernel, len(piece.axes) != len(piece.dims)))
    return tuple(sorted(links, key=lambda link: rank[link.target]))
