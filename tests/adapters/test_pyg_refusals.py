"""What is no network's graph, or no graph of this space, is refused with what is wrong."""

import copy

import pytest
import torch
import torch_geometric.transforms as T
from graphs import CNN, GAIN, RELU, assert_same, networks_of, shuffled
from torch_geometric.data import Batch, Data

from nfn_monomial import Axis, Symmetry, WeightSpace
from nfn_monomial.adapters.pyg import (
    act,
    check_graph,
    from_graph,
    from_graphs,
    random_graph_element,
    to_graph,
    to_graphs,
)


def edited(graph, **changes):
    out = copy.copy(graph)
    for name, change in changes.items():
        out[name] = change(out[name])
    return out


def set_at(index, value):
    def change(t):
        t = t.clone()
        t[index] = value
        return t

    return change


def with_edges(graph, edges, layers):
    """The graph with more edges, all attributes complete."""
    extra = torch.tensor(edges).T
    return edited(
        graph,
        edge_index=lambda t: torch.cat([t, extra], 1),
        edge_attr=lambda t: torch.cat([t, torch.ones(len(edges), t.shape[1], dtype=t.dtype)]),
        edge_layer=lambda t: torch.cat([t, torch.tensor(layers)]),
    )


# RELU as a graph: x 0 1, h1 2 3 4 5, h2 6 7 8, y 9; the second of a batch of two from 10 on.
BROKEN = {
    "no charges": (lambda g: Data(x=g.x, edge_index=g.edge_index, edge_attr=g.edge_attr),
                   ValueError, r"no charge information \(symmetry, layer, .* missing\): make graphs with to_graph"),
    "no charge on edges": (lambda g: edited(g, edge_layer=lambda t: None), ValueError, r"\(edge_layer missing\)"),
    "no edge_attr": (lambda g: edited(g, edge_attr=lambda t: None), ValueError, r"\(edge_attr missing\)"),
    "flat edge_attr": (lambda g: edited(g, edge_attr=torch.flatten), ValueError, r"edge_attr has shape \(46,\)"),
    "integers": (lambda g: edited(g, x=torch.Tensor.long), TypeError, "x must be .* floating .* torch.int64"),
    "float symmetry": (lambda g: edited(g, symmetry=torch.Tensor.float), TypeError, "symmetry must be .* whole"),
    "short layer": (lambda g: edited(g, layer=lambda t: t[:-1]), ValueError, r"x has 20 nodes .* layer has shape"),
    "fewer edges": (lambda g: edited(g, edge_index=lambda t: t[:, 1:]), ValueError, "edge_index has shape"),
    "no edges": (lambda g: edited(g, edge_index=lambda t: t[:, :0], edge_attr=lambda t: t[:0]), ValueError,
                 "an empty graph: 20 nodes and 0 edges"),
    "no nodes": (lambda g: edited(g, x=lambda t: t[:0]), ValueError, "an empty graph: 0 nodes"),
    "symmetry": (lambda g: edited(g, symmetry=set_at(3, 4)), ValueError, "node 3: symmetry is no value of Symmetry"),
    "layer": (lambda g: edited(g, layer=set_at(9, 4)), ValueError, "node 9: layer is not within 0 .. depth"),
    "neuron": (lambda g: edited(g, neuron=set_at(9, -1)), ValueError, "node 9: .* neuron is negative"),
    "edge index": (lambda g: edited(g, edge_index=set_at((0, 1), 20)), ValueError, r"edge 1 \(20 -> 2\) has an end"),
    "self-loops": (T.AddSelfLoops(attr=None), ValueError, "edge_index has shape"),
    "self-loop": (lambda g: with_edges(g, [[3, 3]], [1]), ValueError, "does not lead .* self-loops"),
    "across": (lambda g: with_edges(g, [[0, 12]], [0]), ValueError, r"edge 46 \(0 -> 12\) connects two graphs"),
    "reverse": (lambda g: with_edges(g, [[2, 0]], [0]), ValueError, r"edge 46 \(2 -> 0\) does not lead"),
    "undirected": (T.ToUndirected(), ValueError, r"edge_layer does \(46 edges in all\).* ToUndirected"),
    "skip": (lambda g: with_edges(g, [[0, 6]], [0]), ValueError, r"edge 46 \(0 -> 6\) does not lead from node set"),
    "within": (lambda g: with_edges(g, [[2, 3]], [1]), ValueError, r"edge 46 \(2 -> 3\) does not lead from node set"),
    "edge_layer": (lambda g: edited(g, edge_layer=set_at(4, 1)), ValueError, r"edge 4 \(0 -> 4\) does not lead"),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_what_is_no_graph_of_a_network(case):
    breaks, error, match = BROKEN[case]
    graph = breaks(to_graph(networks_of(RELU, 2), RELU))
    for use in (check_graph, lambda g: from_graph(g, RELU), lambda g: act(g, RELU.sample())):
        with pytest.raises(error, match=match):
            use(graph)


GRAPH = to_graph(networks_of(RELU, 2), RELU)
OF_CNN, OF_GAIN = to_graph(networks_of(CNN, 2, 2), CNN), to_graph(networks_of(GAIN, 2), GAIN)
DEEPER, TURNED = WeightSpace.mlp([2, 4, 3, 3, 1], "relu"), WeightSpace.mlp([2, 3, 4, 1], "relu")
TENSORS = networks_of(RELU)
EDGE = torch.arange(46) != 11  # of the first graph's weight.1: h1[3] -> h2[0]
PRUNED = edited(GRAPH, edge_index=lambda t: t[:, EDGE], edge_attr=lambda t: t[EDGE], edge_layer=lambda t: t[EDGE])
DOUBLED = with_edges(PRUNED, [[4, 6]], [1])
SWAPPED = [1, 0, *range(2, 46)]  # two edges of one neuron
CUT = GRAPH[0].edge_subgraph(torch.arange(23) < 22)
ISOLATED = GRAPH[0].edge_subgraph((GRAPH[0].edge_index != 7).all(0))
NOTHING = GRAPH[0].subgraph(torch.zeros(10, dtype=torch.bool))
BOTH = to_graphs([(TENSORS, RELU), (networks_of(DEEPER), DEEPER)])
KERNELS = Batch.from_data_list([to_graph(networks_of(RELU, 1), RELU, kernel=k)[0] for k in ((1, 9), (3, 3))])
NAMES = [name for name in OF_GAIN.to_dict() if name.startswith("edge_") and name != "edge_index"]
EXPERTS = WeightSpace(
    {"experts": (Symmetry.PERMUTATION, 2), "x": (Symmetry.FIXED, 2), "h": (Symmetry.SCALE, 3)},
    {"w": (Axis("experts", 0), Axis("h"), Axis("x", -1))},
)
SQUARE = WeightSpace({"h": (Symmetry.SCALE, 3)}, {"square": (Axis("h", 2),)})


def of_gain(index, other):
    return edited(OF_GAIN, edge_index=index, **dict.fromkeys(NAMES, other))


def without_bias(name):
    return {k: t for k, t in TENSORS.items() if k != name}


def test_layers_take_graphs_that_no_network_is():
    for graph in (PRUNED, DOUBLED):
        check_graph(graph)


# What is called with these arguments, and what it says.
REFUSED = [
    (check_graph, Batch.from_data_list([GRAPH[0], NOTHING, GRAPH[1]]), None, "graph 1 of the batch is empty"),
    (from_graph, PRUNED, RELU, r"edge_index of edge 11 is \[2, 7\], not \[5, 6\] .* pruned weights edges with zeros"),
    (from_graph, CUT, RELU, "22 edges, not 23 as in graphs of WeightSpace.mlp"),
    (from_graph, DOUBLED, RELU, r"edge_index of edge 11 is \[2, 7\], not"),
    (from_graph, ISOLATED, RELU, r"edge_index of edge 12 is \[2, 8\], not \[2, 7\]"),
    (from_graph, T.RemoveIsolatedNodes()(ISOLATED), RELU, "neuron of node 7 is 2, not 1"),
    (from_graph, edited(GRAPH, neuron=set_at(3, 0)), RELU, "neuron of node 3 is 0, not 1"),
    (from_graph, shuffled(GRAPH), RELU, "not .* all nodes and edges in the order of to_graph"),
    (from_graph, edited(GRAPH, edge_index=lambda t: t[:, SWAPPED]), RELU, r"of edge 0 is \[1, 2\], not \[0, 2\]"),
    (from_graphs, shuffled(BOTH), [RELU] * 3 + [DEEPER] * 3, "not .* all nodes and edges in the order of to_graph"),
    (from_graph, GRAPH, DEEPER, r"another weight space: its layers have 2-4-3-1 neurons, WeightSpace.mlp"),
    (from_graph, GRAPH, WeightSpace.mlp([3, 4, 3, 1], "relu"), "another weight space: its layers have 2-4-3-1"),
    (from_graph, GRAPH, WeightSpace.mlp([2, 1], "relu"), "another weight space: its layers have 2-4-3-1"),
    (from_graph, GRAPH, WeightSpace.mlp([2, 4, 3, 1], "tanh"), "symmetry of node 2 is SCALE, not SIGN"),
    (from_graph, GRAPH, WeightSpace.mlp([2, 4, 3, 1], "relu", [True, True, False]), "has_bias of node 9 is True"),
    (from_graph, BOTH, RELU, "graph 3 is of another weight space: its layers have 2-4-3-3-1"),
    (from_graphs, BOTH, [RELU], "1 spaces for 6 graphs"),
    (from_graphs, BOTH, [RELU] * 6, "another weight space: its layers have 2-4-3-3-1"),
    (from_graph, OF_GAIN, SQUARE, "of another weight space"),
    (from_graph, of_gain(lambda t: t[:, 1:], lambda t: t[1:]), GAIN, r"edge_index of edge 0 is \[1, 2\], not \[0, 2\]"),
    (from_graph, edited(OF_GAIN, edge_layer=lambda t: t + 99 * (t == 0)), GAIN, "edge_layer of edge 0 is 99, not 0"),
    (check_graph, of_gain(lambda t: torch.cat([t, t.flip(0)], 1), lambda t: torch.cat([t, t])), None,
     "reverse and skipped edges carry the wrong charge"),
    (from_graph, edited(OF_CNN, edge_attr=lambda t: t[:, 1:]), CNN,
     r"edge_attr has width 17; 2 channels .* 9 entries of kernel \(3, 3\) is 18"),
    (from_graph, edited(OF_CNN, x=lambda t: t[:, :1]), CNN, r"edge_attr has width 18; 1 channels .* is 9"),
    (from_graph, KERNELS, RELU, "graphs made with different kernels"),
    (from_graph, edited(OF_CNN, kernel=lambda t: t[:1]), CNN, r"node 10 is of a graph for which kernel has no row"),
    (to_graph, networks_of(EXPERTS), EXPERTS, "w has 3 ends .* graphs have two: use the core's MessagePassing"),
    (to_graph, without_bias("bias.0"), RELU, r"missing: bias\.0"),
    (to_graph, TENSORS | {"bias.0": TENSORS["bias.0"] * torch.nan}, RELU, r"bias\.0 holds 12 NaN"),
    (to_graphs, [], None, "no networks given"),
    (to_graphs, [(TENSORS, RELU), (networks_of(CNN, 1, 2), CNN)], None, "networks 1 have 2 channels, networks 0 1"),
    (to_graphs, [(TENSORS, RELU), (networks_of(CNN, dtype=torch.float32), CNN)], None,
     "networks 1 are torch.float32 .* networks 0 torch.float64"),
    (act, GRAPH, RELU.sample(3), r"batch of 3 .* needs a tensor with 3 networks .* \(2, 1, 4, 2\)"),
    (act, GRAPH, CNN.sample(), "another weight space"),
    (act, GRAPH, random_graph_element(GRAPH[0]), "GraphElement of 10 nodes on a graph of 20"),
    (act, GRAPH, random_graph_element(to_graph(networks_of(TURNED, 2), TURNED)), "of 20 nodes on a graph of 20"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "first", "second", "message"), REFUSED)
def test_what_does_not_fit(call, first, second, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call(first) if second is None else call(first, second)


def test_layers_may_change_the_width_of_both():
    graph = to_graph(networks_of(CNN, 2), CNN)
    wide = edited(graph, x=lambda t: t.repeat(1, 4), edge_attr=lambda t: t.repeat_interleave(4, 1))
    assert_same(from_graph(wide, CNN), {k: t.repeat(1, 4, *[1] * (t.ndim - 2)) for k, t in networks_of(CNN, 2).items()})
