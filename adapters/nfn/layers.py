"""Layers between nfn's features: linear maps, activations, and the end of scales and signs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from nfn.common import NetworkSpec, WeightSpaceFeatures
from torch import Tensor, nn

from nfn_monomial.checks import Count, checked
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.nn.activation import PointwiseActivation
from nfn_monomial.nn.canonicalize import Canonicalize
from nfn_monomial.nn.linear import EquivariantLinear
from nfn_monomial.nn.steps import InitType
from nfn_monomial.space.features import Features
from nfn_monomial.space.geometry import SymmetryLike
from nfn_monomial.space.weight_space import WeightSpace
from nfn_monomial.symmetry import Activation, Symmetry, parity_of

from .features import packed, unpacked


class MonomialLayer(nn.Module):
    """A core module between nfn's features; in a `MonomialStack`, on the core's own.

    Attributes:
        space: of the input.
        out_space: of the output.
        core: the core module, from `Features` to `Features`.
    """

    def __init__(self, network_spec: NetworkSpec, core: Any) -> None:
        super().__init__()
        self.network_spec, self.core = network_spec, core
        self.space: WeightSpace = core.space
        self.out_space: WeightSpace = getattr(core, "out_space", core.space)

    def forward(self, wsfeat: WeightSpaceFeatures | Features) -> WeightSpaceFeatures | Features:
        """Map features ``(B, C_in, *shape)`` of every weight and bias to ``(B, C_out, *shape)``."""
        if isinstance(wsfeat, Features):
            features: Features = self.core(wsfeat)
            return features
        return unpacked(self.core(packed(wsfeat, self.space)), self.out_space)


class MonomialLinear(MonomialLayer):
    """Every linear map that respects the networks' symmetries, in place of ``HNPLinear``: `EquivariantLinear`.

    With ``symmetry="permutation"`` and ``io_symmetry="permutation"`` it has the maps of ``NPLinear``; with the first
    alone those of ``HNPLinear`` and the ``n_out`` maps from the last hidden bias to the last weight, which nfn 0.1.2
    lacks. It takes the features of `MonomialCanonicalize` with ``symmetry="permutation"``. Any depth, kernels of 1 to 3
    dimensions.

    Args:
        network_spec: nfn's spec of the networks; unknown sizes are -1, a missing bias is None.
        in_channels: channels of the input.
        out_channels: channels of the output.
        io_embed: whether inputs and outputs are told apart by learned embeddings, as in ``NPLinear``, and not by maps
            of their own: the maps are those of ``io_symmetry="permutation"``, whose number does not grow with inputs
            and outputs, and the layer keeps the symmetries of hidden neurons. An embedding is added to the entries on
            which no scale and no sign acts, and multiplies the others by 1 plus itself, which breaks neither.
        init_type: ``"pytorch_default"``, see `EquivariantLinear.reset_parameters`; or ``"kaiming_normal"``, normal
            weights of variance 2 / fan-in, biases 0.
        symmetry: of the hidden neurons: a `Symmetry`, its name, or the networks' activation (``"relu"``, ``"sin"``,
            ``nn.Tanh()``); one, or one per hidden layer.
        io: ``"full"`` or ``"factored"``, see `EquivariantLinear`.
        bias: whether to add equivariant constants.
        io_symmetry: of input and output neurons, FIXED as in HNP by default.

    Raises:
        ValueError: for ``io_embed`` with an ``io_symmetry`` other than FIXED, because embeddings break it.

    >>> from nfn.common import ArraySpec, NetworkSpec
    >>> spec = NetworkSpec([ArraySpec((-1, 2)), ArraySpec((1, -1))], [ArraySpec((-1,)), ArraySpec((1,))])
    >>> layer = MonomialLinear(spec, 1, 16, symmetry="relu")
    >>> sum(p.numel() for p in layer.parameters())
    192
    """

    @checked
    def __init__(
        self,
        network_spec: NetworkSpec,
        in_channels: Count,
        out_channels: Count,
        io_embed: bool = False,
        init_type: InitType = "pytorch_default",
        *,
        symmetry: SymmetryLike | Sequence[SymmetryLike],
        io: Literal["full", "factored"] = "full",
        bias: bool = True,
        io_symmetry: SymmetryLike = Symmetry.FIXED,
    ) -> None:
        space = WeightSpace.from_network_spec(network_spec, symmetry, io_symmetry=io_symmetry)
        maps = space
        if io_embed:
            if Symmetry.coerce(io_symmetry).permutes:
                raise InvalidValueError(
                    "MonomialLinear(io_embed=True) tells inputs and outputs apart, so it cannot keep io_symmetry="
                    f"{Symmetry.coerce(io_symmetry)}: leave io_symmetry out"
                )
            maps = WeightSpace.from_network_spec(network_spec, symmetry, io_symmetry=Symmetry.PERMUTATION)
        linear = EquivariantLinear(maps, in_channels, out_channels, io=io, bias=bias, init_type=init_type)
        super().__init__(network_spec, _Embedded(space, linear) if io_embed else linear)
        self.in_channels, self.out_channels, self.io_embed = in_channels, out_channels, io_embed


class _Embedded(nn.Module):
    """Embeddings of inputs and outputs, then a linear layer that does not tell these apart.

    Attributes:
        in_embed: ``(C, 1, inputs, *kernel)``, of the first weight.
        out_embed: ``(C, outputs, 1, *kernel)``, of the last weight.
        out_bias_embed: ``(C, outputs)``, of the last bias, where there is one.
    """

    def __init__(self, space: WeightSpace, linear: EquivariantLinear) -> None:
        super().__init__()
        self.space, self.linear = space, linear
        sizes, channels = known_sizes(space), linear.in_channels
        shapes = {name: space.shape_of(name, sizes) for name in space.parameters}
        weights = [name for name in shapes if name.startswith("weight")]
        self.first, self.last = weights[0], weights[-1]
        self.last_bias = self.last.replace("weight", "bias")
        (_, inputs, *kernel), (outputs, _, *last_kernel) = shapes[self.first], shapes[self.last]
        self.in_embed = nn.Parameter(torch.empty(channels, 1, inputs, *kernel))
        self.out_embed = nn.Parameter(torch.empty(channels, outputs, 1, *last_kernel))
        self.out_bias_embed = nn.Parameter(torch.empty(channels, outputs)) if self.last_bias in shapes else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws the embeddings from a standard normal distribution, as nfn does; the linear layer draws its own."""
        for embedding in (self.in_embed, self.out_embed, self.out_bias_embed):
            if embedding is not None:
                nn.init.normal_(embedding)

    def forward(self, features: Features) -> Features:
        """Features of the space -> the same, through a space with permuted inputs and outputs."""
        self.space.layout.require(features, self.linear.in_channels, "MonomialLinear", self.in_embed)
        inner = self.linear.space
        tensors = self.embedded(self.space.unpack(features))
        out: Features = self.linear(inner.pack(tensors, check_finite=False))
        return self.space.pack(inner.unpack(out), check_finite=False)

    def embedded(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """The tensors with embeddings in the first weight, the last weight and the last bias."""
        felt, tensors = acting_on(self.space), dict(tensors)
        ends = [(self.first, self.in_embed), (self.last, self.out_embed), (self.last_bias, self.out_bias_embed)]
        for name, embedding in ends:
            if embedding is not None:
                charged = felt[name].scales or felt[name].flips
                tensors[name] = tensors[name] * (1 + embedding) if charged else tensors[name] + embedding
        return tensors


def known_sizes(space: WeightSpace) -> dict[str, int]:
    """Node -> its size, 1 where that is not known."""
    return {name: node.size or 1 for name, node in space.nodes.items()}


def acting_on(space: WeightSpace) -> dict[str, Symmetry]:
    """Parameter -> the symmetry that acts on its entries."""
    return {name: space.layout.felt[part.field] for name, part in zip(space.pieces, space.folding.slices, strict=True)}


class MonomialActivation(MonomialLayer):
    """A pointwise function that is legal under the symmetry, in place of ``TupleOp``: `PointwiseActivation`.

    ``TupleOp`` takes any function and breaks equivariance silently if it is the wrong one; this raises when built.

    Args:
        network_spec: nfn's spec of the networks.
        fn: a name, function or module whose symmetry is known; or ``"auto"`` for a legal one on every field.
        symmetry: as in `MonomialLinear`, as is ``io_symmetry``.
        io_symmetry: of input and output neurons.

    Raises:
        ValueError: if the function is unknown or illegal on some weight or bias; where it is an even one, which
            ignores sign flips, with the layer that does the same by right.
    """

    @checked
    def __init__(
        self,
        network_spec: NetworkSpec,
        fn: Activation,
        *,
        symmetry: SymmetryLike | Sequence[SymmetryLike],
        io_symmetry: SymmetryLike = Symmetry.FIXED,
    ) -> None:
        space = WeightSpace.from_network_spec(network_spec, symmetry, io_symmetry=io_symmetry)
        try:
            core = PointwiseActivation(space, fn)
        except InvalidValueError as error:
            felt = space.layout.felt
            if not any(acting.flips for acting in felt) or parity_of(fn).sign != 0:
                raise
            kind = "norm" if any(acting.scales for acting in felt) else "abs"
            raise InvalidValueError(
                f"{error}. It is even, so that signs would end there. To end them, write "
                f'MonomialCanonicalize(kind="{kind}", learnable=False), with the spec, the channels and the symmetry; '
                "all layers after it, this one too, have symmetry='permutation'"
            ) from error
        super().__init__(network_spec, core)


class MonomialCanonicalize(MonomialLayer):
    """Make features invariant to scalings and sign flips; neurons stay permuted as they are: `Canonicalize`.

    After it HNP, NP, NFT and any other permutation-equivariant layers keep the whole model invariant, and so does
    `MonomialLinear` with ``symmetry="permutation"`` (hidden layers that were FIXED: ``"fixed"``).

    Args:
        network_spec: nfn's spec of the networks.
        channels: channels of the features.
        symmetry: as in `MonomialLinear`, as is ``io_symmetry``.
        kind: ``"norm"``, ``"square"`` or ``"abs"``, see `Canonicalize`.
        learnable: whether an affine map per entry follows.
        io_symmetry: of input and output neurons.
    """

    @checked
    def __init__(
        self,
        network_spec: NetworkSpec,
        channels: Count,
        *,
        symmetry: SymmetryLike | Sequence[SymmetryLike],
        kind: Literal["norm", "square", "abs"] = "norm",
        learnable: bool = True,
        io_symmetry: SymmetryLike = Symmetry.FIXED,
    ) -> None:
        space = WeightSpace.from_network_spec(network_spec, symmetry, io_symmetry=io_symmetry)
        super().__init__(network_spec, Canonicalize(space, channels, kind=kind, learnable=learnable))
        self.channels = channels


class MonomialChannelLinear(MonomialLayer):
    """One matrix on the channels of every weight and bias, in place of ``ChannelLinear``.

    Nfn's own is given to ``wsfeat.map`` or to ``TupleOp``, and its bias breaks scales and signs. Here the bias is added
    to the entries on which neither acts, with ``symmetry="permutation"`` to all.

    Args:
        network_spec: nfn's spec of the networks.
        in_channels: channels of the input.
        out_channels: channels of the output.
        bias: whether to add a number to every channel, where that is equivariant.
        symmetry: as in `MonomialLinear`, as is ``io_symmetry``.
        io_symmetry: of input and output neurons.
    """

    @checked
    def __init__(
        self,
        network_spec: NetworkSpec,
        in_channels: Count,
        out_channels: Count,
        bias: bool = True,
        *,
        symmetry: SymmetryLike | Sequence[SymmetryLike],
        io_symmetry: SymmetryLike = Symmetry.FIXED,
    ) -> None:
        space = WeightSpace.from_network_spec(network_spec, symmetry, io_symmetry=io_symmetry)
        super().__init__(network_spec, _OnChannels(space, in_channels, out_channels, bias))
        self.in_channels, self.out_channels = in_channels, out_channels


class _OnChannels(nn.Module):
    """A linear layer on the channels of all entries of all fields."""

    def __init__(self, space: WeightSpace, in_channels: int, out_channels: int, bias: bool) -> None:
        super().__init__()
        self.space = space
        bias = bias and not all(felt.scales or felt.flips for felt in space.layout.felt)
        self.linear = nn.Linear(in_channels, out_channels, bias)

    def forward(self, features: Features) -> Features:
        """Features of ``in_channels`` -> features of ``out_channels``."""
        linear, layout = self.linear, self.space.layout
        layout.require(features, linear.in_features, "MonomialChannelLinear", linear.weight)
        fields = []
        for x, felt in zip(features.tensors, layout.felt, strict=True):
            bias = None if felt.scales or felt.flips else linear.bias
            y = nn.functional.linear(torch.unflatten(x, -1, (-1, linear.in_features)), linear.weight, bias)
            fields.append(y.flatten(-2))
        return Features(layout, tuple(fields))
