"""Graphs as neural-graphs and ScaleGMN make them, for our layers, and the way back.

Both write a node for each neuron, layer by layer, and an edge for each weight, as `to_graph` does, with kernels padded
alike; their graphs lack what says which group acts, and their edges come in the order of their sources.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Batch, Data

from nfn_monomial import WeightSpace
from nfn_monomial.checks import FLOATING, WHOLE, Size, checked
from nfn_monomial.errors import InvalidTypeError, InvalidValueError

from .checks import check_graph, require_tensor
from .convert import common_kernel
from .factors import SCALES, Padding, factors_of, padding_of, structure
from .networks import sizes_of


@checked
def adopt(graph: Any, space: WeightSpace | Sequence[WeightSpace], *, kernel: Sequence[Size] | None = None) -> Any:
    """Graphs of networks that another package made, with all attributes and the order of edges of `to_graph`.

    Only the order of nodes has to be that of `to_graph`: layer by layer, inputs first. Edges may be in any order, or
    all lead backwards. Reverse edges beside the forward ones are left out, with the features that neural-graphs'
    ``rev_edge_features`` writes for them. The ``x`` of nodes without a bias, as the 1 of ScaleGMN's inputs, becomes 0.
    Of linear layers that ``mlp_edge_masks`` marks, the one entry moves to the middle of the kernel. Attributes of
    nodes and graphs, such as targets, are kept; those of edges are not.

    Args:
        graph: a ``Data``, or a ``Batch`` made by ``Batch.from_data_list``, with ``x (N, C)``, ``edge_index (2, E)`` and
            ``edge_attr (E, K C)``.
        space: the networks' weight space; or one for each graph, in the batch's order. A hidden node may have another
            size than it says if the graph says so, in neural-graphs' ``layer_layout``.
        kernel: the shape that kernels are padded to; `common_kernel` of the spaces by default.

    Returns:
        A ``Data`` or ``Batch`` like the argument, which is not written to. For raw features it is what `to_graphs`
        makes of the same networks; differentiable.

    Raises:
        ValueError: naming the nodes, edge or width, if a graph is none of its space, edges are there twice or missing,
            or the space has several edges from one node to another (gains beside depthwise kernels).
        TypeError: if features are not floating point, or indices no whole numbers.

    >>> space = WeightSpace.mlp([2, 1], "relu")
    >>> theirs = Data(torch.ones(3, 1), torch.tensor([[0, 1], [2, 2]]), torch.tensor([[3.0], [4.0]]))
    >>> adopt(theirs, space).x.flatten()
    tensor([0., 0., 1.])
    """
    graphs = _graphs(graph, "adopt")
    spaces = [space] * len(graphs) if isinstance(space, WeightSpace) else list(space)
    if len(spaces) != len(graphs):
        raise InvalidValueError(f"adopt: {len(spaces)} spaces for {len(graphs)} graphs; one each is needed, in order")
    padding = padding_of(spaces)
    shape = common_kernel(*spaces) if kernel is None else tuple(kernel)
    adopted = [
        _adopted(data, own, shape, padding, f"adopt: graph {i}")
        for i, (data, own) in enumerate(zip(graphs, spaces, strict=True))
    ]
    return Batch.from_data_list(adopted) if isinstance(graph, Batch) else adopted[0]


@checked
def release(graph: Any, *, inputs: float | None = None) -> Any:
    """Graphs of chains of layers for the layers of neural-graphs and ScaleGMN: the way back from `adopt`.

    Edges come in the order of their sources, as both packages write them. Added are the attributes that ScaleGMN's
    models read: ``bw_edge_index``, the edges backwards; ``mask_hidden`` and ``mask_first_layer``, ``(N, 1)``;
    ``sign_mask``, whether signs alone act on a network; and ``node2type``, ``edge2type``, a number for each hidden
    layer, for each input and each output. All others stay, so that layers of this package and `adopt` take the result.

    Args:
        graph: a ``Data`` or ``Batch`` from `to_graph`, or from layers that keep its attributes.
        inputs: ``x`` of nodes without a bias, such as inputs, for which ScaleGMN writes 1; it stays as it is by default
            (0 in graphs of `to_graph`, as neural-graphs writes it).

    Raises:
        ValueError: see `check_graph`; or if networks are no chains of layers.
    """
    check_graph(graph, "release")
    if "edge_charge" in graph:
        raise InvalidValueError(
            "release: the batch has networks that are no chains of layers, of which neural-graphs and ScaleGMN have no "
            "graphs; make graphs of the others alone"
        )
    released = [_released(data, inputs) for data in _graphs(graph, "release")]
    return Batch.from_data_list(released) if isinstance(graph, Batch) else released[0]


def _graphs(graph: Any, where: str) -> list[Data]:
    if isinstance(graph, Batch) and not hasattr(graph, "_slice_dict"):
        raise InvalidValueError(f"{where}: the batch does not know its graphs; make it by Batch.from_data_list")
    if not isinstance(graph, Data):
        raise InvalidTypeError(f"{where}: a torch_geometric Data or Batch is expected, found {type(graph).__name__}")
    return graph.to_data_list() if isinstance(graph, Batch) else [graph]


def _adopted(data: Data, space: WeightSpace, kernel: tuple[int, ...], padding: Padding | None, where: str) -> Data:
    require_tensor(data.x, "x", ("N", "C"), FLOATING, where)
    require_tensor(data.edge_attr, "edge_attr", ("E", "K C"), (data.x.dtype,), where)
    require_tensor(data.edge_index, "edge_index", (2, len(data.edge_attr)), WHOLE, where)
    factors = factors_of(space)
    layout = getattr(data, "layer_layout", None)
    widths = [space.nodes[name].size if name in space.nodes else None for name in factors.sets]
    sizes: Mapping[str, int] | None = {name: node.size for name, node in space.nodes.items() if node.size is not None}
    if layout is not None:
        layout = list(map(int, layout))
        sizes = sizes_of(space, layout) if len(layout) == len(widths) else None
    if sizes is None or len(sizes) < len(space.nodes):
        raise InvalidValueError(
            f"{where} has layers of {list(layout or widths)} neurons, {space} of {widths}: give a space of its sizes"
        )
    nodes = sum(factors.counts(space, sizes))
    if len(data.x) != nodes:
        raise InvalidValueError(f"{where} has {len(data.x)} nodes, networks of {space} have {nodes}")
    ours = structure(space, sizes, padding, data.x.device)
    rows = _rows(data.edge_index, ours["edge_index"], nodes, where)
    channels, entries, both_ways = data.x.shape[1], math.prod(kernel), len(data.edge_attr) == 2 * len(rows)
    edge_attr, width = data.edge_attr[rows], channels * entries
    if both_ways and edge_attr.shape[1] == 3 * width:
        edge_attr = edge_attr[:, :width]  # followed by those of the reverse edge, 0, and by both sums
    if edge_attr.shape[1] != width:
        raise InvalidValueError(
            f"{where}: edge_attr has width {edge_attr.shape[1]}; {channels} channels (the width of x) times the "
            f"{entries} entries of kernel {kernel} is {width}. Say which kernel they are padded to: kernel=(..)"
        )
    linear = getattr(data, "mlp_edge_masks", None)
    if linear is not None and entries > 1:
        middle = torch.arange(entries).view(kernel)[tuple((size - 1) // 2 for size in kernel)] * channels
        centred = torch.zeros_like(edge_attr)
        centred[:, middle : middle + channels] = edge_attr[:, :channels]
        edge_attr = torch.where(linear.view(-1, 1)[rows], centred, edge_attr)
    out = Data(x=torch.where(ours["has_bias"].unsqueeze(1), data.x, 0), edge_index=ours.pop("edge_index"))
    out.edge_attr = edge_attr
    for name, value in ours.items():
        out[name] = value
    out.kernel = torch.tensor([kernel], dtype=torch.long, device=data.x.device)
    for name, value in data.to_dict().items():
        if name not in out and "edge" not in name:
            out[name] = value
    return out


def _rows(edge_index: Tensor, wanted: Tensor, nodes: int, where: str) -> Tensor:
    """The places of the wanted edges among others, which may all lead backwards."""
    if not len(edge_index[0]) or bool(((edge_index < 0) | (edge_index >= nodes)).any()):
        raise InvalidValueError(f"{where} has no edges, or ends of edges that are no nodes 0 .. {nodes - 1}")
    keys = wanted[0] * nodes + wanted[1]
    forward, backward = (of[0] * nodes + of[1] for of in (edge_index, edge_index.flip(0)))
    of_space = torch.isin(forward, keys), torch.isin(backward, keys)
    fault = None
    if len(torch.unique(keys)) < len(keys):
        fault = "the space has several edges from one node to another, which nodes alone do not tell apart"
    elif len(torch.unique(forward)) < len(forward):
        fault = "an edge is there twice"
    elif not bool((of_space[0] | of_space[1]).all()):
        source, target = edge_index[:, ~(of_space[0] | of_space[1])][:, 0].tolist()
        fault = f"the edge {source} -> {target} is no weight of the space"
    else:
        present = forward if bool(of_space[0].any()) else backward
        missing = ~torch.isin(keys, present)
        if bool(missing.any()):
            source, target = wanted[:, missing][:, 0].tolist()
            fault = f"there is no edge {source} -> {target}; give pruned weights edges with zeros"
    if fault is not None:
        raise InvalidValueError(f"{where} is no graph of its space: {fault}")
    in_order, order = present.sort()
    return order[torch.searchsorted(in_order, keys)]


def _released(data: Data, inputs: float | None) -> Data:
    out = copy.copy(data)
    source, target = data.edge_index
    order = (source * len(data.x) + target).argsort()
    for name in ("edge_index", "edge_attr", "edge_layer"):
        out[name] = data[name][..., order] if name == "edge_index" else data[name][order]
    source, target = out.edge_index
    first, last, hidden = data.layer == 0, data.layer == data.depth, int((data.layer == 0).sum()) - 1
    if inputs is not None:
        out.x = torch.where(data.has_bias.bool().unsqueeze(1), data.x, inputs)
    out.bw_edge_index = out.edge_index.flip(0)
    out.mask_hidden, out.mask_first_layer = ~(first | last).unsqueeze(1), first.unsqueeze(1)
    out.sign_mask = ((data.symmetry & SCALES) == 0).all().view(1)
    out.node2type = torch.where(first, data.neuron, hidden + data.layer + data.neuron.where(last, 0))
    of_source, to_last = first[source], last[target]
    of_layer = hidden + out.edge_layer + data.neuron[target].where(to_last, 0)
    out.edge2type = torch.where(of_source, data.neuron[source], of_layer)
    return out
