"""Runs that compute the same in another order: equal but for rounding, which training lets grow."""

import pytest

from nfn_monomial.benchmarks.train.runs import TestResult


def assert_same_results(found: tuple[TestResult, ...], expected: tuple[TestResult, ...]) -> None:
    """The same test sets, with the same metrics up to what a few steps make of rounding in float32."""
    assert [(t.name, t.scale, t.non_finite) for t in found] == [(t.name, t.scale, t.non_finite) for t in expected]
    for one, other in zip(found, expected, strict=True):
        assert one.metrics == pytest.approx(other.metrics, rel=1e-4, abs=1e-6), one.name
