"""Networks that are no chains as graphs: exact both ways, the group acts alike, graph layers keep it."""

import copy

import pytest
import torch
from graphs import RELU, assert_same, networks_of, seeds
from hypothesis import given
from hypothesis import strategies as st
from strategies import all_spaces, general
from torch_geometric.data import Batch

from nfn_monomial import Axis, Symmetry, WeightSpace
from nfn_monomial.adapters.pyg import (
    FromGraph,
    MonomialBlock,
    MonomialEmbedding,
    MonomialGNN,
    ToGraph,
    act,
    assert_graph_equivariant,
    assert_graph_invariant,
    check_graph,
    common_kernel,
    from_graph,
    from_graphs,
    layer_groups,
    random_graph_element,
    to_graph,
    to_graphs,
)
from nfn_monomial.space import Node
from nfn_monomial.testing import random_element

P, S = Symmetry.PERMUTATION, Symmetry.SCALE
GAIN = WeightSpace(
    {"x": Node((Symmetry.FIXED,), 2), "stream": Node((P, S), 3), "heads": Node((P,), 2), "q": Node((S,), 2, "heads")},
    {
        "embed": (Axis("stream", (1, 0)), Axis("x", -1)),
        "gain": (Axis("stream", (0, 1)),),
        "query": (Axis("q", 1), Axis("stream", (-1, -1))),
        "key": (Axis("q", -1), Axis("stream", (-1, -1))),
        "grouped": ((Axis("heads", 0), Axis("q", 1)), Axis("q", -1), 2),
        "depthwise": (Axis("stream", (0, 0)), 1, 3),
        "temperature": (2,),
    },
)


@given(all_spaces(), st.integers(1, 3), st.integers(1, 2), seeds)
def test_every_space_has_a_graph_and_the_group_acts_alike(space, batch, channels, seed):
    tensors = networks_of(space, batch, channels, seed)
    graph = to_graph(tensors, space)
    check_graph(graph)
    assert_same(from_graph(graph, space), tensors)
    assert_same(graph.to_dict(), Batch.from_data_list(graph.to_data_list()).to_dict())
    g = random_element(space, batch, generator=torch.Generator().manual_seed(seed))
    found, expected = act(graph, g), to_graph(g.act(tensors), space)
    assert torch.equal(found.edge_index, expected.edge_index)
    for name in ("x", "edge_attr"):
        torch.testing.assert_close(found[name], expected[name], rtol=1e-12, atol=1e-12)
    r = random_graph_element(graph, generator=torch.Generator().manual_seed(seed))
    there = r.act(graph)
    assert torch.equal(there.edge_index, graph.edge_index)
    torch.testing.assert_close(r.inverse().act(there).edge_attr, graph.edge_attr, rtol=1e-10, atol=1e-10)


def layer_of(width, kernel, pairs):
    """Edges of a graph through an embedding and two blocks: a graph, on which the group acts as on the first."""
    torch.manual_seed(0)
    embed = MonomialEmbedding(width, kernel, 9, 9, pairs=pairs).double()
    blocks = [MonomialBlock(width, pairs).double() for _ in range(2)]

    def layer(graph):
        x, e = embed(graph)
        for block in blocks:
            x, e = block(x, graph.edge_index, e, graph.stream_symmetry, layer_groups(graph), graph.edge_streams)
        out = copy.copy(graph)
        out.x, out.edge_attr = torch.zeros_like(graph.x), e.detach()
        return out

    return layer


@given(st.lists(general(), min_size=1, max_size=2), seeds)
def test_layers_on_mixed_batches(spaces, seed):
    spaces = [*spaces, GAIN, RELU]
    graph = to_graphs([(networks_of(space, 1, 1, seed), space) for space in spaces])
    layer = layer_of(2, common_kernel(*spaces), graph.stream_symmetry.shape[1])
    assert_graph_equivariant(layer, graph, trials=1, seed=seed)


def test_a_model_of_mixed_batches_is_invariant_and_every_parameter_counts():
    spaces = [GAIN, RELU]
    tensors = [networks_of(space, 3) for space in spaces]
    graph = to_graphs(zip(tensors, spaces, strict=True))
    torch.manual_seed(0)
    pairs, kernel = graph.stream_symmetry.shape[1], common_kernel(*spaces)
    model = MonomialGNN(4, 5, kernel=kernel, inputs=3, outputs=3, hidden=8, pairs=pairs).double()
    assert_graph_invariant(model, graph, rtol=1e-8)
    plain = model(graph)[:3]
    for name, other in networks_of(GAIN, 3, seed=1).items():
        changed = to_graphs([(tensors[0] | {name: other}, GAIN), (tensors[1], RELU)])
        assert not torch.equal(model(changed)[:3], plain), name
    for space, found in zip([GAIN] * 3 + [RELU] * 3, from_graphs(graph, [GAIN] * 3 + [RELU] * 3), strict=True):
        assert list(found) == list(space.parameters)


def test_modules_and_any_order_of_edges():
    tensors = networks_of(GAIN, 2)
    graph = ToGraph(GAIN)(tensors)
    back = GAIN.unpack(FromGraph(GAIN)(graph))
    assert_same(back, tensors)
    order = torch.randperm(graph.num_edges)
    for name in ("edge_attr", "edge_layer", "edge_charge", "edge_streams"):
        graph[name] = graph[name][order]
    graph.edge_index = graph.edge_index[:, order]
    assert_same(from_graph(graph, GAIN), tensors)


def test_what_is_no_graph_of_the_space():
    graph = to_graph(networks_of(GAIN, 2), GAIN)
    with pytest.raises(ValueError, match="of another weight space"):
        from_graph(graph, WeightSpace({"h": (S, 3)}, {"square": (Axis("h", 2),)}))
    dropped = copy.copy(graph)
    for name in ("edge_attr", "edge_layer", "edge_charge", "edge_streams"):
        dropped[name] = graph[name][1:]
    dropped.edge_index = graph.edge_index[:, 1:]
    with pytest.raises(ValueError, match=r"found, .* expected, one for each"):
        from_graph(dropped, GAIN)
    doubled = copy.copy(graph)
    for name in ("edge_attr", "edge_layer", "edge_charge", "edge_streams"):
        doubled[name] = torch.cat([graph[name], graph[name]])
    doubled.edge_index = torch.cat([graph.edge_index, graph.edge_index.flip(0)], 1)
    with pytest.raises(ValueError, match="reverse edges would carry the wrong charge"):
        check_graph(doubled)
    moved = random_graph_element(graph, generator=torch.Generator().manual_seed(0))
    nested = (graph.parent_index != torch.arange(len(graph.x))).nonzero().flatten()
    wrong = moved.permutation.clone()
    wrong[nested] = torch.arange(len(wrong))[nested]
    with pytest.raises(ValueError, match="make one for this graph"):
        type(moved)(moved.scale, wrong).act(graph)
