"""Networks that are compared: parameter -> tensor, checked against a space and against one another."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from nfn_monomial.checks import FLOATING, is_dense, shown
from nfn_monomial.errors import InvalidTypeError, InvalidValueError
from nfn_monomial.space import packing
from nfn_monomial.space.weight_space import WeightSpace

Network = Mapping[str, Tensor]


def sizes_of(space: WeightSpace, networks: Mapping[str, Network], *, one_dtype: bool = False) -> dict[str, int]:
    """Returns the sizes of all nodes, which networks have in common; tensors are looked at one after the other.

    Raises:
        ValueError: for parameters that are missing, whose shapes do not fit the space or one another, or that hold NaN
            or infinite values, naming the network.
        TypeError: for anything but a floating point tensor, or for several dtypes of a network that is to have one.
    """
    sizes: dict[str, int] = {}
    for label, network in networks.items():
        shapes = {}
        for name in filter(network.__contains__, space.parameters):
            x = network[name]
            if not isinstance(x, Tensor) or not is_dense(x) or x.dtype not in FLOATING or x.is_meta:
                raise InvalidTypeError(
                    f"network {label}: {name} is {shown(x)}; a dense tensor of floating point values is expected"
                )
            shapes[name] = torch.empty((1, 1, *x.shape), dtype=x.dtype if one_dtype else None, device="meta")
        try:
            sizes_here = packing.check_tensors(space, shapes)
            for name in space.parameters:
                packing.require_finite({name: network[name].detach()[None, None]})
        except InvalidValueError as error:
            raise InvalidValueError(f"network {label} (one network, without batch and channels): {error}") from error
        different = [name for name, size in sizes_here.items() if sizes.get(name, size) != size]
        if different:
            raise InvalidValueError(
                f"networks of different widths cannot be aligned: node {different[0]!r} has {sizes[different[0]]} "
                f"neurons in {next(iter(networks))} and {sizes_here[different[0]]} in {label}"
            )
        sizes = sizes_here
    return {name: node.size or 1 for name, node in space.nodes.items()} | sizes


def in_float64(space: WeightSpace, network: Network) -> dict[str, Tensor]:
    """The parameters of the space, on the CPU, in float64."""
    return {name: network[name].detach().cpu().double() for name in space.parameters}


def square_of(network: Network) -> float:
    """The sum of squares of all entries."""
    return sum(float(x.square().sum()) for x in network.values())


def distance_between(a: Network, b: Network) -> float:
    """The Euclidean distance of all parameters."""
    return math.sqrt(sum(float((a[name] - b[name]).square().sum()) for name in a))


def least_precise(dtypes: Iterable[torch.dtype]) -> torch.dtype:
    """The dtype with the largest rounding error."""
    return max(dtypes, key=lambda dtype: torch.finfo(dtype).eps)


def comparison_dtype(*dtypes: torch.dtype) -> torch.dtype:
    """The dtype in which tensors are compared: float64, or float32 where all are narrower than that."""
    single = torch.finfo(torch.float32).eps
    return torch.float32 if min(torch.finfo(dtype).eps for dtype in dtypes) > single else torch.float64
