"""The table of commands that committed results are made by, and the script that runs them."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import check
from made_up_runs import made_up_run
from scripts import script

from nfn_monomial.benchmarks.experiments import EXPERIMENTS
from nfn_monomial.benchmarks.report.beside import beside_paper
from nfn_monomial.benchmarks.studies.predict import scores
from nfn_monomial.benchmarks.train.runs import RunSettings, RunStore

remake = script("remake")
COMMITTED = Path(__file__).parents[2] / "benchmarks" / "results"
COMMANDS, DATA = (
    {name: entry["command"] for name, entry in remake.COMMANDS["results"].items()},
    remake.COMMANDS["data"],
)


def test_every_committed_folder_has_a_command() -> None:
    there = {path.parent.name for path in COMMITTED.glob("*/table.md")}
    assert {path.parent.name for path in COMMITTED.glob("*/made.json")} == there == set(COMMANDS)
    assert set(DATA) <= {folder for command in COMMANDS.values() for folder in remake.data_of(command)}


@pytest.mark.parametrize("command", [*COMMANDS.values(), *DATA.values()])
def test_commands_presets_settings_and_models_are_there(command: str) -> None:
    ((name, config),) = check(command)
    if name in EXPERIMENTS:
        EXPERIMENTS[name].load().check(config)
    else:
        assert name in ("make", "demo")


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_committed_tables_were_made_by_these_commands(name: str) -> None:
    made = json.loads((COMMITTED / name / "made.json").read_text(encoding="utf-8"))
    assert check(made["command"]) == check(COMMANDS[name])


KEPT = [path.parent for path in sorted(COMMITTED.glob(f"*/{remake.ANSWERS}"))]


@pytest.mark.parametrize("folder", KEPT, ids=[folder.name for folder in KEPT])
def test_numbers_are_those_of_the_answers_that_were_kept(folder: Path) -> None:
    store = remake.Answers(folder)
    assert len(store.runs) == len(remake.results(folder)["runs"]) > 0
    for run in store.runs:
        answers = store.artifacts(run.settings)
        for test in run.tests:
            tau = scores(answers[f"{test.name}: answers"], answers[f"{test.name}: true"])["tau"]
            assert tau == pytest.approx(test.metrics["tau"], abs=1e-9)


@pytest.mark.slow  # intervals of all differences, which tests of reports count on fewer networks
@pytest.mark.parametrize("folder", KEPT, ids=[folder.name for folder in KEPT])
def test_tables_are_told_anew_from_the_answers_that_were_kept(folder: Path) -> None:
    ((name, config),) = check(COMMANDS[folder.name])
    study, store = EXPERIMENTS[name].load(), remake.Answers(folder)
    report = study.tables(store.runs, config, store)
    report = beside_paper(report, EXPERIMENTS[name].key, study.kept(store.runs, store))
    assert report.markdown == (folder / "table.md").read_text(encoding="utf-8")


def test_answers_are_kept_with_a_table(tmp_path: Path) -> None:
    """All of them, and true values once for all runs of the same networks; others are not taken for these."""
    (source, target), true = (tmp_path / name for name in ("made", "committed")), torch.rand(7)
    runs = [
        made_up_run(seed=seed, networks={"train": 3, "val": 1, "test": 7}, options={"train_networks": 3})
        for seed in (0, 1)
    ]
    for run in runs:
        artifacts = {"original: answers": torch.rand(7), "original: true": true}
        RunStore(source).save(run, {"weight": torch.ones(1)}, artifacts, {})
    (source / "table.md").write_text("| a |\n", encoding="utf-8")
    results = {"runs": [run.settings.name for run in runs], "networks": {"3 relu": runs[0].networks | {"pool": 9}}}
    (source / "results.json").write_text(json.dumps(results), encoding="utf-8")
    (target / remake.ANSWERS).parent.mkdir()
    (target / remake.ANSWERS).touch()
    remake.copy(source, target, "nfn-monomial params")
    assert not (target / remake.ANSWERS).exists(), "of an earlier table"
    remake.copy(source, target, "nfn-monomial ablation")
    store = remake.Answers(target)
    assert [run.to_json() for run in store.runs] == [
        run.to_json() | {"networks": {**run.networks, "pool": 9}} for run in runs
    ]
    for run in runs:
        made, kept = (of.artifacts(run.settings) for of in (RunStore(source), store))
        assert sorted(kept) == ["original: answers", "original: true"]
        assert all(torch.equal(made[name], kept[name]) for name in kept)
    assert (target / remake.ANSWERS).read_bytes().count(true.numpy().tobytes()) == 1
    before = {path.name: path.read_bytes() for path in target.iterdir()}
    (source / "table.md").write_text("| b |\n", encoding="utf-8")
    RunStore(source).save(
        runs[1], {"weight": torch.ones(1)}, {"original: answers": true, "original: true": true.flip(0)}, {}
    )
    with pytest.raises(SystemExit, match="was tested on other networks than another run of relu/original: true"):
        remake.copy(source, target, "nfn-monomial ablation")
    RunStore(source).run_file(runs[0].settings).unlink()
    with pytest.raises(SystemExit, match="is missing: the same command makes it again"):
        remake.copy(source, target, "nfn-monomial ablation")
    assert {path.name: path.read_bytes() for path in target.iterdir()} == before


def test_answers_are_found_after_a_setting_was_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The names of runs are hashes of their settings: those of before are in the file."""
    store = remake.Answers(KEPT[0])
    before = store.artifacts(store.runs[0].settings)
    hashed = RunSettings.name.fget  # type: ignore[attr-defined]
    monkeypatch.setattr(RunSettings, "name", property(lambda settings: f"{hashed(settings)}-and-more"))
    again = remake.Answers(KEPT[0])
    after = again.artifacts(again.runs[0].settings)
    assert again.runs[0].settings.name.endswith("-and-more")
    assert sorted(before) == sorted(after)
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_preset_brings_its_data() -> None:
    zoos = remake.data_of("nfn-monomial predict-generalization --preset zoos")
    assert len(zoos) == 6
    for folder, command in zoos.items():
        assert command.endswith(f" --out {folder}")
        assert check(command)[0][0] == "make"
    assert list(remake.data_of("nfn-monomial tune --data zoos/tuning --preset small")) == ["zoos/tuning"]
    assert remake.data_of("nfn-monomial params") == {}
    both = "nfn-monomial tune --data zoos/tuning --data zoos/digits"
    assert list(remake.data_of(both)) == ["zoos/tuning", "zoos/digits"]
    one = "nfn-monomial predict-generalization --preset zoos-5000 --data zoos/large/relu-deep"
    (command,) = remake.data_of(one).values()
    assert "--networks 9000" in command


def test_data_are_made_where_their_commands_are_asked_for() -> None:
    for folder, command in DATA.items():
        default = {"zoo": "zoos/digits", "inr": f"inrs/{folder.removeprefix('inrs/')}"}[command.split()[1]]
        assert command.endswith(f" --out {folder}") or folder == default


class Calls:
    """Commands that were called; they leave a table."""

    def __init__(self) -> None:
        self.commands: list[list[str]] = []
        self.fails = ""

    def run(self, command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        words = command[3:]
        self.commands.append(words)
        if "--out" in words and words[-1].startswith("results"):
            Path(words[-1]).mkdir(parents=True, exist_ok=True)
            (Path(words[-1]) / "table.md").write_text("| a |\n", encoding="utf-8")
        return subprocess.CompletedProcess(command, 3 if words[0] == self.fails else 0, "", "")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Calls:
    remake.environment("cpu")  # which asks git, once
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(remake, "COMMITTED", tmp_path / "kept")
    found = Calls()
    monkeypatch.setattr(remake.subprocess, "run", found.run)
    return found


def test_cheap_ones_and_data_come_first_and_tables_are_copied(calls: Calls, capsys: pytest.CaptureFixture[str]) -> None:
    remake.main("ablation,params")
    command = "nfn-monomial ablation --data zoos/six/relu-wide --seeds 3"
    assert calls.commands == [
        ["params", "--out", "results/params"], shlex.split(DATA["zoos/six/relu-wide"])[1:],
        [*command.split()[1:], "--out", "results/ablation"],
    ]  # fmt: skip
    assert "2 folders" in capsys.readouterr().out
    made = json.loads(Path("kept/ablation/made.json").read_text(encoding="utf-8"))
    assert made["command"] == command
    assert made["commits"] == [remake.environment("cpu")["commit"]]
    assert Path("kept/ablation/table.md").read_text(encoding="utf-8") == "| a |\n"


def test_a_copy_leaves_nothing_of_the_one_before(tmp_path: Path) -> None:
    """And says which commits its runs are of, not that of the copy."""
    (old, new) = (tmp_path / name for name in ("old", "new"))
    for folder, files in ((old, ("table.md", "README.md", "figure1.png", "recipe.json")), (new, ("table.md", "a.png"))):
        folder.mkdir()
        for name in files:
            (folder / name).write_text(folder.name, encoding="utf-8")
    made = {"environments": [{"commit": "0123"}, {"commit": "4567+"}, {"commit": None}]}
    (new / "results.json").write_text(json.dumps(made), encoding="utf-8")
    remake.copy(new, old, "nfn-monomial params")
    there = {path.name for path in old.iterdir()}
    assert there == {"README.md", "table.md", "a.png", "results.json", "made.json"}
    assert (old / "table.md").read_text(encoding="utf-8") == "new"
    assert json.loads((old / "made.json").read_text(encoding="utf-8"))["commits"] == ["0123", "4567+"]


def test_what_was_made_on_a_gpu_is_left_out_without_one(
    calls: Calls, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = {"minutes": 2, "command": "nfn-monomial cost --device cuda"}
    monkeypatch.setitem(remake.COMMANDS["results"], "cost-gpu", entry)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    remake.main("cost-gpu")
    assert "cost-gpu: left out, as no GPU was found" in capsys.readouterr().out
    assert calls.commands == []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    remake.main("cost-gpu")
    assert [command[0] for command in calls.commands] == ["cost"]


def test_a_command_that_fails_ends_it(calls: Calls) -> None:
    calls.fails = "params"
    with pytest.raises(SystemExit) as end:
        remake.main("params,ablation")
    assert end.value.code == 3
    assert not Path("kept").exists()


def test_unknown_names(calls: Calls) -> None:
    with pytest.raises(
        SystemExit, match="unknown results nothing: choose from params, inrs, demo, cost, ratios, ablation,"
    ):
        remake.main("nothing")
    assert calls.commands == []
