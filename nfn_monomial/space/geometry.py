"""Nodes and parameters of common architectures: chains of linear layers and convolutions."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from torch import Tensor

from nfn_monomial.checks import shown
from nfn_monomial.errors import InvalidTypeError, InvalidValueError
from nfn_monomial.symmetry import Activation, Symmetry, parity_of

from .axes import Axis, Charge, Dim
from .nodes import Node

SymmetryLike: TypeAlias = Symmetry | Activation


def cnn_geometry(
    channels: Sequence[int],
    kernel_sizes: int | Sequence[int | Sequence[int]],
    head: Sequence[int],
    *,
    ndim: int,
    positions: int,
) -> dict[str, Any]:
    """Arguments of `WeightSpace.sequential` for convolutions, then linear layers; see `WeightSpace.cnn`."""
    count = len(channels) - 1
    if count < 1:
        raise InvalidValueError(f"cnn needs at least two channel numbers, found {list(channels)}; without any use mlp")
    kernels = [kernel_sizes] * count if isinstance(kernel_sizes, int) else list(kernel_sizes)
    if len(kernels) != count:
        raise InvalidValueError(f"{len(kernels)} kernel sizes for {count} convolutions")
    shapes = [(k,) * ndim if isinstance(k, int) else tuple(k) for k in kernels] + [()] * len(head)
    return {"sizes": [*channels, *head], "kernels": shapes, "positions": {count: positions} if head else {}}


def spec_geometry(network_spec: Any) -> dict[str, Any]:
    """Arguments of `WeightSpace.sequential` for an ``nfn.common.NetworkSpec``."""
    if not all(hasattr(network_spec, name) for name in ("weight_spec", "bias_spec")):
        raise InvalidTypeError(f"network_spec must be an nfn.common.NetworkSpec, found {shown(network_spec)}")
    shapes = [tuple(spec.shape) for spec in network_spec.weight_spec]
    biases = [spec is not None for spec in network_spec.bias_spec]
    if not shapes or len(shapes) != len(biases):
        raise InvalidValueError(f"network spec with {len(shapes)} weights and {len(biases)} biases")
    sizes: list[int | None] = [None if shapes[0][1] == -1 else shapes[0][1]]
    positions: dict[int, int] = {}
    for i, shape in enumerate(shapes):
        if len(shape) < 2:
            raise InvalidValueError(f"weight_spec[{i}] has shape {shape}; (out, in, *kernel) is expected")
        rows, columns, known = shape[0], shape[1], sizes[-1]
        if known is not None and columns != -1 and columns != known:
            if columns % known:
                raise InvalidValueError(
                    f"weight_spec[{i}] has {columns} columns but weight_spec[{i - 1}] has {known} rows: the "
                    "layers do not follow one another, nor by a flatten, whose columns would be a multiple"
                )
            positions[i] = columns // known
        sizes.append(None if rows == -1 else rows)
    return {"sizes": sizes, "kernels": [shape[2:] for shape in shapes], "positions": positions, "bias": biases}


def layer_tensors(wsfeat: Any) -> dict[str, Tensor]:
    """The tensors of an ``nfn.common.WeightSpaceFeatures`` as ``weight.i`` and ``bias.i``; biases of None are left out.

    Raises:
        TypeError: if it is something else.
        ValueError: if it has another number of biases than of weights.
    """
    weights, biases = getattr(wsfeat, "weights", None), getattr(wsfeat, "biases", None)
    if not isinstance(weights, Sequence) or not isinstance(biases, Sequence):
        raise InvalidTypeError(f"nfn's WeightSpaceFeatures are expected, found {type(wsfeat).__name__}")
    if len(weights) != len(biases):
        raise InvalidValueError(
            f"WeightSpaceFeatures with {len(weights)} weights and {len(biases)} biases; missing ones are None"
        )
    tensors = {}
    for i, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        for name, x in ((f"weight.{i}", weight), (f"bias.{i}", bias)):
            if x is not None:
                if not isinstance(x, Tensor):
                    raise InvalidTypeError(f"{name} must be a tensor, found {shown(x)}")
                tensors[name] = x
    return tensors


def sequential_geometry(
    sizes: Sequence[int | None],
    kernels: Sequence[Sequence[int]],
    symmetry: SymmetryLike | Sequence[SymmetryLike],
    bias: bool | Sequence[bool],
    io_symmetry: SymmetryLike,
    positions: Mapping[int, int] | None,
    names: Sequence[tuple[str, str | None]] | None,
) -> tuple[dict[str, Node], dict[str, tuple[Dim, ...]], str]:
    """Nodes, parameters and the label of a chain; see `WeightSpace.sequential`."""
    depth = len(sizes) - 1
    hidden = _one_per(symmetry, depth - 1, "hidden node")
    has_bias = [bias] * depth if isinstance(bias, bool) else list(bias)
    if len(has_bias) != depth or len(kernels) != depth:
        raise InvalidValueError(f"{len(has_bias)} bias flags and {len(kernels)} kernels for {depth} layers")
    io = Acting((Symmetry.coerce(io_symmetry),))
    node_names = ["x", *(f"h{i}" for i in range(1, depth)), "y"]
    acting = dict(zip(node_names, [io, *hidden, io], strict=True))
    nodes = {n: Node(acting[n].gauges, size) for n, size in zip(node_names, sizes, strict=True)}
    parameters: dict[str, tuple[Dim, ...]] = {}
    for i, (source, target) in enumerate(itertools.pairwise(node_names)):
        weight, bias_name = names[i] if names else (f"weight.{i}", f"bias.{i}")
        rows, columns = Axis(target, acting[target].rows), Axis(source, acting[source].columns)
        folded = (positions or {}).get(i, 1)
        parameters[weight] = (rows, columns if folded == 1 else (columns, folded), *kernels[i])
        if has_bias[i] and bias_name is not None:
            parameters[bias_name] = (rows,)
    kind = "cnn" if any(kernels) else "mlp"
    symmetries = ["+".join(map(str, h.gauges[len(h.gauges) > 1 :])) for h in hidden]
    distinct = list(dict.fromkeys(symmetries))
    shown = "/".join(distinct if len(distinct) < 2 else symmetries) or "no hidden layer"
    return nodes, parameters, f"{kind}({'-'.join('?' if n is None else str(n) for n in sizes)}, {shown})"


class Acting(NamedTuple):
    """The gauges of neurons before an activation, and the charges of the rows and columns at them."""

    gauges: tuple[Symmetry, ...]
    rows: Charge = 1
    columns: Charge = -1


def acting_before(value: SymmetryLike) -> Acting:
    """The gauges and charges of an activation, or of a symmetry that is meant to act.

    Where factors do not come out of an activation as they went in, a first gauge, PERMUTATION, says which way the
    network runs.
    """
    if isinstance(value, Symmetry) or (isinstance(value, str) and value.upper() in Symmetry.__members__):
        return Acting((Symmetry.coerce(value),))
    power, sign, _ = parity = parity_of(value)
    both = [(Symmetry.SCALE, power), (Symmetry.SIGN, sign)]
    if power is not None and sign == power % 2:
        both = [(Symmetry.MONOMIAL, power)]
    gauges = {group: q for group, q in both if q is not None}
    if {*gauges.values()} <= {1}:
        return Acting((parity.symmetry,))
    return Acting((Symmetry.PERMUTATION, *gauges), (1, *[1] * len(gauges)), (-1, *(-q for q in gauges.values())))


def _one_per(value: SymmetryLike | Sequence[SymmetryLike], count: int, what: str) -> list[Acting]:
    if isinstance(value, Sequence) and not isinstance(value, str):
        if len(value) != count:
            raise InvalidValueError(f"{len(value)} symmetries for {count} {what}s; give one, or one per {what}")
        return [acting_before(v) for v in value]
    return [acting_before(value)] * count
