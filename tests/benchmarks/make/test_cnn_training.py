"""Training CNNs in batches: the batched networks are right, and each is trained on its own."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from small_cnns import LAYOUT, torch_forward
from torch.nn import functional as F

from nfn_monomial.benchmarks.data.layout import unflatten
from nfn_monomial.benchmarks.make.batched_cnn import BatchedCNN, patch_table
from nfn_monomial.benchmarks.make.plans import Plan, initial_weights
from nfn_monomial.benchmarks.make.recipes import Recipe
from nfn_monomial.benchmarks.make.training import ImageTensors, train

DRAW = partial(initial_weights, layout=LAYOUT)


def recipe(seed: int, **changes: object) -> Recipe:
    base = Recipe(
        activation="relu",
        optimizer="adam",
        learning_rate=3e-3,
        l2reg=1e-4,
        dropout=0.0,
        train_fraction=0.1,
        epochs=4,
        w_init="glorot_normal",
        init_std=0.1,
        b_init="zeros",
        random_seed=seed,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


# --- the batched network -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize(("size", "padding"), [(8, 1), (28, 0), (15, 1), (16, 0)])
def test_forward_and_backward_are_torchs(size: int, padding: int, activation: str) -> None:
    generator = torch.Generator().manual_seed(0)
    n, b = 3, 4
    rows = torch.randn(n, 4970, generator=generator, dtype=torch.float64) * 0.3
    images = torch.randn(20, size, size, 1, generator=generator, dtype=torch.float64)
    index = torch.randint(20, (n * b,), generator=generator)
    chosen = images[index].movedim(-1, 1).view(n, b, 1, size, size)

    model = BatchedCNN(rows, LAYOUT, b, size, padding, relu=activation == "relu")
    logits = model.forward(patch_table(images, 3, padding), index)
    leaf = rows.clone().requires_grad_()
    expected = torch_forward(leaf, chosen, padding, activation)
    torch.testing.assert_close(logits, expected.detach(), rtol=1e-11, atol=1e-11)

    dlogits = torch.randn(n, b, 10, generator=generator, dtype=torch.float64)
    model.backward(dlogits)
    (grad,) = torch.autograd.grad(expected, leaf, dlogits)
    torch.testing.assert_close(model.grad, grad, rtol=1e-10, atol=1e-12)


def test_dropout_masks_act_after_every_convolution() -> None:
    generator = torch.Generator().manual_seed(0)
    n, b = 2, 3
    rows = torch.randn(n, 4970, generator=generator, dtype=torch.float64) * 0.3
    images = torch.randn(b, 8, 8, 1, generator=generator, dtype=torch.float64)
    masks = [torch.rand(n, b, s, s, 16, generator=generator, dtype=torch.float64) for s in (4, 2, 1)]
    for relu in (True, False):
        model = BatchedCNN(rows, LAYOUT, b, 8, 1, relu=relu)
        logits = model.forward(patch_table(images, 3, 1), torch.arange(b).repeat(n), masks)
        model.backward(torch.ones_like(logits))
        leaf = rows.clone().requires_grad_()
        tensors = unflatten(leaf, LAYOUT)
        expected = []
        for number in range(n):
            x = images.movedim(-1, 1)
            for i in range(3):
                x = F.conv2d(x, tensors[f"weight.{i}"][number], tensors[f"bias.{i}"][number], stride=2, padding=1)
                x = (x.relu() if relu else x.tanh()) * masks[i][number].movedim(-1, 1)
            expected.append(F.linear(x.mean((2, 3)), tensors["weight.3"][number], tensors["bias.3"][number]))
        torch.testing.assert_close(logits, torch.stack(expected).detach())
        (grad,) = torch.autograd.grad(torch.stack(expected).sum(), leaf)
        torch.testing.assert_close(model.grad, grad)


# --- training ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("optimizer", ["adam", "rmsprop", "sgd"])
def test_networks_trained_together_are_those_trained_alone(data: ImageTensors, optimizer: str, dropout: float) -> None:
    """Different lengths, rates and data: nothing leaks from one network into another."""
    chosen = [
        recipe(i, optimizer=optimizer, dropout=dropout and dropout + 0.1 * i, epochs=2 + i, activation="tanh")
        for i in range(3)
    ]
    chosen[1] = replace(chosen[1], train_fraction=0.3, learning_rate=1e-2, l2reg=1e-2)
    together = train(chosen, data, LAYOUT, padding=1)
    apart = (together.weights[0] - together.weights[2]).norm()
    for i, one in enumerate(chosen):
        alone = train([one], data, LAYOUT, padding=1)
        # Optimisers divide gradients by their sizes: single entries follow rounding where gradients are small.
        assert (together.weights[i] - alone.weights[0]).norm() < 1e-3 * apart
        for name, values in together.metrics.items():
            torch.testing.assert_close(values[i], alone.metrics[name][0], rtol=1e-3, atol=2 / len(data.test_y))


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("name", ["adam", "rmsprop", "sgd"])
def test_training_is_that_of_torchs_optimisers(data: ImageTensors, name: str, activation: str) -> None:
    one = recipe(7, optimizer=name, activation=activation, l2reg=1e-2)
    plan = Plan(one, DRAW, len(data.train_y), batch=32, units=1)
    leaf = plan.weights[None].clone().requires_grad_()
    optimizer: torch.optim.Optimizer = {
        "adam": lambda: torch.optim.Adam([leaf], one.learning_rate, eps=1e-7),
        "rmsprop": lambda: torch.optim.RMSprop([leaf], one.learning_rate, alpha=0.9, eps=1e-7),
        "sgd": lambda: torch.optim.SGD([leaf], one.learning_rate),
    }[name]()
    for batch in plan.order.view(-1, 32).long():
        logits = torch_forward(leaf, data.train_x[batch].movedim(-1, 1)[None], 1, activation)[0]
        kernels = [value for key, value in unflatten(leaf, LAYOUT).items() if key.startswith("weight")]
        penalty = one.l2reg * sum((kernel**2).sum() for kernel in kernels)
        optimizer.zero_grad()
        (F.cross_entropy(logits, data.train_y[batch]) + penalty).backward()
        optimizer.step()
    assert plan.steps > 10
    found = train([one], data, LAYOUT, padding=1).weights
    moved = (found - plan.weights).norm()
    assert (found - leaf.detach()).norm() < 0.02 * moved  # Keras adds Adam's epsilon elsewhere


def test_plan_draws_every_image_of_its_share_once_an_epoch() -> None:
    plan = Plan(recipe(1, epochs=8, train_fraction=0.5), DRAW, images=128, batch=32, units=1)
    assert plan.steps == 16
    assert len(set(plan.subset.tolist())) == 64
    epochs = plan.order.view(8, 64)
    assert all(sorted(epoch.tolist()) == sorted(plan.subset.tolist()) for epoch in epochs)
    assert not torch.equal(epochs[0], epochs[1])


@pytest.mark.parametrize(
    ("w_init", "expected"),
    [
        ("glorot_normal", (2 / (144 + 144)) ** 0.5),
        ("he_normal", (2 / 144) ** 0.5),
        ("orthogonal", (1 / 144) ** 0.5),
        ("RandomNormal", 0.2),
        ("TruncatedNormal", 0.2 * 0.8796),  # the standard deviation of a normal cut at two of its own
    ],
)
def test_initial_weights(w_init: str, expected: float) -> None:
    one = recipe(0, w_init=w_init, init_std=0.2, b_init="RandomNormal")
    generator = torch.Generator().manual_seed(0)
    row = initial_weights(one, generator, layout=LAYOUT)
    kernel = unflatten(row[None], LAYOUT)["weight.1"][0]
    assert kernel.std().item() == pytest.approx(expected, rel=0.05)
    assert row[160:176].std().item() == pytest.approx(0.2, rel=0.5)
    if w_init == "orthogonal":
        flat = row[176:2480].view(144, 16)
        torch.testing.assert_close(flat.T @ flat, torch.eye(16), atol=1e-5, rtol=0)
    if w_init == "TruncatedNormal":
        assert kernel.abs().max() <= 0.4 + 1e-6
    zero_bias = initial_weights(replace(one, b_init="zeros"), torch.Generator().manual_seed(0), layout=LAYOUT)
    assert (zero_bias[:16] == 0).all()
    assert torch.equal(zero_bias[16:160], row[16:160])


def test_recipes_of_different_kinds_are_not_trained_together(data: ImageTensors) -> None:
    with pytest.raises(ValueError, match="share activation and optimizer"):
        train([recipe(0), recipe(1, optimizer="sgd")], data, LAYOUT, padding=1)


def test_a_network_learns(data: ImageTensors) -> None:
    result = train([recipe(0, epochs=8, train_fraction=1.0, learning_rate=1e-2)], data, LAYOUT, padding=1)
    assert result.metrics["test_accuracy"].item() > 0.9
