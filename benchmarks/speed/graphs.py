"""Message passing in dense layers, the same on graphs, and torch-geometric's PNA; and all ratios in one report.

Every contender gets features in its own layout and gives features of neurons and edges: an update, or after blocks the
features themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict

import torch
from torch import Tensor, nn

from nfn_monomial import Features, MessagePassing, WeightSpace
from nfn_monomial.adapters.pyg import MonomialBlock, MonomialConv, layer_groups, to_graph
from nfn_monomial.benchmarks.experiments.speed import LayersConfig
from nfn_monomial.benchmarks.models.graphs import PNABlock, PNAWithEdges
from nfn_monomial.benchmarks.train.runs import environment
from nfn_monomial.nn import MessageBlock
from nfn_monomial.nn.neurons import NeuronLayer, neuron_layout
from nfn_monomial.nn.neurons.buckets import Neurons
from nfn_monomial.testing import random_networks
from nfn_monomial.tools.report import Report, Table

from .harness import MEMORY, NETWORKS, Contender, Make, Timing, measured, parts, ratio_tables, times
from .layers import balance_tables, bench_balance, bench_layers, layer_tables

__all__ = ["DENSE", "PNA", "bench_graphs", "bench_speed", "graph_tables"]

DENSE, UNTIED = "MessagePassing (tied)", "MessagePassing (untied)"
GRAPH, PNA = "MonomialConv", "PNAConv + edge update"
LAYER, BLOCKS = "one layer", "three blocks with norms"
SECONDS = 60.0
Progress = Callable[[str], None]


def bench_graphs(
    batches: Sequence[int],
    width: int,
    repeats: int,
    device: str = "cpu",
    progress: Progress = lambda _: None,
    seconds: float = SECONDS,
) -> list[Timing]:
    """Times one layer of ``width`` channels, and three blocks of norms and layers, on all networks.

    Args:
        batches: numbers of networks.
        width: channels of neurons' streams and of edges, and PNAConv's features.
        repeats: timed repetitions, after three that are not counted.
        device: ``"cpu"`` or ``"cuda"``.
        progress: called with a line of text before each setting.
        seconds: after so many a setting begins no further repetition.
    """
    timings: list[Timing] = []
    for network, build in NETWORKS.items():
        space = build().restricted("sign")  # models pass messages on networks whose scales are balanced
        single = {
            what: {name: make().memory() for name, make in makes.items()}
            for what, makes in _contenders(space, 1, width, device).items()
        }
        for batch in batches:
            for what, makes in _contenders(space, batch, width, device).items():
                progress(f"message passing on {network}, {what}, batch {batch}")
                needed = {name: batch * peak for name, peak in single[what].items()}
                timings += measured(f"{network}, {what}", batch, width, makes, repeats, device, seconds, needed=needed)
    return timings


def _contenders(space: WeightSpace, batch: int, width: int, device: str) -> dict[str, dict[str, Make]]:
    # Random features of all streams.
    neurons = neuron_layout(space)
    sizes = {name: node.size or 1 for name, node in space.nodes.items()}
    generator = torch.Generator().manual_seed(0)
    shapes = [(batch, *(sizes[axis.node] for axis in field), width) for field in neurons.layout.types]
    features = Features(neurons.layout, tuple(torch.randn(shape, generator=generator).to(device) for shape in shapes))

    def dense(*layers: NeuronLayer) -> Contender:
        # In buckets, as models pass them from layer to layer.
        packed, stack = layers[0].to(device).packed(features), nn.Sequential(*layers)

        def call(*tensors: Tensor) -> tuple[Tensor, ...]:
            out: Neurons = stack(Neurons(packed.buckets, tensors[:-1], tensors[-1]))
            return (*out.edges, out.rows)

        return Contender(stack, (*packed.edges, packed.rows), call, device)

    def graph(kind: Callable[[Tensor], nn.Module], streams: int, blocks: bool = False) -> Contender:
        # The same features on the graphs of `to_graph`: ``x (N, 3 C)``, ``edge_index (2, E)``, ``edge_attr (E, C)``.
        networks = to_graph(random_networks(space, batch, dtype=torch.float32), space)
        edge_index = networks.edge_index.to(device)
        nodes = [torch.cat(features.tensors[neurons.fields(node)], -1) for node in neurons.nodes]
        edges = [t.flatten(1, 2) for t in features.tensors[: len(neurons.edges)]]
        x, edge_attr = torch.cat(nodes, 1).flatten(0, 1), torch.cat(edges, 1).flatten(0, 1)
        degrees = torch.bincount(torch.bincount(edge_index[1], minlength=len(x)))
        layers = nn.ModuleList(kind(degrees) for _ in range(3 if blocks else 1))
        more: tuple[Tensor, ...] = ()
        if blocks and streams > 1:  # norms and gates of ours know the group
            more = (networks.symmetry.to(device), layer_groups(networks).to(device))

        def call(x: Tensor, e: Tensor) -> tuple[Tensor, ...]:
            for layer in layers:
                x, e = layer(x, edge_index, e, *more)
            return x, e

        return Contender(layers, (x[:, : streams * width], edge_attr), call, device)

    return {
        LAYER: {
            DENSE: lambda: dense(MessagePassing(space, width, tied=True)),
            UNTIED: lambda: dense(MessagePassing(space, width)),
            GRAPH: lambda: graph(lambda _: MonomialConv(width), 3),
            PNA: lambda: graph(lambda degrees: PNAWithEdges(width, degrees), 1),
        },
        BLOCKS: {
            DENSE: lambda: dense(*[MessageBlock(space, width, tied=True) for _ in range(3)]),
            UNTIED: lambda: dense(*[MessageBlock(space, width) for _ in range(3)]),
            GRAPH: lambda: graph(lambda _: MonomialBlock(width), 3, blocks=True),
            PNA: lambda: graph(lambda degrees: PNABlock(width, degrees), 1, blocks=True),
        },
    }


def graph_tables(timings: Sequence[Timing]) -> list[Table]:
    """Tables for every network: medians, operators, memory, and ratios to the tied dense layer."""
    columns = {
        "parameters": parts("parameters", ".0f"),
        "forward ms": parts("forward_ms"),
        "step ms": parts("step_ms"),
        "operators": parts("step_operators", ".0f"),
        "step MiB": MEMORY,
        "forward / dense": times("forward_ms", DENSE),
        "step / dense": times("step_ms", DENSE),
        "memory / dense": times("peak_bytes", DENSE),
    }
    note = "Medians, operators without views and peak memory of a step. / dense: ratio to the tied dense layer."
    return ratio_tables(timings, columns, note, "Message passing on {}")


def bench_speed(config: LayersConfig, progress: Progress = lambda _: None) -> Report:
    """Times all that is configured; ``progress`` is called with a line of text before each setting."""
    where = config.repeats, config.device, progress
    layers = bench_layers(config.batches, config.channels, *where)
    balance = bench_balance(config.batches, *where)
    tables = layer_tables(layers) + balance_tables(balance)
    results = {"layers": [asdict(t) for t in layers], "balance": [asdict(t) for t in balance]}
    if config.graphs:
        graphs = bench_graphs(config.batches, config.width, *where)
        tables += graph_tables(graphs)
        results["graphs"] = [asdict(t) for t in graphs]
    return Report(tables, {"environment": environment(config.device), **results})
