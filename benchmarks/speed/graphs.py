"""Speed and memory of message passing, as ratios taken in one run: dense layers, the same on graphs, and PNAConv.

Every contender gets features in its own layout and gives an update of the neurons' and of the edges' features; a
training step is forward and backward to inputs and parameters. What no layer can avoid is timed beside them:

- moving memory: every feature is read and written once forward; backward reads the features and the outputs'
  gradients and writes the inputs' gradients. Copying all features is the first of these, the step 5/2 as much.
- multiply-adds: the bare matrix products of the layer, forward and backward, on the features as they are.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch_geometric.nn import PNAConv

from nfn_monomial import Features, MessagePassing, WeightSpace
from nfn_monomial.adapters.pyg import MonomialConv, to_graph
from nfn_monomial.benchmarks.train.measure import step_memory
from nfn_monomial.nn.neurons import STREAMS, NeuronLayout, neuron_layout
from nfn_monomial.testing import random_networks

from .layers import NETWORKS, race

DENSE, UNTIED = "MessagePassing (tied)", "MessagePassing (untied)"
COMPILED = "MessagePassing (tied, torch.compile)"
GRAPH, PNA = "MonomialConv", "PNAConv + edge update"
COPY, PRODUCTS = "copying the features", "bare matrix products"
FLOOR = (COPY, PRODUCTS)
AGGREGATORS = ("mean", "min", "max", "std")
SCALERS = ("identity", "amplification", "attenuation")
BACKWARD_PASSES = 2.5  # memory moved in a step, in units of that moved forward
SECONDS = 60.0


Make: TypeAlias = "Callable[[], Contender]"


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


class Contender:
    """A layer and its input: ``call(*inputs)`` gives what it computes."""

    def __init__(
        self, layer: nn.Module, inputs: Sequence[Tensor], call: Callable[..., tuple[Tensor, ...]], device: str
    ) -> None:
        self.layer, self.call, self.device = layer.to(device), call, device
        self.inputs = [t.detach().contiguous().to(device).requires_grad_() for t in inputs]
        self.cotangents = [torch.ones_like(y) for y in self.forward()]
        self.parameters = sum(p.numel() for p in layer.parameters())

    def forward(self) -> tuple[Tensor, ...]:
        """One pass without gradients."""
        with torch.no_grad():
            return self.call(*self.inputs)

    def step(self, inputs: Sequence[Tensor] | None = None) -> object:
        """Forward, and the gradients by inputs and parameters."""
        inputs = self.inputs if inputs is None else inputs
        return torch.autograd.grad(self.call(*inputs), [*inputs, *self.layer.parameters()], self.cotangents)

    def memory(self) -> int:
        """Peak bytes of a step: input, parameters, what is kept for backward, gradients."""
        no_state = torch.optim.SGD(self.layer.parameters())
        fresh = (t.detach().clone().requires_grad_() for t in self.inputs)
        return step_memory(lambda: self.step(list(fresh)), self.layer, no_state, torch.device(self.device))


class PNAWithEdges(nn.Module):
    """PNAConv as Kofinas et al. 2024 use it, and an update of the edges: an MLP of ``[x_target, x_source, edge]``."""

    def __init__(self, width: int, degrees: Tensor) -> None:
        super().__init__()
        self.conv = PNAConv(width, width, list(AGGREGATORS), list(SCALERS), degrees, edge_dim=width)
        self.edges = nn.Sequential(nn.Linear(3 * width, width), nn.ReLU(), nn.Linear(width, width))

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> tuple[Tensor, Tensor]:
        """``x (N, width)``, ``edge_attr (E, width)`` -> the same."""
        source, target = edge_index
        edges: Tensor = self.edges(torch.cat([x[target], x[source], edge_attr], -1))
        return self.conv(x, edge_index, edge_attr), edges


class Products(nn.Module):
    """The matrix products of a tied `MessagePassing` and nothing else."""

    def __init__(self, space: WeightSpace, width: int) -> None:
        super().__init__()
        self.neurons = neuron_layout(space)

        def mixes(count: int) -> nn.ModuleList:
            return nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(count))

        self.edges, self.source, self.target, self.update = mixes(2), mixes(3), mixes(3), mixes(7)

    def forward(self, features: Features) -> tuple[Tensor, ...]:
        """Neuron features -> all products."""
        out: list[Tensor] = []
        streams = {n: _streams(features, self.neurons, n) for n in self.neurons.nodes}
        for pair, e in zip(self.neurons.pairs, features.tensors, strict=False):
            out += [mix(e) for mix in self.edges]
            out += [mix(x) for mix, x in zip(self.source, streams[pair.source], strict=True)]
            out += [mix(x) for mix, x in zip(self.target, streams[pair.target], strict=True)]
        for of in streams.values():
            # out, back, first, second, and inv of three times the width
            out += [mix(of[i % 3]) for i, mix in enumerate(self.update)]
        return tuple(out)


def _streams(features: Features, neurons: NeuronLayout, node: str) -> list[Tensor]:
    return [features.tensors[neurons.stream(name, node)] for name in STREAMS]


def neuron_features(space: WeightSpace, batch: int, width: int) -> Features:
    """Random features of all streams."""
    layout = neuron_layout(space).layout
    sizes = {name: node.size or 1 for name, node in space.nodes.items()}
    generator = torch.Generator().manual_seed(0)
    shapes = [(batch, *(sizes[axis.node] for axis in field), width) for field in layout.types]
    return Features(layout, tuple(torch.randn(shape, generator=generator) for shape in shapes))


def as_graph(features: Features, space: WeightSpace) -> tuple[Tensor, Tensor, Tensor]:
    """The same features on the graphs of `to_graph`: ``x (N, 3 C)``, ``edge_index (2, E)``, ``edge_attr (E, C)``."""
    neurons = neuron_layout(space)
    batch = len(features.tensors[0])
    networks = random_networks(space, batch, dtype=torch.float32)
    edge_index = to_graph(networks, space).edge_index
    nodes = [torch.cat(_streams(features, neurons, node), -1) for node in neurons.nodes]
    edges = [t.flatten(1, 2) for t in features.tensors[: len(neurons.pairs)]]
    return torch.cat(nodes, 1).flatten(0, 1), edge_index, torch.cat(edges, 1).flatten(0, 1)


def contenders(
    space: WeightSpace, batch: int, width: int, device: str, compiled: bool = False
) -> Iterator[tuple[str, Make]]:
    """Name -> what makes the contender, so that those that are left out take no memory."""
    features = neuron_features(space, batch, width)
    layout = features.layout

    def dense(layer: nn.Module, compiled: bool = False) -> Contender:
        def call(*tensors: Tensor) -> tuple[Tensor, ...]:
            updated: Features = layer(Features(layout, tensors))
            return updated.tensors

        return Contender(layer, features.tensors, torch.compile(call, fullgraph=True) if compiled else call, device)

    def graph(kind: Callable[[Tensor], nn.Module], streams: int) -> Contender:
        x, edge_index, edge_attr = as_graph(features, space)
        degrees = torch.bincount(torch.bincount(edge_index[1], minlength=len(x)))
        layer, edge_index = kind(degrees), edge_index.to(device)
        return Contender(layer, (x[:, : streams * width], edge_attr), lambda x, e: layer(x, edge_index, e), device)

    yield DENSE, lambda: dense(MessagePassing(space, width, tied=True))
    yield UNTIED, lambda: dense(MessagePassing(space, width))
    if compiled:
        yield COMPILED, lambda: dense(MessagePassing(space, width, tied=True), compiled=True)
    yield GRAPH, lambda: graph(lambda _: MonomialConv(width), 3)
    yield PNA, lambda: graph(lambda degrees: PNAWithEdges(width, degrees), 1)


def bench_graphs(
    batches: Sequence[int] = (8, 64, 512),
    width: int = 32,
    repeats: int = 20,
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


def too_large(needed: float, device: str) -> str:
    """Why a step that needs so many bytes had better not run: it would take more than half of what is free."""
    free = _free_bytes(device)
    return f"needs {needed / 2**30:.1f} GiB, {free / 2**30:.1f} GiB are free" if needed > free / 2 else ""


def _free_bytes(device: str) -> float:
    if device.startswith("cuda"):
        return float(torch.cuda.mem_get_info(device)[0])
    try:
        found = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())
    except OSError:  # no Linux: try
        found = None
    return 1024.0 * int(found[1]) if found else math.inf


def floor(space: WeightSpace, batch: int, width: int) -> dict[str, int]:
    """What a layer of that width must do: bytes moved and multiply-adds, forward and in a training step."""
    features = neuron_features(space, 1, width)
    moved = 2 * batch * sum(t.nbytes for t in features.tensors)
    products = batch * sum(t.numel() for t in Products(space, width)(features)) * width
    return {
        "forward_bytes": moved,
        "step_bytes": int(BACKWARD_PASSES * moved),
        "forward_multiply_adds": products,
        "step_multiply_adds": 3 * products,
    }
