"""The networks in a batch of graphs, which have to be as `to_graph` writes them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nfn_monomial import Symmetry, WeightSpace
from nfn_monomial.errors import InvalidValueError

from .checks import NODE_ATTRIBUTES, check_attributes, check_values, graph_ids
from .factors import factors_of, structure


class GraphRun(NamedTuple):
    """Graphs of one architecture that follow one another in a batch.

    Attributes:
        space: of their networks.
        sizes: of its nodes.
        graphs: how many.
    """

    space: WeightSpace
    sizes: dict[str, int]
    graphs: int


def one_run(graph: Any, space: WeightSpace, where: str) -> GraphRun:
    """All graphs of a batch, of one architecture.

    Raises:
        ValueError: see `runs_of`; or if they are of different architectures.
    """
    check_attributes(graph, where)
    first, *others = runs_of(graph, [space] * graph_ids(graph)[1], where)
    if others:
        raise InvalidValueError(
            f"graphs of different architectures: graph 0 has nodes of sizes {first.sizes}, graph {first.graphs} of "
            f"{others[0].sizes}; from_graphs takes one space a graph"
        )
    return first


def runs_of(graph: Any, spaces: Sequence[WeightSpace], where: str) -> list[GraphRun]:
    """The graphs of a batch, with one space for each of them.

    Raises:
        ValueError: for what `check_graph` refuses; or if a graph is not as `to_graph` writes networks of its space.
    """
    check_attributes(graph, where)
    ids, count = graph_ids(graph)
    if len(spaces) != count:
        raise InvalidValueError(f"{where}: {len(spaces)} spaces for {count} graphs; one each is needed, in order")
    most = max(len(factors_of(space).sets) for space in set(spaces))
    layers = ids.clamp(0, count - 1) * (most + 1) + graph.layer.clamp(0, most)
    widths = torch.bincount(layers, minlength=count * (most + 1)).view(count, most + 1).tolist()
    runs: list[GraphRun] = []
    for (space, row), alike in itertools.groupby(zip(spaces, widths, strict=True)):
        sizes = sizes_of(space, row)
        if sizes is None:
            check_values(graph, where)
            number = sum(run.graphs for run in runs)
            neurons = graph.layer[ids == number].unique(return_counts=True)[1].tolist()
            expected = [space.nodes[n].size if n in space.nodes else None for n in factors_of(space).sets]
            raise InvalidValueError(
                f"graph {number} is of another weight space: its layers have {_text(neurons)} neurons, {space} has "
                f"{_text(expected)}"
            )
        runs.append(GraphRun(space, sizes, len(list(alike))))
    _require_written(graph, runs, where)
    return runs


def sizes_of(space: WeightSpace, widths: Sequence[int]) -> dict[str, int] | None:
    """The size of each node of a space, of the numbers of neurons in each node set; None if they do not fit."""
    graph = factors_of(space)
    widths, more = widths[: len(graph.sets)], widths[len(graph.sets) :]
    if any(more) or 0 in widths:
        return None
    width_of = dict(zip(graph.sets, widths, strict=True))
    sizes = {name: node.size or 1 for name, node in space.nodes.items()}
    for name in sorted(space.nodes.keys() & width_of, key=lambda name: len(space.ancestry(name))):
        *above, _ = space.ancestry(name)
        sizes[name] = width_of[name] // math.prod([sizes[node] for node in above])
    fixed = all(node.permutes or node.size in (None, sizes[name]) for name, node in space.nodes.items())
    return sizes if fixed and graph.counts(space, sizes) == list(widths) else None


def _require_written(graph: Any, runs: Sequence[GraphRun], where: str) -> None:
    """Raises unless all nodes and edges of a batch are where `to_graph` writes them."""
    ids, _ = graph_ids(graph)
    expected: dict[str, list[Tensor]] = {name: [] for name in ("batch", *NODE_ATTRIBUTES, "edge_index", "edge_layer")}
    graphs = nodes = 0
    for run in runs:
        attributes = structure(run.space, run.sizes, None, ids.device)
        each = len(attributes["layer"])
        number = torch.arange(run.graphs, device=ids.device)
        expected["batch"].append((number + graphs).repeat_interleave(each))
        expected["edge_index"].append((attributes["edge_index"][:, None] + nodes + each * number[:, None]).flatten(1))
        for name in (*NODE_ATTRIBUTES, "edge_layer"):
            expected[name].append(attributes[name].repeat(run.graphs))
        graphs, nodes = graphs + run.graphs, nodes + each * run.graphs
    for name, parts in expected.items():
        attribute, right = ids if name == "batch" else graph[name], torch.cat(parts, -1)
        if attribute.shape == right.shape and bool((attribute == right).all()):
            continue
        check_values(graph, where)
        least = min(attribute.shape[-1], right.shape[-1])
        wrong = (attribute[..., :least] != right[..., :least]).reshape(-1, least).any(0).nonzero().flatten().tolist()
        fault = f"{attribute.shape[-1]} edges, not {right.shape[-1]}"
        if wrong:
            values = [x[..., wrong[0]].tolist() for x in (attribute, right)]
            is_, should = map(Symmetry, values) if name == "symmetry" else values
            fault = f"{name} of {'edge' if name.startswith('edge') else 'node'} {wrong[0]} is {is_}, not {should}"
        spaces = ", ".join(map(str, dict.fromkeys(run.space for run in runs)))
        raise InvalidValueError(
            f"{where}: {fault} as in graphs of {spaces}. Read graphs with the space that they were made with, all "
            "nodes and edges in the order of to_graph; give pruned weights edges with zeros"
        )


def _text(sizes: Iterable[int | None]) -> str:
    return "-".join("?" if n is None else str(n) for n in sizes)
