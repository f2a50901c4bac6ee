"""Table, JSON and figure hold the numbers of the runs, and nothing is averaged that differs."""

import io
import json
import math
import statistics
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image
from rich.console import Console

from nfn_monomial.benchmarks.report.figures import draw_figure
from nfn_monomial.benchmarks.report.results import Mean, markdown, rich_tables, summarise, write_report
from nfn_monomial.benchmarks.settings.training import TrainConfig
from nfn_monomial.benchmarks.train.runs import Run, RunSettings, TestResult

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
    tests = tuple(
        TestResult(name, scale, {"tau": 0.8 - fall * i + 0.01 * seed, "r2": 0.9 - fall * i}, non_finite=0)
        for i, (name, scale) in enumerate(names)
    )
    return Run(
        RunSettings(
            "predict", activation, model, train_set, seed, {"scales": scales}, "bce", TrainConfig(), "data", "0"
        ),
        label=label,
        invariant_under=invariant_under,
        sees=sees,
        parameters=254_799,
        networks={"train": 5, "val": 6, "test": 7},
        tests=tests,
        val={"tau": 0.8},
        best_epoch=3,
        seconds_per_epoch=0.5 + seed,
        step_share=0.9,
        peak_bytes=3 * 2**20,
        diverged=False,
        has_artifacts=False,
        history=({"number": 1, "train_loss": None},),
        environment={"cores": 2},
    )


def all_runs(seeds: int = 3) -> list[Run]:
    return [
        made_up(activation, model, train_set, seed)
        for seed in range(seeds)
        for activation in ("relu", "tanh")
        for train_set in ("original", "augmented")
        for model in MODELS
    ]


def test_mean_and_standard_deviation() -> None:
    value = Mean.of([0.8, 0.81, 0.85])
    assert value.mean == pytest.approx(0.82)
    assert value.std == pytest.approx(statistics.stdev([0.8, 0.81, 0.85]))
    assert str(value) == "0.820 ±0.026"
    assert str(Mean.of([0.8])) == "0.800", "one seed has no deviation"


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
    assert row.seconds_per_epoch.mean == pytest.approx(1.5)
    assert row.peak_mib == pytest.approx(3)
    assert [r.invariant for r in rows[:3]] == ["perm. only", "no", "yes"]
    assert [r.sees for r in rows[:3]] == ["weights", "weights", "runs them"]


def test_different_configurations_are_not_averaged() -> None:
    run = made_up("relu", "mlp", "original", 0)
    longer = replace(run, settings=replace(run.settings, seed=1, training=TrainConfig(epochs=99)))
    with pytest.raises(ValueError, match="runs of mlp on relu networks \\(original\\) differ in more than their seed"):
        summarise([run, longer])


def test_markdown() -> None:
    text = markdown(summarise(all_runs()))
    header = "| model | sees | invariant | trained on | tau original | tau 1e1 | tau 1e6 | tau widened | R2 original "
    assert header + "| R2 1e6 | R2 widened | params | s/epoch |" in text
    line = "| STATNN | weights | perm. only | original | 0.810 ±0.010 | 0.710 ±0.010 | 0.610 ±0.010 | 0.510 ±0.010 "
    assert line + "| 0.900 ±0.000 | 0.700 ±0.000 | 0.600 ±0.000 | 0.25M | 1.5 | 3 | 3 |" in text
    assert "| Monomial-NFN | runs them | yes |" in text
    assert "| tau original | tau sign flips | tau widened | R2 original | R2 sign flips | R2 widened |" in text
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len(lines) == 2 * (2 + 6)
    assert len({line.count("|") for line in lines[:8]}) == 1
    assert "1eK: test networks moved by random group elements" in text
    assert text.count("widened: the same functions") == 2


def test_a_model_without_a_number_has_a_dash() -> None:
    text = markdown(summarise(all_runs()))
    assert "| MLP | weights | no | original | 0.810 ±0.010 | 0.710 ±0.010 | 0.610 ±0.010 | - | 0.900" in text
    first = [run for run in all_runs() if run.settings.model != "statnn"]  # the row without comes first
    assert "| tau 1e6 | tau widened | R2 original |" in markdown(summarise(first))
    alone = markdown(summarise([run for run in first if run.settings.model == "mlp"]))
    assert "widened" not in alone


def test_lost_predictions_and_divergence_are_mentioned() -> None:
    run = made_up("relu", "mlp", "original", 0)
    text = markdown(summarise([run]))
    assert "NaN or infinite" not in text
    bad = replace(run, diverged=True, tests=(replace(run.tests[0], non_finite=4), *run.tests[1:]))
    text = markdown(summarise([bad]))
    assert "NaN or infinite predictions, ranked" in text
    assert "MLP (original, 1 of 1 seeds)" in text


@pytest.mark.parametrize("width", [80, 160])
def test_terminal_table_holds_all_numbers(width: int) -> None:
    console = Console(width=width, record=True, file=io.StringIO())
    between = tuple(TestResult(f"scale {s}", float(s), {"tau": 0.7, "r2": 0.7}, 0) for s in (100, 10_000))
    worst = [
        replace(
            run,
            seconds_per_epoch=1234.5,
            parameters=123_456_789,
            tests=run.tests[:2] + between * (run.settings.subject == "relu") + run.tests[2:],
        )
        for run in all_runs()
    ]
    for table in rich_tables(summarise(worst), width):
        assert console.measure(table).minimum <= width, "or columns are cut off"
        console.print(table)
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    # Four tables of tau: original, moved (by two scales or flips) and widened, but for the MLP.
    assert text.count("±0.010") == 2 * (3 * 3 + 2) + 2 * (2 * 3 + 2)
    # Original networks: all rows; moved and widened ones: the invariant model's.
    assert text.count("0.810 ±0.010" if width == 160 else "0.810") == 12 + 2 * 3 + 2 * 2
    for train_set in ("original", "augmented"):
        assert text.count(f"Trained on the {train_set} training networks") == 2


def test_files(tmp_path: Path) -> None:
    paths = write_report(all_runs(), tmp_path / "new")
    assert {p.name for p in paths.values()} == {"table.md", "results.json", "figure1.png"}
    assert paths["table"].read_text() == markdown(summarise(all_runs()))
    results = json.loads(paths["results"].read_text())
    assert len(results["rows"]) == 12
    assert results["rows"][0]["tau"]["scale 10"]["mean"] == pytest.approx(0.71)
    assert results["environments"] == [{"cores": 2}]
    assert results["networks"] == {"relu": {"train": 5, "val": 6, "test": 7}, "tanh": {"train": 5, "val": 6, "test": 7}}
    assert len(results["runs"]) == 36
    assert {s["train_set"] for s in results["settings"]} == {"original", "augmented"}
    assert {s["model"] for s in results["settings"]} == set(MODELS), "each may be trained in its own way"
    assert len(results["settings"]) == 12
    with Image.open(paths["figure"]) as image:
        assert image.format == "PNG"
        assert min(image.size) > 800


@pytest.mark.parametrize("panels", [1, 2, 3])
def test_figure_of_any_number_of_panels(panels: int) -> None:
    kept = [("relu", "original"), ("relu", "augmented"), ("tanh", "original")][:panels]
    runs = [r for r in all_runs(1) if (r.settings.subject, r.settings.train_set) in kept]
    assert draw_figure(summarise(runs)).startswith(b"\x89PNG")


@pytest.mark.parametrize("models", [2, 20])
def test_the_legend_has_room_for_every_model(models: int) -> None:
    runs = [
        replace(run, label=f"Model {i}", settings=replace(run.settings, model=f"m{i}"))
        for i in range(models)
        for run in all_runs(2)
        if run.settings.model == "statnn" and run.settings.train_set == "original"
    ]
    png = draw_figure(summarise(runs))
    with Image.open(io.BytesIO(png)) as image:
        assert image.size[1] / 130 > 0.21 * models


def test_no_runs(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no finished runs"):
        write_report([], tmp_path)
    assert not list(tmp_path.iterdir())


def test_numbers_that_json_does_not_know() -> None:
    run = replace(made_up("relu", "mlp", "original", 0), history=({"train_loss": math.nan, "x": [math.inf, 1]},))
    assert Run.from_json(run.to_json()).history == ({"train_loss": None, "x": [None, 1]},)
