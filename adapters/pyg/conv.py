"""Message passing on networks' graphs that respects every network's own group: `MonomialConv`, norms and gates.

The core's `MessagePassing`, `GatedActivation` and `EquivariantNorm` with parameters tied over layers, on graphs:
networks of different architectures and activations in one batch. Node features ``x (N, 3 C)`` are three streams side
by side, of charge +1, -1 and 0 (see `nfn_monomial.nn.neurons`); edge features ``edge_attr (E, C)`` have charge +1 at
the target and -1 at the source. Graphs of networks that are no chains have as many pairs of streams as charges occur.
Layers take and give tensors, as those of ``torch_geometric`` do, and fit into its ``Sequential``.
`MonomialCanonicalize` ends the charges of nodes, and of edges if it is given these: after it any layer, PNAConv,
GATv2Conv or TransformerConv, keeps the symmetries.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, overload

import torch
from torch import Tensor, nn
from torch_geometric.nn import MessagePassing
from torch_geometric.nn.inits import reset

from nfn_monomial.checks import FLOATING, WHOLE, Count, checked, shown
from nfn_monomial.errors import InvalidTypeError, InvalidValueError
from nfn_monomial.nn.blocked import exchange
from nfn_monomial.nn.canonicalize import neutral
from nfn_monomial.nn.edges import (
    AtEnd,
    Matrices,
    at_end,
    at_ends,
    edge_change,
    edge_messages,
    mixed,
    product,
    scaled,
    watched,
)
from nfn_monomial.nn.incidence import Kind, Part, ranges
from nfn_monomial.nn.neurons import CHAIN, StreamPlan
from nfn_monomial.nn.neurons.layout import kind_of
from nfn_monomial.nn.neurons.mixes import EdgeMessages, NeuronGate, NeuronUpdate, gated, updated
from nfn_monomial.nn.sizes import length, over_size, over_sizes, reciprocal_frames

from .checks import check_edges, require_tensor, streams_of
from .factors import FLIPS, SCALES


class GraphIncidence:
    """The `Incidence` of edges ``(1, E, C)`` that each join two neurons of a graph, the target first.

    Neurons are all streams of all nodes, ``(1, nodes streams, C)``, of which every edge meets its own.

    Args:
        edge_index: as in the graph.
        nodes: the number of nodes.
        streams: the number of streams of a node, side by side.
        edge_streams: see `MonomialConv`.
    """

    apart = True

    def __init__(self, edge_index: Tensor, nodes: int, streams: int, edge_streams: Tensor | None = None) -> None:
        source, target = (of * streams for of in edge_index)
        along: Sequence[Any] = (0, 1)
        against: Sequence[Any] = (1, 0)
        inv = streams - 1
        if edge_streams is not None:
            along = edge_streams.unbind(1)
            against = [torch.where(q == inv, q, q ^ 1) for q in along]
        self.nodes, self.streams = nodes, streams
        self.rows: dict[Kind, tuple[Tensor, Tensor]] = {
            "along": (target + along[0], source + along[1]),
            "against": (target + against[0], source + against[1]),
            "inv": (target + inv, source + inv),
        }

    def take(self, neurons: Tensor, end: int, kind: Kind, part: Part = ()) -> Tensor:
        """See `Incidence`."""
        return neurons[0].index_select(0, self._rows(kind, end, part)).unsqueeze(0)

    def sum(self, edges: Tensor, end: int, kind: Kind) -> Tensor:
        """See `Incidence`."""
        # In half precision a sum soon is too large to change.
        values = edges[0].float() if edges.dtype in (torch.float16, torch.bfloat16) else edges[0]
        total = values.new_zeros(self.nodes * self.streams, values.shape[-1])
        return total.index_add(0, self.rows[kind][end], values).to(edges.dtype).unsqueeze(0)

    def mean(self, edges: Tensor, end: int) -> Tensor:
        """See `Incidence`."""
        return self.sum(edges, end, "inv") * self.share(edges, end)

    def share(self, edges: Tensor, end: int) -> Tensor:
        """See `Incidence`."""
        rows = self.rows["inv"][end]
        degrees = rows.new_zeros(self.nodes * self.streams).index_add(0, rows, torch.ones_like(rows))
        return degrees.clamp(min=1).unsqueeze(-1).to(edges.dtype).reciprocal()

    def parts(self, edges: Tensor, size: int) -> list[Part]:
        """See `Incidence`."""
        if edges.nbytes <= size:
            return [()]
        of_size = max(1, size // (edges.element_size() * edges.shape[-1]))
        return [(slice(0, 1), of) for of in ranges(edges.shape[1], of_size)]

    def totals(self, edges: Tensor, shape: Sequence[int]) -> Tensor:
        """See `Incidence`."""
        return edges.new_zeros(shape)

    def add(self, edges: Tensor, end: int, kind: Kind, totals: Tensor, part: Part) -> None:
        """See `Incidence`."""
        totals[0].index_add_(0, self._rows(kind, end, part), edges[0])

    def _rows(self, kind: Kind, end: int, part: Part) -> Tensor:
        rows = self.rows[kind][end]
        return rows[part[1]] if part else rows


def arranged(x: Tensor, channels: int) -> Tensor:
    """Streams of nodes side by side ``(N, K C)`` -> ``(K, 1, N, C)``, in the order of `NodeKind`: the first ones of all
    pairs, the second ones, ``inv``."""
    streams = x.reshape(len(x), x.shape[-1] // channels, channels).movedim(1, 0).unsqueeze(1)
    return torch.cat([streams[:-1:2], streams[1:-1:2], streams[-1:]])


def side_by_side(streams: Tensor) -> Tensor:
    """The inverse of `arranged`."""
    pairs = len(streams) // 2
    order = [*(i + half for i in range(pairs) for half in (0, pairs)), -1]
    return torch.cat([streams[i, 0] for i in order], -1)


STEPS = {"propagate", "message", "aggregate", "update", "edge_updater", "edge_update"}
"""The methods that torch-geometric calls one after the other."""


class MonomialConv(MessagePassing):  # type: ignore[misc]  # torch_geometric is not typed
    """One round of messages, forwards and backwards, and the edges' own update: the core's `MessagePassing` on graphs.

    `EdgeMessages` defines the messages and `NeuronUpdate` the use of their sums; all edges share the one, all nodes the
    other. On graphs of one chain of layers it computes the same as ``MessagePassing(space, channels, tied=True)``, with
    the same parameters. The output is an update: add it for a residual connection.

    Edges may be in any order. Reverse edges are refused, because they would need the inverse charges; with
    ``edge_streams``, which say how each edge transforms (recurrent networks have edges both ways), none is looked for.

    `propagate` sends along each edge the forward message, the backward one and hidden features, side by side
    ``(E, 3 C)``: `message`, which hooks see and explainers mask. `aggregate` adds up the first at targets and the
    second at sources, and averages the third at both; `edge_updater` updates the edges. Where nobody watches these
    steps (no hook, explainer, compiler or subclass), `exchange` computes the same block by block, which takes less time
    and half of the memory.

    Shapes: ``x (N, (2 K + 1) C)``, ``edge_index (2, E)``, ``edge_attr (E, C)`` -> tensors like ``x`` and ``edge_attr``.

    Args:
        channels: ``C``.
        pairs: ``K``, how many pairs of streams nodes have; more than one are those of graphs of any network, whose
            edges say which they meet: ``edge_streams``.
        last: whether only invariants of nodes are read after the layer: ``edge_attr`` is then returned as it is.

    >>> from torch_geometric.nn import Sequential
    >>> conv = MonomialConv(8)
    >>> conv
    MonomialConv(8)
    >>> layer = "x, edge_index, edge_attr -> x, edge_attr"
    >>> net = Sequential("x, edge_index, edge_attr", [(conv, layer), (MonomialConv(8), layer)])
    """

    @checked
    def __init__(self, channels: Count, pairs: Count | None = None, *, last: bool = False) -> None:
        super().__init__(aggr=None, node_dim=0)
        self.channels, self.pairs, self.last = channels, pairs, last
        charges = ((q,) for i in range(1, (pairs or 0) + 1) for q in (i, -i))
        plan = CHAIN if pairs is None else StreamPlan((*charges, (0,)), reached=True)
        self.edges = EdgeMessages(channels, updates=not last)
        self.nodes = NeuronUpdate(channels, kind_of(plan))

    def reset_parameters(self) -> None:
        """Draws all parameters anew."""
        self.edges.reset_parameters()
        self.nodes.reset_parameters()

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

        Raises:
            ValueError: if shapes do not fit, or, of indices on a CPU, an end is no node or an edge the reverse of
                another one.
            TypeError: if dtypes or devices do not fit.
        """
        streams = streams_of(
            "MonomialConv", x, self.channels, self.pairs, self.edges.ends,
            edge_index=edge_index, edge_attr=edge_attr, edge_streams=edge_streams,
        )  # fmt: skip
        check_edges("MonomialConv", edge_index, len(x), one_way=edge_streams is None)
        at = GraphIncidence(edge_index, len(x), streams.shape[1], edge_streams)
        # Nodes bring all their streams, of which every edge takes its own.
        maps = self.edges.ends.flatten(0, 1)
        brought = mixed(streams.flatten(0, 1).expand(len(maps), -1, -1), maps)
        of_ends = [of_end.unsqueeze(0) for of_end in brought.chunk(2)]
        if self._nobody_watches(x, edge_attr):
            sums, new_edges = exchange(at, edge_attr.unsqueeze(0), of_ends, self._matrices())
            return self._updated(x, sums, at), edge_attr if self.last else new_edges.squeeze(0)
        ends = list(map(at_end, of_ends))
        new, z = self.propagate(edge_index, x=x, edge_attr=edge_attr, ends=ends, at=at)
        if self.last:
            return new, edge_attr
        return new, self.edge_updater(edge_index, edge_attr=edge_attr, z=z, ends=ends, at=at)

    def message(self, edge_attr: Tensor, ends: Sequence[AtEnd], at: GraphIncidence) -> Tensor:
        """The forward and the backward message of each edge, and its hidden features: ``(E, 3 C)``."""
        sent, z = edge_messages(at, edge_attr.unsqueeze(0), ends, self._matrices())
        return torch.cat([*sent, z], -1).squeeze(0)

    def aggregate(self, inputs: Tensor, at: GraphIncidence) -> tuple[list[tuple[Tensor, Tensor]], Tensor]:
        """Sums of messages and means of hidden features at both ends, and the hidden features of edges."""
        *sent, z = inputs.unsqueeze(0).chunk(3, -1)
        return at_ends(at, sent, z), z.squeeze(0)

    def update(
        self, inputs: tuple[list[tuple[Tensor, Tensor]], Tensor], x: Tensor, at: GraphIncidence
    ) -> tuple[Tensor, Tensor]:
        """The update of nodes, and the hidden features of edges."""
        sums, z = inputs
        return self._updated(x, sums, at), z

    def edge_update(self, edge_attr: Tensor, z: Tensor, ends: Sequence[AtEnd], at: GraphIncidence) -> Tensor:
        """The update of edges of these hidden features."""
        assert self.edges.gate is not None
        return edge_change(at, edge_attr.unsqueeze(0), z.unsqueeze(0), ends, self.edges.gate).squeeze(0)

    def _matrices(self) -> Matrices:
        return Matrices(self.edges.hidden, self.edges.bias, self.edges.gate)

    def _updated(self, x: Tensor, sums: Sequence[tuple[Tensor, Tensor]], at: GraphIncidence) -> Tensor:
        """The update of nodes, given the sums of messages and the means of hidden features at both ends."""
        nodes, (to_targets, to_sources) = self.nodes, [of_end[0] for of_end in sums]
        messages = arranged((to_targets + to_sources).view(x.shape), self.channels)[: nodes.kind.summed]
        means = torch.stack([means.view(x.shape)[:, -self.channels :].unsqueeze(0) for _, means in sums])
        of_messages = torch.cat([messages, means])
        new = updated(nodes.kind, arranged(x, self.channels), of_messages, nodes.mixes, nodes.inv, nodes.bias)
        return side_by_side(torch.cat(new))

    def _nobody_watches(self, x: Tensor, edges: Tensor) -> bool:
        """Returns whether the steps of torch-geometric may be left out: no hooks, explainers or methods of others."""
        if watched(x) or watched(edges) or self.explain or type(self) is not MonomialConv:
            return False
        hooks = (of for name, of in vars(self).items() if name.endswith("_hooks"))
        return not any(hooks) and STEPS.isdisjoint(vars(self))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.channels}{'' if self.pairs is None else f', pairs={self.pairs}'})"


class Composite(nn.Module):
    """A module of which all parameters are those of its parts."""

    def reset_parameters(self) -> None:
        """Draws all parameters anew."""
        for part in self.children():
            reset(part)


class _StreamLayer(Composite):
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
        last: whether only invariants are read after the layer: charged streams then pass through.
    """

    def __init__(self, channels: Count, pairs: Count | None = None, *, last: bool = False) -> None:
        super().__init__(channels, pairs)
        self.last = last
        self.gate = NeuronGate(channels, 2 * (pairs or 1) + 1, gates=not last)

    @checked
    def forward(self, x: Tensor, symmetry: Tensor) -> Tensor:
        """``x (N, (2 K + 1) C)`` -> the same; ``symmetry``: ``(N,)`` as in `to_graph`, or ``(N, K)``, of each pair."""
        gate = self.gate
        streams = streams_of("MonomialGate", x, self.channels, self.pairs, gate.hidden, symmetry=symmetry)
        stacked = streams.movedim(1, 0).unsqueeze(1)

        # Masks of their own: backward makes the features again, and `symmetry` may have been changed by then.
        flips, scales = (_acts(symmetry, streams.shape[1], part).T[:, None, :, None] for part in (FLIPS, SCALES))
        kill = partial(neutral, flips=flips, scales=scales)

        new = gated(stacked, kill, gate.hidden, gate.hidden_bias, gate.out, gate.out_bias)
        return torch.cat([stacked[:-1], *new] if self.last else new).squeeze(1).movedim(0, 1).flatten(1)


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

    def reset_parameters(self) -> None:
        """Sets all gains to 1."""
        for parameter in self.parameters():
            nn.init.ones_(parameter)

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
        streams = streams_of(
            "MonomialNorm", x, self.channels, self.pairs, self.gain, edge_index=edge_index, edge_attr=edge_attr,
            edge_streams=edge_streams, symmetry=symmetry, group=group,
        )  # fmt: skip
        check_edges("MonomialNorm", edge_index, len(x), one_way=edge_streams is None)
        (nodes, count, _), target = streams.shape, edge_index[1]
        members = torch.zeros_like(group).index_add(0, group, torch.ones_like(group)).index_select(0, group)
        roots = (self.channels * members.double().unsqueeze(1)).sqrt()
        lengths = length(streams, (-1,)).squeeze(-1)
        charged = lengths[:, :-1]
        opposite = charged.reshape(nodes, count // 2, 2).flip(-1).flatten(1)
        frames = reciprocal_frames(charged, opposite, _acts(symmetry, count, SCALES))
        by = over_sizes(charged * frames, group, nodes, roots, x.dtype)
        by_inv = over_size(streams[:, -1], (-1,), roots.new_full((), self.channels**0.5))
        # Invariants have no frame.
        of_streams = torch.cat([frames, torch.ones_like(lengths[:, -1:])], 1).view(1, -1, 1)
        ends = GraphIncidence(edge_index, nodes, count, edge_streams)
        measured = length(edge_attr, (-1,)) * product([ends.take(of_streams, i, "along")[0] for i in range(2)])
        by_edges = over_sizes(measured, group.index_select(0, target), nodes, roots.index_select(0, target), x.dtype)
        normed = scaled(streams, torch.cat([by, by_inv], 1).unsqueeze(-1) * self.gain)
        return normed.flatten(1), scaled(edge_attr, by_edges * self.edge_gain)


class MonomialCanonicalize(nn.Module):
    """Kills the charges of nodes and edges: after it scales and signs act no more, and any graph layer may follow.

    Where scales act, the vector of a neuron's stream is divided by its norm; where signs flip, entries become absolute
    values; ``inv`` and FIXED nodes stay as they are. The vector of an edge is changed by what acts at either end. A
    layer that reads ``edge_attr`` keeps the symmetries only if edges were given to this one.

    >>> from torch_geometric.nn import GINEConv, Sequential
    >>> net = Sequential(
    ...     "x, edge_index, edge_attr, symmetry",
    ...     [
    ...         (MonomialConv(8), "x, edge_index, edge_attr -> x, edge_attr"),
    ...         (MonomialCanonicalize(), "x, symmetry, edge_index, edge_attr -> x, edge_attr"),
    ...         (GINEConv(nn.Linear(24, 32), edge_dim=8), "x, edge_index, edge_attr -> x"),
    ...     ],
    ... )
    """

    @overload
    def forward(self, x: Tensor, symmetry: Tensor) -> Tensor: ...

    @overload
    def forward(
        self,
        x: Tensor,
        symmetry: Tensor,
        edge_index: Tensor,
        edge_attr: Tensor,
        edge_streams: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]: ...

    @checked
    def forward(
        self,
        x: Tensor,
        symmetry: Tensor,
        edge_index: Tensor | None = None,
        edge_attr: Tensor | None = None,
        edge_streams: Tensor | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """``x (N, (2 K + 1) C)`` and ``edge_attr (E, C')`` -> invariants of these shapes; ``x`` alone without edges.

        For ``symmetry`` see `MonomialGate`, for ``edge_streams`` `MonomialConv`.

        Raises:
            ValueError: if shapes do not fit, or ``edge_index`` or ``edge_attr`` is given without the other.
        """
        pairs = 1 if symmetry.ndim < 2 else symmetry.shape[1]
        channels = max(1, x.shape[-1] // (2 * pairs + 1)) if x.ndim else 1
        streams = streams_of("MonomialCanonicalize", x, channels, pairs, symmetry=symmetry)
        nodes = torch.cat([_neutral(streams[:, :-1], symmetry), streams[:, -1:]], 1).flatten(1)
        if edge_index is None and edge_attr is None and edge_streams is None:
            return nodes
        if edge_index is None or edge_attr is None:
            raise InvalidValueError("MonomialCanonicalize: edges need both edge_index and edge_attr")
        require_tensor(edge_attr, "edge_attr", ("E", "C"), FLOATING, "MonomialCanonicalize")
        require_tensor(edge_index, "edge_index", (2, len(edge_attr)), WHOLE, "MonomialCanonicalize")
        check_edges("MonomialCanonicalize", edge_index, len(x), one_way=False)
        felt = symmetry.view(len(x), pairs)[edge_index]  # of all pairs of streams of both ends
        if edge_streams is not None:
            require_tensor(edge_streams, "edge_streams", (len(edge_attr), 2), WHOLE, "MonomialCanonicalize")
            # Of the pair that the edge's stream is of at that end; none acts on inv.
            of_pairs = torch.cat([symmetry.view(len(x), pairs), symmetry.new_zeros(len(x), 1)], 1)
            felt = of_pairs[edge_index.flip(0), edge_streams.T // 2].unsqueeze(-1)
        flips, scales = ((felt & part > 0).any(0).any(-1, keepdim=True) for part in (FLIPS, SCALES))
        return nodes, neutral(edge_attr, flips, scales)


def _acts(symmetry: Tensor, streams: int, part: int) -> Tensor:
    """Returns whether this part of a symmetry acts on each charged stream: ``(N, 2 K)``."""
    pairs = symmetry.unsqueeze(1) if symmetry.ndim < 2 else symmetry
    of_pairs = pairs.unsqueeze(2).expand(-1, streams // 2, 2)
    return of_pairs.flatten(1) & part > 0


def _neutral(charged: Tensor, symmetry: Tensor) -> Tensor:
    """Charged streams ``(N, 2 K, C)`` with their charge killed, each under its node's own symmetry."""
    flips, scales = (_acts(symmetry, charged.shape[1], part).unsqueeze(-1) for part in (FLIPS, SCALES))
    return neutral(charged, flips, scales)


def layer_groups(graph: Any) -> Tensor:
    """A number ``(N,)`` for every node: that of its layer among the layers of all networks of a batch, from 0 on."""
    if not isinstance(getattr(graph, "layer", None), Tensor):
        raise InvalidTypeError(f"layer_groups: a graph made by to_graph is expected, found {shown(graph)}")
    ids = torch.zeros_like(graph.layer) if getattr(graph, "batch", None) is None else graph.batch
    order = graph.layer.argsort(stable=True)
    order = order[ids[order].argsort(stable=True)]
    begins = (graph.layer[order].diff() != 0) | (ids[order].diff() != 0)
    return torch.zeros_like(order).index_copy(0, order[1:], begins.cumsum(0))
