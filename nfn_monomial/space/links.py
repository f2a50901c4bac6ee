"""Which parameter leads from which node to which: one table, read by all that follow a network from layer to layer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from .axes import Axis, Dim, flatten_dims


class Link(NamedTuple):
    """A parameter with two axes, which leads from the neurons of one node to those of another, or with one axis.

    Attributes:
        parameter: its name.
        target: the node that it leads to; of a bias or gain, the node it lies on.
        source: the node that it leads from; None for a parameter with one axis.
        row: position of the target's axis among ``space.axes[parameter]``.
        column: position of the source's axis there, or None.
        charges: of the target's axis and of the source's: ``(1, -1)`` for a weight, ``(1,)`` for a bias.
        kernel: sizes of what nothing acts on, in order: kernel dimensions and positions folded by a flatten.
        folded: whether one of its tensor's dimensions is a product, as of neurons and positions behind a flatten.
    """

    parameter: str
    target: str
    source: str | None
    row: int
    column: int | None
    charges: tuple[int, ...]
    kernel: tuple[int, ...]
    folded: bool

    @property
    def ends(self) -> tuple[str, ...]:
        """The target, and the source where there is one."""
        return (self.target,) if self.source is None else (self.target, self.source)

    @property
    def order(self) -> tuple[int, ...]:
        """Permutation of ``(B, C, *space.axes[parameter])`` to ``(B, target, source, *kernel, C)``."""
        at = (self.row,) if self.column is None else (self.row, self.column)
        count = len(at) + len(self.kernel)
        return (0, *(2 + i for i in at), *(2 + i for i in range(count) if i not in at), 1)


def links_of(nodes: Iterable[str], parameters: Mapping[str, Sequence[Dim]]) -> tuple[Link, ...]:
    """The table, in the order in which a network runs: by target, in the order of the nodes.

    Of two axes, the one with the larger charge is the target's; where charges are equal (``space.uncharged()``), that
    on the later node, or else the first. Parameters with no axis or more than two have no link.

    Args:
        nodes: names, from the network's inputs to its outputs.
        parameters: name -> dimensions in tensor order.
    """
    rank = {name: i for i, name in enumerate(nodes)}
    found = []
    for name, dims in parameters.items():
        mixed = flatten_dims(dims)
        own = [(i, axis) for i, axis in enumerate(mixed) if isinstance(axis, Axis)]
        if len(own) not in (1, 2):
            continue
        (row, target), *rest = sorted(own, key=lambda end: (-end[1].charge, -rank[end[1].node]))
        column, source = (rest[0][0], rest[0][1].node) if rest else (None, None)
        charges = tuple(axis.charge for axis in (target, *(axis for _, axis in rest)))
        kernel = tuple(size for size in mixed if isinstance(size, int))
        found.append(Link(name, target.node, source, row, column, charges, kernel, len(mixed) != len(dims)))
    return tuple(sorted(found, key=lambda link: rank[link.target]))
