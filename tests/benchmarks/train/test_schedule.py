"""Learning rates over a training."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nfn_monomial.benchmarks.settings.training import Schedule, TrainConfig
from nfn_monomial.benchmarks.train.loop import learning_rate

CONFIG = TrainConfig(learning_rate=2.0, warmup_steps=3)


def rates(schedule: Schedule, steps: int, warmup: int = 3) -> list[float]:
    config = replace(CONFIG, schedule=schedule, warmup_steps=warmup)
    return [learning_rate(config, step, steps) for step in range(steps)]


def test_rates_of_short_trainings() -> None:
    assert rates("constant", 6) == [0.5, 1.0, 1.5, 2.0, 2.0, 2.0]
    assert rates("cosine", 7) == pytest.approx([0.5, 1.0, 1.5, 2.0, 2 - 2 * 0.1464466, 1.0, 2 * 0.1464466])
    assert rates("one-cycle", 10, warmup=0) == pytest.approx(rates("cosine", 10))


@given(st.sampled_from(["constant", "cosine", "one-cycle"]), st.integers(1, 60), st.integers(0, 70))
def test_rates_rise_to_the_largest_then_fall(schedule: Schedule, steps: int, warmup: int) -> None:
    series = rates(schedule, steps, warmup)
    top = series.index(max(series))
    assert series[: top + 1] == sorted(series[: top + 1])
    assert series[top:] == sorted(series[top:], reverse=True)
    assert 0 < min(series) <= max(series) <= 2
    if warmup < steps and schedule != "one-cycle":
        assert max(series) == 2
