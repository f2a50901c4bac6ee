"""Folding of tensors into fields: FIXED axes and other dimensions become multiplicity, charges are reduced.

Theorem (linear) speaks of fields whose axes the group moves; axes that it leaves alone are multiplicity. So a weight
space folds its parameters into the fields of `Features`, and a layer folds features that keep their FIXED axes, such as
neuron features, into the fields that it computes with. Both are one mechanism, and exactly invertible.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from nfn_monomial.errors import InvalidValueError

from .axes import Axis, Dim, FieldType, field_name, flatten_dims
from .features import Features, Layout

if TYPE_CHECKING:
    from .weight_space import WeightSpace


class FieldSlice(NamedTuple):
    """The entries of a field in which one tensor lies, and how its dimensions are moved there.

    Attributes:
        field: index of its field in the layout.
        offset: first of its entries among the field's multiplicity.
        multiplicity: number of its entries.
        others: sizes of the dimensions that become multiplicity.
        order: permutation of ``(B, C, *axes and others)`` to ``(B, *field axes, *others, C)``.
        back: its inverse.
    """

    field: int
    offset: int
    multiplicity: int
    others: tuple[int, ...]
    order: tuple[int, ...]
    back: tuple[int, ...]


class Folding:
    """Named tensors ``(B, C, *axes)`` as `Features` and back, copied once where they cannot be views.

    Args:
        space: on whose nodes the axes are.
        sources: name -> dimensions of a tensor after batch and channels, products taken apart.

    Attributes:
        layout: of the features; its content says which source lies where.
        slices: the entries of each tensor.
    """

    def __init__(self, space: WeightSpace, sources: Mapping[str, Sequence[Dim]]) -> None:
        totals: dict[FieldType, int] = {}
        numbers: dict[FieldType, int] = {}
        slices, content = [], []
        for name, dims in sources.items():
            placed = [_placed(space, dim) for dim in flatten_dims(dims)]
            moving = [i for i, dim in enumerate(placed) if isinstance(dim, Axis)]
            others = {i: dim for i, dim in enumerate(placed) if isinstance(dim, int)}
            field_type, taken = space.canonical([dim for dim in placed if isinstance(dim, Axis)])
            field, offset = numbers.setdefault(field_type, len(numbers)), totals.get(field_type, 0)
            multiplicity = math.prod(others.values())
            totals[field_type] = offset + multiplicity
            order = (0, *(2 + moving[i] for i in taken), *(2 + i for i in others), 1)
            back = tuple(order.index(i) for i in range(len(order)))
            slices.append(FieldSlice(field, offset, multiplicity, tuple(others.values()), order, back))
            if name in space.pieces:
                content.append((name, field, offset, tuple(_reduced(space, dim) for dim in dims)))
        self.slices = tuple(slices)
        self._members: list[list[int]] = [[] for _ in totals]
        for i, part in enumerate(slices):
            self._members[part.field].append(i)
        acting = tuple(map(space.acting, totals))
        self.layout = Layout(tuple(totals), tuple(totals.values()), acting, tuple(sorted(content)))

    def fold(self, tensors: Sequence[Tensor]) -> Features:
        """One tensor for each source, in their order, -> `Features`."""
        fields = []
        for members in self._members:
            parts = []
            for i in members:
                part, x = self.slices[i], tensors[i].permute(self.slices[i].order)
                if len(part.others) != 1:
                    lead = x.shape[: x.ndim - 1 - len(part.others)]
                    x = x.reshape(*lead, part.multiplicity, x.shape[-1])
                parts.append(x)
            # Put together while they are views, so that everything is moved once.
            fields.append((parts[0] if len(parts) == 1 else torch.cat(parts, -2)).flatten(-2))
        return Features(self.layout, tuple(fields))

    def unfold(self, features: Features) -> list[Tensor]:
        """The inverse of `fold`; the tensors may be views."""
        tensors: list[Tensor] = [features.tensors[0]] * len(self.slices)
        for members, x, total in zip(self._members, features.tensors, self.layout.multiplicities, strict=True):
            channels = x.shape[-1] // total
            # Split, not cut out one by one: backward puts the parts together instead of adding up padded ones.
            widths = [self.slices[i].multiplicity * channels for i in members]
            for i, part in zip(members, (x,) if len(members) == 1 else torch.split(x, widths, -1), strict=True):
                others, back = self.slices[i].others, self.slices[i].back
                tensors[i] = (part.reshape(*part.shape[:-1], *others, channels) if others else part).permute(back)
        return tensors


def layout_of(space: WeightSpace, types: Layout | Mapping[FieldType, int] | Iterable[FieldType], fold: bool) -> Layout:
    """See `WeightSpace.layout_of`."""
    if isinstance(types, Layout):
        for field_type in types.types:
            _require_nodes(space, field_type, fixed=True)
        return types
    total: dict[FieldType, int] = {}
    for axes, multiplicity in (types if isinstance(types, Mapping) else dict.fromkeys(types, 1)).items():
        _require_nodes(space, axes, fixed=not fold)
        complete = space.complete(axes)
        kept = space.canonical(complete)[0] if fold else complete
        total[kept] = total.get(kept, 0) + multiplicity
    return Layout(tuple(total), tuple(total.values()), tuple(map(space.acting, total)))


def _require_nodes(space: WeightSpace, axes: FieldType, fixed: bool) -> None:
    for axis in axes:
        if axis.node not in space.nodes:
            raise InvalidValueError(f"field [{field_name(axes)}]: no node {axis.node!r} in {space}")
        if not fixed and not space.lies_in_fields(axis.node):
            raise InvalidValueError(
                f"field [{field_name(axes)}]: node {axis.node!r} is FIXED; its axes are multiplicity, or stay in "
                "their places with layout_of(types, fold=False)"
            )


class LayoutFolding:
    """Features of any layout as the features that layers compute with, without FIXED axes and with charges reduced.

    Args:
        space: on whose nodes the axes are.
        layout: of the features outside; the layout inside is the same where nothing is to be folded.

    Attributes:
        inner: the layout inside.
    """

    def __init__(self, space: WeightSpace, layout: Layout) -> None:
        self.outer = self.inner = layout
        self._folding: Folding | None = None
        moves = all(space.lies_in_fields(axis.node) for t in layout.types for axis in t)
        if not moves or any(space.canonical(t)[0] != t for t in layout.types):
            fields = enumerate(zip(layout.types, layout.multiplicities, strict=True))
            self._folding = Folding(space, {f"field {i}": (*t, multiplicity) for i, (t, multiplicity) in fields})
            self.inner = self._folding.layout

    @property
    def folds(self) -> bool:
        """True where the layout inside is another one than outside."""
        return self._folding is not None

    def fold(self, features: Features) -> Features:
        """Features outside -> inside."""
        if self._folding is None:
            return features
        pairs = zip(features.tensors, self.outer.multiplicities, strict=True)
        return self._folding.fold([x.reshape(*x.shape[:-1], m, x.shape[-1] // m).movedim(-1, 1) for x, m in pairs])

    def unfold(self, features: Features) -> Features:
        """Features inside -> outside."""
        if self._folding is None:
            return features
        return Features(self.outer, tuple(x.movedim(1, -1).flatten(-2) for x in self._folding.unfold(features)))


def _placed(space: WeightSpace, dim: Axis | int) -> Axis | int:
    """A dimension as it lies in a field: a FIXED axis is nothing but a size."""
    if isinstance(dim, int) or space.lies_in_fields(dim.node):
        return dim
    size = space.nodes[dim.node].size
    assert size is not None, "FIXED nodes have sizes"
    return size


def _reduced(space: WeightSpace, dim: Dim) -> Dim:
    """The same with its charge reduced, for telling whether two spaces mean the same by their features."""
    parts = [_placed(space, part) for part in flatten_dims((dim,))]
    reduced = tuple(
        part if isinstance(part, int) else part._replace(charge=space.nodes[part.node].charge(part.charge))
        for part in parts
    )
    return reduced[0] if isinstance(dim, Axis | int) else reduced
