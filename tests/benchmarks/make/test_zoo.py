"""Training a zoo: the batched networks are right, each on its own, and what is written is what was trained."""

import csv
import gzip
import json
import logging
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from nfn_monomial.benchmarks.data.formats.small_cnn_zoo import load_zoo
from nfn_monomial.benchmarks.data.images import load_images
from nfn_monomial.benchmarks.data.layout import ZooError, cnn_layout, unflatten
from nfn_monomial.benchmarks.make import zoo as zoo_make
from nfn_monomial.benchmarks.make.batched_cnn import BatchedCNN, patch_table
from nfn_monomial.benchmarks.make.mixed import make_mixed_zoo
from nfn_monomial.benchmarks.make.mixed_recipes import MixedConfig
from nfn_monomial.benchmarks.make.plans import Plan, initial_weights
from nfn_monomial.benchmarks.make.recipes import Recipe, ZooConfig, draw_recipes
from nfn_monomial.benchmarks.make.training import ImageTensors, train
from nfn_monomial.benchmarks.make.zoo import make_zoo

LAYOUT = cnn_layout()
# A zoo of a dozen networks in about ten chunks, trained for a few steps.
TINY = ZooConfig(networks=12, chunk=2, epochs=(1, 2), train_fractions=(0.1, 0.2), seed=3)
FILES = ("weights.npy", "metrics.csv.gz", "layout.csv", "zoo.json")


def torch_forward(rows: Tensor, images: Tensor, padding: int, activation: str) -> Tensor:
    """Logits ``(n, b, 10)`` of images ``(n, b, C, H, W)`` by torch's own convolutions, network by network."""
    tensors = unflatten(rows, LAYOUT)
    logits = []
    for number in range(len(rows)):
        x = images[number]
        for i in range(3):
            x = F.conv2d(x, tensors[f"weight.{i}"][number], tensors[f"bias.{i}"][number], stride=2, padding=padding)
            x = getattr(torch, activation)(x)
        logits.append(F.linear(x.mean((2, 3)), tensors["weight.3"][number], tensors["bias.3"][number]))
    return torch.stack(logits)


@pytest.fixture(scope="module")
def data() -> ImageTensors:
    images = load_images("digits")
    x = images.x.movedim(1, -1).contiguous()
    return ImageTensors(x[images.train], images.y[images.train], x[images.test], images.y[images.test])


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
    for i, one in enumerate(chosen):
        alone = train([one], data, LAYOUT, padding=1)
        torch.testing.assert_close(together.weights[i], alone.weights[0], rtol=1e-4, atol=1e-5)
        for name, values in together.metrics.items():
            torch.testing.assert_close(values[i], alone.metrics[name][0], rtol=1e-3, atol=2e-3)
    assert not torch.allclose(together.weights[0], together.weights[2], atol=1e-2)


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("name", ["adam", "rmsprop", "sgd"])
def test_training_is_that_of_torchs_optimisers(data: ImageTensors, name: str, activation: str) -> None:
    one = recipe(7, optimizer=name, activation=activation, l2reg=1e-2)
    plan = Plan(one, LAYOUT, len(data.train_y), batch=32, units=1)
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
    plan = Plan(recipe(1, epochs=8, train_fraction=0.5), LAYOUT, images=128, batch=32, units=1)
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
    row = initial_weights(one, LAYOUT, generator)
    kernel = unflatten(row[None], LAYOUT)["weight.1"][0]
    assert kernel.std().item() == pytest.approx(expected, rel=0.05)
    assert row[160:176].std().item() == pytest.approx(0.2, rel=0.5)
    if w_init == "orthogonal":
        flat = row[176:2480].view(144, 16)
        torch.testing.assert_close(flat.T @ flat, torch.eye(16), atol=1e-5, rtol=0)
    if w_init == "TruncatedNormal":
        assert kernel.abs().max() <= 0.4 + 1e-6
    zero_bias = initial_weights(replace(one, b_init="zeros"), LAYOUT, torch.Generator().manual_seed(0))
    assert (zero_bias[:16] == 0).all()
    assert torch.equal(zero_bias[16:160], row[16:160])


def test_recipes_of_different_kinds_are_not_trained_together(data: ImageTensors) -> None:
    with pytest.raises(ValueError, match="share activation and optimizer"):
        train([recipe(0), recipe(1, optimizer="sgd")], data, LAYOUT, padding=1)


def test_a_network_learns(data: ImageTensors) -> None:
    result = train([recipe(0, epochs=8, train_fraction=1.0, learning_rate=1e-2)], data, LAYOUT, padding=1)
    assert result.metrics["test_accuracy"].item() > 0.9


# --- the zoo -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("zoos") / "tiny"
    made = make_zoo(out, TINY)
    assert (made.made, made.networks, made.diverged) == (True, 12, 0)
    return out


def read_metrics(folder: Path) -> list[dict[str, str]]:
    with gzip.open(folder / "metrics.csv.gz", "rt", newline="") as file:
        return list(csv.DictReader(file))


def same(first: Path, second: Path) -> bool:
    return all((first / name).read_bytes() == (second / name).read_bytes() for name in FILES)


def test_zoo_is_in_the_published_format(tiny: Path) -> None:
    zoo = load_zoo(tiny, "relu")
    assert [len(part) for part in (zoo.train, zoo.val, zoo.test)] == [2, 1, 3]
    assert len(load_zoo(tiny, "tanh").test) == 3
    assert sorted(p.name for p in tiny.iterdir()) == sorted([*FILES, "tiny_split.csv"])


def test_metrics_state_the_recipes(tiny: Path) -> None:
    rows = read_metrics(tiny)
    assert [row["config.activation"] for row in rows] == ["relu", "tanh"] * 6
    assert len({row["modeldir"] for row in rows}) == 12
    for row, drawn in zip(rows, draw_recipes(TINY), strict=True):
        assert float(row["config.learning_rate"]) == drawn.learning_rate
        assert int(row["config.random_seed"]) == drawn.random_seed
        assert row["config.w_init"] == drawn.w_init
        assert row["step"] == row["config.epochs"] == str(drawn.epochs)
        assert (row["config.dataset"], row["config.num_layers"], row["config.num_units"]) == ("digits", "3", "16")


def test_written_accuracies_are_those_of_the_written_weights(tiny: Path, data: ImageTensors) -> None:
    weights = torch.from_numpy(np.load(tiny / "weights.npy"))
    images = data.test_x.movedim(-1, 1)
    for row, line in zip(weights, read_metrics(tiny), strict=True):
        logits = torch_forward(row[None], images[None], 1, line["config.activation"])[0]
        accuracy = (logits.argmax(1) == data.test_y).float().mean().item()
        assert float(line["test_accuracy"]) == pytest.approx(accuracy, abs=1.5 / len(images))  # rounding: one image
        loss = F.cross_entropy(logits, data.test_y).item()
        assert float(line["test_loss"]) == pytest.approx(loss, rel=1e-4)


def test_train_accuracy_is_that_on_the_share_of_images_seen(tiny: Path, data: ImageTensors) -> None:
    weights = torch.from_numpy(np.load(tiny / "weights.npy"))
    for row, line, drawn in zip(weights, read_metrics(tiny), draw_recipes(TINY), strict=True):
        subset = Plan(drawn, LAYOUT, len(data.train_y), 32, 1).subset
        logits = torch_forward(row[None], data.train_x[subset].movedim(-1, 1)[None], 1, drawn.activation)[0]
        accuracy = (logits.argmax(1) == data.train_y[subset]).float().mean().item()
        assert float(line["train_accuracy"]) == pytest.approx(accuracy, abs=1.5 / len(subset))


def test_seed_reproduces_a_zoo_and_another_makes_another(tiny: Path, tmp_path: Path) -> None:
    make_zoo(tmp_path / "again", TINY, workers=1)
    assert same(tiny, tmp_path / "again")
    make_zoo(tmp_path / "other", replace(TINY, seed=4))
    assert not np.allclose(np.load(tiny / "weights.npy"), np.load(tmp_path / "other" / "weights.npy"))


def test_interrupted_and_continued_is_the_same_zoo(tiny: Path, tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []

    def interrupt(done: int, total: int) -> None:
        calls.append((done, total))
        if len(calls) == 4:  # at the start, and after each of three chunks
            raise KeyboardInterrupt

    out = tmp_path / "zoo"
    with pytest.raises(KeyboardInterrupt):
        make_zoo(out, TINY, workers=1, progress=interrupt)
    stored = sorted((out / ".chunks").glob("*.safetensors"))
    assert len(stored) >= 3
    assert not (out / "metrics.csv.gz").exists()
    with pytest.raises(ZooError, match="missing"):
        load_zoo(out)

    stored[0].write_bytes(stored[0].read_bytes()[:1000])  # a machine that lost power: trained again
    resumed: list[tuple[int, int]] = []
    assert make_zoo(out, TINY, progress=lambda done, total: resumed.append((done, total))).made
    assert 0 < resumed[0][0] < calls[-1][1]
    assert resumed[-1][0] == resumed[-1][1] == calls[-1][1]
    assert same(tiny, out)
    assert not (out / ".chunks").exists()


def test_finished_zoo_is_not_made_again(tiny: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in tiny.iterdir()}
    made = make_zoo(tiny, TINY, progress=lambda done, total: pytest.fail("nothing should be trained"))
    assert (made.made, made.networks) == (False, 12)
    assert before == {path: path.stat().st_mtime_ns for path in tiny.iterdir()}


def test_another_configuration_is_refused_or_overwrites(tmp_path: Path) -> None:
    small = replace(TINY, networks=2)
    make_zoo(tmp_path, small)
    other = replace(small, seed=9, epochs=(1, 1))
    with pytest.raises(
        ValueError, match=r"epochs is \[1, 2\] there, \[1, 1\] asked for; seed is 3 there, 9 .*--overwrite"
    ):
        make_zoo(tmp_path, other)
    assert make_zoo(tmp_path, other, overwrite=True).made
    assert json.loads((tmp_path / "zoo.json").read_text(encoding="utf-8"))["config"]["seed"] == 9


def test_a_mixed_zoo_is_refused_or_overwritten_completely(tmp_path: Path) -> None:
    make_mixed_zoo(tmp_path, MixedConfig(networks=2, per_architecture=1, widths=(4, 5), epochs=(1, 1), depths=(2, 2)))
    with pytest.raises(ValueError, match=r"holds a zoo of another configuration: .*--overwrite"):
        make_zoo(tmp_path, replace(TINY, networks=2))
    assert len(list(tmp_path.glob("group_*.safetensors"))) == 2
    assert make_zoo(tmp_path, replace(TINY, networks=2), overwrite=True).made
    assert not list(tmp_path.glob("group_*.safetensors"))


@pytest.mark.parametrize("name", ["weights.npy", "metrics.csv.gz", "layout.csv", "group_00000.safetensors"])
def test_foreign_zoos_are_left_alone(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("a download of five gigabytes", encoding="utf-8")
    for make in (lambda: make_zoo(tmp_path, TINY, overwrite=True), lambda: make_mixed_zoo(tmp_path, overwrite=True)):
        with pytest.raises(ValueError, match=rf"holds {re.escape(name)} but no zoo\.json"):
            make()
    assert (tmp_path / name).exists()


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_damaged_description_is_for_people_to_look_at(tmp_path: Path, overwrite: bool) -> None:
    (tmp_path / "zoo.json").write_text("{", encoding="utf-8")
    with pytest.raises(ZooError, match=r"zoo\.json is damaged .*delete the folder"):
        make_zoo(tmp_path, TINY, overwrite=overwrite)


def test_diverged_networks_are_drawn_again_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    wild = replace(TINY, networks=4, activations=("relu",), optimizers=("sgd",), sgd_learning_rate=(1e-2, 1e3), seed=1)
    with caplog.at_level(logging.INFO, logger="nfn_monomial.benchmarks"):
        made = make_zoo(tmp_path / "wild", wild)
    assert made.diverged > 0
    assert f"{made.diverged} networks diverged" in caplog.text
    assert np.isfinite(np.load(tmp_path / "wild" / "weights.npy")).all()
    drawn = [str(r.learning_rate) for r in draw_recipes(wild)]
    assert [row["config.learning_rate"] for row in read_metrics(tmp_path / "wild")] != drawn
    assert make_zoo(tmp_path / "wild", wild).diverged == made.diverged

    hopeless = replace(wild, sgd_learning_rate=(1e6, 1e7))
    with pytest.raises(ZooError, match=r"network \d diverged 6 times: choose smaller learning rates"):
        make_zoo(tmp_path / "hopeless", hopeless)


def test_missing_images_leave_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ImportError("pip install nfn-monomial[bench]")

    monkeypatch.setattr(zoo_make, "load_images", missing)
    with pytest.raises(ImportError, match="bench"):
        make_zoo(tmp_path / "zoo", TINY)
    assert not (tmp_path / "zoo").exists()


def test_mnist5k_has_the_published_shape(tmp_path: Path) -> None:
    make_zoo(tmp_path, replace(TINY, images="mnist5k", networks=1, activations=("tanh",), epochs=(1, 1)))
    images = load_images("mnist5k")
    row = torch.from_numpy(np.load(tmp_path / "weights.npy"))
    logits = torch_forward(row, images.x[images.test][None], 0, "tanh")[0]
    accuracy = (logits.argmax(1) == images.y[images.test]).float().mean().item()
    assert float(read_metrics(tmp_path)[0]["test_accuracy"]) == pytest.approx(accuracy, abs=1.5 / len(images.test))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"images": "cifar"}, "unknown images 'cifar': choose one of digits, mnist5k"),
        ({"networks": 0}, "networks is 0, but must be at least 1"),
        ({"activations": ("gelu",)}, "activations is .*choose at least one of relu, tanh"),
        ({"optimizers": ()}, "optimizers is .*choose at least one of adam, rmsprop, sgd"),
        ({"epochs": (5, 2)}, r"epochs is \(5, 2\), expected a range"),
        ({"learning_rate": (0.0, 1.0)}, "learning_rate is"),
        ({"train_fractions": (1.5,)}, "train_fractions is"),
        ({"dropout": 1.0}, "dropout is 1.0"),
    ],
)
def test_configurations_that_make_no_sense(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(TINY, **changes)  # type: ignore[arg-type]


def test_recipes_of_a_longer_zoo_begin_with_those_of_a_shorter() -> None:
    assert draw_recipes(replace(TINY, networks=20))[:12] == draw_recipes(TINY)
    assert len({r.random_seed for r in draw_recipes(replace(TINY, networks=500))}) == 500
