"""The shared training loop: it learns, selects on the validation set only, reproduces, measures, and fails clearly."""

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from nfn_monomial import WeightSpace
from nfn_monomial.benchmarks.data import batches
from nfn_monomial.benchmarks.data.batches import Data, StreamedData
from nfn_monomial.benchmarks.data.rows import TensorRows
from nfn_monomial.benchmarks.settings.training import TrainConfig
from nfn_monomial.benchmarks.train.devices import compiled, make_fabric
from nfn_monomial.benchmarks.train.loop import FitResult, fit, predict
from nfn_monomial.models.blocks import Blocks
from nfn_monomial.testing import random_networks

CONFIG = TrainConfig(epochs=4, batch_size=8, learning_rate=1e-2)


def toy(count: int = 64, seed: int = 0) -> Data:
    """A linear function of eight numbers, which lie in a pytree."""
    x = torch.randn(count, 8, generator=torch.Generator().manual_seed(seed))
    return Data({"all": [x]}, x @ torch.arange(8.0))


class Linear(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Dropout(dropout), nn.Linear(8, 1))

    def forward(self, batch: dict[str, list[Tensor]]) -> Tensor:
        out: Tensor = self.layers(batch["all"][0]).squeeze(-1)
        return out


def linear(dropout: float = 0.0, seed: int = 0) -> Linear:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Linear(dropout)


def negative_error(outputs: Tensor, targets: Tensor) -> dict[str, float]:
    return {"score": -float((outputs - targets).square().mean())}


def run(model: nn.Module, config: TrainConfig = CONFIG, seed: int = 0, **kwargs: object) -> FitResult:
    given = {"loss": nn.functional.mse_loss, "metrics": negative_error, "select": "score", **kwargs}
    return fit(model, toy(), toy(32, seed=1), config, seed=seed, **given)  # type: ignore[arg-type]


def test_learns() -> None:
    model = linear()
    result = run(model, replace(CONFIG, epochs=30, learning_rate=0.1))
    assert result.history[0].train_loss > 50
    assert result.best.metrics["score"] > -1e-2
    assert [epoch.number for epoch in result.history] == list(range(1, 31))
    outputs = predict(model, toy(32, seed=1), make_fabric(CONFIG))
    assert negative_error(outputs, toy(32, seed=1).targets)["score"] == pytest.approx(result.best.metrics["score"])


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


def test_measures_time_and_memory() -> None:
    small, large = (run(linear(), replace(CONFIG, batch_size=size)) for size in (8, 64))
    parameters = 9 * 4
    for result in (small, large):
        assert 0 < result.step_share <= 1
        assert 0 < result.seconds_per_epoch <= max(e.seconds for e in result.history)
        assert all(0 < e.step_seconds <= e.seconds for e in result.history)
    # Parameters, gradients, two moments of Adam and the batch of 8 numbers and a target per example, at least.
    assert small.peak_bytes > 4 * parameters + 8 * 9 * 4
    assert large.peak_bytes - small.peak_bytes > 56 * 9 * 4


def test_peak_memory_is_that_of_known_tensors() -> None:
    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(1))

        def forward(self, batch: dict[str, list[Tensor]]) -> Tensor:
            wide = self.weight * torch.ones(2**20)  # 4 MiB twice: the ones, which backward needs, and the product
            return wide.sum() + batch["all"][0][:, 0]

    result = run(Wide(), replace(CONFIG, epochs=1))
    assert result.peak_bytes == pytest.approx(8 * 2**20, rel=0.01)


def test_measuring_does_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    model, other = linear(), linear()
    run(model)
    monkeypatch.setattr("nfn_monomial.benchmarks.train.loop.step_memory", lambda *_: 0)
    run(other)
    for first, second in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(first, second)


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
    assert (patient.best.number, len(patient.history)) == (2, 5)


def test_divergence_between_validations() -> None:
    result = run(linear(), replace(CONFIG, validate_every=4), loss=lambda o, t: (o - t).sum() * math.nan)
    assert result.diverged
    assert result.best.number == len(result.history) == 1


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


def test_features_are_batchable() -> None:
    space = WeightSpace.mlp([2, 4, 1], "relu")
    features = space.pack(random_networks(space, 7, generator=torch.Generator().manual_seed(0)))
    data = Data(features, torch.arange(7.0))
    part = data.take(torch.tensor([5, 2]))
    assert len(data) == 7
    assert len(part.inputs) == 2
    for whole, taken in zip(features.tensors, part.inputs.tensors, strict=True):
        assert torch.equal(whole[[5, 2]], taken)


@pytest.mark.parametrize("batch_size", [1, 5, 100])
def test_predict_in_parts(batch_size: int) -> None:
    model = linear(dropout=0.5).train()
    data = toy(11)
    with torch.no_grad():
        expected = model.eval()(data.inputs)
    torch.testing.assert_close(predict(model.train(), data, make_fabric(CONFIG), batch_size), expected)


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
    monkeypatch.setattr(batches, "EVALUATION_BYTES", most)
    torch.testing.assert_close(predict(model, Data(x, x), make_fabric(CONFIG)), expected)
    assert asked == asked_for


def test_predict_of_several_outputs() -> None:
    class Pair(nn.Module):
        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {"twice": 2 * x, "half": x / 2}

    x = torch.arange(5.0)
    found = predict(Pair(), Data(x, x), make_fabric(CONFIG), batch_size=2)
    assert torch.equal(found["twice"], 2 * x)
    assert torch.equal(found["half"], x / 2)


def test_double_precision() -> None:
    model = linear().double()
    data = toy()
    wide = Data({"all": [data.inputs["all"][0].double()]}, data.targets.double())
    given = {"loss": nn.functional.mse_loss, "metrics": negative_error, "select": "score", "seed": 0}
    result = fit(model, wide, wide, replace(CONFIG, precision="64-true"), **given)  # type: ignore[arg-type]
    assert result.history[-1].train_loss < result.history[0].train_loss
    assert next(model.parameters()).dtype == torch.float64


def test_mixed_precision() -> None:
    dtypes: set[torch.dtype] = set()

    class Watched(Linear):
        def forward(self, batch: dict[str, list[Tensor]]) -> Tensor:
            out = super().forward(batch)
            dtypes.add(out.dtype)
            return out

    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Watched()
    result = run(model, replace(CONFIG, epochs=30, learning_rate=0.1, precision="bf16-mixed"))
    assert dtypes == {torch.bfloat16}, "in validation, too"
    assert next(model.parameters()).dtype == torch.float32
    assert result.best.metrics["score"] > -1
    outputs = predict(model, toy(32, seed=1), make_fabric(replace(CONFIG, precision="bf16-mixed")))
    assert outputs.dtype == torch.float32
    assert negative_error(outputs, toy(32, seed=1).targets) == result.best.metrics, "tested as it was validated"


def seen_in(precision: str, fabric: Fabric | None = None) -> tuple[list[Tensor], list[Tensor]]:
    """What a model gets of a plain tensor and of a list in a pytree, in training and validation; what was given."""
    seen: list[Tensor] = []

    class Spy(Linear):
        def forward(self, batch: Any) -> Tensor:
            x = batch["all"][0] if isinstance(batch, dict) else batch
            seen.append(x)
            return self.layers(x).squeeze(-1)  # type: ignore[no-any-return]

    config = TrainConfig(epochs=1, batch_size=64, precision=precision)  # type: ignore[arg-type]
    pytrees = toy()
    plain = Data(pytrees.inputs["all"][0], pytrees.targets)
    for data in (pytrees, plain):
        given = {"loss": nn.functional.mse_loss, "metrics": negative_error, "select": "score", "seed": 0}
        fit(Spy(), data, data, config, fabric=fabric, **given)  # type: ignore[arg-type]
    return seen, [x[x[:, 0].argsort()] for x in [plain.inputs] * len(seen)]


def test_data_reach_models_as_they_are() -> None:
    for precision, dtype in (("32-true", torch.float32), ("bf16-mixed", torch.float32), ("64-true", torch.float64)):
        seen, expected = seen_in(precision)
        assert len(seen) == 2 * 3, "a step, a validation, and the step that is measured"
        assert {x.dtype for x in seen} == {dtype}
        assert all(torch.equal(x[x[:, 0].argsort()], y.to(dtype)) for x, y in zip(seen, expected, strict=True))
    rounded, _ = seen_in("bf16-mixed", Fabric(accelerator="cpu", devices=1, precision="bf16-mixed"))
    assert {x.dtype for x in rounded} == {torch.bfloat16}, "which is what Fabric does by itself"


class WatchedRows(TensorRows):
    """Says what was asked for."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        super().__init__(tensors)
        self.asked: list[list[int]] = []

    def read(self, index: Tensor) -> dict[str, Tensor]:
        self.asked.append(index.tolist())
        return super().read(index)


def prepare(tensors: Mapping[str, Tensor]) -> dict[str, list[Tensor]]:
    return {"all": [tensors["x"] * 2]}


def streamed(count: int = 64, seed: int = 0) -> tuple[StreamedData, Data]:
    """The same twice."""
    data = toy(count, seed)
    rows = WatchedRows({"x": data.inputs["all"][0]})
    return StreamedData(rows, prepare, data.targets, buffer_bytes=0), Data(prepare(rows.tensors), data.targets)


def test_streamed_data_train_bit_identically() -> None:
    (streams, memory) = zip(*(streamed(50, seed) for seed in (0, 1)), strict=True)
    models, results = (linear(dropout=0.2), linear(dropout=0.2)), []
    for model, (train, val) in zip(models, (streams, memory), strict=True):
        given = {"loss": nn.functional.mse_loss, "metrics": negative_error, "select": "score", "seed": 3}
        results.append(fit(model, train, val, CONFIG, **given))  # type: ignore[arg-type]
    losses = [[(epoch.train_loss, epoch.metrics) for epoch in result.history] for result in results]
    assert losses[0] == losses[1]
    for first, second in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.equal(first, second)


def test_streamed_data_ask_for_a_batch_at_once_and_everything_once_an_epoch() -> None:
    (train, _), (val, _) = streamed(20), streamed(300)
    given = {"loss": nn.functional.mse_loss, "metrics": negative_error, "select": "score", "seed": 3}
    fit(linear(), train, val, replace(CONFIG, epochs=1), **given)  # type: ignore[arg-type]
    assert [len(index) for index in train.rows.asked] == [1, 8, 8, 4, 8], (
        "the first is to see how large inputs are, the last to measure memory"
    )
    assert sorted(itertools.chain(*train.rows.asked[1:4])) == list(range(20))
    assert val.rows.asked == [[0], list(range(256)), list(range(256, 300))]


def test_streamed_data_read_one_batch_ahead_in_order() -> None:
    data, memory = streamed(40)
    index = torch.arange(40).flip(0).split(7)
    reading = data.read(index)
    first = next(reading)
    reading.send(None)
    assert len(data.rows.asked) <= 5, "one to see its size, the two taken, the next, and none beyond"
    torch.testing.assert_close(first, next(memory.read(index)), rtol=0, atol=0)
    part = data.take(torch.tensor([5, 2, 5]))
    assert torch.equal(part.inputs["all"][0], memory.inputs["all"][0][[5, 2, 5]])
    assert torch.equal(part.targets, memory.targets[[5, 2, 5]])
    assert list(data.read([])) == []
    moved = data.to(torch.device("meta"))
    assert moved.take(torch.arange(3)).inputs["all"][0].device.type == "meta"
    assert moved.targets.device.type == "meta"


def test_small_inputs_of_a_streamed_set_are_prepared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """And train to the same bits as those that are prepared in every epoch, in the order of a set too large."""

    def means(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        seen.append(len(tensors["x"]))
        return {"mean": tensors["x"].mean(-1, keepdim=True)}

    class Line(nn.Linear):
        def forward(self, batch: dict[str, Tensor]) -> Tensor:
            return super().forward(batch["mean"]).squeeze(-1)

    monkeypatch.setattr(batches, "IN_MEMORY_BYTES", 0)
    monkeypatch.setattr(batches, "BLOCK_BYTES", 4 * 32 * 3)
    numbers = torch.randn(40, 32, generator=torch.Generator().manual_seed(0))
    given = {"loss": nn.functional.mse_loss, "metrics": negative_error, "select": "score", "seed": 3}
    histories, counts = [], []
    for share in (1 / 32, 0.0):
        monkeypatch.setattr(batches, "KEPT_SHARE", share)
        torch.manual_seed(0)
        seen: list[int] = []
        rows = WatchedRows({"x": numbers})
        data = StreamedData(rows, means, numbers.sum(-1), buffer_bytes=4 * 32 * 12)
        assert (data.kept is not None) == bool(share)
        seen.clear()
        result = fit(Line(1, 1), data, data, replace(CONFIG, epochs=3, learning_rate=0.1), **given)  # type: ignore[arg-type]
        histories.append([(epoch.train_loss, epoch.metrics) for epoch in result.history])
        counts.append(sum(seen))
    assert histories[0] == histories[1]
    assert counts[0] == 2 * 41, "training and validation networks once, and one of each to see its size"
    assert counts[1] == 3 * 2 * 40 + 8 + 2


def test_an_error_in_reading_ends_the_training() -> None:
    def broken(tensors: Mapping[str, Tensor]) -> Tensor:
        raise ValueError("rows/3.bin is damaged")

    data, memory = streamed()
    with pytest.raises(ValueError, match=r"rows/3\.bin is damaged"):
        fit(
            linear(), replace(data, prepare=broken), memory, CONFIG,
            loss=nn.functional.mse_loss, metrics=negative_error, select="score", seed=0,
        )  # fmt: skip
    with pytest.raises(ValueError, match="64 networks and 3 targets: each network needs one"):
        StreamedData(data.rows, prepare, torch.zeros(3))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epochs": 0}, "epochs is 0, but should be greater than or equal to 1"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"patience": 0}, "patience is 0"),
        ({"learning_rate": 0.0}, "learning_rate is 0.0, but should be greater than 0"),
        ({"learning_rate": math.nan}, "learning_rate is nan"),
        ({"clip_norm": -1.0}, "clip_norm is -1.0"),
        ({"warmup_steps": -1}, "warmup_steps is -1, but should be greater than or equal to 0"),
        ({"weight_decay": -0.1}, "weight_decay is -0.1"),
        ({"weight_decay": math.nan}, "weight_decay is nan"),
        ({"weight_decay": math.inf}, "weight_decay is inf"),
        ({"precision": "16"}, "precision is '16', but should be '32-true', 'bf16-mixed' or '64-true'"),
    ],
)
def test_configurations_that_make_no_sense(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(CONFIG, **change)  # type: ignore[arg-type]


def test_no_such_device() -> None:
    with pytest.raises(ValueError, match="device 'cuda:99' is not there"):
        make_fabric(replace(CONFIG, device="cuda:99"))
    with pytest.raises(ValueError, match="device 'gpu' is unknown; use cpu, cuda or cuda:N"):
        make_fabric(replace(CONFIG, device="gpu"))


def test_empty_data() -> None:
    with pytest.raises(ValueError, match="0 training and 8 validation examples"):
        fit(
            linear(), toy(0), toy(8), CONFIG,
            loss=nn.functional.mse_loss, metrics=negative_error, select="score", seed=0,
        )  # fmt: skip


def test_recomputed_blocks_train_bit_identically() -> None:
    """With dropout inside of them, which is drawn again."""
    models, results = [], []
    for recompute in (False, True):
        model = linear(dropout=0.3)
        model.layers = Blocks(*model.layers, size=2)
        results.append(run(model, replace(CONFIG, recompute=recompute)))
        assert model.layers.recompute is recompute
        models.append(model)
    assert [e.train_loss for e in results[0].history] == [e.train_loss for e in results[1].history]
    for kept, again in zip(*(model.parameters() for model in models), strict=True):
        assert torch.equal(kept, again)


def compiled_by(monkeypatch: pytest.MonkeyPatch, backend: object) -> list[object]:
    """torch.compile has this backend; what it is asked for."""
    real, asked = torch.compile, []

    def compile_(call: Callable[..., object], mode: str | None) -> Callable[..., object]:
        asked.append(mode)
        found: Callable[..., object] = real(call, backend=backend)
        return found

    monkeypatch.setattr(torch, "compile", compile_)
    return asked


def test_compiled_models_train_as_others_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole batches through the compiler, the rest of an epoch and predictions as they are."""
    graphs: list[int] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., object]:
        graphs.append(1)
        found: Callable[..., object] = graph.forward
        return found

    config = replace(CONFIG, batch_size=24)
    plain, model = linear(), linear()
    expected = run(plain, config)
    asked = compiled_by(monkeypatch, backend)
    found = run(model, replace(config, compiled=True))
    assert asked == [None], "no CUDA graphs on a CPU"
    assert len(graphs) == 1, "one shape, in training alone"
    assert [e.train_loss for e in found.history] == pytest.approx([e.train_loss for e in expected.history])
    assert model.state_dict().keys() == plain.state_dict().keys()
    torch.testing.assert_close(model.state_dict(), plain.state_dict())
    run(linear(), replace(config, compiled=True, batch_size=1000))
    assert len(graphs) == 2, "a batch that all examples are in is a whole one"


def test_what_does_not_compile_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., object]:
        raise RuntimeError("No working C++ compiler found")

    compiled_by(monkeypatch, backend)
    said = r"Linear could not be compiled on cpu by torch .*No working C\+\+ compiler.*: leave out training.compiled"
    with pytest.raises(ValueError, match=said):
        run(linear(), replace(CONFIG, compiled=True))


def test_a_compiled_step_is_marked_for_cuda_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no GPU here; what is asked of torch is what its documentation wants."""
    asked = compiled_by(monkeypatch, "eager")
    marked: list[int] = []
    monkeypatch.setattr(torch.compiler, "cudagraph_mark_step_begin", lambda: marked.append(1))
    model = linear()
    call = compiled(model, torch.device("cuda"))
    inputs = toy().inputs
    assert torch.equal(call(inputs), model(inputs))
    assert torch.equal(call(inputs), model(inputs))
    assert (asked, len(marked)) == (["reduce-overhead"], 2)
