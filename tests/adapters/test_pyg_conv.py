"""Graph layers: what the dense layers compute, on any mixture of architectures, equivariant under each one's group."""

import copy
import itertools

import pytest
import torch
from graphs import CNN, GAIN, RELU, networks_of
from hypothesis import given
from hypothesis import strategies as st
from strategies import cnns, general, mlps
from torch import nn
from torch_geometric.data import Batch
from torch_geometric.nn import GATv2Conv, GPSConv, PNAConv, Sequential

from nfn_monomial import EquivariantNorm, Features, WeightSpace
from nfn_monomial.adapters import pyg
from nfn_monomial.nn import MessageBlock
from nfn_monomial.nn import edges as of_edges
from nfn_monomial.nn.neurons import neuron_layout
from nfn_monomial.testing import random_networks

widths = st.integers(1, 3)
seeds = st.integers(0, 10**6)
chains = st.one_of(mlps(), cnns())


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def mixed_batch(spaces, seed=0, per_space=2):
    pairs = [(random_networks(s, per_space, generator=generator(seed + i)), s) for i, s in enumerate(spaces)]
    return pyg.to_graphs(pairs)


def with_streams(graph, width, seed=0):
    """Random streams on a graph's nodes and edges."""
    out = copy.copy(graph)
    out.x = torch.randn(len(graph.x), 3 * width, dtype=torch.float64, generator=generator(seed))
    out.edge_attr = torch.randn(len(graph.edge_attr), width, dtype=torch.float64, generator=generator(seed + 1))
    return out


def run(layer, graph):
    """A block or a norm, from a graph with streams to one."""
    out = copy.copy(graph)
    out.x, out.edge_attr = layer(graph.x, graph.edge_index, graph.edge_attr, graph.symmetry, pyg.layer_groups(graph))
    return out


def act(element, graph):
    """A group element on streams of charge +1, -1 and 0: what it does with charge +1, divided by the scales."""
    moved = element.act(graph)
    ones = copy.copy(graph)
    ones.x = torch.ones(len(graph.x), 1, dtype=torch.float64)
    scale = element.act(ones).x
    out, back, inv = moved.x.chunk(3, -1)
    moved.x = torch.cat([out, back / scale**2, inv / scale], -1)
    return moved


def layer_of(width, kernel, pairs):
    """Edges of a graph through an embedding and two blocks: a graph, on which the group acts as on the first."""
    torch.manual_seed(0)
    embed = pyg.MonomialEmbedding(width, kernel, 9, 9, pairs=pairs).double()
    blocks = [pyg.MonomialBlock(width, pairs).double() for _ in range(2)]

    def layer(graph):
        x, e = embed(graph)
        for block in blocks:
            x, e = block(x, graph.edge_index, e, graph.stream_symmetry, pyg.layer_groups(graph), graph.edge_streams)
        out = copy.copy(graph)
        out.x, out.edge_attr = torch.zeros_like(graph.x), e.detach()
        return out

    return layer


@given(st.lists(general(), min_size=1, max_size=2), seeds)
def test_layers_on_mixed_batches_of_any_networks(spaces, seed):
    spaces = [*spaces, GAIN, RELU]
    graph = mixed_batch(spaces, seed, 1)
    layer = layer_of(2, pyg.common_kernel(*spaces), graph.stream_symmetry.shape[1])
    pyg.assert_graph_equivariant(layer, graph, trials=1, seed=seed)


def test_a_model_of_any_networks_is_invariant_and_every_parameter_counts():
    tensors = networks_of(GAIN, 3), networks_of(RELU, 3)
    graph = pyg.to_graphs(zip(tensors, (GAIN, RELU), strict=True))
    torch.manual_seed(0)
    pairs, kernel = graph.stream_symmetry.shape[1], pyg.common_kernel(GAIN, RELU)
    model = pyg.MonomialGNN(4, 5, kernel=kernel, inputs=3, outputs=3, hidden=8, pairs=pairs).double()
    pyg.assert_graph_invariant(model, graph, rtol=1e-8)
    plain = model(graph)
    for space, own, rows in ((GAIN, tensors[0], slice(0, 3)), (RELU, tensors[1], slice(3, 6))):
        for name, other in networks_of(space, 3, seed=1).items():
            changed = [own | {name: other} if own is t else t for t in tensors]
            found = model(pyg.to_graphs(zip(changed, (GAIN, RELU), strict=True)))
            assert not torch.allclose(found[rows], plain[rows], rtol=1e-9, atol=0), name
    with pytest.raises(ValueError, match="need pairs="):
        pyg.MonomialGNN(4, 1, kernel=kernel, inputs=3, outputs=3).double()(graph)


@pytest.mark.parametrize("spaces", [[RELU, CNN], [GAIN, RELU]], ids=["chains", "any networks"])
@pytest.mark.parametrize("readout", ["mean", "apart"])
def test_no_forward_pass_looks_at_values_on_another_device(spaces, readout):
    """Tensors on the device "meta" have none."""
    graph = mixed_batch(spaces)
    pairs = graph.stream_symmetry.shape[1] if "stream_symmetry" in graph else None
    kernel = pyg.common_kernel(*spaces)
    model = pyg.MonomialGNN(4, 2, kernel=kernel, inputs=3, outputs=3, pairs=pairs, readout=readout).double().to("meta")
    assert model(graph.to("meta")).shape == (4, 1)


def dense_features(graph, space, sizes, batch, width):
    """Streams of a batch of one architecture, in the core's layout: edges are dense, row-major, weight by weight."""
    neurons = neuron_layout(space)
    counts = [sizes[n] for n in space.nodes]
    x = graph.x.view(batch, sum(counts), 3 * width).split(counts, 1)
    pairs = list(itertools.pairwise(counts))
    e = graph.edge_attr.view(batch, sum(a * b for a, b in pairs), width).split([a * b for a, b in pairs], 1)
    fields = [t.reshape(batch, b, a, width) for t, (a, b) in zip(e, pairs, strict=True)]
    fields += [stream for node in x for stream in node.chunk(3, -1)]
    return Features(neurons.layout, tuple(fields))


# What of the graph layers has other names in the core's, which have parameters for each layer where they are not tied.
RENAMED = {"conv.edges": "messages.edges.all", "conv.nodes": "messages.nodes.all", "gate.gate": "gate.gates.all"}


@given(chains, widths, st.sampled_from([(pyg.MonomialNorm, EquivariantNorm), (pyg.MonomialBlock, MessageBlock)]), seeds)
def test_dense_layers_with_tied_parameters_compute_the_same(space, width, kinds, seed):
    torch.manual_seed(seed)
    sparse = kinds[0](width)
    dense = kinds[1](space, width, **({"tied": True} if kinds[1] is MessageBlock else {}))
    for p in sparse.parameters():
        nn.init.normal_(p)
    state = {}
    for name, value in sparse.state_dict().items():
        old = next((prefix for prefix in RENAMED if name.startswith(prefix)), "")
        state[RENAMED.get(old, "") + name[len(old) :]] = value
    dense.load_state_dict(state)
    sizes = {n: node.size for n, node in space.nodes.items()}
    graph = with_streams(pyg.to_graph(random_networks(space, 3), space), width, seed)
    expected = run(sparse.double(), graph)
    found = dense.double()(dense_features(graph, space, sizes, 3, width))
    wanted = dense_features(expected, space, sizes, 3, width)
    for a, b in zip(found.tensors, wanted.tensors, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


SPACES = [
    WeightSpace.mlp([2, 4, 3, 1], "relu"),
    WeightSpace.mlp([2, 5, 1], "tanh"),
    WeightSpace.mlp([2, 3, 2, 3, 2], ["relu", "tanh", "gelu"]),
    WeightSpace.cnn([1, 3, 4], [3, 5], "relu", head=[2]),
]


@pytest.mark.parametrize("readout", ["mean", "apart"])
def test_a_model_of_mixed_batches_is_invariant(readout):
    torch.manual_seed(0)
    spaces = SPACES if readout == "mean" else [SPACES[2], SPACES[3]]
    model = pyg.MonomialGNN(
        4, 2, kernel=pyg.common_kernel(*spaces), inputs=2, outputs=2, hidden=16, readout=readout
    ).double()
    pyg.assert_graph_invariant(model, mixed_batch(spaces), rtol=1e-9)


def test_a_model_does_not_depend_on_the_company_in_the_batch():
    torch.manual_seed(0)
    model = pyg.MonomialGNN(4, 2, kernel=(5, 5), inputs=2, outputs=2, hidden=16).double()
    batch = mixed_batch(SPACES)
    together = model(batch)
    alone = torch.cat([model(data) for data in batch.to_data_list()])
    torch.testing.assert_close(together, alone)
    shuffled = model(Batch.from_data_list(batch[[5, 1, 0]]))
    torch.testing.assert_close(shuffled, together[[5, 1, 0]])


def test_runs_in_the_sequential_of_torch_geometric_before_and_after_its_layers():
    torch.manual_seed(0)
    graph = with_streams(mixed_batch(SPACES), 4)
    degrees = torch.ones(8, dtype=torch.long)
    model = Sequential(
        "x, edge_index, edge_attr, symmetry",
        [
            (pyg.MonomialConv(4), "x, edge_index, edge_attr -> x, edge_attr"),
            (pyg.MonomialCanonicalize(), "x, symmetry -> x"),
            (PNAConv(12, 12, ["mean", "max"], ["identity"], degrees), "x, edge_index -> x"),
            (GATv2Conv(12, 12), "x, edge_index -> x"),
            (GPSConv(12, None, heads=2, norm=None), "x, edge_index -> x"),
        ],
    ).double()
    expected = model(graph.x, graph.edge_index, graph.edge_attr, graph.symmetry)
    g = pyg.random_graph_element(graph, generator=generator())
    moved = act(g, graph)
    found = model(moved.x, moved.edge_index, moved.edge_attr, moved.symmetry)
    torch.testing.assert_close(found, expected[g.permutation.argsort()], rtol=1e-9, atol=1e-9)


def test_resetting_draws_all_parameters_anew():
    conv = pyg.MonomialConv(4)
    before = copy.deepcopy(conv.state_dict())
    conv.reset_parameters()
    assert not [name for name, value in conv.state_dict().items() if torch.equal(value, before[name])]


WIDTH = 3


def streams_of(space, networks, seed=0):
    """A layer, and what it takes: features of the nodes of some networks, their edges and features of these."""
    torch.manual_seed(seed)
    graph = pyg.to_graph(random_networks(space, networks), space)
    x, e = (torch.randn(n, WIDTH * k, dtype=torch.float64) for n, k in ((len(graph.x), 3), (graph.num_edges, 1)))
    return pyg.MonomialConv(WIDTH).double(), x, graph.edge_index, e


@pytest.mark.parametrize("block", [0, 100, 2**18])
def test_edges_may_be_in_any_order_and_there_twice_or_be_loops(monkeypatch, block):
    monkeypatch.setattr(of_edges, "BLOCK", block)
    layer, x, edge_index, e = streams_of(RELU, 3)
    edge_index = torch.cat([edge_index, edge_index[:, :3], torch.tensor([[2], [2]])], 1)
    e = torch.cat([e, e[:4]])
    order = torch.randperm(len(e))
    out, edges = layer(x, edge_index, e)
    expected = layer(x, edge_index[:, order], e[order])
    torch.testing.assert_close((out, edges[order]), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("end", [-1, 30])
def test_an_end_that_is_no_node_is_refused(end):
    layer, x, edge_index, e = streams_of(RELU, 3)
    edge_index[0, 3] = end
    with pytest.raises(ValueError, match=f"edge 3 .* from node {end} to node 3, and x has 30 nodes"):
        layer(x, edge_index, e)


def test_a_graph_without_edges_has_sums_of_zero():
    layer, x, edge_index, e = streams_of(RELU, 1)
    out, edges = layer(x, edge_index[:, :0], e[:0])
    assert edges.shape == (0, WIDTH)
    assert not out[:, : 2 * WIDTH].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_precisions_and_indices(monkeypatch, dtype):
    monkeypatch.setattr(of_edges, "BLOCK", 100)
    layer, x, edge_index, e = streams_of(RELU, 3)
    expected = layer(x, edge_index, e)
    close = {"rtol": 0.1, "atol": 0.1} if dtype == torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-4}
    layer = layer.to(dtype)
    for index in (edge_index, edge_index.int()):
        found = [t.double() for t in layer(x.to(dtype), index, e.to(dtype))]
        torch.testing.assert_close(found, list(expected), **close)
    with torch.autocast("cpu", torch.bfloat16):
        found = [t.double() for t in layer.float()(x.float(), edge_index, e.float())]
    torch.testing.assert_close(found, list(expected), rtol=0.1, atol=0.1)


def test_no_value_is_read_where_none_is_known():
    layer, x, edge_index, e = streams_of(RELU, 3)
    expected = layer(x, edge_index, e)
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    exported = torch.export.export(layer, (x, edge_index, e)).module()
    mapped = torch.func.vmap(lambda x, e: layer(x, edge_index, e))(x[None], e[None])
    for found in (compiled(x, edge_index, e), exported(x, edge_index, e), tuple(t[0] for t in mapped)):
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


def test_clear_errors():
    graph, mixed = mixed_batch(SPACES[:1]), mixed_batch([SPACES[0], SPACES[2]])
    uncharged = copy.copy(graph)
    del uncharged.symmetry
    nodes = torch.zeros(len(mixed.x), 3, dtype=torch.float64)
    refused = {
        "Was to_graph given another kernel": lambda: pyg.MonomialEmbedding(4, (3, 3), 2, 2)(graph),
        "a network has 2 inputs; built for 1": lambda: pyg.MonomialEmbedding(4, (), 1, 2).double()(graph),
        r"networks of \[1, 2\] outputs": lambda: pyg.MonomialPool(1, outputs=2)(nodes, mixed),
        "no charge information": lambda: pyg.MonomialEmbedding(4, (), 2, 2).double()(uncharged),
    }
    for message, call in refused.items():
        with pytest.raises(ValueError, match=message):
            call()
