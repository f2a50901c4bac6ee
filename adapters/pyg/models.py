"""From networks' graphs to invariants and back: an embedding, blocks, readouts, and a whole model for mixed batches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from nfn_monomial.checks import FLOATING, Count, Size, checked
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.nn.edges import scaled
from nfn_monomial.nn.sizes import log_sums, moments, over_size, square_sums

from .checks import check_attributes, check_values, graph_ids, looks_at_values, require_tensor
from .conv import Composite, MonomialConv, MonomialGate, MonomialNorm, layer_groups
from .factors import SCALES


class MonomialEmbedding(Composite):
    """A graph's biases and kernels -> streams ``x (N, 3 C)`` and ``edge_attr (E, C)``, equivariantly.

    Biases enter ``out`` linearly, kernels the edges. FIXED neurons have learned embeddings by their number, one table
    for those of the last node set and one for all others. ``inv`` starts with the place of the neuron's layer in its
    network, and with the logarithms of the norms of its incoming and outgoing weights and of its bias, where no scale
    acts on them (as in balanced networks).

    Args:
        channels: ``C``.
        kernel: shape of the graphs' kernels, as given to `to_graph`.
        inputs: largest number of FIXED neurons in a node set, as of inputs, but the last one.
        outputs: largest number of output neurons.
        in_channels: channels of the graphs.
        pairs: see `MonomialConv`.
    """

    @checked
    def __init__(
        self,
        channels: Count,
        kernel: Sequence[Size],
        inputs: Count,
        outputs: Count,
        *,
        in_channels: Count = 1,
        pairs: Count | None = None,
    ) -> None:
        super().__init__()
        self.channels, self.in_channels, self.entries = channels, in_channels, math.prod(kernel)
        self.bias = nn.Linear(in_channels, channels, bias=False)
        self.kernel = nn.Linear(in_channels * self.entries, channels, bias=False)
        self.streams = 3 if pairs is None else 2 * pairs + 1
        self.inputs, self.outputs = (nn.Embedding(n, self.streams * channels) for n in (inputs, outputs))
        self.place = nn.Linear(6, channels)

    def forward(self, graph: Any) -> tuple[Tensor, Tensor]:
        """A graph with the attributes of `to_graph` -> ``x``, ``edge_attr``.

        Raises:
            ValueError: see `check_graph`; or if widths or numbers of inputs and outputs are not those it was built for.
        """
        check_attributes(graph, "MonomialEmbedding")
        looks = looks_at_values(graph.edge_index)
        if looks:
            check_values(graph, "MonomialEmbedding")
        if graph.x.shape[1] != self.in_channels or graph.edge_attr.shape[1] != self.in_channels * self.entries:
            raise InvalidValueError(
                f"MonomialEmbedding: x has width {graph.x.shape[1]} and edge_attr {graph.edge_attr.shape[1]}; "
                f"{self.in_channels} and {self.in_channels} x {self.entries} kernel entries are expected. Was "
                "to_graph given another kernel=?"
            )
        fixed = graph.symmetry == 0
        last = fixed & (graph.layer == graph.depth) & (graph.depth > 0)
        first = fixed & ~last
        # No group acts on FIXED neurons, so all of their streams may start as anything.
        x = graph.x.new_zeros(1)
        for name, at, table in (("inputs", first, self.inputs), ("outputs", last, self.outputs)):
            number = graph.neuron.masked_fill(~at, 0)
            if looks and (count := int(number.max()) + 1) > table.num_embeddings:
                raise InvalidValueError(
                    f"MonomialEmbedding: a network has {count} {name}; built for {table.num_embeddings}"
                )
            x = x + torch.where(at[:, None], table(number), 0.0)
        out, *others, inv = x.chunk(self.streams, -1)
        x = torch.cat([out + self.bias(graph.x), *others, inv + self.place(self._places(graph))], -1)
        return x, self.kernel(graph.edge_attr)

    def _places(self, graph: Any) -> Tensor:
        """Per node: its layer by depth, from the start and the end, and three log norms: invariants ``(N, 6)``."""
        source, target = graph.edge_index
        scales, nodes = graph.symmetry & SCALES > 0, torch.arange(len(graph.x), device=source.device)
        of_edges = square_sums(graph.edge_attr, -1).masked_fill(scales[source] | scales[target], 0)
        of_nodes = square_sums(graph.x, -1).masked_fill(scales, 0)
        squares, at = torch.cat([of_edges, of_edges, of_nodes]), torch.cat([3 * target, 3 * source + 1, 3 * nodes + 2])
        norms = log_sums(squares, at, 3 * len(nodes)).view(-1, 3).to(graph.x)
        layer, depth = graph.layer.to(graph.x), graph.depth.to(graph.x)
        places = [layer / depth.clamp(min=1), 1 / (1 + layer), 1 / (1 + depth - layer)]
        return torch.cat([torch.stack(places, -1), norms], -1)

    def extra_repr(self) -> str:
        return f"{self.channels}, in_channels={self.in_channels}, entries={self.entries}"


class MonomialBlock(Composite):
    """`MonomialNorm`, `MonomialConv`, `MonomialGate` and residual connections: the core's `MessageBlock` on graphs.

    Args:
        channels: of every stream and of the edges.
        pairs: see `MonomialConv`.
        last: whether only invariants of nodes are read after the block: edges then stay as they are.
    """

    @checked
    def __init__(self, channels: Count, pairs: Count | None = None, *, last: bool = False) -> None:
        super().__init__()
        self.last = last
        self.norm = MonomialNorm(channels, pairs)
        self.conv = MonomialConv(channels, pairs, last=last)
        self.gate = MonomialGate(channels, pairs, last=last)

    def forward(
        self,
        x: Tensor,
        edge_index: Tensor,
        edge_attr: Tensor,
        symmetry: Tensor,
        group: Tensor,
        edge_streams: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """``x (N, 3 C)`` and ``edge_attr (E, C)`` -> the same; for all else see `MonomialNorm`."""
        y, e = self.norm(x, edge_index, edge_attr, symmetry, group, edge_streams)
        dy, de = self.conv(y, edge_index, e, edge_streams)
        return x + self.gate(y + dy, symmetry), edge_attr if self.last else edge_attr + e + de


class MonomialPool(nn.Module):
    """Streams of nodes -> one invariant vector a network.

    Mean and standard deviation of ``inv`` over all hidden neurons, and its mean over inputs and over outputs; or with
    ``outputs=n`` the outputs one by one, for networks that all have ``n``.

    Args:
        channels: of every stream.
        outputs: number of output neurons, where they are to be kept apart.

    Attributes:
        out_features: length of the vector.
    """

    @checked
    def __init__(self, channels: Count, outputs: Count | None = None) -> None:
        super().__init__()
        self.channels, self.outputs = channels, outputs
        self.out_features = channels * (3 + (outputs or 1))

    @checked
    def forward(self, x: Tensor, graph: Any) -> Tensor:
        """``x (N, 3 C)`` (``inv`` last), and the graph or batch that it belongs to -> ``(B, out_features)``."""
        check_attributes(graph, "MonomialPool")
        if x.ndim != 2 or x.shape[1] < self.channels:
            raise InvalidValueError(
                f"MonomialPool: x has shape {tuple(x.shape)}; (N, {self.channels} or more) is expected"
            )
        require_tensor(x, "x", (len(graph.x), "C"), FLOATING, "MonomialPool")
        inv = x[:, -self.channels :]
        ids, count = graph_ids(graph)
        inputs, outputs = graph.layer == 0, graph.layer == graph.depth

        def moments_of(nodes: Tensor) -> list[Tensor]:
            # The others go to one more graph, which is dropped.
            group = torch.where(nodes, ids, count)
            counts = ids.new_zeros(count + 1).index_add(0, group, torch.ones_like(group))
            shares = counts.clamp(min=1).double().reciprocal().unsqueeze(1)
            return [x[:count] for x in moments(inv, group, shares)]

        parts = [*moments_of(~(inputs | outputs)), moments_of(inputs)[0]]
        if self.outputs is None:
            parts.append(moments_of(outputs)[0])
        else:
            counts = ids.new_zeros(count).index_add(0, ids, outputs.to(ids))
            if looks_at_values(graph.edge_index) and not bool((counts == self.outputs).all()):
                raise InvalidValueError(
                    f"MonomialPool(outputs={self.outputs}): networks of {sorted(set(counts.tolist()))} outputs; use "
                    "outputs=None for networks of different numbers"
                )
            order = graph.neuron.argsort()
            order = order[torch.where(outputs, ids, count)[order].argsort(stable=True)]
            parts.append(inv[order[: count * self.outputs]].view(count, -1))
        return torch.cat(parts, -1)

    def extra_repr(self) -> str:
        return f"{self.channels}, outputs={self.outputs}, out_features={self.out_features}"


class MonomialGNN(Composite):
    """An invariant network on graphs: embedding, blocks, pool, MLP; for batches of any architectures and activations.

    Every network's own symmetries are respected. Give it graphs of networks whose scales are balanced (`balance` with
    ``signs=False``, and graphs of ``space.restricted("sign")``) if sizes of weights are to count; scaled neurons are
    known only up to scale.

    Args:
        channels: of every stream and of the edges.
        layers: number of blocks.
        kernel: shape of the graphs' kernels, as given to `to_graph`.
        inputs: largest number of input neurons.
        outputs: largest number of output neurons.
        hidden: width of the MLP's two hidden layers.
        out_features: outputs of the MLP.
        in_channels: channels of the graphs.
        pairs: of graphs of any network, `MonomialConv`'s: ``graph.stream_symmetry.shape[1]``.
        readout: ``"apart"`` keeps the outputs apart, in networks that all have ``outputs``; ``"mean"`` averages them.
    """

    @checked
    def __init__(
        self,
        channels: Count = 16,
        layers: Count = 4,
        *,
        kernel: Sequence[Size],
        inputs: Count,
        outputs: Count,
        hidden: Count = 128,
        out_features: Count = 1,
        in_channels: Count = 1,
        pairs: Count | None = None,
        readout: Literal["apart", "mean"] = "mean",
    ) -> None:
        super().__init__()
        self.embed = MonomialEmbedding(channels, kernel, inputs, outputs, in_channels=in_channels, pairs=pairs)
        self.blocks = nn.ModuleList(MonomialBlock(channels, pairs, last=i == layers - 1) for i in range(layers))
        self.pool = MonomialPool(channels, outputs if readout == "apart" else None)
        self.head = nn.Sequential(
            nn.Linear(self.pool.out_features, hidden), nn.SiLU(),
            nn.Linear(hidden, hidden), nn.SiLU(),
            nn.Linear(hidden, out_features),
        )  # fmt: skip

    def forward(self, graph: Any) -> Tensor:
        """A graph or batch with the attributes of `to_graph` -> ``(B, out_features)``."""
        x, edge_attr = self.embed(graph)
        group, streams = layer_groups(graph), getattr(graph, "edge_streams", None)
        symmetry = graph.symmetry if streams is None else graph.stream_symmetry
        for block in self.blocks:
            x, edge_attr = block(x, graph.edge_index, edge_attr, symmetry, group, streams)
        inv = x[:, -self.pool.channels :]
        by = over_size(inv, (-1,), inv.new_full((), self.pool.channels**0.5, dtype=torch.float64))
        out_features: Tensor = self.head(self.pool(scaled(inv, by), graph))
        return out_features
