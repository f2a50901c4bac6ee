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
        models = [match[1] for of, text in held if of == activation and (match := claim.match(text))]
        return " and ".join(", ".join(models).rsplit(", ", 1))

    assert verdicts["relu", "Monomial-NFN is as good as HNP on networks as they are"] == "does not hold"
    assert (
        f"With 500 the paper's model is, by these recipes and on average, ahead of {below('tanh', 'as they are')} on "
        f"tanh networks, of {below('relu', 'with scales up to 1e4')} on scaled ReLU networks, "
        "behind HNP on ReLU networks as they are."
    ) in " ".join(TEXT.split())
    place = near.header.index("mean")
    weights = {
        tables.plain(row[0]): float(row[place].split()[0]) for row in near.rows if row[1:3] == ("weights", "yes")
    }
    assert max(weights, key=lambda model: weights[model]) == "statistics + Gram matrices"


def test_words_on_5000_networks_are_those_of_the_results() -> None:
    many = tables.read_tables((ROOT / "benchmarks/results/zoos-5000/table.md").read_text(encoding="utf-8"))
    files = ("docs/results.md", "docs/which-model.md", "benchmarks/results/zoos-5000/README.md")
    results, which, page = (" ".join((ROOT / name).read_text(encoding="utf-8").split()) for name in files)
    text = " ".join(TEXT.split())
    grams, passing, probes = "statistics + Gram matrices", "message passing + stats", "probes + stats"

    def rows(title: str, test: str = "as they are") -> dict[str, dict[str, str]]:
        (table,) = (table for table in many if title in table.above and f"test networks {test}" in table.above)
        return {tables.plain(row[0]): dict(zip(table.header, row, strict=True)) for row in table.rows}

    def interval(cell: str) -> tuple[float, float, float]:
        middle, low, high = (float(number) for number in re.findall(r"[-+]\d\.\d+", cell))
        return middle, low, high

    taus, moved = (rows("Kendall's tau", test) for test in ("as they are", "moved"))
    ahead = rows("Ahead of the best baseline")
    zoos = [name for name in ahead[grams] if "-" in name]
    assert len(zoos) == 6
    relu = [zoo for zoo in zoos if zoo.startswith("relu")]
    best = {zoo: max((m for m in taus if m not in ahead), key=lambda m: taus[m][zoo]) for zoo in zoos}
    hybrid = {zoo: model for zoo, model in best.items() if model != "GNN"}
    assert hybrid == {"tanh-wide": "Monomial-HNP", "tanh-deep": "Monomial-HNP"}

    means = {model: taus[model]["mean"].split()[0] for model in (grams, passing, "GNN")}
    scaled = [f"{moved['GNN'][zoo]} on {zoo}" for zoo in relu]
    assert (
        f"on average, Gram matrices have {means[grams]}, message passing with statistics {means[passing]}, "
        f"the GNN {means['GNN']}. The first two are told from the best baseline on no zoo, nor on average; it is the "
        f"GNN, on tanh-wide and tanh-deep the paper's hybrid. Scaled, the GNN has {', '.join(scaled)}."
    ) in results
    for model in (grams, passing):
        for zoo in (*zoos, "mean"):
            _, low, high = interval(ahead[model][zoo])
            assert low < 0 < high, (model, zoo)
    middle, low, high = interval(ahead[grams]["mean"])
    assert middle > 0
    more, bounds = f"{middle:.3f}", f"({low:.3f} to {high:.3f})"
    assert high > 0.01, "whether the aim is met cannot be told"
    assert f"With 5,000 networks they have {more} more {bounds} than the best baseline of each" in results
    assert f"0.01 ahead on average cannot be told {bounds}" in results
    assert f"Gram matrices have {more} more than the best baseline of each zoo {bounds}" in page
    linked = "[the best baseline of each of six zoos](../benchmarks/results/zoos-5000/README.md)"
    assert f"`gram-stats` has {more} more {bounds} than {linked} on average" in which
    linked = "[with 5,000 networks](benchmarks/results/zoos-5000/README.md)"
    assert f"{linked} they have {more} more {bounds}, which cannot be told from nothing" in text
    taken = (", ".join(moved[model][zoo].split()[0] for zoo in relu) for model in ("GNN", grams))
    fallen, kept = (" and ".join(numbers.rsplit(", ", 1)) for numbers in taken)
    assert f"{fallen} against its {kept} when the ReLU" in which
    assert f"scaled, the GNN has {fallen} on the ReLU ones" in text
    cell = rows("Running networks")[probes]["mean"]
    assert results.count(cell.replace("+", "")) == 2
    _, low, high = interval(cell)
    assert 0 < low < high < 0.04, "the aim is missed"
