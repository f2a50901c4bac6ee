"""Edges of whole layers: recognised in any graph, and messages along them are those of the edges one by one."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nfn_monomial import WeightSpace
from nfn_monomial.adapters.pyg import MonomialConv, conv, to_graph
from nfn_monomial.adapters.pyg.grids import Segment, outline
from nfn_monomial.nn import edges as of_edges
from nfn_monomial.testing import random_networks

WIDTH = 3


@pytest.fixture
def all_in_blocks(monkeypatch):
    """Even few edges, in several blocks; grids of any size count."""
    monkeypatch.setattr(of_edges, "BLOCK", 100)
    monkeypatch.setattr(conv, "LEAST", 1)


def grid(targets, sources):
    return torch.cartesian_prod(torch.tensor(targets), torch.tensor(sources)).flip(1)


@st.composite
def graphs(draw):
    """Equal networks of a few grids and loose edges, with gaps, duplicates, loops and isolated nodes, in any order."""
    nodes = draw(st.integers(2, 9))

    def ranges():
        first = draw(st.integers(0, nodes - 1))
        return list(range(first, draw(st.integers(first + 1, nodes))))

    parts = []
    for _ in range(draw(st.integers(1, 4))):
        part = grid(ranges(), ranges())
        order = draw(st.sampled_from(["target", "source", "none"]))
        if order == "source":
            part = part[part[:, 0].argsort(stable=True)]
        if order == "none":
            part = part[torch.tensor(draw(st.permutations(range(len(part)))))]
        parts.append(part)
    networks = draw(st.integers(1, 4))
    one = torch.cat(parts)
    shifts = torch.arange(networks) * nodes
    edges = (one + shifts[:, None, None]).flatten(0, 1).T
    nodes *= networks
    if draw(st.booleans()):  # one edge more: no equal networks
        edges = torch.cat([edges, torch.tensor([[draw(st.integers(0, nodes - 1))] for _ in range(2)])], 1)
    isolated = draw(st.integers(0, 2))
    return edges.contiguous() if draw(st.booleans()) else edges.T.contiguous().T, nodes + isolated


def results(layer, x, edge_index, edge_attr, streams, dtype=torch.float64):
    """Values, and gradients by everything."""
    x, edge_attr = (t.detach().to(dtype).requires_grad_() for t in (x, edge_attr))
    given_streams = () if streams is None else (streams,)
    values = layer(x, edge_index, edge_attr, *given_streams)
    by = [torch.randn(v.shape, generator=torch.Generator().manual_seed(i), dtype=v.dtype) for i, v in enumerate(values)]
    return *values, *torch.autograd.grad(values, [x, edge_attr, *layer.parameters()], by)


def case(edge_index, nodes, pairs, seed):
    torch.manual_seed(seed)
    layer = MonomialConv(WIDTH, pairs).double()
    count = 3 if pairs is None else 2 * pairs + 1
    x, e = (torch.randn(n, k * WIDTH, dtype=torch.float64) for n, k in ((nodes, count), (edge_index.shape[1], 1)))
    if pairs is None:
        return layer, x, edge_index, e, None
    streams = torch.randint(count, (2,)).expand(edge_index.shape[1], 2).clone()
    if seed % 2:
        streams[torch.randint(len(streams), (1,))] = 0
    return layer, x, edge_index, e, streams


@given(
    graphs(),
    st.sampled_from([None, 1, 2]),
    st.sampled_from([1, 3, 8]),
    st.sampled_from([0, 100, 400]),
    st.integers(0, 99),
)
def test_any_graph_gives_values_and_gradients_of_its_edges_one_by_one(graph, pairs, least, block, seed):
    given_case = case(*graph, pairs, seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(of_edges, "watched", lambda _: True)
        patch.setattr(conv, "watched", lambda _: True)
        expected = results(*given_case)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(of_edges, "BLOCK", block)
        patch.setattr(conv, "LEAST", least * WIDTH)
        found = results(*given_case)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


def edges_of(space, networks):
    graph = to_graph(random_networks(space, networks), space)
    return graph.edge_index, len(graph.x)


def test_layers_of_equal_networks_are_recognised():
    edge_index, nodes = edges_of(WeightSpace.mlp([2, 5, 4, 1], "relu"), 3)
    shapes = [(0, 5, 2), (10, 4, 5), (30, 1, 4)]
    expected = [Segment(*shape, True, (True, True)) for shape in shapes]
    assert outline(edge_index, nodes, 1)[:2] == (3, expected)
    # The last layers together are too few.
    assert outline(edge_index, nodes, 15)[:2] == (3, [*expected[:2], Segment(30, 4)])
    # An edge of another kind ends its grid.
    kinds = torch.zeros(edge_index.shape[1], 1, dtype=torch.long)
    kinds[12::34] = 1
    assert expected[1] not in outline(edge_index, nodes, 1, kinds)[1]


@pytest.mark.parametrize("least", [1, 10**6])
def test_an_end_that_is_no_node_is_refused(least, monkeypatch):
    monkeypatch.setattr(conv, "LEAST", least)
    edge_index, nodes = edges_of(WeightSpace.mlp([2, 5, 4, 1], "relu"), 3)
    layer, x, edge_index, e, _ = case(edge_index, nodes, None, 0)
    for index in (-1, nodes):
        wrong = edge_index.clone()
        wrong[0, 3] = index
        with pytest.raises(ValueError, match=f"edge 3 .* from node {index} to node 3, and x has {nodes} nodes"):
            layer(x, wrong, e)
    with pytest.raises(ValueError, match=f"to node {nodes - 1}, and x has {nodes - 1} nodes"):
        layer(x[:-1], edge_index, e)


def test_a_graph_without_edges_has_sums_of_zero():
    layer, x, edge_index, e, _ = case(torch.empty(2, 0, dtype=torch.long), 4, None, 0)
    out, edges = layer(x, edge_index, e)
    assert edges.shape == (0, WIDTH)
    assert not out[:, : 2 * WIDTH].any()


@pytest.mark.slow
@pytest.mark.usefixtures("all_in_blocks")
def test_derivatives_of_derivatives():
    edge_index, nodes = edges_of(WeightSpace.mlp([2, 3, 1], "relu"), 2)
    layer, x, edge_index, e, _ = case(edge_index, nodes, None, 0)
    at = x.requires_grad_(), e.requires_grad_()
    assert torch.autograd.gradcheck(lambda x, e: layer(x, edge_index, e), at, fast_mode=True)
    assert torch.autograd.gradgradcheck(lambda x, e: layer(x, edge_index, e), at, fast_mode=True)


@pytest.mark.usefixtures("all_in_blocks")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_precisions_and_indices(dtype):
    edge_index, nodes = edges_of(WeightSpace.mlp([2, 5, 4, 1], "relu"), 3)
    layer, x, edge_index, e, _ = case(edge_index, nodes, None, 0)
    expected = layer(x, edge_index, e)
    close = {"rtol": 0.1, "atol": 0.1} if dtype == torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-4}
    layer = layer.to(dtype)
    for index in (edge_index, edge_index.int()):
        found = [t.double() for t in layer(x.to(dtype), index, e.to(dtype))]
        torch.testing.assert_close(found, list(expected), **close)
    with torch.autocast("cpu", torch.bfloat16):
        found = [t.double() for t in layer.float()(x.float(), edge_index, e.float())]
    torch.testing.assert_close(found, list(expected), rtol=0.1, atol=0.1)


@pytest.mark.usefixtures("all_in_blocks")
def test_nothing_is_read_where_values_are_not_known():
    edge_index, nodes = edges_of(WeightSpace.mlp([2, 5, 4, 1], "relu"), 3)
    layer, x, edge_index, e, _ = case(edge_index, nodes, None, 0)
    expected = layer(x, edge_index, e)
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    exported = torch.export.export(layer, (x, edge_index, e)).module()
    mapped = torch.func.vmap(lambda x, e: layer(x, edge_index, e))(x[None], e[None])
    for found in (compiled(x, edge_index, e), exported(x, edge_index, e), tuple(t[0] for t in mapped)):
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
