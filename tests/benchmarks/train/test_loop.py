"""The shared training loop: it learns, selects on the validation set only, reproduces, and fails clearly."""

import itertools
import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from toy_training import CONFIG, linear, negative_error, run, toy

from nfn_monomial.benchmarks.data.batches import Data
from nfn_monomial.benchmarks.settings.training import TrainConfig
from nfn_monomial.benchmarks.train import loop
from nfn_monomial.benchmarks.train.devices import make_fabric
from nfn_monomial.benchmarks.train.loop import deterministic, predict
from nfn_monomial.tools.predictors import models


def test_learns() -> None:
    model = linear()
    result = run(model, replace(CONFIG, epochs=30, learning_rate=0.1))
    assert result.history[0].train_loss > 50
    assert result.best.metrics["score"] > -1e-2
    assert [epoch.number for epoch in result.history] == list(range(1, 31))
    outputs = predict(model, toy(32, seed=1), make_fabric(CONFIG))
    assert negative_error(outputs, toy(32, seed=1).targets)["score"] == pytest.approx(result.best.metrics["score"])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_sums_in_one_order() -> None:
    class AtomicSum(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            into = torch.zeros(x.shape[1], dtype=torch.long, device=x.device)
            return x.new_zeros(len(x), 1).index_add(1, into, x)

    fabric = make_fabric(replace(CONFIG, device="cuda"))
    x = torch.randn(16, 100_000, generator=torch.Generator().manual_seed(0)).to(fabric.device)
    expected, *others = [predict(AtomicSum(), Data(x, x), fabric) for _ in range(10)]
    assert all(torch.equal(sums, expected) for sums in others)


def test_answers_are_asked_for_where_operators_are_deterministic(monkeypatch: pytest.MonkeyPatch) -> None:
    class Asking(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.full((len(x),), float(torch.are_deterministic_algorithms_enabled()))

    monkeypatch.setattr(loop, "deterministic", lambda device: deterministic(torch.device("cuda")))  # on any machine
    x = torch.zeros(4, 2)
    assert predict(Asking(), Data(x, x), make_fabric(CONFIG)).tolist() == [1.0] * 4
    assert not torch.are_deterministic_algorithms_enabled()


def test_keeps_the_first_best_epoch_of_the_validation_set() -> None:
    scores = iter([0.1, 0.7, 0.7, 0.3])
    states: list[Tensor] = []
    model = linear()

    def metrics(outputs: Tensor, targets: Tensor) -> dict[str, float]:
        states.append(model.layers[1].weight.detach().clone())  # type: ignore[union-attr, operator]
        return {"score": next(scores)}

    result = run(model, metrics=metrics)
    assert result.best.number == 2
    assert torch.equal(model.layers[1].weight, states[1])  # type: ignore[arg-type]
    assert not model.training


def test_a_first_score_of_nan_is_beaten() -> None:
    scores = iter([math.nan, -5.0, math.nan, -6.0])
    assert run(linear(), metrics=lambda *_: {"score": next(scores)}).best.number == 2


def test_patience_stops_early() -> None:
    for scores, epochs in (([0.0, 1, 0, 0, 0, 0], 4), ([0.0, 1, 0, 2, 0, 0], 6), ([1.0, 1, 1, 1], 3)):
        series = itertools.chain(scores)
        result = run(linear(), replace(CONFIG, epochs=6, patience=2), metrics=lambda *_, s=series: {"score": next(s)})
        assert len(result.history) == epochs


def test_seed_reproduces_order_and_dropout() -> None:
    def losses(seed: int) -> list[float]:
        return [epoch.train_loss for epoch in run(linear(dropout=0.3), seed=seed).history]

    first = losses(0)
    torch.manual_seed(99)  # whatever state the caller is in
    state = torch.random.get_rng_state()
    assert losses(0) == first
    assert torch.equal(torch.random.get_rng_state(), state), "the caller's random state is left alone"
    assert losses(1) != first


def test_every_example_once_an_epoch() -> None:
    seen: list[Tensor] = []

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        seen.append(targets)
        return nn.functional.mse_loss(outputs, targets)

    run(linear(), replace(CONFIG, epochs=1, batch_size=24), loss=loss)
    lengths = [len(t) for t in seen]
    assert lengths[:3] == [24, 24, 16]
    everything = toy().targets
    shuffled = torch.cat(seen[:3])
    assert torch.equal(shuffled.sort().values, everything.sort().values)
    assert not torch.equal(shuffled, everything)


def test_divergence_ends_the_training_and_keeps_the_best_epoch() -> None:
    def loss_of(bad_after: int) -> Callable[[Tensor, Tensor], Tensor]:
        steps = itertools.count()
        return lambda o, t: nn.functional.mse_loss(o, t) * (math.nan if next(steps) >= bad_after else 1)

    model = linear()
    result = run(model, loss=loss_of(20))  # 8 steps an epoch
    assert result.diverged
    assert len(result.history) == 3
    assert result.best.number == 2, "NaN is never better"
    assert all(torch.isfinite(p).all() for p in model.parameters())
    assert not run(linear()).diverged


def test_warm_up_and_clipping_and_decay() -> None:
    def moved(config: TrainConfig) -> float:
        model = linear()
        before = [p.detach().clone() for p in model.parameters()]
        run(model, config)
        return sum(float((p.detach() - b).abs().sum()) for p, b in zip(model.parameters(), before, strict=True))

    one = replace(CONFIG, epochs=1, batch_size=64)  # a single step, whose size Adam makes the learning rate
    assert moved(one) == pytest.approx(9 * 1e-2, rel=1e-3)
    assert moved(replace(one, warmup_steps=9)) == pytest.approx(9 * 1e-3, rel=1e-3)
    assert moved(replace(one, clip_norm=1e-12)) < 1e-3, "gradients of 1e-12 are small beside Adam's epsilon"
    assert moved(replace(one, weight_decay=0.5)) != moved(one)


def test_validates_every_so_many_epochs_and_at_the_end() -> None:
    result = run(linear(), replace(CONFIG, epochs=5, validate_every=2))
    assert [bool(epoch.metrics) for epoch in result.history] == [False, True, False, True, True]
    assert result.best.number in (2, 4, 5)
    every = run(linear(), replace(CONFIG, epochs=5))
    assert [epoch.train_loss for epoch in result.history] == [epoch.train_loss for epoch in every.history]
    assert result.history[3].metrics == every.history[3].metrics
    patient = run(linear(), replace(CONFIG, epochs=50, validate_every=2, patience=3), metrics=lambda *_: {"score": 0.0})
    assert (patient.best.number, len(patient.history)) == (2, 6), "no epoch is trained that nothing is seen of"
    for every, patience in ((2, 1), (5, 3)):
        early = replace(CONFIG, epochs=50, validate_every=every, patience=patience)
        result = run(linear(), early, metrics=lambda *_: {"score": 0.0})
        assert (result.best.number, len(result.history)) == (every, 2 * every)


@pytest.mark.parametrize("epochs", [0.1, 0.5, 3.0])
def test_what_is_validated_has_the_average_of_the_parameters(epochs: float) -> None:
    config = replace(CONFIG, average_epochs=epochs)  # 8 steps an epoch
    averages: list[Tensor] = []
    seen: list[Tensor] = []
    model, other = linear(), linear()

    def metrics(outputs: Tensor, targets: Tensor) -> dict[str, float]:
        seen.append(model.layers[1].weight.detach().clone())  # type: ignore[union-attr, operator]
        return {"score": float(len(seen))}

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        averages.append(other.layers[1].weight.detach().clone())  # type: ignore[union-attr, operator]
        return nn.functional.mse_loss(outputs, targets)

    run(model, config, metrics=metrics)
    run(other, CONFIG, loss=loss)
    steps = averages[1 : 4 * 8]  # before a step: what the one before left
    average = torch.zeros_like(steps[0])
    for i, weight in enumerate(steps):
        average = average + (weight - average) * max(1 / (i + 1), 1 / max(1.0, 8 * epochs))
        if i % 8 == 7:
            torch.testing.assert_close(seen[i // 8], average)
    assert torch.equal(model.layers[1].weight, seen[-1])  # type: ignore[arg-type]


@pytest.mark.parametrize(("most", "asked_for"), [(2**26, [11]), (40, [5, 5, 1]), (1, [1] * 11)])
def test_large_examples_are_predicted_few_at_once(
    monkeypatch: pytest.MonkeyPatch, most: int, asked_for: list[int]
) -> None:
    class Counting(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            asked.append(len(x))
            return super().forward(x)

    asked: list[int] = []
    model, x = Counting(2, 3), torch.randn(11, 2)
    with torch.no_grad():
        expected = nn.functional.linear(x, model.weight, model.bias)
    monkeypatch.setattr(models, "EVALUATION_BYTES", most)
    torch.testing.assert_close(predict(model, Data(x, x), make_fabric(CONFIG)), expected)
    assert asked == asked_for
