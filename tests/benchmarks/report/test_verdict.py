"""Verdicts on two numbers at the thresholds, with numbers that binary fractions hold exactly."""

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest

from nfn_monomial.benchmarks.report.beside import EQUAL_ERROR, EQUAL_TAU, judge, verdict
from nfn_monomial.benchmarks.report.intervals import Interval, Outcomes, difference
from nfn_monomial.benchmarks.report.published import Least, Relation

LITTLE, BOUND = 2.0**-30, 2.0**-4
HOLDS, FAILS, OPEN = "holds", "does not hold", "cannot be told"


def verdicts(low: float, high: float) -> tuple[str, ...]:
    """Verdicts for ``>``, ``>=`` and ``=``."""
    interval = Interval((low + high) / 2, low, high)
    return tuple(verdict(interval, relation, BOUND) for relation in get_args(Relation))


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (LITTLE, 1.0, (HOLDS, HOLDS, OPEN)),
        (0.0, 1.0, (OPEN, HOLDS, OPEN)),
        (-BOUND, 1.0, (OPEN, HOLDS, OPEN)),
        (-BOUND - LITTLE, 1.0, (OPEN, OPEN, OPEN)),
        (-1.0, 0.0, (OPEN, OPEN, OPEN)),
        (-1.0, -LITTLE, (FAILS, OPEN, OPEN)),
        (-1.0, -BOUND, (FAILS, OPEN, OPEN)),
        (-1.0, -BOUND - LITTLE, (FAILS, FAILS, FAILS)),
        (BOUND, 1.0, (HOLDS, HOLDS, OPEN)),
        (BOUND + LITTLE, 1.0, (HOLDS, HOLDS, FAILS)),
        (-BOUND, BOUND, (OPEN, HOLDS, HOLDS)),
        (-BOUND, BOUND + LITTLE, (OPEN, HOLDS, OPEN)),
        (-BOUND - LITTLE, BOUND, (OPEN, OPEN, OPEN)),
        (LITTLE, BOUND, (HOLDS, HOLDS, HOLDS)),
    ],
)
def test_the_ends_of_the_interval_decide(low: float, high: float, expected: tuple[str, ...]) -> None:
    assert verdicts(low, high) == expected


def constant(*values: float, networks: int = 100, steps: int = 1000) -> Outcomes:
    """Runs that get the same on every test network, so that intervals have no width but for seeds."""
    return Outcomes(tuple(range(len(values))), np.tile(np.array(values)[:, None], (1, 8)), None, networks, steps)


def test_errors_are_equal_within_a_percent_of_the_larger() -> None:
    larger = constant(200.0, 200.0)
    for other, expected in ((198.5, HOLDS), (197.5, FAILS)):
        assert judge([(constant(other, other), larger)], "=")[0] == expected
        assert judge([(larger, constant(other, other))], "=")[0] == expected
    for ratio, expected in ((0.99005, HOLDS), (0.9899, FAILS)):  # a percent of the smaller one would be less
        assert judge([(constant(1000.0 * ratio, 1000.0 * ratio), constant(1000.0, 1000.0))], "=")[0] == expected
    assert EQUAL_ERROR == 0.01
    assert EQUAL_TAU == 0.01


def test_means_over_several_sets_are_compared() -> None:
    """Each set of test networks has its own difference; equal is a percent of the larger mean."""
    small, large = constant(100.0, 100.0), constant(300.0, 300.0)
    assert judge([(small, large), (large, small)], "=")[0] == HOLDS
    assert judge([(small, constant(50.0, 50.0)), (large, constant(310.0, 310.0))], ">")[0] == HOLDS
    apart = [(constant(x, x), constant(x + 1.5, x + 1.5)) for x in (1.0, 199.0)]  # a percent of 101.5 is less
    assert judge(apart, "=")[0] == FAILS
    short = replace(small, steps=999)
    assert judge([(large, small), (large, short)], ">", Least(steps=1000, paper="2,000"))[0] == "not comparable"
    shares = Outcomes((0, 1), np.tile((np.arange(1024) < 512).astype(float), (2, 1)), None, 100, 1000)
    assert judge([(shares, shares), (small, constant(100.9, 100.9))], "=")[0] == HOLDS, "errors, not shares"


def test_accuracies_are_equal_within_a_hundredth() -> None:
    def right(of: int, count: int = 1024) -> Outcomes:
        return Outcomes((0, 1), np.tile((np.arange(count) < of).astype(float), (2, 1)), None, 100, 1000)

    assert judge([(right(512), right(512))], "=")[0] == HOLDS
    assert judge([(right(512), right(256))], "=")[0] == FAILS
    assert "difference +0.250 (+" in judge([(right(512), right(256))], ">")[1]


def test_taus_are_equal_within_a_hundredth_however_small_they_are() -> None:
    """Not within a percent of them, which would be 0.001 here."""
    true = np.arange(1024.0)
    low = np.where(true < 768, true, -true)
    nudged = low.copy()
    nudged[:765] = low[:765].reshape(-1, 5)[:, ::-1].ravel()  # 10 pairs of each block, evenly over all networks
    first, second = (Outcomes((0, 1), np.tile(x, (2, 1)), true, 100, 1000) for x in (low, nudged))
    assert float(first.drawn[0, 0]) == pytest.approx(0.125, abs=0.001)
    interval = difference(first, second)
    assert interval.mean == pytest.approx(2 * 1530 / (1024 * 1023 / 2))
    assert interval.high is not None
    assert interval.mean < interval.high < EQUAL_TAU
    assert judge([(first, second)], "=")[0] == HOLDS


def test_one_seed_cannot_tell() -> None:
    assert judge([(constant(9.0), constant(1.0))], ">") == (OPEN, "difference +8.0000, one seed")
    assert judge([(constant(9.0), constant(1.0, 1.0))], ">")[0] == OPEN


def test_runs_that_are_too_short_or_see_too_little_are_not_comparable() -> None:
    steps, networks = Least(steps=1000, paper="2,000"), Least(networks=100, paper="6,050")
    first, second = constant(9.0, 9.0), constant(1.0, 1.0)
    assert judge([(first, second)], ">", steps, networks)[0] == HOLDS
    for a, b in (replace(first, steps=999), second), (first, replace(second, steps=999)):
        assert judge([(a, b)], ">", steps) == ("not comparable", "999 steps; the paper has 2,000")
        assert judge([(a, b)], ">")[0] == HOLDS
    for a, b in (replace(first, networks=99), second), (first, replace(second, networks=99)):
        said = judge([(a, b)], ">", Least(), networks)
        assert said == ("not comparable", "99 training networks; the paper has 6,050")


def test_a_few_networks_do_not_show_that_accuracies_or_taus_are_equal() -> None:
    """Of 200 that are all right, what is wrong in one of 100 may be missing; a difference may be told of few."""

    def right(of: int, count: int) -> Outcomes:
        return Outcomes((0, 1), np.tile((np.arange(count) < of).astype(float), (2, 1)), None, 100, 1000)

    for count, expected in ((299, OPEN), (300, HOLDS)):
        for relation in ("=", ">="):
            assert judge([(right(count, count), right(count, count))], relation)[0] == expected
    assert judge([(right(150, 150), right(150, 150))] * 2, "=")[0] == HOLDS, "of both sets"
    said = judge([(right(20, 20), right(20, 20))], "=")[1]
    assert said == "difference +0.000 (+0.000 to +0.000), 20 test networks"
    for relation in (">", ">="):
        assert judge([(right(20, 20), right(5, 20))], relation)[0] == HOLDS
    assert judge([(right(5, 20), right(20, 20))], ">=")[0] == FAILS
    for count, expected in ((599, OPEN), (600, HOLDS)):  # one network that is wrong is so in all of its pairs
        true = np.arange(float(count))
        ranked = Outcomes((0, 1), np.tile(true, (2, 1)), true, 100, 1000)
        for relation in ("=", ">="):
            assert judge([(ranked, ranked)], relation)[0] == expected
    assert judge([(constant(2.0, 2.0), constant(2.0, 2.0))], "=")[0] == HOLDS, "errors are no counts"


def test_models_that_say_nothing_are_not_comparable() -> None:
    true = np.arange(400.0)
    nothing, good = (Outcomes((0, 1), np.tile(x, (2, 1)), true, 100, 1000) for x in (np.zeros(400), true))
    for pair in (nothing, nothing), (good, nothing), (nothing, good):
        assert judge([pair], "=") == ("not comparable", "a model gives all networks the same answer")
    lost = Outcomes((0, 1), np.full((2, 400), -np.inf), true, 100, 1000)  # what is kept of answers that are NaN
    each = Outcomes((0, 1), np.tile([[1.0], [2.0]], (1, 400)), true, 100, 1000)
    for pair in (good, lost), (lost, lost), (good, each):
        assert judge([pair], ">")[0] == "not comparable"
    once = Outcomes((0, 1), np.stack([np.zeros(400), true]), true, 100, 1000)
    assert judge([(good, once)], "=")[0] == OPEN, "one run that came to nothing is a result"


def test_ends_that_are_the_bound_but_for_rounding_are_the_bound() -> None:
    assert verdict(Interval(0.0, 0.75 - 0.76, 0.76 - 0.75), "=", 0.01) == HOLDS
    assert verdict(Interval(0.0, 0.75 - 0.76, 0.0), ">=", 0.01) == HOLDS


def test_nothing_is_not_judged() -> None:
    with pytest.raises(ValueError, match="there are no answers"):
        judge([], ">")
