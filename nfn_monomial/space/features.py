"""Fields and the container layers pass on: channels last, one tensor per field type."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

from torch import Tensor
from torch.utils import _pytree as pytree

from nfn_monomial.symmetry import Symmetry


class Axis(NamedTuple):
    """One axis of a parameter: which neurons it runs over, and with what power of their scales it transforms.

    ``charge`` is +1 on a weight's rows and on biases, -1 on a weight's columns (paper Def. 4.2:
    ``W_jk -> d_j d'_k^{-1} W``). The node carries the symmetry, not the axis.
    """

    node: str
    charge: int = 1

    def __str__(self) -> str:
        return f"{self.node}^{self.charge:+d}" if self.charge else self.node


FieldType: TypeAlias = tuple[Axis, ...]
"""The non-fixed axes of a tensor, in the order of the space's nodes, last node first; charges reduced."""


def field_name(field_type: FieldType) -> str:
    """A field type as text, for messages: ``h2^+1 h1^-1``, or ``const`` where no axis is left."""
    return " ".join(map(str, field_type)) or "const"


class Layout:
    """Which fields `Features` hold: field types, the multiplicity of each, and the group acting on each axis.

    Layouts are interned: equal ones are the same object, so that checking one costs a pointer comparison.

    Attributes:
        types: field types.
        multiplicities: entries per channel of each field (its fixed axes and kernel dimensions, all parameters).
        acting: for each type, the `Symmetry` that each axis feels.
    """

    types: tuple[FieldType, ...]
    multiplicities: tuple[int, ...]
    acting: tuple[tuple[Symmetry, ...], ...]
    _interned: dict[tuple[object, ...], Layout] = {}  # noqa: RUF012

    def __new__(
        cls,
        types: tuple[FieldType, ...],
        multiplicities: tuple[int, ...],
        acting: tuple[tuple[Symmetry, ...], ...],
    ) -> Layout:
        key = (types, multiplicities, acting)
        if key not in cls._interned:
            layout = super().__new__(cls)
            layout.types, layout.multiplicities, layout.acting = key
            cls._interned[key] = layout
        return cls._interned[key]

    def __reduce__(self) -> tuple[type[Layout], tuple[object, ...]]:
        return Layout, (self.types, self.multiplicities, self.acting)

    def __copy__(self) -> Layout:
        return self

    def __deepcopy__(self, memo: dict[int, object]) -> Layout:
        return self

    def __len__(self) -> int:
        return len(self.types)

    def features(self, fields: Mapping[FieldType, Tensor]) -> Features:
        """`Features` from a mapping field type -> tensor ``(B, *node sizes, channels x multiplicity)``."""
        if set(fields) != set(self.types):
            raise ValueError(
                f"fields {[field_name(t) for t in fields]} given, {[field_name(t) for t in self.types]} expected"
            )
        return Features(self, tuple(fields[t] for t in self.types))

    def require(self, features: Features, channels: int, where: str) -> None:
        """Raise unless ``features`` have this layout and number of channels; ``where`` names the caller."""
        if features.layout is not self:
            raise ValueError(
                f"{where}: the features are of another weight space: found fields [{features.layout}], expected "
                f"[{self}]. Build the layer on the space that packed them (after Canonicalize: space.uncharged())"
            )
        for field_type, multiplicity, tensor in zip(self.types, self.multiplicities, features.tensors, strict=True):
            if tensor.shape[-1] != multiplicity * channels:
                raise ValueError(
                    f"{where}: field [{field_name(field_type)}] has shape {tuple(tensor.shape)}, whose last dimension "
                    f"is {tensor.shape[-1] / multiplicity:g} channels x multiplicity {multiplicity}; the layer was "
                    f"built for {channels} channels"
                )

    def __repr__(self) -> str:
        return ", ".join(
            f"{multiplicity} x {field_name(field_type)}"
            + ("" if not any(a.flips or a.scales for a in acting) else f" ({'/'.join(map(str, acting))})")
            for field_type, multiplicity, acting in zip(self.types, self.multiplicities, self.acting, strict=True)
        )


class Features:
    """Weight-space features: one tensor ``(B, *node sizes, multiplicity x channels)`` per field type.

    Made by `WeightSpace.pack`, read by `WeightSpace.unpack`. Within the last dimension, channels run fastest.
    A pytree, so ``torch.func`` transforms and ``tree_map`` see the tensors.

    Attributes:
        layout: the field types, see `Layout`.
        tensors: the fields, in the layout's order.
    """

    __slots__ = ("layout", "tensors")

    def __init__(self, layout: Layout, tensors: tuple[Tensor, ...]) -> None:
        self.layout = layout
        self.tensors = tensors

    @property
    def fields(self) -> dict[FieldType, Tensor]:
        """Field type -> tensor."""
        return dict(zip(self.layout.types, self.tensors, strict=True))

    __iter__: None = None  # or Python would call __getitem__ with 0, 1, ..., slices that never end

    def __len__(self) -> int:
        """Number of networks ``B`` in the batch."""
        return self.tensors[0].shape[0]

    def __getitem__(self, index: Any) -> Features:
        """Networks by a slice, a mask or an index tensor, as in ``features[10:20]``."""
        if isinstance(index, int):
            index = slice(index, index + 1) if index != -1 else slice(index, None)
        return self.map(lambda t: t[index])

    def map(self, fn: Callable[[Tensor], Tensor]) -> Features:
        """Apply ``fn`` to every field. Equivariance is not checked: use `PointwiseActivation` for that."""
        return Features(self.layout, tuple(fn(t) for t in self.tensors))

    def to(self, *args: Any, **kwargs: Any) -> Features:
        """``torch.Tensor.to`` on every field."""
        return self.map(lambda t: t.to(*args, **kwargs))

    def detach(self) -> Features:
        """Detached fields."""
        return self.map(Tensor.detach)

    def __add__(self, other: Features) -> Features:
        if not isinstance(other, Features):
            return NotImplemented
        return Features(self.layout, tuple(a + b for a, b in self._pairs(other, "+")))

    def __mul__(self, other: float | Tensor | Features) -> Features:
        """Times a number, or entry by entry times features that no scale or sign acts on."""
        if not isinstance(other, Features):
            return self.map(lambda t: t * other)
        if any(a.flips or a.scales for acting in other.layout.acting for a in acting):
            raise ValueError(
                f"a product with charged features is not equivariant: the second factor is [{other.layout}]; "
                "canonicalise it first (Canonicalize), or multiply by a number"
            )
        return Features(self.layout, tuple(a * b for a, b in self._pairs(other, "*")))

    __rmul__ = __mul__

    def _pairs(self, other: Features, operation: str) -> list[tuple[Tensor, Tensor]]:
        same_axes = [[a.node for a in t] for t in self.layout.types] == [
            [a.node for a in t] for t in other.layout.types
        ]
        if other.layout is not self.layout and (operation == "+" or not same_axes):
            raise ValueError(f"features [{self.layout}] {operation} features [{other.layout}]: fields differ")
        return list(zip(self.tensors, other.tensors, strict=True))

    def __repr__(self) -> str:
        shapes = ", ".join(f"[{field_name(t)}] {tuple(x.shape)}" for t, x in self.fields.items())
        return f"Features({shapes})"


def _flatten(features: Features) -> tuple[list[Tensor], Layout]:
    return list(features.tensors), features.layout


def _unflatten(tensors: Any, layout: Any) -> Features:
    return Features(layout, tuple(tensors))


pytree.register_pytree_node(Features, _flatten, _unflatten, serialized_type_name="nfn_monomial.Features")
