"""All ratios of speed and memory: of layers, of message passing on tensors and on graphs, of whole models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict

import torch

from nfn_monomial.benchmarks.experiments.speed import LayersConfig
from nfn_monomial.benchmarks.train.runs import environment
from nfn_monomial.tools.report import Report, Table

from .contenders import (
    BACKWARD_PASSES,
    COMPILED,
    COPY,
    DENSE,
    FLOOR,
    OURS,
    PRODUCTS,
    ROUNDS,
    bare_products,
    contenders,
    whole_models,
)
from .harness import MEMORY, NETWORKS, Setting, Timing, by_setting, measured, parts, ratio_table, times
from .layers import bench_layers, layer_tables
from .whole import bench_models, bench_starting, model_table, starting_table

__all__ = ["bench_beside", "bench_graphs", "bench_speed", "beside_table", "graph_tables", "over_floor"]

SECONDS = 60.0
MODELS = "SIREN 2-32-32-1"  # the network that whole models read
MODEL_BATCH = 64  # the most of them: ScaleGMN of 32 channels takes 18 MiB for each
Progress = Callable[[str], None]


def bench_graphs(
    batches: Sequence[int],
    width: int,
    repeats: int,
    device: str = "cpu",
    progress: Progress = lambda _: None,
    seconds: float = SECONDS,
    compiled: bool = False,
) -> list[Timing]:
    """Time one layer of ``width`` channels on both networks, and its floor.

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
    timings: list[Timing] = []
    for network, build in NETWORKS.items():
        space = build()
        single = {name: make().memory() for name, make in contenders(space, 1, width, device).items()}
        for batch in batches:
            progress(f"{network}, batch {batch}")
            needed = {name: batch * peak for name, peak in single.items()}
            needed[COMPILED] = needed[DENSE]
            bare = bare_products(space, batch, width, device)
            copies = [torch.empty_like(t) for t in bare.inputs]

            def copy(copies: list[torch.Tensor] = copies, inputs: list[torch.Tensor] = bare.inputs) -> None:
                for into, t in zip(copies, inputs, strict=True):
                    into.copy_(t.detach())

            more: dict[tuple[str, bool], Callable[[], object]] = {
                (COPY, True): copy,
                (PRODUCTS, True): bare.forward,
                (PRODUCTS, False): bare.step,
            }
            setting = Setting(network, batch, width)
            makes = contenders(space, batch, width, device, compiled)
            found, ms = measured(setting, makes, repeats, device, seconds, needed=needed, more=more)
            steps = {COPY: BACKWARD_PASSES * ms[COPY, True], PRODUCTS: ms[PRODUCTS, False]}
            floor = [Timing(network, batch, width, name, ms[name, True], steps[name]) for name in FLOOR]
            timings += [*found, *floor]
    return timings


def graph_tables(timings: Sequence[Timing]) -> list[Table]:
    """A table for every network: medians, memory, and ratios to the tied dense layer; and its distance to the floor."""
    columns = {
        "parameters": parts("parameters", ".0f"),
        "forward ms": parts("forward_ms"),
        "step ms": parts("step_ms"),
        "step MiB": MEMORY,
        "forward / dense": times("forward_ms", DENSE),
        "step / dense": times("step_ms", DENSE),
        "memory / dense": times("peak_bytes", DENSE),
    }
    note = "Medians, and peak memory of a step. / dense: times what the tied dense layer needs."
    titles = dict.fromkeys(t.table for t in timings)
    tables = [
        ratio_table(f"Message passing on {title}", [t for t in timings if t.table == title], columns, note)
        for title in titles
    ]
    floors = [(setting, found) for setting, peers in by_setting(timings).items() if (found := over_floor(peers))]
    if floors:
        lines = [(setting.table, str(setting.batch), *(f"{x:.2f}x" for x in found)) for setting, found in floors]
        tables.append(
            Table(
                "The tied dense layer against what it cannot avoid",
                ("network", "batch", "forward / larger", "step / larger", "forward / sum", "step / sum"),
                tuple(lines),
                names=(0, 1),
                notes=(
                    f"Copying the features (memory moved once forward, {BACKWARD_PASSES} times in a step) and its bare "
                    "matrix products: times the larger of the two, and times their sum.",
                ),
            )
        )
    return tables


def over_floor(peers: Mapping[str, Timing]) -> tuple[float, ...]:
    """How many times the larger of the floor's two times the tied dense layer takes (forward, step), and their sum."""
    dense = peers.get(DENSE)
    if dense is None or dense.skipped:
        return ()
    forward, step = ([getattr(peers[name], of) for name in FLOOR] for of in ("forward_ms", "step_ms"))
    return tuple(t / f(of) for f in (max, sum) for t, of in ((dense.forward_ms, forward), (dense.step_ms, step)))


def bench_beside(
    settings: Sequence[tuple[int, int]], repeats: int, device: str = "cpu", progress: Progress = lambda _: None
) -> list[Timing]:
    """Time training steps of whole models; ``settings`` are pairs of channels and numbers of networks."""
    timings: list[Timing] = []
    for width, batch in settings:
        progress(f"whole models, {width} channels, batch {batch}")
        makes = whole_models(NETWORKS[MODELS](), batch, width, device)
        timings += measured(Setting(MODELS, batch, width), makes, repeats, device)[0]
    return timings


def beside_table(timings: Sequence[Timing]) -> Table:
    """Medians, memory, and ratios to ours."""
    columns = {
        "channels": parts("channels", ".0f"),
        "step ms": parts("step_ms"),
        "step MiB": MEMORY,
        "step / ours": times("step_ms", OURS),
        "memory / ours": times("peak_bytes", OURS),
    }
    note = "ScaleGMN is written anew after its paper, in torch-geometric, without its code; forward alone."
    return ratio_table(f"Whole models of {ROUNDS} rounds on {MODELS}", timings, columns, note, "model")


def bench_speed(config: LayersConfig, progress: Progress = lambda _: None) -> Report:
    """Time all that is configured; ``progress`` is called with a line of text before each setting."""
    where = config.repeats, config.device, progress
    layers = bench_layers(config.batches, config.channels, *where)
    tables, results = layer_tables(layers), {"layers": [asdict(t) for t in layers]}
    if config.graphs:
        settings = [(config.width, batch) for batch in config.batches if batch <= MODEL_BATCH]
        beside = bench_beside(settings, *where)
        graphs = bench_graphs(config.batches, config.width, *where, compiled=config.compiled)
        tables += [*graph_tables(graphs), *[beside_table(beside)] * bool(beside)]
        results |= {"graphs": [asdict(t) for t in graphs], "beside": [asdict(t) for t in beside]}
    if config.ways:
        steps = bench_models(config.ways_batches, config.ways, *where, SECONDS, config.blocks)
        tables.append(model_table(steps, config.blocks))
        results["models"] = [asdict(s) for s in steps]
    if config.depth:
        starts = bench_starting(config.depth, progress)
        tables.append(starting_table(starts))
        results["starting"] = [asdict(s) for s in starts]
    return Report(tables, {"environment": environment(config.device), **results})
