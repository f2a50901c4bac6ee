"""Where the nodes and edges of graphs belong in the tensors of a weight space, in whatever order they are."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nfn_monomial import Symmetry, WeightSpace
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.space import Specification

from .checks import graph_ids
from .layout import Chain, chain_of, crop


class GraphView(NamedTuple):
    """The attributes of a checked graph: nodes ``(N, ..)``, edges ``(E, ..)``, and one row of ``kernel`` a graph."""

    ids: Tensor
    networks: int
    x: Tensor
    layer: Tensor
    neuron: Tensor
    symmetry: Tensor
    has_bias: Tensor
    edge_index: Tensor
    edge_attr: Tensor
    edge_layer: Tensor
    kernel: Tensor

    @classmethod
    def of(cls, graph: Any) -> GraphView:
        ids, count = graph_ids(graph)
        if graph.kernel.ndim != 2 or len(graph.kernel) != count:
            raise InvalidValueError(
                f"kernel has shape {tuple(graph.kernel.shape)}; one row for each of the {count} graphs is expected"
            )
        g = graph
        edges = (g.edge_index, g.edge_attr, g.edge_layer)
        return cls(ids, count, g.x, g.layer, g.neuron, g.symmetry, g.has_bias, *edges, g.kernel)

    def select(self, members: list[int]) -> GraphView:
        """These graphs alone, in this order."""
        at = torch.tensor(members, device=self.ids.device)
        new_id = torch.full((self.networks,), -1, device=at.device)
        new_id[at] = torch.arange(len(at), device=at.device)
        ids = new_id[self.ids]
        nodes, edges = ids >= 0, ids[self.edge_index[0]] >= 0
        new_node = nodes.cumsum(0) - 1
        return GraphView(
            ids=ids[nodes],
            networks=len(members),
            x=self.x[nodes],
            layer=self.layer[nodes],
            neuron=self.neuron[nodes],
            symmetry=self.symmetry[nodes],
            has_bias=self.has_bias[nodes],
            edge_index=new_node[self.edge_index[:, edges]],
            edge_attr=self.edge_attr[edges],
            edge_layer=self.edge_layer[edges],
            kernel=self.kernel[at],
        )

    def widths(self) -> list[tuple[int, ...]]:
        """The number of nodes in each layer of each graph."""
        depth = int(self.layer.max()) + 1
        counts = torch.bincount(self.ids * depth + self.layer, minlength=self.networks * depth)
        rows = counts.view(-1, depth).tolist()
        return [tuple(row[: max(i for i, n in enumerate(row) if n) + 1]) for row in rows]


class Places(NamedTuple):
    """Where the nodes of a batch of one architecture belong: ``slot (N,)`` numbers them by graph, layer, neuron."""

    chain: Chain
    sizes: list[int]
    slot: Tensor


def places(view: GraphView, space: Specification) -> Places:
    """Check that the nodes of all graphs are those of one network of the space, and find their order."""
    chain = chain_of(space)
    widths = view.widths()
    sizes = widths[0]
    expected = [space.nodes[name] for name in chain.nodes]
    shown = f"{space} has {_sizes_text([n.size for n in expected])}"
    for i, found in enumerate(widths):
        if found != sizes:
            raise InvalidValueError(
                f"graphs of different architectures: graph 0 has layers of {_sizes_text(sizes)} neurons, graph {i} of "
                f"{_sizes_text(found)}; from_graphs takes one space a graph"
            )
    wrong_size = any(not n.symmetry.permutes and n.size != s for n, s in zip(expected, sizes, strict=False))
    if len(sizes) != len(expected) or wrong_size or 0 in sizes:
        raise InvalidValueError(
            f"a graph of another weight space: its layers have {_sizes_text(sizes)} neurons, {shown}"
        )
    device = view.layer.device
    for name, value, wanted in (
        ("symmetry", view.symmetry, torch.tensor(chain.symmetry, device=device)),
        ("has_bias", view.has_bias, torch.tensor([b is not None for b in chain.biases], device=device)),
    ):
        bad = value != wanted[view.layer]
        if bool(bad.any()):
            at = int(bad.nonzero()[0])
            layer = int(view.layer[at])
            pair = [value[at].item(), wanted[layer].item()]
            found_value, want = map(Symmetry, pair) if name == "symmetry" else pair
            raise InvalidValueError(
                f"a graph of another weight space: {name} of node {at} (layer {layer}) is {found_value}, that of node "
                f"set {chain.nodes[layer]!r} of {space} is {want}. Read graphs with the space that they were made "
                "with (behind BalanceGraph: space.restricted('permutation'))"
            )
    width = torch.tensor(sizes, device=device)
    slot = view.ids * sum(sizes) + (width.cumsum(0) - width)[view.layer] + view.neuron
    # As many nodes as slots (widths): each is taken once, or else some number is out of range or there twice.
    out_of_range = bool((view.neuron >= width[view.layer]).any())
    if out_of_range or not bool((torch.bincount(slot, minlength=len(slot)) == 1).all()):
        raise InvalidValueError(
            f"neuron numbers of a layer are not 0 .. n - 1, once each (layers of {_sizes_text(sizes)} nodes found). "
            "Were nodes dropped or added by a transform?"
        )
    return Places(chain, list(sizes), slot)


def read(view: GraphView, space: WeightSpace) -> dict[str, Tensor]:
    """Graphs of one architecture -> parameter of the space -> ``(B, C, *shape)``, checked; see `from_graph`."""
    chain, sizes, slot = places(view, space)
    kernel = kernel_of(view)
    channels = view.x.shape[1]
    blocks = [rows * columns for columns, rows in itertools.pairwise(sizes)]
    source, target = view.edge_index
    width = torch.tensor(sizes, device=slot.device)
    first = torch.tensor([0, *itertools.accumulate(blocks)], device=slot.device)
    layer = view.layer[source]
    edge_slot = view.ids[source] * sum(blocks) + first[layer]
    edge_slot = edge_slot + view.neuron[target] * width[layer] + view.neuron[source]
    taken = torch.bincount(edge_slot, minlength=view.networks * sum(blocks))
    if not bool((taken == 1).all()):
        raise InvalidValueError(_edge_error(taken, chain, sizes, blocks))
    x = _ordered(view.x, slot).view(view.networks, -1, channels)
    edges = _ordered(view.edge_attr, edge_slot).view(view.networks, sum(blocks), -1)
    tensors: dict[str, Tensor] = {}
    known = dict(zip(chain.nodes, sizes, strict=True))
    for name, part in zip(chain.biases, torch.split(x, sizes, 1), strict=True):
        if name is not None:
            tensors[name] = part.transpose(1, 2).contiguous()
    for weight, part, (columns, rows) in zip(
        chain.weights, torch.split(edges, blocks, 1), itertools.pairwise(sizes), strict=True
    ):
        values = crop(part, weight, kernel, channels).reshape(view.networks, rows, columns, *weight.kernel, channels)
        back = [weight.order.index(i) for i in range(len(weight.order))]
        values = values.permute(back)
        tensors[weight.parameter] = values.reshape(view.networks, channels, *space.shape_of(weight.parameter, known))
    return {name: tensors[name] for name in space.parameters}


def kernel_of(view: GraphView) -> tuple[int, ...]:
    """The kernel shape of all graphs, checked against ``edge_attr``."""
    if bool((view.kernel != view.kernel[0]).any()):
        raise InvalidValueError(
            "graphs made with different kernels: give to_graph one kernel for all, common_kernel(*spaces)"
        )
    kernel = tuple(view.kernel[0].tolist())
    entries, channels = int(view.kernel[0].prod()), view.x.shape[1]
    if view.edge_attr.shape[1] != channels * entries:
        raise InvalidValueError(
            f"edge_attr has width {view.edge_attr.shape[1]}; {channels} channels (the width of x) times the {entries} "
            f"entries of kernel {kernel} is {channels * entries}. Give nodes and edges the same number of channels"
        )
    return kernel


def _ordered(values: Tensor, slot: Tensor) -> Tensor:
    """``values[i]`` at place ``slot[i]``; no copy where they are in order already."""
    order = torch.arange(len(slot), device=slot.device)
    return values if torch.equal(slot, order) else values[torch.zeros_like(slot).scatter(0, slot, order)]


def _edge_error(taken: Tensor, chain: Chain, sizes: Sequence[int], blocks: Sequence[int]) -> str:
    missing = taken == 0
    bad = missing if bool(missing.any()) else taken > 1
    graph, rest = divmod(int(bad.nonzero()[0]), sum(blocks))
    i = 0
    while rest >= blocks[i]:
        rest -= blocks[i]
        i += 1
    row, column = divmod(rest, sizes[i])
    edge = f"{chain.nodes[i]}[{column}] -> {chain.nodes[i + 1]}[{row}] of {chain.weights[i].parameter}"
    if bad is missing:
        return (
            f"graph {graph} lacks the edge {edge} ({int(bad.sum())} edges missing in the batch). Every weight needs "
            "its edge, a neuron without any is no neuron of the network: give pruned weights edges with zeros"
        )
    return f"graph {graph} has {int(taken[bad][0])} edges {edge}: multi-edges are no network; coalesce them"


def _sizes_text(sizes: Iterable[int | None]) -> str:
    return "-".join("?" if n is None else str(n) for n in sizes)
