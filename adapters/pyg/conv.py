"""Message passing on networks' graphs that respects every network's own group: `MonomialConv`, norms and gates.

The core's `MessagePassing`, `GatedActivation` and `EquivariantNorm` with parameters tied over layers, on graphs:
networks of different architectures and activations in one batch. Node features ``x (N, 3 C)`` are three streams side
by side, of charge +1, -1 and 0 (see `nfn_monomial.nn.neurons`); edge features ``edge_attr (E, C)`` have charge +1 at
the target and -1 at the source. Graphs of networks that are no chains have as many pairs of streams as charges occur.
Layers take and give tensors, as those of ``torch_geometric`` do, and fit into its ``Sequential``.
`MonomialCanonicalize` ends the charges: after it any layer, PNAConv, GATv2Conv or GPSConv, keeps the symmetries.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import MessagePassing
from torch_geometric.utils import scatter

from nfn_monomial import Symmetry
from nfn_monomial.checks import FLOATING, WHOLE, Count, checked, same_numbers, shown
from nfn_monomial.errors import InvalidTypeError, InvalidValueError
from nfn_monomial.nn.canonicalize import degree_zero
from nfn_monomial.nn.edges import scaled, watched
from nfn_monomial.nn.incidence import Adder, Places, zeros_to_add_to
from nfn_monomial.nn.neurons import CHAIN, StreamPlan
from nfn_monomial.nn.neurons.mixes import EdgeMessages, NeuronGate, NeuronUpdate
from nfn_monomial.nn.norm import by_size, by_size_of, frame
from nfn_monomial.space.packing import wide

from .checks import require_tensor
from .factors import FLIPS, SCALES


class Pairs:
    """The methods of `Grid` for edges ``(E, C)`` between any neurons ``(N, C)``.

    Args:
        at: for each end, which row of features is at that end of each edge ``(E,)``.
    """

    def __init__(self, at: tuple[Tensor, ...]) -> None:
        self._at = at

    def plan(self, edges: Tensor, size: int) -> int:
        """The number of edges in a block of about ``size`` numbers."""
        return max(1, size // edges.shape[1])

    def parts(self, x: Tensor, plan: int) -> Iterable[Tensor]:
        """For each block the features of its edges, or those that all edges share."""
        blocks = len(torch.split(self._at[0], plan))
        return torch.split(x, plan) if len(x) == len(self._at[0]) else [x] * blocks

    def take(self, neurons: Tensor, end: int) -> Tensor:
        """For each edge the features of the neuron at an end."""
        return neurons.index_select(0, self._at[end])

    def taken(self, neurons: Tensor, end: int, plan: int) -> Iterable[Tensor]:
        """The same for each block."""
        return (neurons.index_select(0, at) for at in torch.split(self._at[end], plan))

    def sum(self, values: Tensor, end: int, like: Tensor) -> Tensor:
        """Sums over the edges of each neuron at an end, whose features are ``like`` others."""
        total = zeros_to_add_to(like.to(values.dtype))
        return total.index_add(0, self._at[end], values.to(total.dtype)).to(values.dtype)

    def adders(self, total: Tensor, end: int, plan: int) -> Iterable[Adder]:
        """For each block an adder to the totals of all neurons at an end."""
        return [partial(_add_rows, total, at) for at in torch.split(self._at[end], plan)]


def _add_rows(total: Tensor, at: Tensor, values: Tensor) -> None:
    total.index_add_(0, at, values.to(total.dtype))


class MonomialConv(MessagePassing):  # type: ignore[misc]  # torch_geometric is not typed
    """One round of messages, forwards and backwards, and the edges' own update: the core's `MessagePassing` on graphs.

    `EdgeMessages` defines the messages and `NeuronUpdate` the use of their sums; all edges share the one, all nodes the
    other. On graphs of one chain of layers it computes the same as ``MessagePassing(space, channels, tied=True)``, with
    the same parameters. The output is an update: add it for a residual connection.

    Any edges will do, in any order. On a CPU no message is kept: they are computed in blocks of edges. So ``propagate``
    is never called: its hooks, and explainers that mask messages, see none. Gradients by ``edge_attr`` show the
    importance of edges.

    Shapes: ``x (N, (2 K + 1) C)``, ``edge_index (2, E)``, ``edge_attr (E, C)`` -> tensors like ``x`` and ``edge_attr``.

    Args:
        channels: ``C``.
        pairs: ``K``, how many pairs of streams nodes have; more than one are those of graphs of any network, whose
            edges say which they meet: ``edge_streams``.

    >>> from torch_geometric.nn import Sequential
    >>> conv = MonomialConv(8)
    >>> conv
    MonomialConv(8)
    >>> layer = "x, edge_index, edge_attr -> x, edge_attr"
    >>> net = Sequential("x, edge_index, edge_attr", [(conv, layer), (MonomialConv(8), layer)])
    """

    @checked
    def __init__(self, channels: Count, pairs: Count | None = None) -> None:
        super().__init__(aggr=None, node_dim=0)
        self.channels, self.pairs = channels, pairs
        charges = ((q,) for i in range(1, (pairs or 0) + 1) for q in (i, -i))
        self.edges = EdgeMessages(channels)
        self.nodes = NeuronUpdate(channels, CHAIN if pairs is None else StreamPlan((*charges, (0,)), reached=True))

    def reset_parameters(self) -> None:
        """Draw all parameters anew."""
        super().reset_parameters()
        for module in self.modules():
            if isinstance(module, nn.Linear):
                module.reset_parameters()

    @checked
    def forward(
        self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, edge_streams: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Updates of ``x`` and ``edge_attr``.

        Args:
            x: the streams of nodes, charged ones in pairs of opposite charges, ``inv`` last.
            edge_index: as in the graph.
            edge_attr: of edges.
            edge_streams: ``(E, 2)``, the stream that transforms as an edge does at its target and at its source, as in
                graphs of any network; without it +1 and -1.
        """
        streams = _streams(
            "MonomialConv", x, self.channels, self.pairs, next(self.parameters(), None),
            edge_index=edge_index, edge_attr=edge_attr, edge_streams=edge_streams,
        )  # fmt: skip
        count, at = len(streams), (edge_index[1], edge_index[0])
        if edge_attr.device.type == "cpu" and not watched(edge_attr):
            _require_ends(edge_index, len(x))
        inv = Pairs(at)
        if edge_streams is None:
            places = Places(inv, inv, inv)
            ends = [(streams[1], streams[0], streams[-1]), (streams[0], streams[1], streams[-1])]
        else:
            # Every stream of a neuron has a place of its own, those of a neuron side by side.
            opposite = torch.where(edge_streams == count - 1, edge_streams, edge_streams ^ 1)
            against, along = (
                Pairs(tuple(end * count + q for end, q in zip(at, of.unbind(1), strict=True)))
                for of in (opposite, edge_streams)
            )
            places = Places(against, along, inv)
            every = x.reshape(len(x) * count, -1)
            ends = [(every, every, streams[-1])] * 2
        (sums, hidden), edges = self.edges(places, edge_attr, ends)
        if edge_streams is not None:
            sums = torch.add(*sums).view(len(x), count, -1).unbind(1)
        ones = edge_index.new_ones(edge_index.shape[1])
        degrees = [edge_index.new_zeros(len(x)).index_add(0, end, ones).clamp(min=1)[:, None].to(x) for end in at]
        means = [z / degree for z, degree in zip(hidden, degrees, strict=True)]
        return torch.cat(self.nodes(streams, sums, *means), -1), edges

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.channels}{'' if self.pairs is None else f', pairs={self.pairs}'})"


class _StreamLayer(nn.Module):
    """A layer on streams of so many channels, of so many pairs, see `MonomialConv`."""

    @checked
    def __init__(self, channels: Count, pairs: Count | None = None) -> None:
        super().__init__()
        self.channels, self.pairs = channels, pairs

    def extra_repr(self) -> str:
        return str(self.channels)


class MonomialGate(_StreamLayer):
    """Streams times functions of invariants: the core's `GatedActivation`, every node under its own symmetry.

    Args:
        channels: of every stream.
        pairs: see `MonomialConv`.
    """

    def __init__(self, channels: Count, pairs: Count | None = None) -> None:
        super().__init__(channels, pairs)
        self.gate = NeuronGate(channels, 2 * (pairs or 1) + 1)

    @checked
    def forward(self, x: Tensor, symmetry: Tensor) -> Tensor:
        """``x (N, (2 K + 1) C)`` -> the same; ``symmetry``: ``(N,)`` as in `to_graph`, or ``(N, K)``, of each pair."""
        like = next(self.parameters(), None)  # replicas have none
        streams = _streams("MonomialGate", x, self.channels, self.pairs, like, symmetry=symmetry)
        return torch.cat(self.gate(streams, _neutral(streams[:-1], symmetry)), -1)


class MonomialNorm(_StreamLayer):
    """Every stream of every layer of every network, and the edges into it, at size 1: `EquivariantNorm` on graphs.

    Args:
        channels: of every stream and of the edges.
        pairs: see `MonomialConv`.
    """

    def __init__(self, channels: Count, pairs: Count | None = None) -> None:
        super().__init__(channels, pairs)
        self.edge_gain = nn.Parameter(torch.ones(channels))
        self.gain = nn.Parameter(torch.ones(2 * (pairs or 1) + 1, channels))

    @checked
    def forward(
        self,
        x: Tensor,
        edge_index: Tensor,
        edge_attr: Tensor,
        symmetry: Tensor,
        group: Tensor,
        edge_streams: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """``x`` and ``edge_attr`` normalised; ``group (N,)`` numbers the layers of all networks: `layer_groups`.

        For ``symmetry`` see `MonomialGate`, for ``edge_streams`` `MonomialConv`.
        """
        *charged, inv = _streams(
            "MonomialNorm", x, self.channels, self.pairs, self.gain, edge_index=edge_index, edge_attr=edge_attr,
            edge_streams=edge_streams, symmetry=symmetry, group=group,
        )  # fmt: skip
        # Reciprocals of the streams' frames.
        frames = [
            torch.where(felt & SCALES > 0, frame(charged[i ^ 1], t), 1.0)
            for i, (t, felt) in enumerate(zip(charged, _felt_by(charged, symmetry), strict=True))
        ]
        source, target = edge_index
        count = len(x)
        members = group.new_zeros(count).index_add(0, group, torch.ones_like(group)).clamp(min=1)[:, None]

        def by_group(x: Tensor, measured: Tensor, groups: Tensor) -> Tensor:
            def largest(sizes: Tensor) -> Tensor:
                return torch.as_tensor(scatter(sizes.abs().amax(-1, keepdim=True), groups, 0, count, "max"))[groups]

            def mean_square(x: Tensor) -> Tensor:
                total = scatter(x.square().mean(-1, keepdim=True), groups, 0, count, "sum")
                return torch.as_tensor(total / members)[groups]

            return scaled(x, by_size_of(measured, largest, mean_square))

        if edge_streams is None:
            by = frames[0][target] * frames[1][source]
        else:
            table = torch.cat([*frames, torch.ones_like(inv[:, :1])], -1)
            by = (table[target, edge_streams[:, 0]] * table[source, edge_streams[:, 1]])[:, None]
        edges = by_group(edge_attr, wide(edge_attr) * by, group[target]) * self.edge_gain
        normed = [by_group(t, wide(t) * f, group) for t, f in zip(charged, frames, strict=True)]
        normed.append(scaled(inv, by_size(wide(inv))))
        return torch.cat([t * gain for t, gain in zip(normed, self.gain, strict=True)], -1), edges


class MonomialCanonicalize(nn.Module):
    """Kill the charges of node features: after it scales and signs act no more, and any graph layer may follow.

    Where scales act, the vector of a neuron's stream is divided by its norm; where signs flip, entries become absolute
    values; ``inv`` and FIXED nodes stay as they are.
    """

    @checked
    def forward(self, x: Tensor, symmetry: Tensor) -> Tensor:
        """``x (N, (2 K + 1) C)`` -> invariants of that shape; for ``symmetry`` see `MonomialGate`."""
        pairs = 1 if symmetry.ndim < 2 else symmetry.shape[1]
        channels = max(1, x.shape[-1] // (2 * pairs + 1)) if x.ndim else 1
        streams = _streams("MonomialCanonicalize", x, channels, pairs, symmetry=symmetry)
        return torch.cat([*_neutral(streams[:-1], symmetry), streams[-1]], -1)


def layer_groups(graph: Any) -> Tensor:
    """A number ``(N,)`` for every node: that of its layer among the layers of all networks of a batch, from 0 on."""
    if not isinstance(getattr(graph, "layer", None), Tensor):
        raise InvalidTypeError(f"layer_groups: a graph made by to_graph is expected, found {shown(graph)}")
    ids = torch.zeros_like(graph.layer) if getattr(graph, "batch", None) is None else graph.batch
    order = graph.layer.argsort(stable=True)
    order = order[ids[order].argsort(stable=True)]
    begins = (graph.layer[order].diff() != 0) | (ids[order].diff() != 0)
    return torch.zeros_like(order).index_copy(0, order[1:], begins.cumsum(0))


def _require_ends(edge_index: Tensor, nodes: int) -> None:
    if bool((wrong := (edge_index < 0) | (edge_index >= nodes)).any()):
        edge = int(wrong.any(0).nonzero()[0])
        source, target = edge_index[:, edge].tolist()
        raise InvalidValueError(
            f"edge {edge} of edge_index leads from node {source} to node {target}, and x has {nodes} nodes: was it "
            "made for another graph?"
        )


def _streams(
    where: str,
    x: Tensor,
    channels: int,
    pairs: int | None,
    like: Tensor | None = None,
    **others: Tensor | None,
) -> tuple[Tensor, ...]:
    """The streams side by side in ``x``; raise unless they are as many, and the others are of its nodes and edges."""
    if others.get("edge_streams") is not None and pairs is None:
        raise InvalidValueError(f"{where}: graphs with edge_streams need pairs=graph.stream_symmetry.shape[1]")
    count = 2 * (pairs or 1) + 1
    if x.ndim != 2 or x.shape[1] != count * channels:
        raise InvalidValueError(
            f"{where}: x has shape {tuple(x.shape)}; (N, {count * channels}) is expected: "
            f"{'three' if count == 3 else count} streams of {channels} channels, as MonomialEmbedding makes them"
        )
    require_tensor(x, "x", ("N", "C"), FLOATING, where)
    if like is not None:
        same_numbers(x, like, where)
    edges, symmetry = others.get("edge_attr"), others.get("symmetry")
    number = "E" if edges is None or not edges.ndim else len(edges)
    shapes: dict[str, tuple[int | str, ...]] = {
        "edge_attr": ("E", channels),
        "edge_index": (2, number),
        "edge_streams": (number, 2),
        "group": (len(x),),
        "symmetry": (len(x),) if symmetry is None or symmetry.ndim < 2 else (len(x), pairs or 1),
    }
    for name, value in others.items():
        if value is not None:
            require_tensor(value, name, shapes[name], FLOATING if name == "edge_attr" else WHOLE, where)
    return x.chunk(count, -1)


def _felt_by(charged: Sequence[Tensor], symmetry: Tensor) -> list[Tensor]:
    """The symmetry that acts on each charged stream: ``(N, 1)``."""
    pairs = symmetry.reshape(len(symmetry), -1).expand(-1, len(charged) // 2)
    return [pairs[:, i // 2, None] for i in range(len(charged))]


def _neutral(charged: Sequence[Tensor], symmetry: Tensor) -> list[Tensor]:
    """Streams with their charge killed, every node's under its own symmetry: see `degree_zero`."""
    neutral = []
    for x, felt in zip(charged, _felt_by(charged, symmetry), strict=True):
        x = torch.where(felt & SCALES > 0, degree_zero(x, Symmetry.SCALE), x)
        neutral.append(torch.where(felt & FLIPS > 0, x.abs(), x))
    return neutral
