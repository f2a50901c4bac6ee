"""Speed and memory of message passing, as ratios taken in one run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from nfn_monomial import Features, WeightSpace
from nfn_monomial.benchmarks.report.tables import MIB
from nfn_monomial.benchmarks.settings.measurements import LayersConfig
from nfn_monomial.benchmarks.train.measure import race
from nfn_monomial.benchmarks.train.runs import environment
from nfn_monomial.tools.report import Report, Table

from .beside import BesideTiming, bench_beside, beside_table
from .contenders import (
    BACKWARD_PASSES,
    COMPILED,
    COPY,
    DENSE,
    FLOOR,
    PRODUCTS,
    Contender,
    Products,
    contenders,
    neuron_features,
)
from .layers import NETWORKS, Timing, bench_layers, layer_tables
from .memory import too_large
from .starting import bench_starting, starting_table
from .whole import bench_models, model_table

__all__ = [
    "GraphTiming",
    "bench_graphs",
    "bench_speed",
    "graph_tables",
    "over_dense",
    "over_floor",
    "speed_report",
]

SECONDS = 60.0
MODELS = "SIREN 2-32-32-1"  # the network that whole models read
MODEL_BATCH = 64  # the most of them: ScaleGMN of 32 channels takes 18 MiB for each


@dataclass(frozen=True)
class GraphTiming:
    """One contender in one setting: median milliseconds, parameters, and the peak memory of one training step.

    The floor's two have neither of the last. ``skipped`` says why a contender did not run.
    """

    network: str
    batch: int
    contender: str
    forward_ms: float = 0.0
    step_ms: float = 0.0
    parameters: int = 0
    peak_bytes: int = 0
    skipped: str = ""


def bench_graphs(
    batches: Sequence[int],
    width: int,
    repeats: int,
    device: str = "cpu",
    progress: Callable[[str], None] = lambda _: None,
    seconds: float = SECONDS,
    compiled: bool = False,
) -> list[GraphTiming]:
    """Time one layer of ``width`` channels on both networks; contenders take turns.

    Args:
        batches: numbers of networks.
        width: channels of neurons' streams and of edges, and PNAConv's features.
        repeats: timed repetitions, after three that are not counted.
        device: ``"cpu"`` or ``"cuda"``.
        progress: called with a line of text before each setting.
        seconds: after so many a setting begins no further repetition.
        compiled: whether the tied dense layer runs under torch.compile, too, which takes a minute for every setting
            and a C++ compiler. A compiled layer needs no more memory than the same without, as which it is estimated.
    """
    timings: list[GraphTiming] = []
    for network, build in NETWORKS.items():
        space = build()
        single = {name: make().memory() for name, make in contenders(space, 1, width, device)}
        for batch in batches:
            progress(f"{network}, batch {batch}")
            needed = {name: batch * peak for name, peak in single.items()}
            needed[COMPILED] = needed[DENSE]
            timings += _setting(network, space, batch, width, repeats, device, seconds, compiled, needed)
    return timings


def _setting(
    network: str,
    space: WeightSpace,
    batch: int,
    width: int,
    repeats: int,
    device: str,
    seconds: float,
    compiled: bool,
    needed: dict[str, int],
) -> list[GraphTiming]:
    ready, rows = {}, []
    for name, make in contenders(space, batch, width, device, compiled):
        if reason := too_large(needed[name], device):
            rows.append(GraphTiming(network, batch, name, skipped=reason))
        else:
            ready[name] = make()
    features = neuron_features(space, batch, width)
    products = Products(space, width)
    bare = Contender(products, features.tensors, lambda *t: products(Features(features.layout, t)), device)
    copies = [torch.empty_like(t) for t in bare.inputs]

    def copy() -> None:
        for into, t in zip(copies, bare.inputs, strict=True):
            into.copy_(t.detach())

    calls: dict[tuple[str, bool], Callable[[], object]] = {(COPY, True): copy}
    for name, contender in {**ready, PRODUCTS: bare}.items():
        calls |= {(name, True): contender.forward, (name, False): contender.step}
    ms = race(calls, repeats, device, seconds)
    ms[COPY, False] = BACKWARD_PASSES * ms[COPY, True]
    for name, contender in ready.items():
        size = contender.parameters, contender.memory()
        rows.append(GraphTiming(network, batch, name, ms[name, True], ms[name, False], *size))
    rows += [GraphTiming(network, batch, name, ms[name, True], ms[name, False]) for name in FLOOR]
    return rows


def graph_tables(timings: Sequence[GraphTiming]) -> list[Table]:
    """A table for every network: medians, memory, and ratios to the tied dense layer; and its distance to the floor."""
    groups: dict[tuple[str, int], dict[str, GraphTiming]] = {}
    for t in timings:
        groups.setdefault((t.network, t.batch), {})[t.contender] = t
    tables = []
    for network in dict.fromkeys(t.network for t in timings):
        own = {batch: group for (name, batch), group in groups.items() if name == network}
        skipped = [
            f"{t.contender}, batch {b}, left out: {t.skipped}." for b, g in own.items() for t in g.values() if t.skipped
        ]
        tables.append(
            Table(
                f"Message passing on {network}",
                (
                    "layer", "batch", "parameters", "forward ms", "step ms", "step MiB", "forward / dense",
                    "step / dense", "memory / dense",
                ),
                tuple(
                    (name, str(batch), str(t.parameters or "-"), *_cells(t, group.get(DENSE)))
                    for batch, group in own.items()
                    for name, t in group.items()
                ),
                names=(0, 1),
                notes=("Medians, and peak memory of a step. / dense: times what the tied dense layer needs.", *skipped),
            )
        )  # fmt: skip
    floors = [(key, found) for key, group in groups.items() if (found := over_floor(group))]
    return tables + [
        Table(
            "The tied dense layer against what it cannot avoid",
            ("network", "batch", "forward / larger", "step / larger", "forward / sum", "step / sum"),
            tuple((network, str(batch), *(f"{x:.2f}x" for x in found)) for (network, batch), found in floors),
            names=(0, 1),
            notes=(
                f"Copying the features (memory moved once forward, {BACKWARD_PASSES} times in a step) and its bare "
                "matrix products: times the larger of the two, and times their sum.",
            ),
        )
    ] * bool(floors)


def _cells(t: GraphTiming, dense: GraphTiming | None) -> list[str]:
    """Milliseconds, memory and the three ratios as text, with - for what there is not."""
    if t.skipped:
        return ["-"] * 6
    memory = f"{t.peak_bytes / MIB:.1f}" if t.peak_bytes else "-"
    ratios = over_dense(t, dense) if dense and not dense.skipped and t.contender not in FLOOR else ()
    return [f"{t.forward_ms:.2f}", f"{t.step_ms:.2f}", memory, *([f"{r:.1f}x" for r in ratios] or "---")]


def over_dense(t: GraphTiming, dense: GraphTiming) -> tuple[float, float, float]:
    """How many times what the tied dense layer needs a contender needs: forward, for a step, in memory."""
    return t.forward_ms / dense.forward_ms, t.step_ms / dense.step_ms, t.peak_bytes / dense.peak_bytes


def over_floor(group: Mapping[str, GraphTiming]) -> tuple[float, ...]:
    """How many times the larger of the floor's two times the tied dense layer takes (forward, step), and their sum."""
    dense = group.get(DENSE)
    if dense is None or dense.skipped:
        return ()
    floor = [group[name] for name in FLOOR]
    forward, step = [f.forward_ms for f in floor], [f.step_ms for f in floor]
    return tuple(t / f(of) for f in (max, sum) for t, of in ((dense.forward_ms, forward), (dense.step_ms, step)))


def bench_speed(config: LayersConfig, progress: Callable[[str], None] = lambda _: None) -> Report:
    """Time all that is configured; ``progress`` is called with a line of text before each setting."""
    where = config.repeats, config.device, progress
    layers = bench_layers(config.batches, config.channels, *where)
    graphs: list[GraphTiming] = []
    beside: list[BesideTiming] = []
    if config.graphs:
        settings = [(config.width, batch) for batch in config.batches if batch <= MODEL_BATCH]
        beside = bench_beside(NETWORKS[MODELS](), settings, *where)
        graphs = bench_graphs(config.batches, config.width, *where, compiled=config.compiled)
    report = speed_report(layers, graphs, config.device, beside)
    steps = bench_models(config.ways_batches, config.ways, *where, SECONDS, config.blocks) if config.ways else []
    starts = bench_starting(config.depth, progress) if config.depth else []
    tables = [
        *report.tables,
        *[model_table(steps, config.blocks)] * bool(steps),
        *[starting_table(starts)] * bool(starts),
    ]
    more = {"models": [asdict(s) for s in steps], "starting": [asdict(s) for s in starts]}
    results = {**report.results} | {name: found for name, found in more.items() if found}
    return replace(report, tables=tables, results=results)


def speed_report(
    layers: Sequence[Timing], graphs: Sequence[GraphTiming], device: str, beside: Sequence[BesideTiming] = ()
) -> Report:
    """All that was measured; ``graphs`` may be empty."""
    tables = [*layer_tables(layers), *graph_tables(graphs)]
    results: dict[str, Any] = {"environment": environment(device), "layers": [asdict(t) for t in layers]}
    if graphs:
        results["graphs"] = [asdict(t) for t in graphs]
    if beside:
        tables.append(beside_table(beside, MODELS))
        results["beside"] = [asdict(t) for t in beside]
    return Report(tables, results)
