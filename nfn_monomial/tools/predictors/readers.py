"""What models read off networks that no symmetry changes, each as a vector: answers and messages.

All are called with networks whose scales are balanced, so that signs and permutations are left of the group, and with
what these do on the learned inputs, for models that run them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from nfn_monomial import EquivariantNorm, ProbeFeatures, WeightSpace
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.models.blocks import Blocks
from nfn_monomial.nn import MessageBlock, NeuronEmbedding, NeuronPool
from nfn_monomial.read import Probed

from .models import NetworkInfo

__all__ = ["Answers", "LinearGenerator", "Messages", "probes_of"]

LEAST_LOG = -12.0  # log probabilities of networks that are sure and wrong are cut off here


def probes_of(networks: NetworkInfo, count: int, generated: bool) -> ProbeFeatures:
    """So many learned inputs of the networks, free ones or those of a `LinearGenerator`.

    Raises:
        ValueError: if it is not known how the networks run.
    """
    if networks.template is None or networks.input_shape is None:
        raise InvalidValueError(
            "models with probes run the networks, but how they run is not known of these (strides, padding, size of "
            "the images): choose models that see only weights"
        )
    probes = LinearGenerator(count, networks.input_shape) if generated else count
    return ProbeFeatures(networks.template(), probes, input_shape=networks.input_shape, space=networks.space)


class Answers(nn.Module):
    """Logits of classes that networks answer to P inputs, as log probabilities and as probabilities.

    A mistake shows in the probability, how sure a network is in the logarithm.
    """

    def __init__(self, probe: ProbeFeatures) -> None:
        super().__init__()
        self.out_features = 2 * probe.out_features

    def forward(self, networks: Mapping[str, Tensor], probed: Probed) -> Tensor:
        """Outputs ``(B, P, classes)`` -> ``(B, 2 P classes)``."""
        log = torch.log_softmax(probed.outputs, -1)
        return torch.cat([log.clamp(min=LEAST_LOG).flatten(1), log.exp().flatten(1)], -1)


class Messages(nn.Module):
    """Message passing between the weights, then means and deviations over neurons.

    Args:
        space: of the networks, on which no scale acts.
        channels: of the neuron features.
        blocks: number of rounds of messages.
        probe: whose hidden activations join the neurons' features, if given.
    """

    def __init__(self, space: WeightSpace, channels: int, blocks: int, probe: ProbeFeatures | None = None) -> None:
        super().__init__()
        extra, charges = (0, None) if probe is None else (probe.count, probe.charges)
        self.embed = NeuronEmbedding(space, 1, channels, extra=extra, charges=charges)
        self.blocks = Blocks(*(MessageBlock(space, channels) for _ in range(blocks)))
        self.norm, self.pool = EquivariantNorm(space, channels), NeuronPool(space, channels)
        self.out_features = self.pool.out_features

    def forward(self, networks: Mapping[str, Tensor], probed: Probed | None) -> Tensor:
        """Networks, and what they do on the learned inputs -> ``(B, out_features)``."""
        hidden = None if probed is None or not self.embed.extra else probed.hidden
        out: Tensor = self.pool(self.norm(self.blocks(self.embed(networks, hidden))))
        return out


class LinearGenerator(nn.Module):
    """Learned codes through a deep linear network: inputs ``(count, *shape)`` that share their structure.

    Of images ``(C, H, W)``, the codes become maps of a quarter of the size, which two transposed convolutions double;
    inputs of other kinds leave two linear layers. No activation is between: products of matrices are biased towards
    low rank, which alone keeps learned inputs smooth.

    Source: Kahana et al. 2024, deep linear probe generators (ProbeGen).

    Args:
        count: number of inputs.
        shape: of one.
        latent: entries of a code.
        width: of the layers.
    """

    def __init__(self, count: int, shape: Sequence[int], latent: int = 32, width: int = 32) -> None:
        super().__init__()
        self.shape = tuple(shape)
        self.codes = nn.Parameter(torch.randn(count, latent))
        if len(shape) == 3:
            start = [math.ceil(n / 4) for n in shape[1:]]
            self.layers = nn.Sequential(
                nn.Linear(latent, width * math.prod(start)), nn.Unflatten(1, (width, *start)),
                nn.ConvTranspose2d(width, width, 4, 2, 1), nn.ConvTranspose2d(width, shape[0], 4, 2, 1),
            )  # fmt: skip
        else:
            size = math.prod(shape)
            self.layers = nn.Sequential(nn.Linear(latent, width), nn.Linear(width, size), nn.Unflatten(1, self.shape))
        with torch.no_grad():  # inputs start at size 1, as free ones do
            last = self.layers[-1 if len(shape) == 3 else -2]
            assert isinstance(last, nn.Linear | nn.ConvTranspose2d), "made above"
            last.weight.div_(self.forward().std())

    def forward(self) -> Tensor:
        """The inputs."""
        x: Tensor = self.layers(self.codes)
        return x[..., : self.shape[-2], : self.shape[-1]] if len(self.shape) == 3 else x
