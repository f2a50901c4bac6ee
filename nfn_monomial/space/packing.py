"""Named tensors in and out of `Features`: each parameter's place in its field, and every check at the boundary."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from .features import Axis, Features, FieldType

if TYPE_CHECKING:
    from .weight_space import WeightSpace


class Segment(NamedTuple):
    """Where one parameter lies in its field, and how its dimensions are moved there.

    Attributes:
        name: the parameter.
        field: index of its field in the layout.
        offset: first of its entries among the field's multiplicity.
        multiplicity: number of its entries.
        to_field: permutation of ``(B, C, *axes and kernel dims)`` to ``(B, *field axes, *others, C)``.
        to_parameter: its inverse.
    """

    name: str
    field: int
    offset: int
    multiplicity: int
    to_field: tuple[int, ...]
    to_parameter: tuple[int, ...]


def plan_segments(space: WeightSpace) -> tuple[dict[FieldType, int], tuple[Segment, ...]]:
    """The multiplicity of each field type of a space, and the place of each parameter in it."""
    totals: dict[FieldType, int] = {}
    segments = []
    for name, axes in space.axes.items():
        moving: list[int] = []
        moving_axes: list[Axis] = []
        multiplicity = 1
        for i, axis in enumerate(axes):
            if isinstance(axis, Axis) and space.nodes[axis.node].symmetry.permutes:
                moving.append(i)
                moving_axes.append(axis)
            else:
                multiplicity *= axis if isinstance(axis, int) else space.nodes[axis.node].size or 1
        field_type, order = space.canonical(moving_axes)
        offset = totals.get(field_type, 0)
        totals[field_type] = offset + multiplicity
        others = (2 + i for i in range(len(axes)) if i not in moving)
        to_field = (0, *(2 + moving[i] for i in order), *others, 1)
        inverse = tuple(to_field.index(i) for i in range(len(to_field)))
        segments.append(Segment(name, list(totals).index(field_type), offset, multiplicity, to_field, inverse))
    return totals, tuple(segments)


def pack(space: WeightSpace, tensors: Mapping[str, Tensor], check_finite: bool) -> Features:
    """See `WeightSpace.pack`."""
    sizes = check_tensors(space, tensors)
    if check_finite and concrete(tensors.values()):
        require_finite(tensors)
    parts: list[list[Tensor]] = [[] for _ in space.layout.types]
    for segment in space.segments:
        x = unfolded(space, segment.name, tensors[segment.name], sizes).permute(segment.to_field)
        axes = len(space.layout.types[segment.field])
        parts[segment.field].append(x.reshape(*x.shape[: 1 + axes], -1))
    return Features(space.layout, tuple(p[0] if len(p) == 1 else torch.cat(p, -1) for p in parts))


def unpack(space: WeightSpace, features: Features) -> dict[str, Tensor]:
    """See `WeightSpace.unpack`."""
    if features.layout is not space.layout:
        raise ValueError(f"unpack: found features [{features.layout}], {space} has [{space.layout}]")
    sizes = space.node_sizes(features)
    channels = features.tensors[0].shape[-1] // space.layout.multiplicities[0]
    out: dict[str, Tensor] = {}
    for segment in space.segments:
        x = features.tensors[segment.field]
        if segment.multiplicity != space.layout.multiplicities[segment.field]:
            x = x.narrow(-1, segment.offset * channels, segment.multiplicity * channels)
        extents = [a if isinstance(a, int) else sizes[a.node] for a in space.axes[segment.name]]
        shape = (x.shape[0], channels, *extents)
        x = x.reshape([shape[i] for i in segment.to_field]).permute(segment.to_parameter)
        out[segment.name] = x.reshape(*x.shape[:2], *space.shape_of(segment.name, sizes))
    return out


def unfolded(space: WeightSpace, name: str, tensor: Tensor, sizes: Mapping[str, int]) -> Tensor:
    """A parameter ``(B, C, *shape)`` as ``(B, C, *space.axes[name])``: dimensions that are products taken apart."""
    extents = [a if isinstance(a, int) else sizes[a.node] for a in space.axes[name]]
    return tensor.reshape(*tensor.shape[:2], *extents)


def check_tensors(space: WeightSpace, tensors: Mapping[str, Tensor]) -> dict[str, int]:
    """Check names, dtypes, ranks and sizes; returns the size of every node seen. Values are not looked at."""
    if not isinstance(tensors, Mapping):
        raise TypeError(
            f"named tensors are expected, parameter name -> tensor, found {type(tensors).__name__}; of Features, "
            "space.unpack(features)"
        )
    missing = [name for name in space.parameters if name not in tensors]
    extra = [name for name in tensors if name not in space.parameters]
    if missing or extra:
        raise ValueError(
            f"{space} has {len(space.parameters)} parameters, {len(tensors)} tensors given; "
            + (f"missing: {', '.join(missing)}. " if missing else "")
            + (f"not in the space: {', '.join(extra)}. " if extra else "")
            + f"Expected: {', '.join(map(space.describe, space.parameters))}"
        )
    first = next(iter(space.parameters))
    lead = tuple(tensors[first].shape[:2])
    sizes = {n: node.size for n, node in space.nodes.items() if not node.symmetry.permutes and node.size is not None}
    seen_in: dict[str, str] = {}
    for name, axes in space.axes.items():
        x = tensors[name]
        if not x.is_floating_point():
            raise TypeError(f"{name} has dtype {x.dtype}; floating point is expected: tensor.float()")
        if (x.dtype, x.device) != (tensors[first].dtype, tensors[first].device):
            raise TypeError(
                f"{name} is {x.dtype} on {x.device} but {first} is {tensors[first].dtype} on "
                f"{tensors[first].device}; convert all tensors to one dtype and device"
            )
        if x.ndim != 2 + len(space.parameters[name]):
            raise ValueError(
                f"{name} has {x.ndim} dimensions {tuple(x.shape)} but the space expects {space.describe(name)}; "
                "for a single network without channels add them: tensor[None, None]"
            )
        if tuple(x.shape[:2]) != lead:
            raise ValueError(
                f"{name} has batch and channels {tuple(x.shape[:2])} but {first} has {lead}: all parameters "
                "need the same number of networks and of channels"
            )
        if 0 in lead:
            raise ValueError(f"{name} has shape {tuple(x.shape)}: an empty batch; at least one network is needed")
        extents = split_shape(space, name, tuple(x.shape[2:]), sizes, seen_in)
        for extent, axis in zip(extents, axes, strict=True):
            if isinstance(axis, Axis) and axis.node not in sizes:
                sizes[axis.node] = extent
                seen_in[axis.node] = name
    return sizes


def require_finite(tensors: Mapping[str, Tensor]) -> None:
    """Raise ValueError naming the first parameter and network that hold NaN or infinity."""
    # One read of the data and one synchronisation: NaN and infinities survive minimum and maximum.
    if bool(torch.isfinite(torch.stack([m for t in tensors.values() for m in t.aminmax()])).all()):
        return
    for name, t in tensors.items():
        bad = ~torch.isfinite(t)
        if bool(bad.any()):
            where = bad.nonzero()[0].tolist()
            raise ValueError(
                f"{name} holds {int(bad.sum())} NaN or infinite values, the first at index {where} (network "
                f"{where[0]} of the batch). Drop networks whose training diverged"
            )


def split_shape(
    space: WeightSpace,
    name: str,
    shape: tuple[int, ...],
    sizes: Mapping[str, int],
    seen_in: Mapping[str, str] | None = None,
) -> list[int]:
    """A parameter's shape with folded dimensions split up as in ``space.axes``, checked against known node sizes.

    Args:
        space: the weight space.
        name: the parameter.
        shape: of its tensor, without batch and channels.
        sizes: node sizes known so far; one that is not yet known is read off the shape.
        seen_in: node -> parameter from which its size was read, for messages.
    """
    split: list[int] = []
    for extent, dim in zip(shape, space.parameters[name], strict=True):
        parts = flatten_dims((dim,))
        known = [p if isinstance(p, int) else sizes.get(p.node) for p in parts]
        if known.count(None) == 1:  # a node seen for the first time: what is left of the extent is its size
            rest = math.prod([k for k in known if k is not None])
            if extent and extent % rest == 0:
                known = [extent // rest if k is None else k for k in known]
        if None in known or math.prod([k or 0 for k in known]) != extent:
            raise ValueError(_size_error(space, name, shape, parts, extent, sizes, seen_in or {}))
        split.extend(k for k in known if k is not None)
    return split


def _size_error(
    space: WeightSpace,
    name: str,
    shape: tuple[int, ...],
    parts: Sequence[Axis | int],
    extent: int,
    sizes: Mapping[str, int],
    seen_in: Mapping[str, str],
) -> str:
    reasons = []
    for part in parts:
        if isinstance(part, int):
            reasons.append(f"{'kernel size' if len(parts) == 1 else 'folded positions'} {part}")
        elif part.node in sizes:
            source = f" in {seen_in[part.node]}" if part.node in seen_in else ""
            reasons.append(f"axis '{part.node}' is {sizes[part.node]}{source}")
        else:
            reasons.append(f"axis '{part.node}'")
    return (
        f"{name} has shape {shape} (after batch and channels) but the space expects "
        f"{space.describe(name, sizes)}: {' times '.join(reasons)}, and {extent} here. Was this network made with "
        f"a different width or kernel? Space: {space}"
    )


def flatten_dims(dims: Iterable[Axis | int | tuple[Axis | int, ...]]) -> tuple[Axis | int, ...]:
    """Dimensions with folded ones (tuples) replaced by their parts."""
    flat: list[Axis | int] = []
    for dim in dims:
        if isinstance(dim, tuple) and not isinstance(dim, Axis):
            flat.extend(dim)
        else:
            flat.append(dim)
    return tuple(flat)


def concrete(tensors: Iterable[Tensor]) -> bool:
    """Whether values can be looked at: not compiling, not under a torch.func transform, no meta tensors."""
    if torch.compiler.is_compiling():
        return False
    return not any(torch._C._functorch.is_functorch_wrapped_tensor(t) or t.is_meta for t in tensors)
