"""Where the nodes and edges of graphs belong in networks of a weight space, in whatever order they are."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nfn_monomial import Symmetry, WeightSpace
from nfn_monomial.errors import InvalidValueError

from .checks import NODE_ATTRIBUTES, check_attributes, check_values, graph_ids
from .factors import factors_of, structure


class Group(NamedTuple):
    """Graphs of one architecture.

    Attributes:
        space: of their networks.
        sizes: of its nodes.
        members: their numbers in the batch.
        nodes: of each graph, in the order of `to_graph`: ``(graphs, nodes)``; None where all are in that order.
        edges: likewise.
    """

    space: WeightSpace
    sizes: dict[str, int]
    members: Sequence[int]
    nodes: Tensor | None
    edges: Tensor | None


def one_group(graph: Any, space: WeightSpace, where: str) -> Group:
    """All graphs of a batch of one architecture. Nothing is checked twice, nor sorted where `to_graph` wrote it.

    Raises:
        ValueError: see `check_graph` and `grouped`; or if they are of different architectures.
    """
    check_attributes(graph, where)
    written = _as_written(graph, space)
    if written is not None:
        return written
    check_values(graph, where)
    first, *others = grouped(graph, [space] * graph_ids(graph)[1])
    if others:
        raise InvalidValueError(
            f"graphs of different architectures: graph 0 has nodes of sizes {first.sizes}, graph "
            f"{others[0].members[0]} of {others[0].sizes}; from_graphs takes one space a graph"
        )
    return first


def _as_written(graph: Any, space: WeightSpace) -> Group | None:
    """All graphs of a batch, if they are of one architecture and as `to_graph` writes them; None otherwise."""
    ids, count = graph_ids(graph)
    nodes = len(ids) // count
    sizes = _sizes_of(space, torch.bincount(graph.layer[:nodes].clamp(min=0)).tolist())
    if sizes is None:
        return None
    expected = structure(space, sizes, None, ids.device)
    number = torch.arange(count, device=ids.device)
    written = {name: expected[name].repeat(count) for name in (*NODE_ATTRIBUTES, "edge_layer")}
    written["edge_index"] = (expected["edge_index"][:, None] + number[:, None] * nodes).flatten(1)
    same = (graph[name].shape == x.shape and bool((graph[name] == x).all()) for name, x in written.items())
    if all(same) and torch.equal(ids, number.repeat_interleave(nodes)):
        return Group(space, sizes, range(count), None, None)
    return None


def grouped(graph: Any, spaces: Sequence[WeightSpace]) -> list[Group]:
    """The graphs of a batch, checked, with one space for each of them, by space and architecture.

    Raises:
        ValueError: if nodes are not those of networks of their space, or an edge is missing, there twice, or of no
            parameter.
    """
    ids, count = graph_ids(graph)
    if len(spaces) != count:
        raise InvalidValueError(f"from_graphs: {len(spaces)} spaces for {count} graphs; one each is needed, in order")
    nodes = order_by(ids, graph.layer, graph.neuron)
    counts = torch.bincount(ids, minlength=count)
    # The place of each node in its graph.
    place = nodes.argsort() - (counts.cumsum(0) - counts)[ids]
    of_edges = ids[graph.edge_index[1]]
    keys = torch.stack([graph.edge_layer, *place[graph.edge_index.flip(0)]], 1)
    edges = order_by(of_edges, *keys.T)
    nodes_of = torch.split(nodes, counts.tolist())
    edges_of = torch.split(edges, torch.bincount(of_edges, minlength=count).tolist())
    depth = int(graph.layer.max()) + 1
    table = torch.bincount(ids * depth + graph.layer, minlength=count * depth).view(count, depth).tolist()
    members: dict[tuple[WeightSpace, tuple[int, ...]], list[int]] = {}
    for i, (space, row) in enumerate(zip(spaces, table, strict=True)):
        last = max(n for n, width in enumerate(row, 1) if width)
        members.setdefault((space, tuple(row[:last])), []).append(i)
    groups = []
    for (space, widths), numbers in members.items():
        sizes = _sizes_of(space, widths)
        if sizes is None:
            expected = [space.nodes[n].size if n in space.nodes else None for n in factors_of(space).sets]
            raise InvalidValueError(
                f"graph {numbers[0]} is of another weight space: its layers have {_text(widths)} neurons, {space} has "
                f"{_text(expected)}"
            )
        attributes = structure(space, sizes, None, ids.device)
        _require_nodes(graph, space, attributes, torch.stack([nodes_of[i] for i in numbers]))
        _require_edges(graph, space, attributes, {i: edges_of[i] for i in numbers}, keys)
        rows = (torch.stack([of[i] for i in numbers]) for of in (nodes_of, edges_of))
        groups.append(Group(space, sizes, numbers, *rows))
    return groups


def order_by(*numbers: Tensor) -> Tensor:
    """What sorts by some whole numbers from 0 on, the first of them first."""
    return functools.reduce(lambda key, number: key * (int(number.max()) + 1) + number, numbers).argsort()


def _sizes_of(space: WeightSpace, widths: Sequence[int]) -> dict[str, int] | None:
    """The size of each node of a space, of the numbers of neurons in each node set; None if they do not fit."""
    graph = factors_of(space)
    if len(widths) != len(graph.sets) or 0 in widths:
        return None
    width_of = dict(zip(graph.sets, widths, strict=True))
    sizes = {name: node.size or 1 for name, node in space.nodes.items()}
    for name in sorted(space.nodes.keys() & width_of, key=lambda name: len(space.ancestry(name))):
        *above, _ = space.ancestry(name)
        sizes[name] = width_of[name] // math.prod([sizes[node] for node in above])
    fixed = all(node.permutes or node.size in (None, sizes[name]) for name, node in space.nodes.items())
    return sizes if fixed and graph.counts(space, sizes) == list(widths) else None


def _require_nodes(graph: Any, space: WeightSpace, expected: dict[str, Tensor], rows: Tensor) -> None:
    """Raise unless nodes of graphs ``(graphs, nodes)``, sorted, are those of a space."""
    for name, kind in (("neuron", int), ("symmetry", Symmetry), ("has_bias", bool)):
        wrong = graph[name][rows] != expected[name]
        if bool(wrong.any()):
            network, at = wrong.nonzero()[0].tolist()
            node, node_set = int(rows[network, at]), factors_of(space).sets[int(expected["layer"][at])]
            raise InvalidValueError(
                f"a graph of another weight space: {name} of node {node} is {kind(int(graph[name][node]))}, in {space} "
                f"that of neuron {int(expected['neuron'][at])} of {node_set!r} is {kind(int(expected[name][at]))}. "
                "Read graphs with the space that they were made with, and drop or add no nodes"
            )


def _require_edges(
    graph: Any, space: WeightSpace, expected: dict[str, Tensor], rows_of: Mapping[int, Tensor], keys: Tensor
) -> None:
    """Raise unless the edges of graphs, each sorted by its keys (parameter, target, source), are those of a space."""
    wanted = torch.stack([expected["edge_layer"], *expected["edge_index"].flip(0)], 1)
    other = next((pair for pair in rows_of.items() if not torch.equal(keys[pair[1]], wanted)), None)
    if other is None:
        return
    number, rows = other
    both = itertools.zip_longest(keys[rows].tolist(), wanted.tolist())
    at, (edge, missing) = next((i, pair) for i, pair in enumerate(both) if pair[0] != pair[1])
    if missing is None or (edge is not None and edge < missing):
        ends = " -> ".join(map(str, graph.edge_index[:, rows[at]].tolist()))
        fault = f"edge {int(rows[at])} ({ends}) of edge_layer {edge[0]} is there twice, or in no parameter of {space}"
    else:
        names = factors_of(space)
        target, source = (
            f"{names.sets[int(expected['layer'][node])]}[{int(expected['neuron'][node])}]" for node in missing[1:]
        )
        fault = f"graph {number} has no edge {source} -> {target} of {names.factors[missing[0]].piece}"
    raise InvalidValueError(
        f"{fault}. Every weight needs its edge, once; a neuron without any is no neuron of the network: give pruned "
        "weights edges with zeros"
    )


def _text(sizes: Iterable[int | None]) -> str:
    return "-".join("?" if n is None else str(n) for n in sizes)
