"""How tensors of any axes lie in fields: FIXED axes and other dimensions become multiplicity, charges are reduced.

Theorem (linear) speaks of fields whose axes the group moves; what it leaves alone is multiplicity. So a weight space
folds its parameters into the fields of `Features`, and a layer folds features that keep their FIXED axes, such as those
of neurons, into the fields that it computes with. Both are one mechanism, and exactly invertible.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .axes import Axis, Dim, FieldType, flatten_dims
from .features import Features, Layout
from .specification import Specification


class Segment(NamedTuple):
    """Where one tensor lies in its field, and how its dimensions are moved there.

    Attributes:
        field: index of its field in the layout.
        offset: first of its entries among the field's multiplicity.
        multiplicity: number of its entries.
        others: sizes of the dimensions that become multiplicity.
        order: permutation of ``(B, *axes and others, C)`` to ``(B, *field axes, *others, C)``.
        back: its inverse.
    """

    field: int
    offset: int
    multiplicity: int
    others: tuple[int, ...]
    order: tuple[int, ...]
    back: tuple[int, ...]


class Folding:
    """Named tensors ``(B, *axes, C)`` as `Features` and back.

    Args:
        space: on whose nodes the axes are.
        sources: name -> dimensions of a tensor between its batch and its channels, products taken apart.

    Attributes:
        layout: of the features; its content says what lies where.
        segments: the place of each tensor.
    """

    def __init__(self, space: Specification, sources: Mapping[str, Sequence[Dim]]) -> None:
        totals: dict[FieldType, int] = {}
        segments, content = [], []
        for name, dims in sources.items():
            placed = [_placed(space, dim) for dim in flatten_dims(dims)]
            moving = [i for i, dim in enumerate(placed) if isinstance(dim, Axis)]
            others = {i: dim for i, dim in enumerate(placed) if isinstance(dim, int)}
            field_type, taken = space.canonical([dim for dim in placed if isinstance(dim, Axis)])
            multiplicity = math.prod(others.values())
            offset = totals.get(field_type, 0)
            totals[field_type] = offset + multiplicity
            order = (0, *(1 + moving[i] for i in taken), *(1 + i for i in others), 1 + len(placed))
            back = tuple(order.index(i) for i in range(len(order)))
            field = list(totals).index(field_type)
            segments.append(Segment(field, offset, multiplicity, tuple(others.values()), order, back))
            if name in space.pieces:
                content.append((name, field, offset, tuple(_reduced(space, dim) for dim in dims)))
        self.segments = tuple(segments)
        acting = tuple(map(space.acting, totals))
        self.layout = Layout(tuple(totals), tuple(totals.values()), acting, tuple(sorted(content)))

    def fold(self, tensors: Iterable[Tensor]) -> Features:
        """One tensor for each source, in their order, -> `Features`."""
        parts: list[list[Tensor]] = [[] for _ in self.layout.types]
        for segment, x in zip(self.segments, tensors, strict=True):
            x = x.permute(segment.order)
            lead = x.shape[: x.ndim - 1 - len(segment.others)]
            parts[segment.field].append(x.reshape(*lead, segment.multiplicity * x.shape[-1]))
        return Features(self.layout, tuple(p[0] if len(p) == 1 else torch.cat(p, -1) for p in parts))

    def unfold(self, features: Features) -> list[Tensor]:
        """The inverse of `fold`; the tensors may be views."""
        tensors = []
        for segment in self.segments:
            x, total = features.tensors[segment.field], self.layout.multiplicities[segment.field]
            channels = x.shape[-1] // total
            if segment.multiplicity != total:
                x = x.narrow(-1, segment.offset * channels, segment.multiplicity * channels)
            tensors.append(x.reshape(*x.shape[:-1], *segment.others, channels).permute(segment.back))
        return tensors


class LayoutFolding:
    """Features of any layout as those that layers compute with, without FIXED axes and with charges reduced.

    Args:
        space: on whose nodes the axes are.
        layout: of the features outside; where nothing is to be folded, it is the layout inside as well.

    Attributes:
        inner: the layout inside.
    """

    def __init__(self, space: Specification, layout: Layout) -> None:
        self.outer = self.inner = layout
        self._folding: Folding | None = None
        moves = all(space.nodes[axis.node].permutes for t in layout.types for axis in t)
        if not moves or any(space.canonical(t)[0] != t for t in layout.types):
            fields = enumerate(zip(layout.types, layout.multiplicities, strict=True))
            self._folding = Folding(space, {f"field {i}": (*t, multiplicity) for i, (t, multiplicity) in fields})
            self.inner = self._folding.layout

    def fold(self, features: Features) -> Features:
        """Features outside -> inside."""
        if self._folding is None:
            return features
        pairs = zip(features.tensors, self.outer.multiplicities, strict=True)
        return self._folding.fold([x.reshape(*x.shape[:-1], m, x.shape[-1] // m) for x, m in pairs])

    def unfold(self, features: Features) -> Features:
        """Features inside -> outside."""
        if self._folding is None:
            return features
        return Features(self.outer, tuple(x.flatten(-2) for x in self._folding.unfold(features)))


def _placed(space: Specification, dim: Axis | int) -> Axis | int:
    """A dimension as it lies in a field: a FIXED axis is nothing but a size."""
    if isinstance(dim, int) or space.nodes[dim.node].permutes:
        return dim
    size = space.nodes[dim.node].size
    assert size is not None, "FIXED nodes have sizes"
    return size


def _reduced(space: Specification, dim: Dim) -> Dim:
    """The same with its charge reduced, for telling whether two spaces mean the same by their features."""
    parts = [_placed(space, part) for part in flatten_dims((dim,))]
    reduced = tuple(
        part if isinstance(part, int) else part._replace(charge=space.nodes[part.node].charge(part.charge))
        for part in parts
    )
    return reduced[0] if isinstance(dim, Axis | int) else reduced
