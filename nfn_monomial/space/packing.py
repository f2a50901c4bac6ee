"""Named tensors in and out of `Features`, and every check at the boundary."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from nfn_monomial.checks import FLOATING, is_dense, shown
from nfn_monomial.errors import InvalidTypeError, InvalidValueError

from .axes import Axis, Dim, Sum, factors_of, flatten_dims, segments_of, size_of, sums_in

if TYPE_CHECKING:
    from .weight_space import WeightSpace


def on_cpu(tensors: Mapping[str, Tensor]) -> bool:
    """True where values can be looked at without waiting for a device."""
    return isinstance(tensors, Mapping) and all(isinstance(t, Tensor) and t.is_cpu for t in tensors.values())


def pieces(space: WeightSpace, tensors: Mapping[str, Tensor], sizes: Mapping[str, int]) -> dict[str, Tensor]:
    """Parameters ``(..., *shape)`` as pieces ``(..., *axes)``: sums cut, products taken apart, in ``space.axes``."""
    return {name: x for parameter in space.parameters for name, x in cut(space, parameter, tensors[parameter], sizes)}


def whole(space: WeightSpace, pieces: Mapping[str, Tensor], sizes: Mapping[str, int]) -> dict[str, Tensor]:
    """The inverse of `pieces`."""
    return {name: joined(space, name, pieces, sizes) for name in space.parameters}


def cut(space: WeightSpace, parameter: str, tensor: Tensor, sizes: Mapping[str, int]) -> Iterator[tuple[str, Tensor]]:
    """Names and tensors of one parameter's pieces, see `pieces`."""
    dims = space.parameters[parameter]
    if space.axes.get(parameter) == dims:
        yield parameter, tensor
        return
    lead, parts = tensor.ndim - len(dims), [tensor]
    for at, dim in enumerate(dims, lead):
        parts = [part for x in parts for part in parted(x, at, dim, sizes)]
    for name, x in zip(space.pieces_of[parameter], parts, strict=True):
        shape = [a if isinstance(a, int) else sizes[a.node] for a in space.axes[name]]
        yield name, x.reshape((*x.shape[:lead], *shape))


def joined(space: WeightSpace, parameter: str, pieces: Mapping[str, Tensor], sizes: Mapping[str, int]) -> Tensor:
    """The inverse of `cut`."""
    if space.axes.get(parameter) == space.parameters[parameter]:
        return pieces[parameter]
    parts = []
    for name in space.pieces_of[parameter]:
        x = pieces[name]
        parts.append(x.reshape((*x.shape[: x.ndim - len(space.axes[name])], *space.shape_of(name, sizes))))
    # The segments of the last dimension count up first, so that is put together first.
    dims, lead = space.parameters[parameter], parts[0].ndim - len(space.parameters[parameter])
    for at, dim in reversed(list(enumerate(dims, lead))):
        left, parts = iter(parts), []
        while (first := next(left, None)) is not None:
            parts.append(_unsplit(itertools.chain((first,), left), at, dim, sizes))
    return parts[0]


def parted(x: Tensor, at: int, dim: Dim, sizes: Mapping[str, int]) -> list[Tensor]:
    """The segments of a dimension of a tensor, in its place ``at``."""
    if not isinstance(dim, Sum):
        return [x]
    lead = size_of(dim.lead, sizes)
    lengths = [size_of(part, sizes) // lead for part in dim.parts]
    rows = torch.split(_beside(x, at, lead), lengths, at + 1)
    parts = zip(rows, dim.parts, strict=True)
    return [x for row, part in parts for x in parted(row.flatten(at, at + 1), at, part, sizes)]


def _unsplit(left: Iterator[Tensor], at: int, dim: Dim, sizes: Mapping[str, int]) -> Tensor:
    """The inverse of `parted`, which takes as many tensors from the left as it needs."""
    if not isinstance(dim, Sum):
        return next(left)
    parts = [_unsplit(left, at, part, sizes) for part in dim.parts]
    lead = size_of(dim.lead, sizes)
    return torch.cat([_beside(x, at, lead) for x in parts], at + 1).flatten(at, at + 1)


def _beside(x: Tensor, at: int, lead: int) -> Tensor:
    """A dimension as the items that all parts share, and the rest of each."""
    return x.reshape((*x.shape[:at], lead, x.shape[at] // lead, *x.shape[at + 1 :]))


def without_dead(space: WeightSpace, parameter: str, tensor: Tensor, sizes: Mapping[str, int]) -> Tensor:
    """One parameter with zeros in the pieces that do not matter to the function."""
    if not any(name in space.dead for name in space.pieces_of[parameter]):
        return tensor
    alive = {n: torch.zeros_like(x) if n in space.dead else x for n, x in cut(space, parameter, tensor, sizes)}
    return joined(space, parameter, alive, sizes)


def check_tensors(space: WeightSpace, tensors: Mapping[str, Tensor]) -> dict[str, int]:
    """Checks names, dtypes, ranks and sizes, and returns the size of every node seen. Values are not looked at.

    Tensors of the same names, shapes, dtypes and devices as those that passed last pass at once: the batches of a
    training run are alike.
    """
    passed, sizes = space.passed  # read once: threads may share a space
    comparable = not torch.compiler.is_compiling() and isinstance(tensors, dict)
    if not comparable or not all(type(x) in (Tensor, nn.Parameter) and is_dense(x) for x in tensors.values()):
        return dict(_checked(space, tensors))
    kinds = [(name, x.shape, x.dtype, x.device) for name, x in tensors.items()]
    if kinds != passed:
        sizes = _checked(space, tensors)
        space.passed = kinds, sizes
    return dict(sizes)


def _checked(space: WeightSpace, tensors: Mapping[str, Tensor]) -> dict[str, int]:
    if not isinstance(tensors, Mapping):
        raise InvalidTypeError(
            f"named tensors are expected, parameter name -> tensor, found {type(tensors).__name__}; of Features, "
            "space.unpack(features)"
        )
    missing = [name for name in space.parameters if name not in tensors]
    extra = [name for name in tensors if name not in space.parameters]
    if missing or extra:
        raise InvalidValueError(
            f"{space} has {len(space.parameters)} parameters, {len(tensors)} tensors given; "
            + (f"missing: {', '.join(missing)}. " if missing else "")
            + (f"not in the space: {', '.join(extra)}. " if extra else "")
            + f"Expected: {', '.join(map(space.describe, space.parameters))}"
        )
    for name in space.parameters:
        x = tensors[name]
        if not isinstance(x, Tensor) or not is_dense(x):
            raise InvalidTypeError(f"{name} must be a dense tensor, found {shown(x)}")
        if x.dtype not in FLOATING:
            raise InvalidTypeError(f"{name} has dtype {x.dtype}; floating point is expected: tensor.float()")
    first = next(iter(space.parameters))
    lead = tuple(tensors[first].shape[:2])
    for name in space.parameters:
        x = tensors[name]
        if (x.dtype, x.device) != (tensors[first].dtype, tensors[first].device):
            raise InvalidTypeError(
                f"{name} is {x.dtype} on {x.device} but {first} is {tensors[first].dtype} on "
                f"{tensors[first].device}; convert all tensors to one dtype and device"
            )
        if x.ndim != 2 + len(space.parameters[name]):
            raise InvalidValueError(
                f"{name} has {x.ndim} dimensions {tuple(x.shape)} but the space expects {space.describe(name)}; "
                "for a single network without channels add them: tensor[None, None]"
            )
        if tuple(x.shape[:2]) != lead:
            raise InvalidValueError(
                f"{name} has batch and channels {tuple(x.shape[:2])} but {first} has {lead}: all parameters "
                "need the same number of networks and of channels"
            )
        if not lead[1]:
            raise InvalidValueError(f"{name} has shape {tuple(x.shape)}: no channels; at least one is needed")
    fixed = {name: node.size for name, node in space.nodes.items() if not node.permutes and node.size is not None}
    sizes, seen_in = _read_sizes(space, {name: tensors[name].shape[2:] for name in space.parameters}, fixed)
    for name in space.parameters:
        require_shape(space, name, tuple(tensors[name].shape[2:]), sizes, seen_in)
    return sizes


def _read_sizes(
    space: WeightSpace, shapes: Mapping[str, Sequence[int]], known: Mapping[str, int]
) -> tuple[dict[str, int], dict[str, str]]:
    """Node -> size, and -> the parameter it was read off, of shapes without batch and channels.

    A product of several nodes waits until all but one are known; if it waits in vain, declared sizes count. They also
    count for nodes that lie in sums alone.
    """
    sizes: dict[str, int] = dict(known)
    seen_in: dict[str, str] = {}
    waiting = [
        (name, flatten_dims((dim,)), extent)
        for name, shape in shapes.items()
        for dim, extent in zip(space.parameters[name], shape, strict=True)
        if len(segments_of(dim)) == 1
    ]
    while waiting:
        later: list[tuple[str, tuple[Axis | int, ...], int]] = []
        declared: dict[str, int] = {}
        for name, parts, extent in waiting:
            unknown = [p.node for p in parts if isinstance(p, Axis) and p.node not in sizes]
            times = math.prod([p if isinstance(p, int) else sizes.get(p.node, 1) for p in parts])
            if len(unknown) > 1:
                later.append((name, parts, extent))
                declared |= {node: size for node in unknown if (size := space.nodes[node].size) is not None}
            elif unknown and extent and extent % times == 0:
                sizes[unknown[0]], seen_in[unknown[0]] = extent // times, name
        if len(later) == len(waiting):
            if not declared:
                break
            sizes.update(list(declared.items())[:1])
        waiting = later
    for name in shapes:
        for node in _nodes_in(dim for dim in space.parameters[name] if len(segments_of(dim)) > 1):
            if (size := space.nodes[node].size) is not None:
                sizes.setdefault(node, size)
    return sizes, seen_in


def _nodes_in(dims: Iterable[Dim]) -> list[str]:
    """The nodes that some dimensions lie on."""
    return list(dict.fromkeys(factor.node for factor in factors_of(dims) if isinstance(factor, Axis)))


def require_finite(tensors: Mapping[str, Tensor]) -> None:
    """Raises ValueError naming the first parameter and network that hold NaN or infinity, where values can be seen."""
    if not concrete(tensors.values()) or not all(t.numel() for t in tensors.values()):
        return
    # One read of the data and one synchronisation: NaN and infinities survive minimum and maximum.
    if bool(torch.isfinite(torch.stack([m for t in tensors.values() for m in t.aminmax()])).all()):
        return
    for name, t in tensors.items():
        bad = ~torch.isfinite(t)
        if bool(bad.any()):
            where = bad.nonzero()[0].tolist()
            raise InvalidValueError(
                f"{name} holds {int(bad.sum())} NaN or infinite values, the first at index {where} (network "
                f"{where[0]} of the batch). Drop networks whose training diverged"
            )


def sizes_in(space: WeightSpace, name: str, shape: tuple[int, ...], sizes: Mapping[str, int]) -> dict[str, int]:
    """Sizes of the nodes of one parameter, of which some are known; the others are read off its shape, checked.

    Args:
        space: the weight space.
        name: the parameter.
        shape: of its tensor, without batch and channels.
        sizes: node sizes known so far; where several are not known in one dimension, the sizes that the space declares.
    """
    known, _ = _read_sizes(space, {name: shape}, sizes)
    require_shape(space, name, shape, known)
    return known


def require_shape(
    space: WeightSpace,
    name: str,
    shape: tuple[int, ...],
    sizes: Mapping[str, int],
    seen_in: Mapping[str, str] | None = None,
) -> None:
    """Raises unless a parameter has this shape, without batch and channels, for these node sizes."""

    def reason(part: Axis | int, alone: bool) -> str:
        if isinstance(part, int):
            return f"{'kernel size' if alone else 'folded positions'} {part}"
        if part.node not in sizes:
            return f"axis '{part.node}'"
        source = f" in {seen_in[part.node]}" if seen_in and part.node in seen_in else ""
        return f"axis '{part.node}' is {sizes[part.node]}{source}"

    for number, (extent, dim) in enumerate(zip(shape, space.parameters[name], strict=True)):
        segments = segments_of(dim)
        unknown = [node for node in _nodes_in([dim]) if node not in sizes]
        if unknown and len(segments) > 1:
            raise InvalidValueError(
                f"{name} has shape {shape} (after batch and channels): dimension {number} is a sum, "
                f"{space.describe(name, sizes)}, in which no size of {', '.join(unknown)} can be read; declare it in "
                f"the space, as WeightSpace({{{unknown[0]!r}: (Symmetry.SCALE, 16), ...}}, ...)"
            )
        lengths = [math.prod([p if isinstance(p, int) else sizes.get(p.node, 0) for p in parts]) for parts in segments]
        if unknown or sum(lengths) != extent:
            reasons = [" times ".join(reason(part, len(parts) == 1) for part in parts) for parts in segments]
            raise InvalidValueError(
                f"{name} has shape {shape} (after batch and channels) but the space expects "
                f"{space.describe(name, sizes)}: {' plus '.join(reasons)}, and {extent} here. Was this network made "
                f"with a different width or kernel? Space: {space}"
            )
        for lead, part in [(inner.lead, part) for inner in sums_in(dim) for part in segments_of(inner)]:
            if size_of(lead, sizes) not in {size_of(part[:n], sizes) for n in range(len(part) + 1)}:
                raise InvalidValueError(f"{name}: {part} begins with nothing of the size of {lead}, shared by its sum")


def concrete(tensors: Iterable[Tensor]) -> bool:
    """True where values can be looked at: not compiling, not under a torch.func transform, no meta or fake tensors."""
    if torch.compiler.is_compiling():
        return False
    return not any(
        torch._C._functorch.is_functorch_wrapped_tensor(t) or t.is_meta or hasattr(t, "fake_mode") for t in tensors
    )


def wide(x: Tensor) -> Tensor:
    """float16, which ends at 65504, as float32 for intermediate values; other dtypes as they are."""
    return x.float() if x.dtype == torch.float16 else x


def is_counter(key: str, keys: Collection[str]) -> bool:
    """True for the counter of batches of a batch norm, whose running mean is beside it."""
    module, _, name = key.rpartition(".")
    return name == "num_batches_tracked" and f"{module}.running_mean".lstrip(".") in keys
