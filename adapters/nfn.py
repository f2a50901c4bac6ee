"""The core's layers with the signature and the container of the ``nfn`` package: swap a class name and go on.

Every layer takes nfn's ``NetworkSpec`` first and maps ``WeightSpaceFeatures`` to ``WeightSpaceFeatures``, so that it
mixes with ``HNPLinear``, ``NPAttention``, ``TupleOp`` and the rest in one ``nn.Sequential``. Where nfn's layers know
permutations only, these know the scalings or sign flips that the given networks' activations allow as well. Up to
`MonomialCanonicalize` or `MonomialBalance` only these layers keep them; after it features are only permuted, and nfn's
layers keep that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from nfn.common import NetworkSpec, WeightSpaceFeatures
from torch import Tensor, nn

from nfn_monomial import Canonicalize, EquivariantLinear, Features, PointwiseActivation, Symmetry, WeightSpace
from nfn_monomial.canonical import Balance
from nfn_monomial.checks import Count, checked, shown
from nfn_monomial.errors import InvalidTypeError, InvalidValueError
from nfn_monomial.space import SymmetryLike
from nfn_monomial.space.packing import wide
from nfn_monomial.symmetry import Activation

__all__ = [
    "MonomialActivation",
    "MonomialBalance",
    "MonomialCanonicalize",
    "MonomialLinear",
    "MonomialPool",
    "MonomialStack",
    "from_tensors",
    "to_tensors",
]


def to_tensors(wsfeat: WeightSpaceFeatures) -> dict[str, Tensor]:
    """nfn's features as named tensors: ``weight.i`` ``(B, C, out, in, *kernel)`` and ``bias.i`` ``(B, C, out)``.

    These are the names of ``WeightSpace.from_network_spec``, `WeightSpace.mlp` and `WeightSpace.cnn`. A bias of None
    is left out.

    Raises:
        TypeError: if ``wsfeat`` is something else.
        ValueError: if it has another number of biases than of weights.
    """
    weights, biases = getattr(wsfeat, "weights", None), getattr(wsfeat, "biases", None)
    if not isinstance(weights, Sequence) or not isinstance(biases, Sequence):
        raise InvalidTypeError(f"nfn's WeightSpaceFeatures are expected, found {type(wsfeat).__name__}")
    if len(weights) != len(biases):
        raise InvalidValueError(
            f"WeightSpaceFeatures with {len(weights)} weights and {len(biases)} biases; missing ones are None"
        )
    tensors = {}
    for i, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        for name, x in ((f"weight.{i}", weight), (f"bias.{i}", bias)):
            if x is not None:
                if not isinstance(x, Tensor):
                    raise InvalidTypeError(f"{name} must be a tensor, found {shown(x)}")
                tensors[name] = x
    return tensors


@checked
def from_tensors(tensors: Mapping[str, Tensor]) -> WeightSpaceFeatures:
    """Named tensors ``weight.i``, ``bias.i`` as nfn's features; the inverse of `to_tensors`, missing biases are None.

    Raises:
        ValueError: if a name is of another form, or weights are not numbered 0, 1, ... without gaps.
    """
    depth = sum(name.startswith("weight.") for name in tensors)
    names = [(f"weight.{i}", f"bias.{i}") for i in range(depth)]
    other = sorted(set(tensors) - {name for pair in names for name in pair})
    if other or not depth:
        names_expected = f"weight.0 to weight.{max(depth - 1, 0)} and their biases"
        raise InvalidValueError(f"{names_expected} are expected, found {', '.join(other) or 'nothing'}")
    return WeightSpaceFeatures(tuple(tensors[w] for w, _ in names), tuple(tensors.get(b) for _, b in names))


class _Layer(nn.Module):
    """A core module between nfn's features; in a `MonomialStack`, on the core's own."""

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
        return _converted(wsfeat, self.space, self.core, self.out_space)


def _converted(
    wsfeat: WeightSpaceFeatures, space: WeightSpace, core: Callable[[Features], Features], out_space: WeightSpace
) -> WeightSpaceFeatures:
    """Applies a function of the core's features to nfn's, which are checked: see `WeightSpace.pack`.

    NaN and infinities are looked for where features carry no gradient: in data, not in activations under training.
    """
    tensors = to_tensors(wsfeat)
    features = space.pack(tensors, check_finite=not any(t.requires_grad for t in tensors.values()))
    return from_tensors(out_space.unpack(core(features)))


class MonomialLinear(_Layer):
    """Every linear map that respects the networks' symmetries, in place of ``HNPLinear``: `EquivariantLinear`.

    With ``symmetry="permutation"`` and ``io_symmetry="permutation"`` it has the maps of ``NPLinear``; with the first
    alone those of ``HNPLinear`` and the ``n_out`` maps from the last hidden bias to the last weight, which nfn 0.1.2
    lacks. It takes the features of `MonomialCanonicalize` with ``symmetry="permutation"``. Any depth, kernels of 1 to 3
    dimensions.

    Args:
        network_spec: nfn's spec of the networks; unknown sizes are -1, a missing bias is None.
        in_channels: channels of the input.
        out_channels: channels of the output.
        symmetry: of the hidden neurons: a `Symmetry`, its name, or the networks' activation (``"relu"``, ``"sin"``,
            ``nn.Tanh()``); one, or one per hidden layer.
        io: ``"full"`` or ``"factored"``, see `EquivariantLinear`.
        bias: whether to add equivariant constants.
        io_symmetry: of input and output neurons, FIXED as in HNP by default.

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
        *,
        symmetry: SymmetryLike | Sequence[SymmetryLike],
        io: Literal["full", "factored"] = "full",
        bias: bool = True,
        io_symmetry: SymmetryLike = Symmetry.FIXED,
    ) -> None:
        space = WeightSpace.from_network_spec(network_spec, symmetry, io_symmetry=io_symmetry)
        super().__init__(network_spec, EquivariantLinear(space, in_channels, out_channels, io=io, bias=bias))
        self.in_channels, self.out_channels = in_channels, out_channels


class MonomialActivation(_Layer):
    """A pointwise function that is legal under the symmetry, in place of ``TupleOp``: `PointwiseActivation`.

    ``TupleOp`` takes any function and breaks equivariance silently if it is the wrong one; this raises when built.

    Args:
        network_spec: nfn's spec of the networks.
        fn: a name, function or module whose symmetry is known; or ``"auto"`` for a legal one on every field.
        symmetry: as in `MonomialLinear`, as is ``io_symmetry``.
        io_symmetry: of input and output neurons.
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
        super().__init__(network_spec, PointwiseActivation(space, fn))


class MonomialCanonicalize(_Layer):
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


class MonomialBalance(_Layer):
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
        tensors = self.space.unpack(self.balance(features))
        return self.out_space.pack(tensors, check_finite=False)


class MonomialPool(nn.Module):
    """Average over hidden neurons, in place of ``HNPPool``: the same output ``(B, C, N)``, entry for entry.

    Works for networks of one layer, for kernels of any dimension and for missing biases as well. Scalings and sign
    flips must be gone before: put `MonomialCanonicalize` or `MonomialBalance` before it.

    Args:
        network_spec: nfn's spec of the networks.
    """

    @checked
    def __init__(self, network_spec: NetworkSpec) -> None:
        super().__init__()
        self.network_spec = network_spec
        self.num_outs = self.get_num_outs(network_spec)

    @staticmethod
    def get_num_outs(network_spec: NetworkSpec) -> int:
        """``N``: entries a channel of the output, so that a linear layer after it takes ``C * N`` inputs.

        Raises:
            ValueError: if the spec does not know the number of inputs or outputs.
        """
        last = len(network_spec) - 1
        total = 0
        for i, (weight, bias) in enumerate(zip(network_spec.weight_spec, network_spec.bias_spec, strict=True)):
            rows = weight.shape[0] if i == last else 1
            columns = weight.shape[1] if i == 0 else 1
            if -1 in (rows, columns, *weight.shape[2:]):
                raise InvalidValueError(
                    f"weight_spec[{i}] is {tuple(weight.shape)}: inputs, outputs and kernels must be known"
                )
            total += rows * columns * math.prod(weight.shape[2:]) + (0 if bias is None else rows)
        return total

    def forward(self, wsfeat: WeightSpaceFeatures) -> Tensor:
        """Features ``(B, C, *shape)`` -> ``(B, C, N)``."""
        tensors = to_tensors(wsfeat)
        last = len(self.network_spec) - 1
        pooled = []
        for name, x in tensors.items():
            role, layer = name.split(".")
            hidden_rows, hidden_columns = int(layer) != last, int(layer) != 0 and role == "weight"
            dims = [2] * hidden_rows + [3] * hidden_columns
            mean = wide(x).mean(dims).to(x.dtype) if dims else x
            pooled.append(mean.reshape(*x.shape[:2], math.prod(mean.shape[2:])))
        out = torch.cat(pooled, -1)
        if len(wsfeat.weights) != len(self.network_spec) or out.shape[-1] != self.num_outs:
            shapes = ", ".join(f"{name} {tuple(x.shape)}" for name, x in tensors.items())
            raise InvalidValueError(f"MonomialPool: found {shapes}; the spec has {_shapes(self.network_spec)}")
        return out

    def extra_repr(self) -> str:
        return f"num_outs={self.num_outs}"


class MonomialStack(nn.Module):
    """Several of these layers with one conversion from nfn's features at the start and one back at the end.

    Computes the same as the layers in an ``nn.Sequential``, faster. Layers of nfn itself go before or after it.

    Args:
        network_spec: nfn's spec of the networks.
        *layers: `MonomialLinear`, `MonomialActivation`, `MonomialCanonicalize`, `MonomialBalance` and other stacks; a
            `MonomialPool` may come last, the output is then ``(B, C, N)``.

    Raises:
        TypeError: for a layer of another kind.
        ValueError: if a layer was built for another spec, or does not take the features that the one before it makes,
            such as one with ``symmetry="permutation"`` before the `MonomialCanonicalize`.
    """

    @checked
    def __init__(self, network_spec: NetworkSpec, *layers: nn.Module) -> None:
        super().__init__()
        flat = [part for layer in layers for part in (layer.layers if isinstance(layer, MonomialStack) else [layer])]
        self.pooled = len(flat) > 1 and isinstance(flat[-1], MonomialPool)
        stacked: list[Any] = flat[: len(flat) - self.pooled]
        if not stacked:
            raise InvalidValueError("MonomialStack needs at least one layer")
        for i, layer in enumerate(flat):
            name = f"layer {i} ({type(layer).__name__}) of the MonomialStack"
            pools = i == len(stacked)
            if not pools and not isinstance(layer, _Layer):
                raise InvalidTypeError(
                    f"{name} cannot be stacked: MonomialLinear, MonomialActivation and MonomialCanonicalize can, and "
                    "MonomialPool at the end. Put other layers before or behind the stack (TupleOp: MonomialActivation)"
                )
            if _shapes(layer.network_spec) != _shapes(network_spec):
                raise InvalidValueError(
                    f"{name} was built for another spec, {_shapes(layer.network_spec)}; the stack's is "
                    f"{_shapes(network_spec)}"
                )
            if i == 0:
                continue
            made = stacked[i - 1].out_space.layout
            if pools and made.charged:
                raise InvalidValueError(
                    f"{name} averages over neurons that scalings or sign flips still act on [{made}]: put a "
                    "MonomialCanonicalize in front"
                )
            if not pools and layer.space.layout is not made:
                raise InvalidValueError(
                    f"{name} takes features [{layer.space.layout}] but the layer before it makes [{made}]: give all "
                    "layers one symmetry up to MonomialCanonicalize, and 'permutation' behind it"
                )
        self.network_spec, self.space, self.out_space = network_spec, stacked[0].space, stacked[-1].out_space
        self.layers = nn.ModuleList(flat)

    def forward(self, wsfeat: WeightSpaceFeatures) -> WeightSpaceFeatures | Tensor:
        """Features ``(B, C_in, *shape)`` -> features ``(B, C_out, *shape)``, or ``(B, C, N)`` after a pool."""
        out = _converted(wsfeat, self.space, self._stacked, self.out_space)
        return self.layers[-1](out) if self.pooled else out

    def _stacked(self, features: Features) -> Features:
        for layer in self.layers[: len(self.layers) - self.pooled]:
            features = layer(features)
        return features


def _shapes(network_spec: NetworkSpec) -> list[tuple[tuple[int, ...], tuple[int, ...] | None]]:
    """Weight and bias shapes, layer by layer."""
    pairs = zip(network_spec.weight_spec, network_spec.bias_spec, strict=True)
    return [(tuple(w.shape), None if b is None else tuple(b.shape)) for w, b in pairs]
