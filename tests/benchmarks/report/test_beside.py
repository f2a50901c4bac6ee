"""The paper's numbers beside ours, and what became of its claims."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from made_up_runs import made_up_run

from nfn_monomial.benchmarks.report.beside import Kept, as_in_paper, beside_paper, kept_outcomes
from nfn_monomial.benchmarks.report.intervals import Outcomes
from nfn_monomial.benchmarks.report.published import PAPER
from nfn_monomial.benchmarks.train.runs import Run, RunSettings, TestResult
from nfn_monomial.tools.report import Report, Table


def table(title: str, first: str, cells: dict[str, str], column: str, seeds: int = 1) -> Table:
    lines = tuple((name, value, "1M", str(seeds)) for name, value in cells.items())
    return Table(title, (first, column, "params", "seeds"), lines, subject="x")


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
    assert report.tables[-1].cells[0][3] == "0.0315 and 0.0324"
    short = {key: replace(outcomes, steps=10_000) for key, outcomes in kept.items()}
    lines = beside_paper(edits(**cells), "edit-inr", short).tables[-1].cells
    assert {line[-2] for line in lines} == {"not comparable"}
    apart = {key: replace(o, seeds=(i, i + 7)) for i, (key, o) in enumerate(kept.items())}
    assert len(beside_paper(edits(**cells), "edit-inr", apart).tables) == 2, "of seeds that have nothing in common"
    others = {("y", row, column): outcomes for (_, row, column), outcomes in kept.items()}
    assert len(beside_paper(edits(**cells), "edit-inr", others).tables) == 2, "of other networks"


def kept_run(
    label: str, seed: int, epochs: int = 3, train_set: str = "original", networks: int = 40, **options: object
) -> Run:
    history = tuple({"number": n, "train_loss": 1.0, "metrics": {}} for n in range(epochs))
    tests = [TestResult("original", None, {"tau": 0.5}, 0)]
    counts = {"train": networks, "val": 4, "test": 4}
    return made_up_run(
        label.lower(), seed, tests,
        label=label, train_set=train_set, history=history, networks=counts, options=options,
    )  # fmt: skip


class Answers:
    """A store whose runs answered their seed, those of the larger GNN 10 more."""

    def __init__(self, **true: torch.Tensor) -> None:
        self.true = true

    def artifacts(self, settings: RunSettings) -> dict[str, torch.Tensor]:
        if settings.model == "lost":
            return {}
        true = self.true.get(f"seed{settings.seed}")
        answers = {"original: answers": torch.full((4,), 10.0 * (settings.model == "gnn (5.5m)") + settings.seed)}
        return answers if true is None else {**answers, "original: true": true}

    def run_file(self, settings: RunSettings) -> str:
        return f"runs/{settings.model}-{settings.seed}"


def found(*runs: Run, **true: torch.Tensor) -> Kept:
    store = Answers(**true)
    return kept_outcomes(runs, store, lambda test: "tau original", train_sets=True)  # type: ignore[arg-type]


def test_lost_answers_are_no_smaller_table() -> None:
    with pytest.raises(ValueError, match=r"answers to 'original' are missing in runs/lost-1: remove this file"):
        found(kept_run("HNP", 0), kept_run("lost", 1))


def test_seeds_were_tested_on_the_same_networks() -> None:
    true = torch.arange(4.0)
    (outcomes,) = found(kept_run("HNP", 0), kept_run("HNP", 1), seed0=true, seed1=true.clone()).values()
    assert outcomes.true is not None
    for other in (true + 1, true[:3], None):
        with pytest.raises(ValueError, match="runs/hnp-1 was tested on other networks than another seed"):
            found(kept_run("HNP", 0), kept_run("HNP", 1), seed0=true, **({} if other is None else {"seed1": other}))


def test_the_shortest_of_the_seeds_counts() -> None:
    for epochs in ((1, 50, 50), (50, 1, 50), (50, 50, 1)):
        (outcomes,) = found(*(kept_run("HNP", seed, n) for seed, n in enumerate(epochs))).values()
        steps = 40 // made_up_run().settings.training.batch_size
        assert outcomes.steps == steps
        assert outcomes.seeds == (0, 1, 2)


def test_seeds_that_draw_their_networks_from_one_pool_share_some() -> None:
    def shared(*pools: int, **options: object) -> float:
        runs = [kept_run("HNP", seed, **options) for seed in range(len(pools))]  # type: ignore[arg-type]
        runs = [
            replace(run, networks=run.networks | ({"pool": n} if n else {})) for run, n in zip(runs, pools, strict=True)
        ]
        (outcomes,) = found(*runs).values()
        return outcomes.shared

    assert shared(160, 160, train_networks=40) == 0.25
    assert shared(160, 80, train_networks=40) == shared(80, 160, train_networks=40) == 0.5, "the most"
    assert shared(160, 160, train_networks=40, train_set="augmented", augment_scale=10.0) == 0.125
    assert shared(40, 40, train_networks=40) == 0, "all of them train on the same: of these an interval is"
    assert shared(0, 0) == shared(0, 0, train_set="augmented", augment_scale=10.0) == 0
    with pytest.raises(KeyError, match="pool"):
        shared(0, 0, train_networks=40)


def test_moved_copies_are_no_more_networks() -> None:
    """Where they are stored beside the networks; those that are moved in training are never more."""
    (outcomes,) = found(kept_run("HNP", 0, train_set="augmented", augment_scale=10.0)).values()
    assert outcomes.networks == 20
    (outcomes,) = found(kept_run("HNP", 0, train_set="augmented")).values()
    assert outcomes.networks == 40


def test_the_larger_gnn_is_judged_in_place_of_the_smaller() -> None:
    for order in (1, -1):
        runs = [kept_run("GNN", 0), kept_run("GNN (5.5M)", 0)][::order]
        kept = found(*runs)
        cells = {row[0]: outcomes.answers.tolist() for (_, row, _), outcomes in kept.items()}
        assert cells == {"GNN": [[0.0] * 4], "GNN (5.5M)": [[10.0] * 4]}, "its own answers are still there"
        judged = {row[0]: outcomes.answers.tolist() for (_, row, _), outcomes in as_in_paper(kept).items()}
        assert judged["GNN"] == [[10.0] * 4]


def test_accuracies_and_their_differences_are_told_in_percent() -> None:
    cells = {"HNP (Fourier)": "50.00", "MLP": "25.00", "Monomial-HNP (Fourier)": "75.00"}
    report = Report([table("Images of mnist classified by their networks", "model", cells, "test", 2)], {})
    kept = of_digits({"HNP (Fourier)": (2, 2), "MLP": (1, 1), "Monomial-HNP (Fourier)": (3, 3)})
    lines = {line[1]: line for line in beside_paper(report, "classify-inr", kept).tables[-1].cells}
    above = lines["the hybrid with HNP is above HNP"]
    assert above[3] == "75.00 and 50.00"
    assert above[-1].startswith("difference +25.0 (")


def of_digits(right: dict[str, tuple[int, ...]]) -> Kept:
    """Runs that were long enough, and of four test networks have so many right with each seed."""
    return {
        ("x", (model,), "test"): Outcomes(
            tuple(range(len(numbers))), np.array([np.arange(4) < n for n in numbers]) * 1.0, None, 4000, 200_000
        )
        for model, numbers in right.items()
    }


def classified(kept: Kept) -> dict[str, tuple[str, ...]]:
    cells = {model: "?" for _, (model,), _ in kept}
    report = Report([table("Images of mnist classified by their networks", "model", cells, "test", 2)], {})
    return {line[1]: line for line in beside_paper(report, "classify-inr", kept).tables[-1].cells}


def test_numbers_of_claims_are_of_the_seeds_that_both_have() -> None:
    """Not the table's, where the first is ahead because of a seed that the second has not."""
    lines = classified(of_digits({"HNP (Fourier)": (3, 3), "Monomial-HNP (Fourier)": (2, 2, 4, 4, 4)}))
    above = lines["the hybrid with HNP is above HNP"]
    assert above[3] == "50.00 and 75.00"
    assert above[-1].startswith("difference -25.0 (")


def test_a_model_that_stays_on_a_plateau_neither_holds_nor_refutes() -> None:
    """Of the paper's 68 and 66 percent, less than a half is nothing that can be compared; the MLP has 10 there, too."""
    lines = classified(of_digits({"HNP (Fourier)": (3, 3), "Monomial-HNP (Fourier)": (1, 1), "MLP": (0, 0)}))
    above = lines["the hybrid with HNP is above HNP"]
    assert above[-2:] == (
        "not comparable", "Monomial-HNP (Fourier) stays on a plateau, at 25%; the paper has 68%",
    )  # fmt: skip
    lines = classified(of_digits({"HNP (Fourier)": (1, 1), "Monomial-HNP (Fourier)": (2, 2), "MLP": (0, 0)}))
    assert lines["the hybrid with HNP is above HNP"][-1].startswith("HNP (Fourier) stays on a plateau")
    above = lines["the hybrid with HNP is above the MLP"]
    assert above[-1].startswith("MLP stays on a plateau, at 0%; the paper has 11%")
    lines = classified(of_digits({"Monomial-HNP (Fourier)": (2, 2), "MLP": (1, 1)}))
    assert lines["the hybrid with HNP is above the MLP"][-1].startswith("difference +25.0 (")


@pytest.mark.parametrize(
    ("column", "right", "stays"),
    [("hybrid", 342, True), ("hybrid", 343, False), ("HNP", 330, True), ("HNP", 331, False)],
)
def test_a_plateau_is_less_than_half_of_what_the_paper_has(column: str, right: int, stays: bool) -> None:
    """Of its model: 68.43 and 66.02 percent."""
    numbers = {"Monomial-HNP (Fourier)": 500, "HNP (Fourier)": 500}
    numbers["Monomial-HNP (Fourier)" if column == "hybrid" else "HNP (Fourier)"] = right
    kept = {
        ("x", (model,), "test"): Outcomes((0, 1), np.tile(np.arange(1000.0) < n, (2, 1)) * 1.0, None, 4000, 200_000)
        for model, n in numbers.items()
    }
    said = classified(kept)["the hybrid with HNP is above HNP"][-1]
    assert ("stays on a plateau" in said) == stays


@pytest.mark.parametrize(
    ("experiment", "title"), [("classify-inr", "Images of mnist classified"), ("edit-inr", "dilate")]
)
def test_runs_are_as_long_as_half_of_the_papers(experiment: str, title: str) -> None:
    steps = {"classify-inr": 100_000, "edit-inr": 25_000}[experiment]
    hybrid, hnp, column = {
        "classify-inr": ("Monomial-HNP (Fourier)", "HNP (Fourier)", "test"), "edit-inr": ("Monomial-NP", "HNP", "MSE"),
    }[experiment]  # fmt: skip
    report = Report([table(title, "model", {hybrid: "?", hnp: "?"}, column, 2)], {})
    for some, expected in ((steps - 1, True), (steps, False)):
        kept = {("x", (model,), column): replace(of_each((1.0, 1.0)), steps=some) for model in (hybrid, hnp)}
        lines = beside_paper(report, experiment, kept).tables[-1].cells
        assert {line[-2] == "not comparable" for line in lines} == {expected}


def test_how_far_two_models_fall_is_compared_not_where_they_end() -> None:
    true = np.arange(400.0)
    noise = np.random.default_rng(0).normal(0, 100, (2, 400))
    levels = {("NP", "original"): (0.5, 1.0), ("HNP", "original"): (2.0, 2.1)}  # of noise: as they are, and moved
    kept = {
        ("relu", row, column): Outcomes((0, 1), true + level * noise, true, 1000, 1000)
        for row, both in levels.items()
        for column, level in zip(("tau original", "tau 1e4"), both, strict=True)
    }
    cells = tuple((label, "original", "?", "?", "1M", "2") for label in ("NP", "HNP", "Monomial-NFN"))
    header = ("model", "trained on", "tau original", "tau 1e4", "params", "seeds")
    report = Report([Table("Test accuracy of relu networks predicted", header, cells, subject="relu")], {})
    lines = {line[1]: line for line in beside_paper(report, "predict-generalization", kept).tables[-1].cells}
    said = lines["NP falls less far than HNP"]
    falls = [
        kept["relu", row, "tau 1e4"].mean - kept["relu", row, "tau original"].mean
        for row in (("NP", "original"), ("HNP", "original"))
    ]
    assert falls[0] < falls[1] < 0
    assert said[3] == f"{falls[0]:.3f} and {falls[1]:.3f}"
    assert said[-2] == "does not hold", "though NP ends above HNP"
    assert kept["relu", ("NP", "original"), "tau 1e4"].mean > kept["relu", ("HNP", "original"), "tau 1e4"].mean


def test_a_claim_may_need_more_than_its_table() -> None:
    """A GNN of 500 networks is not the paper's, and HNP may be compared; of fewer nothing is."""
    cells = {"Monomial-NFN": "0.6", "GNN": "0.5", "HNP": "0.5"}
    header = ("model", "trained on", "tau original", "params", "seeds")
    lines = tuple((name, "original", value, "1M", "2") for name, value in cells.items())
    report = Report([Table("Test accuracy of relu networks predicted", header, lines, subject="relu")], {})
    kept = {
        ("relu", (name, "original"), "tau original"): replace(of_each((v, v)), networks=500)
        for name, v in (("Monomial-NFN", 0.75), ("GNN", 0.5), ("HNP", 0.5))
    }
    judged = {line[1]: line[-2] for line in beside_paper(report, "predict-generalization", kept).tables[-1].cells}
    assert judged["Monomial-NFN is above GNN on networks as they are"] == "not comparable"
    for networks, expected in ((999, "not comparable"), (1000, "holds")):
        more = {cell: replace(outcomes, networks=networks) for cell, outcomes in kept.items()}
        lines = beside_paper(report, "predict-generalization", more).tables[-1].cells
        assert {line[1]: line[-2] for line in lines}["Monomial-NFN is above GNN on networks as they are"] == expected
    assert judged["Monomial-NFN is as good as HNP on networks as they are"] == "holds"
    fewer = {cell: replace(outcomes, networks=499) for cell, outcomes in kept.items()}
    lines = beside_paper(report, "predict-generalization", fewer).tables[-1].cells
    assert {line[-2:] for line in lines} == {("not comparable", "499 training networks; the paper has some 6,000")}
    for title in ("Test accuracy of leaky_relu networks", "Test accuracy of tanh-not-relu networks"):
        other = Report([replace(report.tables[0], title=title)], {})
        assert len(beside_paper(other, "predict-generalization", kept).tables) == 1, "no table of the paper is of these"
