"""Accuracies as quantiles: a monotone map and its inverse, in training, tests and predictors."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from nfn_monomial.benchmarks.studies import predict
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


@pytest.mark.parametrize("knots", [(0.5,), (0.5, 0.4), (0.0, torch.inf), (0.0, True), ("a", "b"), (0.0, torch.nan)])
def test_what_is_none(knots: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="at least two numbers that rise"):
        Quantiles(knots)


def test_r2_is_of_accuracies_and_tau_of_the_order() -> None:
    accuracy = torch.rand(500, generator=torch.Generator().manual_seed(0)).double() ** 4
    quantiles = Quantiles.of(accuracy)
    logits = torch.logit(quantiles.level(accuracy), eps=1e-9)
    assert predict.scores(logits, accuracy, quantiles) == pytest.approx({"tau": 1, "r2": 1})
    assert predict.scores(logits, accuracy)["r2"] < 0.5, "the negative twin"
    loss = predict.objective("quantile", quantiles)
    assert loss(logits, accuracy) < min(loss(torch.logit(accuracy), accuracy), loss(0.9 * logits, accuracy))
