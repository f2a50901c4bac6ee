"""What is looked at once, at the boundary, before a graph is used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from nfn_monomial import Symmetry
from nfn_monomial.checks import shown
from nfn_monomial.errors import InvalidTypeError, InvalidValueError

NODE_ATTRIBUTES = ("symmetry", "layer", "neuron", "depth", "has_bias")
"""Attributes ``(N,)`` of a network's graph, beside ``x``."""

_MADE_BY = "make graphs with to_graph, and keep its attributes in layers: out = copy.copy(graph); out.x = ..."


def require_tensor(x: Tensor, name: str, shape: Sequence[int | str], dtypes: Sequence[torch.dtype], where: str) -> None:
    """Raise unless a tensor has one of these dtypes and this shape, a letter standing for any size."""
    if x.dtype not in dtypes:
        kind = "whole numbers" if torch.int64 in dtypes else "floating point numbers"
        raise InvalidTypeError(f"{where}: {name} must be {kind}, found {shown(x)}")
    if x.ndim != len(shape) or any(n != m and not isinstance(n, str) for n, m in zip(shape, x.shape, strict=True)):
        expected = ", ".join(map(str, shape)) + "," * (len(shape) == 1)
        raise InvalidValueError(f"{where}: {name} has shape {tuple(x.shape)}; ({expected}) is expected")


def graph_ids(graph: Any) -> tuple[Tensor, int]:
    """The number of each node's graph ``(N,)``, and the number of graphs; a single ``Data`` is graph 0."""
    ids = getattr(graph, "batch", None)
    if ids is None:
        return graph.x.new_zeros(len(graph.x), dtype=torch.long), 1
    return ids, int(graph.num_graphs)


def check_graph(graph: Any, where: str = "check_graph") -> None:
    """Raise unless a graph, or a batch of graphs, is one of networks, as `to_graph` makes them.

    Layers that respect the networks' symmetries call it once on what they are given. A graph may lack edges (pruned
    weights, isolated neurons): layers see them as zeros; `from_graph` wants all. Under ``torch.compile`` only names,
    shapes and dtypes are checked.

    Args:
        graph: a ``torch_geometric`` ``Data`` or ``Batch``.
        where: who asks, for messages.

    Raises:
        TypeError: if it is something else, or an attribute has a wrong dtype.
        ValueError: naming the edge or node, if there is no charge information, the graph or one of its batch is empty,
            shapes do not fit, an edge does not lead from one layer of a network to the next (self-loops, reverse
            edges, skips), or there are several edges between two neurons.
    """
    if not isinstance(where, str):
        raise InvalidTypeError(f"check_graph: where must be a text, found {shown(where)}")
    _check_attributes(graph, where)
    if not torch.compiler.is_compiling():
        _check_values(graph, where)


def _check_attributes(graph: Any, where: str) -> None:
    if not hasattr(graph, "edge_index") or not hasattr(graph, "x"):
        raise InvalidTypeError(
            f"{where}: a torch_geometric Data or Batch of homogeneous graphs is expected, found {type(graph).__name__}"
        )
    missing = [n for n in (*NODE_ATTRIBUTES, "edge_layer", "kernel") if getattr(graph, n, None) is None]
    if missing:
        raise InvalidValueError(
            f"{where}: the graph has no charge information ({', '.join(missing)} missing): {_MADE_BY}"
        )
    for name in ("x", "edge_attr"):
        value = getattr(graph, name, None)
        if not isinstance(value, Tensor) or value.ndim != 2:
            found = tuple(value.shape) if isinstance(value, Tensor) else value
            raise InvalidValueError(
                f"{where}: {name} has shape {found}; (number of nodes or edges, features) is expected"
            )
        if not value.is_floating_point():
            raise InvalidTypeError(f"{where}: {name} has dtype {value.dtype}; floating point is expected")
    n, e = len(graph.x), len(graph.edge_attr)
    if not n or not e:
        raise InvalidValueError(f"{where}: an empty graph: {n} nodes and {e} edges")
    shapes = dict.fromkeys(NODE_ATTRIBUTES, (n,)) | {"edge_layer": (e,), "edge_index": (2, e)}
    for name, shape in shapes.items():
        value = getattr(graph, name)
        if tuple(value.shape) != shape:
            raise InvalidValueError(
                f"{where}: {name} has shape {tuple(value.shape)}, but x has {n} nodes and edge_attr {e} edges: "
                f"{shape} is expected. Did a transform, as AddSelfLoops, change nodes or edges but not all attributes?"
            )
        if value.is_floating_point():
            raise InvalidTypeError(f"{where}: {name} has dtype {value.dtype}; integers are expected")


def _check_values(graph: Any, where: str) -> None:
    ids, count = graph_ids(graph)
    n = len(graph.x)
    inside = graph.edge_index.clamp(0, n - 1)
    source, target = inside
    filled = torch.zeros(count, dtype=torch.bool, device=ids.device).index_fill_(0, ids, True)
    known = torch.tensor([s.value for s in Symmetry], device=ids.device)
    problems = {
        "graph {} of the batch is empty ({} in all)": ~filled,
        "node {}: symmetry is no value of Symmetry ({} nodes in all)": ~torch.isin(graph.symmetry, known),
        "node {}: layer is not within 0 .. depth, or neuron is negative ({} nodes in all)": (graph.layer < 0)
        | (graph.layer > graph.depth)
        | (graph.neuron < 0),
        "edge {} has an end that is no node ({} edges in all)": (graph.edge_index != inside).any(0),
    }
    apart = {"edge {} connects two graphs of the batch ({} edges in all)": ids[source] != ids[target]}
    if hasattr(graph, "edge_charge"):
        problems |= apart | _factor_problems(graph, ids, inside)
    else:
        problems |= _chain_problems(graph, ids, count, inside, apart)
    # One synchronisation for all of them; what is found is looked up only then.
    found = torch.stack([bad.any() for bad in problems.values()]).tolist()
    for is_bad, (message, bad) in zip(found, problems.items(), strict=True):
        if is_bad:
            first, total = int(bad.nonzero()[0]), int(bad.sum())
            if message.startswith("edge"):
                shown = f"{first} ({' -> '.join(map(str, graph.edge_index[:, first].tolist()))})"
            else:
                shown = str(first)
            raise InvalidValueError(f"{where}: {message.format(shown, total)}")


def _chain_problems(graph: Any, ids: Tensor, count: int, ends: Tensor, apart: dict[str, Tensor]) -> dict[str, Tensor]:
    """What may be wrong with the graph of a chain of layers: message -> where."""
    n, (source, target) = len(ids), ends
    before, after = graph.layer[source], graph.layer[target]
    undo = "behind from_graph, or in front of layers that know no charges"
    problems = {
        "edge {} is a self-loop ({} in all), which no weight of a feed-forward network is. Add self-loops "
        + undo: source == target,
        **apart,
        "edge {} leads back to an earlier layer ({} edges in all): edges lead from a weight's column neuron to its row "
        f"neuron, and reverse ones would carry the wrong charge. Use ToUndirected {undo}": after < before,
        "edge {} does not lead from one layer to the next, as weights do ({} edges in all)": after != before + 1,
        "edge {}: edge_layer is not the layer of its source ({} edges in all); was edge_index changed without it?":
            graph.edge_layer != before,
    }  # fmt: skip
    width = int(graph.depth.max().clamp(0, n)) + 2  # one more than the last layer's number
    sizes = ids.new_zeros(count * width).index_add_(0, ids * width + graph.layer.clamp(0, width - 2), ids.new_ones(n))
    degree = ids.new_zeros(n).index_add_(0, target, ids.new_ones(len(target)))
    problems["node {} has more incoming edges than its previous layer has neurons ({} nodes in all): multi-edges"] = (
        degree > sizes[ids * width + (graph.layer - 1) % width]
    )
    return problems


def _factor_problems(graph: Any, ids: Tensor, ends: Tensor) -> dict[str, Tensor]:
    """What may be wrong with the graph of any other network: message -> where."""
    factor = ids[ends[0]] * (int(graph.edge_layer.max()) + 1) + graph.edge_layer
    wrong, size = torch.zeros_like(factor, dtype=torch.bool), int(factor.max()) + 1
    for of in graph.layer[ends]:
        low, high = (
            of.new_zeros(size).scatter_reduce(0, factor, of, how, include_self=False) for how in ("amin", "amax")
        )
        wrong |= (low != high)[factor]
    return {
        "edge {} does not join the node sets that other edges of its parameter do ({} edges in all): reverse edges "
        "would carry the wrong charge. Use ToUndirected behind from_graph": wrong
    }
