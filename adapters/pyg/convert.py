"""Networks as tensors <-> networks as graphs, exactly, without loops over networks."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch_geometric.data import Batch

from nfn_monomial import Features, WeightSpace
from nfn_monomial.checks import Size, checked, require
from nfn_monomial.errors import InvalidTypeError, InvalidValueError
from nfn_monomial.space.packing import check_tensors, pieces, require_finite

from .checks import check_graph
from .factors import Widths, edge_values, factors_of, read_factors, widths_of
from .factors import skeleton as factor_skeleton
from .layout import chain_of, common_kernel, is_chain, pad, skeleton
from .places import GraphView, kernel_of, read
from .spreading import spread

INDICES = {"edge_index", "parent_index"}
"""Attributes that are numbers of nodes."""

Networks: TypeAlias = Features | Mapping[str, Tensor]


@checked
def to_graph(tensors: Networks, space: WeightSpace, *, kernel: Sequence[Size] | None = None) -> Batch:
    """Networks of one architecture as a ``Batch`` of graphs; `from_graph` is the exact inverse.

    The result equals ``Batch.from_data_list`` of the networks one by one, which ``batch.to_data_list()`` gives. For
    the graphs' attributes see `nfn_monomial.adapters.pyg`. Differentiable; ``batch[0]`` is a single network.

    Args:
        tensors: parameter -> ``(B, C, *shape)``, or `Features` of the space.
        space: the networks' weight space. Behind `Canonicalize`, ``space.uncharged()``.
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
    pairs = [
        (space.unpack(given) if isinstance(given, Features) else given, spread(space)) for given, space in networks
    ]
    if not pairs:
        raise InvalidValueError("to_graphs: no networks given; at least one pair (tensors, space) is needed")
    frame = common_kernel(*(space for _, space in pairs)) if kernel is None else tuple(kernel)
    spaces = [space for _, space in pairs]
    widths = None if all(map(is_chain, spaces)) else widths_of(*spaces)
    parts = [_part(tensors, space, frame, widths) for tensors, space in pairs]
    first = parts[0].values["x"]
    for i, part in enumerate(parts):
        x = part.values["x"]
        if x.shape[1] != first.shape[1]:
            raise InvalidValueError(f"to_graphs: networks {i} have {x.shape[1]} channels, networks 0 {first.shape[1]}")
        if (x.dtype, x.device) != (first.dtype, first.device):
            raise InvalidTypeError(
                f"to_graphs: networks {i} are {x.dtype} on {x.device}, networks 0 {first.dtype} on {first.device}; "
                "convert all to one dtype and device"
            )
    counts = torch.tensor([[part.nodes, part.edges] for part in parts for _ in range(part.networks)])
    pointers = torch.cat([counts.new_zeros(1, 2), counts.cumsum(0)])
    nodes, edges = pointers.unbind(1)
    starts = itertools.accumulate((part.networks * part.nodes for part in parts[:-1]), initial=0)
    for part, start in zip(parts, starts, strict=True):
        for name in INDICES & part.values.keys():
            part.values[name] += start
    names = list(parts[0].values)
    values = {name: _cat([part.values[name] for part in parts], dim=1 if name == "edge_index" else 0) for name in names}
    batch = Batch(**values)
    batch.batch = torch.arange(len(counts)).repeat_interleave(counts[:, 0]).to(first.device)
    batch.ptr = nodes.clone().to(first.device)
    # What Batch.from_data_list notes down for to_data_list and indexing.
    batch._num_graphs = len(counts)
    batch._slice_dict = {name: edges if name.startswith("edge") else nodes for name in values}
    batch._slice_dict["kernel"] = torch.arange(len(counts) + 1)
    batch._inc_dict = {name: torch.zeros(len(counts), dtype=torch.long) for name in values}
    batch._inc_dict |= dict.fromkeys(INDICES & values.keys(), nodes[:-1])
    return batch


@checked
def from_graph(graph: Any, space: WeightSpace) -> dict[str, Tensor]:
    """A graph, or a batch of graphs of one architecture, as tensors ``(B, C, *shape)``: the inverse of `to_graph`.

    Nodes and edges may have been put in another order: they are placed by graph, layer and neuron number. Values
    that no parameter holds (x of nodes without bias, padding of kernels) are left out.

    Args:
        graph: from `to_graph`, or with its attributes; ``x (N, C)`` and ``edge_attr (E, C * K)`` of any width ``C``.
        space: the weight space. Hidden nodes may have other sizes than it says.

    Raises:
        ValueError: for what `check_graph` refuses; or if edges are missing, architectures differ, or the graph
            is of another weight space.
        TypeError: see `check_graph`.
    """
    check_graph(graph, "from_graph")
    return _read(graph, GraphView.of(graph), space)


@checked
def from_graphs(graph: Any, spaces: Sequence[WeightSpace]) -> list[dict[str, Tensor]]:
    """A batch of graphs of different architectures as one dict of tensors ``(1, C, *shape)`` a network.

    Args:
        graph: from `to_graphs`, or any ``Batch`` of networks' graphs.
        spaces: the weight space of each graph, in the batch's order.

    Raises:
        ValueError: as in `from_graph`; or if there is not one space a graph.
    """
    check_graph(graph, "from_graphs")
    view = GraphView.of(graph)
    if len(spaces) != view.networks:
        raise InvalidValueError(
            f"from_graphs: {len(spaces)} spaces for {view.networks} graphs; one each is needed, in order"
        )
    groups: dict[tuple[WeightSpace, tuple[int, ...]], list[int]] = {}
    for i, key in enumerate(zip(spaces, view.widths(), strict=True)):
        groups.setdefault(key, []).append(i)
    networks: list[dict[str, Tensor]] = [{} for _ in spaces]
    for (space, _), members in groups.items():
        tensors = _read(graph, view.select(members), space)
        for i, member in enumerate(members):
            networks[member] = {name: t[i : i + 1] for name, t in tensors.items()}
    return networks


class ToGraph(nn.Module):
    """`to_graph` as a module: from the core's layers, or named tensors, to graph layers.

    Args:
        space: the weight space of what comes in; behind `Canonicalize`, ``space.uncharged()``.
        kernel: see `to_graph`.
    """

    @checked
    def __init__(self, space: WeightSpace, *, kernel: Sequence[Size] | None = None) -> None:
        super().__init__()
        if not is_chain(space):
            factors_of(spread(space))
        self.space = space
        self.kernel = common_kernel(spread(space)) if kernel is None else tuple(kernel)

    def forward(self, networks: Networks) -> Batch:
        """`Features` or named tensors ``(B, C, *shape)`` -> ``Batch``."""
        return to_graph(networks, self.space, kernel=self.kernel)

    def extra_repr(self) -> str:
        return f"{self.space}, kernel={self.kernel}"


class FromGraph(nn.Module):
    """`from_graph` as a module: from graph layers to the core's, which take `Features`.

    Args:
        space: the weight space of the graphs; ``space.unpack`` names the tensors of what comes out.
    """

    @checked
    def __init__(self, space: WeightSpace) -> None:
        super().__init__()
        if not is_chain(space):
            factors_of(spread(space))
        self.space = space

    def forward(self, graph: Any) -> Features:
        """``Batch`` or ``Data`` -> `Features` with as many channels as ``x`` has."""
        return self.space.pack(from_graph(graph, self.space), check_finite=False)

    def extra_repr(self) -> str:
        return str(self.space)


class _Part(NamedTuple):
    """Networks of one architecture: attributes as in a batch, how many networks, and the nodes and edges of one."""

    values: dict[str, Tensor]
    networks: int
    nodes: int
    edges: int


def _read(graph: Any, view: GraphView, space: WeightSpace) -> dict[str, Tensor]:
    return read_factors(view, spread(space), kernel_of(view)) if hasattr(graph, "edge_charge") else read(view, space)


def _part(tensors: Mapping[str, Tensor], space: WeightSpace, kernel: tuple[int, ...], widths: Widths | None) -> _Part:
    if widths is None:
        chain_of(space)
    sizes = check_tensors(space, tensors)
    if not any(t.requires_grad for t in tensors.values()):
        require_finite(tensors)
    some = tensors[next(iter(space.parameters))]
    batch, channels, device = some.shape[0], some.shape[1], some.device
    if widths is None:
        x, edges, nodes, indices = _chain_part(tensors, space, kernel, sizes)
    else:
        nodes, indices = factor_skeleton(space, sizes, widths, device)
        x = some.new_zeros(batch, len(nodes["layer"]), channels)
        edges = edge_values(space, tensors, sizes, kernel)
    n, e = x.shape[1], edges.shape[1]
    repeated = {name: t.repeat(batch, *[1] * (t.ndim - 1)) for name, t in (nodes | indices).items()}
    for name in INDICES & repeated.keys():
        count = e if name == "edge_index" else n
        shift = n * torch.arange(batch, device=device).repeat_interleave(count)
        repeated[name] += shift.view(-1, *[1] * (repeated[name].ndim - 1))
    values = {
        "x": x.flatten(0, 1),
        "edge_index": repeated.pop("edge_index").T.contiguous(),
        "edge_attr": edges.flatten(0, 1),
        "edge_layer": repeated.pop("edge_layer"),
        **repeated,
        "kernel": torch.tensor(kernel, dtype=torch.long, device=device).expand(batch, -1).contiguous(),
    }
    return _Part(values, batch, n, e)


def _chain_part(
    tensors: Mapping[str, Tensor], space: WeightSpace, kernel: tuple[int, ...], sizes: Mapping[str, int]
) -> tuple[Tensor, Tensor, dict[str, Tensor], dict[str, Tensor]]:
    """``x (B, n, C)``, ``edge_attr (B, e, K C)``, and what `skeleton` gives, of a chain of layers."""
    chain = chain_of(space)
    some = tensors[chain.weights[0].parameter]
    biases = [
        some.new_zeros(some.shape[0], sizes[node], some.shape[1]) if name is None else tensors[name].transpose(1, 2)
        for node, name in zip(chain.nodes, chain.biases, strict=True)
    ]
    taken = pieces(space, tensors, sizes)
    edges = [pad(taken[weight.parameter].permute(weight.order), weight, kernel) for weight in chain.weights]
    nodes, edge_index, edge_layer = skeleton(chain, [sizes[node] for node in chain.nodes], some.device)
    indices = {"edge_index": edge_index.T, "edge_layer": edge_layer}
    return torch.cat(biases, 1), torch.cat(edges, 1), nodes, indices


def _cat(tensors: list[Tensor], dim: int = 0) -> Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors, dim)
