"""Graphs with the attributes that neural-graphs and ScaleGMN write become ours exactly, and go back exactly."""

import copy

import pytest
import torch
from graphs import GAIN, RELU, assert_same_graph, networks_of, shuffled
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import mlps
from torch.nn.functional import pad
from torch_geometric.data import Batch, Data
from torch_geometric.nn import PNAConv, global_mean_pool
from torch_geometric.utils import to_dense_adj

from nfn_monomial import WeightSpace, balance
from nfn_monomial.adapters import pyg

SINE = WeightSpace.mlp([2, 5, 4, 3], "sin")
ZOO = WeightSpace.cnn([1, 3, 4], 3, "relu", head=[2])
SPACES = {
    "MLP": RELU,
    "SIREN": SINE,
    "CNN": ZOO,
    "kernels of two sizes": WeightSpace.cnn([1, 3, 4], [3, 2], ["tanh", "relu"], head=[2]),
    "one layer": WeightSpace.mlp([2, 3], "relu"),
}


def assert_holds(found, expected):
    """A graph has all attributes of another one, and may have more."""
    for name, value in expected.to_dict().items():
        assert found[name].dtype == value.dtype
        assert torch.equal(found[name], value), name


def layers_of(tensors, space):
    """Weights ``(in, out, K)`` and biases of one network, as both packages have them; kernels padded in the middle."""
    kernel = pyg.common_kernel(space)
    weights, biases = [], []
    for i in range(len(space.nodes) - 1):
        weight = tensors[f"weight.{i}"][0, 0]
        weight = weight.reshape(*weight.shape[:2], *[1] * (len(kernel) + 2 - weight.ndim), *weight.shape[2:])
        margins = [(size - have) // 2 for size, have in zip(kernel, weight.shape[2:], strict=True)]
        rests = [size - have - m for size, have, m in zip(kernel, weight.shape[2:], margins, strict=True)]
        both = [n for pair in zip(reversed(margins), reversed(rests), strict=True) for n in pair]
        weights.append(pad(weight, both).flatten(2).transpose(0, 1) if kernel else weight.T.unsqueeze(-1))
        biases.append(tensors[f"bias.{i}"][0, 0].unsqueeze(-1))
    return weights, biases


def theirs_of(tensors, space, *, inputs=0.0, reverse=False, backward=False, **more):
    """A graph as both packages make it: edges in the order of their sources."""
    weights, biases = layers_of(tensors, space)
    first = weights[0].new_full((len(weights[0]), 1), inputs)
    starts = torch.tensor([0, len(first), *map(len, biases)]).cumsum(0)
    ends = [
        torch.cartesian_prod(torch.arange(starts[i], starts[i + 1]), torch.arange(starts[i + 1], starts[i + 2])).T
        for i in range(len(weights))
    ]
    edge_index, e = torch.cat(ends, 1), torch.cat([w.flatten(0, 1) for w in weights])
    if reverse:  # as rev_edge_features of neural-graphs
        nothing = torch.zeros_like(e)
        e = torch.cat([torch.cat([e, nothing, e], 1), torch.cat([nothing, e, e], 1)])
        edge_index = torch.cat([edge_index, edge_index.flip(0)], 1)
    return Data(torch.cat([first, *biases]), edge_index.flip(0) if backward else edge_index, e, **more)


def batches(space, batch=3, **how):
    """Networks as our graphs, and as theirs."""
    tensors = networks_of(space, batch)
    theirs = [theirs_of({n: t[i : i + 1] for n, t in tensors.items()}, space, **how) for i in range(batch)]
    return pyg.to_graph(tensors, space), Batch.from_data_list(theirs)


@pytest.mark.parametrize("how", [{}, {"inputs": 1.0}, {"reverse": True}, {"backward": True}], ids=str)
@pytest.mark.parametrize("name", SPACES)
def test_graphs_of_other_packages_become_ours(name, how):
    space = SPACES[name]
    ours, theirs = batches(space, **how)
    before = copy.deepcopy(theirs)
    assert_same_graph(pyg.adopt(theirs, space), ours)
    assert_same_graph(theirs, before)
    assert_same_graph(pyg.adopt(theirs[1], space), ours[1])
    assert isinstance(pyg.adopt(theirs[1], space), Data)
    if not how.get("reverse") and not how.get("backward"):
        back = pyg.release(pyg.adopt(theirs, space), inputs=how.get("inputs", 0.0))
        assert_holds(back, theirs)
        assert_holds(pyg.adopt(back, space), ours)


@settings(max_examples=10)
@given(mlps(), st.integers(1, 3))
def test_any_network_comes_back_and_layers_take_it_in_between(space, batch):
    ours = pyg.to_graph(networks_of(space, batch), space)
    released = pyg.release(ours)
    assert_holds(pyg.adopt(released, space), ours)
    embed = pyg.MonomialEmbedding(2, (), 9, 9).double()
    torch.testing.assert_close(embed(released)[0], embed(ours)[0], rtol=1e-12, atol=1e-14)


def test_a_mixed_batch_takes_a_space_for_each_graph():
    spaces = [RELU, SINE, WeightSpace.mlp([2, 3, 3, 3, 1], "tanh")]
    pairs = [(networks_of(space, 1), space) for space in spaces]
    theirs = Batch.from_data_list(
        [theirs_of(tensors, space, y=torch.tensor([i])) for i, (tensors, space) in enumerate(pairs)]
    )
    adopted = pyg.adopt(theirs, spaces)
    assert adopted.y.tolist() == [0, 1, 2]
    ours = pyg.to_graphs(pairs)
    assert_holds(adopted, ours)


def test_edges_in_another_order_and_attributes_of_their_own():
    ours, theirs = batches(RELU)
    graphs = theirs.to_data_list()
    for graph in graphs:
        order = torch.randperm(graph.num_edges, generator=torch.Generator().manual_seed(0))
        graph.edge_index, graph.edge_attr = graph.edge_index[:, order], graph.edge_attr[order]
        graph.edge2type, graph.y, graph.node2type = order, torch.tensor([3.0]), torch.arange(graph.num_nodes)
    adopted = pyg.adopt(Batch.from_data_list(graphs), RELU)
    assert_holds(adopted, ours)
    assert adopted.y.tolist() == [3.0] * 3
    assert "edge2type" not in adopted
    assert adopted[1].node2type.tolist() == list(range(10))


def test_linear_layers_that_are_no_convolutions():
    """Their one entry is the first of the kernel, and ``mlp_edge_masks`` says so."""
    ours, theirs = batches(ZOO)
    graphs = theirs.to_data_list()
    for graph in graphs:
        linear = graph.edge_index[1] >= 8  # outputs
        graph.edge_attr = torch.where(linear[:, None], graph.edge_attr.roll(-4, 1), graph.edge_attr)
        graph.mlp_edge_masks = linear
    assert_same_graph(pyg.adopt(Batch.from_data_list(graphs), ZOO), ours)


def test_a_larger_kernel_and_widths_that_the_graph_says():
    wide = WeightSpace.cnn([1, 5, 4], 3, "relu", head=[2])
    tensors = networks_of(wide, 1)
    ours = pyg.to_graph(tensors, wide, kernel=(5, 5))
    theirs = theirs_of(tensors, wide, layer_layout=[1, 5, 4, 2])
    theirs.edge_attr = pad(theirs.edge_attr.unflatten(1, (3, 3)), [1] * 4).flatten(1)
    adopted = pyg.adopt(Batch.from_data_list([theirs]), ZOO, kernel=(5, 5))
    assert_holds(adopted, ours)


def test_gradients_flow_through():
    _, theirs = batches(RELU, reverse=True)
    theirs.edge_attr.requires_grad_()
    pyg.adopt(theirs, RELU).edge_attr.square().sum().backward()
    expected = torch.zeros_like(theirs.edge_attr)
    for i, graph in enumerate(theirs.to_data_list()):
        half = graph.num_edges // 2
        expected[graph.num_edges * i :][:half, :1] = 2 * graph.edge_attr[:half, :1].detach()
    assert torch.equal(theirs.edge_attr.grad, expected)


def test_numbers_of_nodes_and_edges_for_scalegmn():
    ours, _ = batches(SINE, batch=2)
    graph = pyg.release(ours, inputs=1.0)
    n = torch.arange(4)
    nodes = [*n[:2], *[2] * 5, *[3] * 4, 4, 5, 6]
    assert graph[1].node2type.tolist() == list(map(int, nodes))
    # Each input's edges have a number, each hidden layer's, each output's.
    assert graph[1].edge2type.tolist() == [0] * 5 + [1] * 5 + [2] * 20 + [3, 4, 5] * 4
    assert torch.equal(graph.bw_edge_index, graph.edge_index.flip(0))
    assert graph[1].mask_hidden.flatten().tolist() == [False] * 2 + [True] * 9 + [False] * 3
    assert graph[1].mask_first_layer.flatten().tolist() == [True] * 2 + [False] * 12
    assert graph.sign_mask.tolist() == [True, True]
    assert pyg.release(batches(RELU)[0]).sign_mask.tolist() == [False] * 3
    assert torch.equal(graph[1].x[:2], torch.ones(2, 1, dtype=torch.float64))


def test_features_of_layers_are_released_whole():
    graph = pyg.to_graph(networks_of(RELU, 2), RELU)
    x, e = pyg.MonomialConv(2).double()(torch.ones(20, 6).double(), graph.edge_index, torch.ones(46, 2).double())
    graph.x, graph.edge_attr = x.detach(), e.detach() * torch.arange(46).unsqueeze(1)
    released = pyg.release(graph)
    assert torch.equal(released.x, graph.x)
    dense = [to_dense_adj(of.edge_index, of.batch, of.edge_attr) for of in (graph, released)]
    assert torch.equal(*dense)


def test_what_is_no_graph_of_the_space():
    _, theirs = batches(RELU)

    def changed(**change):
        graph = theirs[0]
        for name, value in change.items():
            graph[name] = value
        return graph

    edges, e = theirs[0].edge_index, theirs[0].edge_attr
    skip = torch.cat([edges, torch.tensor([[0], [9]])], 1)
    refused = {
        "has 10 nodes, networks of .* have 14": lambda: pyg.adopt(theirs, SINE),
        "2 spaces for 3 graphs": lambda: pyg.adopt(theirs, [RELU] * 2),
        "there is no edge 8 -> 9; give pruned weights": lambda: pyg.adopt(
            changed(edge_index=edges[:, :-1], edge_attr=e[:-1]), RELU
        ),
        "an edge is there twice": lambda: pyg.adopt(
            changed(edge_index=edges[:, [0, *range(23)]], edge_attr=e[[0, *range(23)]]), RELU
        ),
        "the edge 0 -> 9 is no weight": lambda: pyg.adopt(
            changed(edge_index=skip, edge_attr=torch.cat([e, e[:1]])), RELU
        ),
        "no nodes 0 .. 9": lambda: pyg.adopt(changed(edge_index=edges + 5), RELU),
        "edge_attr has width 2; 1 channels": lambda: pyg.adopt(changed(edge_attr=e.expand(-1, 2)), RELU),
        "edge_attr must be a tensor of floating": lambda: pyg.adopt(changed(edge_attr=e.float()), RELU),
        r"has layers of \[2, 4, 1\] neurons": lambda: pyg.adopt(changed(layer_layout=[2, 4, 1]), RELU),
        "several edges from one node to another": lambda: pyg.adopt(pyg.to_graph(networks_of(GAIN), GAIN), GAIN),
        "make it by Batch.from_data_list": lambda: pyg.adopt(Batch(**theirs.to_dict()), RELU),
        "Data or Batch is expected, found dict": lambda: pyg.adopt(theirs.to_dict(), RELU),
        "no chains of layers": lambda: pyg.release(pyg.to_graph(networks_of(GAIN), GAIN)),
        "no charge information": lambda: pyg.release(theirs),
    }
    for message, call in refused.items():
        with pytest.raises((ValueError, TypeError), match=message):
            call()


def test_one_pipeline_of_both():
    """Their layer on our graphs, of balanced networks; ours on their graphs: invariant under the networks' groups."""
    torch.manual_seed(0)
    tensors = networks_of(RELU, 4)
    moved = RELU.sample(4, generator=torch.Generator().manual_seed(1)).act(tensors)
    pna = PNAConv(1, 8, ["mean", "max"], ["identity"], torch.ones(8, dtype=torch.long), edge_dim=1).double()
    model = pyg.MonomialGNN(4, 2, kernel=(), inputs=2, outputs=1).double()

    def their_layer_on_ours(tensors, balanced):
        graph = pyg.release(pyg.to_graph(balance(tensors, RELU)[0] if balanced else tensors, RELU))
        return global_mean_pool(pna(graph.x, graph.edge_index, graph.edge_attr), graph.batch)

    def ours_on_theirs(tensors):
        networks = [theirs_of({n: t[i : i + 1] for n, t in tensors.items()}, RELU, inputs=1.0) for i in range(4)]
        return model(pyg.adopt(Batch.from_data_list(networks), RELU))

    torch.testing.assert_close(their_layer_on_ours(moved, True), their_layer_on_ours(tensors, True), rtol=1e-9, atol=0)
    torch.testing.assert_close(ours_on_theirs(moved), ours_on_theirs(tensors), rtol=1e-9, atol=1e-12)
    with pytest.raises(AssertionError):
        torch.testing.assert_close(
            their_layer_on_ours(moved, False), their_layer_on_ours(tensors, False), rtol=0.1, atol=0
        )


def test_layers_take_released_graphs_in_any_order():
    model = pyg.MonomialGNN(4, 1, kernel=(), inputs=2, outputs=1).double()
    graph = pyg.to_graph(networks_of(RELU), RELU)
    released = pyg.release(graph)
    torch.testing.assert_close(model(released), model(graph), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(model(shuffled(graph)), model(graph), rtol=1e-10, atol=1e-12)
