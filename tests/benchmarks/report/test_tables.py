"""Tables of results: means over seeds, what may be averaged, and the same cells in Markdown and on the terminal."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_up_runs import made_up_run
from rich.console import Console

from nfn_monomial.benchmarks.report.tables import COLUMNS, Mean, by_model, count, model_table, over
from nfn_monomial.benchmarks.settings.training import TrainConfig
from nfn_monomial.benchmarks.train.runs import Run
from nfn_monomial.tools.report import Table, fit_cells

NUMBERS = st.floats(-1e6, 1e6)
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
    assert Mean.of([0.5]) == Mean(0.5, None)
    assert Mean.of([0.5]).show() == "0.500", "one seed has no error"
    found = Mean.of(iter([1.0, 2.0, 3.0]))
    assert found.mean == 2
    assert found.error == pytest.approx(3**-0.5)  # not the standard deviation, which is 1
    assert found.show(2) == "2.00 ±0.58"
    assert Mean.of([0.25, 0.25]).show(1) == "0.2 ±0.0"

    assert (over(1), over(1, "pair")) == ("one seed", "one pair")
    assert over(4, "pair") == "mean ± standard error over pairs (4)"


@given(st.lists(NUMBERS, min_size=2, max_size=8), NUMBERS, st.floats(0.1, 10))
def test_mean_moves_with_its_values(values: list[float], shift: float, scale: float) -> None:
    found, moved = Mean.of(values), Mean.of(scale * v + shift for v in values)
    size = max(map(abs, (*values, shift))) * scale + 1
    assert found.error is not None
    assert moved.error is not None
    assert moved.mean == pytest.approx(scale * found.mean + shift, rel=1e-10, abs=1e-9 * size)
    assert moved.error == pytest.approx(scale * found.error, rel=1e-6, abs=1e-9 * size)
    assert Mean.of(values[::-1]).mean == found.mean  # exact sums: to the last bit


def test_markdown() -> None:
    table = Table("T", ("model", "tau", "R2"), (("NP", "0.1", "0.2"), ("HNP", "-", "3")), notes=("One.", "Two."))
    assert table.markdown() == (
        "**T**\n\n| model | tau | R2 |\n| --- | ---: | ---: |\n| NP | 0.1 | 0.2 |\n| HNP | - | 3 |\n\nOne.\n\nTwo.\n"
    )
    assert "| --- | --- | ---: |" in replace(table, text_columns=2).markdown()


def test_a_line_too_short_is_refused() -> None:
    with pytest.raises(ValueError, match="a line of 1 cells under 2 columns: \\('x',\\)"):
        Table("T", ("a", "b"), (("1", "2"), ("x",)))


def test_terminal_has_the_same_cells() -> None:
    table = Table("T", ("model", "tau"), (("NP", "0.123"), ("Monomial", "0.5")), bold=frozenset({1}), notes=("Note.",))
    text = shown(table, 80)
    assert text.splitlines()[0].strip() == "T"
    assert text.splitlines()[-1].strip() == "Note."
    lines = {line.split()[0]: line.rstrip() for line in text.splitlines() if line.split()}
    assert lines["NP"].endswith("0.123")
    assert len(lines["NP"]) == len(lines["Monomial"])  # numbers are flush right
    assert [str(row.style) for row in table.rich().rows] == ["None", "bold"]


def test_fit_cells() -> None:
    lines = [["model", "what it is"], ["a b", "words words words"]]
    assert fit_cells(lines, 80) is lines
    narrow = fit_cells(lines, 15)
    assert [[cell.split() for cell in line] for line in narrow] == [[cell.split() for cell in line] for line in lines]
    assert max(len(part) for cell in (line[1] for line in narrow) for part in cell.split("\n")) < 10
    assert fit_cells([["model"], ["x-y-z " * 4]], 10)[1][0].split() == ["x-y-z"] * 4  # words stay whole


@given(st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=5), st.integers(1, 40))
def test_fit_cells_loses_no_word(lines: list[tuple[str, str]], width: int) -> None:
    fitted = fit_cells([list(line) for line in lines], width)
    assert [[cell.split() for cell in line] for line in fitted] == [[cell.split() for cell in line] for line in lines]


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


def test_a_table_that_fits_is_one_part() -> None:
    table = Table("T", ("model", "tau"), (("NP", "0.1"),), notes=("N.",))
    assert table.parts(80) == [table]


def test_by_model() -> None:
    runs = [run("np"), run("hnp"), run("np", 1), run("np", subject="tanh")]
    groups = by_model(runs)
    assert list(groups) == [("relu", "original", "np"), ("relu", "original", "hnp"), ("tanh", "original", "np")]
    assert [len(group) for group in groups.values()] == [2, 1, 1]


@pytest.mark.parametrize(
    "other",
    [{"loss": "mse"}, {"data": "other"}, {"options": {"widen": 2}}, {"training": TrainConfig(4)}, {"version": "1"}],
)
def test_only_runs_that_differ_in_their_seed_are_averaged(other: dict[str, object]) -> None:
    second = run(seed=1)
    changed = replace(second, settings=replace(second.settings, **other))
    with pytest.raises(ValueError, match="runs of np on relu networks \\(original\\) differ in more than their seed"):
        by_model([run(), changed])
    with pytest.raises(ValueError, match=changed.settings.name):
        model_table("T", [run(), changed], VALUES)


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


def test_model_table_of_several_sets_of_networks_names_them() -> None:
    table = model_table("T", [run(), run(subject="tanh", under="permutations")], VALUES)
    assert table.header[:5] == ("model", "sees", "invariant", "networks", "trained on")
    assert [line[2:5] for line in table.cells] == [("yes", "relu", "original"), ("perm. only", "tanh", "original")]
    assert table.text_columns == 5
    assert "| --- | --- | --- | --- | --- | ---: |" in table.markdown()


@pytest.mark.parametrize(("n", "text"), [(0, "0"), (9_999, "9999"), (10_000, "0.01M"), (2_150_000, "2.15M")])
def test_count(n: int, text: str) -> None:
    assert count(n) == text
