"""Layers that single models are made of: equivariant on chains, residual networks and transformers."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from nfn_monomial import WeightSpace
from nfn_monomial.benchmarks.data.architectures.residual import ResidualCNN
from nfn_monomial.benchmarks.data.architectures.transformers import Transformer
from nfn_monomial.benchmarks.models.invariant.readers import LinearGenerator
from nfn_monomial.benchmarks.models.invariant.scale_gmn import ScaleMessages
from nfn_monomial.benchmarks.models.monomial import LearnedScales
from nfn_monomial.testing import assert_equivariant, random_networks

SPACES = {
    "relu": WeightSpace.cnn([1, 4, 4], 3, "relu", head=[3]),
    "tanh": WeightSpace.mlp([2, 4, 3, 2], "tanh"),
    "linear": WeightSpace.mlp([2, 4, 3, 2], "identity"),
    "residual": ResidualCNN(1, (3, 4), (1, 2), (2, 3, 4), True, ("relu",), 3).space,
    "transformer": Transformer(1, 4, 2, 4, (2, 1), 2, (3, 2), ("relu", "gelu"), 3).space,
}
LAYERS: dict[str, Callable[[WeightSpace], nn.Module]] = {
    "scales": lambda space: LearnedScales(space, 2),
    "forwards": lambda space: ScaleMessages(space, 2, backward=False),
    "both ways": lambda space: ScaleMessages(space, 2, backward=True),
}


def seeded(layer: nn.Module) -> nn.Module:
    """With parameters none of which is 0."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(0.2 * torch.randn(parameter.shape, generator=generator))
    return layer.double()


@pytest.mark.parametrize("name", SPACES)
@pytest.mark.parametrize("kind", LAYERS)
def test_equivariant_to_whatever_acts(kind: str, name: str) -> None:
    space = SPACES[name]
    assert_equivariant(seeded(LAYERS[kind](space)), space, channels=2, rtol=1e-9)


@pytest.mark.parametrize("name", SPACES)
def test_scales_start_at_one_and_are_then_no_constants(name: str) -> None:
    space = SPACES[name]
    x = space.pack(random_networks(space, 2, 2, generator=torch.Generator().manual_seed(0)))
    fresh, learned = LearnedScales(space, 2).double(), seeded(LearnedScales(space, 2))
    ratios = []
    with torch.no_grad():
        for before, same, after in zip(x.tensors, fresh(x).tensors, learned(x).tensors, strict=True):
            assert torch.equal(before, same)
            ratios.append((after / before).flatten(1))
    ratio = torch.cat(ratios, 1)
    assert bool((ratio > 0).all())
    assert float((ratio[0] - ratio[1]).abs().max()) > 0.05, "networks have their own"


def test_forward_features_sent_backwards_break_the_group() -> None:
    """What the published bidirectional form does, and why there are streams of charge -1."""
    space = SPACES["relu"]
    layer = LAYERS["both ways"](space)
    assert isinstance(layer, ScaleMessages)
    forwards = [[d._replace(against=min(d.against, d.along)) for d in e.ends] for e in layer.neurons.edges]
    wrong = tuple(e._replace(ends=tuple(ends)) for e, ends in zip(layer.neurons.edges, forwards, strict=True))
    layer.neurons = layer.neurons._replace(edges=wrong)
    with pytest.raises(AssertionError, match="not equivariant"):
        assert_equivariant(seeded(layer), space, channels=2)


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 7, 5), (2,)])
def test_generated_inputs(shape: tuple[int, ...]) -> None:
    generator = LinearGenerator(40, shape)
    made = generator()
    assert made.shape == (40, *shape)
    assert float(made.detach().std()) == pytest.approx(1, abs=0.2)
    with torch.no_grad():
        generator.codes[2] = (generator.codes[0] + generator.codes[1]) / 2
        first, second, between = generator()[:3]
    torch.testing.assert_close(between, (first + second) / 2, rtol=1e-4, atol=1e-5)  # no activation is between
