"""Tables of results: means over seeds, what may be averaged, and the same cells in Markdown and on the terminal."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_up_runs import made_up_run
from rich.console import Console

from nfn_monomial.benchmarks.report.figures import draw_learning
from nfn_monomial.benchmarks.report.tables import COLUMNS, Estimate, by_model, headline, model_table, over, record_of
from nfn_monomial.benchmarks.settings.training import TrainConfig
from nfn_monomial.benchmarks.train.runs import Run
from nfn_monomial.tools.report import Report, Table, panels

WORDS = st.text("ab |-", max_size=12)


def run(model: str = "np", seed: int = 0, accuracy: float = 0.5, subject: str = "relu", under: str = "group") -> Run:
    return made_up_run(model, seed, {"original": {"accuracy": accuracy}}, subject=subject, invariant_under=under)


VALUES: dict[str, Callable[[Run], float]] = {"accuracy": lambda r: r.tests[0].metrics["accuracy"]}


def shown(table: Table, width: int) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(table.rich(width))
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


def test_mean_and_standard_error() -> None:
    assert Estimate.of([0.5]) == Estimate(0.5, None)
    assert Estimate.of([0.5, 0.75]).values == (0.5, 0.75), "so that means can be counted again"
    assert Estimate.of([0.5]).show() == "0.500", "one seed has no error"
    mean = Estimate.of(iter([1.0, 2.0, 3.0]))
    assert mean.mean == 2
    assert mean.error == pytest.approx(3**-0.5)  # not the standard deviation, which is 1
    assert mean.show(2) == "2.00 ±0.58"
    assert Estimate.of([0.25, 0.25]).show(1) == "0.2 ±0.0"

    assert (over([1, 1]), over([1], "pair")) == ("one seed", "one pair")
    assert over([4, 4], "pair") == "mean ± standard error over pairs (4)"
    assert over([2, 3, 1]) == "mean ± standard error over seeds (1 to 3)", "no claim that all have three"


def test_markdown() -> None:
    table = Table("T", ("model", "tau", "R2"), (("NP", "0.1", "0.2"), ("HNP", "-", "3")), notes=("One.", "Two."))
    assert table.markdown() == (
        "**T**\n\n| model | tau | R2 |\n| --- | ---: | ---: |\n| NP | 0.1 | 0.2 |\n| HNP | - | 3 |\n\nOne.\n\nTwo.\n"
    )
    assert "| --- | --- | ---: |" in replace(table, text_columns=2).markdown()


@given(st.lists(st.lists(WORDS, min_size=7, max_size=7), min_size=1, max_size=4), st.integers(24, 60))
def test_parts_have_every_column_once_and_names_everywhere(lines: list[list[str]], width: int) -> None:
    table = Table("T", tuple("abcdefg"), tuple(map(tuple, lines)), text_columns=3, names=(0, 2), notes=("N.",))
    parts = table.parts(width)
    assert all({"a", "c"} <= set(part.header) for part in parts)
    rest = [name for part in parts for name in part.header if name not in "ac"]
    assert rest == list("bdefg")
    for part in parts:
        columns = ["abcdefg".index(name) for name in part.header]
        assert part.cells == tuple(tuple(line[i] for i in columns) for line in table.cells)
        assert part.text_columns == sum(i < 3 for i in columns)
        assert [part.header[i] for i in part.names] == ["a", "c"]
    assert [part.title for part in parts] == ["T", *["T, continued"] * (len(parts) - 1)]
    assert [part.notes for part in parts] == [*[()] * (len(parts) - 1), ("N.",)]
    assert all(len(line) <= width for part in parts for line in shown(part, width).splitlines())


@pytest.mark.parametrize(
    "other",
    [{"loss": "mse"}, {"data": "other"}, {"options": {"widen": 2}}, {"training": TrainConfig(4)}, {"version": 2}],
)
def test_only_runs_that_differ_in_their_seed_are_averaged(other: dict[str, object]) -> None:
    second = run(seed=1)
    changed = replace(second, settings=replace(second.settings, **other))
    with pytest.raises(ValueError, match="runs of np on relu networks \\(original\\) differ in more than their seed"):
        by_model([run(), changed])
    with pytest.raises(ValueError, match=changed.settings.name):
        model_table("T", [run(), changed], VALUES)


def test_where_a_run_was_trained_is_no_difference() -> None:
    """A seed that was trained on a GPU, or with more threads, after the others is averaged with them."""
    elsewhere = [
        replace(one, settings=replace(one.settings, training=replace(one.settings.training, device="cuda", threads=8)))
        for one in [run(seed=1)]
    ]
    assert [len(group) for group in by_model([run(), *elsewhere]).values()] == [2]
    assert model_table("T", [run(), *elsewhere], VALUES).cells[0][-1] == "2"


def test_model_table() -> None:
    runs = [run(seed=0, accuracy=0.25), run(seed=1, accuracy=0.75), run("mlp", accuracy=0.125, under="nothing")]
    table = model_table("T", runs, VALUES, digits=2, notes=("N.",))
    assert table.header == ("model", "sees", "invariant", "accuracy", "params", "s/epoch", "peak MiB", "seeds")
    assert table.cells == (
        ("NP", "weights", "yes", "0.50 ±0.25", "0.01M", "1.5", "4", "2"),
        ("MLP", "weights", "no", "0.12", "0.01M", "1", "3", "1"),
    )
    assert (table.bold, table.notes, table.text_columns) == ({0}, ("N.", COLUMNS), 3)
    gone = [replace(one, diverged=True) for one in runs]
    assert "ended the training early: NP, MLP." in model_table("T", gone, VALUES).notes[-1]


def test_record_of_runs() -> None:
    runs = [run(model, seed, subject=s) for s in ("relu", "tanh") for model in ("np", "mlp") for seed in (0, 1)]
    runs[0] = replace(runs[0], environment={"cores": 3})
    record = record_of(runs)
    assert [(s["subject"], s["model"], s["seed"]) for s in record["settings"]] == [
        (subject, model, 0) for subject in ("relu", "tanh") for model in ("np", "mlp")
    ], "one for all seeds"
    assert record["networks"] == {name: {"train": 5, "val": 6, "test": 7} for name in ("relu", "tanh")}
    assert record["environments"] == [{"cores": 3}, {"cores": 2}]
    parts = [made_up_run(options={"train_networks": n}, networks={"train": n}) for n in (20, 50)]
    assert record_of(parts)["networks"] == {"20 relu": {"train": 20}, "50 relu": {"train": 50}}
    with pytest.raises(ValueError, match="no finished runs"):
        record_of([])
    infinite = replace(runs[0], history=({"train_loss": math.nan, "x": [math.inf, 1]},))
    assert Run.from_json(infinite.to_json()).history == ({"train_loss": None, "x": [None, 1]},)


def test_files_of_a_report(tmp_path: Path) -> None:
    table = Table("T", ("model", "tau"), (("NP", "0.1"),), notes=("N.",))
    report = Report([table, replace(table, title="U")], {"rows": [1]}, {"a.png": panels(1, 1, (3.0, 2.0))[0]}, "Above.")
    paths = report.write(tmp_path / "new" / "deep")
    assert [path.name for path in paths] == ["table.md", "results.json", "a.png"]
    assert paths[0].read_text() == f"Above.\n\n{table.markdown()}\n{replace(table, title='U').markdown()}"
    assert json.loads(paths[1].read_text(encoding="utf-8")) == {"rows": [1]}
    assert {path.name for path in paths[0].parent.iterdir()} == {path.name for path in paths}


def test_learning_curves_are_means_over_seeds_as_long_as_the_shortest_run() -> None:
    runs = [run(model, seed) for model in ("np", "mlp") for seed in (0, 1)]
    runs[1] = replace(runs[1], history=({"train_loss": 3.0, "metrics": {"accuracy": 1.0}},) * 2)
    figure = draw_learning(runs, {"loss": lambda epoch: epoch["train_loss"]}, ("chance", 0.25))
    lines = {line.get_label(): line for line in figure.axes[0].get_lines()}
    named = {label: line.get_ydata() for label, line in lines.items()}
    batches = {5: 1, 20: 3}  # of 8 networks
    for count, steps in batches.items():
        longer = [replace(one, networks={"train": count}) for one in runs]
        drawn = draw_learning(longer, {"loss": lambda epoch: epoch["train_loss"]}).axes[0].get_lines()
        assert list(next(line for line in drawn if line.get_label() == "MLP").get_xdata()) == [
            steps, 2 * steps, 3 * steps,
        ]  # fmt: skip
    assert list(named["NP"]) == pytest.approx([(1 + 3) / 2, (1 / 2 + 3) / 2])
    assert list(named["MLP"]) == pytest.approx([1, 1 / 2, 1 / 3])
    assert named["chance"] == [0.25, 0.25]


def test_figures_show_six_models_three_of_each_kind_and_the_papers_own() -> None:
    both = {f"{kind}{i}": (i / 10, kind == "a") for i in range(5) for kind in ("a", "b")}
    assert headline(both) == ["a2", "b2", "a3", "b3", "a4", "b4"]
    few = {**{f"a{i}": (i / 10, True) for i in range(8)}, "b": (0.0, False)}
    assert headline(few) == ["a3", "a4", "a5", "a6", "a7", "b"], "where one kind has too few, the other has more"
    own = {**both, "monomial": (-1.0, True)}
    assert headline(own) == ["b2", "a3", "b3", "a4", "b4", "monomial"]
    assert headline({name: both[name] for name in ("a0", "b4")}) == ["a0", "b4"]
    seven = {f"a{i}": (i / 10, True) for i in range(7)}
    assert headline(seven) == [f"a{i}" for i in range(1, 7)]
