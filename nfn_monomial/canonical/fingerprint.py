"""Fingerprints: a short text that is the same for all networks that a space's group turns into one another.

The network is balanced, which takes its scales away. Its neurons get features (`Refinement`), which permutations and
signs move as they move neurons. These are averaged over the neurons of each node, rounded, and hashed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor

from nfn_monomial.checks import checked, shown
from nfn_monomial.errors import InvalidTypeError
from nfn_monomial.space import packing
from nfn_monomial.space.axes import Axis
from nfn_monomial.space.weight_space import WeightSpace

from .balance import rescaling
from .neuron_features import CHANNELS, Refinement, random_numbers, whole_slices

_NUMBERS = 8  # that are hashed
_VERSION = 1  # of the numbers that are hashed: another version gives networks other fingerprints
STEPS = {torch.float64: 2.0**-23, torch.float32: 2.0**-11}  # numbers are rounded to multiples of these and hashed


@checked
def fingerprint(space: WeightSpace, network: Mapping[str, Tensor]) -> str:
    """Returns 32 hexadecimal digits, the same for all networks that the group turns into one another.

    Equal functions that a symmetry of the space relates have equal fingerprints, whatever the scales between them, so
    checkpoints can be looked up by what they compute. The network is balanced (`balance`), so that only permutations
    and signs are left. A neuron ``j`` has features ``h_j`` that flip with its sign, and others that do not. Those of
    all nodes, one after the other, forwards and backwards, become ::

        h_j <- asinh(A h_j + sum over parameters W of B_W (sum over k of W_jk h_k)),

    with fixed random matrices ``A`` and ``B_W``; those that do not flip also see sums of ``W_jk^2``. Means over
    neurons, and the logarithms of the parameters' root mean squares, are added up with random factors to 8 numbers.
    They are rounded to multiples of ``2^-23`` (float64) or ``2^-11`` (float32), and hashed, together with the nodes'
    sizes and symmetries and the parameters' axes, in order, but with no name. Parameters that do not matter
    (``space.dead``) are left out.

    **Narrower dtypes have none.** A moved network in bfloat16 or float16 is rounded anew, by 1 part in 500 or 4,000:
    numbers that are equal for all these copies are equal for networks whose weights differ by 1 percent, too. Use
    `compare` for two of them.

    **Limits.** Networks that differ by less than the rounding may have the same fingerprint. In float32 none of 1,560
    MLPs and CNNs kept it when all weights were changed at random by 1 or by 0.1 percent; 84 did when it was by 0.01
    percent, and 1,092 when it was by 0.001 percent. If one weight changes its sign or doubles, the change is smaller
    the more weights there are: of 1,000 networks of 267 weights 1 kept its fingerprint, of 60 of 269,322 weights 3 did
    with another sign, and 7 with one that was doubled. Float64 is 4,096 times as fine.

    Numbers that lie just between two multiples are rounded apart, so one function may have two fingerprints: 2 of these
    1,560 networks in float32 did, moved by scales of up to 100; `compare` decides. A network in float32 and in float64
    has two, and so have networks that are the same function without a symmetry of the space between them. Where no bias
    and no fixed input or output says which sign a neuron has, signs that only products of several weights show are not
    seen. All computations are in float64.

    Args:
        space: the weight space.
        network: parameter name -> tensor ``(*shape)``; entries that are no parameters of the space are ignored.

    Raises:
        ValueError: as `WeightSpace.pack`, for names, shapes and values that do not fit.
        TypeError: for tensors that are not float32 or float64, one of which is enough.

    >>> space = WeightSpace.mlp([1, 2, 1], "relu", bias=False)
    >>> a = {"weight.0": torch.tensor([[1.0], [2.0]]), "weight.1": torch.tensor([[3.0, 4.0]])}
    >>> b = {"weight.0": torch.tensor([[8.0], [1.0]]), "weight.1": torch.tensor([[1.0, 3.0]])}
    >>> fingerprint(space, a) == fingerprint(space, b)
    True
    """
    parameters = {name: network[name] for name in space.parameters if name in network}
    return hashed(space, parameters, step_of(parameters, STEPS))


def hashed(space: WeightSpace, network: Mapping[str, Tensor], step: float) -> str:
    """Returns the fingerprint of a network whose numbers are rounded to multiples of a step."""
    numbers, sizes = invariants(space, network)
    rounded = (numbers / step).round().to(torch.int64).tolist()
    # Nodes, symmetries and axes are hashed as well, without their names.
    number = {name: i for i, name in enumerate(space.nodes)}
    nodes = [
        (*map(str, node.gauges), sizes.get(name), number.get(node.parent or "")) for name, node in space.nodes.items()
    ]
    axes = [
        [(number[a.node], space.nodes[a.node].charge(a.charge)) if isinstance(a, Axis) else a for a in of_parameter]
        for of_parameter in space.axes.values()
    ]
    text = f"{_VERSION};{nodes};{axes};{step};{rounded}"
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def step_of(network: Mapping[str, Tensor], steps: Mapping[torch.dtype, float]) -> float:
    """Returns the coarsest of the steps of a network's dtypes.

    Raises:
        TypeError: for a tensor of a dtype that has no fingerprint.
    """
    for name, x in network.items():
        if not isinstance(x, Tensor) or x.is_meta or not x.is_floating_point():
            raise InvalidTypeError(f"fingerprint: {name} is {shown(x)}; a floating point tensor is expected")
        if x.dtype not in steps:
            raise InvalidTypeError(
                f"fingerprint: {name} is {shown(x)}, whose dtype has too few digits to tell networks apart; float32 or "
                "float64 is expected; compare two such networks with nfn_monomial.compare"
            )
    return max((steps[x.dtype] for x in network.values()), default=0.0)


@torch.no_grad()
def invariants(space: WeightSpace, network: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, int]]:
    """Returns the numbers that `fingerprint` rounds, equal up to rounding within an orbit, and the sizes of nodes.

    Args:
        space: the weight space.
        network: parameter name -> tensor ``(*shape)``.
    """
    one = {name: x.detach().to("cpu", torch.float64)[None, None] for name, x in network.items()}
    sizes = space.node_sizes(space.pack(one))
    alive = {name: packing.without_dead(space, name, x, sizes) for name, x in one.items()}
    features = space.pack(alive, check_finite=False)
    balanced = space.unpack(rescaling(space, features, signs=False, converge=True).act(features))
    taken = packing.pieces(space, {name: x[0, 0] for name, x in balanced.items()}, sizes)
    total = torch.zeros(_NUMBERS, dtype=torch.float64)
    number, place = ({name: i for i, name in enumerate(names)} for names in (space.nodes, space.pieces))
    for node, streams in Refinement(space, whole_slices(space, taken), sizes).refine().items():
        for parity, h in streams.items():
            mean = (h.square() if any(map(any, parity)) else h).flatten(0, -2).mean(0)
            total += mean @ random_numbers(f"read {number[node]} {parity}", CHANNELS, _NUMBERS)
    for name, x in taken.items():
        size = x.square().mean().sqrt()
        # 0 is far from all other sizes.
        total += torch.where(size > 0, size.log(), -1e3) * random_numbers(f"size {place[name]}", _NUMBERS)
        if not any(isinstance(axis, Axis) for axis in space.axes[name]):  # it has no neurons to speak for it
            total += x.flatten() @ random_numbers(f"entries {place[name]}", x.numel(), _NUMBERS)
    return total, sizes
