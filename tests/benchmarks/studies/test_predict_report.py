"""Tables, rows and Figure 1 hold the numbers of the runs, and nothing is averaged that differs."""

import math
import statistics
from dataclasses import replace

import pytest
from made_up_runs import made_up_run

from nfn_monomial.benchmarks.studies.predict_report import Row, predict_tables, summarise
from nfn_monomial.benchmarks.train.runs import Run, TestResult

MODELS = {
    "statnn": ("STATNN", "permutations", "weights"),
    "mlp": ("MLP", "nothing", "weights"),
    "monomial": ("Monomial-NFN", "group", "functions"),
}


def made_up(activation: str, model: str, train_set: str, seed: int) -> Run:
    label, invariant_under, sees = MODELS[model]
    scales = (10.0, 1e6) if activation == "relu" else ()
    names = [("original", None), *((f"scale {s:g}", s) for s in scales)]
    names += [] if scales else [("sign flips", None)]
    names += [] if model == "mlp" else [("widened", None)]
    fall = 0.0 if model == "monomial" else 0.1
    tests = [
        TestResult(name, scale, {"tau": 0.8 - fall * i + 0.01 * seed, "r2": 0.9 - fall * i}, non_finite=0)
        for i, (name, scale) in enumerate(names)
    ]
    return made_up_run(
        model, seed, tests, subject=activation, train_set=train_set, options={"scales": scales}, label=label,
        invariant_under=invariant_under, sees=sees, parameters=254_799, seconds_per_epoch=0.5 + seed,
        peak_bytes=3 * 2**20,
    )  # fmt: skip


def markdown(rows: list[Row]) -> str:
    return "\n".join(table.markdown() for table in predict_tables(rows))


def all_runs(seeds: int = 3) -> list[Run]:
    return [
        made_up(activation, model, train_set, seed)
        for seed in range(seeds)
        for activation in ("relu", "tanh")
        for train_set in ("original", "augmented")
        for model in MODELS
    ]


def test_rows() -> None:
    rows = summarise(all_runs())
    assert [(r.activation, r.train_set, r.model) for r in rows[:4]] == [
        ("relu", "original", "statnn"),
        ("relu", "original", "mlp"),
        ("relu", "original", "monomial"),
        ("relu", "augmented", "statnn"),
    ]
    assert len(rows) == 12
    row = rows[0]
    assert row.seeds == (0, 1, 2)
    assert list(row.tau) == ["original", "scale 10", "scale 1e+06", "widened"]
    assert [value.mean for value in row.tau.values()] == pytest.approx([0.81, 0.71, 0.61, 0.51])
    assert all(v.error == pytest.approx(statistics.stdev([0.8, 0.81, 0.82]) / math.sqrt(3)) for v in row.tau.values())
    assert row.seconds_per_epoch.mean == pytest.approx(1.5)
    assert row.peak_mib == pytest.approx(3)
    assert [r.invariant for r in rows[:3]] == ["perm. only", "no", "yes"]
    assert [r.sees for r in rows[:3]] == ["weights", "weights", "runs them"]


def test_a_model_without_widened_networks_has_a_dash() -> None:
    text = markdown(summarise(all_runs()))
    assert "| MLP | weights | no | original | 0.810 ±0.006 | 0.710 ±0.006 | 0.610 ±0.006 | - | 0.900" in text
    first = [run for run in all_runs() if run.settings.model != "statnn"]  # the row without widened ones comes first
    assert "| tau 1e6 | tau widened | R2 original |" in markdown(summarise(first))


def test_lost_predictions_and_divergence_are_mentioned() -> None:
    run = made_up("relu", "mlp", "original", 0)
    text = markdown(summarise([run]))
    assert "NaN or infinite" not in text
    bad = replace(run, diverged=True, tests=(replace(run.tests[0], non_finite=4), *run.tests[1:]))
    text = markdown(summarise([bad]))
    assert "NaN or infinite predictions, ranked" in text
    assert "MLP (original, 1 of 1 seeds)" in text
