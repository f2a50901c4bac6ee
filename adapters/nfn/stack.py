"""Several layers at once, of this package and of nfn, refused where they break a symmetry; pipelines, tested."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from nfn.common import NetworkSpec, WeightSpaceFeatures
from nfn.layers import (
    ChannelDropout,
    ChannelLinear,
    CrossAttnEncoder,
    GaussianFourierFeatureTransform,
    HNPLinear,
    HNPPool,
    IOSinusoidalEncoding,
    LearnedPosEmbedding,
    LearnedScale,
    NPAttention,
    NPLinear,
    NPPool,
    ParamLayerNorm,
    Pointwise,
    ResBlock,
    SimpleLayerNorm,
    StatFeaturizer,
    TupleOp,
)
from torch import Tensor, nn

from nfn_monomial.checks import AtLeastZero, Count, Seed, Size, checked
from nfn_monomial.errors import InvalidTypeError, InvalidValueError, MonomialError
from nfn_monomial.space.features import Features
from nfn_monomial.space.geometry import SymmetryLike
from nfn_monomial.space.weight_space import WeightSpace
from nfn_monomial.symmetry import Symmetry, symmetry_of
from nfn_monomial.testing import assert_invariant, random_networks

from .features import from_tensors, packed, to_tensors, unpacked
from .layers import MonomialLayer
from .pools import MonomialPool, MonomialStatistics, spec_shapes

CHARGES = "scalings and sign flips"
IO = "permutations of inputs and outputs"

KEPT: dict[type[nn.Module], tuple[str, ...]] = {
    LearnedScale: (CHARGES, IO),
    ChannelDropout: (CHARGES, IO),
    nn.Identity: (CHARGES, IO),
    NPLinear: (IO,),
    Pointwise: (IO,),
    NPAttention: (IO,),
    SimpleLayerNorm: (IO,),
    GaussianFourierFeatureTransform: (IO,),
    HNPLinear: (),
    ParamLayerNorm: (),
    LearnedPosEmbedding: (),
    IOSinusoidalEncoding: (),
    NPPool: (IO,),
    StatFeaturizer: (IO,),
    CrossAttnEncoder: (IO,),
    HNPPool: (),
}
"""Layers of nfn, all of which keep permutations of hidden neurons -> what else each keeps."""

READERS = (MonomialPool, NPPool, HNPPool, StatFeaturizer, CrossAttnEncoder)
"""Layers from features to a tensor."""

WAY_OUT = {
    CHARGES: "put a MonomialCanonicalize before it, with symmetry='permutation' in all layers after that",
    IO: "leave io_symmetry out, or take NPLinear, NPPool or MonomialPool(..., io_symmetry='permutation')",
}


SCALES_ARE_LEFT = (
    "Permutations alone do not change it, so scales or signs are left: put a MonomialCanonicalize before the pool"
)


def kept_by(layer: nn.Module, space: WeightSpace) -> tuple[str, ...]:
    """Returns the symmetries of features that a layer of nfn keeps, beside permutations of hidden neurons.

    Raises:
        TypeError: for a layer of which that is not known.
        ValueError: for a ``TupleOp`` of a function of which it is not known.
    """
    if isinstance(layer, TupleOp):
        if isinstance(layer.op, ChannelLinear):
            legal = layer.op.linear.bias is None
        else:
            legal = isinstance(layer.op, nn.Dropout) or all(f <= symmetry_of(layer.op) for f in space.layout.felt)
        return (CHARGES, IO) if legal else (IO,)
    if isinstance(layer, MonomialPool):
        return (IO,) if layer.io_symmetry.permutes else ()
    if isinstance(layer, NPLinear) and layer.io_embed:
        return ()
    if type(layer) in KEPT:
        return KEPT[type(layer)]
    raise InvalidTypeError(
        "it cannot be stacked, because it is not known which symmetries it keeps. Put it before or after the stack, "
        "and check_invariant says whether the whole keeps them; of an activation make a MonomialActivation"
    )


def space_after(layer: nn.Module, space: WeightSpace, name: str) -> WeightSpace | None:
    """The space of a layer's output, given that of its input; None if it returns a tensor.

    Raises:
        TypeError: for a layer of which is not known what it keeps.
        ValueError: if it breaks a symmetry of the input, or does not take these features.
    """
    if isinstance(layer, MonomialLayer | MonomialStatistics | MonomialStack):
        if layer.space.layout is not space.layout:
            raise InvalidValueError(
                f"{name} takes features [{layer.space.layout}] but the layer before it makes [{space.layout}]: give "
                "all layers one symmetry up to MonomialCanonicalize, and 'permutation' after it"
            )
        return None if isinstance(layer, MonomialStatistics) else layer.out_space
    if isinstance(layer, nn.Sequential | ResBlock):
        inner: WeightSpace | None = space
        for key, part in layer.named_children():
            if inner is None:
                raise InvalidValueError(
                    f"{key} ({type(part).__name__}) of {name} follows a layer that returns a tensor"
                )
            inner = space_after(part, inner, f"{key} ({type(part).__name__}) of {name}")
        if isinstance(layer, ResBlock) and (inner is None or inner.layout is not space.layout):
            raise InvalidValueError(f"{name} adds features to others of another space")
        return inner
    try:
        kept = kept_by(layer, space)
    except MonomialError as error:
        raise type(error)(f"{name}: {error}") from None
    ends = [node.permutes for node in (space.nodes["x"], space.nodes["y"])]
    for symmetry, acts in ((CHARGES, space.layout.charged), (IO, any(ends))):
        if acts and symmetry not in kept:
            raise InvalidValueError(f"{name} breaks {symmetry}, which act on [{space.layout}]: {WAY_OUT[symmetry]}")
    return None if isinstance(layer, READERS) else space


class MonomialStack(nn.Module):
    """Several layers with one conversion from nfn's features at the start and one back at the end.

    Computes the same as the layers in an ``nn.Sequential``, faster, and refuses a layer that breaks the symmetries
    where it stands. Before the `MonomialCanonicalize` only layers of this package may come, and of nfn's
    ``LearnedScale``, ``ChannelDropout`` and ``TupleOp`` of a function that is legal there. After it all of nfn's may.

    Args:
        network_spec: nfn's spec of the networks.
        *layers: layers of this package, at least one; other stacks; and layers of nfn, before and after each of which
            features are converted. A pool or statistics may come last, the output is then theirs.

    Raises:
        TypeError: for a layer of which it is not known what it keeps.
        ValueError: if a layer was built for another spec, breaks a symmetry, or does not take the features that the one
            before it makes, such as one with ``symmetry="permutation"`` before the `MonomialCanonicalize`.
    """

    @checked
    def __init__(self, network_spec: NetworkSpec, *layers: nn.Module) -> None:
        super().__init__()
        flat = [part for layer in layers for part in (layer.layers if isinstance(layer, MonomialStack) else [layer])]
        spaces = [layer.space for layer in flat if isinstance(layer, MonomialLayer)]
        if not spaces:
            raise InvalidValueError("MonomialStack needs at least one layer of this package, which knows the symmetry")
        self.network_spec, self.space = network_spec, spaces[0]
        self._before: list[WeightSpace] = []
        after: WeightSpace | None = self.space
        for i, layer in enumerate(flat):
            name = f"layer {i} ({type(layer).__name__}) of the MonomialStack"
            if after is None:
                raise InvalidValueError(
                    f"{name} cannot come after {type(flat[i - 1]).__name__}, which returns a tensor"
                )
            given = getattr(layer, "network_spec", network_spec)
            if spec_shapes(given) != spec_shapes(network_spec):
                raise InvalidValueError(
                    f"{name} was built for another spec, {spec_shapes(given)}; the stack's is "
                    f"{spec_shapes(network_spec)}"
                )
            ours = isinstance(layer, MonomialLayer | MonomialStatistics | MonomialPool)
            if not ours and None in network_spec.bias_spec:
                raise InvalidValueError(
                    f"{name} is a layer of nfn, which takes no networks without some of their biases"
                )
            self._before.append(after)
            after = space_after(layer, after, name)
        self.out_space = after
        self._on_features = [isinstance(layer, MonomialLayer | MonomialStatistics) for layer in flat]
        self.layers = nn.ModuleList(flat)

    def forward(self, wsfeat: WeightSpaceFeatures) -> WeightSpaceFeatures | Tensor:
        """Features ``(B, C_in, *shape)`` -> features ``(B, C_out, *shape)``, or ``(B, C, N)`` after a pool."""
        x: Any = packed(wsfeat, self.space)
        for layer, space, on_features in zip(self.layers, self._before, self._on_features, strict=True):
            if on_features and not isinstance(x, Features):
                x = packed(x, space)
            elif isinstance(x, Features) and not on_features:
                x = unpacked(x, space)
            x = layer(x)
        return unpacked(x, self.out_space) if self.out_space is not None and isinstance(x, Features) else x


@checked
def check_invariant(
    pipeline: Callable[[Any], Tensor],
    network_spec: NetworkSpec,
    *,
    symmetry: SymmetryLike | Sequence[SymmetryLike] | None = None,
    io_symmetry: SymmetryLike = Symmetry.FIXED,
    inputs: WeightSpaceFeatures | None = None,
    channels: Count = 1,
    batch: Size = 4,
    trials: Count = 3,
    rtol: AtLeastZero | None = None,
    seed: Seed = 0,
) -> None:
    """Check that no symmetry of the networks changes the output of a pipeline, whoever wrote its layers.

    A pipeline of `MonomialLinear` without a `MonomialCanonicalize` is equivariant, not invariant; and a layer that is
    legal as long as a bias is 0 breaks a symmetry once it is trained. So a copy of the pipeline is tested, on the
    CPU and in eval mode, whose parameters are moved a little at random.

    Args:
        pipeline: a module, or any function, of nfn's ``WeightSpaceFeatures`` to a tensor ``(B, ...)``.
        network_spec: nfn's spec of the networks.
        symmetry: of the hidden neurons, as in `MonomialLinear`; by default that of the pipeline's first layer of this
            package, with its ``io_symmetry``.
        io_symmetry: of input and output neurons.
        inputs: at least two networks to try it on; random ones by default.
        channels: of random networks.
        batch: number of random networks.
        trials: see `nfn_monomial.testing.assert_invariant`, as are ``rtol`` and ``seed``.
        rtol: largest change allowed: 1e-10 in float64, and 1e-4 in float32, in which sharp Fourier features need more.
        seed: of networks, parameters and group elements.

    Raises:
        AssertionError: if the output changes: by how much, and for layers in an ``nn.Sequential`` which is the first
            that breaks a symmetry.
        TypeError: if the output is no tensor.
        ValueError: if neither ``symmetry`` nor a layer says what the symmetry is.
    """
    modules = list(pipeline.modules()) if isinstance(pipeline, nn.Module) else []
    spaces = [m.space for m in modules if isinstance(m, MonomialLayer | MonomialStatistics | MonomialStack)]
    if symmetry is not None:
        space = WeightSpace.from_network_spec(network_spec, symmetry, io_symmetry=io_symmetry)
    elif spaces:
        space = spaces[0]
    else:
        raise InvalidValueError(
            "check_invariant: give symmetry=, as the networks' activation; no layer of the pipeline says what it is"
        )
    generator = torch.Generator().manual_seed(seed)
    if isinstance(pipeline, nn.Module):
        pipeline = _trained_a_little(pipeline, generator)
    if inputs is None:
        dtype = next((p.dtype for module in modules for p in module.parameters()), torch.get_default_dtype())
        networks = random_networks(space, batch, channels, dtype=dtype, generator=generator)
    else:
        networks = {name: x.detach().cpu() for name, x in to_tensors(inputs).items()}
    inputs = from_tensors(networks)
    with torch.no_grad():
        output = pipeline(inputs)
        if not isinstance(output, Tensor):
            raise InvalidTypeError(
                f"check_invariant: the pipeline returns {type(output).__name__}, not a tensor: put a pool at its end"
            )
        change = _change(pipeline, space, inputs, trials, rtol, seed)
        if change is None:
            return
        reason = _first_that_breaks(modules, space)
        if reason is None and _change(pipeline, space.restricted("permutation"), inputs, trials, rtol, seed):
            reason = "Permutations of neurons alone change it"
        raise AssertionError(f"{change}. {reason or SCALES_ARE_LEFT}")


def _change(
    pipeline: Callable[[Any], Tensor],
    space: WeightSpace,
    inputs: WeightSpaceFeatures,
    trials: int,
    rtol: float | None,
    seed: int,
) -> str | None:
    """The error of `assert_invariant` where the output changes, None where it does not."""
    try:
        assert_invariant(pipeline, space, inputs=inputs, trials=trials, rtol=rtol, seed=seed)
    except AssertionError as error:
        if not str(error).startswith("not invariant"):
            raise
        return str(error)
    return None


def _trained_a_little(pipeline: nn.Module, generator: torch.Generator) -> nn.Module:
    """A copy on the CPU, in eval mode, whose parameters differ by a tenth of their size, so that none is 0."""
    moved = copy.deepcopy(pipeline).cpu().eval()
    with torch.no_grad():
        for p in moved.parameters():
            size = p.square().mean().sqrt()
            noise = torch.randn(p.shape, generator=generator).to(p)
            p.add_(0.1 * torch.where(size > 0, size, 1.0) * noise)
    return moved


def _first_that_breaks(modules: Sequence[nn.Module], space: WeightSpace) -> str | None:
    """The first layer of an ``nn.Sequential`` that breaks a symmetry, as a sentence; None where none is known to."""
    after: WeightSpace | None = space
    layers = modules[0].named_children() if modules and isinstance(modules[0], nn.Sequential) else ()
    for key, layer in layers:
        if after is None:
            break
        try:
            after = space_after(layer, after, f"layer {key} ({type(layer).__name__})")
        except InvalidValueError as error:
            return str(error)
        except InvalidTypeError:
            break
    return None
