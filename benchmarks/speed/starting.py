"""What there is to wait for before the first step: importing the core, and building layers on a long network."""

from __future__ import annotations

import gc
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nfn_monomial import EquivariantLinear, EquivariantNorm, MessagePassing, WeightSpace
from nfn_monomial.models import MonomialNFN
from nfn_monomial.tools.report import Table

__all__ = ["Start", "bench_starting", "starting_table"]

REPEATS = 3
IMPORTS = """
import time
begun = time.perf_counter()
import torch
between = time.perf_counter()
import nfn_monomial
print(between - begun, time.perf_counter() - between)
"""


@dataclass(frozen=True)
class Start:
    """What is waited for, and the least seconds of a few repetitions."""

    what: str
    seconds: float


def bench_starting(depth: int, progress: Callable[[str], None] = lambda _: None) -> list[Start]:
    """Time the import in fresh interpreters, and building on a chain of ``depth`` layers of 4 neurons, with biases.

    Every time on a new space: layers on one space share what they work out of it.
    """
    progress("import")
    imports = [
        [float(text) for text in subprocess.check_output([sys.executable, "-c", IMPORTS], text=True).split()]
        for _ in range(REPEATS)
    ]
    starts = [
        Start("import torch", min(torch for torch, _ in imports)),
        Start("import nfn_monomial after torch", min(core for _, core in imports)),
    ]

    def space() -> WeightSpace:
        return WeightSpace.mlp([4] * (depth + 1), "relu")

    builders: dict[str, Callable[[WeightSpace], object]] = {
        "WeightSpace": lambda _: space(),
        "EquivariantLinear": lambda chain: EquivariantLinear(chain, 4, 4),
        "EquivariantNorm": lambda chain: EquivariantNorm(chain, 4),
        "MessagePassing": lambda chain: MessagePassing(chain, 4),
        "MonomialNFN": MonomialNFN,
    }
    for name, build in builders.items():
        progress(f"{name} on {2 * depth} tensors")
        starts.append(Start(f"{name} on {2 * depth} tensors", min(_seconds(build, space()) for _ in range(REPEATS))))
    return starts


def _seconds(build: Callable[[WeightSpace], object], chain: WeightSpace) -> float:
    """As in a fresh process: Python's garbage collector does not look through what other timings left."""
    gc.collect()
    gc.freeze()
    try:
        begun = time.perf_counter()
        build(chain)
        return time.perf_counter() - begun
    finally:
        gc.unfreeze()


def starting_table(starts: Sequence[Start]) -> Table:
    """A line for each."""
    cells = tuple((s.what, f"{s.seconds:.2f}") for s in starts)
    return Table("Before the first step", ("what", "seconds"), cells, notes=(f"The least of {REPEATS}.",))
