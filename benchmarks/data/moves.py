"""Networks turned into others that compute the same when they are read: moved by their symmetry group, or widened.

What happens to each network is drawn beforehand for all of them: numbers per neuron, which are few beside the weights.
So a network does not depend on the batch that it is read in, and is the same as if all were turned at once.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nfn_monomial import WeightSpace
from nfn_monomial.space.groups import GroupElement, MonomialMatrix

from .rows import Rows
from .widen import Widening, draw_widening

__all__ = ["MovedRows", "WidenedRows", "draw_elements", "draw_wider", "elements_of", "joined"]


class MovedRows(Rows):
    """Other rows, each network moved by an element of its own.

    Args:
        rows: N networks.
        element: a batch of N elements of the group of their weight space.

    Raises:
        ValueError: if there are not as many elements as networks.
    """

    def __init__(self, rows: Rows, element: GroupElement) -> None:
        if wrong := {node: m.batch for node, m in element.matrices.items() if m.batch != len(rows)}:
            raise ValueError(f"{len(rows)} networks to move by {wrong} elements: each network needs one")
        self.rows, self.element = rows, element

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, index: Tensor) -> dict[str, Tensor]:
        return elements_of(self.element, index).act(self.rows.read(index))

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return self.rows.shapes


class WidenedRows(Rows):
    """Other rows, each network with more hidden neurons.

    Args:
        rows: N networks.
        widening: drawn for N networks, see `draw_wider`.
    """

    def __init__(self, rows: Rows, widening: Widening) -> None:
        self.rows, self.widening = rows, widening

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, index: Tensor) -> dict[str, Tensor]:
        narrow = {name: t.unsqueeze(1) for name, t in self.rows.read(index).items()}
        return {name: t.squeeze(1) for name, t in self.widening[index].apply(narrow).items()}

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        wider = self.widening.wider
        return {name: wider.shape_of(name, self.widening.wide) for name in self.rows.shapes}


def draw_elements(space: WeightSpace, count: int, scale: float, seed: int) -> GroupElement:
    """A random element of the space's group for each of ``count`` networks, with scales in ``[1, scale]``."""
    return space.sample(count, scale_range=(1.0, scale), generator=torch.Generator().manual_seed(seed))


def draw_wider(rows: Rows, space: WeightSpace, factor: float, seed: int) -> Widening:
    """How each of these networks gets ``factor`` times the hidden neurons; see `widen`."""
    sizes = space.node_sizes(space.pack({name: torch.zeros(1, 1, *shape) for name, shape in rows.shapes.items()}))
    return draw_widening(space, sizes, len(rows), factor=factor, generator=torch.Generator().manual_seed(seed))


def elements_of(element: GroupElement, index: Tensor) -> GroupElement:
    """Those with these numbers of a batch of elements, in this order."""
    matrices = {node: MonomialMatrix(m.scale[index], m.permutation[index]) for node, m in element.matrices.items()}
    return GroupElement(element.space, matrices)


def joined(elements: Sequence[GroupElement]) -> GroupElement:
    """Batches of elements of one group, one after another."""
    matrices = {}
    for node in elements[0].matrices:
        parts = [element.matrices[node] for element in elements]
        scale, permutation = torch.cat([m.scale for m in parts]), torch.cat([m.permutation for m in parts])
        matrices[node] = MonomialMatrix(scale, permutation)
    return GroupElement(elements[0].space, matrices)
