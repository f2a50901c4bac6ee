"""The README, followed from an empty folder: its file is saved, its commands run, and they print what it shows."""

import contextlib
import io
import os
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scripts import script
from typer.testing import CliRunner

from nfn_monomial.tools.cli.application import app

tables = script("tables")
ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(python|sh|text)\n(.*?)^```$", TEXT, flags=re.DOTALL | re.MULTILINE)
SETTINGS = {"COLUMNS": "110", "NO_COLOR": "1"}
NUMBER = re.compile(r"\b\d+(\.\d+)?(e[-+]?\d+)?\b")


def without_numbers(text: str) -> list[str]:
    """The lines of a text but for what machines round in other ways: digits, and the widths of columns."""
    return [" ".join(NUMBER.sub("#", line).split()) for line in text.splitlines() if line.strip("─ ")]


def in_this_process(commands: str) -> str:
    """Runs the lines of a block where torch is imported already; returns what they print."""
    printed = io.StringIO()
    for program, *words in (shlex.split(line) for line in commands.splitlines()):
        if program == "python":
            with contextlib.redirect_stdout(printed):
                runpy.run_path(words[0], run_name="__main__")
            sys.modules.pop("net", None)
        else:
            done = CliRunner(env=SETTINGS).invoke(app, words)
            assert not done.exit_code, done.output
            printed.write(done.stdout)
    return printed.getvalue()


def in_a_shell(commands: str) -> str:
    """Runs them as a user does, with the programs of this environment."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    return subprocess.check_output(["sh", "-ec", commands], env={**os.environ, **SETTINGS, "PATH": path}, text=True)


@pytest.mark.parametrize("run", [in_this_process, pytest.param(in_a_shell, marks=pytest.mark.slow)])
def test_all_of_it_runs_in_an_empty_folder(
    run: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("net.py").write_text(next(code for language, code in BLOCKS if language == "python"))
    printed = ""
    for language, block in BLOCKS[2:]:  # after the line that installs, and the file
        if language == "sh":
            printed = run(block)
        elif language == "text":
            lines = iter(without_numbers(printed))
            assert [line for line in without_numbers(block) if line not in lines] == [], printed
            if "barrier" in block:
                rows = ("as they are", "all symmetries")
                naive, moved = (float(re.search(rf"^{row}.* (\S+)$", printed, re.MULTILINE)[1]) for row in rows)
                assert naive + 0.05 < moved > 0.9
        else:
            Path("ten_lines.py").write_text(f"import torch\n\ntorch.manual_seed(0)\n{block}")
            a, b, c = map(float, re.findall(r"-?\d\.\d+", run("python ten_lines.py")))
            assert a == pytest.approx(c, abs=2e-4)
            assert a != pytest.approx(b, abs=5e-4)


def test_it_is_short_and_in_order() -> None:
    assert len(tables.BLOCK.sub("", TEXT).replace("\n\n\n", "\n").splitlines()) <= 140, "but for its table"
    assert [language for language, _ in BLOCKS] == ["sh", "python", *["sh", "text"] * 3, "python"]
    assert BLOCKS[0][1].startswith("pip install ")
    assert "Save this as `net.py`" in TEXT


def test_words_about_the_paper_are_those_of_the_results() -> None:
    near, ahead, running, *rest = tables.read_tables(
        (ROOT / "benchmarks/results/zoos/table.md").read_text(encoding="utf-8")
    )
    cells = {row[0]: dict(zip(ahead.header, row, strict=True)) for row in ahead.rows}
    best = cells["statistics + Gram matrices"]["mean"].replace("+", "")
    assert best in TEXT.split("## The paper")[1]
    results = (ROOT / "docs/results.md").read_text(encoding="utf-8")
    (row,) = running.rows
    assert row[-1].replace("+", "") in results

    (claims,) = (table for table in rest if "Claims" in table.above)
    verdicts = {(of.split()[0], claim): verdict for of, claim, _, _, verdict, _ in claims.rows}
    held = [key for key, verdict in verdicts.items() if verdict == "holds"]

    def below(activation: str, networks: str) -> str:
        claim = re.compile(rf"Monomial-NFN is above (\w+) on networks {networks}$")
        return " and ".join(match[1] for of, text in held if of == activation and (match := claim.match(text)))

    assert verdicts["relu", "Monomial-NFN is as good as HNP on networks as they are"] == "does not hold"
    assert (
        f"The paper's model is, by these recipes, ahead of {below('tanh', 'as they are')} on tanh networks, of "
        f"{below('relu', 'with scales up to 1e4')} on scaled ReLU networks, behind HNP on ReLU networks as they are."
    ) in " ".join(TEXT.split())
    place = near.header.index("mean")
    weights = {
        tables.plain(row[0]): float(row[place].split()[0]) for row in near.rows if row[1:3] == ("weights", "yes")
    }
    assert max(weights, key=lambda model: weights[model]) == "statistics + Gram matrices"


def test_words_on_5000_networks_are_those_of_the_results() -> None:
    folder = ROOT / "benchmarks/results"
    names = ("zoos-5000", "relu-deep-5000", "zoos-5000-all")
    many, deep, both = (tables.read_tables((folder / name / "table.md").read_text(encoding="utf-8")) for name in names)
    files = ("docs/results.md", "docs/which-model.md", "benchmarks/results/zoos-5000/README.md")
    results, which, six = (" ".join((ROOT / name).read_text(encoding="utf-8").split()) for name in files)
    zoos = ((deep, "relu"), (both, "relu-mnist"), (both, "tanh-mnist"))
    grams, passing = "statistics + Gram matrices", "message passing + stats"

    def rows(of: Any, title: str, test: str = "as they are") -> dict[str, dict[str, str]]:
        (table,) = (table for table in of if title in table.above and f"test networks {test}" in table.above)
        return {tables.plain(row[0]): dict(zip(table.header, row, strict=True)) for row in table.rows}

    def interval(cell: str) -> tuple[float, float, float]:
        middle, low, high = (float(number) for number in re.findall(r"[-+]\d\.\d+", cell))
        return middle, low, high

    ahead = rows(many, "Ahead of the best baseline")[grams]["mean"].replace("+", "")
    assert results.count(ahead) == 2, "where it is said what to take, and below its table"
    taus = [rows(one, "Kendall's tau") for one, _ in zoos]
    values = [
        tau[model][zoo].split()[0]
        for tau, (_, zoo) in zip(taus, zoos, strict=True)
        for model in ("GNN", grams, passing)
    ]
    moved = [rows(one, "Kendall's tau", "moved") for one, _ in zoos]
    scaled = [of["GNN"][zoo] for of, (_, zoo) in zip(moved, zoos, strict=True)]
    said = re.search(
        r"the GNN has (\S+), Gram matrices (\S+), message passing with statistics (\S+); on \[relu-mnist\]\S+ they "
        r"have (\S+), (\S+) and (\S+), on tanh-mnist (\S+), (\S+) and (\S+)\. Neither is told from the GNN\. "
        r"Scaled, the GNN has (\S+ \S+) on relu-deep, (\S+ \S+) on relu-mnist\. ",
        results,
    )
    assert said
    assert list(said.groups()) == values + scaled[:2]
    less = [interval(rows(one, "Ahead of the best baseline")[grams][zoo]) for one, zoo in zoos]
    assert all(low < middle < 0 < high for middle, low, high in less), "so pages say that it is not shown"
    for one, zoo in zoos:
        _, low, high = interval(rows(one, "Ahead of the best baseline")[passing][zoo])
        assert low < 0 < high, zoo
    first, second, third = (f"{-middle:.3f}" for middle, _, _ in less)
    bounds = [f"({-high:.3f} to {-low:.3f})" for _, low, high in less]
    assert (
        f"it has {first} more {bounds[0]}, {second} more {bounds[1]} and {third} more {bounds[2]}, as networks"
        in results
    )
    assert f"the GNN has {first} {bounds[0]}, {second} {bounds[1]} and {third} {bounds[2]} more than Gram" in six
    smallest, largest = min(first, second, third), max(first, second, third)
    assert f"{smallest} to {largest} as networks are, which cannot be told from nothing" in TEXT
    assert f"the GNN has {first} ([relu-deep]" in which
    assert f", {second} and {third} more ([relu-mnist and tanh-mnist]" in which
    fallen = [[of[model][zoo].split()[0] for of, (_, zoo) in zip(moved, zoos, strict=True)] for model in ("GNN", grams)]
    assert "{} and {} against {} and {} when the ReLU".format(*fallen[0][:2], *fallen[1][:2]) in which
    for of, missed in ((many, False), (both, True)):
        cell = rows(of, "Running networks")["probes + stats"]["mean"]
        assert results.count(cell.replace("+", "")) == 2
        _, low, high = interval(cell)
        assert 0 < low < 0.04
        assert (high < 0.04) == missed, "the aim, of which pages say so"
    numbers = ("no", "one", "two", "three", "four", "five", "six")
    slow, hybrid = (numbers[sum(model in tau for tau in taus)] for model in ("GNN", "Monomial-HNP"))
    assert f"were trained on {slow} zoos of six, NP and the hybrid on {hybrid}. " in results
    assert f"[more on the {slow} zoos]" in TEXT
    assert f"on the {slow} of these zoos where the GNN was trained" in results
