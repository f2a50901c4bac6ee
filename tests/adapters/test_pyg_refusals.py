"""What is no network's graph, or no graph of this space, is refused with what is wrong."""

import copy

import pytest
import torch
import torch_geometric.transforms as T
from graphs import CNN, GAIN, RELU, assert_same, networks_of
from torch_geometric.data import Batch, Data

from nfn_monomial import Axis, Symmetry, WeightSpace
from nfn_monomial.adapters.pyg import (
    FromGraph,
    ToGraph,
    act,
    check_graph,
    from_graph,
    from_graphs,
    to_graph,
    to_graphs,
)


def test_three_ends_are_refused():
    nodes = {"experts": (Symmetry.PERMUTATION, 2), "x": (Symmetry.FIXED, 2), "h": (Symmetry.SCALE, 3)}
    space = WeightSpace(nodes, {"w": (Axis("experts", 0), Axis("h"), Axis("x", -1))})
    for refusing in (lambda s: to_graph(networks_of(s), s), FromGraph, ToGraph):
        with pytest.raises(ValueError, match=r"w has 3 ends .* graphs have two: use the core's MessagePassing"):
            refusing(space)


def test_bad_tensors():
    tensors = networks_of(RELU)
    with pytest.raises(ValueError, match=r"missing: bias\.0"):
        to_graph({k: t for k, t in tensors.items() if k != "bias.0"}, RELU)
    with pytest.raises(ValueError, match=r"weight\.1 holds 1 NaN"):
        to_graph(tensors | {"weight.1": with_nan(tensors["weight.1"])}, RELU)
    with pytest.raises(ValueError, match="no networks given"):
        to_graphs([])
    with pytest.raises(ValueError, match="networks 1 have 2 channels, networks 0 1"):
        to_graphs([(tensors, RELU), (networks_of(CNN, 1, 2), CNN)])
    with pytest.raises(TypeError, match=r"networks 1 are torch.float32 .* networks 0 torch.float64"):
        to_graphs([(tensors, RELU), (networks_of(CNN, dtype=torch.float32), CNN)])


def with_nan(tensor):
    out = tensor.clone()
    out.view(-1)[3] = float("nan")
    return out


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


def test_an_empty_graph_within_a_batch():
    graph = to_graph(networks_of(RELU, 2), RELU)
    nothing = graph[0].subgraph(torch.zeros(10, dtype=torch.bool))
    with pytest.raises(ValueError, match="graph 1 of the batch is empty"):
        check_graph(Batch.from_data_list([graph[0], nothing, graph[1]]))


def test_graphs_that_layers_take_but_no_network_is():
    graph = to_graph(networks_of(RELU, 2), RELU)
    edge = torch.arange(46) != 11  # of the first graph's weight.1: h1[3] -> h2[0]
    pruned = edited(graph, edge_index=lambda t: t[:, edge], edge_attr=lambda t: t[edge], edge_layer=lambda t: t[edge])
    check_graph(pruned)
    with pytest.raises(ValueError, match=r"graph 0 has no edge h1\[3\] -> h2\[0\] of weight.1. Every weight"):
        from_graph(pruned, RELU)
    doubled = with_edges(pruned, [[4, 6]], [1])
    check_graph(doubled)
    with pytest.raises(ValueError, match=r"edge \d+ \(4 -> 6\) of edge_layer 1 is there twice"):
        from_graph(doubled, RELU)
    isolated = graph[0].edge_subgraph((graph[0].edge_index != 7).all(0))
    check_graph(isolated)
    with pytest.raises(ValueError, match=r"has no edge h1\[0\] -> h2\[1\] .* without any is no neuron"):
        from_graph(isolated, RELU)
    dropped = T.RemoveIsolatedNodes()(isolated)
    with pytest.raises(ValueError, match=r"neuron of node 7 is 2, .* that of neuron 1 of 'h2' is 1"):
        from_graph(dropped, RELU)
    twice = edited(graph, neuron=set_at(3, 0))
    with pytest.raises(ValueError, match=r"neuron of node 3 is 0, .* is 1"):
        from_graph(twice, RELU)


def test_graphs_of_another_space():
    graph = to_graph(networks_of(RELU, 2), RELU)
    deeper = WeightSpace.mlp([2, 4, 3, 3, 1], "relu")
    more_inputs = WeightSpace.mlp([3, 4, 3, 1], "relu")
    for space in (deeper, more_inputs, WeightSpace.mlp([2, 1], "relu")):
        with pytest.raises(ValueError, match=r"another weight space: its layers have 2-4-3-1 neurons, WeightSpace.mlp"):
            from_graph(graph, space)
    with pytest.raises(ValueError, match=r"symmetry of node 2 is SCALE, .* of neuron 0 of 'h1' is SIGN"):
        from_graph(graph, WeightSpace.mlp([2, 4, 3, 1], "tanh"))
    with pytest.raises(ValueError, match=r"has_bias of node 9 is True, .* of neuron 0 of 'y' is False"):
        from_graph(graph, WeightSpace.mlp([2, 4, 3, 1], "relu", [True, True, False]))
    both = to_graphs([(networks_of(RELU), RELU), (networks_of(deeper), deeper)])
    with pytest.raises(ValueError, match="graph 3 is of another weight space: its layers have 2-4-3-3-1"):
        from_graph(both, RELU)
    with pytest.raises(ValueError, match="1 spaces for 6 graphs"):
        from_graphs(both, [RELU])
    with pytest.raises(ValueError, match="another weight space: its layers have 2-4-3-3-1"):
        from_graphs(both, [RELU] * 6)
    with pytest.raises(ValueError, match=r"weight.0 has kernel \(3, 3\), which do not fit"):
        from_graph(to_graph(networks_of(mlp := WeightSpace.mlp([1, 3, 4, 2], ["tanh", "relu"])), mlp), CNN)


def test_what_is_no_graph_of_another_network():
    graph = to_graph(networks_of(GAIN, 2), GAIN)
    with pytest.raises(ValueError, match="of another weight space"):
        from_graph(graph, WeightSpace({"h": (Symmetry.SCALE, 3)}, {"square": (Axis("h", 2),)}))
    names = [name for name in graph.to_dict() if name.startswith("edge_") and name != "edge_index"]
    dropped = edited(graph, edge_index=lambda t: t[:, 1:], **dict.fromkeys(names, lambda t: t[1:]))
    with pytest.raises(ValueError, match=r"graph 0 has no edge x\[0\] -> stream\[0\] of embed"):
        from_graph(dropped, GAIN)
    other = edited(graph, edge_layer=lambda t: torch.where(t == 0, 99, t))
    with pytest.raises(ValueError, match=r"graph 0 has no edge x\[0\] -> stream\[0\] of embed"):
        from_graph(other, GAIN)
    doubled = edited(
        graph, edge_index=lambda t: torch.cat([t, t.flip(0)], 1), **dict.fromkeys(names, lambda t: torch.cat([t, t]))
    )
    with pytest.raises(ValueError, match="reverse and skipped edges carry the wrong charge"):
        check_graph(doubled)


def test_widths_and_kernels_that_do_not_fit():
    graph = to_graph(networks_of(CNN, 2, 2), CNN)
    with pytest.raises(ValueError, match=r"edge_attr has width 17; 2 channels .* 9 entries of kernel \(3, 3\) is 18"):
        from_graph(edited(graph, edge_attr=lambda t: t[:, 1:]), CNN)
    with pytest.raises(ValueError, match=r"edge_attr has width 18; 1 channels .* is 9"):
        from_graph(edited(graph, x=lambda t: t[:, :1]), CNN)
    other = Batch.from_data_list([to_graph(networks_of(RELU, 1), RELU, kernel=k)[0] for k in ((1, 9), (3, 3))])
    with pytest.raises(ValueError, match="graphs made with different kernels"):
        from_graph(other, RELU)
    with pytest.raises(ValueError, match=r"kernel has shape \(1, 2\); \(2, D\) is expected"):
        from_graph(edited(graph, kernel=lambda t: t[:1]), CNN)


def test_layers_may_change_the_width_of_both():
    graph = to_graph(networks_of(CNN, 2), CNN)
    wide = edited(graph, x=lambda t: t.repeat(1, 4), edge_attr=lambda t: t.repeat_interleave(4, 1))
    assert_same(from_graph(wide, CNN), {k: t.repeat(1, 4, *[1] * (t.ndim - 2)) for k, t in networks_of(CNN, 2).items()})
