"""Fields and the container layers pass on: channels last, one tensor per field type."""

from __future__ import annotations

import contextlib
import functools
import numbers
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import torch
from torch import Tensor

from nfn_monomial.checks import FLOATING, WHOLE, Size, checked, is_dense, same_numbers, shown
from nfn_monomial.errors import InvalidIndexError, InvalidTypeError, InvalidValueError
from nfn_monomial.symmetry import Symmetry

from .axes import Axis, Dim, FieldType, field_name

Content: TypeAlias = tuple[tuple[str, int, int, tuple[Dim, ...]], ...]
"""The parameters that fields are made of: name, field, first entry there, and dimensions, sorted by name."""


class Layout:
    """The fields of `Features`: field types, the multiplicity of each, and the group acting on each axis.

    Layouts are interned: equal ones are the same object, so that checking one costs a pointer comparison.

    Attributes:
        types: field types.
        multiplicities: entries per channel of each field (its fixed axes and kernel dimensions, all parameters).
        acting: for each type, the `Symmetry` that each axis feels.
        content: the parameters in the fields, where they are those of a weight space, so that no other space takes
            these fields for the fields of its parameters.
        felt: for each type, the smallest symmetry that contains the groups on all its axes.
    """

    types: tuple[FieldType, ...]
    multiplicities: tuple[int, ...]
    acting: tuple[tuple[Symmetry, ...], ...]
    content: Content
    felt: tuple[Symmetry, ...]
    _interned: dict[tuple[object, ...], Layout] = {}  # noqa: RUF012

    @checked
    def __new__(
        cls,
        types: tuple[FieldType, ...],
        multiplicities: tuple[Size, ...],
        acting: tuple[tuple[Symmetry, ...], ...],
        content: Content = (),
    ) -> Layout:
        if not types or not len(types) == len(multiplicities) == len(acting):
            raise InvalidValueError(
                f"a Layout needs a field or more, and of each its multiplicity and what acts on its axes, found "
                f"{len(types)}, {len(multiplicities)} and {len(acting)}"
            )
        key = (types, multiplicities, acting, content)
        if key not in cls._interned:
            layout = super().__new__(cls)
            layout.types, layout.multiplicities, layout.acting, layout.content = key
            layout.felt = tuple([functools.reduce(operator.or_, felt or [Symmetry.PERMUTATION]) for felt in acting])
            cls._interned[key] = layout
        return cls._interned[key]

    def __reduce__(self) -> tuple[type[Layout], tuple[object, ...]]:
        return Layout, (self.types, self.multiplicities, self.acting, self.content)

    def __len__(self) -> int:
        return len(self.types)

    @property
    def charged(self) -> bool:
        """True where scalings or sign flips act on any field."""
        return any(felt.flips or felt.scales for felt in self.felt)

    def features(self, fields: Mapping[FieldType, Tensor]) -> Features:
        """`Features` from a mapping field type -> tensor ``(B, *node sizes, channels x multiplicity)``."""
        if set(fields) != set(self.types):
            raise InvalidValueError(
                f"fields {[field_name(t) for t in fields]} passed, {[field_name(t) for t in self.types]} expected"
            )
        return Features(self, tuple(fields[t] for t in self.types))

    def require(self, features: Features, channels: int | None, where: str, like: Tensor | None = None) -> None:
        """Raises unless ``features`` have this layout and these channels.

        Args:
            features: `Features`, or anything that a caller takes for them.
            channels: their number; None for any.
            where: names the caller.
            like: a parameter that they are multiplied by, whose dtype and device they need.
        """
        if not isinstance(features, Features):
            raise InvalidTypeError(f"{where}: Features are expected, found {shown(features)}: space.pack(tensors)")
        if features.layout is not self:
            fields, expected = str(features.layout), str(self)
            if fields == expected:
                fields, expected = (_content_text(layout.content) for layout in (features.layout, self))
            raise InvalidValueError(
                f"{where}: the features are of another weight space: found fields [{fields}], expected "
                f"[{expected}]. Build the layer on the space that packed them (after Canonicalize: space.uncharged())"
            )
        for field_type, multiplicity, tensor in zip(self.types, self.multiplicities, features.tensors, strict=True):
            if not isinstance(tensor, Tensor) or not is_dense(tensor) or tensor.dtype not in FLOATING:
                raise InvalidTypeError(
                    f"{where}: field [{field_name(field_type)}] must be a dense tensor of floating point numbers, "
                    f"found {shown(tensor)}"
                )
            if tensor.ndim != 2 + len(field_type):
                raise InvalidValueError(
                    f"{where}: field [{field_name(field_type)}] has shape {tuple(tensor.shape)}; networks, "
                    f"{len(field_type)} dimensions of neurons and channels are expected"
                )
            if channels is not None and tensor.shape[-1] != multiplicity * channels:
                raise InvalidValueError(
                    f"{where}: field [{field_name(field_type)}] has shape {tuple(tensor.shape)}, whose last dimension "
                    f"is {tensor.shape[-1] / multiplicity:g} channels x multiplicity {multiplicity}; the layer was "
                    f"built for {channels} channels"
                )
            if like is not None:
                same_numbers(tensor, like, where)

    def __repr__(self) -> str:
        return ", ".join(
            f"{multiplicity} x {field_name(field_type)}"
            + ("" if not any(a.flips or a.scales for a in acting) else f" ({'/'.join(map(str, acting))})")
            for field_type, multiplicity, acting in zip(self.types, self.multiplicities, self.acting, strict=True)
        )


Types: TypeAlias = Layout | Mapping[FieldType, int] | Iterable[FieldType] | None
"""Fields: a layout, field types, with the multiplicity of each or 1, or None for those of the space's parameters."""


def _content_text(content: Content) -> str:
    def text(dim: Dim) -> str:
        return str(dim) if isinstance(dim, Axis | int) else "*".join(map(str, dim))

    ordered = sorted(content, key=lambda part: part[1:3])
    return ", ".join(f"{name} {' x '.join(map(text, dims))}" for name, _, _, dims in ordered) or "no parameters"


@dataclass(init=False, eq=False, repr=False)
class Features:
    """Weight-space features: one tensor ``(B, *node sizes, multiplicity x channels)`` per field type.

    Made by `WeightSpace.pack`, read by `WeightSpace.unpack`. Within the last dimension, channels run fastest.
    A pytree and a dataclass, so that ``torch.func`` transforms, ``tree_map`` and ``torch.distributed`` see the tensors.

    Attributes:
        layout: the field types, see `Layout`.
        tensors: the fields, in the layout's order.
    """

    __slots__ = ("layout", "tensors")

    layout: Layout
    tensors: tuple[Tensor, ...]

    def __init__(self, layout: Layout, tensors: tuple[Tensor, ...]) -> None:
        if not isinstance(layout, Layout) or not isinstance(tensors, tuple) or len(tensors) != len(layout):
            count = len(layout) if isinstance(layout, Layout) else "its"
            raise InvalidTypeError(
                f"Features hold a Layout and a tuple of {count} tensors, found {shown(layout)} and {shown(tensors)}; "
                "space.pack(tensors) makes them"
            )
        self.layout = layout
        self.tensors = tensors

    def __reduce__(self) -> tuple[type[Features], tuple[Layout, tuple[Tensor, ...]]]:
        return Features, (self.layout, self.tensors)  # which torch.load(weights_only=True) reads, unlike slots

    @property
    def fields(self) -> dict[FieldType, Tensor]:
        """Field type -> tensor."""
        return dict(zip(self.layout.types, self.tensors, strict=True))

    @property
    def sizes(self) -> dict[str, int]:
        """Node -> number of its neurons, of the nodes in the fields."""
        return {axis.node: x.shape[1 + i] for axes, x in self.fields.items() for i, axis in enumerate(axes)}

    __array_ufunc__: ClassVar[None] = None  # or numpy would take a product with an array apart
    __iter__: ClassVar[None] = None  # or Python would call __getitem__ with 0, 1, ..., slices that never end

    def __len__(self) -> int:
        """Number of networks ``B`` in the batch."""
        return self.tensors[0].shape[0]

    def __getitem__(self, index: Any) -> Features:
        """Networks by a number (a batch of one), a slice, a mask or an index tensor, as in ``features[10:20]``.

        Raises:
            IndexError: for a number past the end, or anything else, such as an index into other dimensions.
        """
        if isinstance(index, slice):
            return self.map(lambda t: t[index])
        count, chosen = len(self), None
        with contextlib.suppress(TypeError, ValueError, RuntimeError):  # no index, ragged, or without values
            is_array = isinstance(index, list) or hasattr(index, "ndim")
            chosen = torch.as_tensor(index if is_array else operator.index(index))
            if not chosen.ndim and chosen.dtype in WHOLE and not isinstance(index, bool):
                number = int(chosen)
                if not -count <= number < count:
                    raise InvalidIndexError(f"network {number} of a batch of {count}")
                return self.map(lambda t: t[number % count : number % count + 1])
        if chosen is None or chosen.ndim != 1 or chosen.dtype not in (torch.bool, torch.int64, torch.int32):
            raise InvalidIndexError(f"networks are picked by number, slice, mask or list of numbers, found {index!r}")
        if chosen.dtype is torch.bool:
            if len(chosen) != count:
                raise InvalidIndexError(f"a mask of {len(chosen)} for a batch of {count} networks")
        elif bool(((chosen < -count) | (chosen >= count)).any()):
            raise InvalidIndexError(f"networks {shown(chosen.tolist())} of a batch of {count}")
        return self.map(lambda t: t[chosen])

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
        """Times a number, a number for each network ``(B,)``, or entry by entry features on which nothing acts.

        Raises:
            ValueError: for other tensors, or charged features: such products are not equivariant.
        """
        if isinstance(other, Tensor) and other.shape not in ((), (len(self),)):
            raise InvalidValueError(
                f"a product with a tensor of shape {tuple(other.shape)} is not equivariant; multiply by a number, or "
                f"by one number for each of the {len(self)} networks, shape ({len(self)},)"
            )
        if isinstance(other, Tensor) and other.ndim:
            return self.map(lambda t: t * other.reshape(-1, *[1] * (t.ndim - 1)))
        if isinstance(other, Tensor | numbers.Number):
            return self.map(lambda t: t * other)
        if not isinstance(other, Features):
            raise InvalidTypeError(
                f"features are multiplied by numbers, tensors and features, found {type(other).__name__}"
            )
        if other.layout.charged:
            raise InvalidValueError(
                f"a product with charged features is not equivariant: the second factor is [{other.layout}]; "
                "canonicalise it first (Canonicalize), or multiply by a number"
            )
        return Features(self.layout, tuple(a * b for a, b in self._pairs(other, "*")))

    __rmul__ = __mul__

    def _pairs(self, other: Features, operation: str) -> list[tuple[Tensor, Tensor]]:
        mine, others = ([[a.node for a in t] for t in features.layout.types] for features in (self, other))
        if other.layout is not self.layout and (operation == "+" or mine != others):
            raise InvalidValueError(f"features [{self.layout}] {operation} features [{other.layout}]: fields differ")
        return list(zip(self.tensors, other.tensors, strict=True))

    def __repr__(self) -> str:
        shapes = ", ".join(f"[{field_name(t)}] {tuple(x.shape)}" for t, x in self.fields.items())
        return f"Features({shapes})"
