"""Where the nodes and edges of graphs belong in networks of a weight space, in whatever order they are."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nfn_monomial import Symmetry, WeightSpace
from nfn_monomial.errors import InvalidValueError

from .checks import graph_ids
from .factors import factors_of, structure


class Group(NamedTuple):
    """Graphs of one architecture: their space, the sizes of its nodes, and their numbers in the batch."""

    space: WeightSpace
    sizes: dict[str, int]
    members: Tensor


def grouped(graph: Any, spaces: WeightSpace | Sequence[WeightSpace]) -> list[Group]:
    """The graphs of a batch by space and architecture. With one space for all of them they must be of one architecture.

    Raises:
        ValueError: if node sets of a graph have other numbers of neurons than networks of its space can have.
    """
    ids, count = graph_ids(graph)
    of_one = isinstance(spaces, WeightSpace)
    of_graphs = [spaces] * count if isinstance(spaces, WeightSpace) else spaces
    if len(of_graphs) != count:
        raise InvalidValueError(
            f"from_graphs: {len(of_graphs)} spaces for {count} graphs; one each is needed, in order"
        )
    depth = int(graph.layer.max()) + 1
    table = torch.bincount(ids * depth + graph.layer, minlength=count * depth).view(count, depth).tolist()
    widths = [tuple(row[: max(i for i, n in enumerate(row) if n) + 1]) for row in table]
    members: dict[tuple[WeightSpace, tuple[int, ...]], list[int]] = {}
    for i, key in enumerate(zip(of_graphs, widths, strict=True)):
        members.setdefault(key, []).append(i)
    if of_one and len(members) > 1:
        other = next(i for i, width in enumerate(widths) if width != widths[0])
        raise InvalidValueError(
            f"graphs of different architectures: graph 0 has layers of {_text(widths[0])} neurons, graph {other} of "
            f"{_text(widths[other])}; from_graphs takes one space a graph"
        )
    return [
        Group(space, _sizes(space, width), torch.tensor(numbers, device=ids.device))
        for (space, width), numbers in members.items()
    ]


def _sizes(space: WeightSpace, counts: Sequence[int]) -> dict[str, int]:
    """The size of each node of a space, of the numbers of nodes in each node set."""
    sets = factors_of(space).sets
    sizes = {name: node.size or 1 for name, node in space.nodes.items() if name not in sets}
    names = [name for name in sets if name in space.nodes]
    by_name = dict(zip(sets, counts, strict=False))
    for name in sorted(names, key=lambda n: len(space.ancestry(n))):
        *above, _ = space.ancestry(name)
        sizes[name] = by_name.get(name, 0) // max(1, math.prod([sizes[n] for n in above]))
    fixed = all(sizes[n] == space.nodes[n].size for n in names if not space.nodes[n].permutes)
    if len(counts) != len(sets) or 0 in counts or not fixed or factors_of(space).counts(space, sizes) != list(counts):
        expected = [space.nodes[n].size if n in space.nodes else None for n in sets]
        raise InvalidValueError(
            f"a graph of another weight space: its layers have {_text(counts)} neurons, {space} has {_text(expected)}"
        )
    return sizes


def node_order(graph: Any, group: Group) -> Tensor:
    """The nodes of some graphs ``(graphs, nodes of each)`` in the order of `to_graph`.

    Raises:
        ValueError: if neurons are missing or there twice, or nodes are those of another space.
    """
    space, sizes, members = group
    expected = structure(space, sizes, None, graph.layer.device)
    ids, count = graph_ids(graph)
    member = members.new_full((count,), -1).index_copy(0, members, torch.arange(len(members), device=ids.device))[ids]
    nodes = (member >= 0).nonzero().flatten()
    layer, neuron = graph.layer[nodes], graph.neuron[nodes]
    width = torch.bincount(expected["layer"])
    slot = member[nodes] * len(expected["layer"]) + (width.cumsum(0) - width)[layer] + neuron
    # As many nodes as slots: each is taken once, or else some number is out of range or there twice.
    if bool((neuron >= width[layer]).any()) or not bool((torch.bincount(slot, minlength=len(slot)) == 1).all()):
        raise InvalidValueError(
            f"neuron numbers of a layer are not 0 .. n - 1, once each (layers of {_text(width.tolist())} nodes found). "
            "Were nodes dropped or added by a transform?"
        )
    order = torch.empty_like(nodes).scatter(0, slot, nodes).view(len(members), -1)
    for name in ("symmetry", "has_bias"):
        value = graph[name][order]
        if bool((bad := value != expected[name]).any()):
            network, at = bad.nonzero()[0].tolist()
            i, kind = int(expected["layer"][at]), Symmetry if name == "symmetry" else bool
            raise InvalidValueError(
                f"a graph of another weight space: {name} of node {int(order[network, at])} (layer {i}) is "
                f"{kind(int(value[network, at]))}, that of node set {factors_of(space).sets[i]!r} of {space} is "
                f"{kind(int(expected[name][at]))}. Read graphs with the space that they were made with (behind "
                "BalanceGraph: space.restricted('permutation'))"
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
    source, target = place[graph.edge_index]
    edges: Tensor = (source >= 0).nonzero().flatten()
    source, target, layer = source[edges], target[edges], graph.edge_layer[edges]
    member = source.div(n, rounding_mode="floor")
    key = (layer * n + target - member * n) * n + source - member * n
    wanted = (expected["edge_layer"] * n + expected["edge_index"][1]) * n + expected["edge_index"][0]  # ascending
    numbers = torch.arange(len(members), device=nodes.device)
    if torch.equal(key, wanted.repeat(len(members))) and torch.equal(member, numbers.repeat_interleave(len(wanted))):
        return edges.view(len(members), -1)  # in order as they are
    at = torch.searchsorted(wanted, key).clamp(max=len(wanted) - 1)
    if not bool((known := wanted[at] == key).all()):
        edge = int(edges[~known][0])
        raise InvalidValueError(
            f"edge {edge} ({' -> '.join(map(str, graph.edge_index[:, edge].tolist()))}) of edge_layer "
            f"{int(graph.edge_layer[edge])} is in no parameter of {space}"
        )
    slot = member * len(wanted) + at
    taken = torch.bincount(slot, minlength=len(members) * len(wanted)).view(len(members), -1)
    if bool((taken != 1).any()):
        missing = bool((taken == 0).any())
        bad = taken == 0 if missing else taken > 1
        network, i = bad.nonzero()[0].tolist()
        names, of = factors_of(space), {name: x.tolist() for name, x in expected.items()}
        ends = [f"{names.sets[of['layer'][end[i]]]}[{of['neuron'][end[i]]}]" for end in of["edge_index"]]
        edge_text = f"edge {' -> '.join(ends)} of {names.factors[of['edge_layer'][i]].piece}"
        if missing:
            raise InvalidValueError(
                f"graph {int(members[network])} lacks the {edge_text} ({int(bad.sum())} edges missing in the batch). "
                "Every weight needs its edge, a neuron without any is no neuron of the network: give pruned weights "
                "edges with zeros"
            )
        raise InvalidValueError(
            f"graph {int(members[network])} has {int(taken[network, i])} times the {edge_text}: multi-edges are no "
            "network; coalesce them"
        )
    return torch.empty_like(edges).scatter(0, slot, edges).view(len(members), -1)


def _text(sizes: Iterable[int | None]) -> str:
    return "-".join("?" if n is None else str(n) for n in sizes)
