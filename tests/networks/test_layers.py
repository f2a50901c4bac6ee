"""Every layer runs on every network of the zoo, and none is fooled by scales of a million."""

import functools
from collections.abc import Callable, Mapping

import pytest
import torch
from networks.derived import weight_space
from networks.everything import NETWORKS
from networks.zoo import Network
from torch import Tensor

from nfn_monomial import GroupElement, InvariantStatistics, MonomialNFN, WeightSpace
from nfn_monomial.adapters.pyg import act, from_graph, to_graph
from nfn_monomial.models import MessagePassingEditor, MessagePassingNFN
from nfn_monomial.testing import random_networks

# Two gauges, nests, sums, heads, still items, scales of entries, factors on whole tensors, three ends.
LAYERED = {
    "pointwise_depthwise", "gru", "maxout", "perceiver", "autoencoder_tied", "constant_gain",
    "generated_weights", "experts_gathered",
}  # fmt: skip
REST = [pytest.mark.networks, pytest.mark.slow]
ZOO = [pytest.param(n, id=n.name, marks=[] if n.name in LAYERED else REST) for n in NETWORKS.values()]
THREE_ENDS = {  # have parameters of three ends that are no factors on whole tensors, and so no graphs
    "llama", "falcon", "multi_query", "bilinear", "rolled", "cumulative", "outer_product",
    "attention_pooling", "experts_gathered", "fourier_operator",
}  # fmt: skip
READERS: dict[str, Callable[[WeightSpace], torch.nn.Module]] = {
    "message passing": lambda space: MessagePassingNFN(space, 4, 2, hidden=8),
    "statistics": InvariantStatistics,
    "the paper's network": lambda space: MonomialNFN(space, (3, 3), hidden=8, io="factored"),
}


@functools.cache
def moved(name: str) -> tuple[WeightSpace, dict[str, Tensor], GroupElement]:
    torch.manual_seed(0)
    _, space = weight_space(NETWORKS[name])
    generator = torch.Generator().manual_seed(1)
    tensors = random_networks(space, 3, 1, generator=generator)
    return space, tensors, space.sample(3, scale_range=(1e-6, 1e6), generator=generator)


def error(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> float:
    return max(float((found[name] - x).abs().max() / x.abs().max()) for name, x in expected.items())


@pytest.mark.parametrize("network", ZOO)
def test_readers_are_invariant_and_editors_equivariant(network: Network) -> None:
    space, tensors, element = moved(network.name)
    for name, make in READERS.items():
        torch.manual_seed(0)  # of others, some have no neuron left that is on
        model = make(space).double()
        with torch.no_grad():
            before, after = model(tensors), model(element.act(tensors))
        assert not torch.allclose(before[0], before[1], rtol=1e-6, atol=0), f"{name} tells no networks apart"
        assert error({name: after}, {name: before}) < 1e-8
    editor = MessagePassingEditor(space, 4, 1, init_scale=1.0).double()
    with torch.no_grad():
        edited = space.unpack(editor(space.pack(tensors)))
        found = space.unpack(editor(space.pack(element.act(tensors))))
    assert error(found, element.act(edited)) < 1e-7
    assert error(edited, tensors) > 1e-3, "nothing is edited"


@pytest.mark.parametrize("network", ZOO)
def test_graphs_and_networks_are_exact_inverses_and_move_alike(network: Network) -> None:
    space, tensors, element = moved(network.name)
    if network.name in THREE_ENDS:
        with pytest.raises(ValueError, match="edges of graphs have two"):
            to_graph(tensors, space)
        return
    graph = to_graph(tensors, space)
    back = from_graph(graph, space)
    assert all(torch.equal(back[name], x) for name, x in tensors.items())
    assert error(from_graph(act(graph, element), space), element.act(tensors)) < 1e-12
