"""Intervals of differences: of the numbers that scipy counts, and as wide as they say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import kendalltau

from nfn_monomial.benchmarks.report.intervals import Interval, Outcomes, difference, mean_difference, mean_of, ranks

SEEDS = (0, 1, 2)


def outcomes(answers: object, true: object = None, seeds: tuple[int, ...] = SEEDS) -> Outcomes:
    values = np.asarray(answers, dtype=float)
    return Outcomes(seeds[: len(values)], values, None if true is None else np.asarray(true, dtype=float), 100, 1000)


def test_taus_are_scipy_s_also_of_networks_that_occur_several_times() -> None:
    rng = np.random.default_rng(0)
    true = rng.integers(0, 20, 60) / 20  # with ties
    answers = np.stack([true + rng.normal(size=60), np.round(true + rng.normal(size=60)), np.zeros(60)])
    answers[0, :3] = [np.inf, -np.inf, -np.inf]
    counts = rng.multinomial(60, np.full(60, 1 / 60), 5).astype(float)
    found = outcomes(answers, true).numbers(counts)
    for row, values in zip(found[:2], answers[:2], strict=True):
        for tau, times in zip(row, counts.astype(int), strict=True):
            places = np.unique(values, return_inverse=True)[1]
            expected = kendalltau(np.repeat(places, times), np.repeat(true, times)).statistic
            assert tau == pytest.approx(expected, abs=1e-6)
    assert (found[2] == 0).all(), "equal answers rank nothing"


def test_means_are_of_networks_as_often_as_they_occur() -> None:
    found = outcomes([[1.0, 0.0, 5.0]]).numbers(np.array([[1.0, 1.0, 1.0], [2.0, 1.0, 0.0]]))
    np.testing.assert_allclose(found, [[2.0, 2 / 3]])


def test_what_both_models_find_hard_is_no_difference() -> None:
    """Pairs: hard networks make numbers vary a hundred times as much as differences."""
    rng = np.random.default_rng(1)
    hard = 10 * rng.normal(size=(1, 400))
    first, second = (outcomes(hard + 0.1 * rng.normal(size=(3, 400)) + x) for x in (0.05, 0.0))
    interval = difference(first, second)
    assert interval.low is not None
    assert interval.high is not None
    assert 0 < interval.low < interval.mean < interval.high < 0.1
    assert first.drawn.std() > 0.3


def test_intervals_of_equal_models_leave_out_0_as_seldom_as_they_say() -> None:
    """Drawn with fixed seeds, so that this is a fact of the method and no matter of luck."""
    rng = np.random.default_rng(2)
    for training in (0.0, 0.2):
        missed = 0
        for _ in range(60):
            both = rng.normal(size=(1, 100))
            pair = [outcomes(both + rng.normal(size=(2, 100)) + training * rng.normal(size=(2, 1))) for _ in range(2)]
            interval = difference(*pair)
            missed += not (interval.low or 0) <= 0 <= (interval.high or 0)
        assert missed <= 6, f"{missed} of 60"


def test_networks_that_one_model_finds_hard_widen_the_interval_whatever_the_seed() -> None:
    """Seeds do not show such differences; drawing test networks does."""
    rng = np.random.default_rng(3)
    missed = 0
    for _ in range(60):
        first, second = (outcomes(np.tile(rng.normal(size=(1, 100)), (3, 1))) for _ in range(2))
        interval = difference(first, second)
        missed += not (interval.low or 0) <= 0 <= (interval.high or 0)
    assert missed <= 6, f"{missed} of 60"


def test_the_mean_over_independent_zoos_is_known_better() -> None:
    """By the root of their number, whether networks or trainings differ."""
    rng = np.random.default_rng(4)

    def widths(training: float, networks: float) -> tuple[float, float]:
        pairs = []
        for _ in range(9):
            noise = networks * rng.normal(size=(1, 200)) + training * rng.normal(size=(40, 1))
            both = (np.broadcast_to(noise, (40, 200)), np.zeros((40, 200)))
            pairs.append(tuple(outcomes(x, seeds=tuple(range(40))) for x in both))
        each = [difference(*pair) for pair in pairs]
        mean = mean_difference(pairs)
        assert mean.mean == pytest.approx(np.mean([one.mean for one in each]))
        return float(np.mean([(one.high or 0) - (one.low or 0) for one in each])), (mean.high or 0) - (mean.low or 0)

    one, all_of_them = widths(0.0, 1.0)
    assert one / all_of_them == pytest.approx(3, rel=0.15)
    one, all_of_them = widths(1.0, 0.0)
    assert one / all_of_them == pytest.approx(3, rel=0.3)


def test_seeds_that_go_up_and_down_together_in_all_zoos_are_no_more_seeds() -> None:
    """As they may, because a seed begins with the same weights in all zoos of one shape."""
    rng = np.random.default_rng(7)
    missed = 0
    for _ in range(60):
        training = rng.normal(size=(3, 1))
        pairs = [
            (outcomes(training + 0.1 * rng.normal(size=(3, 100))), outcomes(0.1 * rng.normal(size=(3, 100))))
            for _ in range(6)
        ]
        interval = mean_difference(pairs)
        missed += not (interval.low or 0) <= 0 <= (interval.high or 0)
    assert missed <= 6, f"{missed} of 60"


@pytest.mark.parametrize("zoos", [1, 6])
def test_training_networks_that_seeds_share_are_no_more_networks(zoos: int) -> None:
    """Each seed draws 50 of 100; two equal models learn something of each, and the next 100 would teach them other."""
    rng = np.random.default_rng(8)
    missed, of_independent = 0, 0
    for _ in range(200):
        pairs = []
        for _ in range(zoos):
            draws = np.stack([rng.permutation(100)[:50] for _ in SEEDS])
            learned = [rng.normal(size=100)[draws].mean(1, keepdims=True).repeat(3, 1) for _ in range(2)]
            pairs.append(tuple(Outcomes(SEEDS, numbers, None, 50, 1000, shared=0.5) for numbers in learned))
        for shared in (0.5, 0.0):
            interval = mean_difference([(replace(a, shared=shared), replace(b, shared=shared)) for a, b in pairs])
            left_out = not (interval.low or 0) <= 0 <= (interval.high or 0)
            missed, of_independent = missed + left_out * (shared > 0), of_independent + left_out * (shared == 0)
    assert missed <= 14, f"{missed} of 200"
    assert of_independent > 24, f"{of_independent} of 200: it would not be needed"


def test_what_training_shows_is_widened_by_what_seeds_share_alone() -> None:
    rng = np.random.default_rng(9)
    zero, networks = np.zeros((3, 100)), np.tile(rng.normal(size=(1, 100)), (3, 1))
    for shared, times in ((0.0, 1.0), (0.5, 2.0), (0.1, (4 / 3) ** 0.5)):
        for answers, expected in ((np.tile([[1.0], [2.0], [4.0]], 100), times), (networks, 1.0)):
            pair = (outcomes(answers), outcomes(zero))
            found = width(difference(replace(pair[0], shared=shared), pair[1]))
            assert found == pytest.approx(expected * width(difference(*pair))), "the most that one of them shares"
            assert width(mean_of([replace(pair[0], shared=shared)])) == pytest.approx(found)


def test_what_is_shared_is_counted_in_all_zoos_models_and_falls_and_by_the_seeds_they_have() -> None:
    rng = np.random.default_rng(10)
    pairs = [tuple(outcomes(np.tile(rng.normal(size=(3, 1)), 100)) for _ in range(2)) for _ in range(2)]
    mean, wide = mean_difference(pairs), lambda some: replace(some, shared=0.5)
    for zoo in (0, 1):
        for model in (0, 1):
            some = [
                tuple(wide(o) if (i, j) == (zoo, model) else o for j, o in enumerate(p)) for i, p in enumerate(pairs)
            ]
            assert width(mean_difference(some)) == pytest.approx(2 * width(mean)), (zoo, model)
        several = [wide(first) if i == zoo else first for i, (first, _) in enumerate(pairs)]
        assert width(mean_of(several)) == pytest.approx(2 * width(mean_of([first for first, _ in pairs])))
    (first, second), _ = pairs
    fall = wide(first).since(second)
    assert fall is not None
    assert fall.of((0, 2)).shared == fall.shared == 0.5
    both = (0, 1)
    assert width(difference(wide(first), second.of(both))) == pytest.approx(
        3**0.5 * width(difference(first.of(both), second.of(both)))
    ), "of the two seeds that both have"
    assert width(mean_of([wide(first), second.of(both)])) == pytest.approx(
        3**0.5 * width(mean_of([first.of(both), second.of(both)]))
    )


@pytest.mark.parametrize("shared", [1.0, 1.5, -0.1, float("nan")])
def test_seeds_share_a_part_of_their_networks_or_nothing(shared: float) -> None:
    with pytest.raises(ValueError, match=f"shared is {shared}, but should be from 0 to below 1"):
        replace(outcomes([[1.0, 2.0]]), shared=shared)


def test_the_seeds_of_a_mean_are_those_of_all_zoos() -> None:
    pairs = [
        (outcomes([[1.0, 1.0], [2.0, 2.0], [9.0, 9.0]]), outcomes([[0.0, 0.0]] * 3)),
        (outcomes([[2.0, 2.0], [1.0, 1.0]], seeds=(1, 0)), outcomes([[0.0, 0.0]] * 3)),
    ]
    assert mean_difference(pairs).mean == pytest.approx(1.5)
    one = (outcomes([[1.0, 1.0]], seeds=(2,)), outcomes([[0.0, 0.0]], seeds=(2,)))
    with pytest.raises(ValueError, match=r"no seed in common: \(0, 1, 2\), \(1, 0\), \(2,\)"):
        mean_difference([*pairs, one])


def width(interval: Interval) -> float:
    assert interval.low is not None
    assert interval.high is not None
    return interval.high - interval.low


def test_networks_of_each_zoo_are_drawn_apart() -> None:
    """So two zoos that are alike halve the variance; drawn together, they would leave it."""
    rng = np.random.default_rng(5)
    pair = tuple(outcomes(np.tile(rng.normal(size=(1, 100)), (3, 1))) for _ in range(2))
    alike = mean_difference([(pair[0], pair[1])] * 2)
    assert width(alike) == pytest.approx(width(difference(*pair)) / 2**0.5, rel=0.1)


def test_variances_of_the_two_sources_add_up() -> None:
    """Not the widths, which they would if draws of networks and of trainings went together."""
    rng = np.random.default_rng(6)
    networks, trainings = rng.normal(size=(1, 100)), 0.3 * rng.normal(size=(9, 1))

    def found(answers: object) -> float:
        values = np.broadcast_to(np.asarray(answers, dtype=float), (9, 100))
        return width(difference(*(outcomes(x, seeds=tuple(range(9))) for x in (values, np.zeros((9, 100))))))

    apart = found(networks), found(trainings)
    assert 0.5 < apart[0] / apart[1] < 2
    assert found(networks + trainings) == pytest.approx((apart[0] ** 2 + apart[1] ** 2) ** 0.5, rel=0.1)


def test_trainings_that_differ_widen_the_interval() -> None:
    base = np.linspace(-1, 1, 200)[None]
    alike, apart = (outcomes(np.concatenate([base + x for x in shifts])) for shifts in ((1, 1, 1), (0, 1, 2)))
    zero = outcomes(np.concatenate([base] * 3))
    narrow, wide = difference(alike, zero), difference(apart, zero)
    assert (narrow.mean, wide.mean) == pytest.approx((1, 1))
    assert (narrow.low, narrow.high) == pytest.approx((1, 1))
    assert wide.low == pytest.approx(1 - 4.3 / 3**0.5, abs=0.1)  # Student's 97.5 % point of two degrees of freedom
    assert wide.high == pytest.approx(1 + 4.3 / 3**0.5, abs=0.1)


def test_one_seed_has_no_interval() -> None:
    one = difference(outcomes([[1.0, 2.0]]), outcomes([[1.0, 1.0]]))
    assert one == Interval(0.5, None, None)
    assert one.show() == "+0.500"
    assert Interval(0.5, 0.25, 0.75).show(2) == "+0.50 (+0.25 to +0.75)"


def test_seeds_are_paired_by_their_numbers() -> None:
    first = outcomes([[2.0, 2.0], [3.0, 3.0], [9.0, 9.0]], seeds=(5, 7, 9))
    second = outcomes([[2.0, 2.0], [1.0, 1.0]], seeds=(7, 5))
    interval = difference(first, second)
    assert interval.mean == pytest.approx(1)
    assert (interval.low, interval.high) == pytest.approx((1, 1))


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (outcomes([[1.0, 2.0, 3.0]]), "different ones"),
        (outcomes([[1.0, 2.0]], [0.0, 1.0]), "different ones"),
        (outcomes([[1.0, 2.0]], seeds=(4,)), "no seed in common"),
    ],
)
def test_other_networks_and_seeds_are_refused(other: Outcomes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        difference(outcomes([[1.0, 2.0]]), other)


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="a line for each of 2 seeds"):
        Outcomes((0, 1), np.zeros((1, 3)), None, 1, 1)
    with pytest.raises(ValueError, match=r"true has shape \(2,\), but should have \(3,\)"):
        Outcomes((0,), np.zeros((1, 3)), np.zeros(2), 1, 1)


def test_ranks() -> None:
    assert ranks({"a": 0.5, "b": 0.9, "c": 0.5, "d": 0.1}) == {"a": 2.5, "b": 1, "c": 2.5, "d": 4}


def test_a_mean_over_zoos_has_the_interval_of_independent_networks_and_common_seeds() -> None:
    rng = np.random.default_rng(3)
    zoos = [outcomes(rng.normal(size=(3, 400)) + level) for level in (1.0, 2.0, 6.0)]
    interval = mean_of(zoos)
    assert interval.mean == pytest.approx(np.mean([zoo.answers.mean() for zoo in zoos]))
    zero = [outcomes(np.zeros((3, 400))) for _ in zoos]
    assert interval == mean_difference(list(zip(zoos, zero, strict=True)))
    assert mean_of([outcomes([[1.0, 2.0]])]) == Interval(1.5, None, None), "one seed"
    turned = outcomes(zoos[1].answers[::-1], seeds=SEEDS[::-1])
    assert mean_of([zoos[0], turned, zoos[2]]) == interval, "seeds go together"
    short = outcomes([[4.0] * 400], seeds=(2,))
    assert mean_of([zoos[0], short]).mean == pytest.approx((zoos[0].answers[2].mean() + 4) / 2)


def test_changes_are_of_the_same_runs_and_draws() -> None:
    rng = np.random.default_rng(4)
    before = outcomes(rng.normal(size=(3, 50)))
    after = outcomes(before.answers[:2] + 1.0, seeds=(0, 1))
    change = after.since(before)
    assert change is not None
    assert change.seeds == (0, 1)
    np.testing.assert_allclose(change.drawn, 1.0, atol=1e-12)
    assert change.mean == pytest.approx(1.0)
    np.testing.assert_allclose(change.of((1,)).drawn, 1.0, atol=1e-12)
    assert after.since(None) is None
    assert after.since(outcomes([[0.0] * 50], seeds=(7,))) is None


def test_small_ends_have_their_sign_but_for_rounding_and_means_have_none() -> None:
    """By which one sees whether 0 is left out."""
    assert Interval(0.02, -0.0004, 0.04).show() == "+0.020 (-0.000 to +0.040)"
    assert Interval(0.02, 0.0004, 0.04).show() == "+0.020 (+0.000 to +0.040)"
    assert Interval(-1e-17, -1e-15, 0.0).show() == "+0.000 (+0.000 to +0.000)"
    assert Interval(0.75, 0.5, 1.0).show(2, sign="-") == "0.75 (0.50 to 1.00)"
    assert Interval(-0.75, None, None).show(2, 100) == "-75.00"
