"""Commands in processes that die, or whose disk is full or may not be written to, at a chosen write.

A process is forked from a server that has imported what commands need, so that one takes the time of its work alone.
Writes are counted as they happen (of whole files, and by safetensors), not timed: equal plans end equal
commands at equal places.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import importlib
import json
import multiprocessing
import os
import re
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

STUDIES = (
    "ablation", "classify", "cost", "edit", "params", "predict_report",
)  # fmt: skip
PRELOADED = (
    *(f"nfn_monomial.tools.checkpoints.{name}" for name in ("alignments", "balancing", "comparison", "inspection")),
    "nfn_monomial.tools.cli.application",
    "nfn_monomial.benchmarks.data.formats.detection",
    "nfn_monomial.benchmarks.make.inrs",
    "nfn_monomial.benchmarks.make.zoo",
    "nfn_monomial.tools.predictors.answers",
    "nfn_monomial.benchmarks.report.figures",
    "nfn_monomial.benchmarks.speed.graphs",
    "nfn_monomial.benchmarks.train.sweep",
    *(f"nfn_monomial.benchmarks.studies.{name}" for name in STUDIES),
    "sklearn.datasets",
)

Moment = Literal["before", "half", "written", "after"]
"""Of a write: nothing is there yet, half of the bytes, all of them under another name, or the file itself."""
How = Literal["kill", "interrupt", "terminate", "full", "read-only", "locked"]
"""By a signal; a disk that is full or read-only from then on; a folder whose mode forbids to write, from the start."""
STAYS = ("full", "read-only")
MOMENTS: tuple[Moment, ...] = ("before", "half", "written", "after")


@dataclass(frozen=True)
class Plan:
    """What happens at which write, counted from 0."""

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
    _allow(folder, 0o755)
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
    options = importlib.import_module("nfn_monomial.tools.cli.options")
    for console in (options.console, options.errors):
        console.file = sys.stderr if console.stderr else sys.stdout
    import torch

    torch.set_num_threads(1)
    _make_quick()
    _watch(plan, os.open(".writes", os.O_WRONLY | os.O_CREAT | os.O_TRUNC))
    if plan is not None and plan.how == "locked":
        _allow(Path(), 0o555)
        _obey_modes()
    sys.argv = ["nfn-monomial", *arguments]
    importlib.import_module("nfn_monomial.tools.__main__").main()


def _make_quick() -> None:
    """Data sets of networks that are trained for a moment, in several parts."""
    quick: dict[tuple[str, str], dict[str, Any]] = {
        ("config", "ZooConfig"): {"epochs": (1, 1), "train_fractions": (0.1,), "chunk": 8},
        ("config", "MixedConfig"): {"epochs": (1, 1), "train_fractions": (0.1,), "per_architecture": 2},
        ("inrs", "InrConfig"): {"shard": 20},
    }
    for (module, name), values in quick.items():
        room = importlib.import_module(f"nfn_monomial.benchmarks.make.{module}")
        setattr(room, name, functools.partial(getattr(room, name), **values))


def _allow(folder: Path, mode: int) -> None:
    """Give a folder, and those in it, a mode."""
    for place in (folder, *(path for path in folder.rglob("*") if path.is_dir())):
        place.chmod(mode)


def _obey_modes() -> None:
    """Forget that the user may be root, whom modes do not stop: give up the right to pass them over (Linux)."""
    if os.geteuid() == 0:
        libc = ctypes.CDLL(None, use_errno=True)
        header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # the version of what follows; this process
        sets = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; of the first 32 rights, and of the rest
        assert libc.capget(header, sets) == 0
        sets[0] &= ~(1 << 1)  # CAP_DAC_OVERRIDE
        assert libc.capset(header, sets) == 0


def _watch(plan: Plan | None, log: int) -> None:
    """Count writes, and do at the planned one what is planned."""
    safetensors: Any = importlib.import_module("safetensors.torch")
    write_bytes, replace, save_file = Path.write_bytes, os.replace, safetensors.save_file
    lost = importlib.import_module("safetensors").SafetensorError
    count = -1

    def happens(moment: Moment) -> bool:
        if plan is None or plan.how == "locked" or plan.moment != moment:
            return False
        return count >= plan.at if plan.how in STAYS else count == plan.at

    def end(path: Any) -> None:
        assert plan is not None
        if plan.how in STAYS:
            number = errno.ENOSPC if plan.how == "full" else errno.EROFS
            raise OSError(number, os.strerror(number), str(path))
        numbers = {"kill": signal.SIGKILL, "interrupt": signal.SIGINT, "terminate": signal.SIGTERM}
        os.kill(os.getpid(), numbers[plan.how])

    def during(write: Callable[[], Any], path: Any) -> Any:
        nonlocal count
        count += 1
        os.write(log, b".")
        if happens("before"):
            end(path)
        result = write()
        if happens("half"):
            os.truncate(path, os.path.getsize(path) // 2)
            end(path)
        return result

    def writes(path: Path, data: Any) -> int:
        written: int = during(lambda: write_bytes(path, data), path)
        return written

    def saves(tensors: Any, path: Any, *args: Any, **kwargs: Any) -> None:
        try:
            during(lambda: save_file(tensors, path, *args, **kwargs), path)
        except OSError as error:  # as safetensors says it
            raise lost(f"Error while serializing: I/O error: {error.strerror} (os error {error.errno})") from None

    def replaces(source: Any, target: Any) -> None:
        if happens("written"):
            end(target)
        replace(source, target)
        if happens("after"):
            end(target)

    Path.write_bytes = writes  # type: ignore[method-assign, assignment]
    safetensors.save_file = saves
    os.replace = replaces  # type: ignore[assignment]


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


TIMED = re.compile(r"\b(s|ms|min|MiB|seconds|time|memory|forward|both|step)\b|^HNP = 1,")
"""Headings of columns with times or memory."""
TIMES = ("cost.png", "graphs.png")
"""Figures that show them."""
MEASURED = re.compile(r"(?<!checkpoint_)seconds|^step_share$|^peak_bytes$|^commit$")
"""Entries of JSON that are times or memory, or may change with the checkout between two calls."""


def contents(files: dict[str, bytes]) -> dict[str, Any]:
    """Files as values to compare in parts: JSON and tables, and of figures of times only that they are there."""
    return {name: _content(Path(name), data) for name, data in files.items()}


def _content(path: Path, data: bytes) -> Any:
    if path.name in TIMES:
        return bool(data)
    if path.name == "table.md":
        return _cells(data.decode())
    return _unmeasured(json.loads(data)) if path.suffix == ".json" else data


def _unmeasured(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: None if MEASURED.search(key) else _unmeasured(inner) for key, inner in value.items()}
    return [_unmeasured(inner) for inner in value] if isinstance(value, list) else value


def _cells(text: str) -> list[Any]:
    """The lines of a page, those of tables in cells, with None in columns of times."""
    found: list[Any] = []
    timed: list[bool] = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split("|")] if line.startswith("|") else []
        timed = (timed or [bool(TIMED.search(cell)) for cell in cells]) if cells else []
        found.append([None if skip else cell for skip, cell in zip(timed, cells, strict=True)] if cells else line)
    return found
