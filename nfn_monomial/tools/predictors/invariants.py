"""Models of up to three kinds of invariants: answers to probes, messages, statistics.

Scales are balanced once, when networks are prepared (`balance`), not in every step, so that only signs and permutations
remain of the group. Models with probes run the networks, the others see only their weights. One model reads weights
as training left them, too: scalings and sign flips change its answers.
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
from nfn_monomial.read.statistics import PER_TENSOR, distribution
from nfn_monomial.space.nodes import ancestry

from .models import Heads, Model, NetworkInfo, Standardise, logits, register

__all__ = ["MODELS", "InvariantModel", "LinearGenerator", "widths"]

LEAST_LOG = -12.0  # log probabilities of networks that are sure and wrong are cut off here
CHANNELS, LAYERS = 16, 3  # of message passing
PROBES = 64
AT_ONCE = 2**26  # weights and entries of matrices between neurons, of all networks whose statistics are made at once
FURTHEST = 5.0  # standard deviations: statistics beyond are cut off


def widths(space: WeightSpace) -> list[int]:
    """The neurons of each layer, in all of the groups that they lie in."""
    hidden = [ancestry(space.nodes, name) for name, node in space.nodes.items() if node.permutes]
    return [math.prod(space.nodes[name].size or 1 for name in names) for names in hidden]


class ProbeAnswers(nn.Module):
    """The probabilities of classes, and their logarithms, that networks answer to P inputs.

    Mistakes show in the probabilities, confidence in the logarithms.
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

    With a ``probe``, its hidden activations join the neurons' features.
    """

    def __init__(self, space: WeightSpace, channels: int, blocks: int, probe: ProbeFeatures | None = None) -> None:
        super().__init__()
        extra, charges = (0, None) if probe is None else (probe.count, probe.charges)
        self.embed = NeuronEmbedding(space, 1, channels, extra=extra, charges=charges)
        self.blocks = Blocks(*(MessageBlock(space, channels) for _ in range(blocks)))
        self.norm, self.pool = EquivariantNorm(space, channels), NeuronPool(space, channels)
        self.out_features = self.pool.out_features

    def forward(self, networks: Mapping[str, Tensor], probed: Probed | None) -> Tensor:
        """Maps networks, and their activations on the learned inputs, to ``(B, out_features)``."""
        hidden = None if probed is None or not self.embed.extra else probed.hidden
        out: Tensor = self.pool(self.norm(self.blocks(self.embed(networks, hidden))))
        return out


class TensorStatistics(nn.Module):
    """Statistics of every tensor as it is, those of `InvariantStatistics` without the balanced form.

    They have the sizes that training leaves in layers, which depend on its rate and its weight decay. Permutations of
    neurons keep them, scalings and sign flips do not.
    """

    def __init__(self, space: WeightSpace) -> None:
        super().__init__()
        self.names = tuple(space.parameters)
        self.out_features = PER_TENSOR * len(self.names)

    def forward(self, networks: Mapping[str, Tensor]) -> Tensor:
        """Named tensors ``(B, 1, *shape)`` -> ``(B, out_features)``."""
        tensors = [networks[name] for name in self.names]
        wide = torch.cat([distribution(x.double()).flatten(1) for x in tensors], -1)  # powers of large entries
        return wide.to(tensors[0].dtype)


class LinearGenerator(nn.Module):
    """Inputs ``(count, *shape)`` that a deep linear network makes from learned codes, so that they share structure.

    For images ``(C, H, W)``, the codes become maps of a quarter of the size, which two transposed convolutions double;
    for inputs of other kinds there are two linear layers. There is no activation: products of matrices are biased
    towards low rank, which alone keeps learned inputs smooth.

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


class InvariantModel(Model):
    """Invariants of up to three kinds in one vector, then an MLP; or several MLPs (``heads``), each with its own loss.

    With several heads the answers in training are ``(B, heads)``, in evaluation their mean: a loss of the mean would
    train one wide MLP. Heads cost a few more products; an ensemble of whole models would cost as many times as much.

    Attributes:
        answers: whether the networks' answers to probes are read.
        messages: channels and layers of message passing, or None.
        stats: the kinds of statistics that are read.
        probed: whether the hidden activations join the neurons' features in message passing.
        generated: whether the probes come from a `LinearGenerator`.
    """

    invariant_under = "group"
    train_with: ClassVar[Mapping[str, Any]] = {"weight_decay": 0.1}
    answers: ClassVar[bool] = False
    messages: ClassVar[tuple[int, int] | None] = None
    stats: ClassVar[tuple[type[InvariantStatistics | GramStatistics | TensorStatistics], ...]] = ()
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
        inner = self.space.restricted("sign")  # after `balance` of the scales
        readers: dict[str, ProbeAnswers | Messages] = {}
        self.probe = None
        if self.sees == "functions":
            if networks.template is None or networks.input_shape is None:
                raise InvalidValueError(
                    "models with probes run the networks, but how they run is not known of these (strides, padding, "
                    "size of the images): choose models that see only weights"
                )
            probes = LinearGenerator(PROBES, networks.input_shape) if self.generated else PROBES
            template = networks.template()
            self.probe = ProbeFeatures(template, probes, input_shape=networks.input_shape, space=networks.space)
        if self.probe is not None and self.answers:
            readers["answers"] = ProbeAnswers(self.probe)
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
            prepared["stats"] = torch.cat([self._statistics_of(part) for part in self._parts(tensors)])
        return prepared

    def _statistics_of(self, tensors: Mapping[str, Tensor]) -> Tensor:
        return torch.cat([kind(tensors) for kind in self.statistics], -1)

    def _parts(self, tensors: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
        """The networks in parts that fit into memory, with the matrices between the neurons of their layers."""
        weights = sum(t[:1].numel() for t in tensors.values())
        count = max(1, AT_ONCE // (weights + sum(n**2 for n in widths(self.space)) or 1))
        each = {name: torch.split(t, count) for name, t in tensors.items()}
        return [dict(zip(each, part, strict=True)) for part in zip(*each.values(), strict=True)]

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


MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "stats": ("invariant statistics", {"stats": (InvariantStatistics,)}),
    "gram-stats": ("statistics + Gram matrices", {"stats": (InvariantStatistics, GramStatistics)}),
    "raw-gram-stats": (
        "statistics + Gram matrices + raw", {"stats": (InvariantStatistics, GramStatistics, TensorStatistics)},
    ),
    "message-passing": ("message passing", {"messages": (CHANNELS, LAYERS)}),
    "message-passing-stats": (
        "message passing + stats", {"messages": (CHANNELS, LAYERS), "stats": (InvariantStatistics,)},
    ),
    "probes": ("probes", {"answers": True}),
    "probes-stats": ("probes + stats", {"answers": True, "generated": True, "stats": (InvariantStatistics,)}),
    "gram-probes": (
        "probes + stats + Gram matrices",
        {"answers": True, "generated": True, "stats": (InvariantStatistics, GramStatistics)},
    ),
    "generated-probes": ("generated probes", {"answers": True, "generated": True}),
    "combined": (
        "combined",
        {"answers": True, "generated": True, "messages": (8, 2), "probed": True, "stats": (InvariantStatistics,)},
    ),
}  # fmt: skip
"""Name of a model -> its label, and the attributes of its class: the invariants that it reads."""

for _name, (_label, _reads) in MODELS.items():
    # models that run the networks take their outputs for logits of classes
    _runs = {"sees": "functions", "task": "generalization"} if "answers" in _reads else {}
    _under = "permutations" if TensorStatistics in _reads.get("stats", ()) else "group"
    register(_name)(type(_name, (InvariantModel,), {"label": _label, "invariant_under": _under, **_reads, **_runs}))
