"""The models that the paper compares (Sec. 6.1, App. D.3): five baselines, and stacks that have every symmetry."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from nfn.common import ArraySpec, NetworkSpec, WeightSpaceFeatures
from nfn.layers import (
    HNPLinear,
    HNPPool,
    LearnedPosEmbedding,
    NPAttention,
    NPLinear,
    Pointwise,
    SimpleLayerNorm,
    TupleOp,
)
from torch import Tensor, nn

from nfn_monomial import Canonicalize, EquivariantLinear, Features, InvariantPool, PointwiseActivation, WeightSpace
from nfn_monomial.models import equivariant_stack

from .base import Model, NetworkInfo, build_model, model_class, model_names, register

__all__ = [
    "HNP",
    "NFT",
    "NP",
    "FlatMLP",
    "Model",
    "Monomial",
    "MonomialHNP",
    "MonomialStack",
    "NetworkInfo",
    "StatNN",
    "build_model",
    "model_class",
    "model_names",
    "network_spec",
    "register",
]

CHANNELS = (16, 16, 5)  # of the weight-space layers, in every model that has them (paper App. D.3)
HEAD_WIDTH = 1000  # of the baselines' MLP heads, as published


def _mlp(in_features: int, hidden: int, out_features: int) -> nn.Sequential:
    """Three linear layers with ReLU between."""
    return nn.Sequential(
        nn.Linear(in_features, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, out_features)
    )  # fmt: skip


def _logits(out: Tensor) -> Tensor:
    return out.squeeze(-1) if out.shape[-1] == 1 else out


class _Standardise(nn.Module):
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


def _statistics(x: Tensor) -> Tensor:
    """Mean, variance and quartiles of every row: ``(N, n)`` -> ``(N, 7)``.

    By sorting: ``torch.quantile`` refuses more than 16M entries, which the published zoo's training set exceeds.
    """
    ordered = x.sort(-1).values
    place = torch.linspace(0, x.shape[-1] - 1, 5, dtype=torch.float64, device=x.device)
    low, high = ordered[:, place.floor().long()], ordered[:, place.ceil().long()]
    quartiles = torch.lerp(low, high, (place - place.floor()).to(x.dtype))
    return torch.cat([x.mean(-1, keepdim=True), x.var(-1, correction=0, keepdim=True), quartiles], -1)


@register("statnn")
class StatNN(Model):
    """Unterthiner et al. 2020: mean, variance and quartiles (0, 25, 50, 75, 100%) of every tensor, then an MLP."""

    label, invariant_under = "STATNN", "permutations"

    def __init__(self, networks: NetworkInfo, out_features: int = 1) -> None:
        super().__init__()
        self.names = list(networks.space.parameters)
        self.head = _mlp(7 * len(self.names), HEAD_WIDTH, out_features)

    def prepare(self, tensors: Mapping[str, Tensor]) -> Tensor:
        return torch.cat([_statistics(tensors[name].flatten(1)) for name in self.names], -1)

    def forward(self, batch: Tensor) -> Tensor:
        return _logits(self.head(batch))


@register("mlp")
class FlatMLP(Model):
    """All weights in one vector, standardised entry by entry, then an MLP that knows no symmetry.

    Its width ``head`` gives it the parameter count of NP on the zoo's network.
    """

    label, invariant_under = "MLP", "nothing"
    any_width = False

    def __init__(self, networks: NetworkInfo, out_features: int = 1, *, head: int = 400) -> None:
        super().__init__()
        shapes = networks.space.shapes()
        entries = sum(math.prod(shape) for shape in shapes.values())
        self.names = list(shapes)
        self.inputs = _Standardise([entries])
        self.head = _mlp(entries, head, out_features)

    def prepare(self, tensors: Mapping[str, Tensor]) -> Tensor:
        return torch.cat([tensors[name].flatten(1) for name in self.names], -1)

    def fit_inputs(self, prepared: Tensor) -> None:
        self.inputs.fit(prepared)

    def forward(self, batch: Tensor) -> Tensor:
        return _logits(self.head(self.inputs(batch)))


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


class _PermutationNFN(Model):
    """Zhou et al. 2023 with nfn's own layers: a body that ends in 5 channels, HNPPool, three linear layers.

    What is built here is three linear layers of 16, 16, 5 channels with ReLU.
    """

    invariant_under = "permutations"

    def __init__(self, networks: NetworkInfo, out_features: int = 1) -> None:
        super().__init__()
        spec = network_spec(networks.space)
        self.depth = len(spec)
        self.body = nn.Sequential(*self._layers(spec), HNPPool(spec), nn.Flatten())
        self.head = _mlp(CHANNELS[-1] * HNPPool.get_num_outs(spec), HEAD_WIDTH, out_features)

    def _layers(self, spec: NetworkSpec) -> list[nn.Module]:
        pairs = itertools.pairwise((1, *CHANNELS))
        return [f for c_in, c_out in pairs for f in (self._layer(spec, c_in, c_out), TupleOp(nn.ReLU()))]

    def _layer(self, spec: NetworkSpec, c_in: int, c_out: int) -> nn.Module:
        raise NotImplementedError

    def prepare(self, tensors: Mapping[str, Tensor]) -> list[Tensor]:
        return [tensors[f"{kind}.{i}"] for kind in ("weight", "bias") for i in range(self.depth)]

    def forward(self, batch: list[Tensor]) -> Tensor:
        return _logits(self.head(self.body(WeightSpaceFeatures(batch[: self.depth], batch[self.depth :]))))


class _StandardisedNFN(_PermutationNFN):
    """Inputs are standardised, as published: a tensor has one mean and deviation per kernel position.

    These are what permutations leave alone, those of inputs and outputs included.
    """

    def __init__(self, networks: NetworkInfo, out_features: int = 1) -> None:
        super().__init__(networks, out_features)
        shapes = networks.space.shapes()
        names = [f"{kind}.{i}" for kind in ("weight", "bias") for i in range(self.depth)]
        self.inputs = nn.ModuleList(
            _Standardise([1, *shapes[name]], (1, 2, 3) if name.startswith("weight") else (1, 2)) for name in names
        )

    def fit_inputs(self, prepared: list[Tensor]) -> None:
        for standardise, x in zip(self.inputs, prepared, strict=True):
            assert isinstance(standardise, _Standardise), "the list is made of these"
            standardise.fit(x)

    def forward(self, batch: list[Tensor]) -> Tensor:
        return super().forward([f(x) for f, x in zip(self.inputs, batch, strict=True)])


@register("np")
class NP(_StandardisedNFN):
    """Permutations of inputs and outputs too, broken by learned embeddings."""

    label = "NP"

    def _layer(self, spec: NetworkSpec, c_in: int, c_out: int) -> nn.Module:
        layer: nn.Module = NPLinear(spec, c_in, c_out, io_embed=True)
        return layer


@register("hnp")
class HNP(_PermutationNFN):
    """Permutations of hidden neurons only."""

    label = "HNP"

    def _layer(self, spec: NetworkSpec, c_in: int, c_out: int) -> nn.Module:
        layer: nn.Module = HNPLinear(spec, c_in, c_out)
        return layer


@register("nft")
class NFT(_StandardisedNFN):
    """Neural functional transformer (Zhou et al. 2023b): two blocks of nfn's NPAttention and a pointwise MLP.

    Attention has NP's symmetry, which learned embeddings of layers, inputs and outputs break. The paper does not
    run it on convolutions: they have projections of their own (``share_projections=False``), as kernels of different
    sizes cannot share them.
    """

    label = "NFT"
    task = "generalization"
    blocks, heads = 2, 4

    def _layers(self, spec: NetworkSpec) -> list[nn.Module]:
        width = CHANNELS[0]
        layers: list[nn.Module] = [Pointwise(spec, 1, width), LearnedPosEmbedding(spec, width)]
        for _ in range(self.blocks):
            attention = NPAttention(spec, width, num_heads=self.heads, share_projections=False)
            layers += [_Residual(SimpleLayerNorm(spec, width), attention)]
            pointwise = (Pointwise(spec, width, width), TupleOp(nn.ReLU()), Pointwise(spec, width, width))
            layers += [_Residual(SimpleLayerNorm(spec, width), *pointwise)]
        return [*layers, SimpleLayerNorm(spec, width), Pointwise(spec, width, CHANNELS[-1])]


class _Residual(nn.Sequential):
    """``x`` and what the modules make of it, added."""

    def forward(self, x: WeightSpaceFeatures) -> WeightSpaceFeatures:
        return x + super().forward(x)


def _head_width(space: WeightSpace) -> int:
    """The paper's width of the MLP: 200 for ReLU networks, 1000 for tanh networks (App. D.3)."""
    return 200 if any(node.symmetry.scales for node in space.nodes.values()) else 1000


class MonomialStack(Model):
    """(MNF-ReLU) x depth -> Norm [-> (HNP-ReLU) x 1] -> Avg -> MLP, in the words of the paper's ablation (Table 24).

    Equivariant layers, canonicalise, perhaps a layer of HNP, average, MLP. The last of these layers has 5 channels,
    all before it 16 (App. D.3). After `Canonicalize` only permutations act, and `EquivariantLinear` on the uncharged
    space is HNP's layer. Without it this is `MonomialNFN`.

    Attributes:
        depth: number of equivariant layers.
        hnp: whether a layer of HNP follows.
    """

    invariant_under = "group"
    depth: ClassVar[int] = 3
    hnp: ClassVar[bool] = False

    def __init__(self, networks: NetworkInfo, out_features: int = 1) -> None:
        super().__init__()
        self.space = networks.space
        wide, narrow = CHANNELS[0], CHANNELS[-1]
        last = wide if self.hnp else narrow
        self.body = equivariant_stack(self.space, [1, *[wide] * (self.depth - 1), last])
        self.body.append(PointwiseActivation(self.space, "auto"))
        self.body.append(Canonicalize(self.space, last))
        if self.hnp:
            plain = self.space.uncharged()
            self.body.append(EquivariantLinear(plain, wide, narrow))
            self.body.append(PointwiseActivation(plain, "relu"))
        self.pool = InvariantPool(self.space, narrow)
        self.head = _mlp(self.pool.out_features, _head_width(self.space), out_features)

    def prepare(self, tensors: Mapping[str, Tensor]) -> Features:
        return self.space.pack(tensors)

    def forward(self, batch: Features) -> Tensor:
        return _logits(self.head(self.pool(self.body(batch))))


@register("monomial")
class Monomial(MonomialStack):
    """The paper's Monomial-NFN: three equivariant layers, canonicalise, average, MLP."""

    label = "Monomial-NFN"


@register("monomial-hnp")
class MonomialHNP(MonomialStack):
    """The same with a layer of HNP before the average: the hybrid of the paper's ablation."""

    label, hnp = "Monomial-HNP", True
