"""Steps of the training loop: precision, devices, recomputing, compiling, and what time and memory they take."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from lightning_fabric import Fabric
from torch import Tensor, nn
from toy_training import CONFIG, Linear, linear, negative_error, run, toy

from nfn_monomial.benchmarks.data.batches import Data
from nfn_monomial.benchmarks.settings.training import TrainConfig
from nfn_monomial.benchmarks.train.devices import compiled, make_fabric
from nfn_monomial.benchmarks.train.loop import fit, predict
from nfn_monomial.models.blocks import Blocks


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


def test_no_such_device() -> None:
    with pytest.raises(ValueError, match="device 'cuda:99' is not there"):
        make_fabric(replace(CONFIG, device="cuda:99"))
    with pytest.raises(ValueError, match="device 'gpu' is unknown; use cpu, cuda or cuda:N"):
        make_fabric(replace(CONFIG, device="gpu"))


def test_recomputed_blocks_train_bit_identically() -> None:
    """With dropout inside of them, which is drawn again."""
    models, results = [], []
    for recompute in (False, True):
        model = linear(dropout=0.3)
        model.layers = Blocks(*model.layers)
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


def test_a_backward_that_does_not_compile_says_so_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compilers may leave the backward until it is called."""

    class Late(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:  # type: ignore[override]
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
            raise torch._dynamo.exc.TorchDynamoException("No working C++ compiler found")

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., object]:
        return lambda *given: tuple(Late.apply(out) for out in graph(*given))  # type: ignore[no-untyped-call]

    compiled_by(monkeypatch, backend)
    with pytest.raises(ValueError, match=r"could not be compiled on cpu .*No working C\+\+ compiler"):
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
