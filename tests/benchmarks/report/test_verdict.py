"""Verdicts on two numbers at the thresholds, with numbers that binary fractions hold exactly."""

import pytest

from nfn_monomial.benchmarks.report.beside import verdict
from nfn_monomial.benchmarks.report.tables import Estimate

LITTLE = 2.0**-30
HOLDS, FAILS, OPEN = "holds", "does not hold", "cannot be told"
RELATIONS = (">", ">=", "=")


def verdicts(first: Estimate, second: Estimate) -> tuple[str, ...]:
    """Verdicts for ``>``, ``>=`` and ``=``, and for the same with the numbers exchanged."""
    pairs = ((first, second), (second, first))
    return tuple(verdict(a, relation, b)[0] for a, b in pairs for relation in RELATIONS)


LARGER = (HOLDS, HOLDS, FAILS, FAILS, FAILS, FAILS)
UNKNOWN = (OPEN,) * 6


@pytest.mark.parametrize(("beyond", "expected"), [(-LITTLE, UNKNOWN), (0.0, UNKNOWN), (LITTLE, LARGER)])
def test_two_standard_errors_of_the_difference(beyond: float, expected: tuple[str, ...]) -> None:
    """Which is sqrt(0.375^2 + 0.5^2) = 0.625."""
    assert verdicts(Estimate(4.25 + beyond, 0.375), Estimate(3.0, 0.5)) == expected
    assert verdicts(Estimate(-3.0 + beyond, 0.5), Estimate(-4.25, 0.375)) == expected


@pytest.mark.parametrize(("beyond", "expected"), [(-LITTLE, UNKNOWN), (0.0, UNKNOWN), (LITTLE, LARGER)])
@pytest.mark.parametrize(("error", "other"), [(None, None), (0.0, None), (None, 0.0)])
def test_a_quarter_of_the_larger_number_with_one_seed(
    beyond: float, expected: tuple[str, ...], error: float | None, other: float | None
) -> None:
    """Also where one of the two numbers has several seeds."""
    assert verdicts(Estimate(4.0 + beyond, error), Estimate(3.0, other)) == expected
    assert verdicts(Estimate(-3.0, error), Estimate(-4.0 - beyond, other)) == expected


def test_half_a_percent_is_the_same() -> None:
    """With errors that are as small it is known to be, and ``>`` does not hold; with larger ones that is open."""
    same = (FAILS, HOLDS, HOLDS) * 2
    for difference, expected in ((0.99, same), (1.0, same), (1.01, LARGER)):
        assert verdicts(Estimate(200.0, 0.25), Estimate(200.0 - difference, 0.25)) == expected
    assert verdicts(Estimate(200.0, 0.375), Estimate(199.25, 0.5)) == (OPEN, HOLDS, HOLDS) * 2
    assert verdicts(Estimate(200.0, 0.375), Estimate(198.75, 0.5)) == UNKNOWN
    assert verdicts(Estimate(200.0, None), Estimate(199.25, None)) == (OPEN, HOLDS, HOLDS) * 2


def test_why_says_what_the_difference_is_compared_to() -> None:
    assert verdict(Estimate(4.25, 0.375), ">", Estimate(3.0, 0.5))[1] == "difference +1.2, 2 errors 1.2"
    assert verdict(Estimate(0.5, 0.1), "=", Estimate(0.75, None))[1] == "difference -0.25, one seed"
