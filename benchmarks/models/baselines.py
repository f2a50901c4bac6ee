"""The baselines that the paper compares with (Sec. 6.1, App. D.3), but for the GNN: see `graphs`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import ClassVar

import torch
from nfn.common import NetworkSpec, WeightSpaceFeatures
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

from nfn_monomial.tools.predictors.models import Model, NetworkInfo, Standardise, logits, register

from .parts import CHANNELS, Residual, mlp, nfn_chain, statistics

__all__ = ["HNP", "NFT", "NP", "FlatMLP", "StatNN"]

HEAD_WIDTH = 1000  # of the baselines' MLP heads, as published


@register("statnn")
class StatNN(Model):
    """Unterthiner et al. 2020: mean, variance and quartiles (0, 25, 50, 75, 100%) of every tensor, then an MLP."""

    label, invariant_under = "STATNN", "permutations"

    def __init__(self, networks: NetworkInfo, out_features: int = 1, *, head_dropout: float = 0.0) -> None:
        super().__init__()
        self.names = list(networks.space.parameters)
        self.head = mlp(7 * len(self.names), HEAD_WIDTH, out_features, head_dropout)

    def prepare(self, tensors: Mapping[str, Tensor]) -> Tensor:
        return torch.cat([statistics(tensors[name].flatten(1)) for name in self.names], -1)

    def forward(self, batch: Tensor) -> Tensor:
        return logits(self.head(batch))


@register("mlp")
class FlatMLP(Model):
    """All weights in one vector, standardised entry by entry, then an MLP that knows no symmetry.

    Its width ``head`` gives it the parameter count of NP on the zoo's network.
    """

    label, invariant_under = "MLP", "nothing"
    any_width = False

    def __init__(
        self, networks: NetworkInfo, out_features: int = 1, *, head: int = 400, head_dropout: float = 0.0
    ) -> None:
        super().__init__()
        shapes = networks.space.shapes()
        entries = sum(math.prod(shape) for shape in shapes.values())
        self.names = list(shapes)
        self.inputs = Standardise([entries])
        self.head = mlp(entries, head, out_features, head_dropout)

    def prepare(self, tensors: Mapping[str, Tensor]) -> Tensor:
        return torch.cat([tensors[name].flatten(1) for name in self.names], -1)

    def fit_inputs(self, prepared: Tensor) -> None:
        self.inputs.fit(prepared)

    def forward(self, batch: Tensor) -> Tensor:
        return logits(self.head(self.inputs(batch)))


class _PermutationNFN(Model):
    """Zhou et al. 2023 with nfn's own layers: a body that ends in 5 channels, HNPPool, three linear layers.

    This class builds three linear layers of 16, 16, 5 channels with ReLU.

    Attributes:
        layer: builds one of them.
        standardised: True if inputs are standardised, as published. A tensor has one mean and deviation per kernel
            position: permutations leave these alone, those of inputs and outputs included.
    """

    invariant_under = "permutations"
    layer: ClassVar[Callable[[NetworkSpec, int, int], nn.Module]]
    standardised: ClassVar[bool] = True

    def __init__(self, networks: NetworkInfo, out_features: int = 1, *, head_dropout: float = 0.0) -> None:
        super().__init__()
        self.chain = nfn_chain(networks.space)
        spec, self.depth = self.chain.spec, len(self.chain.weights)
        self.body = nn.Sequential(*self._layers(spec), HNPPool(spec), nn.Flatten())
        self.head = mlp(CHANNELS[-1] * HNPPool.get_num_outs(spec), HEAD_WIDTH, out_features, head_dropout)
        if self.standardised:
            weights = [Standardise([1, *shape], (1, 2, 3)) for shape in self.chain.shapes]
            biases = [Standardise([1, shape[0]], (1, 2)) for shape in self.chain.shapes]
            self.inputs = nn.ModuleList([*weights, *biases])

    def _layers(self, spec: NetworkSpec) -> list[nn.Module]:
        pairs = itertools.pairwise((1, *CHANNELS))
        return [f for c_in, c_out in pairs for f in (type(self).layer(spec, c_in, c_out), TupleOp(nn.ReLU()))]

    def prepare(self, tensors: Mapping[str, Tensor]) -> list[Tensor]:
        return self.chain.read(tensors)

    def fit_inputs(self, prepared: list[Tensor]) -> None:
        if self.standardised:
            for standardise, x in zip(self.inputs, prepared, strict=True):
                assert isinstance(standardise, Standardise), "the list is made of these"
                standardise.fit(x)

    def forward(self, batch: list[Tensor]) -> Tensor:
        if self.standardised:
            batch = [standardise(x) for standardise, x in zip(self.inputs, batch, strict=True)]
        return logits(self.head(self.body(WeightSpaceFeatures(batch[: self.depth], batch[self.depth :]))))


@register("np")
class NP(_PermutationNFN):
    """Permutations of inputs and outputs too, broken by learned embeddings."""

    label, layer = "NP", partial(NPLinear, io_embed=True)


@register("hnp")
class HNP(_PermutationNFN):
    """Permutations of hidden neurons only."""

    label, layer, standardised = "HNP", HNPLinear, False


@register("nft")
class NFT(_PermutationNFN):
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
            layers += [Residual(SimpleLayerNorm(spec, width), attention)]
            pointwise = (Pointwise(spec, width, width), TupleOp(nn.ReLU()), Pointwise(spec, width, width))
            layers += [Residual(SimpleLayerNorm(spec, width), *pointwise)]
        return [*layers, SimpleLayerNorm(spec, width), Pointwise(spec, width, CHANNELS[-1])]
