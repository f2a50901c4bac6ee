"""Networks as tensors <-> networks as graphs, exactly."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch_geometric.data import Batch

from nfn_monomial import Features, WeightSpace
from nfn_monomial.checks import Size, checked, require
from nfn_monomial.errors import InvalidTypeError, InvalidValueError
from nfn_monomial.space.packing import check_tensors, pieces, require_finite

from .checks import kernel_of
from .factors import Padding, factors_of, padding_of, structure
from .networks import GraphRun, one_run, runs_of

INDICES = {"edge_index", "parent_index"}
"""Attributes that are numbers of nodes."""

Networks: TypeAlias = Features | Mapping[str, Tensor]


@checked
def to_graph(tensors: Networks, space: WeightSpace, *, kernel: Sequence[Size] | None = None) -> Batch:
    """Networks of one architecture as a ``Batch`` of graphs; `from_graph` is the exact inverse.

    A state dict with the names of the space is a batch of one network; its other entries are left out.

    The result equals ``Batch.from_data_list`` of the networks one by one, which ``batch.to_data_list()`` gives. For
    the graphs' attributes see `nfn_monomial.adapters.pyg`. Differentiable; ``batch[0]`` is a single network.

    Args:
        tensors: parameter -> ``(B, C, *shape)``, or -> ``(*shape)`` of one network, or `Features` of the space.
        space: the networks' weight space. After `Canonicalize`, ``space.uncharged()``.
        kernel: the shape that all kernels are padded to; `common_kernel` of the space by default. Graphs that shall go
            into one batch need one kernel.

    Raises:
        ValueError: if a parameter has three ends or more, a weight does not fit into ``kernel``, or for what
            `WeightSpace.pack` refuses. NaN and infinities are looked for where tensors carry no gradient.
        TypeError: if tensors are not floating point, or not all of one dtype and device.

    >>> space = WeightSpace.mlp([2, 3, 1], "relu")
    >>> tensors = {name: torch.ones(5, 1, *shape) for name, shape in space.shapes().items()}
    >>> to_graph(tensors, space)[0].edge_index
    tensor([[0, 1, 0, 1, 0, 1, 2, 3, 4],
            [2, 2, 3, 3, 4, 4, 5, 5, 5]])
    """
    return to_graphs([(tensors, space)], kernel=kernel)


@checked
def to_graphs(networks: Iterable[tuple[Networks, WeightSpace]], *, kernel: Sequence[Size] | None = None) -> Batch:
    """Networks of different architectures and activations in one ``Batch``; `from_graphs` is the inverse.

    Args:
        networks: pairs (tensors ``(B_i, C, *shape)``, their space), as in `to_graph`; graphs come in this order.
        kernel: `common_kernel` of all the spaces by default.

    Raises:
        ValueError: see `to_graph`; or if there is nothing, or numbers of channels differ.
        TypeError: if dtypes or devices differ.
    """
    networks = list(networks)
    for i, pair in enumerate(networks):
        require(pair, tuple[Networks, WeightSpace], f"to_graphs: networks[{i}]")
    if not networks:
        raise InvalidValueError("to_graphs: no networks given; at least one pair (tensors, space) is needed")
    spaces = [space for _, space in networks]
    padding = padding_of(spaces)
    frame = common_kernel(*spaces) if kernel is None else tuple(kernel)
    parts = []
    for tensors, space in networks:
        if isinstance(tensors, Features):
            tensors = space.unpack(tensors)
        elif all(name in tensors and tensors[name].ndim == len(dims) for name, dims in space.parameters.items()):
            tensors = {name: tensors[name][None, None] for name in space.parameters}  # a state dict of one network
        parts.append(attributes_of(tensors, space, frame, padding))
    first = parts[0]["x"]
    for i, part in enumerate(parts):
        x = part["x"]
        if x.shape[-1] != first.shape[-1]:
            raise InvalidValueError(
                f"to_graphs: networks {i} have {x.shape[-1]} channels, networks 0 {first.shape[-1]}"
            )
        if (x.dtype, x.device) != (first.dtype, first.device):
            raise InvalidTypeError(
                f"to_graphs: networks {i} are {x.dtype} on {x.device}, networks 0 {first.dtype} on {first.device}; "
                "convert all to one dtype and device"
            )
    return _batch(parts)


@checked
def from_graph(graph: Any, space: WeightSpace) -> dict[str, Tensor]:
    """A graph, or a batch of graphs of one architecture, as tensors ``(B, C, *shape)``: the inverse of `to_graph`.

    Nodes and edges have to be in the order in which `to_graph` writes them. Values that no parameter holds (x of nodes
    without bias, padding of kernels) are left out.

    Args:
        graph: from `to_graph`, or with its attributes; ``x (N, C)`` and ``edge_attr (E, C * K)`` of any width ``C``.
        space: the weight space. Hidden nodes may have other sizes than it says.

    Raises:
        ValueError: for what `check_graph` refuses; or if nodes or edges are missing or in another order, architectures
            differ, or the graph is of another weight space.
        TypeError: see `check_graph`.
    """
    return read(graph, [one_run(graph, space, "from_graph")])[0]


@checked
def from_graphs(graph: Any, spaces: Sequence[WeightSpace]) -> list[dict[str, Tensor]]:
    """A batch of graphs of different architectures as one dict of tensors ``(1, C, *shape)`` a network.

    Args:
        graph: from `to_graphs`, or any ``Batch`` of networks' graphs.
        spaces: the weight space of each graph, in the batch's order.

    Raises:
        ValueError: as in `from_graph`; or if there is not one space a graph.
    """
    runs = runs_of(graph, spaces, "from_graphs")
    tensors = zip(runs, read(graph, runs), strict=True)
    return [{name: t[i : i + 1] for name, t in of_run.items()} for run, of_run in tensors for i in range(run.graphs)]


@checked
def common_kernel(*spaces: WeightSpace) -> tuple[int, ...]:
    """The smallest kernel shape into which the weights of all these spaces fit; ``()`` where all are linear.

    Kernels of fewer dimensions count as ones of size 1 in the leading dimensions. Positions folded by a flatten need
    no shape, only room: where there are more of them than entries, a leading dimension is added.

    >>> common_kernel(WeightSpace.cnn([1, 8, 8], [3, 5], "relu", head=[10]), WeightSpace.mlp([2, 8, 1], "sin"))
    (5, 5)
    """
    weights = [link for space in spaces for link in space.links]
    kernels = [w.kernel[::-1] for w in weights if not w.folded]
    shape = tuple(max(sizes) for sizes in itertools.zip_longest(*kernels, fillvalue=1))[::-1]
    positions = max((math.prod(w.kernel) for w in weights if w.folded), default=1)
    room = math.prod(shape)
    return shape if room >= positions else (-(-positions // room), *shape)


class ToGraph(nn.Module):
    """`to_graph` as a module: from the core's layers, or named tensors, to graph layers.

    Args:
        space: the weight space of the input; after `Canonicalize`, ``space.uncharged()``.
        kernel: see `to_graph`.
    """

    @checked
    def __init__(self, space: WeightSpace, *, kernel: Sequence[Size] | None = None) -> None:
        super().__init__()
        factors_of(space)
        self.space = space
        self.kernel = common_kernel(space) if kernel is None else tuple(kernel)

    def forward(self, networks: Networks) -> Batch:
        """`Features` or named tensors ``(B, C, *shape)`` -> ``Batch``."""
        return to_graph(networks, self.space, kernel=self.kernel)

    def extra_repr(self) -> str:
        return f"{self.space}, kernel={self.kernel}"


class FromGraph(nn.Module):
    """`from_graph` as a module: from graph layers to the core's, which take `Features`.

    Args:
        space: the weight space of the graphs; ``space.unpack`` names the tensors of the output.
    """

    @checked
    def __init__(self, space: WeightSpace) -> None:
        super().__init__()
        factors_of(space)
        self.space = space

    def forward(self, graph: Any) -> Features:
        """``Batch`` or ``Data`` -> `Features` with as many channels as ``x`` has."""
        return self.space.pack(from_graph(graph, self.space), check_finite=False)

    def extra_repr(self) -> str:
        return str(self.space)


def attributes_of(
    tensors: Mapping[str, Tensor], space: WeightSpace, kernel: tuple[int, ...], padding: Padding | None
) -> dict[str, Tensor]:
    """The attributes of networks of one architecture, ``(networks, ...)``; indices count from 0 in each of them."""
    sizes = check_tensors(space, tensors)
    if not any(t.requires_grad for t in tensors.values()):
        require_finite(tensors)
    some = tensors[next(iter(space.parameters))]
    batch, channels = some.shape[:2]
    entries = [tensors[n].reshape(batch, channels, math.prod(tensors[n].shape[2:])) for n in space.parameters]
    flat = torch.cat(entries, 2).transpose(1, 2)
    attributes = structure(space, sizes, padding, flat.device)
    nodes, edges = len(attributes["layer"]), len(attributes["edge_layer"])
    values = flat.new_zeros(batch, nodes + edges * math.prod(kernel), channels)
    values.index_copy_(1, _slots(space, sizes, kernel).to(flat.device), flat)
    attributes["kernel"] = torch.tensor([kernel], dtype=torch.long, device=flat.device)
    repeated = {name: t.expand(batch, *t.shape) for name, t in attributes.items()}
    x, edge_attr = values[:, :nodes], values[:, nodes:].reshape(batch, edges, -1)
    return {"x": x, "edge_index": repeated.pop("edge_index"), "edge_attr": edge_attr} | repeated


def _batch(parts: Sequence[Mapping[str, Tensor]]) -> Batch:
    """Joins all networks, with the notes that ``Batch.from_data_list`` makes for ``to_data_list``."""
    counts = torch.tensor([[part["x"].shape[1], part["edge_attr"].shape[1]] for part in parts for _ in part["x"]])
    nodes, edges = torch.cat([counts.new_zeros(1, 2), counts.cumsum(0)]).unbind(1)
    device = parts[0]["x"].device
    firsts = torch.split(nodes[:-1].to(device), [len(part["x"]) for part in parts])
    values = {}
    for name in parts[0]:
        of_parts = [part[name] for part in parts]
        if name in INDICES:
            of_parts = [x + first.view(-1, *[1] * (x.ndim - 1)) for x, first in zip(of_parts, firsts, strict=True)]
        if name == "edge_index":
            of_parts = [x.transpose(1, 2) for x in of_parts]
        rows = [x.flatten(0, 1) for x in of_parts]
        values[name] = rows[0].contiguous() if len(rows) == 1 else torch.cat(rows)
    values["edge_index"] = values["edge_index"].T.contiguous()
    batch = Batch(**values)
    batch.batch = torch.arange(len(counts)).repeat_interleave(counts[:, 0]).to(device)
    batch.ptr = nodes.to(device)
    batch._num_graphs = len(counts)
    batch._slice_dict = {name: edges if name.startswith("edge") else nodes for name in values}
    batch._slice_dict["kernel"] = torch.arange(len(counts) + 1)
    batch._inc_dict = {name: torch.zeros(len(counts), dtype=torch.long) for name in values}
    batch._inc_dict |= dict.fromkeys(INDICES & values.keys(), nodes[:-1])
    return batch


def read(graph: Any, runs: Sequence[GraphRun]) -> list[dict[str, Tensor]]:
    """All graphs of a batch, for each run as parameter of its space -> ``(B, C, *shape)``."""
    kernel, channels = kernel_of(graph), graph.x.shape[1]
    networks, node, edge = [], 0, 0
    for space, sizes, count in runs:
        nodes, edges = (count * sum(of(space, sizes)) for of in (factors_of(space).counts, factors_of(space).edges))
        rows = graph.x[node : node + nodes], graph.edge_attr[edge : edge + edges]
        node, edge = node + nodes, edge + edges
        flat = torch.cat([x.reshape(count, -1, channels) for x in rows], 1).transpose(1, 2)
        flat = flat.index_select(2, _slots(space, sizes, kernel).to(flat.device))
        shapes = {name: space.shape_of(name, sizes) for name in space.parameters}
        parts = torch.split(flat, list(map(math.prod, shapes.values())), 2)
        networks.append({n: x.reshape(count, channels, *shapes[n]) for n, x in zip(shapes, parts, strict=True)})
    return networks


def _slots(space: WeightSpace, sizes: Mapping[str, int], kernel: tuple[int, ...]) -> Tensor:
    """The places of the entries of all parameters in a network's ``x`` followed by its ``edge_attr``."""
    graph = factors_of(space)
    shapes = [space.shape_of(name, sizes) for name in space.parameters]
    slots = torch.empty(sum(map(math.prod, shapes)), dtype=torch.long)
    numbers = torch.split(torch.arange(len(slots)), list(map(math.prod, shapes)))
    entries = zip(space.parameters, numbers, shapes, strict=True)
    numbers_of = pieces(space, {name: x.view(shape) for name, x, shape in entries}, sizes)
    first = 0
    for name, count in zip(graph.biases, graph.counts(space, sizes), strict=True):
        if name is not None:
            slots[numbers_of[name].flatten()] = torch.arange(first, first + count)
        first += count
    for factor, count in zip(graph.factors, graph.edges(space, sizes), strict=True):
        of_kernel = _kernel_slots(factor.piece, factor.kernel, factor.folded, kernel)
        edge = torch.arange(count)[:, None] * math.prod(kernel)
        slots[numbers_of[factor.piece].permute(factor.order).reshape(count, -1)] = first + edge + of_kernel
        first += count * math.prod(kernel)
    return slots


def _kernel_slots(name: str, inner: Sequence[int], folded: bool, outer: Sequence[int]) -> Tensor:
    """The places of a kernel's entries in a flattened larger one: in its middle, folded positions at its start.

    Raises:
        ValueError: naming the parameter, if it does not fit.
    """
    sizes = (math.prod(inner),) if folded else (*[1] * (len(outer) - len(inner)), *inner)
    slots = torch.arange(math.prod(outer)).view((-1,) if folded else tuple(outer))
    if len(sizes) != slots.ndim or any(size > room for size, room in zip(sizes, slots.shape, strict=True)):
        raise InvalidValueError(
            f"{name} has {'positions' if folded else 'kernel'} {tuple(inner)}, which do not fit into "
            f"kernel={tuple(outer)}; common_kernel(*spaces) gives the smallest that holds the weights of all spaces"
        )
    for dim, size in enumerate(sizes):
        margin = 0 if folded else (slots.shape[dim] - size) // 2
        slots = slots.narrow(dim, margin, size)
    return slots.flatten()
