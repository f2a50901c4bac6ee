"""Which parameter leads from which node to which: one table, read by all that follow a network from layer to layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from .axes import Axis, Charge, Dim, flatten_dims, flow, paths_of


class SharedScale(NamedTuple):
    """A positive number for each neuron of a node, by which some parameters are multiplied and others divided.

    Attributes:
        node: their node.
        gauge: number of the node's gauge.
        powers: piece of a parameter, and with what power of the numbers an axis of it is multiplied. One with two axes
            on the node, as of a recurrent layer, is there twice.
        size: how many numbers there are; None where the node's size is not known.
    """

    node: str
    gauge: int
    powers: tuple[tuple[str, int], ...]
    size: int | None

    @property
    def smooth(self) -> tuple[str, ...]:
        """What is multiplied, as the gain of a norm, or the rows and the bias of a linear layer."""
        return tuple(piece for piece, power in self.powers if power > 0)

    @property
    def balance(self) -> tuple[str, ...]:
        """What is divided, as the columns of linear layers behind it."""
        return tuple(piece for piece, power in self.powers if power < 0)


class End(NamedTuple):
    """One end of a link: neurons of a node.

    Attributes:
        node: their node.
        charge: of its axis.
        at: positions of its axis among ``space.axes[parameter]``, behind those of the axes that it is nested in.
    """

    node: str
    charge: Charge
    at: tuple[int, ...]


class Link(NamedTuple):
    """A parameter as what joins neurons: a weight has two ends, a bias or gain one, a stack of weights three.

    Attributes:
        parameter: its name; of one whose dimensions are sums, that of one of its pieces.
        ends: the node that it leads to first, then those that it leads from. There is one end for each axis in which
            no other is nested.
        kernel: sizes of what nothing acts on, in order: kernel dimensions and positions folded by a flatten.
        folded: whether one of its tensor's dimensions is a product, as of neurons and positions behind a flatten.
    """

    parameter: str
    ends: tuple[End, ...]
    kernel: tuple[int, ...]
    folded: bool

    @property
    def target(self) -> str:
        """The node that it leads to; of a bias or gain, the node it lies on."""
        return self.ends[0].node

    @property
    def source(self) -> str | None:
        """The node that it leads from; None for a parameter that has not two ends."""
        return self.ends[1].node if len(self.ends) == 2 else None

    @property
    def charges(self) -> tuple[Charge, ...]:
        """Of its ends: ``(1, -1)`` for a weight, ``(1,)`` for a bias."""
        return tuple(end.charge for end in self.ends)

    @property
    def axes(self) -> tuple[int, ...]:
        """Positions of all its axes, in the order of its ends; what two ends are both nested in counts once."""
        return tuple(dict.fromkeys(at for end in self.ends for at in end.at))

    @property
    def order(self) -> tuple[int, ...]:
        """Permutation of ``(B, C, *space.axes[parameter])`` to ``(B, *axes of its ends, *kernel, C)``."""
        at = self.axes
        count = len(at) + len(self.kernel)
        return (0, *(2 + i for i in at), *(2 + i for i in range(count) if i not in at), 1)


def links_of(
    nodes: Sequence[str], parameters: Mapping[str, Sequence[Dim]], nesting: dict[str, str]
) -> tuple[Link, ...]:
    """The table, in the order in which a network runs: by target, in the order of the nodes.

    The end with the largest charge is the target, that of the first gauge where there are several; where charges are
    equal (``space.uncharged()``), that on the later node, or else the first. Parameters without an axis have no link.

    Args:
        nodes: names, from the network's inputs to its outputs.
        parameters: name -> dimensions in tensor order, without sums.
        nesting: nested node -> its parent.
    """
    rank = {name: i for i, name in enumerate(nodes)}
    found = []
    for name, dims in parameters.items():
        mixed = flatten_dims(dims)
        paths = paths_of(mixed, nesting)
        inner = {i for path in paths for i in path[:-1]}
        ends = [
            End(axis.node, axis.charge, path)
            for i, (axis, path) in enumerate(zip(mixed, paths, strict=True))
            if isinstance(axis, Axis) and i not in inner
        ]
        if not ends:
            continue
        ends.sort(key=lambda end: (-flow(end.charge), -rank[end.node]))
        kernel = tuple(size for size in mixed if isinstance(size, int))
        found.append(Link(name, tuple(ends), kernel, len(mixed) != len(dims)))
    return tuple(sorted(found, key=lambda link: rank[link.target]))
