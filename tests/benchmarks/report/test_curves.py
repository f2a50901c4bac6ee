"""Tau over the number of training networks: sizes stay apart, the paper's numbers stand at their own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from made_up_runs import made_up_run

from nfn_monomial.benchmarks.report.beside import Kept
from nfn_monomial.benchmarks.report.curves import PAPER_NETWORKS, curve_tables, draw_curves
from nfn_monomial.benchmarks.report.intervals import Outcomes
from nfn_monomial.benchmarks.studies.predict_report import predict_report
from nfn_monomial.benchmarks.train.runs import Run, TestResult

LABELS = {"monomial": ("Monomial-NFN", "group"), "hnp": ("HNP", "permutations")}
TAU = {("monomial", 100): 0.5, ("hnp", 100): 0.6, ("monomial", 600): 0.8, ("hnp", 600): 0.7}


def made_up(activation: str, model: str, count: int, seed: int) -> Run:
    label, invariant_under = LABELS[model]
    moved = "scale 10000" if activation == "relu" else "sign flips"
    tau = TAU[model, count] + 0.01 * seed
    tests = [
        TestResult(name, None, {"tau": tau - 0.1 * i * (model == "hnp"), "r2": 0.5}, non_finite=0)
        for i, name in enumerate(("original", moved))
    ]
    options = {"train_networks": count}
    return made_up_run(
        model, seed, tests, subject=activation, options=options, label=label, invariant_under=invariant_under
    )


def answers() -> Kept:
    """The better `TAU` says, the less noise."""
    rng = np.random.default_rng(0)
    true, noise = np.arange(600.0), rng.normal(0, 600, (3, 600))
    kept: dict[tuple[str, tuple[str, ...], str], Outcomes] = {}
    for (model, count), tau in TAU.items():
        values = true + (1 - tau) * noise
        for activation in PAPER_NETWORKS:
            key = activation, (LABELS[model][0], f"{count} original"), "tau original"
            kept[key] = Outcomes((0, 1, 2), values, true, count, 1000)
    return kept


def runs() -> list[Run]:
    """Three seeds of 100 networks, two of 600; 600 first."""
    seeds = {600: 2, 100: 3}
    return [
        made_up(activation, model, count, seed)
        for count, most in seeds.items()
        for activation in PAPER_NETWORKS
        for model in LABELS
        for seed in range(most)
    ]


def test_tables() -> None:
    *tables, order = curve_tables(runs(), answers())
    assert [table.title.split(":")[0] for table in tables] == [
        "relu, original", "relu, scale 10000", "tanh, original", "tanh, sign flips"
    ]  # fmt: skip
    assert tables[0].header == ("model", "sees", "invariant", "100", "600", "seeds")
    assert tables[0].cells[1] == ("HNP", "weights", "perm. only", "0.610 ±0.006", "0.705 ±0.005", "3, 2")
    assert tables[1].cells[1][3:5] == ("0.510 ±0.006", "0.605 ±0.005")
    assert "over seeds (2 to 3)" in tables[0].notes[0]
    assert len(tables[0].notes) == 1
    lost = [replace(run, diverged=run.label == "HNP" and run.settings.subject == "tanh") for run in runs()]
    assert [table.notes[-1].endswith("ended the training early: HNP.") for table in curve_tables(lost, {})] == [
        False, False, True, True
    ]  # fmt: skip
    verdicts = {line[:3]: line[5] for line in order.cells}
    assert verdicts["relu", "original", "100"] == "not comparable", "the paper's have learned from more"
    assert verdicts["relu", "original", "600"] == "holds"
    assert "with all that there are, of these" in order.notes[1]
    alike = {key: replace(o, answers=answers()["relu", ("HNP", "100 original"), "tau original"].answers)
             for key, o in answers().items()}  # fmt: skip
    assert [line[5] for line in curve_tables(runs(), alike)[-1].cells] == ["not comparable", "holds"] * 2, (
        "equal ones are as good"
    )
    assert {line[1] for line in order.cells} == {"original"}, "of others no answers were kept"
    only = curve_tables([run for run in runs() if run.settings.model == "hnp"], answers())
    assert len(only) == 4, "nothing to be compared"


def test_stars_are_the_paper_s() -> None:
    axes = draw_curves(runs()).axes
    stars = [sorted(float(line.get_ydata()[0]) for line in ax.lines if line.get_marker() == "*") for ax in axes]
    assert stars == [[0.922], [0.92], [0.933, 0.939], [0.94]]
    places = {float(line.get_xdata()[0]) for line in axes[2].lines if line.get_marker() == "*"}
    assert places == {PAPER_NETWORKS["tanh"]}


def test_networks_that_the_paper_has_not_are_drawn_without_its_numbers() -> None:
    relu_runs = [run for run in runs() if run.settings.subject == "relu"]
    mixed = [replace(run, settings=replace(run.settings, subject="mixed")) for run in relu_runs]
    assert curve_tables(mixed, {})[0].title.startswith("mixed, original")
    axes = draw_curves(mixed).axes
    assert [line for ax in axes for line in ax.lines if line.get_marker() == "*"] == []
    named = [[text.get_text() for text in draw_curves(some).legends[0].get_texts()] for some in (mixed, relu_runs)]
    assert ["the paper, its zoo" in names for names in named] == [False, True]


def test_figure_says_how_many_seeds_its_points_have() -> None:
    assert "over seeds (2 to 3)" in draw_curves(runs()).get_supxlabel()


def test_the_experiment_reports_curves_where_all_runs_are_of_some_number() -> None:
    report = predict_report(runs())
    assert list(report.figures) == ["curves.png"]
    assert len(report.results["rows"]) == 8
    assert report.results["rows"][0]["train_set"] == "600 original"
    plain = made_up_run("hnp", 0, [TestResult("original", None, {"tau": 0.5, "r2": 0.5}, 0)])
    assert list(predict_report([*runs(), plain]).figures) == ["figure1.png"]


def test_seeds_that_differ_in_more_are_not_averaged() -> None:
    first, *rest = runs()
    other = made_up_run("monomial", 5, first.tests, subject="relu", options={"train_networks": 600, "widen": 2.0})
    with pytest.raises(ValueError, match="differ in more than their seed"):
        curve_tables([first, *rest, other], {})
