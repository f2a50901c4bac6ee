"""Models beyond the paper, all invariant under the networks' whole group: message passing, statistics, probes.

Scales are balanced once, when networks are prepared (`balance`), not in every step. Three sources of invariants can be
combined: message passing between the weights, `InvariantStatistics` of the weights, and `ProbeFeatures`, the
networks' own answers to learned inputs. Models with probes run the networks, the others see only their weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from nfn_monomial import EquivariantNorm, InvariantStatistics, ProbeFeatures, balance
from nfn_monomial.benchmarks.data.networks import NetworkInfo
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.nn import MessageBlock, NeuronEmbedding, NeuronPool

from .base import Model, register
from .parts import Standardise, logits

__all__ = ["Combined", "MessagePassingModel", "MessagePassingStats", "Probes", "Stats"]

CHANNELS, LAYERS = 16, 3  # of message passing
PROBES = 64
HIDDEN = 256  # of the heads
DROPOUT = 0.3  # of the vectors that enter the heads and of their first layer
LEAST_LOG = -12.0  # log probabilities of networks that are sure and wrong are cut off here


class _Invariants(Model):
    """Invariants of up to three kinds in one vector, then an MLP.

    Attributes:
        messages: channels and layers of message passing, or None.
        stats: whether `InvariantStatistics` are taken.
        probes: number of probes, 0 for none.
    """

    invariant_under = "group"
    train_with: ClassVar[Mapping[str, Any]] = {"weight_decay": 0.1}
    messages: ClassVar[tuple[int, int] | None] = None
    stats: ClassVar[bool] = False
    probes: ClassVar[int] = 0

    def __init__(self, networks: NetworkInfo, out_features: int = 1) -> None:
        super().__init__()
        self.space = networks.space
        inner = self.space.restricted("sign")  # behind `balance` of the scales
        width = 0
        self.probe = self._probe(networks) if self.probes else None
        if self.probe is not None:
            width += 2 * self.probe.out_features
        if self.messages is not None:
            channels, layers = self.messages
            self.embed = NeuronEmbedding(inner, 1, channels, extra=self.probes)
            self.blocks = nn.Sequential(*(MessageBlock(inner, channels) for _ in range(layers)))
            self.pool = nn.Sequential(EquivariantNorm(inner, channels), NeuronPool(inner, channels))
            width += NeuronPool(inner, channels).out_features
        if self.stats:
            self.statistics = InvariantStatistics(self.space)
            self.inputs = Standardise([self.statistics.out_features])
            width += self.statistics.out_features
        self.head = nn.Sequential(
            nn.Dropout(DROPOUT), nn.Linear(width, HIDDEN), nn.SiLU(),
            nn.Dropout(DROPOUT), nn.Linear(HIDDEN, HIDDEN), nn.SiLU(),
            nn.Linear(HIDDEN, out_features),
        )  # fmt: skip

    def _probe(self, networks: NetworkInfo) -> ProbeFeatures:
        if networks.template is None or networks.input_shape is None:
            raise InvalidValueError(
                f"{type(self).__name__} runs the networks, but how they run is not known of these (strides, padding, "
                "size of the images): choose models that see only weights"
            )
        return ProbeFeatures(networks.template(), self.probes, input_shape=networks.input_shape, space=networks.space)

    def prepare(self, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
        prepared: dict[str, Any] = {}
        if self.probes or self.messages is not None:
            prepared["networks"] = balance(tensors, self.space, signs=False)[0]
        if self.stats:
            prepared["stats"] = self.statistics(tensors)
        return prepared

    def fit_inputs(self, prepared: dict[str, Any]) -> None:
        if self.stats:
            self.inputs.fit(prepared["stats"])

    def forward(self, batch: dict[str, Any]) -> Tensor:
        parts, hidden = [], None
        if self.probe is not None:
            outputs, hidden = self.probe(batch["networks"])
            log = torch.log_softmax(outputs, -1)
            # A mistake shows in the probability, how sure a network is in the logarithm.
            parts += [log.clamp(min=LEAST_LOG).flatten(1), log.exp().flatten(1)]
        if self.messages is not None:
            parts.append(self.pool(self.blocks(self.embed(batch["networks"], hidden))))
        if self.stats:
            parts.append(self.inputs(batch["stats"]).clamp(-5, 5))
        return logits(self.head(torch.cat(parts, -1)))


@register("stats")
class Stats(_Invariants):
    """Invariant statistics and an MLP: an invariant STATNN."""

    label, stats = "invariant statistics", True


@register("message-passing")
class MessagePassingModel(_Invariants):
    """Message passing between the weights."""

    label, messages = "message passing", (CHANNELS, LAYERS)


@register("message-passing-stats")
class MessagePassingStats(_Invariants):
    """Message passing and invariant statistics: all that we take from the weights."""

    label, messages, stats = "message passing + stats", (CHANNELS, LAYERS), True


@register("probes")
class Probes(_Invariants):
    """The networks' answers to learned inputs, and an MLP. The answers are logits of classes."""

    label, sees, probes, task = "probes", "functions", PROBES, "generalization"


@register("combined")
class Combined(_Invariants):
    """All three: probes, whose hidden activations join the neurons' features, message passing and statistics."""

    label, sees, messages, stats, probes = "combined", "functions", (8, 2), True, PROBES
    task = "generalization"
