"""What every experiment leaves: the same files, whole, with all numbers."""

import io
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from made_up_runs import made_up_run
from PIL import Image
from rich.console import Console

from nfn_monomial.benchmarks.report.tables import record_of
from nfn_monomial.benchmarks.settings.training import TrainConfig
from nfn_monomial.benchmarks.train.runs import Run
from nfn_monomial.tools.report import Report, Table, panels

TABLE = Table("T", ("model", "tau"), (("NP", "0.1"),), notes=("N.",))


def test_files(tmp_path: Path) -> None:
    figure, (ax,) = panels(1, 1, (3.0, 2.0))
    ax.plot([1, 2])
    report = Report([TABLE, replace(TABLE, title="U")], {"rows": [1]}, {"a.png": figure}, "Above.")
    paths = report.write(tmp_path / "new" / "deep")
    assert paths == [tmp_path / "new" / "deep" / name for name in ("table.md", "results.json", "a.png")]
    assert (
        paths[0].read_text(encoding="utf-8") == f"Above.\n\n{TABLE.markdown()}\n{replace(TABLE, title='U').markdown()}"
    )
    assert json.loads(paths[1].read_text(encoding="utf-8")) == {"rows": [1]}
    with Image.open(paths[2]) as image:
        assert (image.format, image.size) == ("PNG", (390, 260))
    assert {path.name for path in paths[0].parent.iterdir()} == {path.name for path in paths}


def test_without_figures_and_heading(tmp_path: Path) -> None:
    assert [path.name for path in Report([TABLE], {}).write(tmp_path)] == ["table.md", "results.json"]
    assert (tmp_path / "table.md").read_text(encoding="utf-8") == TABLE.markdown()


def test_numbers_that_json_does_not_know_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        Report([TABLE], {"a": math.nan}).write(tmp_path)
    assert not list(tmp_path.iterdir())


def test_terminal_has_all_tables_in_parts_that_fit() -> None:
    wide = Table("W", ("model", *"abcdefgh"), (("NP", *("0.123456789",) * 8),))
    console = Console(width=40, file=io.StringIO(), record=True, color_system=None)
    Report([TABLE, wide], {}).show(console)
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= 40
    assert text.count("0.123456789") == 8
    assert text.count("W, continued") >= 1
    assert text.index("T") < text.index("W")


def test_record_of_runs() -> None:
    runs = [made_up_run(model, seed, subject=s) for s in ("relu", "tanh") for model in ("np", "mlp") for seed in (0, 1)]
    runs[0] = replace(runs[0], environment={"cores": 3})
    found = record_of(runs)
    assert found["runs"] == [run.settings.name for run in runs]
    assert [(s["subject"], s["model"], s["seed"]) for s in found["settings"]] == [
        (subject, model, 0) for subject in ("relu", "tanh") for model in ("np", "mlp")
    ], "one for all seeds"
    assert found["networks"] == {name: {"train": 5, "val": 6, "test": 7} for name in ("relu", "tanh")}
    assert found["environments"] == [{"cores": 3}, {"cores": 2}]
    longer = replace(runs[0], settings=replace(runs[0].settings, training=TrainConfig(99)))
    assert len(record_of([*runs, longer])["settings"]) == 5
    with pytest.raises(ValueError, match="no finished runs"):
        record_of([])


def test_numbers_of_runs_that_json_does_not_know() -> None:
    run = replace(made_up_run(), history=({"train_loss": math.nan, "x": [math.inf, 1]},))
    assert Run.from_json(run.to_json()).history == ({"train_loss": None, "x": [None, 1]},)
