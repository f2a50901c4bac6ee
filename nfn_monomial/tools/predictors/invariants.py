"""Models of up to three kinds of invariants: answers to probes, messages, statistics.

Scales are balanced once, when networks are prepared (`balance`), not in every step, so that signs and permutations are
left of the group. Models with probes run the networks, the others see only their weights.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from nfn_monomial import EquivariantNorm, InvariantStatistics, ProbeFeatures, WeightSpace, balance
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.models.blocks import Blocks
from nfn_monomial.nn import MessageBlock, NeuronEmbedding, NeuronPool
from nfn_monomial.read import GramStatistics, Probed

from .models import Heads, Model, NetworkInfo, Standardise, logits, register

__all__ = [
    "Combined",
    "GeneratedProbes",
    "GramProbes",
    "GramStats",
    "LinearGenerator",
    "MessagePassingModel",
    "MessagePassingStats",
    "Probes",
    "ProbesStats",
    "Stats",
]

LEAST_LOG = -12.0  # log probabilities of networks that are sure and wrong are cut off here
CHANNELS, LAYERS = 16, 3  # of message passing
PROBES = 64
FURTHEST = 5.0  # standard deviations: statistics beyond are cut off


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
    """Message passing between weights on which no scale acts, then means and deviations over neurons.

    Hidden activations of ``probe`` join the neurons' features, if it is given.
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


class _Invariants(Model):
    """Invariants of up to three kinds in one vector, then an MLP; or several, of which each learns by its own loss.

    With several heads the answers in training are ``(B, heads)``, in evaluation their mean. A loss of the mean would
    train one wide MLP. They cost a few products more; trainings with other seeds, whose readers differ, too, would cost
    as many times as much.

    Options are those of `Head`.

    Attributes:
        answers: whether the networks' answers to probes are read.
        messages: channels and layers of message passing, or None.
        stats: what is taken of `InvariantStatistics` and `GramStatistics`.
        probed: whether the hidden activations join the neurons' features in message passing.
        generated: whether the probes come from a `LinearGenerator`.
    """

    invariant_under = "group"
    train_with: ClassVar[Mapping[str, Any]] = {"weight_decay": 0.1}
    answers: ClassVar[bool] = False
    messages: ClassVar[tuple[int, int] | None] = None
    stats: ClassVar[tuple[type[InvariantStatistics | GramStatistics], ...]] = ()
    probed: ClassVar[bool] = False
    generated: ClassVar[bool] = False

    def __init__(
        self,
        networks: NetworkInfo,
        out_features: int = 1,
        *,
        heads: int = 1,
        head_width: int = 256,
        head_dropout: float = 0.3,
    ) -> None:
        super().__init__()
        self.space, self.heads = networks.space, heads
        inner = self.space.restricted("sign")  # behind `balance` of the scales
        readers: dict[str, Answers | Messages] = {}
        self.probe = probes_of(networks, PROBES, self.generated) if self.sees == "functions" else None
        if self.probe is not None and self.answers:
            readers["answers"] = Answers(self.probe)
        if self.messages is not None:
            readers["messages"] = Messages(inner, *self.messages, self.probe if self.probed else None)
        self.readers = nn.ModuleDict(readers)
        width = sum(reader.out_features for reader in readers.values())
        if self.stats:
            statistics = [kind(self.space) for kind in self.stats]
            self.statistics = nn.ModuleList(statistics)
            features = sum(kind.out_features for kind in statistics)
            self.inputs = Standardise([features], size=1.0)  # logarithms and ratios
            width += features
        self.head = nn.Sequential(
            nn.Dropout(head_dropout), nn.Linear(width, heads * head_width), nn.SiLU(),
            nn.Dropout(head_dropout), Heads(head_width, head_width, heads), nn.SiLU(),
            Heads(head_width, out_features, heads),
        )  # fmt: skip

    def prepare(self, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
        prepared: dict[str, Any] = {}
        if self.readers:
            prepared["networks"] = balance(tensors, self.space, signs=False)[0]
        if self.stats:
            prepared["stats"] = torch.cat([kind(tensors) for kind in self.statistics], -1)
        return prepared

    def fit_inputs(self, prepared: dict[str, Any]) -> None:
        if self.stats:
            self.inputs.fit(prepared["stats"])

    def forward(self, batch: dict[str, Any]) -> Tensor:
        networks = batch.get("networks")
        probed = None if self.probe is None else self.probe(networks)
        parts = [reader(networks, probed) for reader in self.readers.values()]
        if self.stats:
            parts.append(self.inputs(batch["stats"]).clamp(-FURTHEST, FURTHEST))
        out = self.head(torch.cat(parts, -1))
        if self.heads > 1:
            out = out.unflatten(-1, (self.heads, -1))
            out = out if self.training else out.mean(1)
        return logits(out)


@register("stats")
class Stats(_Invariants):
    """Invariant statistics and an MLP: an invariant STATNN."""

    label, stats = "invariant statistics", (InvariantStatistics,)


@register("gram-stats")
class GramStats(_Invariants):
    """Invariant statistics, and those of the neurons' Gram matrices."""

    label, stats = "statistics + Gram matrices", (InvariantStatistics, GramStatistics)


@register("message-passing")
class MessagePassingModel(_Invariants):
    """Message passing between the weights."""

    label, messages = "message passing", (CHANNELS, LAYERS)


@register("message-passing-stats")
class MessagePassingStats(_Invariants):
    """Message passing and invariant statistics: all that we take from the weights."""

    label, messages, stats = "message passing + stats", (CHANNELS, LAYERS), (InvariantStatistics,)


class _Running(_Invariants):
    """Models that run the networks, whose outputs are logits of classes."""

    sees, task = "functions", "generalization"


@register("probes")
class Probes(_Running):
    """The networks' answers to learned inputs, and an MLP."""

    label, answers = "probes", True


@register("probes-stats")
class ProbesStats(_Running):
    """Answers to inputs that a generator makes, and invariant statistics."""

    label, answers, generated, stats = "probes + stats", True, True, (InvariantStatistics,)


@register("gram-probes")
class GramProbes(_Running):
    """Answers to inputs that a generator makes, invariant statistics, and those of the neurons' Gram matrices."""

    label, answers, generated = "probes + stats + Gram matrices", True, True
    stats = (InvariantStatistics, GramStatistics)


@register("generated-probes")
class GeneratedProbes(_Running):
    """Answers to inputs that a deep linear generator makes."""

    label, answers, generated = "generated probes", True, True


@register("combined")
class Combined(_Running):
    """All of them: answers to inputs from a generator, messages that hidden activations join, statistics."""

    label, answers, generated, messages, probed, stats = "combined", True, True, (8, 2), True, (InvariantStatistics,)
