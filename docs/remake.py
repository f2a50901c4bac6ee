"""The committed results made again: ``make results``, or ``python docs/remake.py [NAME,NAME]`` for some of them.

Runs the commands of ``benchmarks/results/commands.toml`` from cheap to dear, each in a process of its own, and before
it the one that makes its data. They work in ``results/NAME``, where finished work is kept: after an interruption the
same call does only what is missing, and a folder that is finished takes seconds. Tables, figures and numbers are copied
to ``benchmarks/results/NAME``, and of predictions what the runs answered to their test networks, so that tables can be
told anew from there: see `Answers`. Commands that need a GPU are left out if there is none.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import tomllib
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nfn_monomial import __version__
from nfn_monomial.benchmarks.experiments import EXPERIMENTS
from nfn_monomial.benchmarks.train.runs import Run, RunSettings, RunStore, environment
from nfn_monomial.tools.files.atomic import write_atomically
from nfn_monomial.tools.files.sealed import read_sealed, seal
from nfn_monomial.tools.store import SUFFIX

COMMITTED = Path(__file__).parents[1] / "benchmarks" / "results"
COMMANDS = tomllib.loads((COMMITTED / "commands.toml").read_text(encoding="utf-8"))
WORK = Path("results")
ANSWERS = "answers.safetensors"
TOLD = ("predict-generalization", "ablation")  # tables of these can be told anew from answers
REPORTED = ("table.md", "results.json", "config.json", "recipe.json", "*.png")


def main(only: str = "") -> None:
    """Makes all committed results again, or those of these names."""
    known = dict(sorted(COMMANDS["results"].items(), key=lambda item: item[1]["minutes"]))
    names = [name.strip() for name in only.split(",") if name.strip()] or list(known)
    if unknown := [name for name in names if name not in known]:
        sys.exit(f"unknown results {', '.join(unknown)}: choose from {', '.join(known)}")
    chosen = {name: entry for name, entry in known.items() if name in names}
    print(
        f"{len(chosen)} folders, about {sum(e['minutes'] for e in chosen.values()) / 60:.1f} hours of one core in all"
    )
    for name, entry in chosen.items():
        if "--device cuda" in entry["command"] and not torch.cuda.is_available():
            print(f"{name}: left out, as no GPU was found")
            continue
        print(f"{name}: {entry['command']}", flush=True)
        for data in data_of(entry["command"]).values():
            run(data)
        run(entry["command"], "--out", str(WORK / name))
        copy(WORK / name, COMMITTED / name, entry["command"])


def data_of(command: str) -> dict[str, str]:
    """The folders of data that a command reads, which may be of its preset, and the commands that make them."""
    words = shlex.split(command)
    preset = words[words.index("--preset") + 1] if "--preset" in words else ""
    of_preset = EXPERIMENTS[words[1]].sets.get(preset, {}) if words[1] in EXPERIMENTS else {}
    known = {**COMMANDS["data"], **of_preset}
    named = [words[i + 1] for i, word in enumerate(words) if word == "--data"]
    return {folder: known[folder] for folder in named or of_preset}


def run(command: str, *more: str) -> None:
    """Runs a command line of ``nfn-monomial``; if it fails, ends with its code."""
    _, *words = shlex.split(command)
    done = subprocess.run([sys.executable, "-m", "nfn_monomial.benchmarks", *words, *more], check=False)
    if done.returncode:
        sys.exit(done.returncode)


def results(folder: Path) -> dict[str, Any]:
    """The numbers of a folder; none if it has no such file."""
    path = folder / "results.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def commits(folder: Path) -> list[str]:
    """The commits that the runs of a folder were made at, which may be older than its tables."""
    return [each["commit"] for each in results(folder).get("environments", []) if each["commit"]]


class Answers(RunStore):
    """The runs behind a committed table, and their answers: one file, without the models.

    With them the table can be told anew: ``study.tables(store.runs, config, store)``.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._tensors, stated = read_sealed(folder / ANSWERS)
        counts = results(folder)["networks"]
        self.runs: list[Run] = []
        self._called: dict[str, str] = {}  # in the file, as a run's name is another one once there are more settings
        for name, values in stated["runs"].items():
            run = Run.from_json(values)
            number, subject = run.settings.options.get("train_networks"), run.settings.subject
            self.runs.append(replace(run, networks=counts[f"{number} {subject}" if number else subject] | run.networks))
            self._called[run.settings.name] = name

    def artifacts(self, settings: RunSettings) -> dict[str, Tensor]:
        """The answers of a run, and the true values that they are compared with."""
        owners = (settings.subject, self._called[settings.name])
        return {
            name.removeprefix(f"{owner}/"): t.clone()
            for owner in owners for name, t in self._tensors.items() if name.startswith(f"{owner}/")
        }  # fmt: skip

    @staticmethod
    def of(folder: Path) -> bytes:
        """Makes the file for the runs of a folder: true values once for all runs of a subject, as these share them."""
        tensors: dict[str, Tensor] = {}
        runs = {}
        for name in results(folder)["runs"]:
            piece = folder / "runs" / f"{name}{SUFFIX}"
            if not piece.exists():
                sys.exit(f"{piece} is missing: the same command makes it again")
            own, stated = read_sealed(piece)
            runs[name] = stated["stated"]
            for what, t in own.items():
                true = what.endswith(": true")
                owner = f"{runs[name]['settings']['subject'] if true else name}/{what}"
                if true and owner in tensors and not torch.equal(tensors[owner], t):
                    sys.exit(f"{folder}: {name} was tested on other networks than another run of {owner}")
                tensors[owner] = t
        return seal(tensors, {"runs": runs})


def copy(source: Path, target: Path, command: str) -> None:
    """Copies the files that a page shows, in place of those of earlier ones, and writes down what made them."""
    told = shlex.split(command)[1] in TOLD and (source / "runs").is_dir()
    answers = Answers.of(source) if told else None  # before anything is replaced
    target.mkdir(parents=True, exist_ok=True)
    shown = sorted(path for pattern in REPORTED for path in source.glob(pattern))
    for path in shown:
        write_atomically(target / path.name, path.read_bytes())
    for path in {path for pattern in (*REPORTED, ANSWERS) for path in target.glob(pattern)}:
        if path.name not in {each.name for each in shown}:
            path.unlink()
    if answers is not None:
        write_atomically(target / ANSWERS, answers)
    made: dict[str, Any] = {
        "command": command,
        "version": __version__,
        "commits": commits(source) or [environment("cpu")["commit"]],
        "date": datetime.now(UTC).date().isoformat(),
    }
    write_atomically(target / "made.json", (json.dumps(made, indent=1) + "\n").encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
