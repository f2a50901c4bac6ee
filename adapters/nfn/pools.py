"""Ways out: averages over neurons, and statistics, of nfn's features."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from nfn.common import NetworkSpec, WeightSpaceFeatures
from torch import Tensor, nn

from nfn_monomial.checks import Count, checked
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.read.statistics import InvariantStatistics
from nfn_monomial.space.features import Features
from nfn_monomial.space.geometry import SymmetryLike
from nfn_monomial.space.packing import wide
from nfn_monomial.space.weight_space import WeightSpace
from nfn_monomial.symmetry import Symmetry

from .features import packed, to_tensors


def spec_shapes(network_spec: NetworkSpec) -> list[tuple[tuple[int, ...], tuple[int, ...] | None]]:
    """Weight and bias shapes, layer by layer."""
    pairs = zip(network_spec.weight_spec, network_spec.bias_spec, strict=True)
    return [(tuple(w.shape), None if b is None else tuple(b.shape)) for w, b in pairs]


class MonomialPool(nn.Module):
    """Average over hidden neurons, in place of ``HNPPool``: the same output ``(B, C, N)``, entry for entry.

    With ``io_symmetry="permutation"`` it averages over inputs and outputs as well, in place of ``NPPool``. Works for
    networks of one layer, for kernels of any dimension and for missing biases, too. Scalings and sign flips must be
    gone before: put `MonomialCanonicalize` or `MonomialBalance` before it.

    Args:
        network_spec: nfn's spec of the networks.
        io_symmetry: of input and output neurons: FIXED ones are kept apart. Give the one of the layers before it.
    """

    @checked
    def __init__(self, network_spec: NetworkSpec, *, io_symmetry: SymmetryLike = Symmetry.FIXED) -> None:
        super().__init__()
        self.network_spec, self.io_symmetry = network_spec, Symmetry.coerce(io_symmetry)
        self.num_outs = self.get_num_outs(network_spec, io_symmetry=io_symmetry)

    @staticmethod
    def get_num_outs(network_spec: NetworkSpec, *, io_symmetry: SymmetryLike = Symmetry.FIXED) -> int:
        """``N``: entries a channel of the output, so that a linear layer after it takes ``C * N`` inputs.

        Raises:
            ValueError: if the spec does not know the number of inputs or outputs that are kept apart.
        """
        last, apart = len(network_spec) - 1, not Symmetry.coerce(io_symmetry).permutes
        total = 0
        for i, (weight, bias) in enumerate(zip(network_spec.weight_spec, network_spec.bias_spec, strict=True)):
            rows = weight.shape[0] if apart and i == last else 1
            columns = weight.shape[1] if apart and i == 0 else 1
            if -1 in (rows, columns, *weight.shape[2:]):
                raise InvalidValueError(
                    f"weight_spec[{i}] is {tuple(weight.shape)}: inputs, outputs and kernels must be known"
                )
            total += rows * columns * math.prod(weight.shape[2:]) + (0 if bias is None else rows)
        return total

    def forward(self, wsfeat: WeightSpaceFeatures) -> Tensor:
        """Features ``(B, C, *shape)`` -> ``(B, C, N)``."""
        tensors = to_tensors(wsfeat)
        last, apart = len(self.network_spec) - 1, not self.io_symmetry.permutes
        pooled = []
        for name, x in tensors.items():
            role, layer = name.split(".")
            over_rows = not (apart and int(layer) == last)
            over_columns = role == "weight" and not (apart and int(layer) == 0)
            dims = [2] * over_rows + [3] * over_columns
            mean = wide(x).mean(dims).to(x.dtype) if dims else x
            pooled.append(mean.reshape(*x.shape[:2], math.prod(mean.shape[2:])))
        out = torch.cat(pooled, -1)
        if len(wsfeat.weights) != len(self.network_spec) or out.shape[-1] != self.num_outs:
            shapes = ", ".join(f"{name} {tuple(x.shape)}" for name, x in tensors.items())
            raise InvalidValueError(f"MonomialPool: found {shapes}; the spec has {spec_shapes(self.network_spec)}")
        return out

    def extra_repr(self) -> str:
        io = f", io_symmetry={self.io_symmetry}" if self.io_symmetry.permutes else ""
        return f"num_outs={self.num_outs}{io}"


class MonomialStatistics(nn.Module):
    """Statistics of every weight and bias, in place of ``StatFeaturizer``: `InvariantStatistics`, ``(B, C, N)``.

    Invariant under the whole group, because they are those of the balanced networks, so that they need no
    `MonomialCanonicalize` before them. ``StatFeaturizer`` has seven numbers for each tensor, this has eleven, and path
    norms.

    Args:
        network_spec: nfn's spec of the networks.
        channels: channels of the features.
        symmetry: as in `MonomialLinear`, as is ``io_symmetry``.
        io_symmetry: of input and output neurons.
    """

    @checked
    def __init__(
        self,
        network_spec: NetworkSpec,
        channels: Count = 1,
        *,
        symmetry: SymmetryLike | Sequence[SymmetryLike],
        io_symmetry: SymmetryLike = Symmetry.FIXED,
    ) -> None:
        super().__init__()
        self.network_spec, self.channels = network_spec, channels
        self.space = WeightSpace.from_network_spec(network_spec, symmetry, io_symmetry=io_symmetry)
        self.core = InvariantStatistics(self.space, channels)
        self.num_outs = self.core.out_features // channels

    @staticmethod
    def get_num_outs(network_spec: NetworkSpec) -> int:
        """``N``: numbers a channel of the output, whatever the symmetry."""
        space = WeightSpace.from_network_spec(network_spec, "permutation", io_symmetry=Symmetry.PERMUTATION)
        return InvariantStatistics(space).out_features

    def forward(self, wsfeat: WeightSpaceFeatures | Features) -> Tensor:
        """Features ``(B, C, *shape)`` -> ``(B, C, N)``."""
        features = wsfeat if isinstance(wsfeat, Features) else packed(wsfeat, self.space)
        return torch.cat(self.core.parts(features), -1)

    def extra_repr(self) -> str:
        return f"num_outs={self.num_outs}"
