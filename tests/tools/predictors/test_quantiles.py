"""Accuracies as quantiles: a monotone map and its inverse, in training, tests and predictors."""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_predictors import stacked
from small_zoo import corpus
from torch import Tensor

from nfn_monomial.benchmarks.experiments.predict import PredictConfig
from nfn_monomial.benchmarks.settings.training import TrainConfig
from nfn_monomial.benchmarks.studies import predict
from nfn_monomial.benchmarks.train.recipes import Recipe, write_recipes
from nfn_monomial.benchmarks.train.runs import RunStore
from nfn_monomial.tools.predictors import Predictor
from nfn_monomial.tools.predictors.quantiles import KNOTS, Quantiles

ACCURACIES = st.lists(st.floats(0, 1) | st.sampled_from((0.1, 0.5)), min_size=1, max_size=300).map(
    lambda values: torch.tensor(values, dtype=torch.float64)
)


@given(ACCURACIES)
def test_levels_lead_back_to_their_accuracies_and_answers_rise(accuracy: Tensor) -> None:
    quantiles = Quantiles.of(accuracy)
    level = quantiles.level(accuracy)
    assert bool(((level >= 0) & (level <= 1)).all())
    torch.testing.assert_close(quantiles.accuracy(level), accuracy, rtol=0, atol=1e-12)
    order = accuracy.argsort()
    assert float(level[order].diff(prepend=torch.zeros(1)).min()) >= -1e-12
    found = quantiles.accuracy(torch.linspace(0, 1, 1000, dtype=torch.float64))
    assert float(found.diff().min()) >= -1e-15
    assert (float(found[0]), float(found[-1])) == (float(accuracy.min()), float(accuracy.max()))


def test_a_level_is_the_share_of_networks_behind() -> None:
    accuracy = torch.rand(5000, generator=torch.Generator().manual_seed(0)) ** 4
    level = Quantiles.of(accuracy).level(accuracy)
    share = accuracy.argsort().argsort() / 4999
    assert float((level - share).abs().max()) < 1 / (KNOTS - 1)
    ties = Quantiles.of(torch.tensor([0.1, 0.1, 0.1, 0.9]))
    assert 0.3 < float(ties.level(torch.tensor(0.1))) < 0.35, "the middle of their levels"
    assert ties.level(torch.tensor([0.0, 1.0])).tolist() == [0.0, 1.0]
    assert ties.accuracy(torch.tensor(torch.nan)).isnan()


@pytest.mark.parametrize("knots", [(0.5,), (0.5, 0.4), (0.0, 2.0), (0.0, True), ("a", "b"), (0.0, float("nan"))])
def test_what_is_none(knots: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="at least two accuracies that rise"):
        Quantiles(knots)


def test_r2_is_of_accuracies_and_tau_of_the_order() -> None:
    accuracy = torch.rand(500, generator=torch.Generator().manual_seed(0)).double() ** 4
    quantiles = Quantiles.of(accuracy)
    logits = torch.logit(quantiles.level(accuracy), eps=1e-9)
    assert predict.scores(logits, accuracy, quantiles) == pytest.approx({"tau": 1, "r2": 1})
    assert predict.scores(logits, accuracy)["r2"] < 0.5, "the negative twin"
    loss = predict.objective("quantile", quantiles)
    assert loss(logits, accuracy) < min(loss(torch.logit(accuracy), accuracy), loss(0.9 * logits, accuracy))


def test_a_recipe_reaches_the_predictor(tmp_path: Path) -> None:
    """Quantiles, and several heads: what was tested is what the file answers."""
    zoo = corpus("relu")
    file = tmp_path / "recipe.json"
    options = {"heads": 3, "head_width": 16, "head_dropout": 0.1}
    write_recipes(file, {"stats": Recipe("quantile", {"epochs": 4}, options)})
    config = PredictConfig(
        ("stats",), ("original",), seeds=(0,), scales=(10.0,), widen=0, recipe=str(file),
        training=TrainConfig(epochs=2, batch_size=16, learning_rate=1e-2),
    )  # fmt: skip
    store = RunStore(tmp_path)
    (test,) = zoo.test
    (run,) = predict.predict_generalization({"relu": zoo}, config, store)
    predictor = Predictor.load(store.predictor_file(run.settings))
    found = predictor(stacked(test.networks.tensors)).double()
    scores = predict.scores(torch.logit(found), test.networks.accuracy)
    assert scores["r2"] == pytest.approx(run.tests[0].metrics["r2"], rel=1e-4)
    train = torch.cat([part.networks.accuracy for part in zoo.train])
    assert predictor.task.quantiles.knots == Quantiles.of(train).knots  # type: ignore[attr-defined]
    assert predictor.model.state_dict()["head.4.weight"].shape == (3 * 16, 16)
    predictor.save(tmp_path / "again.safetensors")
    again = Predictor.load(tmp_path / "again.safetensors")
    assert torch.equal(again(stacked(test.networks.tensors)).double(), found)
