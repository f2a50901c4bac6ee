"""Models of INRs: Zhou et al.'s NP, HNP and NFT after Fourier features, the paper's hybrids, and message passing.

All sizes are options (see `model_options`), with the same names in several models: those of `Sizes`.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from nfn.common import NetworkSpec
from nfn.layers import (
    ChannelDropout,
    HNPLinear,
    HNPPool,
    NPAttention,
    NPLinear,
    Pointwise,
    SimpleLayerNorm,
    TupleOp,
)
from torch import Tensor, nn

from nfn_monomial import Canonicalize, ProbeFeatures, Symmetry, WeightSpace
from nfn_monomial.adapters.nfn import MonomialLinear, from_tensors
from nfn_monomial.benchmarks.data.sirens import Siren
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.models import MessagePassingNFN, equivariant_stack
from nfn_monomial.tools.predictors.models import InvariantUnder, Model, NetworkInfo, logits, register

from .parts import Residual, fourier_front, nfn_chain

__all__ = [
    "InrHNP",
    "InrMessagePassing",
    "InrMonomialHNP",
    "InrMonomialNP",
    "InrNFT",
    "InrNP",
    "InrProbes",
    "MonomialFront",
    "SineNetwork",
    "inr_info",
]

LAYERS = 3  # of NP and HNP
BLOCKS = 2  # of NFT
HEADS = 4  # of attention


class _Sine(nn.Module):
    def __init__(self, omega_0: float) -> None:
        super().__init__()
        self.omega_0 = omega_0

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(self.omega_0 * x)


class SineNetwork(nn.Sequential):
    """The torch module of one network of a corpus: coordinates ``(B, 2)`` -> channels ``(B, C)``."""

    def __init__(self, siren: Siren) -> None:
        layers: list[nn.Module] = []
        for a, b in itertools.pairwise(siren.sizes):
            layers += [nn.Linear(a, b), _Sine(siren.omega_0)]
        super().__init__(*layers[:-1])


def inr_info(siren: Siren) -> NetworkInfo:
    """Describes the networks of a corpus for models."""
    return NetworkInfo(siren.space, "sin", lambda: SineNetwork(siren), (2,))


def _head(in_features: int, hidden: int, out_features: int, dropout: float) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(in_features, hidden), nn.ReLU(), nn.Dropout(dropout),
        nn.Linear(hidden, hidden), nn.ReLU(), nn.Dropout(dropout),
        nn.Linear(hidden, out_features),
    )  # fmt: skip


class MonomialFront(nn.Module):
    """The hybrids' front: networks in, features out that sign flips leave as they are and permutations permute.

    Monomial(1 -> h), sin, Monomial(h -> h), sin, Monomial(h -> 1), abs (paper App. D.4). The sine is odd, and so
    commutes with sign flips; the absolute value ends them.

    Raises:
        ValueError: if scalings act on the networks, which the sine does not commute with.
    """

    def __init__(self, space: WeightSpace, hidden: int) -> None:
        super().__init__()
        self.space = space
        self.layers = equivariant_stack(space, [1, hidden, hidden, 1], "sin")
        self.end = Canonicalize(space, 1, kind="abs", learnable=False)

    def forward(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Parameter name -> ``(B, 1, *shape)``, both ways."""
        features = self.end(self.layers(self.space.pack(tensors, check_finite=False)))
        return self.end.out_space.unpack(features)


class _FourierNFN(Model):
    """Fourier features of every entry, layers of nfn, average over hidden neurons, MLP (Zhou et al. 2023).

    With ``drop_in`` the layers are ours, which users of nfn swap in: `MonomialLinear` has the same maps, and is faster.

    Attributes:
        layer: of nfn. `HNPLinear` tells inputs, outputs and layers apart; for the others they get a positional
            encoding.
    """

    task = "inr"
    invariant_under: ClassVar[InvariantUnder] = "permutations"
    layer: ClassVar[type[nn.Module]]

    def __init__(
        self,
        networks: NetworkInfo,
        out_features: int = 1,
        *,
        width: int = 256,
        head: int = 1000,
        dropout: float = 0.0,
        fourier: int = 128,
        fourier_scale: float = 10.0,
        drop_in: bool = False,
    ) -> None:
        super().__init__()
        self.drop_in = drop_in
        spec = nfn_chain(networks.space).spec
        layers, channels = fourier_front(spec, fourier, fourier_scale, self.layer is not HNPLinear)
        layers += self._layers(spec, channels, width, dropout)
        self.front: nn.Module = nn.Identity()
        self.body = nn.Sequential(*layers, HNPPool(spec), nn.Flatten())
        self.head = _head(width * HNPPool.get_num_outs(spec), head, out_features, dropout)

    def _layers(self, spec: NetworkSpec, in_channels: int, width: int, dropout: float) -> list[nn.Module]:
        layers: list[nn.Module] = []
        for c_in in (in_channels, *[width] * (LAYERS - 1)):
            if self.drop_in:
                ends = Symmetry.FIXED if self.layer is HNPLinear else Symmetry.PERMUTATION
                layers.append(MonomialLinear(spec, c_in, width, symmetry=Symmetry.PERMUTATION, io_symmetry=ends))
            else:
                layers.append(self.layer(spec, c_in, width))
            layers.append(TupleOp(nn.ReLU()))
            if dropout:
                layers.append(ChannelDropout(dropout))
        return layers

    def prepare(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return dict(tensors)

    def forward(self, batch: Mapping[str, Tensor]) -> Tensor:
        return logits(self.head(self.body(from_tensors(self.front(batch)))))


@register("inr-np")
class InrNP(_FourierNFN):
    """NP as published for INRs; it gets a positional encoding."""

    label, layer = "NP (Fourier)", NPLinear


@register("inr-hnp")
class InrHNP(_FourierNFN):
    """HNP as published for INRs."""

    label, layer = "HNP (Fourier)", HNPLinear


@register("inr-nft")
class InrNFT(_FourierNFN):
    """Neural functional transformer (Zhou et al. 2023b): blocks of NPAttention and pointwise MLPs."""

    label, layer = "NFT (Fourier)", NPAttention

    def __init__(
        self,
        networks: NetworkInfo,
        out_features: int = 1,
        *,
        attention: int = 256,
        head: int = 1000,
        dropout: float = 0.0,
        fourier: int = 128,
        fourier_scale: float = 10.0,
    ) -> None:
        super().__init__(
            networks, out_features,
            width=attention, head=head, dropout=dropout, fourier=fourier, fourier_scale=fourier_scale,
        )  # fmt: skip

    def _layers(self, spec: NetworkSpec, in_channels: int, width: int, dropout: float) -> list[nn.Module]:
        def drop() -> list[nn.Module]:
            return [ChannelDropout(dropout)] if dropout else []

        layers: list[nn.Module] = [Pointwise(spec, in_channels, width)]
        for _ in range(BLOCKS):
            attention = NPAttention(spec, width, num_heads=HEADS, dropout=dropout)
            pointwise = (Pointwise(spec, width, 2 * width), TupleOp(nn.ReLU()), Pointwise(spec, 2 * width, width))
            layers.append(Residual(SimpleLayerNorm(spec, width), attention, *drop()))
            layers.append(Residual(SimpleLayerNorm(spec, width), *pointwise, *drop()))
        return [*layers, SimpleLayerNorm(spec, width)]


class _Hybrid(_FourierNFN):
    """The paper's (Sec. 6.2): `MonomialFront`, then the same as without it."""

    invariant_under = "group"

    def __init__(self, networks: NetworkInfo, out_features: int = 1, *, hidden: int = 64, **sizes: Any) -> None:
        super().__init__(networks, out_features, **sizes)
        self.front = MonomialFront(networks.space, hidden)


@register("inr-monomial-np")
class InrMonomialNP(_Hybrid, InrNP):
    """Monomial layers, then NP."""

    label = "Monomial-NP (Fourier)"


@register("inr-monomial-hnp")
class InrMonomialHNP(_Hybrid, InrHNP):
    """Monomial layers, then HNP."""

    label = "Monomial-HNP (Fourier)"


@register("inr-message-passing")
class InrMessagePassing(Model):
    """Message passing between the weights, average over hidden neurons, MLP."""

    label, invariant_under, task = "message passing (INR)", "group", "inr"

    def __init__(
        self,
        networks: NetworkInfo,
        out_features: int = 1,
        *,
        channels: int = 32,
        rounds: int = 3,
        head: int = 256,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.net = MessagePassingNFN(networks.space, channels, rounds, head, out_features, dropout=dropout)

    def prepare(self, tensors: Mapping[str, Tensor]) -> Any:
        return self.net.prepare(tensors)

    def forward(self, batch: Any) -> Tensor:
        return logits(self.net(batch))


@register("inr-probes")
class InrProbes(Model):
    """The networks' outputs at learned coordinates, and an MLP: it looks at the images."""

    label, invariant_under, task, sees = "probes (INR)", "group", "inr", "functions"

    def __init__(
        self, networks: NetworkInfo, out_features: int = 1, *, probes: int = 64, head: int = 256, dropout: float = 0.0
    ) -> None:
        super().__init__()
        if networks.template is None or networks.input_shape is None:
            raise InvalidValueError("inr-probes runs the networks, but how they run is not known of these")
        start = 2 * torch.rand(probes, *networks.input_shape) - 1  # where images are
        self.probe = ProbeFeatures(networks.template(), start, space=networks.space)
        self.head = _head(self.probe.out_features, head, out_features, dropout)

    def prepare(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return dict(tensors)

    def forward(self, batch: Mapping[str, Tensor]) -> Tensor:
        outputs, _ = self.probe(batch)
        return logits(self.head(outputs.flatten(1)))
