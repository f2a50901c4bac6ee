"""The symmetry group on graphs, also on batches of different architectures, and checks of graph layers against it."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nfn_monomial import GroupElement, WeightSpace
from nfn_monomial.checks import AtLeastZero, Count, Seed, checked
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.running import relative_error
from nfn_monomial.testing import require_small, spread_of

from .checks import check_graph, graph_ids, kernel_of
from .convert import attributes_of, read
from .factors import FLIPS, SCALES
from .networks import one_run


@dataclass(frozen=True, eq=False, repr=False)
class GraphElement:
    """One group element for each network of a batch of graphs: a scale for every node, and where each one moves.

    Attributes:
        scale: ``d (N,)``, nonzero, in float64; at the places that neurons move to. Of graphs of any network
            ``(N, G)``, one for each gauge.
        permutation: ``pi (N,)``: the neuron at node ``k`` moves to node ``pi(k)`` of the same graph and layer.
    """

    scale: Tensor
    permutation: Tensor

    def inverse(self) -> GraphElement:
        """The inverse element."""
        return GraphElement(1 / self.scale[self.permutation], self.permutation.argsort())

    def act(self, graph: Any) -> Any:
        """``x_j -> d_j x_{pi^-1(j)}`` and ``edge_attr_jk -> d_j / d_k edge_attr_{pi^-1(j) pi^-1(k)}``.

        The networks' action (paper Def. 4.2) on their graphs: neurons move with their values, nodes stay where they
        are, and so do all attributes but ``x`` and ``edge_attr``. Factors that a node's ``symmetry`` does not allow are
        left out: on a canonicalised graph, whose nodes are only permuted, scales do nothing. Edges that have charges of
        their own (``edge_charge``) are scaled by those powers.

        Args:
            graph: with the nodes that the element was made for; ``x`` and ``edge_attr`` of any width.

        Returns:
            A new graph; the input is not written to. Of graphs that lack edges, edges move as well.

        Raises:
            ValueError: see `check_graph`; or if it was made for other graphs.
        """
        check_graph(graph, "GraphElement.act")
        moved, sets = self.permutation, torch.stack([graph_ids(graph)[0], graph.layer])
        if len(moved) != sets.shape[1] or not torch.equal(sets[:, moved], sets):
            raise InvalidValueError(
                f"GraphElement of {len(moved)} nodes on a graph of {sets.shape[1]}: make one for this graph"
            )
        gauges, scale = _gauges(graph), self.scale.view(len(moved), -1)
        scale = torch.where(gauges & SCALES > 0, scale.abs(), 1.0) * torch.where(gauges & FLIPS > 0, scale.sign(), 1.0)
        source, target = moved[graph.edge_index]
        charge = getattr(graph, "edge_charge", torch.tensor([[[1], [-1]]], device=moved.device))
        edges = graph.edge_attr
        for at, powers in zip((target, source), charge.unbind(1), strict=True):
            edges = edges * scale[at].pow(powers).prod(-1, keepdim=True).to(edges)
        # Edges keep their places too: of a parameter, the r-th by (target, source) takes the values that are r-th after
        # the move.
        now = _order_by(graph.edge_layer, *graph.edge_index.flip(0))
        order = _order_by(graph.edge_layer, target, source)[now.argsort()]
        out = copy.copy(graph)
        out.x = scale[:, :1].to(graph.x) * graph.x[moved.argsort()]
        out.edge_index, out.edge_attr = torch.stack([source, target])[:, order], edges[order]
        return out


def _order_by(*numbers: Tensor) -> Tensor:
    """The permutation that sorts by whole numbers from 0 on, by the first of them first."""
    return functools.reduce(lambda key, number: key * (int(number.max()) + 1) + number, numbers).argsort()


def _gauges(graph: Any) -> Tensor:
    """The symmetry of each gauge of each node: ``(N, G)``; one gauge where the graph has no ``gauges``."""
    gauges: Tensor = getattr(graph, "gauges", graph.symmetry[:, None])
    return gauges


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
    gauges, every = _gauges(graph).cpu(), torch.arange(len(ids))
    parent = graph.parent_index.cpu() if "parent_index" in graph else every
    inherited = torch.arange(gauges.shape[1]) < (graph.inherited.cpu()[:, None] if "inherited" in graph else 0)
    # Blocks are the neurons of one layer, or those of one layer that are nested in one neuron.
    block = torch.stack([ids, layer, torch.where(parent == every, 0, parent + 1)])
    shuffled = _order_by(*block, torch.randperm(len(ids), generator=generator))
    last = block[:, shuffled].diff(append=-torch.ones_like(block[:, :1])).any(0)
    first = last.roll(1)
    following = shuffled.roll(-1).masked_scatter(last, shuffled[first])
    # In a cycle each neuron moves to the place of the next one.
    free = (gauges.masked_fill(inherited, 0) > 0).any(1)
    cycle = torch.where(free, torch.empty_like(every).index_copy(0, shuffled, following), every)
    sign = 1.0 - 2.0 * torch.randint(2, gauges.shape, generator=generator)
    sign[following[first]] = 1.0
    sign[shuffled[first]] = -1.0
    size = torch.randn(gauges.shape, dtype=torch.float64, generator=generator).exp()
    scale = torch.where(gauges & FLIPS > 0, sign, 1.0) * torch.where(gauges & SCALES > 0, size, 1.0)
    places, permutation = _order_by(ids, layer, neuron), cycle
    for _ in range(gauges.shape[1]):  # at least once for each level: neurons move along with their parents
        order = _order_by(ids, layer, neuron[permutation[parent]], neuron[cycle])
        permutation = torch.empty_like(every).index_copy(0, order, places)
        scale = torch.where(inherited, scale[parent], scale)
    scale = scale if "gauges" in graph else scale[:, 0]
    return GraphElement(scale.to(graph.x.device), permutation.to(graph.x.device))


@checked
def act(graph: Any, element: GroupElement | GraphElement) -> Any:
    """``element`` on a graph or a batch of graphs: ``act(to_graph(tensors), g) = to_graph(g.act(tensors))``.

    Args:
        graph: with the attributes of `to_graph`. What no parameter holds, such as ``x`` of nodes without bias, becomes
            0 under an element of a weight space.
        element: of the graphs' weight space, single or one per network; or made for these graphs, by
            `random_graph_element`.

    Returns:
        A new graph; nodes and edges stay where they are.

    Raises:
        ValueError: see `from_graph` and `GraphElement.act`.
    """
    if isinstance(element, GraphElement):
        return element.act(graph)
    assert isinstance(element.space, WeightSpace), "of which graphs are made"
    (tensors,) = read(graph, [one_run(graph, element.space, "act")])
    moved = attributes_of(element.act(tensors), element.space, kernel_of(graph), None)
    out = copy.copy(graph)
    out.x, out.edge_attr = moved["x"].flatten(0, 1), moved["edge_attr"].flatten(0, 1)
    return out


@checked
def assert_graph_equivariant(
    layer: Callable[[Any], Any], graph: Any, *, trials: Count = 3, rtol: AtLeastZero | None = None, seed: Seed = 0
) -> None:
    """Assert that ``layer(g graph) = g layer(graph)`` for random g of each network's own group.

    Args:
        layer: maps a graph to one with the same nodes, with new ``x``, ``edge_attr`` or both.
        graph: the graph to try it on, such as a batch of different architectures and activations from `to_graphs`.
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
