"""The README's Python runs as printed, its commands exist, and the files it shows are there."""

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
