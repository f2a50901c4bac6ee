"""Networks as torch_geometric graphs: exact both ways, the group acts alike, and what is no network is refused."""

import copy
import itertools
import warnings

import pytest
import torch
from graphs import CNN, GAIN, RELU, WIDE, assert_same, assert_same_graph, mixed, networks_of, seeds
from hypothesis import given
from hypothesis import strategies as st
from strategies import all_spaces, spaces
from torch import nn
from torch_geometric.data import Batch, Data
from torch_geometric.loader import DataLoader

from nfn_monomial import Canonicalize, EquivariantLinear, WeightSpace
from nfn_monomial.adapters import pyg
from nfn_monomial.adapters.pyg import (
    act,
    check_graph,
    from_graph,
    from_graphs,
    random_graph_element,
    to_graph,
    to_graphs,
)
from nfn_monomial.adapters.pyg.group import GraphElement
from nfn_monomial.testing import random_element

DTYPES = [torch.float32, torch.float64, torch.bfloat16]

# -- both ways --------------------------------------------------------------------------------------------------------


@given(all_spaces(), st.integers(1, 3), st.integers(1, 2), st.sampled_from(DTYPES), seeds)
def test_from_graph_is_the_exact_inverse(space, batch, channels, dtype, seed):
    tensors = networks_of(space, batch, channels, seed, dtype)
    graph = to_graph(tensors, space)
    check_graph(graph)
    assert_same(from_graph(graph, space), tensors)
    assert_same(from_graph(to_graph(tensors, space.uncharged()), space.uncharged()), tensors)
    listed = Batch.from_data_list(graph.to_data_list())
    assert_same(graph.to_dict(), listed.to_dict())
    assert_same(graph._slice_dict, listed._slice_dict)
    assert_same(graph._inc_dict, listed._inc_dict)
    single = to_graph({name: t[:1] for name, t in tensors.items()}, space)[0]
    assert type(single) is Data
    assert_same_graph(graph[0], single)


def test_conventions():
    space = WeightSpace.cnn([2, 3], 2, "relu", head=[2], positions=2, bias=[True, False])
    tensors = networks_of(space, 1, 2)
    graph = to_graph(tensors, space, kernel=(4, 3))[0]
    assert graph.validate()
    assert graph.layer.tolist() == [0, 0, 1, 1, 1, 2, 2]
    assert graph.neuron.tolist() == [0, 1, 0, 1, 2, 0, 1]
    assert graph.symmetry.tolist() == [0, 0, 5, 5, 5, 0, 0]
    assert graph.depth.tolist() == [2] * 7
    assert graph.has_bias.tolist() == [False, False, True, True, True, False, False]
    assert torch.equal(graph.x[2:5], tensors["bias.0"][0].T)
    assert not graph.x[~graph.has_bias].any()
    assert graph.kernel.tolist() == [[4, 3]]
    weights = tensors["weight.0"], tensors["weight.1"].unflatten(-1, (3, 2))
    edges = iter(zip(graph.edge_index.T.tolist(), graph.edge_layer.tolist(), graph.edge_attr, strict=True))
    for i, (rows, columns, at) in enumerate([(3, 2, 2), (2, 3, 5)]):
        for j, k in itertools.product(range(rows), range(columns)):
            (source, target), number, value = next(edges)
            assert (source, target, number) == (at - columns + k, at + j, i)
            expected = torch.zeros(4, 3, 2, dtype=torch.float64)  # kernel, channels
            if i == 0:
                expected[1:3, 0:2] = weights[0][0, :, j, k].permute(1, 2, 0)
            else:
                expected.view(12, 2)[:2] = weights[1][0, :, j, k].T
            assert torch.equal(value, expected.flatten())
    assert next(edges, None) is None


def test_biases_of_any_network_lie_in_x_and_all_else_are_edges():
    tensors = networks_of(GAIN, 1)
    graph = to_graph(tensors, GAIN)[0]
    assert graph.validate()
    assert torch.equal(graph.x[graph.has_bias], tensors["bias"][0].T)
    assert not graph.x[~graph.has_bias].any()
    stays = (graph.edge_index[0] == graph.edge_index[1]) & (graph.edge_layer != 6)  # the grouped weight has a diagonal
    # A bias leads from an invariant to the stream of its charge, a gain from a stream to another one.
    charges = {i: graph.edge_charge[stays & (graph.edge_layer == i)][0].tolist() for i in (4, 5, 7, 8)}
    assert charges == {4: [[1, 1], [-1, 0]], 5: [[0, 0], [0, 0]], 7: [[1, 0], [0, 0]], 8: [[0, 0], [0, 0]]}


def test_kernels():
    assert pyg.common_kernel(RELU) == ()
    assert pyg.common_kernel(CNN) == (3, 3)
    assert pyg.common_kernel(CNN, WIDE) == (5, 3)
    assert pyg.common_kernel(WeightSpace.cnn([1, 2], 3, "relu", ndim=1), CNN) == (3, 3)
    folded = WeightSpace.cnn([1, 2], 2, "relu", head=[3], positions=9)
    assert pyg.common_kernel(folded) == (3, 2, 2)
    tensors = networks_of(folded, 2)
    assert_same(from_graph(to_graph(tensors, folded), folded), tensors)
    with pytest.raises(ValueError, match=r"weight.0 has kernel \(3, 3\), which do not fit into kernel=\(3, 1\)"):
        to_graph(networks_of(CNN), CNN, kernel=(3, 1))
    with pytest.raises(ValueError, match=r"weight.0 has kernel \(3, 3\), which do not fit into kernel=\(9,\)"):
        to_graph(networks_of(CNN), CNN, kernel=(9,))
    with pytest.raises(ValueError, match=r"weight.1 has positions \(9,\), which do not fit into kernel=\(2, 2\)"):
        to_graph(networks_of(folded), folded, kernel=(2, 2))


@pytest.mark.parametrize("others", [[], [(networks_of(GAIN, 2, 2), GAIN)]], ids=["chains", "any networks"])
def test_different_architectures_in_one_batch(others):
    pairs = mixed() + others
    graph = to_graphs(pairs)
    check_graph(graph)
    if not others:
        parts = [to_graph(tensors, space, kernel=(5, 3)) for tensors, space in pairs]
        assert_same(Batch.from_data_list([data for p in parts for data in p.to_data_list()]).to_dict(), graph.to_dict())
    networks = [
        ({k: t[i : i + 1] for k, t in tensors.items()}, s)
        for tensors, s in pairs
        for i in range(len(next(iter(tensors.values()))))
    ]
    order = [3, 0, 5, 1, 4, 2]
    again = Batch.from_data_list([graph[i] for i in order])
    for graphs, numbers in ((graph, range(len(networks))), (again, order)):
        found = from_graphs(graphs, [networks[i][1] for i in numbers])
        for tensors, i in zip(found, numbers, strict=True):
            assert_same(tensors, networks[i][0])


def test_a_batch_of_batches_holds_all_of_their_graphs():
    space = WeightSpace.mlp([2, 5, 3], "relu")
    first, second = (pyg.to_graph(networks_of(space, batch, seed=batch), space) for batch in (2, 3))
    inner, last = Batch.from_data_list([first, second]), pyg.to_graph(networks_of(RELU, 1), RELU)
    both = Batch.from_data_list([inner, last])
    flat = Batch.from_data_list([*first.to_data_list(), *second.to_data_list(), *last.to_data_list()])
    spaces = [space] * 5 + [RELU]
    for found, expected in zip(pyg.from_graphs(both, spaces), pyg.from_graphs(flat, spaces), strict=True):
        assert_same(found, expected)
    model = pyg.MonomialGNN(4, 1, kernel=(), inputs=2, outputs=3).double()
    torch.testing.assert_close(model(both), model(flat), rtol=1e-12, atol=1e-14)
    pyg.assert_graph_invariant(model, both, rtol=1e-8)
    for part in (inner, both[0]):
        assert_same(pyg.from_graph(part, space), pyg.from_graph(Batch.from_data_list(flat[:5]), space))
    assert next(iter(DataLoader([first, second], 2))).batch.max() == 4


def test_networks_wider_than_the_space_says():
    tensors = networks_of(WeightSpace.mlp([2, 7, 5, 1], "relu"))
    found = from_graphs(to_graphs([(tensors, RELU), (networks_of(RELU), RELU)]), [RELU] * 6)
    assert_same(found[1], {name: t[1:2] for name, t in tensors.items()})
    assert [len(t["bias.0"][0, 0]) for t in found] == [7, 7, 7, 4, 4, 4]


def test_gradients_flow_both_ways():
    tensors = {k: t.requires_grad_() for k, t in networks_of(CNN, 2, 2).items()}
    out = from_graph(to_graph(tensors, CNN), CNN)
    weights = networks_of(CNN, 2, 2, seed=1)
    sum((out[k] * weights[k]).sum() for k in out).backward()
    assert_same({k: t.grad for k, t in tensors.items()}, weights)


def test_no_tensor_of_the_caller_is_shared():
    tensors = networks_of(RELU, 1)
    graph = to_graph(tensors, RELU)
    before = {k: t.clone() for k, t in tensors.items()}
    graph.x += 1
    graph.edge_attr *= 2
    assert_same(tensors, before)


def test_modules_between_layers_of_the_core():
    layer, canonical, free = EquivariantLinear(CNN, 1, 2).double(), Canonicalize(CNN, 2).double(), CNN.uncharged()
    last = EquivariantLinear(free, 2, 1).double()
    features = CNN.pack(networks_of(CNN))
    model = nn.Sequential(layer, canonical, pyg.ToGraph(free, kernel=(5, 5)), pyg.FromGraph(free), last)
    plain = nn.Sequential(layer, canonical, last)
    for found, expected in zip(model(features).tensors, plain(features).tensors, strict=True):
        assert torch.equal(found, expected)
    assert "kernel=(5, 5)" in repr(model)


# -- the group --------------------------------------------------------------------------------------------------------


def assert_close_graph(found, expected, rtol=1e-10):
    assert torch.equal(found.edge_index, expected.edge_index)
    for name in ("x", "edge_attr"):
        torch.testing.assert_close(found[name], expected[name], rtol=rtol, atol=rtol)


@given(all_spaces(), st.integers(1, 2), st.booleans(), seeds)
def test_the_group_acts_on_graphs_as_on_networks(space, channels, single, seed):
    generator = torch.Generator().manual_seed(seed)
    tensors = networks_of(space, 2, channels, seed)
    g = random_element(space, None if single else 2, generator=generator)
    graph = to_graph(tensors, space)
    assert_close_graph(act(graph, g), to_graph(g.act(tensors), space))
    assert_close_graph(act(act(graph, g), g.inverse()), graph)
    r = random_graph_element(graph, generator=generator)
    assert_close_graph(r.inverse().act(r.act(graph)), graph)


@given(st.lists(spaces(), min_size=2, max_size=3), seeds)
def test_a_random_element_of_a_mixed_batch_is_one_of_each_networks_group(several, seed):
    generator = torch.Generator().manual_seed(seed)
    graph = to_graphs([(networks_of(space, 2, 1, seed), space) for space in several])
    g = random_graph_element(graph, generator=generator)
    moved = g.permutation != torch.arange(graph.num_nodes)
    assert torch.equal(graph.batch[g.permutation], graph.batch)
    assert torch.equal(graph.layer[g.permutation], graph.layer)
    group = graph.batch * 10 + graph.layer
    size = torch.bincount(group)[group]
    assert torch.equal(moved, (graph.symmetry > 0) & (size > 1))  # a cycle: every neuron that can moves
    assert torch.equal(g.scale.abs() != 1, graph.symmetry & 4 > 0)
    for number in group.unique():
        flips = bool(graph.symmetry[group == number][0] & 2)
        assert bool((g.scale[group == number] < 0).any()) == flips
        assert not flips or size[group == number][0] == 1 or bool((g.scale[group == number] > 0).any())
    moved_graph = g.act(graph)
    assert not torch.equal(moved_graph.edge_attr, graph.edge_attr) or not (graph.symmetry > 0).any() or not moved.any()
    back = g.inverse().act(moved_graph)
    assert torch.allclose(back.edge_attr, graph.edge_attr, rtol=1e-12)


def message(graph, charge=-1):
    """A layer that keeps every network's symmetry: sums of W_jk h_k; with charge=0 of h_k, which does not."""
    source, target = graph.edge_index
    value = graph.edge_attr.sum(1, keepdim=True) * graph.x[source, :1] if charge else graph.x[source, :1]
    out = copy.copy(graph)
    out.x = torch.zeros_like(value[:1]).expand(graph.num_nodes, 1).index_add(0, target, value)
    out.edge_attr = 2 * graph.edge_attr
    return out


def changed(graph, **change):
    out = copy.copy(graph)
    for name, value in change.items():
        out[name] = value
    return out


def readout(graph, every=False):
    hidden, keep = message(graph), (graph.layer == graph.depth) | torch.tensor(every)
    return torch.zeros(graph.num_graphs, 1, dtype=graph.x.dtype).index_add(0, graph.batch[keep], hidden.x[keep])


FAULTY = {
    "the output is not equivariant: x by": (pyg.assert_graph_equivariant, lambda g: message(g, charge=0)),
    "the output is not equivariant: edge_attr by": (
        pyg.assert_graph_equivariant, lambda g: changed(g, edge_attr=g.edge_attr.relu()),
    ),
    "zero everywhere": (pyg.assert_graph_equivariant, lambda g: changed(g, x=0 * g.x, edge_attr=0 * g.edge_attr)),
    "not invariant": (pyg.assert_graph_invariant, lambda g: readout(g, every=True)),
    "constant proves nothing": (pyg.assert_graph_invariant, lambda g: torch.ones(g.num_graphs, 1)),
}  # fmt: skip


def test_checks_pass_what_keeps_the_symmetries():
    graph = to_graphs(mixed())
    pyg.assert_graph_equivariant(message, graph)
    pyg.assert_graph_invariant(readout, graph)
    positive = to_graph(networks_of(RELU), RELU)
    pyg.assert_graph_equivariant(FAULTY["the output is not equivariant: edge_attr by"][1], positive)


@pytest.mark.parametrize("message", FAULTY)
def test_checks_find_what_does_not(message):
    check, layer = FAULTY[message]
    with pytest.raises(AssertionError, match=message):
        check(layer, to_graphs(mixed()))


def test_checks_of_layers_with_parameters_do_not_warn():
    graph = pyg.to_graph(networks_of(RELU), RELU)
    factor = nn.Parameter(torch.tensor(2.0, dtype=torch.float64))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pyg.assert_graph_equivariant(lambda g: changed(g, x=factor * g.x, edge_attr=factor * g.edge_attr), graph)
        pyg.assert_graph_invariant(lambda g: factor * readout(g), graph)


def test_an_element_acts_on_what_a_node_feels():
    tensors = networks_of(RELU)
    charged, free = to_graph(tensors, RELU), to_graph(tensors, RELU.uncharged())
    g = random_graph_element(charged, generator=torch.Generator().manual_seed(0))
    permuted = GraphElement(torch.ones_like(g.scale), g.permutation)
    assert_same_graph(g.act(free), permuted.act(free))
    assert not torch.equal(g.act(charged).x, permuted.act(charged).x)


def test_elements_move_the_edges_of_a_pruned_graph():
    graph = to_graph(networks_of(RELU, 2), RELU)
    kept = torch.arange(graph.num_edges) % 3 > 0
    indices = {"edge_index": graph.edge_index[:, kept], "edge_layer": graph.edge_layer[kept]}
    pruned = changed(graph, edge_attr=graph.edge_attr[kept], **indices)
    dense = changed(graph, edge_attr=graph.edge_attr * kept[:, None])
    g = random_graph_element(graph, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(message(g.act(pruned)).x, message(g.act(dense)).x, rtol=1e-12, atol=1e-12)
    pyg.assert_graph_equivariant(message, pruned)
