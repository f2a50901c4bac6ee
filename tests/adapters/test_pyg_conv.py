"""Graph layers: what the dense layers compute, on any mixture of architectures, equivariant under each one's group."""

import copy
import itertools
import os
import warnings
from collections.abc import Sequence

import pytest
import torch
import torch.distributed as dist
import torch_geometric
from graphs import CNN, GAIN, RELU, networks_of, shuffled
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import cnns, general, mlps
from torch import Tensor, nn
from torch_geometric.data import Batch
from torch_geometric.explain import Explainer, GNNExplainer
from torch_geometric.nn import (
    GATv2Conv,
    GINEConv,
    GPSConv,
    PNAConv,
    Sequential,
    TransformerConv,
    global_mean_pool,
)
from torch_geometric.utils import to_undirected

from nfn_monomial import Axis, EquivariantNorm, Features, Symmetry, WeightSpace, balance
from nfn_monomial.adapters import pyg
from nfn_monomial.adapters.pyg.conv import GraphIncidence
from nfn_monomial.nn import MessageBlock, blocked, edges
from nfn_monomial.nn.edges import AtEnd
from nfn_monomial.nn.neurons import neuron_layout
from nfn_monomial.space import Node
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


# Parts of the graph layers that have other names in the core's: by the number of ends, and the kind of nodes.
RENAMED = {"conv.edges": "messages.edges.2", "conv.nodes": "messages.nodes.0", "gate.gate": "gate.gates.0"}


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


def after_canonicalize(layer, width):
    """A readout of graphs: embedding, a layer that keeps charges, the end of charges, and any layer of nodes."""
    embed, conv = pyg.MonomialEmbedding(width, KERNEL, 9, 9, pairs=PAIRS), pyg.MonomialConv(width, PAIRS)
    canonicalize = pyg.MonomialCanonicalize()
    nn.ModuleList([embed, conv, layer]).double()

    def readout(graph):
        x, e = embed(graph)
        x, e = conv(x, graph.edge_index, e, graph.edge_streams)
        x, e = canonicalize(x, graph.stream_symmetry, graph.edge_index, e, graph.edge_streams)
        return global_mean_pool(layer(x, graph.edge_index, e), graph.batch)

    return readout


KERNEL, PAIRS = pyg.common_kernel(GAIN, CNN), 2
IN, DEGREES = (2 * PAIRS + 1) * 4, torch.ones(8, dtype=torch.long)
ANY_LAYER = {
    "GINE": lambda: GINEConv(nn.Sequential(nn.Linear(IN, 8), nn.SiLU(), nn.Linear(8, 8)), edge_dim=4),
    "PNA": lambda: PNAConv(IN, 8, ["mean", "max", "std"], ["identity", "amplification"], DEGREES, edge_dim=4),
    "Transformer": lambda: TransformerConv(IN, 8, edge_dim=4),
    "GATv2": lambda: GATv2Conv(IN, 8, edge_dim=4),
}


@pytest.mark.parametrize("layer", ANY_LAYER)
def test_after_the_end_of_charges_any_layer_keeps_the_symmetries(layer):
    torch.manual_seed(0)
    spaces = [CNN, GAIN, RELU, WeightSpace.mlp([2, 5, 5, 1], "tanh"), WeightSpace.mlp([2, 5, 1], "sin")]
    graph = mixed_batch(spaces)
    assert graph.stream_symmetry.shape[1] == PAIRS
    pyg.assert_graph_invariant(after_canonicalize(ANY_LAYER[layer](), 4), graph, rtol=1e-8)


@pytest.mark.parametrize("layer", ANY_LAYER)
def test_on_graphs_of_balanced_networks_any_layer_keeps_the_symmetries(layer):
    torch.manual_seed(0)
    spaces = [WeightSpace.mlp([2, 6, 6, 1], "relu"), WeightSpace.mlp([2, 5, 1], "tanh")]
    networks = [random_networks(space, 3, generator=generator(i)) for i, space in enumerate(spaces)]
    embed = pyg.MonomialEmbedding(4, (), 2, 1, pairs=PAIRS).double()
    layer = ANY_LAYER[layer]().double()

    def readout(networks):
        balanced = [(balance(t, space)[0], space.uncharged()) for t, space in zip(networks, spaces, strict=True)]
        graph = pyg.to_graphs(balanced)
        x, e = embed(graph)
        return global_mean_pool(layer(x, graph.edge_index, e), graph.batch)

    moved = [space.sample(3, generator=generator(7)).act(t) for t, space in zip(networks, spaces, strict=True)]
    torch.testing.assert_close(readout(moved), readout(networks), rtol=1e-8, atol=1e-10)


def test_without_edge_streams_all_that_acts_on_an_edges_ends_counts():
    graph = mixed_batch([GAIN])
    x, e = torch.zeros(len(graph.x), 4 * 5).double(), torch.randn(graph.num_edges, 4, generator=generator()).double()
    end, pairs = pyg.MonomialCanonicalize(), graph.stream_symmetry
    _, edges = end(x, pairs, graph.edge_index, e)
    one = pairs[:, 0] | pairs[:, 1]
    assert torch.equal(edges, end(x[:, :12], one, graph.edge_index, e)[1])
    assert not torch.equal(edges, e)


@pytest.mark.parametrize("kind", ["scale", "sign", "both"])
def test_charges_of_edges_end_under_what_acts_at_either_end(kind):
    """Edges between FIXED nodes stay as they are; a sign at one end is enough to lose an edge's sign."""
    symmetry = torch.tensor([0, 0, {"scale": 5, "sign": 3, "both": 7}[kind]])
    edge_index, e = torch.tensor([[0, 0, 2], [1, 2, 1]]), torch.tensor([[3.0, -4.0]]).expand(3, 2)
    x = torch.zeros(3, 3)
    new, edges = pyg.MonomialCanonicalize()(x, symmetry, edge_index, e)
    root = 1 if kind == "sign" else 5 / 2**0.5  # entries are of size 1
    expected = torch.tensor([[3.0, -4.0], [3 / root, (-4 if kind == "scale" else 4) / root]])[[0, 1, 1]]
    torch.testing.assert_close(edges, expected)
    assert torch.equal(new, pyg.MonomialCanonicalize()(x, symmetry))
    assert edges[:0].shape == pyg.MonomialCanonicalize()(x, symmetry, edge_index[:, :0], e[:0])[1].shape


def test_edges_that_lead_nowhere_or_are_half_given_end_no_charges():
    end, none = pyg.MonomialCanonicalize(), torch.zeros(3, dtype=torch.long)
    x, e, edge_index = torch.zeros(3, 3), torch.zeros(2, 2), torch.zeros(2, 2, dtype=torch.long)
    refused = {
        "both edge_index and edge_attr": lambda: end(x, none, edge_index),
        "leads from node 7 to node 7": lambda: end(x, none, edge_index + 7, e),
        r"edge_index has shape \(2, 2\); \(2, 1\)": lambda: end(x, none, edge_index, e[:1]),
        r"edge_streams has shape \(3,\); \(2, 2\)": lambda: end(x, none, edge_index, e, none),
    }
    for message, call in refused.items():
        with pytest.raises(ValueError, match=message):
            call()


LAYERS = {
    "conv": pyg.MonomialConv(4),
    "last conv": pyg.MonomialConv(4, last=True),
    "gate": pyg.MonomialGate(4, 2),
    "norm": pyg.MonomialNorm(4),
    "block": pyg.MonomialBlock(4),
    "embedding": pyg.MonomialEmbedding(4, (), 2, 2),
    "model": pyg.MonomialGNN(4, 2, kernel=(), inputs=2, outputs=1, pairs=2),
}


@pytest.mark.parametrize("layer", LAYERS)
def test_resetting_draws_all_parameters_anew(layer):
    layer = copy.deepcopy(LAYERS[layer])
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.fill_(7)
    layer.reset_parameters()
    assert not [name for name, p in layer.named_parameters() if bool((p == 7).any())]


WIDTH = 3


def streams_of(space, networks, seed=0):
    """A layer, and what it takes: features of the nodes of some networks, their edges and features of these."""
    torch.manual_seed(seed)
    graph = pyg.to_graph(random_networks(space, networks), space)
    x, e = (torch.randn(n, WIDTH * k, dtype=torch.float64) for n, k in ((len(graph.x), 3), (graph.num_edges, 1)))
    return pyg.MonomialConv(WIDTH).double(), x, graph.edge_index, e


def test_edges_may_be_in_any_order_and_there_twice_or_be_loops():
    layer, x, edge_index, e = streams_of(RELU, 3)
    edge_index = torch.cat([edge_index, edge_index[:, :3], torch.tensor([[2], [2]])], 1)
    e = torch.cat([e, e[:4]])
    order = torch.randperm(len(e))
    out, edges = layer(x, edge_index, e)
    expected = layer(x, edge_index[:, order], e[order])
    torch.testing.assert_close((out, edges[order]), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("size", [2**40, 500, 1], ids=["one block", "blocks", "blocks of an edge"])
@pytest.mark.parametrize("last", [False, True])
@given(st.sampled_from([RELU, CNN, GAIN]), st.integers(1, 3), st.booleans(), seeds)
@settings(max_examples=8)
def test_the_steps_of_torch_geometric_and_blocks_of_edges_compute_the_same(size, last, space, networks, read, seed):
    torch.manual_seed(seed)
    graph = with_streams(pyg.to_graph(random_networks(space, networks), space), WIDTH, seed)
    pairs = graph.stream_symmetry.shape[1] if "stream_symmetry" in graph else None
    graph.x = torch.randn(len(graph.x), (2 * (pairs or 1) + 1) * WIDTH, dtype=torch.float64)
    layer = pyg.MonomialConv(WIDTH, pairs, last=last).double()
    hooked = copy.deepcopy(layer)
    hooked.register_message_forward_hook(lambda *_: None)
    results = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocked, "BLOCK", size)
        for module in (layer, hooked):
            inputs = (graph.x.clone().requires_grad_(), graph.edge_attr.clone().requires_grad_())
            outputs = module(inputs[0], graph.edge_index, inputs[1], graph.get("edge_streams"))
            # Edges that nobody reads have no gradient.
            weights = [torch.linspace(-1, 1, t.numel()).view_as(t).double() for t in outputs]
            loss = sum((t * w).sum() for t, w in zip(outputs[: 2 if read else 1], weights, strict=False))
            gradients = torch.autograd.grad(loss, [*inputs, *module.parameters()], allow_unused=True)
            results.append([*outputs, *[torch.zeros(()) if g is None else g for g in gradients]])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours.expand(theirs.shape), theirs.expand(ours.shape), rtol=1e-10, atol=1e-11)


def test_edges_that_are_not_contiguous_have_derivatives_of_derivatives():
    layer, x, edge_index, e = streams_of(RELU, 1)
    wide = torch.cat([e, e], 1).requires_grad_()
    assert torch.autograd.gradgradcheck(lambda wide: layer(x, edge_index, wide[:, :WIDTH]), (wide,), fast_mode=True)


@pytest.mark.filterwarnings("ignore:.*vmap")
def test_many_gradients_at_once_are_those_one_by_one():
    layer, x, edge_index, e = streams_of(RELU, 1)
    out = layer(x.requires_grad_(), edge_index, e.requires_grad_())[1]
    by = torch.randn(3, *out.shape, dtype=out.dtype)
    at_once = torch.autograd.grad(out, (x, e), by, is_grads_batched=True, retain_graph=True)
    for i, one in enumerate(by):
        expected = torch.autograd.grad(out, (x, e), one, retain_graph=True)
        torch.testing.assert_close([t[i] for t in at_once], list(expected), rtol=1e-10, atol=1e-12)


def test_a_last_layer_returns_edges_themselves():
    _, x, edge_index, e = streams_of(RELU, 1)
    assert pyg.MonomialConv(WIDTH, last=True).double()(x, edge_index, e)[1] is e


def test_a_symmetry_that_changes_after_the_forward_pass_changes_no_gradient(monkeypatch):
    monkeypatch.setattr(edges, "KEPT", 0)
    torch.manual_seed(0)
    gate, x, gradients = pyg.MonomialGate(WIDTH).double(), torch.randn(5, 3 * WIDTH).double(), []
    for changed in (False, True):
        symmetry = torch.full((5,), 2)
        out = gate(x, symmetry)
        if changed:
            symmetry.zero_()
        gradients.append(torch.autograd.grad(out.square().sum(), gate.parameters()))
    torch.testing.assert_close(*gradients, rtol=0, atol=0)


def test_methods_that_were_replaced_are_called():
    layer, x, edge_index, e = streams_of(RELU, 2)
    expected = layer(x, edge_index, e)

    class Halved(pyg.MonomialConv):
        def message(self, edge_attr: Tensor, ends: Sequence[AtEnd], at: GraphIncidence) -> Tensor:
            return super().message(edge_attr, ends, at) / 2

    of_a_class = Halved(WIDTH).double()
    of_a_class.load_state_dict(layer.state_dict())
    layer.message = lambda edge_attr, ends, at: pyg.MonomialConv.message(layer, edge_attr, ends, at) / 2
    out = layer(x, edge_index, e)
    assert not torch.allclose(out[0], expected[0])
    torch.testing.assert_close(out, of_a_class(x, edge_index, e))


@pytest.mark.parametrize("end", [-1, 30])
def test_an_end_that_is_no_node_is_refused(end):
    layer, x, edge_index, e = streams_of(RELU, 3)
    edge_index[0, 3] = end
    with pytest.raises(ValueError, match=f"edge 3 .* from node {end} to node 3, and x has 30 nodes"):
        layer(x, edge_index, e)


@pytest.mark.parametrize("order", ["as written", "shuffled"])
def test_reverse_edges_are_refused(order):
    """They would need the inverse charges: without an error the layer is off by a factor of 80 under scales."""
    graph = mixed_batch([RELU, CNN])
    graph = shuffled(graph) if order == "shuffled" else graph
    x, e = torch.zeros(len(graph.x), 12, dtype=torch.float64), torch.zeros(graph.num_edges, 4, dtype=torch.float64)
    conv, norm = pyg.MonomialConv(4).double(), pyg.MonomialNorm(4).double()
    block = pyg.MonomialBlock(4).double()
    one = torch.cat([graph.edge_index, graph.edge_index[:, 5:6].flip(0)], 1), torch.cat([e, e[:1]])
    every = to_undirected(graph.edge_index, e)
    of_nodes = graph.symmetry, pyg.layer_groups(graph)
    for edge_index, edge_attr in (one, every):
        for layer, others in ((conv, ()), (norm, of_nodes), (block, of_nodes)):
            with pytest.raises(ValueError, match="is the reverse of another edge"):
                layer(x, edge_index, edge_attr, *others)
        # Behind the end of charges they are edges like others.
        pyg.MonomialCanonicalize()(x, graph.symmetry, edge_index, edge_attr)
    conv(x, graph.edge_index, e)
    with torch.autocast("cpu"), pytest.raises(ValueError, match="is the reverse of another edge"):
        conv(x, one[0], one[1])


def test_reverse_edges_are_found_among_many_nodes():
    """Numbers of pairs of nodes do not fit into the 32 bits of these indices."""
    nodes = torch.arange(70_000, dtype=torch.int32)
    down = torch.stack([nodes[1:], nodes[:-1]])
    conv, x, e = pyg.MonomialConv(1), torch.zeros(len(nodes), 3), torch.zeros(len(nodes), 1)
    conv(x, down, e[1:])
    with pytest.raises(ValueError, match=r"edge 69998 \(69999 -> 69998\) is the reverse of another edge"):
        conv(x, torch.cat([down, down[:, -1:].flip(0)], 1), e)


def test_recurrent_edges_are_no_reverse_ones():
    """Neurons of one node set may be joined both ways, by edges with charges of their own."""
    h = WeightSpace(
        {"x": Node((Symmetry.FIXED,), 2), "h": Node((Symmetry.SCALE,), 4)},
        {"in": (Axis("h", 1), Axis("x", -1)), "again": (Axis("h", 1), Axis("h", -1))},
    )
    graph = mixed_batch([h])
    pairs = graph.stream_symmetry.shape[1]
    model = pyg.MonomialGNN(4, 1, kernel=(), inputs=4, outputs=4, pairs=pairs).double()
    pyg.assert_graph_invariant(model, graph, rtol=1e-8)


def test_a_graph_without_edges_has_sums_of_zero():
    layer, x, edge_index, e = streams_of(RELU, 1)
    out, edges = layer(x, edge_index[:, :0], e[:0])
    assert edges.shape == (0, WIDTH)
    assert not out[:, : 2 * WIDTH].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_precisions_and_indices(dtype):
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


def test_derivatives_of_derivatives():
    layer, x, edge_index, e = streams_of(RELU, 1)
    inputs = (x.requires_grad_(), e.requires_grad_())
    assert torch.autograd.gradgradcheck(lambda x, e: layer(x, edge_index, e), inputs, fast_mode=True)


def test_without_edge_streams_edges_meet_the_first_pair():
    _, x, edge_index, e = streams_of(RELU, 1)
    layer = pyg.MonomialConv(WIDTH, pairs=2).double()
    x = torch.cat([x, x[:, : 2 * WIDTH]], 1)
    first = torch.tensor([[0, 1]]).expand(len(e), -1)
    torch.testing.assert_close(layer(x, edge_index, e), layer(x, edge_index, e, first), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_sums_over_many_edges_are_exact_in_half_precision(dtype):
    """Ones are added up to 2000; half precision alone ends at 256 or 2048."""
    count = 2000
    at = GraphIncidence(torch.stack([torch.arange(1, count + 1), torch.zeros(count, dtype=torch.long)]), count + 1, 3)
    ones = torch.ones(1, count, WIDTH, dtype=dtype)
    total, mean = at.sum(ones, 0, "along"), at.mean(ones, 0)
    torch.testing.assert_close(total[0, 0], torch.full((WIDTH,), count, dtype=dtype), rtol=1e-2, atol=0)
    torch.testing.assert_close(mean[0, 2], torch.ones(WIDTH, dtype=dtype), rtol=1e-2, atol=0)


# Tools of torch_geometric and of torch

STEPS = ["propagate", "message", "aggregate", "edge_update"]


@pytest.mark.parametrize("when", ["forward_pre", "forward"])
@pytest.mark.parametrize("step", STEPS)
def test_hooks_of_torch_geometric_see_every_step(step, when):
    layer, x, edge_index, e = streams_of(RELU, 2)
    expected, calls = layer(x, edge_index, e), []
    handle = getattr(layer, f"register_{step}_{when}_hook")(lambda *arguments: calls.append(arguments))
    torch.testing.assert_close(layer(x, edge_index, e), expected, rtol=1e-12, atol=1e-14)
    assert len(calls) == 1
    handle.remove()
    layer(x, edge_index, e)
    assert len(calls) == 1


def test_a_hook_changes_messages():
    """An edge without its message is an edge of weight 0 to the sums of messages."""
    layer, x, edge_index, e = streams_of(RELU, 2)
    kept = (torch.arange(len(e)) % 3 > 0)[:, None]
    nothing = torch.tensor([1.0] * 2 * WIDTH + [0.0] * WIDTH)  # hidden features are no function of the weight alone
    layer.register_message_forward_hook(lambda layer, inputs, messages: messages * kept * nothing)
    torch.testing.assert_close(layer(x, edge_index, e)[0], layer(x, edge_index, e * kept)[0], rtol=1e-12, atol=1e-12)


class _OfTensors(nn.Module):
    """A model of graphs as explainers call models: with nodes, edges, and the rest by name."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x, edge_index, edge_attr, graph):
        graph = copy.copy(graph)
        graph.x, graph.edge_index, graph.edge_attr = x, edge_index, edge_attr
        return self.model(graph)


def test_an_explainer_masks_nodes_and_messages():
    torch.manual_seed(0)
    graph = mixed_batch(SPACES[:2])
    model = pyg.MonomialGNN(4, 2, kernel=(), inputs=2, outputs=1, hidden=16).double()
    expected = model(graph)
    explainer = Explainer(
        _OfTensors(model),
        GNNExplainer(epochs=3),
        explanation_type="model",
        node_mask_type="object",
        edge_mask_type="object",
        model_config={"mode": "regression", "task_level": "graph", "return_type": "raw"},
    )
    explanation = explainer(graph.x, graph.edge_index, edge_attr=graph.edge_attr, graph=graph)
    assert explanation.node_mask.shape == (graph.num_nodes, 1)
    assert explanation.edge_mask.shape == (graph.num_edges,)
    # Every edge carries messages that the output depends on.
    assert bool((explanation.edge_mask > 0).all())
    # Explainers leave torch-geometric's steps in place, which add up in another order.
    torch.testing.assert_close(model(graph), expected, rtol=1e-10, atol=1e-12)


class _OfNodesOrEdges(_OfTensors):
    """A number for each node, or for each edge, of a graph that explainers give as tensors."""

    def __init__(self, level, width=4):
        super().__init__(pyg.MonomialEmbedding(width, (), 2, 1))
        self.level, self.block, self.head = level, pyg.MonomialBlock(width), nn.Linear(width, 1)

    def forward(self, x, edge_index, edge_attr, graph):
        nodes, edges = super().forward(x, edge_index, edge_attr, graph)
        nodes, edges = self.block(nodes, edge_index, edges, graph.symmetry, pyg.layer_groups(graph))
        nodes, edges = pyg.MonomialCanonicalize()(nodes, graph.symmetry, edge_index, edges)
        return self.head(nodes[:, -self.head.in_features :] if self.level == "node" else edges)


@pytest.mark.parametrize("level", ["node", "edge"])
@pytest.mark.parametrize("masks", [("attributes", "object"), ("common_attributes", None), (None, "object")], ids=str)
def test_an_explainer_explains_a_node_or_an_edge(level, masks):
    """What a block computes at a node depends on the edges there, what it computes at an edge on this one alone."""
    torch.manual_seed(0)
    graph = mixed_batch([RELU])
    model = _OfNodesOrEdges(level).double()
    explainer = Explainer(
        model,
        GNNExplainer(epochs=3),
        explanation_type="model",
        node_mask_type=masks[0],
        edge_mask_type=masks[1],
        model_config={"mode": "regression", "task_level": level, "return_type": "raw"},
    )
    explained = explainer(graph.x, graph.edge_index, edge_attr=graph.edge_attr, graph=graph, index=2)
    expected = (graph.edge_index == 2).any(0) if level == "node" else torch.arange(graph.num_edges) == 2
    if masks[1] is not None:
        assert bool((explained.edge_mask[expected] > 0).all())
        assert not bool(explained.edge_mask[graph.batch[graph.edge_index[0]] == 1].any())
    if masks[0] == "attributes":
        assert explained.node_mask.shape == graph.x.shape
        assert not bool(explained.node_mask[graph.batch == 1].any())
    # Masks are gone.
    assert not any(of.explain for of in model.modules() if isinstance(of, pyg.MonomialConv))


def test_every_parameter_has_a_gradient_and_data_may_be_distributed():
    """Without ``find_unused_parameters`` a second step needs gradients of all parameters in the first one."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.manual_seed(0)
    graph = mixed_batch(SPACES[:2])
    alone = pyg.MonomialGNN(4, 2, kernel=(), inputs=2, outputs=1, hidden=16).double()
    model = copy.deepcopy(alone)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        parallel = nn.parallel.DistributedDataParallel(model)
        for net in (alone, parallel):
            optimizer = torch.optim.SGD(net.parameters(), 0.01)
            for _ in range(3):
                optimizer.zero_grad()
                net(graph).square().mean().backward()
                assert all(p.grad is not None and bool(p.grad.any()) for p in net.parameters())
                optimizer.step()
    finally:
        dist.destroy_process_group()
    for found, expected in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


def test_a_model_compiles_without_a_break():
    torch.manual_seed(0)
    graph = mixed_batch(SPACES[:2])
    model = pyg.MonomialGNN(4, 2, kernel=(), inputs=2, outputs=1, hidden=16).double()
    for compiled in (torch.compile, _compile_of_torch_geometric):
        of_model = compiled(model, fullgraph=True, backend="eager")
        torch.testing.assert_close(of_model(graph), model(graph), rtol=1e-10, atol=1e-12)


def _compile_of_torch_geometric(model, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the newest release names torch.compile in its place
        return torch_geometric.compile(model, **options)


def test_a_layer_is_traced():
    layer, x, edge_index, e = streams_of(RELU, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # sizes become constants, and tracing is deprecated
        traced = torch.jit.trace(layer, (x, edge_index, e), check_trace=False)
        torch.testing.assert_close(traced(x + 1, edge_index, e), layer(x + 1, edge_index, e), rtol=1e-12, atol=1e-12)


class _ToTheEndOfCharges(nn.Module):
    def __init__(self, pairs):
        super().__init__()
        self.conv, self.end = pyg.MonomialConv(4, pairs), pyg.MonomialCanonicalize()

    def forward(self, x, edge_index, edge_attr, symmetry, streams):
        x, edge_attr = self.conv(x, edge_index, edge_attr, streams)
        return self.end(x, symmetry, edge_index, edge_attr, streams)


@pytest.mark.parametrize("pairs", [None, 2], ids=["chains", "any networks"])
def test_a_layer_compiles_into_one_graph_that_takes_other_batches(pairs):
    layers = _ToTheEndOfCharges(pairs).double()
    compiled = _compile_of_torch_geometric(layers, fullgraph=True, dynamic=True, backend="eager")
    for networks in (2, 5):
        graph = mixed_batch([GAIN if pairs else CNN, RELU], per_space=networks)
        x = torch.randn(len(graph.x), 4 * (2 * (pairs or 1) + 1), dtype=torch.float64)
        e = torch.randn(graph.num_edges, 4, dtype=torch.float64)
        symmetry, streams = (graph.stream_symmetry, graph.edge_streams) if pairs else (graph.symmetry, None)
        inputs = x, graph.edge_index, e, symmetry, streams
        torch.testing.assert_close(compiled(*inputs), layers(*inputs), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("scale", [1e-30, 1e19, 1e37])
def test_outputs_are_finite_at_every_scale(scale):
    torch.manual_seed(0)
    graph = mixed_batch([SPACES[0].restricted("sign"), SPACES[1]])
    for name in ("x", "edge_attr"):
        graph[name] = (graph[name] * scale).float()
    model = pyg.MonomialGNN(4, 2, kernel=(), inputs=2, outputs=1, hidden=16)
    out = model(graph)
    out.sum().backward()
    assert bool(out.isfinite().all())
    assert all(bool(p.grad.isfinite().all()) for p in model.parameters())


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


def test_a_graph_without_nodes():
    none = torch.zeros(0, dtype=torch.long)
    x, edge_index, edge_attr = torch.zeros(0, 12), torch.zeros(2, 0, dtype=torch.long), torch.zeros(0, 4)
    block, conv = pyg.MonomialBlock(4), pyg.MonomialConv(4)
    for new in (conv(x, edge_index, edge_attr), block(x, edge_index, edge_attr, none, none)):
        assert [t.shape for t in new] == [(0, 12), (0, 4)]
