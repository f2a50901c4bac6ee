"""Models of up to four kinds of invariants: answers to probes, hidden activations, messages, statistics.

Scales are balanced once, when networks are prepared (`balance`), not in every step. Models with probes run the
networks, the others see only their weights.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from nfn_monomial import InvariantStatistics, balance
from nfn_monomial.benchmarks.data.networks import NetworkInfo
from nfn_monomial.benchmarks.models.base import Model, register
from nfn_monomial.benchmarks.models.parts import Standardise, logits

from .readers import Answers, HiddenReader, Messages, probes_of

__all__ = [
    "Combined",
    "DeepProbes",
    "GeneratedProbes",
    "MessagePassingModel",
    "MessagePassingStats",
    "ProbedMessages",
    "Probes",
    "ProbesStats",
    "Stats",
]

CHANNELS, LAYERS = 16, 3  # of message passing
PROBES = 64
HIDDEN = 256  # of the heads
DROPOUT = 0.3  # of the vectors that enter the heads and of their first layer
FURTHEST = 5.0  # standard deviations: statistics beyond are cut off
FUSE = os.environ.get("FUSE", "concat")


class _Invariants(Model):
    """Invariants of up to four kinds, a head for each, and the mean of what the heads say.

    Attributes:
        answers: whether the networks' answers to probes are read.
        hidden: channels of what is read off their hidden activations, or None.
        messages: channels and layers of message passing, or None.
        stats: whether `InvariantStatistics` are taken.
        probed: whether the hidden activations join the neurons' features in message passing.
        generated: whether the probes come from a `LinearGenerator`.
    """

    invariant_under = "group"
    train_with: ClassVar[Mapping[str, Any]] = {"weight_decay": 0.1}
    answers: ClassVar[bool] = False
    hidden: ClassVar[int | None] = None
    messages: ClassVar[tuple[int, int] | None] = None
    stats: ClassVar[bool] = False
    probed: ClassVar[bool] = False
    generated: ClassVar[bool] = False

    def __init__(self, networks: NetworkInfo, out_features: int = 1) -> None:
        super().__init__()
        self.space = networks.space
        inner = self.space.restricted("sign")  # behind `balance` of the scales
        self.readers, widths = nn.ModuleDict(), {}
        self.probe = None
        if self.sees == "functions":
            self.probe = probes_of(networks, PROBES, self.generated)
            if self.answers:
                self.readers["answers"] = Answers(self.probe)
            if self.hidden is not None:
                self.readers["hidden"] = HiddenReader(inner, self.probe, self.hidden)
        if self.messages is not None:
            self.readers["messages"] = Messages(inner, *self.messages, self.probe if self.probed else None)
        widths = {name: int(reader.out_features) for name, reader in self.readers.items()}
        if self.stats:
            self.statistics = InvariantStatistics(self.space)
            self.inputs = Standardise([self.statistics.out_features])
            widths["stats"] = self.statistics.out_features
        if FUSE == "concat":
            widths = {"all": sum(widths.values())}
        self.heads = nn.ModuleDict({name: _head(width, out_features) for name, width in widths.items()})

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
        found, hidden = {}, None
        if self.probe is not None:
            outputs, hidden = self.probe(batch["networks"])
            if self.answers:
                found["answers"] = self.readers["answers"](outputs)
            if self.hidden is not None:
                found["hidden"] = self.readers["hidden"](hidden)
        if self.messages is not None:
            found["messages"] = self.readers["messages"](batch["networks"], hidden if self.probed else None)
        if self.stats:
            found["stats"] = self.inputs(batch["stats"]).clamp(-FURTHEST, FURTHEST)
        if FUSE == "concat":
            found = {"all": torch.cat(list(found.values()), -1)}
        said = torch.stack([head(found[name]) for name, head in self.heads.items()])
        if FUSE == "drop" and self.training and len(said) > 1:
            kept = torch.rand(said.shape[:2]) < 0.5
            kept = kept | (~kept.any(0))
            w = kept / kept.sum(0)
            return logits((said * w[..., None]).sum(0))
        return logits(said.sum(0) if FUSE == "sum" else said.mean(0))


def _head(width: int, out_features: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Dropout(DROPOUT), nn.Linear(width, HIDDEN), nn.SiLU(),
        nn.Dropout(DROPOUT), nn.Linear(HIDDEN, HIDDEN), nn.SiLU(),
        nn.Linear(HIDDEN, out_features),
    )  # fmt: skip


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
    """Answers and invariant statistics."""

    label, answers, stats = "probes + stats", True, True


@register("deep-probes")
class DeepProbes(_Running):
    """Answers and what hidden neurons do on the same inputs."""

    label, answers, hidden = "deep probes", True, 32


@register("generated-probes")
class GeneratedProbes(_Running):
    """Answers to inputs that a deep linear generator makes."""

    label, answers, generated = "generated probes", True, True


@register("probed-messages")
class ProbedMessages(_Running):
    """Message passing between neurons that start from what they do on learned inputs."""

    label, messages, probed = "probed messages", (CHANNELS, LAYERS), True


@register("combined")
class Combined(_Running):
    """All of them: answers, hidden activations, message passing that they join, and statistics."""

    label, answers, messages, probed, stats = "combined", True, (8, 2), True, True
