"""Messages between neurons, and answers to probes, between nfn's features."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from nfn.common import NetworkSpec
from torch import Tensor, nn

from nfn_monomial.checks import Count, Size, checked
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.nn.messages import MessageBlock
from nfn_monomial.nn.neurons.embedding import NeuronEmbedding, NeuronReadout
from nfn_monomial.read.probes import ProbeFeatures
from nfn_monomial.space.features import Features
from nfn_monomial.space.geometry import SymmetryLike
from nfn_monomial.space.weight_space import WeightSpace
from nfn_monomial.symmetry import Symmetry

from .layers import MonomialLayer


class MonomialMessagePassing(MonomialLayer):
    """Rounds of messages between neurons along all weights, in place of ``HNPLinear`` and the activation after it.

    An equivariant linear layer lets a hidden weight see only itself; messages let it see its neighbours. The features
    enter neurons and edges by `NeuronEmbedding`, pass blocks of `EquivariantNorm`, `MessagePassing` and
    `GatedActivation`, and come back by `NeuronReadout`. The output has the symmetries of the input, whatever they are.

    Args:
        network_spec: nfn's spec of the networks.
        in_channels: channels of the input.
        out_channels: channels of the output.
        channels: of neurons and edges in between.
        layers: number of blocks. Messages travel along one weight, both ways, in each.
        tied: whether all layers of the networks share parameters, see `MessagePassing`.
        norm: whether blocks normalise, see `MessageBlock`.
        symmetry: as in `MonomialLinear`, as is ``io_symmetry``.
        io_symmetry: of input and output neurons.
    """

    @checked
    def __init__(
        self,
        network_spec: NetworkSpec,
        in_channels: Count,
        out_channels: Count,
        *,
        channels: Count = 16,
        layers: Count = 1,
        tied: bool = False,
        norm: bool = True,
        symmetry: SymmetryLike | Sequence[SymmetryLike],
        io_symmetry: SymmetryLike = Symmetry.FIXED,
    ) -> None:
        space = WeightSpace.from_network_spec(network_spec, symmetry, io_symmetry=io_symmetry)
        super().__init__(network_spec, _Messages(space, in_channels, out_channels, channels, layers, tied, norm))
        self.in_channels, self.out_channels = in_channels, out_channels


class _Messages(nn.Module):
    """Features of parameters -> neuron features, blocks, and back."""

    def __init__(
        self,
        space: WeightSpace,
        in_channels: int,
        out_channels: int,
        channels: int,
        layers: int,
        tied: bool,
        norm: bool,
    ) -> None:
        super().__init__()
        self.space = space
        self.embed = NeuronEmbedding(space, in_channels, channels)
        self.blocks = nn.Sequential(*(MessageBlock(space, channels, tied=tied, norm=norm) for _ in range(layers)))
        self.readout = NeuronReadout(space, channels, out_channels)

    def forward(self, features: Features) -> Features:
        """Features of ``in_channels`` -> features of ``out_channels``."""
        out: Features = self.readout(self.blocks(self.embed(features, in_buckets=True)))
        return out


class MonomialProbes(MonomialLayer):
    """The networks' answers to learned inputs as more channels of their features: `ProbeFeatures`.

    Of ``P`` probes there are ``P`` more channels. In those, a hidden bias holds its neuron's activations, as the next
    layer reads them, and the last bias the networks' outputs; weights are 0. Activations move as biases do, so any
    layer of this package may follow, and after `MonomialCanonicalize` and `MonomialPool` the outputs are still there.

    Args:
        network_spec: nfn's spec of the networks, all of whose layers have biases.
        template: a module that computes what the networks compute; its parameters are those of the spec in order.
        probes: the learned inputs ``(P, *input shape)``, or their number.
        input_shape: of one input, for a number of probes, where the first layer is a convolution.
        symmetry: as in `MonomialLinear`. Inputs and outputs are FIXED: permuted ones make another function.

    Raises:
        ValueError: for a layer without a bias; if the template does not fit, see `ProbeFeatures`.
    """

    @checked
    def __init__(
        self,
        network_spec: NetworkSpec,
        template: nn.Module,
        probes: Count | Tensor,
        *,
        input_shape: Sequence[Size] | None = None,
        symmetry: SymmetryLike | Sequence[SymmetryLike],
    ) -> None:
        space = WeightSpace.from_network_spec(network_spec, symmetry)
        missing = [f"bias_spec[{i}]" for i, bias in enumerate(network_spec.bias_spec) if bias is None]
        if missing:
            raise InvalidValueError(
                f"MonomialProbes: {', '.join(missing)} is None; activations are channels of biases, so every layer "
                "needs one. ProbeFeatures gives them as tensors"
            )
        super().__init__(
            network_spec, _Probed(space, ProbeFeatures(template, probes, input_shape=input_shape, space=space))
        )
        self.count = self.core.probes.count


class _Probed(nn.Module):
    """Networks of one channel -> the same with activations and outputs in more channels of biases."""

    def __init__(self, space: WeightSpace, probes: ProbeFeatures) -> None:
        super().__init__()
        self.space, self.probes = space, probes
        *_, self.last = (name for name in space.parameters if name.startswith("bias"))
        # The biases that move as the activations of their neurons do.
        self.biases = {
            link.target: link.parameter
            for link in space.links
            if link.source is None and probes.charges.get(link.target) == link.charges[0]
        }

    def forward(self, features: Features) -> Features:
        """Features of 1 channel -> features of ``1 + P`` channels."""
        tensors = self.space.unpack(features)
        outputs, hidden = self.probes(tensors)
        # Of outputs at several positions, as of a convolution, the means.
        answers = {self.last: outputs.reshape(*outputs.shape[:3], -1).mean(-1)}
        answers |= {self.biases[node]: h.transpose(1, 2) for node, h in hidden.items() if node in self.biases}
        for name, x in tensors.items():
            shape = (len(x), self.probes.count, *x.shape[2:])
            more = answers[name].reshape(shape) if name in answers else x.new_zeros(shape)
            tensors[name] = torch.cat([x, more], 1)
        return self.space.pack(tensors, check_finite=False)
