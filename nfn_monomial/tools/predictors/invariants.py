"""Models of up to three kinds of invariants: answers to probes, messages, statistics.

Scales are balanced once, when networks are prepared (`balance`), not in every step. Models with probes run the
networks, the others see only their weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from nfn_monomial import InvariantStatistics, balance

from .models import Heads, Model, NetworkInfo, Standardise, logits, register
from .readers import Answers, Messages, probes_of

__all__ = [
    "Combined",
    "GeneratedProbes",
    "MessagePassingModel",
    "MessagePassingStats",
    "Probes",
    "ProbesStats",
    "Stats",
]

CHANNELS, LAYERS = 16, 3  # of message passing
PROBES = 64
FURTHEST = 5.0  # standard deviations: statistics beyond are cut off


class _Invariants(Model):
    """Invariants of up to three kinds in one vector, then an MLP; or several, of which each learns by its own loss.

    With several heads the answers in training are ``(B, heads)``, in evaluation their mean. A loss of the mean would
    train one wide MLP. They cost a few products more; trainings with other seeds, whose readers differ, too, would cost
    as many times as much.

    Options are those of `Head`.

    Attributes:
        answers: whether the networks' answers to probes are read.
        messages: channels and layers of message passing, or None.
        stats: whether `InvariantStatistics` are taken.
        probed: whether the hidden activations join the neurons' features in message passing.
        generated: whether the probes come from a `LinearGenerator`.
    """

    invariant_under = "group"
    train_with: ClassVar[Mapping[str, Any]] = {"weight_decay": 0.1}
    answers: ClassVar[bool] = False
    messages: ClassVar[tuple[int, int] | None] = None
    stats: ClassVar[bool] = False
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
            self.statistics = InvariantStatistics(self.space)
            self.inputs = Standardise([self.statistics.out_features])
            width += self.statistics.out_features
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
            prepared["stats"] = self.statistics(tensors)
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

    label, stats = "invariant statistics", True


@register("message-passing")
class MessagePassingModel(_Invariants):
    """Message passing between the weights."""

    label, messages = "message passing", (CHANNELS, LAYERS)


@register("message-passing-stats")
class MessagePassingStats(_Invariants):
    """Message passing and invariant statistics: all that we take from the weights."""

    label, messages, stats = "message passing + stats", (CHANNELS, LAYERS), True


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

    label, answers, generated, stats = "probes + stats", True, True, True


@register("generated-probes")
class GeneratedProbes(_Running):
    """Answers to inputs that a deep linear generator makes."""

    label, answers, generated = "generated probes", True, True


@register("combined")
class Combined(_Running):
    """All of them: answers to inputs from a generator, messages that hidden activations join, statistics."""

    label, answers, generated, messages, probed, stats = "combined", True, True, (8, 2), True, True
