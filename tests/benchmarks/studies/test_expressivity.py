"""The expressivity benchmark in small: its data, its models' symmetries and sizes, its outputs."""

import pytest
import torch
from torch import nn

from nfn_monomial import WeightSpace, balance
from nfn_monomial.benchmarks.experiments.expressivity import ExpressivityConfig
from nfn_monomial.benchmarks.studies import expressivity
from nfn_monomial.benchmarks.studies.expressivity import (
    MODELS,
    Outcome,
    _prepare,
    build,
    draw_outcomes,
    expressivity_table,
    probe_points,
    r2_score,
    random_mlps,
    run_mlps,
)

TINY = ExpressivityConfig(
    activations=("relu",), sizes=(2, 3, 1), points=2, networks=16, test_networks=8, channels=2, epochs=3
)


@pytest.fixture(autouse=True)
def _quiet_and_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KINETO_LOG_LEVEL", "6")
    monkeypatch.setattr(expressivity, "VALIDATION", 8)


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


def test_without_balancing_scales_would_show() -> None:
    torch.manual_seed(0)
    space = WeightSpace.mlp([2, 4, 1], "relu")
    networks = random_mlps([2, 4, 1], "relu", 3, seed=0)
    model = build("message passing", space, 3, 2)
    moved = space.sample(3, scale_range=(2, 8), generator=torch.Generator().manual_seed(1)).act(networks)
    assert not torch.allclose(model(moved), model(networks), rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(
        model(balance(moved, space)[0]), model(balance(networks, space)[0]), rtol=1e-3, atol=1e-4
    )


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_models_are_of_equal_size(activation: str) -> None:
    space = WeightSpace.mlp(ExpressivityConfig().sizes, activation)
    messages, linear = (
        sum(p.numel() for p in build(name, space, ExpressivityConfig().channels, 8).parameters()) for name in MODELS
    )
    assert abs(linear - messages) < 0.05 * messages


def test_r2() -> None:
    true = torch.tensor([[0.0, 5.0], [2.0, 7.0]])
    assert r2_score(true, true) == 1
    assert r2_score(true.mean(0).expand(2, 2), true) == 0
    assert r2_score(true + torch.tensor([0.0, 1.0]), true) == 0.5


def test_figure() -> None:
    """Predictions of the first seed over true outputs, beside the line where they are equal."""
    true, predicted = torch.linspace(0, 1, 8).view(4, 2), torch.linspace(1, 2, 8).view(4, 2)
    outcomes = [
        Outcome(activation, model, seed, 1, 0.5 + seed, 1.0, predicted + i + 9 * seed, true)
        for activation in ("relu", "tanh")
        for i, model in enumerate(MODELS)
        for seed in (0, 1)
    ]
    figure = draw_outcomes(outcomes)
    assert [ax.get_title() for ax in figure.axes] == [
        f"{activation} networks, {model}: R2 1.0000 ±0.5000" for activation in ("relu", "tanh") for model in MODELS
    ]
    for i, ax in enumerate(figure.axes):
        assert (ax.get_xlabel(), ax.get_ylabel()) == ("true output", "predicted from the weights")
        (points,) = ax.collections
        expected = torch.stack([true.flatten(), predicted.flatten() + i % 2], 1)
        torch.testing.assert_close(torch.tensor(points.get_offsets().tolist()), expected)
        (line,) = ax.get_lines()
        assert list(line.get_xdata()) == list(line.get_ydata())
    assert "standard error over seeds (2)" in figure.get_supxlabel()


def test_messages_learn_what_linear_layers_cannot() -> None:
    """Fitted to a few networks."""
    space = WeightSpace.mlp([1, 4, 4, 1], "tanh")
    networks = random_mlps([1, 4, 4, 1], "tanh", 32, seed=0)
    targets = run_mlps(networks, "tanh", probe_points(2, 1))
    losses = {}
    for name in MODELS:
        torch.manual_seed(0)
        model, inputs = build(name, space, 8, 2), _prepare(name, space, networks)
        optimizer = torch.optim.Adam(model.parameters(), 5e-3)
        for _ in range(60):
            optimizer.zero_grad()
            loss = (model(inputs) - targets).square().mean()
            loss.backward()
            optimizer.step()
        losses[name] = loss.item()
    assert losses["message passing"] < losses["linear"] / 3


def test_the_table_has_means_over_seeds() -> None:
    empty = torch.zeros(0)
    outcomes = [Outcome("relu", "linear", seed, 1234, r2, 2.0, empty, empty) for seed, r2 in enumerate((0.1, 0.3))]
    table = expressivity_table(outcomes)
    assert table.cells == (("relu", "linear", "1,234", "0.2000 ±0.1000", "2"),)
    assert "standard error over seeds (2)" in table.notes[0]
