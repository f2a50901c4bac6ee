"""Layers between nfn's features that balance networks: a canonical form of them, and a layer norm."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from nfn.common import NetworkSpec
from torch import Tensor, nn

from nfn_monomial.canonical.balance import Balance, rescaling
from nfn_monomial.checks import AtLeastZero, Count, checked
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.nn.sizes import over_size
from nfn_monomial.nn.steps import Layer
from nfn_monomial.space.features import Features
from nfn_monomial.space.geometry import SymmetryLike
from nfn_monomial.space.packing import wide
from nfn_monomial.space.weight_space import WeightSpace
from nfn_monomial.symmetry import Symmetry

from .layers import MonomialLayer, acting_on, known_sizes


class MonomialBalance(MonomialLayer):
    """The given networks in canonical form, scales balanced and signs fixed: `balance`. It has no parameters.

    Unlike that of `MonomialCanonicalize`, the output consists of networks, with the same functions as the given ones.
    Scalings and sign flips of the input no longer change it: after it HNP, NP, NFT, any other permutation-equivariant
    layers and `MonomialLinear` with ``symmetry="permutation"`` make, with a pool at the end, an invariant model.

    Args:
        network_spec: nfn's spec of the networks.
        symmetry: as in `MonomialLinear`, as is ``io_symmetry``.
        io_symmetry: of input and output neurons.
    """

    @checked
    def __init__(
        self,
        network_spec: NetworkSpec,
        *,
        symmetry: SymmetryLike | Sequence[SymmetryLike],
        io_symmetry: SymmetryLike = Symmetry.FIXED,
    ) -> None:
        space = WeightSpace.from_network_spec(network_spec, symmetry, io_symmetry=io_symmetry)
        super().__init__(network_spec, _Uncharged(space))


class _Uncharged(nn.Module):
    """Balances features and hands them to a space in which neurons are only permuted."""

    def __init__(self, space: WeightSpace) -> None:
        super().__init__()
        self.space, self.out_space, self.balance = space, space.restricted(Symmetry.PERMUTATION), Balance(space)

    def forward(self, features: Features) -> Features:
        return self.out_space.pack(self.space.unpack(self.balance(features)), check_finite=False)


class MonomialLayerNorm(MonomialLayer):
    """Layer norm of every weight and bias, in place of ``SimpleLayerNorm`` and ``ParamLayerNorm``.

    Let ``v`` be the channels of one entry of a tensor, with its kernel positions. The tensor becomes

    ============================== ====================================================================
    where no scale acts            ``gamma (v - mean(v)) / (std(v) + eps)``, as with ``SimpleLayerNorm``
    and no sign flips              the same ``+ beta``
    where scales act               ``gamma v / size``
    ============================== ====================================================================

    with a ``gamma`` and a ``beta`` for each channel and kernel position of every tensor. ``size`` is one number a
    network: the root mean square of all entries on which scales act, after these are balanced (`balance`). No scaling
    changes it, whereas a norm of single entries would divide the scales out.

    Args:
        network_spec: nfn's spec of the networks.
        channels: channels of the features, at least 2, because a norm over one leaves nothing of it.
        eps: see above.
        symmetry: as in `MonomialLinear`, as is ``io_symmetry``.
        io_symmetry: of input and output neurons.

    Raises:
        ValueError: for one channel.
    """

    @checked
    def __init__(
        self,
        network_spec: NetworkSpec,
        channels: Count,
        eps: AtLeastZero = 1e-5,
        *,
        symmetry: SymmetryLike | Sequence[SymmetryLike],
        io_symmetry: SymmetryLike = Symmetry.FIXED,
    ) -> None:
        if channels < 2:
            raise InvalidValueError(
                "MonomialLayerNorm: a norm over 1 channel leaves nothing of it; 2 or more are needed"
            )
        space = WeightSpace.from_network_spec(network_spec, symmetry, io_symmetry=io_symmetry)
        super().__init__(network_spec, _ChannelNorm(space, channels, eps))
        self.channels = channels


class _ChannelNorm(Layer):
    """Layer norm over channels and kernel positions of every entry, or of all at once where scales act.

    Attributes:
        gamma: parameter -> ``(C, *ones, *kernel)``; dots in names are underscores, as modules need them.
        beta: the same, of the parameters on which neither scales nor signs act.
    """

    def __init__(self, space: WeightSpace, channels: int, eps: float) -> None:
        super().__init__()
        self.space, self.channels, self.eps, self.acting = space, channels, eps, acting_on(space)
        self.gamma, self.beta = nn.ParameterDict(), nn.ParameterDict()
        for name, felt in self.acting.items():
            axes = 2 if name.startswith("weight") else 1
            shape = (channels, *[1] * axes, *space.shape_of(name, known_sizes(space))[axes:])
            self.gamma[name.replace(".", "_")] = nn.Parameter(torch.ones(shape))
            if not felt.scales and not felt.flips:
                self.beta[name.replace(".", "_")] = nn.Parameter(torch.zeros(shape))

    def reset_parameters(self) -> None:
        """Sets all factors to 1, and all that is added to 0."""
        for gamma in self.gamma.values():
            nn.init.ones_(gamma)
        for beta in self.beta.values():
            nn.init.zeros_(beta)

    def forward(self, features: Features) -> Features:
        """Features -> the same shapes."""
        self.space.layout.require(features, self.channels, "MonomialLayerNorm", next(self.parameters()))
        scaled = [felt.scales for felt in self.space.layout.felt]
        by = None
        if any(scaled):
            # Their norm is least there, so the element has no gradient to add: `over_size` is differentiated exactly.
            balanced = rescaling(self.space, features, signs=False).act(features.map(wide))
            fields = zip(balanced.tensors, scaled, strict=True)
            entries = torch.cat([x.flatten(1) for x, scales in fields if scales], 1)
            by = over_size(entries, (1,), entries.new_tensor(entries.shape[1], dtype=torch.float64).sqrt())
        tensors = {name: self.normed(name, x, by) for name, x in self.space.unpack(features).items()}
        return self.space.pack(tensors, check_finite=False)

    def normed(self, name: str, x: Tensor, by: Tensor | None) -> Tensor:
        """One tensor ``(B, C, *shape)``, given one over the size of entries on which scales act, ``(B, 1)``."""
        key = name.replace(".", "_")
        gamma: Tensor = self.gamma[key]
        if self.acting[name].scales:
            assert by is not None, "scales act on this tensor"
            return (x * by.view(-1, *[1] * (x.ndim - 1))).to(x.dtype) * gamma
        dims = (1, *range(4, x.ndim))
        centred = x - x.mean(dims, keepdim=True)
        # The standard deviation, without torch's warning of empty batches.
        # Squares of float32 overflow from 1e19 on.
        length = torch.linalg.vector_norm(centred, dim=dims, keepdim=True, dtype=torch.float64).to(centred.dtype)
        std = length / (gamma.numel() - 1) ** 0.5
        y: Tensor = centred / (std + self.eps) * gamma
        if key in self.beta:
            y = y + self.beta[key]
        return y

    def extra_repr(self) -> str:
        return f"{self.space}, {self.channels}, eps={self.eps}"
