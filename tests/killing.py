"""Commands in processes that die, or whose disk is full, at a chosen write.

A process is forked from a server that has imported what commands need, so that one takes the time of its work alone.
Writes are counted as they happen (`write_atomically`, and files of safetensors), not timed: equal plans end equal
commands at equal places.
"""

from __future__ import annotations

import errno
import functools
import importlib
import json
import multiprocessing
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

STUDIES = (
    "ablation", "augment", "classify_report", "cost", "edit_report", "expressivity", "params_report", "predict_report",
)  # fmt: skip
PRELOADED = (
    "nfn_monomial.benchmarks.cli.application",
    "nfn_monomial.benchmarks.data.formats.detection",
    "nfn_monomial.benchmarks.make.mixed",
    "nfn_monomial.benchmarks.make.inrs",
    "nfn_monomial.benchmarks.make.zoo",
    "nfn_monomial.benchmarks.report.page",
    "nfn_monomial.benchmarks.report.reconstructions",
    "nfn_monomial.benchmarks.speed.graphs",
    "nfn_monomial.benchmarks.train.sweep",
    *(f"nfn_monomial.benchmarks.studies.{name}" for name in STUDIES),
    "sklearn.datasets",
)

Moment = Literal["before", "half", "written", "after"]
"""Of a write: nothing is there yet, half of the bytes, all of them under another name, or the file itself."""
How = Literal["kill", "interrupt", "terminate", "full", "read-only"]
MOMENTS: tuple[Moment, ...] = ("before", "half", "written", "after")


@dataclass(frozen=True)
class Plan:
    """What happens at which write, counted from 0. A full or read-only disk stays so."""

    at: int
    moment: Moment
    how: How


@dataclass(frozen=True)
class Ended:
    """How a process ended: exit code, or the negative number of a signal; what it said; how often it wrote."""

    code: int
    out: str
    err: str
    writes: int


def run(arguments: list[str], folder: Path, plan: Plan | None = None) -> Ended:
    """A command in a process of its own, which works in ``folder``."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*PRELOADED])
    said = {name: folder / f".{name}" for name in ("out", "err", "writes")}
    process = context.Process(target=_command, args=(arguments, str(folder), plan))
    process.start()
    process.join()
    assert process.exitcode is not None
    texts = [path.read_text(encoding="utf-8") if path.exists() else "" for path in said.values()]
    for path in said.values():
        path.unlink(missing_ok=True)
    return Ended(process.exitcode, texts[0], texts[1], len(texts[2]))


def _command(arguments: list[str], folder: str, plan: Plan | None) -> None:
    """What the process does."""
    os.chdir(folder)
    for number, name in ((1, ".out"), (2, ".err")):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
    options = importlib.import_module("nfn_monomial.benchmarks.cli.options")
    for console in (options.console, options.errors):
        console.file = sys.stderr if console.stderr else sys.stdout
    import torch

    torch.set_num_threads(1)
    _make_quick()
    _watch(plan, os.open(".writes", os.O_WRONLY | os.O_CREAT | os.O_TRUNC))
    sys.argv = ["nfn-monomial", *arguments]
    importlib.import_module("nfn_monomial.benchmarks.__main__").main()


def _make_quick() -> None:
    """Data sets of networks that are trained for a moment, in several parts."""
    quick: dict[tuple[str, str], dict[str, Any]] = {
        ("recipes", "ZooConfig"): {"epochs": (1, 1), "train_fractions": (0.1,), "chunk": 8},
        ("mixed_recipes", "MixedConfig"): {"epochs": (1, 1), "train_fractions": (0.1,), "per_architecture": 2},
        ("inrs", "InrConfig"): {"shard": 20},
    }
    for (module, name), values in quick.items():
        room = importlib.import_module(f"nfn_monomial.benchmarks.make.{module}")
        setattr(room, name, functools.partial(getattr(room, name), **values))


def _watch(plan: Plan | None, log: int) -> None:
    """Count writes, and do at the planned one what is planned."""
    files = importlib.import_module("nfn_monomial.benchmarks.files")
    safetensors = importlib.import_module("safetensors.torch")
    write_bytes, replace, save_file = Path.write_bytes, os.replace, safetensors.save_file
    count = -1

    def happens(moment: Moment) -> bool:
        return plan is not None and plan.moment == moment and _due(plan, count)

    def writes(path: Path, data: Any) -> int:
        nonlocal count
        count += 1
        os.write(log, b".")
        if happens("before"):
            _end(plan, path)
        if happens("half"):
            write_bytes(path, bytes(data)[: len(data) // 2])
            _end(plan, path)
        return write_bytes(path, data)

    def replaces(source: Any, target: Any) -> None:
        if happens("written"):
            _end(plan, target)
        replace(source, target)
        if happens("after") and plan is not None and plan.how not in ("full", "read-only"):
            _end(plan, target)

    def saves(tensors: Any, path: Any, *args: Any, **kwargs: Any) -> None:
        nonlocal count
        count += 1
        os.write(log, b".")
        if plan is not None and plan.how in ("full", "read-only") and _due(plan, count):
            raise importlib.import_module("safetensors").SafetensorError(
                "Error while serializing: I/O error: No space left"
            )
        if happens("before"):
            _end(plan, path)
        save_file(tensors, path, *args, **kwargs)

    Path.write_bytes = writes  # type: ignore[method-assign, assignment]
    files.os.replace = replaces
    safetensors.save_file = saves


def _due(plan: Plan, count: int) -> bool:
    return count >= plan.at if plan.how in ("full", "read-only") else count == plan.at


def _end(plan: Plan | None, path: Any) -> None:
    assert plan is not None
    if plan.how == "full":
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    if plan.how == "read-only":
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
    numbers = {"kill": signal.SIGKILL, "interrupt": signal.SIGINT, "terminate": signal.SIGTERM}
    os.kill(os.getpid(), numbers[plan.how])  # type: ignore[index]


def tree(folder: Path) -> dict[str, bytes]:
    """All files in a folder."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def determined(first: Any, second: Any) -> Any:
    """Of two results of the same, what both have: JSON values entry by entry, with None where they differ."""
    if isinstance(first, dict) and isinstance(second, dict) and first.keys() == second.keys():
        return {key: determined(first[key], second[key]) for key in first}
    if isinstance(first, list) and isinstance(second, list) and len(first) == len(second):
        return [determined(a, b) for a, b in zip(first, second, strict=True)]
    return first if first == second else None


def contents(files: dict[str, bytes]) -> dict[str, Any]:
    """Files as values to compare in parts: JSON parsed; of tables and figures, which show times, whether any."""
    found: dict[str, Any] = {name: json.loads(x) if name.endswith(".json") else x for name, x in files.items()}
    return found | {name: bool(data) for name, data in files.items() if name.endswith(("table.md", ".png"))}
