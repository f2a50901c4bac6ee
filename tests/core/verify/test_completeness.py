"""Completeness: scalings that a space does not have are found by the gradient."""

import pytest
import torch
from torch import Tensor, nn

from nfn_monomial import Axis, WeightSpace
from nfn_monomial.space import Node
from nfn_monomial.space.axes import each_axis, powers
from nfn_monomial.verify import completeness

X = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))


def perceptron(activation: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), activation, nn.Linear(4, 5), activation, nn.Linear(5, 2))


def test_a_gauge_that_is_taken_away_is_missing() -> None:
    module = perceptron(nn.ReLU())
    space = WeightSpace.from_module(module, X)
    complete = completeness(module, X, space)
    assert complete.missing == {}
    assert complete.gauges == complete.scalings == {"": 2, "x": 0, "layer0": 1, "layer2": 1, "y": 0}
    assert str(complete) == "The gauges are all scalings that leave the function alone"
    less = completeness(module, X, space.restricted("permutation"))
    assert less.missing == {"": 2, "layer0": 1, "layer2": 1}
    assert "each neuron of layer2: 1 independent scalings leave the function alone, the space has 0" in str(less)


def test_one_of_several_gauges_of_a_node_is_missing() -> None:
    """The gauge of a norm's gain, on the stream of a residual block."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.enter, self.norm, self.branch, self.leave = (
                nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 4), nn.Linear(4, 2),
            )  # fmt: skip

        def forward(self, x: Tensor) -> Tensor:
            y = self.enter(x)
            out: Tensor = self.leave(y + self.branch(self.norm(y)))
            return out

    torch.manual_seed(0)
    module = Block()
    space = WeightSpace.from_module(module, X)
    (stream,) = [name for name, node in space.nodes.items() if node.permutes and node.size == 4]
    first, gain = space.nodes[stream].gauges
    assert (first.scales, gain.scales) == (False, True)
    nodes = {name: (Node((first,), 4) if name == stream else node) for name, node in space.nodes.items()}

    def without(axis: Axis) -> list[Axis | int]:
        return [Axis(stream, powers(axis.charge)[0]) if axis.node == stream else axis]

    dims = {name: tuple(each_axis(dim, without) for dim in dims) for name, dims in space.parameters.items()}
    assert completeness(module, X, space).missing == {}
    assert completeness(module, X, WeightSpace(nodes, dims)).missing == {"": 1, stream: 1}


def test_a_network_without_gauges_misses_none() -> None:
    module = perceptron(nn.GELU())
    complete = completeness(module, X, WeightSpace.from_module(module, X))
    assert set(complete.scalings.values()) == {0}
    assert complete.missing == {}


def test_scalings_of_running_statistics_are_seen() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
    space = WeightSpace.from_module(module, X)
    assert completeness(module, X, space).scalings["layer0"] == 2
    assert completeness(module, X, space.restricted("permutation")).missing["layer0"] == 2


def test_tensors_as_wholes_are_a_question_of_their_own() -> None:
    """One factor for all neurons, which no node has."""

    class Normalised(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.last(nn.functional.normalize(self.first(x), dim=-1))
            return out

    module = Normalised()
    complete = completeness(module, X, WeightSpace.from_module(module, X))
    assert complete.missing == {"": 1}
    assert str(complete).startswith("tensors as wholes: 1 independent scalings")


def test_dead_parameters_are_left_out() -> None:
    module = nn.MultiheadAttention(4, 2, batch_first=True)
    tokens = torch.randn(2, 3, 4)
    space = WeightSpace.from_module(module, (tokens, tokens, tokens), kwargs={"need_weights": False})
    assert space.dead
    complete = completeness(module, (tokens, tokens, tokens), space, kwargs={"need_weights": False})
    assert complete.missing == {}
    assert complete.gauges == complete.scalings


def test_what_does_not_fit_is_refused() -> None:
    module, other = perceptron(nn.ReLU()), WeightSpace.mlp([3, 4, 5, 2], "relu")
    space = WeightSpace.from_module(module, X)
    with pytest.raises(ValueError, match=r"Sequential has no tensor weight\.0; .* WeightSpace.from_module"):
        completeness(module, X, other)
    narrower = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))
    with pytest.raises(ValueError, match=r"Sequential has 0\.weight of shape \(3, 3\)"):
        completeness(narrower, X, space)
    with pytest.raises(ValueError, match="does not run on the example inputs"):
        completeness(module, torch.randn(5, 4), space)
    with pytest.raises(TypeError, match="module must be"):
        completeness(3, X, space)  # type: ignore[arg-type]
