"""Where the nodes and edges of graphs belong in networks of a weight space, in whatever order they are."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nfn_monomial import Symmetry, WeightSpace
from nfn_monomial.errors import InvalidValueError

from .checks import NODE_ATTRIBUTES, graph_ids
from .factors import factors_of, structure


class Group(NamedTuple):
    """Graphs of one architecture: their space, the sizes of its nodes, and their numbers in the batch."""

    space: WeightSpace
    sizes: dict[str, int]
    members: Tensor


def grouped(graph: Any, spaces: Sequence[WeightSpace]) -> list[Group]:
    """The graphs of a batch, with one space for each of them, by space and architecture.

    Raises:
        ValueError: if node sets of a graph have other numbers of neurons than networks of its space can have.
    """
    ids, count = graph_ids(graph)
    if len(spaces) != count:
        raise InvalidValueError(f"from_graphs: {len(spaces)} spaces for {count} graphs; one each is needed, in order")
    depth = int(graph.layer.max()) + 1
    table = torch.bincount(ids * depth + graph.layer, minlength=count * depth).view(count, depth).tolist()
    members: dict[tuple[WeightSpace, tuple[int, ...]], list[int]] = {}
    for i, (space, row) in enumerate(zip(spaces, table, strict=True)):
        while not row[-1]:
            row.pop()
        members.setdefault((space, tuple(row)), []).append(i)
    groups = []
    for (space, widths), numbers in members.items():
        sizes = sizes_of(space, widths)
        if sizes is None:
            expected = [space.nodes[n].size if n in space.nodes else None for n in factors_of(space).sets]
            raise InvalidValueError(
                f"graph {numbers[0]} is of another weight space: its layers have {_text(widths)} neurons, {space} has "
                f"{_text(expected)}"
            )
        groups.append(Group(space, sizes, torch.tensor(numbers, device=ids.device)))
    return groups


def one_group(graph: Any, space: WeightSpace) -> Group:
    """All graphs of a batch of one architecture.

    Raises:
        ValueError: see `grouped`; or if they are of different architectures.
    """
    first, *others = grouped(graph, [space] * graph_ids(graph)[1])
    if others:
        raise InvalidValueError(
            f"graphs of different architectures: graph 0 has nodes of sizes {first.sizes}, graph "
            f"{int(others[0].members[0])} of {others[0].sizes}; from_graphs takes one space a graph"
        )
    return first


def sizes_of(space: WeightSpace, widths: Sequence[int]) -> dict[str, int] | None:
    """The size of each node of a space, of the numbers of neurons in each node set; None if they do not fit."""
    sets = factors_of(space).sets
    if len(widths) != len(sets) or 0 in widths:
        return None
    width_of = dict(zip(sets, widths, strict=True))
    sizes = {name: node.size or 1 for name, node in space.nodes.items() if name not in width_of}
    for name in sorted(space.nodes.keys() & width_of, key=lambda name: len(space.ancestry(name))):
        *above, _ = space.ancestry(name)
        sizes[name] = width_of[name] // math.prod([sizes[node] for node in above])
    fixed = all(node.permutes or node.size in (None, sizes[name]) for name, node in space.nodes.items())
    return sizes if fixed and factors_of(space).counts(space, sizes) == list(widths) else None


def group_in_order(graph: Any, space: WeightSpace) -> Group | None:
    """All graphs of a batch, if they are of one architecture and as `to_graph` writes them; None otherwise."""
    ids, count = graph_ids(graph)
    nodes = len(ids) // count
    sizes = sizes_of(space, torch.bincount(graph.layer[:nodes].clamp(min=0)).tolist())
    if sizes is None:
        return None
    expected = structure(space, sizes, None, ids.device)
    number = torch.arange(count, device=ids.device)
    written = {name: expected[name].repeat(count) for name in (*NODE_ATTRIBUTES, "edge_layer")}
    written["edge_index"] = (expected["edge_index"][:, None] + number[:, None] * nodes).flatten(1)
    same = (graph[name].shape == x.shape and bool((graph[name] == x).all()) for name, x in written.items())
    return Group(space, sizes, number) if all(same) and torch.equal(ids, number.repeat_interleave(nodes)) else None


def node_order(graph: Any, group: Group) -> Tensor:
    """The nodes of some graphs ``(graphs, nodes of each)`` in the order of `to_graph`.

    Raises:
        ValueError: if neurons are missing or there twice, or nodes are those of another space.
    """
    space, sizes, members = group
    expected = structure(space, sizes, None, members.device)
    ids, _ = graph_ids(graph)
    nodes = torch.isin(ids, members).nonzero().flatten()
    layer, neuron = graph.layer[nodes], graph.neuron[nodes]
    key = (ids[nodes] * (int(layer.max()) + 1) + layer) * (int(neuron.max()) + 1) + neuron
    order = nodes[key.argsort()].view(len(members), -1)
    for name, kind in (("neuron", int), ("symmetry", Symmetry), ("has_bias", bool)):
        value = graph[name][order]
        if bool((bad := value != expected[name]).any()):
            network, at = bad.nonzero()[0].tolist()
            node_set = factors_of(space).sets[int(expected["layer"][at])]
            raise InvalidValueError(
                f"a graph of another weight space: {name} of node {int(order[network, at])} is "
                f"{kind(int(value[network, at]))}, in {space} that of neuron {int(expected['neuron'][at])} of "
                f"{node_set!r} is {kind(int(expected[name][at]))}. Read graphs with the space that they were made with "
                "(behind BalanceGraph: space.restricted('permutation')), and drop or add no nodes"
            )
    return order


def edge_order(graph: Any, group: Group, nodes: Tensor) -> Tensor:
    """The edges of some graphs ``(graphs, edges of each)`` in the order of `to_graph`, given their nodes in that order.

    Raises:
        ValueError: naming an edge that is missing, there twice, or of no parameter of the space.
    """
    space, sizes, members = group
    expected, n = structure(space, sizes, None, nodes.device), nodes.shape[1]
    place = nodes.new_full((len(graph.x),), -1)
    place[nodes.flatten()] = torch.arange(nodes.numel(), device=nodes.device)
    edges = (place[graph.edge_index[0]] >= 0).nonzero().flatten()
    parameters = int(graph.edge_layer.max()) + 1

    def keys(network: Tensor, parameter: Tensor, source: Tensor, target: Tensor) -> Tensor:
        """One number for each edge that can be, which ascends in the order of `to_graph`."""
        return ((network * parameters + parameter) * n + target) * n + source

    source, target = place[graph.edge_index[:, edges]]
    key = keys(target.div(n, rounding_mode="floor"), graph.edge_layer[edges], source % n, target % n)
    number = torch.arange(len(members), device=nodes.device)[:, None]
    wanted = keys(number, expected["edge_layer"], *expected["edge_index"])
    if torch.equal(key, wanted.flatten()):
        return edges.view(wanted.shape)
    if bool((unknown := ~torch.isin(key, wanted)).any()):
        edge = int(edges[unknown][0])
        raise InvalidValueError(
            f"edge {edge} ({' -> '.join(map(str, graph.edge_index[:, edge].tolist()))}) of edge_layer "
            f"{int(graph.edge_layer[edge])} is in no parameter of {space}"
        )
    times = torch.bincount(torch.searchsorted(wanted.flatten(), key), minlength=wanted.numel()).view(wanted.shape)
    if bool((wrong := times != 1).any()):
        network, i = wrong.nonzero()[0].tolist()
        names, of = factors_of(space), {name: x.tolist() for name, x in expected.items()}
        ends = [f"{names.sets[of['layer'][end[i]]]}[{of['neuron'][end[i]]}]" for end in of["edge_index"]]
        parameter = names.factors[of["edge_layer"][i]].piece
        raise InvalidValueError(
            f"graph {int(members[network])} has the edge {' -> '.join(ends)} of {parameter} {int(times[network, i])} "
            f"times ({int(wrong.sum())} such edges in the batch). Every weight needs its edge, once; a neuron without "
            "any is no neuron of the network: give pruned weights edges with zeros"
        )
    return edges[key.argsort()].view(wanted.shape)


def _text(sizes: Iterable[int | None]) -> str:
    return "-".join("?" if n is None else str(n) for n in sizes)
