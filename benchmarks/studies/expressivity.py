"""Can a model compute what a network does, from its weights alone? Message passing against linear layers.

Random MLPs, their outputs at fixed inputs as targets, new networks to test on: a network that predicts them has to
emulate a forward pass. One block of messages does one layer of it (contract a weight with the activations before it,
gate); a linear layer sees every hidden weight by itself. Both models read weights only and are invariant to the whole
group: the linear one by its layers, the other one because scales are balanced before (`balance`), signs by its layers.
"""

from __future__ import annotations

import bisect
import itertools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from nfn_monomial import MonomialNFN, WeightSpace, balance
from nfn_monomial.benchmarks.data.batches import Data
from nfn_monomial.benchmarks.data.seeds import derive_seed
from nfn_monomial.benchmarks.experiments.expressivity import ExpressivityConfig
from nfn_monomial.benchmarks.report.tables import Mean, over
from nfn_monomial.benchmarks.settings.register import Said, Study
from nfn_monomial.benchmarks.settings.training import TrainConfig
from nfn_monomial.benchmarks.train.devices import make_fabric
from nfn_monomial.benchmarks.train.loop import Epoch, fit, predict
from nfn_monomial.benchmarks.train.runs import environment
from nfn_monomial.models import MessagePassingNFN
from nfn_monomial.nn import neuron_layout
from nfn_monomial.tools.report import PALETTE, Report, Table, panels

__all__ = ["Outcome", "bench_expressivity", "draw_outcomes", "expressivity_report", "expressivity_table"]

ACTIVATIONS = {"relu": (torch.relu, 2.0), "tanh": (torch.tanh, 1.7)}
"""Activation -> the function, and the variance of weights times their fan-in, at which outputs vary."""
BIAS_STD = 0.3
MODELS = ("message passing", "linear")
DECAY = (1.0, 0.3, 0.1)  # learning rates of three phases of equal length, relative to the first
VALIDATION = 1000  # networks
HIDDEN = 64  # of the MLP behind message passing


@dataclass(frozen=True)
class Outcome:
    """One model after training: R2 on unseen networks (mean over the points), and its predictions there."""

    activation: str
    model: str
    seed: int
    parameters: int
    r2: float
    seconds: float
    predicted: Tensor = field(repr=False, compare=False)
    true: Tensor = field(repr=False, compare=False)


def random_mlps(sizes: Sequence[int], activation: str, count: int, seed: int) -> dict[str, Tensor]:
    """Weights and biases of random MLPs, ``(count, 1, *shape)`` each, so large that outputs vary."""
    generator = torch.Generator().manual_seed(seed)
    gain = ACTIVATIONS[activation][1]
    tensors = {}
    for i, (n, m) in enumerate(itertools.pairwise(sizes)):
        tensors[f"weight.{i}"] = torch.randn(count, 1, m, n, generator=generator) * (gain / n) ** 0.5
        tensors[f"bias.{i}"] = torch.randn(count, 1, m, generator=generator) * BIAS_STD
    return tensors


def probe_points(count: int, inputs: int) -> Tensor:
    """The same inputs for all networks, spread over ``[-1, 1]^inputs``: ``(count, inputs)``."""
    sobol: Any = torch.quasirandom.SobolEngine(inputs, scramble=True, seed=0)  # type: ignore[no-untyped-call]
    points: Tensor = 2 * sobol.draw(count) - 1
    return points


def run_mlps(tensors: Mapping[str, Tensor], activation: str, x: Tensor) -> Tensor:
    """The outputs of all networks at all points: ``(count, points x outputs)``."""
    layers = len(tensors) // 2
    for i in range(layers):
        x = x @ tensors[f"weight.{i}"][:, 0].mT + tensors[f"bias.{i}"]
        x = ACTIVATIONS[activation][0](x) if i + 1 < layers else x
    return x.flatten(1)


def r2_score(predicted: Tensor, true: Tensor) -> float:
    """Share of variance explained, mean over columns."""
    unexplained = (predicted - true).square().sum(0) / (true - true.mean(0)).square().sum(0)
    return float(1 - unexplained.mean())


def build(model: str, space: WeightSpace, channels: int, outputs: int) -> nn.Module:
    """A model by name; the linear one's MLP is as wide as it takes to have the parameters of the other."""
    # One block for every layer of the networks. No norm: how large activations are is the question.
    messages = MessagePassingNFN(
        space, channels, len(neuron_layout(space).edges), HIDDEN, outputs, norm=False, balance=False
    )
    if model == MODELS[0]:
        return messages

    def linear(hidden: int) -> MonomialNFN:
        return MonomialNFN(space, (channels, channels, 8), hidden, outputs)

    def count(hidden: int) -> int:
        with torch.device("meta"):
            return _parameters(linear(hidden))

    return linear(8 + bisect.bisect_left(range(8, 4096), _parameters(messages), key=count))


def _parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def _prepare(model: str, space: WeightSpace, tensors: dict[str, Tensor]) -> Any:
    """What a model reads, made once: balanced tensors, or packed ones."""
    return balance(tensors, space, signs=False)[0] if model == MODELS[0] else space.pack(tensors)


def bench_expressivity(
    config: ExpressivityConfig, progress: Callable[[int, int], object] = lambda done, total: None
) -> list[Outcome]:
    """Train both models for every activation and seed, and test them on unseen networks.

    Args:
        config: see there.
        progress: called after every epoch with the numbers of epochs that are done and that there are in all.
    """
    runs = list(itertools.product(config.activations, config.seeds, MODELS))
    done = itertools.count(1)

    def show(_: Epoch) -> None:
        progress(next(done), len(runs) * config.epochs)

    return [_train(config, activation, model, seed, show) for activation, seed, model in runs]


def _train(
    config: ExpressivityConfig, activation: str, model: str, seed: int, on_epoch: Callable[[Epoch], None]
) -> Outcome:
    space = WeightSpace.mlp(config.sizes, activation)
    points = probe_points(config.points, config.sizes[0])
    inputs, outputs = {}, {}
    for name, count in {"train": config.networks, "val": VALIDATION, "test": config.test_networks}.items():
        tensors = random_mlps(config.sizes, activation, count, derive_seed(seed, activation, name))
        inputs[name], outputs[name] = _prepare(model, space, tensors), run_mlps(tensors, activation, points)
    mean, std = outputs["train"].mean(0), outputs["train"].std(0)
    train, val, test = (Data(inputs[name], (outputs[name] - mean) / std) for name in ("train", "val", "test"))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, "init"))
        net = build(model, space, config.channels, outputs["train"].shape[1])
    start = time.perf_counter()
    for phase, factor in enumerate(DECAY):
        training = TrainConfig(
            epochs=config.epochs * (phase + 1) // len(DECAY) - config.epochs * phase // len(DECAY),
            batch_size=config.batch_size,
            learning_rate=config.learning_rate * factor,
            warmup_steps=100,
            clip_norm=1.0,
            device=config.device,
        )
        fit(
            net, train, val, training,
            loss=nn.functional.mse_loss, metrics=lambda y, z: {"r2": r2_score(y, z)}, select="r2",
            seed=derive_seed(seed, phase), on_epoch=on_epoch,
        )  # fmt: skip
    seconds = time.perf_counter() - start
    fabric = make_fabric(training)
    found = predict(net, test.to(fabric.device), fabric).cpu() * std + mean
    r2 = r2_score(found, outputs["test"])
    return Outcome(activation, model, seed, _parameters(net), r2, seconds, found, outputs["test"])


def expressivity_report(outcomes: Sequence[Outcome], config: ExpressivityConfig) -> Report:
    """Table and figure of the outcomes, and their numbers."""
    numbers = ("activation", "model", "seed", "parameters", "r2", "seconds")
    rows = [{name: getattr(o, name) for name in numbers} for o in outcomes]
    results = {"environment": environment(config.device), "config": asdict(config), "outcomes": rows}
    return Report([expressivity_table(outcomes)], results, {"expressivity.png": draw_outcomes(outcomes)})


def _groups(outcomes: Sequence[Outcome]) -> dict[tuple[str, str], list[Outcome]]:
    groups: dict[tuple[str, str], list[Outcome]] = {}
    for o in outcomes:
        groups.setdefault((o.activation, o.model), []).append(o)
    return groups


def _r2(group: Sequence[Outcome]) -> str:
    return Mean.of(o.r2 for o in group).show(4)


def expressivity_table(outcomes: Sequence[Outcome]) -> Table:
    """A line for every activation and model."""
    groups = _groups(outcomes)
    return Table(
        "Outputs of random networks predicted from their weights",
        ("networks", "model", "parameters", "R2 on unseen networks", "seconds"),
        tuple(
            (*key, f"{group[0].parameters:,}", _r2(group), f"{statistics.fmean(o.seconds for o in group):.0f}")
            for key, group in groups.items()
        ),
        text_columns=2,
        names=(0, 1),
        notes=(f"R2: mean over the points; {over(map(len, groups.values()))}.",),
    )


def draw_outcomes(outcomes: Sequence[Outcome]) -> Figure:
    """Predicted against true outputs of the first seed: a row for every activation, a column for every model."""
    groups = _groups(outcomes)
    activations = list(dict.fromkeys(activation for activation, _ in groups))
    figure, axes = panels(len(activations), len(MODELS), (8.4, 4.0 * len(activations)))
    for (activation, model), group in groups.items():
        ax = axes[activations.index(activation) * len(MODELS) + MODELS.index(model)]
        true, predicted = group[0].true.flatten(), group[0].predicted.flatten()
        low, high = torch.quantile(true[:100_000], torch.tensor([0.001, 0.999])).tolist()
        ax.plot([low, high], [low, high], color="#404040", linewidth=0.8)
        ax.scatter(
            true, predicted, s=2, alpha=0.25, color=PALETTE[3 + MODELS.index(model)], linewidths=0, rasterized=True
        )
        ax.set(xlim=(low, high), ylim=(low, high), xlabel="true output", ylabel="predicted from the weights")
        ax.set_title(f"{activation} networks, {model}: R2 {_r2(group)}", fontsize=10)
    figure.supxlabel(f"R2: {over(map(len, groups.values()))}; points are of the first seed.", fontsize=8.5)
    return figure


STUDY = Study(
    lambda data, config, store, tell: bench_expressivity(config, lambda *place: tell(Said("training", *place))),
    lambda outcomes, config, store: expressivity_report(outcomes, config),
)
