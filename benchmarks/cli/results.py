"""The command `results`: makes the committed results again, and says of which version they are."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table

from nfn_monomial import __version__
from nfn_monomial.benchmarks.experiments import DATA, EXPERIMENTS, Rerun
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.tools.cli.options import console, user_errors
from nfn_monomial.tools.files import write_atomically, write_json

from .options import split

__all__ = ["MADE", "reruns", "results"]

MADE = "made.json"
"""In a results folder: the command, version, commit and date of its tables."""
COMMITTED = Path("benchmarks/results")
REPORTED = ("table.md", "results.json", "config.json", "recipe.json", "*.png")


@user_errors
def results(
    only: Annotated[str, typer.Option(help="Comma-separated names of folders; by default all.")] = "",
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Where the commands work; finished work in it is kept.")
    ] = Path("results"),
    into: Annotated[
        Path | None, typer.Option(help="Copy tables, figures and numbers there, one folder for each.")
    ] = None,
    show: Annotated[bool, typer.Option("--list", help="Run nothing: say what there is and how old it is.")] = False,
) -> None:
    """Make all tables of the documentation again, or some of them, from cheap to dear.

    Runs every command of the list in a process of its own, and before it what makes its data. Each goes on where it
    was, so that the same command after an interruption does only what is missing; a folder that is finished takes
    seconds. All of it takes some forty hours of one core. What needs a GPU is left out where there is none.

    Examples:

    - `nfn-monomial results --list`

    - `nfn-monomial results --only params,ablation`

    - `nfn-monomial results --into benchmarks/results`
    """
    chosen = _chosen(split(only))
    if show:
        _list(chosen, into or (COMMITTED if COMMITTED.is_dir() else out))
        return
    chosen = _possible(chosen)
    total = sum(entry.minutes for entry in chosen)
    console.print(f"{len(chosen)} folders, about {total / 60:.1f} hours of one core in all", highlight=False)
    for number, entry in enumerate(chosen, start=1):
        console.print(f"{number}/{len(chosen)} {entry.folder}: {entry.command}", highlight=False)
        start = time.perf_counter()
        if entry.data:
            _run(DATA[entry.data])
        _run(f"{entry.command} --out {shlex.quote(str(out / entry.folder))}")
        write_json(out / entry.folder / MADE, _made(entry))
        if into is not None:
            _copy(out / entry.folder, into / entry.folder)
        console.print(f"{entry.folder}: {(time.perf_counter() - start) / 60:.1f} minutes", highlight=False)


def reruns() -> list[Rerun]:
    """All committed results folders, from cheap to dear, with the whole command of each but for ``--out``."""
    found = []
    for experiment in EXPERIMENTS.values():
        for entry in experiment.reruns:
            words = [entry.command or experiment.name, f"--data {entry.data}" * bool(entry.data), entry.options]
            found.append(replace(entry, command=" ".join(filter(None, words))))
    return sorted(found, key=lambda entry: entry.minutes)


def _chosen(names: Sequence[str]) -> list[Rerun]:
    known = {entry.folder: entry for entry in reruns()}
    if unknown := [name for name in names if name not in known]:
        raise InvalidValueError(f"unknown results {', '.join(unknown)}: choose from {', '.join(known)}")
    return [entry for name, entry in known.items() if not names or name in names]


def _possible(chosen: Sequence[Rerun]) -> list[Rerun]:
    """Without those that need a GPU, where there is none."""
    import torch  # which the help of all commands does without

    found = [entry for entry in chosen if "--device cuda" not in entry.command or torch.cuda.is_available()]
    for name in sorted({entry.folder for entry in chosen} - {entry.folder for entry in found}):
        console.print(f"{name}: left out, as no GPU was found", highlight=False)
    return found


def _run(command: str) -> None:
    """A command of this program, with this program's output.

    Raises:
        Exit: with its code, if it fails.
    """
    done = subprocess.run([sys.executable, "-m", "nfn_monomial.benchmarks", *shlex.split(command)], check=False)
    if done.returncode:
        raise typer.Exit(done.returncode)


def _made(entry: Rerun) -> dict[str, Any]:
    from nfn_monomial.benchmarks.train.runs import environment

    return {
        "command": f"nfn-monomial {entry.command}",
        "version": __version__,
        "commit": environment("cpu")["commit"],
        "date": datetime.now(UTC).date().isoformat(),
    }


def _copy(source: Path, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for pattern in (*REPORTED, MADE):
        for path in sorted(source.glob(pattern)):
            write_atomically(target / path.name, path.read_bytes())


def _list(entries: Sequence[Rerun], folder: Path) -> None:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False)
    for column in ("name", "minutes", "version", "commit", "date", "this version", "command"):
        table.add_column(column, overflow="fold", no_wrap=column != "command")
    for entry in entries:
        path = folder / entry.folder / MADE
        made = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        commit = made.get("commit") or "-"
        commit = commit[:7] + "+" * commit.endswith("+")
        cells = (entry.folder, f"{entry.minutes:g}", made.get("version", "-"), commit, made.get("date", "-"))
        table.add_row(*cells, _of_this_version(made), entry.command)
    console.print(table)
    console.print(f"Tables in {folder}. this version: no code changed since; otherwise, in how many commits.")


def _of_this_version(made: dict[str, Any]) -> str:
    """Whether the code is still what it was made with: as git knows it, else by the version."""
    commit = (made.get("commit") or "").removesuffix("+")
    here = Path(__file__).resolve().parents[2]
    folders = ("nfn_monomial", "adapters", "benchmarks", ":!benchmarks/results")
    command = ["git", "-C", str(here), "rev-list", "--count", f"{commit}..HEAD", "--", *folders]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "-" if not made else "perhaps" if made.get("version") == __version__ else "no"
    return "-" if not commit else "yes" if found == "0" else f"{found} commits"
