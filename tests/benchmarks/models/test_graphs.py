"""Models on graphs: minibatches are the graphs of their networks, in any order and of any architectures."""

import pytest
import torch
from torch import nn

from nfn_monomial import WeightSpace
from nfn_monomial.adapters.pyg import check_graph, common_kernel, to_graphs
from nfn_monomial.benchmarks.experiments.predict import PREDICT
from nfn_monomial.benchmarks.models.catalogue import model_names
from nfn_monomial.benchmarks.models.graphs import assemble, store
from nfn_monomial.benchmarks.studies.params import zoo_network
from nfn_monomial.testing import random_networks
from nfn_monomial.tools.predictors.models import MixedInfo, Model, NetworkGroup, NetworkInfo, build_model

SPACES = [
    WeightSpace.cnn([1, 4, 5], 3, "relu", head=[3]),
    WeightSpace.cnn([1, 6], 5, ["tanh", "gelu"], head=[7, 3], bias=[True, False, True]),
    WeightSpace.mlp([1, 3, 4, 2, 3], ["leaky_relu", "tanh", "gelu"]),
]


def groups() -> list[NetworkGroup]:
    generator = torch.Generator().manual_seed(0)
    return [(random_networks(space, 2 + i, generator=generator), space) for i, space in enumerate(SPACES)]


def built(name: str, info: NetworkInfo | MixedInfo) -> Model:
    return build_model(name, info, seed=0).double().eval()


@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4, 5, 6, 7, 8], [8, 0, 5], [3, 3, 1]])
def test_minibatches_are_what_to_graphs_makes(order: list[int]) -> None:
    kernel = common_kernel(*SPACES)
    singles = [
        ({n: t[i : i + 1] for n, t in tensors.items()}, space)
        for tensors, space in groups()
        for i in range(len(tensors["weight.0"]))
    ]
    expected = to_graphs([singles[i] for i in order], kernel=kernel)
    stored = store(groups(), kernel)
    assert {len(t) for t in stored.values()} == {9}
    assembled = assemble({name: t[order] for name, t in stored.items()})
    check_graph(assembled)
    assert assembled.num_graphs == expected.num_graphs == len(order)
    for name in (*expected.keys(), "batch", "ptr"):
        assert torch.equal(getattr(assembled, name), getattr(expected, name)), name


@pytest.mark.parametrize("name", ["gnn", "gnn-hnp", "monomial-gnn", "monomial-conv"])
def test_hidden_neurons_are_no_inputs_or_outputs_where_a_network_has_one_of_these(name: str) -> None:
    """A derived space has no node of one neuron, so that the first and the last of its nodes may be hidden."""
    net = nn.Sequential(nn.Linear(1, 5), nn.ReLU(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 1))
    space = WeightSpace.from_module(net, torch.zeros(2, 1))
    assert {node.size for node in space.nodes.values()} == {4, 5}
    generator = torch.Generator().manual_seed(0)
    networks = random_networks(space, 3, generator=generator)
    moved = space.restricted("permutation").sample(3, generator=generator).act(networks)
    model = built(name, NetworkInfo(space, "relu"))
    with torch.no_grad():
        before, after = (model(model.prepare_groups([(x, space)])) for x in (networks, moved))
    assert before.std() > 1e-4
    torch.testing.assert_close(after, before, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["gnn", "gnn-hnp", "monomial-gnn", "monomial-conv"])
def test_every_parameter_learns_and_every_weight_counts(name: str) -> None:
    (tensors, space), *_ = groups()
    model = built(name, NetworkInfo(space, "relu"))
    batch = model.prepare(tensors)
    model(batch).square().sum().backward()
    idle = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    # The last round of messages makes edges and backward features that nothing reads.
    last = ("body.blocks.3.edges", "body.blocks.3.edge_norm", "net.blocks.3.")
    known = {"gnn": last, "monomial-gnn": last, "monomial-conv": last}.get(name, ())
    assert [n for n in idle if not n.startswith(known)] == []
    for key, t in tensors.items():
        # Negated, for canonicalised biases are known by their signs only.
        with torch.no_grad():
            assert (model(model.prepare(tensors | {key: -t})) - model(batch)).abs().max() > 1e-6, key


def test_the_gnn_of_the_paper_s_size() -> None:
    """5.5M parameters on the zoo's network (paper App. D); it is run where it is named, never among all models."""
    model = build_model("gnn-paper", zoo_network("relu"), seed=0)
    size = sum(p.numel() for p in model.parameters())
    assert round(size / 1e6, 1) == 5.5
    assert "gnn-paper" not in model_names()
    assert "gnn-paper" in PREDICT["paper"].models
