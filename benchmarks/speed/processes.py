"""What a second process brings: epochs of the same training in one process and in several, by turns.

Each measurement is a command of its own, ``torchrun`` with so many processes of this module, of one thread each.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from nfn_monomial.benchmarks.data.batches import Data
from nfn_monomial.benchmarks.data.networks import NetworkInfo
from nfn_monomial.benchmarks.files import write_json
from nfn_monomial.benchmarks.models.catalogue import build_model
from nfn_monomial.benchmarks.report.results import Report
from nfn_monomial.benchmarks.report.tables import Table
from nfn_monomial.benchmarks.settings.measurements import ProcessesConfig
from nfn_monomial.benchmarks.settings.training import TrainConfig
from nfn_monomial.benchmarks.train.devices import is_main_process, make_fabric, threads
from nfn_monomial.benchmarks.train.loop import fit
from nfn_monomial.benchmarks.train.runs import environment
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.testing import random_networks

from .layers import NETWORKS

__all__ = ["ProcessTiming", "measure_processes", "processes_report", "seconds_per_epoch"]


@dataclass(frozen=True)
class ProcessTiming:
    """Median seconds of an epoch of one model in so many processes, one a round."""

    model: str
    batch_size: int
    processes: int
    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


def measure_processes(
    config: ProcessesConfig, progress: Callable[[int, int], object] = lambda done, total: None
) -> list[ProcessTiming]:
    """Train in every number of processes, by turns; ``progress`` is told how many trainings are done, and of how many.

    Raises:
        ValueError: with what it said last, if a training ends in an error.
    """
    trainings = [*itertools.product(config.models, config.batch_sizes, config.processes)]
    found: dict[tuple[str, int, int], list[float]] = {training: [] for training in trainings}
    for done, training in enumerate(trainings * config.rounds, 1):
        found[training].append(_launched(config, *training))
        progress(done, len(trainings) * config.rounds)
    return [ProcessTiming(*training, tuple(seconds)) for training, seconds in found.items()]


def _launched(config: ProcessesConfig, model: str, batch_size: int, count: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        asked = json.dumps([model, config.steps * batch_size, batch_size, config.epochs])
        run = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count), "-m", __spec__.name)
        environ = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(  # ourselves
            [sys.executable, *run, asked, str(answer)], env=environ, capture_output=True, text=True, check=False
        )
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["nothing"])[-1]
            raise InvalidValueError(f"{model} in {count} processes ended with {done.returncode} and said: {last}")
        return float(json.loads(answer.read_text(encoding="utf-8")))


def seconds_per_epoch(model_name: str, networks: int, batch_size: int, epochs: int) -> float:
    """Train on random networks in the processes that there are: median seconds of an epoch."""
    space = NETWORKS["zoo CNN"]()
    generator = torch.Generator().manual_seed(0)
    tensors = random_networks(space, networks, dtype=torch.float32, generator=generator)
    model = build_model(model_name, NetworkInfo(space, "relu"), seed=0)
    prepared = model.prepare_groups([(tensors, space)])
    model.fit_inputs(prepared)
    data = Data(prepared, torch.rand(networks, generator=generator))
    training = TrainConfig(epochs, batch_size)

    def score(outputs: Tensor, targets: Tensor) -> Mapping[str, float]:
        return {"score": -float((outputs - targets).square().mean())}

    with threads(1):
        found = fit(
            model, data, data.take(torch.arange(1)), training, loss=binary_cross_entropy_with_logits, metrics=score,
            select="score", seed=0, fabric=make_fabric(training),
        )  # fmt: skip
    return found.seconds_per_epoch


def processes_report(timings: list[ProcessTiming], config: ProcessesConfig) -> Report:
    """A line for every model and number of processes; ``share`` is what is left of the time of the first number."""
    first = {(t.model, t.batch_size): t for t in reversed(timings)}
    rows = tuple(
        (
            t.model,
            str(t.batch_size),
            str(t.processes),
            f"{t.median:.2f}",
            f"{min(t.seconds):.2f}",
            f"{t.median / first[t.model, t.batch_size].median:.2f}",
            f"{first[t.model, t.batch_size].processes / t.processes:.2f}",
        )
        for t in timings
    )
    table = Table(
        f"Seconds of {config.steps} training steps in several processes",
        ("model", "batch size", "processes", "median s", "least s", "share", "at best"),
        rows,
        names=(0, 1, 2),
        notes=(
            f"{config.rounds} trainings each, by turns, one thread a process. batch size: networks in a step, of all "
            "processes together. share: of the time of the first number of processes.",
        ),
    )
    load = os.getloadavg()[2] if hasattr(os, "getloadavg") else None
    results: dict[str, Any] = {
        "environment": environment("cpu"), "config": asdict(config), "load": load,
        "timings": [asdict(t) for t in timings],
    }  # fmt: skip
    return Report([table], results)


def _main(asked: Sequence[Any], answer: Path) -> None:
    seconds = seconds_per_epoch(*asked)
    if is_main_process():
        write_json(answer, seconds)


if __name__ == "__main__":
    _main(json.loads(sys.argv[1]), Path(sys.argv[2]))
