"""Networks as torch_geometric graphs: exact both ways, the group acts alike, and what is no network is refused."""

import copy
import itertools

import pytest
import torch
import torch_geometric.transforms as T
from graphs import CNN, GAIN, RELU, WIDE, assert_same, assert_same_graph, mixed, networks_of, seeds, shuffled
from hypothesis import given
from hypothesis import strategies as st
from strategies import all_spaces, spaces
from torch import nn
from torch_geometric.data import Batch, Data
from torch_geometric.loader import DataLoader

from nfn_monomial import Canonicalize, EquivariantLinear, WeightSpace
from nfn_monomial.adapters.pyg import (
    FromGraph,
    ToGraph,
    act,
    assert_graph_equivariant,
    assert_graph_invariant,
    check_graph,
    common_kernel,
    from_graph,
    from_graphs,
    random_graph_element,
    to_graph,
    to_graphs,
)
from nfn_monomial.adapters.pyg.group import GraphElement
from nfn_monomial.testing import random_element, random_networks

DTYPES = [torch.float32, torch.float64, torch.bfloat16]

# -- both ways --------------------------------------------------------------------------------------------------------


@given(all_spaces(), st.integers(1, 3), st.integers(1, 2), st.sampled_from(DTYPES), seeds)
def test_from_graph_is_the_exact_inverse_in_any_order(space, batch, channels, dtype, seed):
    tensors = networks_of(space, batch, channels, seed, dtype)
    graph = to_graph(tensors, space)
    check_graph(graph)
    assert_same(from_graph(graph, space), tensors)
    assert_same(from_graph(shuffled(graph, seed), space), tensors)
    assert_same(from_graph(to_graph(tensors, space.uncharged()), space.uncharged()), tensors)
    listed = Batch.from_data_list(graph.to_data_list())
    assert_same(graph.to_dict(), listed.to_dict())
    assert_same(graph._slice_dict, listed._slice_dict)
    assert_same(graph._inc_dict, listed._inc_dict)
    for i in range(batch):
        single = to_graph({name: t[i : i + 1] for name, t in tensors.items()}, space)[0]
        assert type(single) is Data
        assert_same_graph(graph[i], single)


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
    assert set(graph.layer[graph.has_bias].tolist()) == {5}  # of the nodes of the temperature is 4
    assert torch.equal(graph.x[graph.has_bias], tensors["bias"][0].T)
    assert not graph.x[~graph.has_bias].any()
    stays = (graph.edge_index[0] == graph.edge_index[1]) & (graph.edge_layer != 6)  # the grouped weight has a diagonal
    assert set(graph.edge_layer[stays].tolist()) == {4, 5, 7, 8}  # gain, depthwise, other bias, temperature
    assert int(stays.sum()) == 3 + 3 + 2 + 2
    # A bias leads from an invariant to the stream of its charge, a gain from a stream to another one.
    charges = [graph.edge_charge[stays & (graph.edge_layer == i)][0].tolist() for i in (4, 5, 7, 8)]
    assert sorted(charges) == sorted([[[1, 1], [-1, 0]], [[0, 0], [0, 0]], [[1, 0], [0, 0]], [[0, 0], [0, 0]]])
    assert set(to_graph(networks_of(RELU), RELU).keys()) < set(graph.keys()) | {"batch", "ptr"}


def test_kernels():
    assert common_kernel(RELU) == ()
    assert common_kernel(CNN) == (3, 3)
    assert common_kernel(CNN, WIDE) == (5, 3)
    assert common_kernel(WeightSpace.cnn([1, 2], 3, "relu", ndim=1), CNN) == (3, 3)
    folded = WeightSpace.cnn([1, 2], 2, "relu", head=[3], positions=9)
    assert common_kernel(folded) == (3, 2, 2)
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
    listed = Batch.from_data_list(graph.to_data_list())
    assert_same(graph.to_dict(), listed.to_dict())
    assert_same(graph._slice_dict, listed._slice_dict)
    assert_same(graph._inc_dict, listed._inc_dict)
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
    for graphs, numbers in ((graph, range(len(networks))), (again, order), (shuffled(again), order)):
        found = from_graphs(graphs, [networks[i][1] for i in numbers])
        for tensors, i in zip(found, numbers, strict=True):
            assert_same(tensors, networks[i][0])


def test_networks_wider_than_the_space_says():
    wider = WeightSpace.mlp([2, 7, 5, 1], "relu")
    tensors = networks_of(wider)
    assert_same(from_graph(to_graph(tensors, RELU), RELU), tensors)
    graph = to_graphs([(tensors, RELU), (networks_of(RELU), RELU)])
    found = from_graphs(graph, [RELU] * 6)
    assert [len(t["bias.0"][0, 0]) for t in found] == [7, 7, 7, 4, 4, 4]


def test_gradients_flow_both_ways():
    tensors = {k: t.requires_grad_() for k, t in networks_of(CNN, 2, 2).items()}
    graph = shuffled(to_graph(tensors, CNN))
    out = from_graph(graph, CNN)
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
    generator = torch.Generator().manual_seed(0)
    layer = EquivariantLinear(CNN, 1, 2).double()
    canonical = Canonicalize(CNN, 2).double()
    free = CNN.uncharged()
    model = nn.Sequential(
        layer, canonical, ToGraph(free, kernel=(5, 5)), FromGraph(free), EquivariantLinear(free, 2, 1).double()
    )
    plain = nn.Sequential(layer, canonical, model[-1])
    features = CNN.pack(random_networks(CNN, generator=generator))
    for found, expected in zip(model(features).tensors, plain(features).tensors, strict=True):
        assert torch.equal(found, expected)
    copied = copy.deepcopy(model)
    copied.load_state_dict(model.state_dict())
    assert "kernel=(5, 5)" in repr(model[2])
    assert repr(free) in repr(model[3])
    assert set(model[2](canonical(layer(features))).symmetry.tolist()) == {0, 1}


def test_with_dataloader_transforms_and_copies():
    tensors = networks_of(CNN, 5)
    graph = to_graph(tensors, CNN)
    loader = DataLoader(graph.to_data_list(), batch_size=2)
    read = [from_graph(batch, CNN) for batch in loader]
    assert_same({k: torch.cat([part[k] for part in read]) for k in tensors}, tensors)
    for other in (graph.to("cpu"), graph.clone(), copy.deepcopy(graph)):
        assert_same(from_graph(other, CNN), tensors)
    subset = from_graph(Batch.from_data_list(graph[[4, 1]]), CNN)
    assert_same(subset, {k: t[[4, 1]] for k, t in tensors.items()})
    assert_same(from_graph(graph[2], CNN), {k: t[2:3] for k, t in tensors.items()})
    half = from_graph(T.ToDevice("cpu")(graph).apply(lambda t: t.half() if t.is_floating_point() else t), CNN)
    assert_same(half, {k: t.half() for k, t in tensors.items()})


# -- the group --------------------------------------------------------------------------------------------------------


def assert_close(found, expected):
    for name, x in expected.items():
        torch.testing.assert_close(found[name], x, rtol=1e-12, atol=1e-12)


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
    other = shuffled(graph, seed)
    moved = act(other, g)
    assert torch.equal(moved.edge_index, other.edge_index)
    assert_close(from_graph(moved, space), g.act(tensors))
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


def test_checks_of_graph_layers():
    graph = to_graphs(mixed())
    assert_graph_equivariant(message, graph)
    with pytest.raises(AssertionError, match="the output is not equivariant: x by"):
        assert_graph_equivariant(lambda g: message(g, charge=0), graph)

    def edges_only(g):
        out = copy.copy(g)
        out.edge_attr = g.edge_attr.relu()
        return out

    with pytest.raises(AssertionError, match="the output is not equivariant: edge_attr by"):
        assert_graph_equivariant(edges_only, graph)
    positive = to_graph(networks_of(RELU), RELU)
    assert_graph_equivariant(edges_only, positive)

    def zero(g):
        out = copy.copy(g)
        out.x, out.edge_attr = 0 * g.x, 0 * g.edge_attr
        return out

    with pytest.raises(AssertionError, match="zero everywhere"):
        assert_graph_equivariant(zero, graph)

    def readout(g, outputs=True):
        hidden = message(g)
        keep = (g.layer == g.depth) | torch.tensor(not outputs)
        return torch.zeros(g.num_graphs, 1, dtype=g.x.dtype).index_add(0, g.batch[keep], hidden.x[keep])

    assert_graph_invariant(readout, graph)
    with pytest.raises(AssertionError, match="not invariant"):
        assert_graph_invariant(lambda g: readout(g, outputs=False), graph)
    with pytest.raises(AssertionError, match="constant proves nothing"):
        assert_graph_invariant(lambda g: torch.ones(g.num_graphs, 1), graph)
    for check, layer in ((assert_graph_equivariant, message), (assert_graph_invariant, readout)):
        with pytest.raises(ValueError, match="trials must be at least 1, found 0"):
            check(layer, graph, trials=0)


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
    pruned = copy.copy(graph)
    pruned.edge_index, pruned.edge_attr = graph.edge_index[:, kept], graph.edge_attr[kept]
    pruned.edge_layer = graph.edge_layer[kept]
    dense = copy.copy(graph)
    dense.edge_attr = graph.edge_attr * kept[:, None]
    g = random_graph_element(graph, generator=torch.Generator().manual_seed(0))
    found = message(g.act(pruned))
    assert torch.allclose(found.x, message(g.act(dense)).x, rtol=1e-12)
    assert_graph_equivariant(message, pruned)


def test_elements_for_other_graphs():
    graph = to_graph(networks_of(RELU, 2), RELU)
    with pytest.raises(ValueError, match=r"batch of 3 .* needs a tensor with 3 networks .* \(2, 1, 4, 2\)"):
        act(graph, RELU.sample(3))
    with pytest.raises(ValueError, match="another weight space"):
        act(graph, CNN.sample())
    with pytest.raises(ValueError, match="GraphElement of 10 nodes on a graph of 20"):
        act(graph, random_graph_element(graph[0]))
    other = to_graph(networks_of(WeightSpace.mlp([2, 3, 4, 1], "relu"), 2), WeightSpace.mlp([2, 3, 4, 1], "relu"))
    with pytest.raises(ValueError, match="GraphElement of 20 nodes on a graph of 20: make one for this graph"):
        act(graph, random_graph_element(other))
