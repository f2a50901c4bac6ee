"""The paper's numbers beside ours, and what became of its claims."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nfn_monomial.benchmarks.report.beside import beside_paper, verdict
from nfn_monomial.benchmarks.report.published import PAPER
from nfn_monomial.benchmarks.report.tables import Estimate
from nfn_monomial.tools.report import Report, Table

NUMBERS = st.floats(0.01, 100)
ERRORS = st.none() | st.floats(0, 10)


def table(title: str, first: str, cells: dict[str, str], column: str, seeds: int = 1) -> Table:
    lines = tuple((name, value, "1M", str(seeds)) for name, value in cells.items())
    return Table(title, (first, column, "params", "seeds"), lines)


def edits(**cells: str) -> Report:
    return Report([table("Editing x INRs, dilate: MSE", "model", cells, "MSE", 3)], {})


@pytest.mark.parametrize("experiment", PAPER)
def test_claims_are_those_of_the_numbers(experiment: str) -> None:
    """Where the paper prints both numbers, its claims hold of them, so that no row or column is taken for another."""
    checked = 0
    for known in PAPER[experiment]:
        for claim in known.claims:
            cells = [
                known.rows.get(row, ("",) * len(known.columns))[known.columns.index(column)]
                for row, column in (claim.first, claim.second)
            ]
            if all(cells):
                first, second = (float(cell.split()[0]) for cell in cells)
                holds = {">": first > second, ">=": first >= second, "=": abs(first - second) <= 0.005}
                assert holds[claim.relation], claim
                checked += 1
    assert checked


def test_numbers_stand_beside_the_paper_s() -> None:
    report = beside_paper(edits(NP="0.0324 ±0.0001", HNP="0.0315 ±0.0001", other="0.0283 ±0.0001"), "edit-inr")
    _, beside = report.tables
    assert beside.header == ("model", "MSE", "paper: MSE", "params", "seeds")
    assert [line[:3] for line in beside.cells] == [
        ("NP", "0.0324 ±0.0001", "0.068 ±0.002"), ("HNP", "0.0315 ±0.0001", "0.071 ±0.001"),
    ]  # fmt: skip
    assert "mean ± standard error over seeds (3)" in beside.notes[0]
    assert "Table 4" in beside.notes[0]


def test_claims_are_judged() -> None:
    errors = {"NP": "0.0324 ±0.0001", "HNP": "0.0315 ±0.0001", "Monomial-NP": "0.0324 ±0.0001"}
    report = beside_paper(edits(**errors), "edit-inr")
    assert {line[1]: line[-2] for line in report.tables[-1].cells} == {
        "the hybrid's error is below that of HNP": "does not hold", "the hybrid's error is that of NP": "holds",
    }, "none of the MLP, which was not asked for"  # fmt: skip


@given(NUMBERS, NUMBERS, ERRORS, ERRORS)
def test_verdicts_agree_with_one_another(a: float, b: float, first: float | None, second: float | None) -> None:
    """A larger number is not the same, nor smaller; if both are scaled, nothing changes."""
    x, y = Estimate(a, first), Estimate(b, second)
    larger, least, same, smaller = (verdict(*pair)[0] for pair in ((x, ">", y), (x, ">=", y), (x, "=", y), (y, ">", x)))
    if larger == "holds":
        assert (least, same, smaller) == ("holds", "does not hold", "does not hold")
    assert not (least == "does not hold" and smaller != "holds")
    assert verdict(y, "=", x)[0] == same
    doubled = [Estimate(2 * m.mean, None if m.error is None else 2 * m.error) for m in (x, y)]
    assert verdict(doubled[0], ">", doubled[1])[0] == larger
    if first is not None and second is not None and abs(a - b) < 1.9 * math.hypot(first, second):
        assert larger != "holds"
