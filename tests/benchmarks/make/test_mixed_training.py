"""Training networks of one architecture together: each on its own, as torch does it, whatever the architecture."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from tiny_mixed_zoo import SMALL
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import vector_to_parameters

from nfn_monomial.benchmarks.data.architectures.residual import ResidualCNN
from nfn_monomial.benchmarks.data.images import Images
from nfn_monomial.benchmarks.make.mixed_training import train_group
from nfn_monomial.benchmarks.make.plans import Plan, initial_parameters
from nfn_monomial.benchmarks.make.recipes import Recipe


def recipe(seed: int, **changes: object) -> Recipe:
    base = Recipe("relu", "adam", 3e-3, 1e-3, 0.0, 0.1, 4, "glorot_normal", 0.1, "zeros", seed)
    return replace(base, **changes)  # type: ignore[arg-type]


def test_networks_trained_together_are_those_trained_alone(digits: Images) -> None:
    """Different lengths, optimisers, rates and data: nothing leaks from one network into another."""
    chosen = [
        recipe(0, epochs=2),
        recipe(1, epochs=4, optimizer="sgd", learning_rate=0.1, train_fraction=0.2),
        recipe(2, epochs=3, optimizer="rmsprop", l2reg=1e-2, w_init="he_normal"),
    ]
    together, accuracy = train_group(chosen, digits, SMALL)
    for i, one in enumerate(chosen):
        alone, own = train_group([one], digits, SMALL)
        for name, value in together.items():
            torch.testing.assert_close(value[i], alone[name][0], rtol=1e-3, atol=1e-4)
        assert abs(accuracy[i] - own[0]) < 0.005


def test_batch_norm_is_trained_as_torch_does_it_and_each_network_on_its_own(digits: Images) -> None:
    normal = ResidualCNN(1, (4, 5), (1, 1), (3, 4), normalised=True, activations=("tanh",), classes=10)
    chosen = [recipe(3, optimizer="sgd", learning_rate=0.1, epochs=n, b_init="RandomNormal") for n in (3, 2)]
    found, accuracy = train_group(chosen, digits, normal)
    for i, one in enumerate(chosen):
        plan = Plan(one, partial(initial_parameters, module=normal.sized()), len(digits.train), batch=32, units=0)
        module = normal.module()
        vector_to_parameters(plan.weights, module.parameters())
        optimizer = torch.optim.SGD(module.parameters(), one.learning_rate)
        kernels = [m.weight for m in module.modules() if isinstance(m, (nn.Conv2d, nn.Linear))]
        for batch in plan.order.view(-1, 32).long():
            rows = digits.train[batch]
            optimizer.zero_grad()
            penalty = one.l2reg * sum((p**2).sum() for p in kernels)
            (F.cross_entropy(module(digits.x[rows]), digits.y[rows]) + penalty).backward()
            optimizer.step()
        expected = module.state_dict()
        for name, value in found.items():
            torch.testing.assert_close(value[i], expected[name], rtol=1e-2, atol=1e-3)
        module.eval()
        right = (module(digits.x[digits.test]).argmax(-1) == digits.y[digits.test]).float().mean()
        assert abs(accuracy[i] - right) < 0.01


@pytest.mark.parametrize("name", ["adam", "rmsprop", "sgd"])
def test_training_is_that_of_torchs_optimisers(digits: Images, name: str) -> None:
    one = recipe(7, optimizer=name, l2reg=1e-2)
    plan = Plan(one, partial(initial_parameters, module=SMALL.sized()), len(digits.train), batch=32, units=0)
    start, _ = train_group([replace(one, learning_rate=0.0)], digits, SMALL)
    found, _ = train_group([one], digits, SMALL)

    module = SMALL.module()
    module.load_state_dict({key: start[own][0] for own, key in SMALL.names.items()})
    optimizer: torch.optim.Optimizer = {
        "adam": lambda p: torch.optim.Adam(p, one.learning_rate, eps=1e-7),
        "rmsprop": lambda p: torch.optim.RMSprop(p, one.learning_rate, alpha=0.9, eps=1e-7),
        "sgd": lambda p: torch.optim.SGD(p, one.learning_rate),
    }[name](module.parameters())
    for batch in plan.order.view(-1, 32).long():
        rows = digits.train[batch]
        penalty = one.l2reg * sum((p**2).sum() for key, p in module.named_parameters() if key.endswith("weight"))
        optimizer.zero_grad()
        (F.cross_entropy(module(digits.x[rows]), digits.y[rows]) + penalty).backward()
        optimizer.step()
    assert plan.steps > 10
    expected = dict(module.named_parameters())
    for own, key in SMALL.names.items():
        moved = (expected[key].detach() - start[own][0]).norm()
        assert moved > 0
        assert (found[own][0] - expected[key].detach()).norm() < 0.02 * moved  # Keras adds Adam's epsilon elsewhere


def test_a_network_learns(digits: Images) -> None:
    one = recipe(0, epochs=6, train_fraction=1.0, learning_rate=1e-2, l2reg=1e-6)
    _, accuracy = train_group([one], digits, SMALL)
    assert accuracy.item() > 0.8
