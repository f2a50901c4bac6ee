"""The expressivity benchmark in small: its data, its models' symmetries and sizes, its outputs."""

import pytest
import torch
from torch import nn

from nfn_monomial import WeightSpace
from nfn_monomial.benchmarks.studies.expressivity import (
    MODELS,
    _prepare,
    build,
    probe_points,
    r2_score,
    random_mlps,
    run_mlps,
)


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_targets_are_what_the_networks_compute(activation: str) -> None:
    sizes, x = (2, 5, 4, 3), probe_points(6, 2)
    assert x.shape == (6, 2)
    assert bool((x.abs() <= 1).all())
    networks = random_mlps(sizes, activation, 4, seed=3)
    found = run_mlps(networks, activation, x)
    function = nn.ReLU() if activation == "relu" else nn.Tanh()
    net = nn.Sequential(nn.Linear(2, 5), function, nn.Linear(5, 4), function, nn.Linear(4, 3))
    for i in range(4):
        net.load_state_dict(
            {
                f"{2 * layer}.{kind}": networks[f"{kind}.{layer}"][i, 0]
                for layer in range(3)
                for kind in ("weight", "bias")
            }
        )
        torch.testing.assert_close(found[i], net(x).flatten())
    other = random_mlps(sizes, activation, 4, seed=4)
    assert not torch.equal(other["weight.0"], networks["weight.0"])


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("name", MODELS)
def test_models_see_networks_up_to_the_whole_group(name: str, activation: str) -> None:
    torch.manual_seed(0)
    space = WeightSpace.mlp([2, 5, 4, 1], activation)
    networks = {k: t.double() for k, t in random_mlps([2, 5, 4, 1], activation, 3, seed=0).items()}
    element = space.sample(3, generator=torch.Generator().manual_seed(1))
    model = build(name, space, 3, 2).double()
    expected = model(_prepare(name, space, networks))
    found = model(_prepare(name, space, element.act(networks)))
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-8)
    # Another network; but the linear model sees every hidden weight by itself, so not in which column it is.
    changed = model(_prepare(name, space, networks | {"weight.1": networks["weight.1"].flip(-1)}))
    assert torch.allclose(changed, expected, rtol=1e-8, atol=1e-8) == (name == "linear")
    changed = model(_prepare(name, space, networks | {"weight.0": networks["weight.0"].flip(-1)}))
    assert not torch.allclose(changed, expected, rtol=1e-6, atol=1e-8)


def test_r2() -> None:
    true = torch.tensor([[0.0, 5.0], [2.0, 7.0]])
    assert r2_score(true, true) == 1
    assert r2_score(true.mean(0).expand(2, 2), true) == 0
    assert r2_score(true + torch.tensor([0.0, 1.0]), true) == 0.5
