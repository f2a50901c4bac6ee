"""What the training loop and predictions read: in parts, few large examples at once, and sets that are streamed."""

import itertools
from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from toy_training import CONFIG, linear, negative_error, toy

from nfn_monomial.benchmarks.data import batches
from nfn_monomial.benchmarks.data.batches import Data, StreamedData
from nfn_monomial.benchmarks.data.rows import TensorRows
from nfn_monomial.benchmarks.train.devices import make_fabric
from nfn_monomial.benchmarks.train.loop import fit, predict
from nfn_monomial.tools.predictors import models


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
