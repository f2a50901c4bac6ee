"""Checks of graphs, once, at the boundary, before they are used."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from nfn_monomial import Symmetry
from nfn_monomial.checks import FLOATING, WHOLE, checked, is_dense, same_numbers, shown
from nfn_monomial.errors import InvalidTypeError, InvalidValueError

NODE_ATTRIBUTES = ("symmetry", "layer", "neuron", "depth", "has_bias")
"""Attributes ``(N,)`` of a network's graph, beside ``x``."""


def require_tensor(x: object, name: str, shape: Sequence[int | str], dtypes: Sequence[torch.dtype], where: str) -> None:
    """Raises unless a value is a tensor of one of these dtypes and of this shape, a letter standing for any size."""
    if not isinstance(x, Tensor) or not is_dense(x) or x.dtype not in dtypes:
        kind = "whole numbers" if torch.int64 in dtypes else "floating point numbers"
        raise InvalidTypeError(f"{where}: {name} must be a tensor of {kind}, found {shown(x)}")
    if x.ndim != len(shape) or any(n != m and not isinstance(n, str) for n, m in zip(shape, x.shape, strict=True)):
        expected = ", ".join(map(str, shape)) + "," * (len(shape) == 1)
        raise InvalidValueError(f"{where}: {name} has shape {tuple(x.shape)}; ({expected}) is expected")


def graph_ids(graph: Any) -> tuple[Tensor, int]:
    """The number of each node's graph ``(N,)``, and the number of graphs; a single ``Data`` is graph 0.

    A batch of batches has as many graphs as these have together, which its ``num_graphs`` does not say, but ``kernel``.
    """
    ids = getattr(graph, "batch", None)
    if ids is None:
        return graph.x.new_zeros(len(graph.x), dtype=torch.long), 1
    return ids, len(graph.kernel)


def kernel_of(graph: Any) -> tuple[int, ...]:
    """The kernel shape of all graphs, checked against ``edge_attr``."""
    if bool((graph.kernel != graph.kernel[0]).any()):
        raise InvalidValueError(
            "graphs made with different kernels: give to_graph one kernel for all, common_kernel(*spaces)"
        )
    kernel = tuple(graph.kernel[0].tolist())
    entries, channels = math.prod(kernel), graph.x.shape[1]
    if graph.edge_attr.shape[1] != channels * entries:
        raise InvalidValueError(
            f"edge_attr has width {graph.edge_attr.shape[1]}; {channels} channels (the width of x) times the {entries} "
            f"entries of kernel {kernel} is {channels * entries}. Give nodes and edges the same number of channels"
        )
    return kernel


def looks_at_values(index: Tensor) -> bool:
    """Returns whether a layer looks at values of indices: on a CPU, where nothing waits for them and they are known."""
    if (
        torch.compiler.is_compiling()
        or torch._C._get_tracing_state() is not None
        or torch._C._functorch.maybe_current_level() is not None
    ):
        return False
    return type(index) is Tensor and index.device.type == "cpu"


@checked
def check_graph(graph: Any, where: str = "check_graph") -> None:
    """Raises unless a graph, or a batch of graphs, is one of networks, as `to_graph` makes them.

    `MonomialEmbedding` calls it on graphs on a CPU; of others layers check names, shapes and dtypes alone, as this does
    under ``torch.compile``: check data once, when they are prepared. A graph may lack edges (pruned weights, isolated
    neurons): layers see them as zeros; `from_graph` wants all.

    Args:
        graph: a ``torch_geometric`` ``Data`` or ``Batch``.
        where: who asks, for messages.

    Raises:
        TypeError: if it is something else, or an attribute has a wrong dtype.
        ValueError: naming the edge or node, if there is no charge information, the graph or one of its batch is empty,
            shapes do not fit, or an edge does not join the node sets that its parameter does (self-loops, reverse
            edges, skips).
    """
    check_attributes(graph, where)
    if not torch.compiler.is_compiling():
        check_values(graph, where)


def check_attributes(graph: Any, where: str) -> None:
    """The part of `check_graph` that looks at no values."""
    if not hasattr(graph, "edge_index") or not hasattr(graph, "x"):
        raise InvalidTypeError(
            f"{where}: a torch_geometric Data or Batch of homogeneous graphs is expected, found {type(graph).__name__}"
        )
    missing = [n for n in ("edge_attr", *NODE_ATTRIBUTES, "edge_layer", "kernel") if getattr(graph, n, None) is None]
    if missing:
        raise InvalidValueError(
            f"{where}: the graph has no charge information ({', '.join(missing)} missing): make graphs with to_graph, "
            "and keep its attributes in layers: out = copy.copy(graph); out.x = ..."
        )
    require_tensor(graph.x, "x", ("N", "C"), FLOATING, where)
    require_tensor(graph.edge_attr, "edge_attr", ("E", "K C"), FLOATING, where)
    require_tensor(graph.kernel, "kernel", ("B", "D"), WHOLE, where)
    n, e = len(graph.x), len(graph.edge_attr)
    if not n or not e:
        raise InvalidValueError(f"{where}: an empty graph: {n} nodes and {e} edges")
    shapes: dict[str, tuple[int | str, ...]] = dict.fromkeys(NODE_ATTRIBUTES, (n,))
    shapes |= {"edge_layer": (e,), "edge_index": (2, e), "kernel": (graph_ids(graph)[1], "D")}
    where = f"{where}: x has {n} nodes and edge_attr {e} edges (did a transform change these alone?)"
    for name, shape in shapes.items():
        dtypes = (*WHOLE, torch.bool) if name == "has_bias" else WHOLE
        require_tensor(getattr(graph, name), name, shape, dtypes, where)


def check_values(graph: Any, where: str) -> None:
    """The part of `check_graph` that looks at values of indices."""
    ids, count = graph_ids(graph)
    n, own = len(graph.x), ids.clamp(0, count - 1)
    ends = graph.edge_index.clamp(0, n - 1)
    filled = torch.zeros(count, dtype=torch.bool, device=ids.device).index_fill_(0, own, True)
    known = torch.tensor([s.value for s in Symmetry], device=ids.device)
    outside = (graph.layer < 0) | (graph.layer > graph.depth) | (graph.neuron < 0)
    problems = {
        "node {} is of a graph for which kernel has no row ({} nodes in all)": ids != own,
        "graph {} of the batch is empty ({} in all)": ~filled,
        "node {}: symmetry is no value of Symmetry ({} nodes in all)": ~torch.isin(graph.symmetry, known),
        "node {}: layer is not within 0 .. depth, or neuron is negative ({} nodes in all)": outside,
        "edge {} has an end that is no node ({} edges in all)": (graph.edge_index != ends).any(0),
        "edge {} connects two graphs of the batch ({} edges in all)": ids[ends[0]] != ids[ends[1]],
        "edge {} does not lead from node set to node set as its parameter edge_layer does ({} edges in all): "
        "self-loops, reverse and skipped edges carry the wrong charge. Use AddSelfLoops and ToUndirected after "
        "from_graph, or before layers that know no charges": _misled(graph, own, ends),
    }
    # One synchronisation for all of them; the wrong places are looked up only if there are any.
    wrong = torch.stack([bad.any() for bad in problems.values()]).tolist()
    for is_bad, (message, bad) in zip(wrong, problems.items(), strict=True):
        if is_bad:
            first, total = int(bad.nonzero()[0]), int(bad.sum())
            ends_text = f" ({' -> '.join(map(str, graph.edge_index[:, first].tolist()))})"
            number = f"{first}{ends_text if message.startswith('edge') else ''}"
            raise InvalidValueError(f"{where}: {message.format(number, total)}")


def _misled(graph: Any, ids: Tensor, ends: Tensor) -> Tensor:
    """Finds edges that join other node sets than their parameter does."""
    source, target = graph.layer[ends]
    if "edge_charge" not in graph:  # a chain of layers
        return torch.as_tensor((source != graph.edge_layer) | (target != graph.edge_layer + 1))
    # A number for each parameter of each graph; any one of its edges shows the node sets that it joins.
    number = (ids[ends[0]] * (int(graph.edge_layer.max()) + 1) + graph.edge_layer).clamp(min=0)
    layers = torch.stack([source, target])
    joined = layers.new_zeros(2, int(number.max()) + 1).scatter_(1, number.expand(2, -1), layers)
    return (joined[:, number] != layers).any(0)


def check_edges(where: str, edge_index: Tensor, nodes: int, *, one_way: bool) -> None:
    """Raises unless both ends of all edges are nodes and, if edges lead ``one_way``, as in chains of layers, no edge is
    the reverse of another one."""
    if not looks_at_values(edge_index):
        return
    source, target = edge_index.long()
    if bool((wrong := (edge_index < 0) | (edge_index >= nodes)).any()):
        edge = int(wrong.any(0).nonzero()[0])
        raise InvalidValueError(
            f"{where}: edge {edge} of edge_index leads from node {int(source[edge])} to node {int(target[edge])}, and "
            f"x has {nodes} nodes: was it made for another graph?"
        )
    # Where all edges lead to larger numbers, as to_graph writes them, none leads back.
    if one_way and bool((source > target).any()):
        pairs, order = (torch.minimum(source, target) * nodes + torch.maximum(source, target)).sort()
        leads_back = (source > target)[order]
        both_ways = (pairs.diff() == 0) & (leads_back[1:] != leads_back[:-1])
        if bool(both_ways.any()):
            edge = int(order[both_ways.nonzero()[0] + leads_back[1:][both_ways][0]])
            ends = f"{int(source[edge])} -> {int(target[edge])}"
            raise InvalidValueError(
                f"{where}: edge {edge} ({ends}) is the reverse of another edge. Messages go both ways along each edge, "
                "and a reverse one would need the inverse charges: leave out ToUndirected and the like, or have them "
                "after MonomialCanonicalize alone; of other packages' graphs, adopt drops reverse edges"
            )


def streams_of(
    where: str, x: Tensor, channels: int, pairs: int | None, like: Tensor | None = None, **others: Tensor | None
) -> Tensor:
    """The streams that are side by side in ``x``: ``(N, 2 K + 1, C)``.

    Raises:
        TypeError: if dtypes or devices are not those that ``like``, a parameter, has.
        ValueError: if ``x`` has other streams, or the others, attributes of a graph by their names, other shapes.
    """
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
    return x.reshape(len(x), count, channels)
