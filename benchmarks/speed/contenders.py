"""What message passing is compared in: dense layers, the same on graphs, PNAConv, and what none of them can avoid.

Every contender gets features in its own layout and gives an update of the neurons' and of the edges' features. The
floor below them:

- moving memory: every feature is read and written once forward; backward reads the features and the outputs'
  gradients and writes the inputs' gradients. Copying all features is the first of these, the step 5/2 as much.
- multiply-adds: the bare matrix products of the layer, forward and backward, on the features as they are.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch_geometric.nn import PNAConv

from nfn_monomial import Features, MessagePassing, WeightSpace
from nfn_monomial.adapters.pyg import MonomialConv, to_graph
from nfn_monomial.benchmarks.models.scale_gmn import ScaleGMN
from nfn_monomial.models import MessagePassingNFN
from nfn_monomial.nn.neurons import NeuronLayout, neuron_layout
from nfn_monomial.testing import random_networks

from .harness import Contender, Make

__all__ = [
    "BACKWARD_PASSES",
    "COMPILED",
    "COPY",
    "DENSE",
    "FLOOR",
    "GRAPH",
    "OURS",
    "PNA",
    "PRODUCTS",
    "ROUNDS",
    "SCALE_GMN",
    "UNTIED",
    "PNAWithEdges",
    "Products",
    "as_graph",
    "bare_products",
    "contenders",
    "neuron_features",
    "whole_models",
]

DENSE, UNTIED = "MessagePassing (tied)", "MessagePassing (untied)"
COMPILED = "MessagePassing (tied, torch.compile)"
GRAPH, PNA = "MonomialConv", "PNAConv + edge update"
COPY, PRODUCTS = "copying the features", "bare matrix products"
OURS, SCALE_GMN = "MessagePassingNFN (both ways)", "ScaleGMN (forward only)"
FLOOR = (COPY, PRODUCTS)
AGGREGATORS = ("mean", "min", "max", "std")
SCALERS = ("identity", "amplification", "attenuation")
ROUNDS = 3  # of whole models
BACKWARD_PASSES = 2.5  # memory moved in a step, in units of that moved forward


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
        for edge, e in zip(self.neurons.edges, features.tensors, strict=False):
            target, source = edge.ends
            out += [mix(e) for mix in self.edges]
            out += [mix(x) for mix, x in zip(self.source, streams[source.node], strict=True)]
            out += [mix(x) for mix, x in zip(self.target, streams[target.node], strict=True)]
        for of in streams.values():
            # out, back, first, second, and inv of three times the width
            out += [mix(of[i % 3]) for i, mix in enumerate(self.update)]
        return tuple(out)


def _streams(features: Features, neurons: NeuronLayout, node: str) -> list[Tensor]:
    return list(features.tensors[neurons.fields(node)])


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
    edges = [t.flatten(1, 2) for t in features.tensors[: len(neurons.edges)]]
    return torch.cat(nodes, 1).flatten(0, 1), edge_index, torch.cat(edges, 1).flatten(0, 1)


def contenders(space: WeightSpace, batch: int, width: int, device: str, compiled: bool = False) -> dict[str, Make]:
    """Layers, and under `torch.compile`, too, if ``compiled``."""
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

    tied = {COMPILED: lambda: dense(MessagePassing(space, width, tied=True), compiled=True)} if compiled else {}
    return {
        DENSE: lambda: dense(MessagePassing(space, width, tied=True)),
        UNTIED: lambda: dense(MessagePassing(space, width)),
        **tied,
        GRAPH: lambda: graph(lambda _: MonomialConv(width), 3),
        PNA: lambda: graph(lambda degrees: PNAWithEdges(width, degrees), 1),
    }


def bare_products(space: WeightSpace, batch: int, width: int, device: str) -> Contender:
    """Those of a tied `MessagePassing`."""
    features, products = neuron_features(space, batch, width), Products(space, width)
    return Contender(products, features.tensors, lambda *t: products(Features(features.layout, t)), device)


def whole_models(space: WeightSpace, batch: int, width: int, device: str) -> dict[str, Make]:
    """Models of three rounds on MLPs on which signs or scales act: ours both ways, ScaleGMN forward only, on graphs."""
    networks = random_networks(space, batch, dtype=torch.float32)
    flips = any(node.flips for node in space.nodes.values())
    fixed = sum(node.size or 1 for node in space.nodes.values() if not node.permutes)

    def dense() -> Contender:
        model = MessagePassingNFN(space, width, ROUNDS, width)
        return Contender(model, [*networks.values()], lambda *t: (model(dict(zip(networks, t, strict=True))),), device)

    def graph() -> Contender:
        graphs, model = to_graph(networks, space).to(device), ScaleGMN(width, ROUNDS, fixed, flips)

        def call(x: Tensor, edge_attr: Tensor) -> tuple[Tensor, ...]:
            given = copy.copy(graphs)
            given.x, given.edge_attr = x, edge_attr
            return (model(given),)

        return Contender(model, [graphs.x, graphs.edge_attr], call, device)

    return {OURS: dense, SCALE_GMN: graph}
