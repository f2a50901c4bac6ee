"""How many parameters a layer and a model have: counted, by closed formulas, and as the paper states them.

**Formulas.** A chain of L layers has biases, kernels of ``k_1, ..., k_L`` entries (1 for a linear layer), ``n_0``
inputs and ``n_L`` outputs; an equivariant layer maps c to c' channels. Tensors that transform alike are one field, and
every type that fields can be contracted to costs the square of their multiplicity in it. Times c c', for L >= 2:

    NP      (K + L)^2 + sum_{i=0}^{L} (k_i + k_{i+1} + [i > 0])^2 + sum_{i=1}^{L} k_i^2           k_0 = k_{L+1} = 0
    HNP     (K' + L - 1 + n_L)^2 + sum_{i=1}^{L-1} (1 + k'_i + k'_{i+1})^2 + sum_{i=2}^{L-1} k_i^2
    SCALE   (k'_1 + 1)^2 + sum_{i=2}^{L-1} (k_i^2 + 1) + k'_L^2 + n_L^2
    SIGN    (k'_1 + 1)^2 + (k'_L + 1)^2 + sum_{i=2}^{L-1} k_i^2 + (L - 3) + n_L^2                 L >= 3
            (k'_1 + 1 + k'_2)^2 + n_2^2                                                           L = 2

where ``k'`` is k but for ``k'_1 = n_0 k_1`` and ``k'_L = n_L k_L``, and K, K' are sums over all layers. Constants come
on top: c' times K + L for NP, K' + L - 1 + n_L for HNP, n_L for SCALE and SIGN. So the monomial layers are linear in L,
where NP and HNP are quadratic, and *quadratic* in n_0 and n_L, as HNP is; Table 1 claims linear. With ``io="factored"``
they are linear in all three: a field's m^2 c c' becomes ``m (r (c + c') + c c')``, r = max(c, c'), where that is less.

nfn's own layers have more than that, in biases and broadcasts that coincide.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from nfn.layers import HNPLinear, NPLinear
from torch import nn

from nfn_monomial import EquivariantLinear, WeightSpace
from nfn_monomial.benchmarks.models.parts import network_spec
from nfn_monomial.benchmarks.settings.measurements import ParamsConfig
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.tools.predictors.architectures import PlainCNN
from nfn_monomial.tools.predictors.models import NetworkInfo

__all__ = [
    "FAMILIES",
    "LayerCount",
    "closed_form",
    "counted",
    "layer_counts",
    "space_of",
    "zoo_network",
]

Family = Literal["NP", "HNP", "SCALE", "SIGN"]
IO = Literal["full", "factored"]
FAMILIES: tuple[Family, ...] = ("NP", "HNP", "SCALE", "SIGN")


def closed_form(
    family: Family, sizes: Sequence[int], kernels: Sequence[int], channels: tuple[int, int], io: IO = "full"
) -> int:
    """Number of parameters of one layer by the formulas above, constants included.

    Args:
        family: the group: ``NP``, ``HNP``, ``SCALE`` (ReLU) or ``SIGN`` (tanh, sin).
        sizes: ``[n_0, ..., n_L]``; of hidden ones only their number counts.
        kernels: entries of the kernels, one for each of the L layers; 1 for a linear layer.
        channels: in and out.
        io: of `EquivariantLinear`; ``factored`` is for SCALE and SIGN.

    Raises:
        ValueError: without a hidden layer, or for factored NP and HNP.
    """
    depth, (n_in, n_out), (c_in, c_out) = len(kernels), (sizes[0], sizes[-1]), channels
    if depth < 2 or len(sizes) != depth + 1:
        raise InvalidValueError(f"{len(sizes)} sizes and {depth} kernels: L + 1 sizes and L >= 2 kernels are needed")
    wide = [*kernels]
    wide[0] *= n_in
    wide[-1] *= n_out
    inner = range(1, depth - 1)  # layers between hidden neurons, counted from 0
    if family in ("NP", "HNP"):
        if io != "full":
            raise InvalidValueError(f"{family} has no factored form here: choose SCALE or SIGN, or io='full'")
        if family == "NP":
            sums = [sum(kernels) + depth]
            around = [0, *kernels, 0]
            sums += [around[i] + around[i + 1] + (i > 0) for i in range(depth + 1)]
            fields = [*sums, *kernels]
        else:
            sums = [sum(wide) + depth - 1 + n_out]
            sums += [1 + wide[i] + wide[i + 1] for i in range(depth - 1)]
            fields = [*sums, *(kernels[i] for i in inner)]
        return c_in * c_out * sum(m * m for m in fields) + c_out * sums[0]
    ones = [1] * len(inner)
    if family == "SCALE":
        fields = [wide[0] + 1, *(kernels[i] for i in inner), *ones, wide[-1], n_out]
    elif depth == 2:
        fields = [wide[0] + 1 + wide[1], n_out]
    else:
        fields = [wide[0] + 1, wide[-1] + 1, *(kernels[i] for i in inner), *ones[1:], n_out]
    return sum(_mix(m, c_in, c_out, io) for m in fields) + c_out * n_out


def _mix(m: int, c_in: int, c_out: int, io: IO) -> int:
    """Parameters of the matrix of a field of multiplicity ``m``."""
    full = m * m * c_in * c_out
    return full if io == "full" else min(full, m * (max(c_in, c_out) * (c_in + c_out) + c_in * c_out))


def space_of(family: Family, sizes: Sequence[int], kernels: Sequence[int]) -> WeightSpace:
    """The weight space of a chain of layers, whose group is the family's. ``kernels``: sides of square ones, or 1."""
    group = {"NP": "permutation", "HNP": "permutation", "SCALE": "scale", "SIGN": "sign"}[family]
    shapes = [() if k == 1 else (k, k) for k in kernels]
    return WeightSpace.sequential(sizes, shapes, group, io_symmetry="permutation" if family == "NP" else "fixed")


def counted(
    family: Family, sizes: Sequence[int], kernels: Sequence[int], channels: tuple[int, int], io: IO = "full"
) -> int:
    """Number of parameters of `EquivariantLinear`, built without memory for them (on the meta device).

    Args:
        family: see `closed_form`.
        sizes: ``[n_0, ..., n_L]``.
        kernels: sides of the square kernels; 1 for a linear layer.
        channels: in and out.
        io: of the layer.
    """
    return _numel(lambda: EquivariantLinear(space_of(family, sizes, kernels), *channels, io=io))


def _numel(build: Callable[[], nn.Module]) -> int:
    with torch.device("meta"):
        return sum(p.numel() for p in build().parameters())


@dataclass(frozen=True)
class LayerCount:
    """Parameters of one layer: counted and by the formula (None where there is none, as for nfn's layers)."""

    layer: str
    family: Family
    io: IO
    counted: int
    formula: int | None


def layer_counts(config: ParamsConfig) -> list[LayerCount]:
    """One layer of every kind on the configured network, ours and nfn's."""
    sizes, sides, (c_in, c_out) = config.sizes, config.kernels, config.channels
    entries = [k * k for k in sides]
    found = []
    for family in FAMILIES:
        for io in ("full", "factored") if family in ("SCALE", "SIGN") else ("full",):
            name = f"EquivariantLinear, {family}" + ", factored" * (io == "factored")
            here = partial(counted, channels=(c_in, c_out), io=io)
            formula = closed_form(family, sizes, entries, (c_in, c_out), io)
            found.append(LayerCount(name, family, io, here(family, sizes, sides), formula))
    spec = network_spec(space_of("HNP", sizes, sides))
    for name, family, kind in (("nfn NPLinear", "NP", NPLinear), ("nfn HNPLinear", "HNP", HNPLinear)):
        found.append(LayerCount(name, family, "full", _numel(partial(kind, spec, c_in, c_out)), None))
    return found


def zoo_network(activation: str) -> NetworkInfo:
    """The Small CNN Zoo's network as the zoo of digits has it: 3x3 convolutions 1-16-16-16, stride 2, pool, 16-10."""
    architecture = PlainCNN(
        (1, 16, 16, 16),
        (3, 3, 3),
        (2, 2, 2),
        (1, 1, 1),
        (10,),
        (activation,) * 3,  # type: ignore[arg-type]
    )
    return NetworkInfo(architecture.space, activation, architecture.module, (1, 8, 8))
