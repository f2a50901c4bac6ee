"""Named tensors in and out of `Features`, and every check at the boundary."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from .axes import Axis
from .features import Features
from .folding import Folding
from .specification import Specification


def pack(space: Specification, folding: Folding, tensors: Mapping[str, Tensor], check_finite: bool) -> Features:
    """See `WeightSpace.pack`."""
    sizes = check_tensors(space, tensors)
    if check_finite:
        require_finite(tensors)
    return folding.fold([unfolded(space, name, tensors[name], sizes).movedim(1, -1) for name in space.parameters])


def unpack(space: Specification, folding: Folding, features: Features) -> dict[str, Tensor]:
    """See `WeightSpace.unpack`."""
    folding.layout.require(features, None, "unpack")
    sizes = node_sizes(space, features)
    moved = (x.movedim(-1, 1) for x in folding.unfold(features))
    named = zip(space.parameters, moved, strict=True)
    return {name: x.reshape(*x.shape[:2], *space.shape_of(name, sizes)) for name, x in named}


def node_sizes(space: Specification, features: Features) -> dict[str, int]:
    """See `WeightSpace.node_sizes`."""
    sizes = {name: node.size for name, node in space.nodes.items() if node.size is not None}
    for field_type, x in features.fields.items():
        sizes.update({axis.node: x.shape[1 + i] for i, axis in enumerate(field_type)})
    return sizes


def unfolded(space: Specification, name: str, tensor: Tensor, sizes: Mapping[str, int]) -> Tensor:
    """A parameter ``(B, C, *shape)`` as ``(B, C, *space.axes[name])``: dimensions that are products taken apart."""
    extents = [a if isinstance(a, int) else sizes[a.node] for a in space.axes[name]]
    return tensor.reshape(*tensor.shape[:2], *extents)


def check_tensors(space: Specification, tensors: Mapping[str, Tensor]) -> dict[str, int]:
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
    for name in space.parameters:
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
    sizes, seen_in = _read_sizes(space, tensors)
    for name in space.parameters:
        split_shape(space, name, tuple(tensors[name].shape[2:]), sizes, seen_in)
    return sizes


def _read_sizes(space: Specification, tensors: Mapping[str, Tensor]) -> tuple[dict[str, int], dict[str, str]]:
    """Node -> size, and -> the parameter it was read off.

    A dimension on several nodes waits until all but one are known; where it waits in vain, declared sizes count.
    """
    sizes = {n: node.size for n, node in space.nodes.items() if not node.symmetry.permutes and node.size is not None}
    seen_in: dict[str, str] = {}
    waiting = [
        (name, parts, extent)
        for name, dims in space.parts.items()
        for parts, extent in zip(dims, tensors[name].shape[2:], strict=True)
    ]
    while waiting:
        later = []
        for name, parts, extent in waiting:
            known = [p if isinstance(p, int) else sizes.get(p.node) for p in parts]
            if known.count(None) > 1:
                later.append((name, parts, extent))
            elif None in known:
                rest, new = math.prod([k for k in known if k is not None]), parts[known.index(None)]
                if extent and extent % rest == 0 and isinstance(new, Axis):
                    sizes[new.node], seen_in[new.node] = extent // rest, name
        if len(later) == len(waiting):
            unknown = [p.node for _, parts, _ in later for p in parts if isinstance(p, Axis) and p.node not in sizes]
            declared = [(node, size) for node in unknown if (size := space.nodes[node].size) is not None]
            if not declared:
                break
            sizes |= dict(declared[:1])
        waiting = later
    return sizes, seen_in


def require_finite(tensors: Mapping[str, Tensor]) -> None:
    """Raise ValueError naming the first parameter and network that hold NaN or infinity, where values can be seen."""
    if not concrete(tensors.values()):
        return
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
    space: Specification,
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
        sizes: node sizes known so far; one that is not yet known is read off the shape, several in one dimension are
            those that the space declares.
        seen_in: node -> parameter from which its size was read, for messages.
    """
    split: list[int] = []
    for extent, parts in zip(shape, space.parts[name], strict=True):
        known = [p if isinstance(p, int) else sizes.get(p.node) for p in parts]
        if known.count(None) > 1:
            known = [p if isinstance(p, int) else sizes.get(p.node, space.nodes[p.node].size) for p in parts]
        if known.count(None) == 1:  # a node seen for the first time: what is left of the extent is its size
            rest = math.prod([k for k in known if k is not None])
            if extent and extent % rest == 0:
                known = [extent // rest if k is None else k for k in known]
        if None in known or math.prod([k or 0 for k in known]) != extent:
            raise ValueError(_size_error(space, name, shape, parts, extent, sizes, seen_in or {}))
        split.extend(k for k in known if k is not None)
    return split


def _size_error(
    space: Specification,
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


def concrete(tensors: Iterable[Tensor]) -> bool:
    """Whether values can be looked at: not compiling, not under a torch.func transform, no meta or fake tensors."""
    if torch.compiler.is_compiling():
        return False
    return not any(
        torch._C._functorch.is_functorch_wrapped_tensor(t) or t.is_meta or hasattr(t, "fake_mode") for t in tensors
    )


def wide(x: Tensor) -> Tensor:
    """float16, which ends at 65504, as float32, for what is computed on the way; other dtypes as they are."""
    return x.float() if x.dtype == torch.float16 else x
