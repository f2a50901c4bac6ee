"""What several models are made of: heads, normalised inputs, and nfn's description of a network."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from nfn.common import ArraySpec, NetworkSpec, WeightSpaceFeatures
from torch import Tensor, nn

from nfn_monomial import WeightSpace

__all__ = ["CHANNELS", "Residual", "Standardise", "logits", "mlp", "network_spec"]

CHANNELS = (16, 16, 5)  # of the weight-space layers, in every model that has them (paper App. D.3)


def mlp(in_features: int, hidden: int, out_features: int) -> nn.Sequential:
    """Three linear layers with ReLU between."""
    return nn.Sequential(
        nn.Linear(in_features, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, out_features)
    )  # fmt: skip


def logits(out: Tensor) -> Tensor:
    return out.squeeze(-1) if out.shape[-1] == 1 else out


class Standardise(nn.Module):
    """``(x - mean) / std`` with the training set's statistics, over the networks and over ``dims`` besides.

    Statistics are those of the training networks as they are given, so they follow the train set (original or
    augmented). Entries that never vary are only centred.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, shape: Sequence[int], dims: Sequence[int] = ()) -> None:
        super().__init__()
        self.dims = (0, *dims)
        kept = [1 if i in self.dims else n for i, n in enumerate((1, *shape))]
        self.register_buffer("mean", torch.zeros(kept))
        self.register_buffer("std", torch.ones(kept))

    def fit(self, x: Tensor) -> None:
        wide = x.double()
        std = wide.std(self.dims, correction=0, keepdim=True)
        self.mean.copy_(wide.mean(self.dims, keepdim=True))
        self.std.copy_(std.masked_fill(std == 0, 1))

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.std


def network_spec(space: WeightSpace) -> NetworkSpec:
    """nfn's description of a chain of layers with biases; sizes of hidden nodes are -1, as nfn writes them.

    Raises:
        ValueError: if nfn's layers cannot read such networks (missing biases, one layer, 1-d or 3-d kernels).
    """
    shapes = space.shapes()
    depth = len(shapes) // 2
    expected = [f"{kind}.{i}" for i in range(depth) for kind in ("weight", "bias")]
    if depth < 2 or sorted(expected) != sorted(shapes):
        raise ValueError(f"nfn's layers need at least two layers with a bias each; {space} has {', '.join(shapes)}")
    weights, biases = [], []
    for i in range(depth):
        rows, columns, *kernel = shapes[f"weight.{i}"]
        if i and columns != (before := shapes[f"weight.{i - 1}"][0]):
            raise ValueError(
                f"nfn's layers need a column of weight.{i} for every channel in front of it, {before}; it has "
                f"{columns}, a flattened feature map"
            )
        if len(kernel) not in (0, 2):
            raise ValueError(f"nfn's layers read linear and 2-d convolution layers; {space.describe(f'weight.{i}')}")
        last = i == depth - 1
        weights.append(ArraySpec((rows if last else -1, -1 if i else columns, *kernel)))
        biases.append(ArraySpec((rows if last else -1,)))
    return NetworkSpec(weights, biases)


class Residual(nn.Sequential):
    """``x`` and what the modules make of it, added."""

    def forward(self, x: WeightSpaceFeatures) -> WeightSpaceFeatures:
        return x + super().forward(x)  # type: ignore[no-untyped-call]
