"""Networks and their graphs, for tests."""

import copy

import torch
from hypothesis import strategies as st

from nfn_monomial import Axis, Symmetry, WeightSpace
from nfn_monomial.space import Node
from nfn_monomial.testing import random_networks

seeds = st.integers(0, 10**6)
RELU = WeightSpace.mlp([2, 4, 3, 1], "relu")
CNN = WeightSpace.cnn([1, 3, 4], [3, 2], ["tanh", "relu"], head=[2], positions=4)
WIDE = WeightSpace.cnn([1, 2, 3], [(5, 3), 1], "gelu", bias=[False, True])
P, S = Symmetry.PERMUTATION, Symmetry.SCALE
GAIN = WeightSpace(  # several gauges, nested neurons, gains, depthwise kernels and a parameter without an axis
    {"x": Node((Symmetry.FIXED,), 2), "stream": Node((P, S), 3), "heads": Node((P,), 2), "q": Node((S,), 2, "heads"),
     "h": Node((S,), 2)},
    {
        "embed": (Axis("stream", (1, 0)), Axis("x", -1)),
        "gain": (Axis("stream", (0, 1)),),
        "query": (Axis("q", 1), Axis("stream", (-1, -1))),
        "key": (Axis("q", -1), Axis("stream", (-1, -1))),
        "grouped": ((Axis("heads", 0), Axis("q", 1)), Axis("q", -1), 2),
        "depthwise": (Axis("stream", (0, 0)), 1, 3),
        "temperature": (2,),
        "up": (Axis("h", 1), Axis("stream", (-1, -1))),
        "bias": (Axis("h", 1),),
        "other bias": (Axis("h", 1),),
    },
)  # fmt: skip


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
    for name, value in graph.to_dict().items():
        if name.startswith("edge_"):
            out[name] = nodes.argsort()[value][:, edges] if name == "edge_index" else value[edges]
        elif name == "parent_index":
            out[name] = nodes.argsort()[value][nodes]
        elif name not in ("kernel", "ptr"):
            out[name] = value[nodes]
    return out
