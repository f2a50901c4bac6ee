"""The README's Python runs as printed, its commands exist, and the files it shows are there."""

import json
import re
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def test_there_are_examples():
    assert len(BLOCKS) >= 3


@pytest.mark.parametrize("code", BLOCKS, ids=[block.strip().splitlines()[-1][:40] for block in BLOCKS])
def test_examples_run(code):
    torch.manual_seed(0)
    exec(compile(code, "README.md", "exec"), {"__name__": "readme"})


def test_files_that_are_shown_or_linked_exist():
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", README)
    missing = [link for link in links if not (ROOT / link).exists()]
    assert not missing


def test_results_are_those_of_the_results_folder():
    """Rows of the README's result table stand in the committed table, word for word."""
    table = (ROOT / "benchmarks/results/demo/table.md").read_text(encoding="utf-8").splitlines()
    section = README.split("## What it does, in one picture")[1].split("## Install")[0]
    rows = [line for line in section.splitlines() if line.startswith("|")]
    assert len(rows) > 10
    assert not [row for row in rows if row not in table]


def test_other_results_are_those_of_their_folders():
    """Every tau in the tables past the paper stands in the results of that model, to the digits shown."""
    known: dict[str, set[str]] = {}
    for folder in ("predict500", "predict500-graphs", "predict5000", "mixed"):
        results = json.loads((ROOT / "benchmarks/results" / folder / "results.json").read_text(encoding="utf-8"))
        for row in results["rows"]:
            taus = row["tau"].values()
            shown = {f"{t['mean']:.3f}" + ("" if t["std"] is None else f" ±{t['std']:.3f}") for t in taus}
            known.setdefault(row["label"], set()).update(shown)
    section = README.split("### Past the paper")[1].split("### Speed")[0]
    rows = [[c.strip() for c in line.strip("|").split("|")] for line in section.splitlines() if line.startswith("|")]
    taus = [(row[0], cell) for row in rows if row[0] in known for cell in row if re.match(r"-?0\.\d{3}( |$)", cell)]
    assert len(taus) > 50
    assert not [(label, cell) for label, cell in taus if cell not in known[label]]


def test_tables_of_the_other_experiments_are_those_of_their_folders():
    """Word for word."""
    folders = ("classify-inr", "edit-dilate", "edit-contrast")
    tables = "\n".join((ROOT / "benchmarks/results" / name / "table.md").read_text("utf-8") for name in folders)
    section = README.split("### The paper's other experiments")[1].split("### Speed")[0]
    rows = [line for line in section.splitlines() if line.startswith("|")]
    assert len(rows) > 30
    assert not [row for row in rows if row not in tables.splitlines()]
