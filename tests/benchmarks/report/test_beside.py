"""The paper's numbers beside ours, and what became of its claims."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from nfn_monomial.benchmarks.report.beside import beside_paper
from nfn_monomial.benchmarks.report.intervals import Outcomes
from nfn_monomial.benchmarks.report.published import PAPER
from nfn_monomial.tools.report import Report, Table


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


def of_each(values: tuple[float, float], steps: int = 50_000) -> Outcomes:
    """Two runs that have these errors on every network."""
    return Outcomes((0, 1), np.tile(np.array(values)[:, None], (1, 6)), None, 4000, steps)


def test_claims_are_judged_by_the_answers_that_were_kept() -> None:
    """Not by the numbers of the table, which are rounded."""
    cells = {"NP": "0.03", "HNP": "0.03", "Monomial-NP": "0.03", "MLP": "0.03"}
    errors = {"NP": (0.0324, 0.0324), "HNP": (0.0315, 0.0315), "Monomial-NP": (0.0324, 0.0324)}
    kept = {("x", (model,), "MSE"): of_each(values) for model, values in errors.items()}
    report = beside_paper(edits(**cells), "edit-inr", kept)
    assert {line[1]: line[-2:] for line in report.tables[-1].cells} == {
        "the hybrid's error is below that of HNP": (
            "does not hold", "difference -0.0009 (-0.0009 to -0.0009)",
        ),
        "the hybrid's error is that of NP": ("holds", "difference +0.0000 (+0.0000 to +0.0000)"),
    }, "none of the MLP, whose answers were not kept"  # fmt: skip
    short = {key: replace(outcomes, steps=10_000) for key, outcomes in kept.items()}
    lines = beside_paper(edits(**cells), "edit-inr", short).tables[-1].cells
    assert {line[-2] for line in lines} == {"not comparable"}
    others = {("y", row, column): outcomes for (_, row, column), outcomes in kept.items()}
    assert len(beside_paper(edits(**cells), "edit-inr", others).tables) == 2, "of other networks"
