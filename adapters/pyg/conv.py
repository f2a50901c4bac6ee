"""Message passing on networks' graphs that respects every network's own group: `MonomialConv` and what goes with it.

The core's `MessagePassing`, `GatedActivation` and `EquivariantNorm` with parameters tied over layers, on graphs:
networks of different architectures and activations in one batch. Node features ``x (N, 3 C)`` are three streams side
by side, of charge +1, -1 and 0 (``out``, ``back``, ``inv``, see `nfn_monomial.nn.neurons`); edge features
``edge_attr (E, C)`` have charge +1 at the target and -1 at the source. Layers take and give tensors, as those of
``torch_geometric`` do, and fit into its ``Sequential``. `MonomialCanonicalize` ends the charges: behind it any layer,
PNAConv, GATv2Conv or GPSConv, keeps the symmetries.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import MessagePassing
from torch_geometric.utils import scatter

from nfn_monomial import Symmetry
from nfn_monomial.nn.canonicalize import degree_zero
from nfn_monomial.nn.messages import EdgeMessages, Ends, NeuronGate, NeuronUpdate
from nfn_monomial.nn.neurons import Streams
from nfn_monomial.nn.norm import frame, over, over_size
from nfn_monomial.space.packing import wide

from .layout import FLIPS, SCALES


class MonomialConv(MessagePassing):  # type: ignore[misc]  # torch_geometric is not typed
    """One round of messages, forwards and backwards, and the edges' own update: the core's `MessagePassing` on graphs.

    What a message is and what is made of the sums: see `EdgeMessages` and `NeuronUpdate`; all edges share the first,
    all nodes the second. On graphs of one architecture it computes what ``MessagePassing(space, channels, tied=True)``
    does, with the same parameters. The output is an update: add it for a residual connection.

    Shapes: ``x (N, 3 C)``, ``edge_index (2, E)``, ``edge_attr (E, C)`` -> ``((N, 3 C), (E, C))``.

    Args:
        channels: ``C``.
        **kwargs: of ``torch_geometric.nn.MessagePassing``.

    >>> from torch_geometric.nn import Sequential
    >>> conv = MonomialConv(8)
    >>> conv
    MonomialConv(8)
    >>> layer = "x, edge_index, edge_attr -> x, edge_attr"
    >>> net = Sequential("x, edge_index, edge_attr", [(conv, layer), (MonomialConv(8), layer)])
    """

    def __init__(self, channels: int, **kwargs: Any) -> None:
        if channels < 1:
            raise ValueError(f"channels must be at least 1, found {channels}")
        super().__init__(aggr=None, node_dim=0, **kwargs)
        if self.flow != "source_to_target":
            raise ValueError(f"flow={self.flow!r}: messages go both ways in every MonomialConv; leave the default")
        self.channels = channels
        self.edges = EdgeMessages(channels)
        self.nodes = NeuronUpdate(channels)

    def reset_parameters(self) -> None:
        """Draw all parameters anew."""
        super().reset_parameters()
        for module in (*self.edges.children(), *self.nodes.children()):
            module.reset_parameters()  # type: ignore[operator]

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> tuple[Tensor, Tensor]:
        """Updates of ``x`` and ``edge_attr``."""
        _require(x, edge_attr, self.channels, "MonomialConv")
        streams = _streams(x)
        target, source = (torch.cat(ends, -1) for ends in (self.edges.target(streams), self.edges.source(streams)))
        out: tuple[Tensor, Tensor] = self.propagate(
            edge_index, x=x, target=target, source=source, edge_attr=edge_attr, size=None
        )
        return out

    def message(self, target_i: Tensor, source_j: Tensor, edge_attr: Tensor) -> tuple[Tensor, ...]:
        """Forward messages, backward messages, hidden and updated edges: `EdgeMessages`."""
        messages: tuple[Tensor, ...] = self.edges(edge_attr, Ends(*target_i.chunk(3, -1)), Ends(*source_j.chunk(3, -1)))
        return messages

    def aggregate(
        self, inputs: tuple[Tensor, ...], edge_index_i: Tensor, edge_index_j: Tensor, dim_size: int
    ) -> tuple[Tensor, ...]:
        """Sums of messages and means of hidden, over incoming and over outgoing edges."""
        forth, back, hidden, edges = inputs
        return (
            scatter(forth, edge_index_i, 0, dim_size, "sum"),
            scatter(back, edge_index_j, 0, dim_size, "sum"),
            scatter(hidden, edge_index_i, 0, dim_size, "mean"),
            scatter(hidden, edge_index_j, 0, dim_size, "mean"),
            edges,
        )

    def update(self, inputs: tuple[Tensor, ...], x: Tensor) -> tuple[Tensor, Tensor]:
        """`NeuronUpdate`, and the edges as they are."""
        *sums, edges = inputs
        return torch.cat(self.nodes(_streams(x), *sums), -1), edges

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.channels})"


class MonomialGate(nn.Module):
    """Streams times functions of invariants: the core's `GatedActivation`, every node under its own symmetry.

    Args:
        channels: of every stream.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.channels = channels
        self.gate = NeuronGate(channels)

    def forward(self, x: Tensor, symmetry: Tensor) -> Tensor:
        """``x (N, 3 C)``, ``symmetry (N,)`` as in `to_graph` -> ``(N, 3 C)``."""
        _require(x, None, self.channels, "MonomialGate")
        streams = _streams(x)
        gated: Streams = self.gate(streams, _neutral(streams.out, symmetry), _neutral(streams.back, symmetry))
        return torch.cat(gated, -1)

    def extra_repr(self) -> str:
        return str(self.channels)


class MonomialNorm(nn.Module):
    """Every stream of every layer of every network, and the edges into it, at size 1: `EquivariantNorm` on graphs.

    Args:
        channels: of every stream and of the edges.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.channels = channels
        self.edge_gain = nn.Parameter(torch.ones(channels))
        self.gain = nn.Parameter(torch.ones(3, channels))

    def forward(
        self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, symmetry: Tensor, group: Tensor
    ) -> tuple[Tensor, Tensor]:
        """``x`` and ``edge_attr`` normalised; ``group (N,)`` numbers the layers of all networks: `layer_groups`."""
        _require(x, edge_attr, self.channels, "MonomialNorm")
        out, back, inv = streams = _streams(x)
        scales = (symmetry & SCALES > 0)[:, None]
        rho = torch.where(scales, frame(streams), 1.0)
        source, target = edge_index
        count = int(group.max()) + 1
        members = torch.bincount(group, minlength=count).clamp(min=1)[:, None]

        def by_group(x: Tensor, measured: Tensor, groups: Tensor) -> Tensor:
            def largest(sizes: Tensor) -> Tensor:
                found: Tensor = scatter(sizes.abs().amax(-1, keepdim=True), groups, 0, count, "max")[groups]
                return found

            def mean(squares: Tensor) -> Tensor:
                total = scatter(squares.mean(-1, keepdim=True), groups, 0, count, "sum")
                return torch.as_tensor(total / members)[groups]

            return over_size(x, measured, largest, mean)

        edges = by_group(edge_attr, wide(edge_attr) * (rho[source] / rho[target]), group[target]) * self.edge_gain
        normed = (
            by_group(out, wide(out) / rho, group) * self.gain[0],
            by_group(back, wide(back) * rho, group) * self.gain[1],
            over_size(inv, wide(inv), *over(-1)) * self.gain[2],
        )
        return torch.cat(normed, -1), edges

    def extra_repr(self) -> str:
        return str(self.channels)


class MonomialCanonicalize(nn.Module):
    """Kill the charges of node features: behind it scales and signs act no more, and any graph layer may follow.

    Where scales act, the vector of a neuron's stream is divided by its norm; where signs flip, entries become absolute
    values; ``inv`` and FIXED nodes stay as they are.
    """

    def forward(self, x: Tensor, symmetry: Tensor) -> Tensor:
        """``x (N, 3 C)``, ``symmetry (N,)`` -> invariants ``(N, 3 C)``."""
        out, back, inv = _streams(x)
        return torch.cat([_neutral(out, symmetry), _neutral(back, symmetry), inv], -1)


def layer_groups(graph: Any) -> Tensor:
    """A number ``(N,)`` for every node: that of its layer among the layers of all networks of a batch."""
    ids = getattr(graph, "batch", None)
    if ids is None:
        groups: Tensor = graph.layer
        return groups
    return torch.as_tensor(ids * (int(graph.depth.max()) + 1) + graph.layer)


def _streams(x: Tensor) -> Streams:
    return Streams(*x.chunk(3, -1))


def _neutral(x: Tensor, symmetry: Tensor) -> Tensor:
    """`degree_zero` with a symmetry for every node."""
    x = torch.where((symmetry & SCALES > 0)[:, None], degree_zero(x, Symmetry.SCALE), x)
    return torch.where((symmetry & FLIPS > 0)[:, None], x.abs(), x)


def _require(x: Tensor, edge_attr: Tensor | None, channels: int, where: str) -> None:
    if x.ndim != 2 or x.shape[1] != 3 * channels:
        raise ValueError(
            f"{where}: x has shape {tuple(x.shape)}; (N, {3 * channels}) is expected: three streams of {channels} "
            "channels, as MonomialEmbedding makes them"
        )
    if edge_attr is not None and (edge_attr.ndim != 2 or edge_attr.shape[1] != channels):
        raise ValueError(f"{where}: edge_attr has shape {tuple(edge_attr.shape)}; (E, {channels}) is expected")
