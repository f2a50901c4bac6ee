"""Timing by turns, by a clock that calls set forward."""

import math

import pytest
import torch

from nfn_monomial.benchmarks.train import measure
from nfn_monomial.benchmarks.train.measure import operators, race


class Clock:
    """A clock, and calls that take so many milliseconds one time after the other."""

    def __init__(self) -> None:
        self.seconds, self.order = 0.0, list[str]()

    def call(self, name: str, milliseconds: list[int]) -> object:
        times = iter(milliseconds)

        def pass_time() -> None:
            self.order.append(name)
            self.seconds += next(times) / 1e3

        return pass_time


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(measure.time, "perf_counter", lambda: clock.seconds)
    return clock


def test_the_median_of_the_rounds_after_the_first_three(clock: Clock) -> None:
    """Not their mean, their least nor their last, and nothing of the three."""
    calls = {"a": clock.call("a", [900, 800, 700, 2, 1, 90, 2, 40]), "b": clock.call("b", [1, 1, 1, 60, 7, 50, 6, 5])}
    assert race(calls, 5, "cpu") == pytest.approx({"a": 2, "b": 7})
    assert clock.order == ["a", "b"] * 8, "they take turns"


def test_a_slow_race_has_one_round_that_is_not_counted_and_one_that_is(clock: Clock) -> None:
    assert race({"a": clock.call("a", [5000, 3000])}, 5, "cpu", seconds=4) == pytest.approx({"a": 3000})
    assert race({"a": clock.call("a", [9, 9, 9, 1, 2])}, 2, "cpu", seconds=math.inf) == pytest.approx({"a": 1.5})


def test_operators_of_both_passes_without_views() -> None:
    x = torch.ones(2, 3, requires_grad=True)
    assert operators(lambda: x.T.unsqueeze(0).exp()) == 1
    # Backward makes the gradient of the sum, expands it, and multiplies.
    assert operators(lambda: x.T.exp().sum().backward()) == 4
