"""Message passing on networks' graphs that respects every network's own group: `MonomialConv` and what goes with it.

The core's `MessagePassing`, `GatedActivation` and `EquivariantNorm` with parameters tied over layers, on graphs:
networks of different architectures and activations in one batch. Node features ``x (N, 3 C)`` are three streams side
by side, of charge +1, -1 and 0 (see `nfn_monomial.nn.neurons`); edge features ``edge_attr (E, C)`` have charge +1 at
the target and -1 at the source. Graphs of networks that are no chains have as many pairs of streams as charges occur.
Layers take and give tensors, as those of ``torch_geometric`` do, and fit into its ``Sequential``.
`MonomialCanonicalize` ends the charges: behind it any layer, PNAConv, GATv2Conv or GPSConv, keeps the symmetries.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import MessagePassing
from torch_geometric.utils import scatter

from nfn_monomial import Symmetry
from nfn_monomial.checks import FLOATING, WHOLE, Count, checked, same_numbers, shown
from nfn_monomial.errors import InvalidTypeError, InvalidValueError
from nfn_monomial.nn.canonicalize import degree_zero
from nfn_monomial.nn.edges import watched
from nfn_monomial.nn.incidence import Places
from nfn_monomial.nn.messages import EdgeMessages, NeuronGate, NeuronUpdate
from nfn_monomial.nn.neurons import CHAIN, Plan
from nfn_monomial.nn.norm import by_size, by_size_of, frame
from nfn_monomial.space.packing import wide

from .checks import require_tensor
from .grids import Grids, outline, whole
from .layout import FLIPS, SCALES

LEAST = 2**16
"""Numbers of the edges of a grid that is worth blocks of its own; of fewer all edges are done one by one."""


class MonomialConv(MessagePassing):  # type: ignore[misc]  # torch_geometric is not typed
    """One round of messages, forwards and backwards, and the edges' own update: the core's `MessagePassing` on graphs.

    What a message is and what is made of the sums: see `EdgeMessages` and `NeuronUpdate`; all edges share the first,
    all nodes the second. On graphs of one chain of layers it computes what
    ``MessagePassing(space, channels, tied=True)`` does, with the same parameters. The output is an update: add it for
    a residual connection.

    Any edges will do, in any order. Layers of networks whose edges follow one another as `to_graph` sorts them, or
    sorted by source, are found in ``edge_index`` on a CPU, and messages along them need no index; no message is kept.
    So ``propagate`` is never called: its hooks, and explainers that mask messages, see none. Gradients by ``edge_attr``
    say what an edge is good for.

    Shapes: ``x (N, (2 K + 1) C)``, ``edge_index (2, E)``, ``edge_attr (E, C)`` -> tensors like ``x`` and ``edge_attr``.

    Args:
        channels: ``C``.
        pairs: ``K``, how many pairs of streams nodes have; more than one are those of graphs of any network, whose
            edges say which they meet: ``edge_streams``.
        **kwargs: of ``torch_geometric.nn.MessagePassing``.

    >>> from torch_geometric.nn import Sequential
    >>> conv = MonomialConv(8)
    >>> conv
    MonomialConv(8)
    >>> layer = "x, edge_index, edge_attr -> x, edge_attr"
    >>> net = Sequential("x, edge_index, edge_attr", [(conv, layer), (MonomialConv(8), layer)])
    """

    @checked
    def __init__(self, channels: Count, pairs: Count | None = None, **kwargs: Any) -> None:
        super().__init__(aggr=None, node_dim=0, **kwargs)
        if self.flow != "source_to_target":
            raise InvalidValueError(
                f"flow={self.flow!r}: messages go both ways in every MonomialConv; leave the default"
            )
        self.channels, self.pairs = channels, pairs
        self.edges = EdgeMessages(channels)
        self.nodes = NeuronUpdate(channels, CHAIN if pairs is None else _plan(pairs))

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
        count = _count(self.pairs)
        like = self.edges.gate.weight
        given = {"edge_index": edge_index, "edge_attr": edge_attr, "edge_streams": edge_streams}
        _require(x, self.channels, count, "MonomialConv", like, **given)
        if (edge_streams is None) != (self.pairs is None):
            raise InvalidValueError(
                f"MonomialConv(pairs={self.pairs}): edge_streams are given where pairs are, and only there"
            )
        streams, nodes, at = _streams(x, count), len(x), (edge_index[1], edge_index[0])
        read = edge_attr.device.type == "cpu" and not watched(edge_attr)
        least = max(1, LEAST // self.channels)
        graph = outline(edge_index, nodes, least, edge_streams) if read else whole(edge_index, nodes)
        inv = along = against = Grids(at, graph)
        if edge_streams is None:
            ends = [(streams[1 - i], streams[i], streams[-1]) for i in range(2)]
        else:
            # Every stream of a neuron has a place of its own, those of a neuron side by side.
            own = edge_streams.unbind(1)
            opposite = [opposite_streams(q, count) for q in own]
            firsts = [end * count for end in at]
            along, against = (Grids(tuple(map(torch.add, firsts, of)), graph, count) for of in (own, opposite))
            every = x.reshape(nodes * count, -1)
            ends = [(every, every, streams[-1])] * 2
        (sums, hidden), edges = self.edges(Places(against, along, inv), edge_attr, ends)
        if edge_streams is not None:
            sums = torch.add(*sums).view(nodes, count, -1).unbind(1)
        means = (
            (z.unflatten(0, (graph.networks, -1)) / degree[:, None].to(z)).flatten(0, 1)
            for degree, z in zip(graph.degrees, hidden, strict=True)
        )
        return torch.cat(self.nodes(streams, sums, *means), -1), edges

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.channels}{'' if self.pairs is None else f', pairs={self.pairs}'})"


class MonomialGate(nn.Module):
    """Streams times functions of invariants: the core's `GatedActivation`, every node under its own symmetry.

    Args:
        channels: of every stream.
        pairs: see `MonomialConv`.
    """

    @checked
    def __init__(self, channels: Count, pairs: Count | None = None) -> None:
        super().__init__()
        self.channels, self.pairs = channels, pairs
        self.gate = NeuronGate(channels, _count(pairs))

    @checked
    def forward(self, x: Tensor, symmetry: Tensor) -> Tensor:
        """``x (N, (2 K + 1) C)`` -> the same; ``symmetry``: ``(N,)`` as in `to_graph`, or ``(N, K)``, of each pair."""
        _require(x, self.channels, _count(self.pairs), "MonomialGate", self.gate.inv.weight, symmetry=symmetry)
        streams = _streams(x, _count(self.pairs))
        felt = _of_pairs(symmetry)
        neutral = [_neutral(t, felt[:, i // 2]) for i, t in enumerate(streams[:-1])]
        return torch.cat(self.gate(streams, neutral), -1)

    def extra_repr(self) -> str:
        return str(self.channels)


class MonomialNorm(nn.Module):
    """Every stream of every layer of every network, and the edges into it, at size 1: `EquivariantNorm` on graphs.

    Args:
        channels: of every stream and of the edges.
        pairs: see `MonomialConv`.
    """

    @checked
    def __init__(self, channels: Count, pairs: Count | None = None) -> None:
        super().__init__()
        self.channels, self.pairs = channels, pairs
        self.edge_gain = nn.Parameter(torch.ones(channels))
        self.gain = nn.Parameter(torch.ones(_count(pairs), channels))

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
        given = {"edge_index": edge_index, "edge_attr": edge_attr, "edge_streams": edge_streams}
        of_nodes = {"symmetry": symmetry, "group": group}
        _require(x, self.channels, _count(self.pairs), "MonomialNorm", self.gain, **given, **of_nodes)
        *charged, inv = _streams(x, _count(self.pairs))
        scales = _of_pairs(symmetry) & SCALES > 0
        # Reciprocals of the streams' frames.
        frames = [torch.where(scales[:, i // 2, None], frame(charged[i ^ 1], t), 1.0) for i, t in enumerate(charged)]
        source, target = edge_index
        count = int(group.max()) + 1
        members = torch.bincount(group, minlength=count).clamp(min=1)[:, None]

        def by_group(x: Tensor, measured: Tensor, groups: Tensor) -> Tensor:
            def largest(sizes: Tensor) -> Tensor:
                found: Tensor = scatter(sizes.abs().amax(-1, keepdim=True), groups, 0, count, "max")[groups]
                return found

            def mean_square(x: Tensor) -> Tensor:
                total = scatter(x.square().mean(-1, keepdim=True), groups, 0, count, "sum")
                return torch.as_tensor(total / members)[groups]

            return by_size_of(measured, largest, mean_square)(x)

        if edge_streams is None:
            by = frames[0][target] * frames[1][source]
        else:
            table = torch.cat([*frames, torch.ones_like(inv[:, :1])], -1)
            by = (table[target, edge_streams[:, 0]] * table[source, edge_streams[:, 1]])[:, None]
        edges = by_group(edge_attr, wide(edge_attr) * by, group[target]) * self.edge_gain
        normed = [by_group(t, wide(t) * f, group) for t, f in zip(charged, frames, strict=True)]
        normed.append(by_size(wide(inv))(inv))
        return torch.cat([t * gain for t, gain in zip(normed, self.gain, strict=True)], -1), edges

    def extra_repr(self) -> str:
        return str(self.channels)


class MonomialCanonicalize(nn.Module):
    """Kill the charges of node features: behind it scales and signs act no more, and any graph layer may follow.

    Where scales act, the vector of a neuron's stream is divided by its norm; where signs flip, entries become absolute
    values; ``inv`` and FIXED nodes stay as they are.
    """

    @checked
    def forward(self, x: Tensor, symmetry: Tensor) -> Tensor:
        """``x (N, (2 K + 1) C)`` -> invariants of that shape; for ``symmetry`` see `MonomialGate`."""
        streams = 3 if symmetry.ndim < 2 else 2 * symmetry.shape[1] + 1
        channels = max(1, x.shape[-1] // streams) if x.ndim else 1
        _require(x, channels, streams, "MonomialCanonicalize", symmetry=symmetry)
        felt = _of_pairs(symmetry)
        *charged, inv = _streams(x, 2 * felt.shape[1] + 1)
        return torch.cat([*(_neutral(t, felt[:, i // 2]) for i, t in enumerate(charged)), inv], -1)


def layer_groups(graph: Any) -> Tensor:
    """A number ``(N,)`` for every node: that of its layer among the layers of all networks of a batch."""
    if not isinstance(getattr(graph, "layer", None), Tensor):
        raise InvalidTypeError(f"layer_groups: a graph made by to_graph is expected, found {shown(graph)}")
    ids = getattr(graph, "batch", None)
    if ids is None:
        groups: Tensor = graph.layer
        return groups
    return torch.as_tensor(ids * (int(graph.depth.max()) + 1) + graph.layer)


def opposite_streams(streams: Tensor, count: int) -> Tensor:
    """The number of the stream of opposite charge, for each of some numbers; ``inv``, the last of all, is its own."""
    return torch.where(streams == count - 1, streams, streams ^ 1)


def _plan(pairs: int) -> Plan:
    return Plan((*((q,) for i in range(1, pairs + 1) for q in (i, -i)), (0,)), reached=True)


def _count(pairs: int | None) -> int:
    return 3 if pairs is None else 2 * pairs + 1


def _streams(x: Tensor, count: int) -> tuple[Tensor, ...]:
    return x.chunk(count, -1)


def _of_pairs(symmetry: Tensor) -> Tensor:
    return symmetry[:, None] if symmetry.ndim == 1 else symmetry


def _neutral(x: Tensor, symmetry: Tensor) -> Tensor:
    """`degree_zero` with a symmetry for every node."""
    x = torch.where((symmetry & SCALES > 0)[:, None], degree_zero(x, Symmetry.SCALE), x)
    return torch.where((symmetry & FLIPS > 0)[:, None], x.abs(), x)


def _require(
    x: Tensor, channels: int, count: int, where: str, like: Tensor | None = None, **others: Tensor | None
) -> None:
    """Raise unless ``x`` has so many streams of so many channels, and the others are of its nodes and edges."""
    if x.ndim != 2 or x.shape[1] != count * channels:
        raise InvalidValueError(
            f"{where}: x has shape {tuple(x.shape)}; (N, {count * channels}) is expected: "
            f"{'three' if count == 3 else count} streams of {channels} channels, as MonomialEmbedding makes them"
        )
    require_tensor(x, "x", ("N", "C"), FLOATING, where)
    if like is not None:
        same_numbers(x, like, where)
    nodes, edges = len(x), others.get("edge_attr")
    if edges is not None:
        require_tensor(edges, "edge_attr", ("E", channels), FLOATING, where)
    number = "E" if edges is None else len(edges)
    symmetry = others.get("symmetry")
    shapes = {
        "edge_index": (2, number),
        "edge_streams": (number, 2),
        "group": (nodes,),
        "symmetry": (nodes,) if symmetry is None or symmetry.ndim < 2 else (nodes, "K"),
    }
    for name, shape in shapes.items():
        if (given := others.get(name)) is not None:
            require_tensor(given, name, shape, WHOLE, where)
