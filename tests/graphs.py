"""Networks and their graphs, for tests."""

import copy

import torch
from hypothesis import strategies as st

from nfn_monomial import WeightSpace
from nfn_monomial.testing import random_networks

seeds = st.integers(0, 10**6)
RELU = WeightSpace.mlp([2, 4, 3, 1], "relu")
CNN = WeightSpace.cnn([1, 3, 4], [3, 2], ["tanh", "relu"], head=[2], positions=4)
WIDE = WeightSpace.cnn([1, 2, 3], [(5, 3), 1], "gelu", bias=[False, True])


def networks_of(space, batch=3, channels=1, seed=0, dtype=torch.float64):
    return random_networks(space, batch, channels, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def assert_same(found, expected):
    assert list(found) == list(expected)
    for name, x in expected.items():
        assert found[name].dtype == x.dtype
        assert torch.equal(found[name], x), name


def assert_same_graph(found, expected):
    assert_same(found.to_dict(), expected.to_dict())


def mixed():
    """Networks of different depths, widths, kernels and activations."""
    return [
        (networks_of(space, batch, 2, i), space) for i, (space, batch) in enumerate([(CNN, 2), (RELU, 1), (WIDE, 3)])
    ]


def shuffled(graph, seed=0):
    """The same graphs with nodes and edges in another order, their attributes along."""
    generator = torch.Generator().manual_seed(seed)
    n, e = graph.num_nodes, graph.num_edges
    nodes, edges = torch.randperm(n, generator=generator), torch.randperm(e, generator=generator)
    out = copy.copy(graph)
    for name in ("x", "symmetry", "layer", "neuron", "depth", "has_bias", "batch"):
        if name in graph:
            out[name] = graph[name][nodes]
    out.edge_index = nodes.argsort()[graph.edge_index][:, edges]
    out.edge_attr, out.edge_layer = graph.edge_attr[edges], graph.edge_layer[edges]
    return out
