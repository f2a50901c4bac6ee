"""One truth about activations: the table says what functions do, and chains and traced networks read it alike."""

import pytest
import torch
from torch import Tensor, nn

from nfn_monomial import Symmetry, WeightSpace, symmetry_of
from nfn_monomial.symmetry import _PARITIES, FUNCTIONS, Parity, _plain, function_named

X = torch.linspace(-3, 3, 200, dtype=torch.float64)
FACTORS = (0.3, 2.7, 11.0)


def parity_seen(function) -> Parity:
    """What a function does with factors of its argument, seen at numbers."""

    def alike(a: Tensor, b: Tensor) -> bool:
        return torch.allclose(a, b, rtol=1e-9, atol=1e-12, equal_nan=True)

    with torch.no_grad():
        y, mirrored, scaled = function(X), function(-X), [function(c * X) for c in FACTORS]
        power = next((p for p in (1, 2) if all(map(alike, scaled, [c**p * y for c in FACTORS]))), None)
        sign = 1 if alike(mirrored, -y) else 0 if alike(mirrored, y) else None
        return Parity(power, sign, not function(torch.zeros((), dtype=torch.float64)))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_table_says_what_operators_do(name):
    assert parity_seen(getattr(torch.ops.aten, name, None) or function_named(name)) == FUNCTIONS[name]


THINGS = [thing for thing in _PARITIES if not isinstance(thing, str)]


@pytest.mark.parametrize("thing", THINGS, ids=lambda thing: thing.__name__)
def test_functions_and_modules_are_what_the_table_says(thing):
    function = thing().double().eval() if isinstance(thing, type) else thing
    assert symmetry_of(thing) is symmetry_of(function) is parity_seen(function).symmetry


def test_names_of_functions_modules_and_activations_are_known():
    assert len(THINGS) > 100
    assert {nn.LeakyReLU, nn.LogSigmoid, nn.functional.leaky_relu, torch.relu, Tensor.relu} <= {*THINGS}
    assert symmetry_of("LeakyReLU") is symmetry_of("leaky_relu") is symmetry_of("prelu") is Symmetry.SCALE
    assert symmetry_of("siren") is symmetry_of("hardtanh") is Symmetry.SIGN
    with pytest.raises(ValueError, match="unknown activation"):
        symmetry_of(nn.Linear)


class Applied(nn.Module):
    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


NAMED = {FUNCTIONS[name]: _plain(name) for name in FUNCTIONS if function_named(name)}  # one for every behaviour


@pytest.mark.parametrize("name", NAMED.values())
def test_chains_and_traced_networks_have_one_group(name):
    function = Applied(function_named(name))
    net = nn.Sequential(
        nn.Conv2d(1, 3, 2), function, nn.Flatten(), nn.Linear(12, 5), function, nn.Linear(5, 4), function,
        nn.Linear(4, 2),
    )  # fmt: skip
    traced = WeightSpace.from_module(net, torch.rand(5, 1, 3, 3), certify=False)
    chain = WeightSpace.cnn([1, 3], 2, name, head=[5, 4, 2], positions=4)
    assert chain.group_dimension == traced.group_dimension
    for own, found in zip(("h1", "h2", "h3"), ("0", "3", "5"), strict=True):
        node, other = chain.nodes[own], next(n for n in traced.nodes.values() if n.size == chain.nodes[own].size)
        assert node.permutes == other.permutes, found
        assert sum(g.flips for g in node.gauges) == sum(g.flips for g in other.gauges), found
        assert sum(g.scales for g in node.gauges) == sum(g.scales for g in other.gauges), found
