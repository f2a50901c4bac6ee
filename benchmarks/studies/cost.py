"""Run time and memory of training, every model in one run (paper Tables 10 and 11).

One step is timed, as every experiment does it: take a batch out by index, forward, backward, optimiser. Models take
turns step by step, so that a slow moment of the machine hits all of them, and ratios are of one run. The networks are
random weights of the zoo's architecture: time and memory do not depend on training, and no zoo is needed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import torch
from matplotlib.figure import Figure
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from nfn_monomial.benchmarks.data.batches import Data
from nfn_monomial.benchmarks.experiments.speed import REFERENCE, CostConfig
from nfn_monomial.benchmarks.models.catalogue import model_names, require_task
from nfn_monomial.benchmarks.report.tables import INVARIANT, MIB, count
from nfn_monomial.benchmarks.settings.register import News, Study
from nfn_monomial.benchmarks.train.measure import race, step_memory
from nfn_monomial.benchmarks.train.runs import environment
from nfn_monomial.testing import random_networks
from nfn_monomial.tools.predictors.models import Model, NetworkInfo, build_model
from nfn_monomial.tools.report import Report, Table, look, panels

from .params import zoo_network

__all__ = ["Cost", "cost_report", "cost_table", "draw_costs", "measure_costs", "published_table"]

EPOCHS = 50  # of a run (App. D.3)
PREPARED = 128  # networks at least, over which the time to prepare one is taken
_PUBLISHED = {
    "NP": ("35m34s", "36m40s", "838MB", "838MB"),
    "HNP": ("29m37s", "30m06s", "856MB", "856MB"),
    "GNN": ("4h25m17s", "4h27m29s", "6390MB", "6390MB"),
    "Monomial-NFN": ("18m23s", "23m47s", "582MB", "560MB"),
}
"""Tables 10 and 11: run time for tanh and for ReLU networks, then memory."""


@dataclass(frozen=True)
class Cost:
    """One model in one setting.

    Attributes:
        activation: of the networks.
        batch: networks per step.
        model: registered name.
        label: name in tables.
        invariant_under: see `Model`.
        parameters: how many.
        step_ms: median milliseconds of a training step.
        prepare_ms: milliseconds per network of `Model.prepare_groups`, which is done once, before training.
        peak_bytes: see `step_memory`.
    """

    activation: str
    batch: int
    model: str
    label: str
    invariant_under: str
    parameters: int
    step_ms: float
    prepare_ms: float
    peak_bytes: int


def measure_costs(config: CostConfig, progress: Callable[[str], None] = lambda text: None) -> list[Cost]:
    """Times and measures all models in every setting.

    Args:
        config: see `CostConfig`.
        progress: called with a line of text before each setting.
    """
    device = torch.device(config.device)
    models = config.models or model_names()
    costs = []
    for activation in config.activations:
        info = zoo_network(activation)
        for batch in config.batch_sizes:
            progress(f"{activation} networks, batches of {batch}")
            contenders = {name: _contender(name, info, batch, device) for name in models}
            steps = {name: step for name, (_, step, _, _) in contenders.items()}
            medians = race(steps, config.repeats, config.device, config.seconds)
            for name, (model, step, optimizer, prepare_ms) in contenders.items():
                optimizer.zero_grad(set_to_none=True)
                costs.append(
                    Cost(
                        activation,
                        batch,
                        name,
                        model.label,
                        model.invariant_under,
                        sum(p.numel() for p in model.parameters()),
                        medians[name],
                        prepare_ms,
                        step_memory(step, model, optimizer, device),
                    )
                )
    return costs


def _contender(
    name: str, info: NetworkInfo, batch: int, device: torch.device
) -> tuple[Model, Callable[[], object], torch.optim.Optimizer, float]:
    """Returns a model, its training step as `train.loop.fit` does it, its optimiser, and ms to prepare a network."""
    generator = torch.Generator().manual_seed(0)
    networks = max(batch, PREPARED)
    tensors = random_networks(info.space, networks, dtype=torch.float32, generator=generator)
    model = build_model(name, info, seed=0)
    seconds = []
    for _ in range(2):  # the first call may have to set things up
        start = time.perf_counter()
        prepared = model.prepare_groups([(tensors, info.space)])
        seconds.append(time.perf_counter() - start)
    model.fit_inputs(prepared)
    model.to(device).train()
    data = Data(prepared, torch.rand(networks, generator=generator)).to(device)
    index = torch.arange(batch, device=device)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=0.0, fused=True)

    def step() -> Tensor:
        taken = data.take(index)
        optimizer.zero_grad(set_to_none=True)
        loss = binary_cross_entropy_with_logits(model(taken.inputs), taken.targets)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss.detach()

    return model, step, optimizer, 1e3 * min(seconds) / networks


def cost_report(costs: Sequence[Cost], config: CostConfig) -> Report:
    """A table for every activation and batch size, the figure, and the paper's numbers."""
    machine = environment(config.device)
    where = f"{machine['device']}, {machine['threads']} threads" if config.device == "cpu" else machine["device"]
    settings: dict[tuple[str, int], list[Cost]] = {}
    for c in costs:
        settings.setdefault((c.activation, c.batch), []).append(c)
    tables = [*(cost_table(group, config.networks, where) for group in settings.values()), published_table()]
    results = {"costs": [asdict(c) for c in costs], "environment": machine}
    return Report(tables, results, {"cost.png": draw_costs(costs)})


def cost_table(costs: Sequence[Cost], networks: int, device: str) -> Table:
    """The measurements of one activation and batch size; see `CostConfig` for ``networks``."""
    first = costs[0]
    hnp = next(c for c in costs if c.model == REFERENCE)
    steps = math.ceil(networks / first.batch)
    cells = tuple(
        (
            c.label,
            INVARIANT[c.invariant_under],
            count(c.parameters),
            f"{c.prepare_ms:.2f}",
            f"{c.step_ms:.1f}",
            f"{c.step_ms * steps / 1e3:.1f}",
            f"{c.step_ms * steps * EPOCHS / 6e4:.1f}",
            f"{c.step_ms / hnp.step_ms:.2f}",
            f"{c.peak_bytes / MIB:.0f}",
            f"{c.peak_bytes / hnp.peak_bytes:.2f}",
        )
        for c in costs
    )
    return Table(
        f"Training on {first.activation} networks in batches of {first.batch}, {device}",
        (
            "model", "invariant", "params", "ms to prepare", "ms/step", "s/epoch", f"min/{EPOCHS} epochs",
            "time / HNP", "peak MiB", "memory / HNP",
        ),
        cells,
        text_columns=2,
        bold=frozenset(i for i, c in enumerate(costs) if c.invariant_under == "group"),
        notes=(
            f"Medians of steps, models taking turns. An epoch is {networks:,} networks. to prepare: one network, once, "
            "not part of a step. peak: parameters, optimiser state and one step.",
        ),
    )  # fmt: skip


def published_table() -> Table:
    """The paper's Tables 10 and 11, as they are and relative to HNP."""

    def seconds(text: str) -> int:
        hours, _, rest = text.rpartition("h")
        minutes, _, last = rest.removesuffix("s").partition("m")
        return 3600 * int(hours or 0) + 60 * int(minutes) + int(last)

    cells = []
    hnp = _PUBLISHED["HNP"]
    for label, (tanh, relu, *memory) in _PUBLISHED.items():
        times = [f"{seconds(t) / seconds(h):.2f}" for t, h in zip((tanh, relu), hnp, strict=False)]
        sizes = [f"{int(m[:-2]) / int(h[:-2]):.2f}" for m, h in zip(memory, hnp[2:], strict=True)]
        cells.append((label, tanh, relu, *times, *memory, *sizes))
    return Table(
        "Published: 50 epochs on the Small CNN Zoo in batches of 8, A100 GPU",
        (
            "model", "time, tanh", "time, relu", "HNP = 1, tanh", "HNP = 1, relu",
            "memory, tanh", "memory, relu", "HNP = 1, tanh", "HNP = 1, relu",
        ),
        tuple(cells),
        notes=(
            "Another machine, and memory as the paper measured it, which may not be the memory that is counted above. "
            "The paper's GNN has 5.5M parameters.",
        ),
    )  # fmt: skip


def draw_costs(costs: Sequence[Cost]) -> Figure:
    """Draws the time of a step and the memory of every model relative to HNP, a dot for each activation and batch size.

    Dots are hollow, so that those that lie on one another can be seen.
    """
    models = list(dict.fromkeys(c.model for c in costs))
    settings = list(dict.fromkeys((c.activation, c.batch) for c in costs))
    figure, axes = panels(1, 2, (10.4, 0.3 * len(models) + 1.4))
    by = {(c.activation, c.batch, c.model): c for c in costs}
    for ax, what in zip(axes, ("time of a step", "peak memory"), strict=True):
        for i, setting in enumerate(settings):
            measured = [by[(*setting, model)] for model in models]
            values = [c.step_ms if ax is axes[0] else c.peak_bytes / MIB for c in measured]
            reference = values[models.index(REFERENCE)]
            ax.plot(
                [v / reference for v in values], range(len(models)), label=f"{setting[0]}, batch {setting[1]}",
                linestyle="none", markerfacecolor="none", markeredgewidth=1.4, **look(i),
            )  # fmt: skip
        ax.axvline(1, color="#404040", linewidth=0.8)
        ax.set_xscale("log")
        ax.set_xlabel(f"{what}, HNP = 1")
        ax.set_yticks(range(len(models)), [by[(*settings[0], model)].label for model in models], fontsize=8)
        ax.set_ylim(len(models) - 0.5, -0.5)  # the first model on top
    handles, labels = axes[1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=6, fontsize=8, frameon=False)
    return figure


STUDY = Study(
    lambda data, config, store, tell: measure_costs(config, lambda text: tell(News(f"timing {text}"))),
    lambda costs, config, store: cost_report(costs, config),
    lambda config: require_task(config.models, "generalization", "ablation"),
)
