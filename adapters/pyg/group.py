"""The symmetry group on graphs, also on batches of different architectures, and checks of graph layers against it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch_geometric.transforms import BaseTransform

from nfn_monomial import Axis, Features, GroupElement, Symmetry, WeightSpace
from nfn_monomial.canonical.balance import balance
from nfn_monomial.checks import FLOATING, WHOLE, AtLeastZero, Count, Seed, checked, shown
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.space.certificate import relative_error
from nfn_monomial.testing import require_small, spread_of

from .arrange import node_order, one_group
from .checks import check_graph, graph_ids, require_tensor
from .convert import from_graph
from .factors import FLIPS, SCALES, factors_of, gauges_of


@dataclass(frozen=True, eq=False, repr=False)
class GraphElement:
    """One group element for each network of a batch of graphs: a scale for every node, and where each one moves.

    Args:
        scale: ``d (N,)``, nonzero, in float64; at the places that neurons move to. Of graphs of any network
            ``(N, G)``, one for each gauge.
        permutation: ``pi (N,)``: the neuron at node ``k`` moves to node ``pi(k)`` of the same graph and layer.
    """

    scale: Tensor
    permutation: Tensor

    def __post_init__(self) -> None:
        require_tensor(self.permutation, "permutation", ("N",), WHOLE, "GraphElement")
        nodes = len(self.permutation)
        of_gauges = ("G",) if isinstance(self.scale, Tensor) and self.scale.ndim > 1 else ()
        require_tensor(self.scale, "scale", (nodes, *of_gauges), FLOATING, "GraphElement")
        if not nodes or self.scale.device != self.permutation.device:
            raise InvalidValueError(
                f"GraphElement: a scale and a place for each node are needed, found {shown(self.scale)} and "
                f"{shown(self.permutation)}"
            )

    def inverse(self) -> GraphElement:
        """The inverse element."""
        return GraphElement(1 / self.scale[self.permutation], self.permutation.argsort())

    def act(self, graph: Any) -> Any:
        """``x_j -> d_j x_{pi^-1(j)}`` and ``edge_attr_jk -> d_j / d_k edge_attr_{pi^-1(j) pi^-1(k)}``.

        The networks' action (paper Def. 4.2) on their graphs: neurons move with their values, nodes stay where they
        are, and so do all attributes but ``x`` and ``edge_attr``. What a node's ``symmetry`` does not allow is left
        out: on a canonicalised graph, whose nodes are only permuted, scales do nothing. Edges that have charges of
        their own (``edge_charge``) are scaled by those powers.

        Args:
            graph: with the nodes that the element was made for; ``x`` and ``edge_attr`` of any width.

        Returns:
            A new graph; the input is not written to. Of graphs that lack edges, edges move as well.

        Raises:
            ValueError: if the element moves a neuron to another graph or layer, or one that is FIXED, or a nested one
                away from the neuron that it is nested in.
        """
        check_graph(graph, "GraphElement.act")
        ids, _ = graph_ids(graph)
        n, moved = len(ids), self.permutation
        if len(moved) != n:
            raise InvalidValueError(f"GraphElement of {len(moved)} nodes on a graph of {n}: make one for this graph")
        if not torch.equal(moved.sort().values.to(ids), torch.arange(n, device=ids.device)):
            raise InvalidValueError(f"GraphElement: permutation must hold each of 0..{n - 1} once")
        stays = (ids[moved] == ids) & (graph.layer[moved] == graph.layer)
        stays &= (graph.symmetry > 0) | (moved == torch.arange(n, device=moved.device))
        if hasattr(graph, "parent_index"):
            root = graph.parent_index == torch.arange(n, device=moved.device)
            stays &= root | (graph.parent_index[moved] == moved[graph.parent_index])
        if not bool(stays.all()):
            raise InvalidValueError(
                "GraphElement moves a FIXED neuron, or one to another graph or layer: make one for this graph"
            )
        gauges, scale = _gauges(graph), self.scale.view(n, -1)
        scale = torch.where(gauges & SCALES > 0, scale.abs(), 1.0) * torch.where(gauges & FLIPS > 0, scale.sign(), 1.0)
        source, target = moved[graph.edge_index]
        charge = getattr(graph, "edge_charge", torch.tensor([[[1], [-1]]], device=moved.device))
        edges = graph.edge_attr
        for at, powers in zip((target, source), charge.unbind(1), strict=True):
            edges = edges * _power(scale[at], powers).to(edges)
        # Edges keep their places too: of a parameter, the r-th by (target, source) takes the values that are r-th after
        # the move.
        key = graph.edge_layer * n
        now = ((key + graph.edge_index[1]) * n + graph.edge_index[0]).argsort()
        then = ((key + target) * n + source).argsort()
        order = then[now.argsort()]
        out = copy.copy(graph)
        out.x = scale[:, :1].to(graph.x) * graph.x[moved.argsort()]
        out.edge_index, out.edge_attr = torch.stack([source, target])[:, order], edges[order]
        out.edge_layer = graph.edge_layer[order]
        return out


def _power(scale: Tensor, charges: Tensor) -> Tensor:
    """Products over gauges of powers of scales ``(E, G)``: ``(E, 1)``."""
    powers = torch.ones_like(scale)
    for q in charges.unique().tolist():  # type: ignore[no-untyped-call]
        powers = torch.where(charges == q, scale.pow(q), powers)
    return powers.prod(-1, keepdim=True)


def _gauges(graph: Any) -> Tensor:
    """The symmetry of each gauge of each node: ``(N, G)``, one where the graph does not say otherwise."""
    gauges: Tensor = getattr(graph, "gauges", graph.symmetry[:, None])
    return gauges


@checked
def graph_element(element: GroupElement, graph: Any) -> GraphElement:
    """A weight space's group element, single or one per network, as it acts on graphs of that space.

    Raises:
        ValueError: if the graph is not of the element's space, or its sizes or number of networks differ.
    """
    check_graph(graph, "graph_element")
    assert isinstance(element.space, WeightSpace), "of which graphs are made"
    group = one_group(graph, element.space)
    space, sizes, _ = group
    order, factors = node_order(graph, group), factors_of(space)
    gauges = graph.gauges.shape[1] if "gauges" in graph else 1
    scales, targets, start = [], [], 0
    for name, count in zip(factors.sets, factors.counts(space, sizes), strict=True):
        above = space.ancestry(name) if name in space.nodes else ()
        numbers = torch.arange(count, dtype=torch.float64, device=order.device).expand(len(order), count)
        moved = _acting(element, space, above, sizes, numbers)
        targets.append(start + moved.round().long().argsort(-1))
        columns = [torch.ones_like(numbers)] * gauges
        for column, (node, gauge) in enumerate(gauges_of(space, name, factors.hosted)):
            if node in above:
                columns[column] = _acting(element, space, above, sizes, columns[column], (node, gauge))
            elif node in element.matrices:  # of size 1
                columns[column] = element.matrices[node].scales[gauge].to(numbers).expand_as(numbers)
        scales.append(torch.stack(columns, -1))
        start += count
    at, scale = order.flatten(), torch.cat(scales, 1).flatten(0, 1)
    permutation = torch.empty_like(at).scatter(0, at, order.gather(1, torch.cat(targets, 1)).flatten())
    scale = torch.empty_like(scale).index_copy(0, at, scale)
    return GraphElement(scale if "gauges" in graph else scale[:, 0], permutation)


def _acting(
    element: GroupElement,
    space: WeightSpace,
    above: tuple[str, ...],
    sizes: Mapping[str, int],
    values: Tensor,
    charged: tuple[str, int] | None = None,
) -> Tensor:
    """What becomes of a number for each neuron, which has charge 1 on one gauge of one of the nodes it is nested in."""
    if not above:
        return values
    charges = [tuple(int((n, i) == charged) for i in range(len(space.nodes[n].gauges))) for n in above]
    axes = tuple(Axis(n, q if len(q) > 1 else q[0]) for n, q in zip(above, charges, strict=True))
    x = values.reshape(len(values), *(sizes[n] for n in above), 1)
    return element.act(Features(space.layout_of([axes], fold=False), (x,))).tensors[0].flatten(1)


@checked
def random_graph_element(graph: Any, *, generator: torch.Generator | None = None) -> GraphElement:
    """A random element of every network's own group, read off the graph's ``symmetry`` and ``layer``.

    Never the identity: where neurons may be permuted they are moved in one random cycle a layer (of nested ones, in
    what they are nested in, and along with it), scales are log-normal, and of two or more signs both occur. FIXED nodes
    stay as they are.

    Args:
        graph: any graph or batch of networks.
        generator: source of randomness, on the CPU.
    """
    check_graph(graph, "random_graph_element")
    ids, layer, neuron = (x.cpu() for x in (graph_ids(graph)[0], graph.layer, graph.neuron))
    gauges, n = _gauges(graph).cpu(), len(ids)
    every = torch.arange(n)
    parent = graph.parent_index.cpu() if "parent_index" in graph else every
    inherited = torch.arange(gauges.shape[1]) < (graph.inherited.cpu()[:, None] if "inherited" in graph else 0)
    free, nested = (gauges.masked_fill(inherited, 0) > 0).any(1), parent != every
    # Blocks are the neurons of one layer, or those of one layer that are nested in one neuron.
    layers = (ids * (int(layer.max()) + 1) + layer) * (n + 1)
    keys, block, sizes = (layers + (parent + 1) * nested).unique(return_inverse=True, return_counts=True)
    start = sizes.cumsum(0) - sizes

    def by_block(order: Tensor) -> tuple[Tensor, Tensor]:
        """Nodes sorted by block, in an order within; and the rank of each node in its block."""
        ordered = order[block[order].argsort(stable=True)]
        return ordered, torch.empty_like(ordered).scatter(0, ordered, every) - start[block]

    shuffled, rank = by_block(torch.randperm(n, generator=generator))
    sign = 1.0 - 2.0 * torch.randint(2, gauges.shape, generator=generator)
    sign = sign.masked_fill(rank[:, None] == 0, -1.0).masked_fill(rank[:, None] == 1, 1.0)
    size = torch.randn(gauges.shape, dtype=torch.float64, generator=generator).exp()
    scale = torch.where(gauges & FLIPS > 0, sign, 1.0) * torch.where(gauges & SCALES > 0, size, 1.0)
    # In a cycle each neuron moves to the place of the next one.
    cycle = torch.where(free, shuffled[start[block] + (rank + 1) % sizes[block]], every)
    ordered, rank = by_block(neuron.argsort())
    permutation, before = cycle, every
    while not torch.equal(permutation, before):  # a round for each level: neurons move along with their parents
        before = permutation
        into = torch.searchsorted(keys, layers + permutation[parent] + 1).masked_fill(~nested, 0)
        permutation = torch.where(nested, ordered[start[into] + rank[cycle]], cycle)
        scale = torch.where(inherited, scale[parent], scale)
    scale = scale if "gauges" in graph else scale[:, 0]
    return GraphElement(scale.to(graph.x.device), permutation.to(graph.x.device))


@checked
def act(graph: Any, element: GroupElement | GraphElement) -> Any:
    """``element`` on a graph or a batch of graphs: ``act(to_graph(tensors), g) = to_graph(g.act(tensors))``.

    Args:
        graph: with the attributes of `to_graph`.
        element: of the graphs' weight space, single or one per network; or made for these graphs, see `GraphElement`.

    Raises:
        ValueError: see `graph_element` and `GraphElement.act`.
    """
    return (graph_element(element, graph) if isinstance(element, GroupElement) else element).act(graph)


class BalanceGraph(BaseTransform):  # type: ignore[misc]  # torch_geometric is not typed
    """`balance` as a ``torch_geometric`` transform: the canonical graph, of which only permutations are left.

    ``x`` and ``edge_attr`` become those of the balanced network, and ``symmetry`` what is left of each node's group:
    PERMUTATION (without ``signs`` or ``scales``: what they leave). So any graph layer behind keeps the symmetries, and
    `from_graph` reads the result with ``space.restricted("permutation")``. Networks of different architectures are
    balanced before they become graphs.

    Args:
        space: the weight space of the graphs that come in.
        scales: whether to fix scales.
        signs: whether to fix signs.
    """

    @checked
    def __init__(self, space: WeightSpace, *, scales: bool = True, signs: bool = True) -> None:
        self.space, self.scales, self.signs = space, scales, signs

    def __call__(self, data: Any) -> Any:
        check_graph(data, "BalanceGraph")
        return super().__call__(data)

    def forward(self, data: Any) -> Any:
        """``Data`` or ``Batch`` -> the same kind of thing; see `from_graph` for errors."""
        _, element = balance(from_graph(data, self.space), self.space, scales=self.scales, signs=self.signs)
        out = act(data, element)
        left = Symmetry.MONOMIAL.value
        left -= SCALES if self.scales else 0
        left -= FLIPS if self.signs else 0
        for name in ("symmetry", "gauges", "stream_symmetry"):
            if name in data:
                out[name] = data[name] & left
        return out

    def __repr__(self) -> str:
        return f"BalanceGraph({self.space}, scales={self.scales}, signs={self.signs})"


@checked
def assert_graph_equivariant(
    layer: Callable[[Any], Any], graph: Any, *, trials: Count = 3, rtol: AtLeastZero | None = None, seed: Seed = 0
) -> None:
    """Assert that ``layer(g graph) = g layer(graph)`` for random g of each network's own group.

    Args:
        layer: maps a graph to one with the same nodes, with new ``x``, ``edge_attr`` or both.
        graph: what to try it on, such as a batch of different architectures and activations from `to_graphs`.
        trials: group elements tried.
        rtol: largest error of ``g^-1 layer(g graph)``, relative to the largest entry: 1e-10 in float64.
        seed: of the elements.

    Raises:
        AssertionError: naming ``x`` or ``edge_attr`` and the error; or if both are zero, which proves nothing.
        ValueError: if ``trials`` is less than 1.
    """
    check_graph(graph, "assert_graph_equivariant")
    expected = layer(graph)
    if not bool(expected.x.any()) and not bool(expected.edge_attr.any()):
        raise AssertionError("the layer's output is zero everywhere, which is equivariant but proves nothing")
    generator = torch.Generator().manual_seed(seed)

    def errors() -> dict[str, float]:
        g = random_graph_element(graph, generator=generator)
        back = g.inverse().act(layer(g.act(graph)))
        names = ("x", "edge_attr")
        return {name: relative_error(back[name], expected[name], expected[name].abs().max()) for name in names}

    require_small(errors, trials, rtol, expected.x.dtype, "the output is not equivariant")


@checked
def assert_graph_invariant(
    readout: Callable[[Any], Tensor], graph: Any, *, trials: Count = 3, rtol: AtLeastZero | None = None, seed: Seed = 0
) -> None:
    """Assert that ``readout(g graph) = readout(graph)``; errors are measured against the spread over the networks.

    Args:
        readout: maps a batch of graphs to a tensor ``(number of graphs, ...)``.
        graph: a batch of two networks or more.
        trials: see `assert_graph_equivariant`, as is ``seed``.
        rtol: largest change, relative to the largest standard deviation over networks: 1e-10 in float64.
        seed: of the elements.

    Raises:
        AssertionError: with the error; or if the output is the same for all networks, which proves nothing.
        ValueError: if ``trials`` is less than 1.
    """
    check_graph(graph, "assert_graph_invariant")
    expected = readout(graph).detach()
    spread = spread_of(expected)
    generator = torch.Generator().manual_seed(seed)

    def errors() -> dict[str, float]:
        moved = random_graph_element(graph, generator=generator).act(graph)
        return {"output": relative_error(readout(moved), expected, spread)}

    require_small(errors, trials, rtol, expected.dtype, "the output is not invariant")
