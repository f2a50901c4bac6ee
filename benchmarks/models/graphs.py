"""Models that read networks as graphs: the GNN baseline, `MonomialConv`, and hybrids of layers on graphs and weights.

**Data.** `to_graph` makes each network's graph once (`store`); a minibatch is the graphs of its networks, one after
another (`assemble`). Networks of different architectures are padded to equal length in storage only.

**Sizes.** The GNN that the paper measured takes eleven times the hours of Monomial-NFN and seven times its memory. Here
``gnn`` has `WIDTH` features, with which an epoch over 500 networks of the zoo takes seconds on two cores;
``gnn-paper`` has as many as make the paper's 5.5M parameters.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch_geometric.data import Batch
from torch_geometric.nn import PNAConv, global_mean_pool

from nfn_monomial import Canonicalize, EquivariantLinear, Features, InvariantPool, PointwiseActivation, WeightSpace
from nfn_monomial.adapters.pyg import MonomialGNN, ToGraph, common_kernel, from_graph, to_graphs
from nfn_monomial.canonical.balance import balance
from nfn_monomial.models import equivariant_stack
from nfn_monomial.tools.predictors.models import MixedInfo, Model, NetworkGroup, NetworkInfo, logits, register

from .parts import mlp

__all__ = [
    "GNN",
    "GNNHNP",
    "MonomialConvolutions",
    "MonomialToGNN",
    "PNABlock",
    "PNAStack",
    "PNAWithEdges",
    "PaperGNN",
    "assemble",
    "store",
]

# On a GPU torch_geometric names, at every training, a package with which PNAConv's minima and maxima would be faster.
warnings.filterwarnings("ignore", message="The usage of `scatter")

WIDTH = 32  # of the GNN's node and edge features
PAPER_WIDTH = 246  # likewise: 5.5M parameters on the zoo's network
LAYERS = 4  # of message passing, in every model (Kofinas et al. 2024)
CHANNELS = 16  # of the features on weights in hybrids, and of MonomialConv's streams
NARROW = 5  # channels that are pooled after the layer of HNP, as in the other hybrid (paper App. D, ablation)
HEAD_WIDTH = 200  # of the MLPs, as in Monomial-NFN
AGGREGATORS = ("mean", "min", "max", "std")  # Corso et al. 2020
SCALERS = ("identity", "amplification", "attenuation")

Prepared = dict[str, Tensor]


def store(groups: Sequence[NetworkGroup], kernel: Sequence[int], frame: Sequence[WeightSpace] = ()) -> Prepared:
    """Networks as tensors with one row each, ``N`` rows in all, from which `assemble` makes graphs.

    Args:
        groups: pairs (tensors ``(N_i, C, *shape)``, their space).
        kernel: the shape that kernels are padded to, see `to_graph`.
        frame: all spaces with whose graphs these shall be put together: attributes of graphs have the same widths.

    Returns:
        Every attribute of the graphs by its name, padded with zeros after the last node or edge: of nodes
        ``(N, nodes, ...)``, of edges ``(N, edges, ...)``, ``edge_index`` as ``(N, edges, 2)``, counted from the first
        node of the network; of graphs ``(N, ...)``; ``counts (N, 2)``: numbers of nodes and edges. Integers of as few
        bits as they need.
    """
    some = next(iter(groups[0][0].values()))
    zeros = [(_zeros(space, some), space) for space in frame]
    graph = to_graphs([*groups, *zeros], kernel=kernel)
    networks = graph.num_graphs - len(frame)
    nodes = graph.ptr.diff()
    edges = torch.bincount(graph.batch[graph.edge_index[0]], minlength=len(nodes))
    first = graph.ptr[:-1].repeat_interleave(edges)
    stored = {"counts": torch.stack([nodes, edges], 1)[:networks], "kernel": graph.kernel[:networks]}
    for name in graph.keys():  # noqa: SIM118  # it is no dict
        if name in ("batch", "ptr", "kernel"):
            continue
        value = graph[name]
        if name == "edge_index":
            value = value.T - first[:, None]
        elif name.endswith("_index"):
            value = value - graph.ptr[graph.batch]
        parts = value.split((edges if name.startswith("edge") else nodes).tolist())
        padded = pad_sequence(list(parts[:networks]), batch_first=True)
        if not padded.is_floating_point() and padded.dtype != torch.bool and padded.numel():
            largest = int(padded.abs().max())
            sizes = (torch.int8, torch.int16, torch.int32, torch.int64)
            padded = padded.to(next(t for t in sizes if largest <= torch.iinfo(t).max))
        stored[name] = padded
    return stored


def _zeros(space: WeightSpace, like: Tensor) -> dict[str, Tensor]:
    return {name: like.new_zeros(1, like.shape[1], *shape) for name, shape in space.shapes().items()}


def assemble(stored: Prepared) -> Batch:
    """Rows of `store`, any of them in any order -> the ``Batch`` that `to_graphs` makes of these networks."""
    nodes, edges = stored["counts"].unbind(1)
    ptr = torch.cat([nodes.new_zeros(1), nodes.cumsum(0)])
    graph = torch.arange(len(nodes), device=nodes.device).repeat_interleave(nodes)
    values = {"kernel": stored["kernel"]}
    for name, value in stored.items():
        if name not in ("kernel", "counts"):
            counts = edges if name.startswith("edge") else nodes
            rows = value[torch.arange(value.shape[1], device=value.device) < counts[:, None]]  # without the padding
            values[name] = rows if rows.is_floating_point() or rows.dtype == torch.bool else rows.long()
        if name == "edge_index":
            values[name] = values[name].T + ptr[:-1].repeat_interleave(edges)
        elif name.endswith("_index"):
            values[name] = values[name] + ptr[graph]
    batch = Batch(**values)
    batch.batch, batch.ptr = graph, ptr
    return batch


class PNAWithEdges(nn.Module):
    """PNAConv as Kofinas et al. 2024 use it, and an update of the edges: an MLP of ``[x_target, x_source, edge]``."""

    def __init__(self, width: int, degrees: Tensor) -> None:
        super().__init__()
        self.conv = PNAConv(width, width, list(AGGREGATORS), list(SCALERS), degrees, edge_dim=width)
        self.edges = nn.Sequential(nn.Linear(3 * width, width), nn.ReLU(), nn.Linear(width, width))

    def update(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        """Applies the edges' MLP to the nodes ``(N, width)`` and the edges ``(E, width)``."""
        source, target = edge_index
        edges: Tensor = self.edges(torch.cat([x[target], x[source], edge_attr], -1))
        return edges

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> tuple[Tensor, Tensor]:
        return self.conv(x, edge_index, edge_attr), self.update(x, edge_index, edge_attr)


class PNABlock(PNAWithEdges):
    """The same, normalised and residual; the edges see the nodes as they are afterwards."""

    def __init__(self, width: int, degrees: Tensor) -> None:
        super().__init__(width, degrees)
        self.node_norm, self.edge_norm = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> tuple[Tensor, Tensor]:
        x = x + self.node_norm(self.conv(x, edge_index, edge_attr)).relu()
        return x, edge_attr + self.edge_norm(self.update(x, edge_index, edge_attr)).relu()


class PNAStack(nn.Module):
    """The GNN of Kofinas et al. 2024 on graphs of networks: embeddings, then `PNABlock`s.

    Every input, every output and every other FIXED neuron has an embedding of its own, hidden ones share one for each
    layer and one for each symmetry, by which the activation is known.

    Args:
        networks: the architectures, whose degrees PNA's scalers are normalised by.
        channels: of the graphs' ``x``.
        entries: width of their ``edge_attr``.
        width: of the features of nodes and edges.
    """

    def __init__(self, networks: NetworkInfo | MixedInfo, channels: int, entries: int, width: int = WIDTH) -> None:
        super().__init__()
        outline = _outline(networks)
        self.inputs, self.outputs = (nn.Embedding(_most(outline, end), width) for end in _ends(outline))
        self.hidden = nn.Embedding(int(outline.layer.max()) + 1, width)
        self.symmetry = nn.Embedding(8, width)  # a Symmetry's value has three bits
        self.node, self.edge = nn.Linear(channels, width), nn.Linear(entries, width)
        degrees = torch.bincount(torch.bincount(outline.edge_index[1], minlength=outline.num_nodes))
        self.blocks = nn.ModuleList(PNABlock(width, degrees) for _ in range(LAYERS))

    def forward(self, graph: Batch) -> tuple[Tensor, Tensor]:
        """A batch -> features of nodes ``(nodes, width)`` and of edges ``(edges, width)``."""
        first, last = _ends(graph)
        between = self.hidden(graph.layer) + self.symmetry(graph.symmetry)
        ends = self.inputs(graph.neuron.where(first, 0)).where(first[:, None], between)
        ends = self.outputs(graph.neuron.where(last, 0)).where(last[:, None], ends)
        x, edge_attr = self.node(graph.x) + ends, self.edge(graph.edge_attr)
        for block in self.blocks:
            x, edge_attr = block(x, graph.edge_index, edge_attr)
        return x, edge_attr


def _outline(networks: NetworkInfo | MixedInfo) -> Batch:
    """A graph of each architecture, whose parameters are zeros."""
    return to_graphs([(_zeros(info.space, torch.zeros(1, 1)), info.space) for info in networks.architectures])


def _ends(graph: Batch) -> tuple[Tensor, Tensor]:
    """Returns masks of nodes with fixed places apart from outputs, such as inputs and positions, and of outputs."""
    fixed = graph.symmetry == 0
    last = fixed & (graph.layer == graph.depth)
    return fixed & ~last, last


def _most(graph: Batch, of: Tensor) -> int:
    """The largest number of such nodes in a node set; 1 if there are none."""
    return int(graph.neuron.where(of, 0).max()) + 1


class _GraphModel(Model):
    """Prepared by `store`; a subclass assembles the graphs of a minibatch."""

    def __init__(self, networks: NetworkInfo | MixedInfo) -> None:
        super().__init__()
        spaces = [info.space for info in networks.architectures]
        self.space = spaces[0]
        self.frame = spaces if len(spaces) > 1 else []
        self.kernel = common_kernel(*spaces)
        self.entries = math.prod(self.kernel)

    def prepare(self, tensors: Mapping[str, Tensor]) -> Prepared:
        return self.prepare_groups([(tensors, self.space)])

    def prepare_groups(self, groups: Sequence[NetworkGroup]) -> Prepared:
        return store(groups, self.kernel, self.frame)


@register("gnn")
class GNN(_GraphModel):
    """Kofinas et al. 2024, the paper's baseline, narrower (it has 5.5M parameters there): PNA with edge updates; the
    mean over all nodes and over outputs.
    """

    label, invariant_under = "GNN", "permutations"
    mixed = True

    def __init__(
        self,
        networks: NetworkInfo | MixedInfo,
        out_features: int = 1,
        *,
        features: int = WIDTH,
        head_dropout: float = 0.0,
    ) -> None:
        super().__init__(networks)
        self.body = PNAStack(networks, 1, self.entries, features)
        self.head = mlp(2 * features, HEAD_WIDTH, out_features, head_dropout)

    def forward(self, batch: Prepared) -> Tensor:
        graph = assemble(batch)
        return logits(self.head(_pool(self.body(graph)[0], graph)))


@register("gnn-paper")
class PaperGNN(GNN):
    """`GNN` at the paper's size; it is run only if it is named, since its steps take many times as long."""

    label, task = "GNN (5.5M)", "ablation"

    def __init__(
        self, networks: NetworkInfo | MixedInfo, out_features: int = 1, *, features: int = PAPER_WIDTH
    ) -> None:
        super().__init__(networks, out_features, features=features)


def _pool(x: Tensor, graph: Batch) -> Tensor:
    """Means over all nodes of a network and over its outputs."""
    last = graph.layer == graph.depth
    return torch.cat([global_mean_pool(x, graph.batch), global_mean_pool(x[last], graph.batch[last])], -1)


@register("gnn-hnp")
class GNNHNP(_GraphModel):
    """Features of the GNN's edges and nodes back on weights and biases, a layer of HNP on them, average, MLP."""

    label, invariant_under = "GNN-HNP", "permutations"

    def __init__(self, networks: NetworkInfo, out_features: int = 1) -> None:
        super().__init__(networks)
        plain = self.plain = self.space.uncharged()
        self.body = PNAStack(networks, 1, self.entries)
        self.node, self.edge = nn.Linear(WIDTH, CHANNELS), nn.Linear(WIDTH, CHANNELS * self.entries)
        self.hnp = nn.Sequential(
            PointwiseActivation(plain, "relu"),
            EquivariantLinear(plain, CHANNELS, NARROW),
            PointwiseActivation(plain, "relu"),
        )
        self.pool = InvariantPool(plain, NARROW)
        self.head = mlp(self.pool.out_features, HEAD_WIDTH, out_features)

    def forward(self, batch: Prepared) -> Tensor:
        graph = assemble(batch)
        x, edge_attr = self.body(graph)
        graph.x, graph.edge_attr = self.node(x), self.edge(edge_attr)
        features = self.plain.pack(from_graph(graph, self.space), check_finite=False)
        return logits(self.head(self.pool(self.hnp(features))))


@register("monomial-gnn")
class MonomialToGNN(Model):
    """Two layers of Monomial-NFN, canonicalised, as a graph: the GNN sees nothing that scales or flips."""

    label, invariant_under = "Monomial-GNN", "group"

    def __init__(self, networks: NetworkInfo, out_features: int = 1) -> None:
        super().__init__()
        self.space = networks.space
        self.front = equivariant_stack(self.space, [1, CHANNELS, CHANNELS])
        self.front.append(PointwiseActivation(self.space, "auto"))
        self.front.append(Canonicalize(self.space, CHANNELS))
        self.to_graph = ToGraph(self.space.uncharged())
        entries = math.prod(self.to_graph.kernel)
        self.body = PNAStack(networks, CHANNELS, CHANNELS * entries)
        self.head = mlp(2 * WIDTH, HEAD_WIDTH, out_features)

    def prepare(self, tensors: Mapping[str, Tensor]) -> Features:
        return self.space.pack(tensors)

    def forward(self, batch: Features) -> Tensor:
        graph = self.to_graph(self.front(batch))
        return logits(self.head(_pool(self.body(graph)[0], graph)))


@register("monomial-conv")
class MonomialConvolutions(_GraphModel):
    """`MonomialGNN`: four rounds of `MonomialConv` on networks whose scales are balanced, so that sizes count."""

    label, invariant_under = "MonomialConv", "group"
    mixed = True

    def __init__(self, networks: NetworkInfo | MixedInfo, out_features: int = 1) -> None:
        super().__init__(networks)
        outline = _outline(networks)
        inputs, outputs = (_most(outline, end) for end in _ends(outline))
        apart = int(_ends(outline)[1].sum()) == outputs * outline.num_graphs
        streams = outline.get("stream_symmetry")  # of each pair, where not all networks are chains of layers
        self.net = MonomialGNN(
            CHANNELS, LAYERS, kernel=self.kernel, inputs=inputs, outputs=outputs, hidden=HEAD_WIDTH,
            out_features=out_features, readout="apart" if apart else "mean",
            pairs=None if streams is None else streams.shape[1],
        )  # fmt: skip

    def prepare_groups(self, groups: Sequence[NetworkGroup]) -> Prepared:
        balanced = [(balance(tensors, space, signs=False)[0], space.restricted("sign")) for tensors, space in groups]
        return super().prepare_groups(balanced)

    def forward(self, batch: Prepared) -> Tensor:
        out: Any = self.net(assemble(batch))
        return logits(out)
