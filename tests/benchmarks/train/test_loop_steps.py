"""Steps of the training loop: precision, devices, recomputing, compiling, and what time and memory they take."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from toy_training import CONFIG, Linear, linear, negative_error, run, toy

from nfn_monomial.benchmarks.train import loop
from nfn_monomial.benchmarks.train.devices import make_fabric
from nfn_monomial.benchmarks.train.loop import predict
from nfn_monomial.benchmarks.train.measure import step_memory
from nfn_monomial.models.blocks import Blocks


def test_peak_memory_is_that_of_known_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "step_memory", step_memory)

    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(1))

        def forward(self, batch: dict[str, list[Tensor]]) -> Tensor:
            wide = self.weight * torch.ones(2**20)  # 4 MiB twice: the ones, which backward needs, and the product
            return wide.sum() + batch["all"][0][:, 0]

    result = run(Wide(), replace(CONFIG, epochs=1))
    assert result.peak_bytes == pytest.approx(8 * 2**20, rel=0.01)


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
        compiled: Callable[..., object] = real(call, backend=backend)
        return compiled

    monkeypatch.setattr(torch, "compile", compile_)
    return asked


def test_compiled_models_train_as_others_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole batches through the compiler, the rest of an epoch and predictions as they are."""
    graphs: list[int] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., object]:
        graphs.append(1)
        forward: Callable[..., object] = graph.forward
        return forward

    config = replace(CONFIG, batch_size=24)
    plain, model = linear(), linear()
    expected = run(plain, config)
    asked = compiled_by(monkeypatch, backend)
    result = run(model, replace(config, compiled=True))
    assert asked == [None], "no CUDA graphs on a CPU"
    assert len(graphs) == 1, "one shape, in training alone"
    assert [e.train_loss for e in result.history] == pytest.approx([e.train_loss for e in expected.history])
    assert model.state_dict().keys() == plain.state_dict().keys()
    torch.testing.assert_close(model.state_dict(), plain.state_dict())
    run(linear(), replace(config, compiled=True, batch_size=1000))
    assert len(graphs) == 2, "a batch that all examples are in is a whole one"
