"""`results`: what is made again, by which commands, and where it goes."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from invoking import said

from nfn_monomial.benchmarks.cli import results as module
from nfn_monomial.benchmarks.experiments import DATA

ROOT = Path(__file__).parents[3]
COMMITTED = ROOT / "benchmarks" / "results"
GONE = {"newest", "planted", "processes", "scaling", "streaming", "verdicts"}
"""Tables of what is no longer in the package: docs/results.md says at which commit it was."""


class Calls:
    """Commands that were called; they leave a table."""

    def __init__(self) -> None:
        self.commands: list[list[str]] = []

    def run(self, command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        if command[0] == "git":
            return subprocess.CompletedProcess(command, 0, "3\n", "")
        words = command[3:]
        self.commands.append(words)
        if "results" in words[-1]:
            Path(words[-1]).mkdir(parents=True, exist_ok=True)
            (Path(words[-1]) / "table.md").write_text("| a |\n", encoding="utf-8")
        return subprocess.CompletedProcess(command, 0, "", "")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Calls:
    monkeypatch.chdir(tmp_path)
    found = Calls()
    monkeypatch.setattr(module.subprocess, "run", found.run)
    return found


def test_every_committed_table_is_made_again() -> None:
    there = {path.parent.name for path in COMMITTED.glob("*/table.md")}
    assert {path.parent.name for path in COMMITTED.glob("*/made.json")} == there
    assert {entry.folder for entry in module.reruns()} == there - GONE
    assert {entry.data for entry in module.reruns()} <= {*DATA, ""}


@pytest.mark.parametrize("command", [*(entry.command for entry in module.reruns()), *DATA.values()])
def test_commands_and_their_options_are_there(command: str) -> None:
    words = shlex.split(command)
    at = next((i for i, word in enumerate(words) if word.startswith("-")), len(words))
    text = said(*words[:at], "--help")
    assert [word for word in words[at:] if word.startswith("--") and word not in text] == []


def test_data_come_first_and_tables_are_copied(calls: Calls) -> None:
    text = said("results", "--only", "params,ablation", "--into", "kept")
    assert calls.commands == [
        ["params", "--out", "results/params"], ["zoo", "make"],
        ["ablation", "--data", "zoos/digits", "--out", "results/ablation"],
    ]  # fmt: skip
    assert "2 folders" in text
    made = json.loads(Path("kept/ablation/made.json").read_text(encoding="utf-8"))
    assert made["command"] == "nfn-monomial ablation --data zoos/digits"
    assert Path("kept/ablation/table.md").read_text(encoding="utf-8") == "| a |\n"
    assert "3 commits" in said("results", "--list", "--only", "params", "--into", "kept")


def test_what_was_made_on_a_gpu_is_left_out_without_one(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "cost-gpu: left out, as no GPU was found" in said("results", "--only", "cost-gpu", "--into", "kept")
    assert calls.commands == []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    said("results", "--only", "cost-gpu")
    assert [command[0] for command in calls.commands] == ["cost"]


def test_unknown_names(calls: Calls) -> None:
    assert "unknown results nothing: choose from params, cost-gpu," in said("results", "--only", "nothing", code=2)
    assert calls.commands == []
