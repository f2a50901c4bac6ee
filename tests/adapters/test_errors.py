"""Wrong calls of every public name of the adapters: an error of ours, or an answer that means something."""

from __future__ import annotations

import pytest
import torch
from graphs import networks_of
from nfn.common import WeightSpaceFeatures
from nfn_networks import spec_of
from wrong_calls import Call, faults, uncovered

from nfn_monomial import WeightSpace
from nfn_monomial.adapters import nfn, pyg
from nfn_monomial.adapters.matching import is_ignored, match_names

D = torch.float64
RELU = WeightSpace.mlp([2, 3, 1], "relu")
NETS = networks_of(RELU, 2)
SPEC, WSF = spec_of(RELU), nfn.from_tensors(NETS)
GRAPH = pyg.to_graph(NETS, RELU)
ELEMENT = RELU.sample(2, generator=torch.Generator().manual_seed(0))
NFN = {"network_spec": SPEC, "symmetry": "relu", "io_symmetry": "fixed"}
X, EDGES = torch.ones(len(GRAPH.x), 6, dtype=D), torch.ones(GRAPH.edge_index.shape[1], 2, dtype=D)
GRAPHS = {"x": X, "edge_index": GRAPH.edge_index, "edge_attr": EDGES}
FELT = {"symmetry": GRAPH.symmetry, "group": pyg.layer_groups(GRAPH)}


def sent(layer):
    """A layer's forward."""
    layer = layer.double()
    return lambda **given: layer(**given)


def one(layer):
    """The same of a layer with one argument."""
    layer = layer.double()
    return lambda given: layer(given)


def paths(graph):
    """Products of weights from inputs to outputs: invariants."""
    first, second = graph.edge_attr.view(2, -1).split([6, 3], 1)
    return (first.view(2, 3, 2) * second[:, :, None]).sum(1)


WHOLE = (pyg.MonomialNorm, pyg.MonomialBlock)
STREAMS = {"channels": 2, "pairs": None}
NFN_LAYERS = {
    "MonomialLinear": nfn.MonomialLinear(SPEC, 1, 2, symmetry="relu"),
    "MonomialActivation": nfn.MonomialActivation(SPEC, "relu", symmetry="relu"),
    "MonomialCanonicalize": nfn.MonomialCanonicalize(SPEC, 1, symmetry="relu"),
    "MonomialBalance": nfn.MonomialBalance(SPEC, symmetry="relu"),
    "MonomialPool": nfn.MonomialPool(SPEC),
    "MonomialStack": nfn.MonomialStack(SPEC, nfn.MonomialBalance(SPEC, symmetry="relu")),
}
CALLS = {
    **{f"{name}.forward": Call(one(layer), {"given": WSF}) for name, layer in NFN_LAYERS.items()},
    "to_tensors": Call(nfn.to_tensors, {"wsfeat": WSF}),
    "from_tensors": Call(nfn.from_tensors, {"tensors": NETS}),
    "MonomialLinear": Call(
        nfn.MonomialLinear, {**NFN, "in_channels": 1, "out_channels": 2, "io": "full", "bias": True}
    ),
    "MonomialLinear.forward, weights": Call(
        lambda weights, biases: nfn.MonomialLinear(SPEC, 1, 2, symmetry="relu").double()(
            WeightSpaceFeatures(weights, biases)
        ),
        {"weights": WSF.weights, "biases": WSF.biases},
        also=(TypeError,),  # of nfn's own class
    ),
    "MonomialActivation": Call(nfn.MonomialActivation, {**NFN, "fn": "relu"}),
    "MonomialCanonicalize": Call(nfn.MonomialCanonicalize, {**NFN, "channels": 1, "kind": "norm", "learnable": True}),
    "MonomialBalance": Call(nfn.MonomialBalance, NFN),
    "MonomialPool": Call(nfn.MonomialPool, {"network_spec": SPEC}),
    "MonomialStack": Call(
        lambda network_spec, layer: nfn.MonomialStack(network_spec, layer),
        {"network_spec": SPEC, "layer": nfn.MonomialBalance(SPEC, symmetry="relu")},
    ),
    "match_names": Call(match_names, {"state": NETS, "space": RELU, "names": None, "ignore": (), "ordered": True}),
    "is_ignored": Call(is_ignored, {"key": "0.bias", "ignore": ("0.*",)}),
    "to_graph": Call(pyg.to_graph, {"tensors": NETS, "space": RELU, "kernel": (1,)}),
    "to_graphs": Call(pyg.to_graphs, {"networks": [(NETS, RELU)], "kernel": (1,)}),
    "from_graph": Call(pyg.from_graph, {"graph": GRAPH, "space": RELU}),
    "from_graphs": Call(pyg.from_graphs, {"graph": GRAPH, "spaces": [RELU, RELU]}),
    "ToGraph": Call(pyg.ToGraph, {"space": RELU, "kernel": (1,)}),
    "ToGraph.forward": Call(one(pyg.ToGraph(RELU)), {"given": NETS}),
    "FromGraph": Call(pyg.FromGraph, {"space": RELU}),
    "FromGraph.forward": Call(one(pyg.FromGraph(RELU)), {"given": GRAPH}),
    "act": Call(pyg.act, {"graph": GRAPH, "element": ELEMENT}),
    "random_graph_element": Call(pyg.random_graph_element, {"graph": GRAPH, "generator": None}),
    "check_graph": Call(pyg.check_graph, {"graph": GRAPH, "where": "here"}),
    "common_kernel": Call(lambda space: pyg.common_kernel(space), {"space": RELU}),
    "layer_groups": Call(pyg.layer_groups, {"graph": GRAPH}),
    **{kind.__name__: Call(kind, STREAMS) for kind in (pyg.MonomialConv, pyg.MonomialGate, *WHOLE)},
    **{f"{kind.__name__}.forward": Call(sent(kind(2)), {**GRAPHS, **FELT}) for kind in WHOLE},
    "MonomialConv.forward": Call(sent(pyg.MonomialConv(2)), {**GRAPHS, "edge_streams": None}),
    "MonomialGate.forward": Call(sent(pyg.MonomialGate(2)), {"x": X, "symmetry": GRAPH.symmetry}),
    "pyg.MonomialCanonicalize.forward": Call(
        sent(pyg.MonomialCanonicalize()), {"x": X, "symmetry": GRAPH.symmetry}
    ),
    "MonomialEmbedding": Call(
        pyg.MonomialEmbedding, {**STREAMS, "kernel": (1,), "inputs": 2, "outputs": 1, "in_channels": 1}
    ),
    "MonomialEmbedding.forward": Call(one(pyg.MonomialEmbedding(2, (1,), 2, 1)), {"given": GRAPH}),
    "pyg.MonomialPool": Call(pyg.MonomialPool, {"channels": 2, "outputs": 1}),
    "pyg.MonomialPool.forward": Call(sent(pyg.MonomialPool(2)), {"x": X, "graph": GRAPH}),
    "MonomialGNN": Call(
        pyg.MonomialGNN,
        {"channels": 2, "layers": 1, "kernel": (1,), "inputs": 2, "outputs": 1, "hidden": 4, "out_features": 1,
         "in_channels": 1, "pairs": None, "readout": "mean"},
    ),
    "MonomialGNN.forward": Call(one(pyg.MonomialGNN(2, 1, kernel=(1,), inputs=2, outputs=1)), {"given": GRAPH}),
    "assert_graph_equivariant": Call(
        pyg.assert_graph_equivariant, {"layer": lambda g: g, "graph": GRAPH, "trials": 1, "rtol": 1e-6, "seed": 0},
        also=(AssertionError, TypeError),
    ),
    "assert_graph_invariant": Call(
        pyg.assert_graph_invariant, {"readout": paths, "graph": GRAPH, "trials": 1, "rtol": 1e-6, "seed": 0},
        also=(AssertionError, TypeError),
    ),
}  # fmt: skip
TENSORS = (
    "[tensor], [scalar], [empty], [whole], [bool tensor], [complex tensor], [meta], [float8], [NaN tensor], "
    "[other dtype], [of whole numbers], [on meta], [more channels], [no networks], [a dimension less], "
    "[a dimension more], [wider], [with NaN], [infinite]"
)
TAKES = {
    "from_tensors": {"tensors": TENSORS},  # nfn's container says nothing of what is in it
    "match_names": {"state": TENSORS, "names": "dict", "ignore": "text, no text, list, list of text"},  # by names alone
    "is_ignored": {"key": "text, no text", "ignore": "text, no text, list, list of text, tuple"},
    "to_graph": {"kernel": "list, tuple"},
    "to_graphs": {"kernel": "list, tuple"},
    "ToGraph": {"kernel": "list, tuple"},
    "check_graph": {"where": "text, no text"},
    "MonomialEmbedding": {"kernel": "list, tuple"},
    "MonomialGNN": {"kernel": "list, tuple"},
    "assert_graph_equivariant": {"rtol": "2**40, 4.5", "seed": "-1, 2**40"},
    "assert_graph_invariant": {"rtol": "2**40, 4.5", "seed": "-1, 2**40"},
}
MODULES = (nfn, pyg)


def test_wrong_calls_are_errors_of_ours_or_mean_something():
    count, found = faults(CALLS, TAKES)
    assert not found, "\n".join(found)
    assert count > 4_000


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_every_public_name_is_called_wrongly(module):
    assert not uncovered(module, CALLS)
