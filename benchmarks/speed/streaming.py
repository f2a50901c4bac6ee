"""A zoo larger than memory, streamed from its file: how fast beside one in memory, and in how much memory.

The zoo is made up, of random networks of the Small CNN Zoo's architecture, some thousands again and again: what they
learned matters to no time. Its file is dropped from the system's cache first, and removed at the end. A streamed pass
goes on in the epoch where the last one stopped, so that no network is read twice. Passes take turns with those in
memory.
"""

from __future__ import annotations

import os
import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from nfn_monomial.benchmarks.data.batches import Data, DataSet, StreamedData
from nfn_monomial.benchmarks.data.formats.small_cnn_zoo import MappedRows
from nfn_monomial.benchmarks.data.formats.zoo_files import map_weights
from nfn_monomial.benchmarks.data.layout import cnn_layout
from nfn_monomial.benchmarks.data.networks import NetworkInfo, group_of
from nfn_monomial.benchmarks.data.rows import TensorRows
from nfn_monomial.benchmarks.models.catalogue import build_model
from nfn_monomial.benchmarks.report.results import Report
from nfn_monomial.benchmarks.report.tables import MIB, Table
from nfn_monomial.benchmarks.settings.measurements import StreamingConfig
from nfn_monomial.benchmarks.train.runs import environment
from nfn_monomial.errors import InvalidValueError

from .layers import NETWORKS

__all__ = ["Reading", "StreamTiming", "Streaming", "made_up_zoo", "measure_streaming", "streaming_report"]

CHUNK = 2**26  # bytes that are written at once
LOOKED_AT = 2000  # networks that input statistics are taken of
GIB = 2**30


@dataclass(frozen=True)
class StreamTiming:
    """One model: networks that it was trained on in a second, medians of passes, and what streaming took of memory.

    ``prepared``: networks in a second that were prepared before, where these stay in memory; 0 where all are prepared
    in every pass. ``grown_bytes``: by how much the memory of the process grew beyond what it was before that, or before
    the streamed passes.
    """

    model: str
    memory: float
    prepared: float
    streamed: float
    grown_bytes: int


@dataclass(frozen=True)
class Reading:
    """All networks of the zoo read once in the order of an epoch, without a model."""

    networks: int
    nbytes: int
    seconds: float
    grown_bytes: int


@dataclass(frozen=True)
class Streaming:
    """What was measured."""

    reading: Reading
    timings: list[StreamTiming]
    config: StreamingConfig


@contextmanager
def made_up_zoo(path: Path, nbytes: float) -> Iterator[MappedRows]:
    """A block in which a file of random networks is there, which is on the disk and not in the system's cache.

    Raises:
        ValueError: if the disk has less than that free, and a twentieth more.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)  # of a call that was killed
    free = shutil.disk_usage(path.parent).free
    if free < 1.05 * nbytes:
        raise InvalidValueError(
            f"{path.parent} has {free / GIB:.1f} GiB free, {1.05 * nbytes / GIB:.1f} are needed: give a smaller gib, "
            "or another --out"
        )
    layout = cnn_layout()
    columns = layout[-1].end
    count = max(1, int(nbytes // (4 * columns)))
    some = 0.3 * torch.randn(max(1, min(count, CHUNK // (4 * columns))), columns).numpy()
    try:
        with path.open("wb") as file:
            np.lib.format.write_array_header_1_0(
                file, {"descr": "<f4", "fortran_order": False, "shape": (count, columns)}
            )
            for start in range(0, count, len(some)):
                file.write(some[: count - start].data)
            file.flush()
            os.fsync(file.fileno())
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        yield MappedRows(map_weights(path), np.arange(count), layout, path)
    finally:
        path.unlink(missing_ok=True)


def measure_streaming(
    config: StreamingConfig, folder: Path, progress: Callable[[str], None] = lambda text: None
) -> Streaming:
    """Make the zoo, read it, train on it, remove it.

    Args:
        config: see `StreamingConfig`.
        folder: where the zoo lies meanwhile.
        progress: called with a line of text before each part.
    """
    progress(f"writing {config.gib} GiB")
    with made_up_zoo(folder / "networks.npy", config.gib * GIB) as rows:
        timings = [_timing(config, name, rows, progress) for name in config.models]
        progress("reading all of it")
        reading = _read_all(config, rows)
    return Streaming(reading, timings, config)


def _read_all(config: StreamingConfig, rows: MappedRows) -> Reading:
    data = StreamedData(rows, _nothing, torch.zeros(len(rows)))
    batches = _batches(data, config.batch_size)
    start = time.perf_counter()
    with _growth() as grown:
        for _ in data.read(batches):
            pass
    return Reading(len(rows), rows.nbytes, time.perf_counter() - start, grown())


def _nothing(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return tensors


def _batches(data: DataSet, size: int) -> list[Tensor]:
    return list(torch.split(data.order(torch.Generator().manual_seed(0)), size))


def _timing(config: StreamingConfig, name: str, rows: MappedRows, progress: Callable[[str], None]) -> StreamTiming:
    """One model, in memory and streamed by turns."""
    space = NETWORKS["zoo CNN"]()
    model = build_model(name, NetworkInfo(space, "relu"), seed=0)

    def prepare(tensors: dict[str, Tensor]) -> Any:
        return model.prepare_groups([group_of(tensors, space)])

    # Not the networks that are streamed first: these would then be in the system's cache.
    some = torch.arange(max(1, min(len(rows), int(len(rows) * config.memory_gib / config.gib))))
    held = TensorRows(rows.read(len(rows) - 1 - some))
    model.fit_inputs(prepare(held.read(some[:LOOKED_AT])))
    streamed = StreamedData(rows, prepare, torch.rand(len(rows)))
    data: dict[str, DataSet] = {
        "memory": Data(prepare(held.tensors), torch.rand(len(some))), "streamed": streamed
    }  # fmt: skip
    del held
    progress(f"{name}, preparing what stays in memory")
    start = time.perf_counter()
    with _growth() as grown:
        kept = streamed.kept is not None
    prepared, most = len(rows) / (time.perf_counter() - start) * kept, grown()
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, fused=True)

    def step(inputs: Any, targets: Tensor) -> None:
        optimizer.zero_grad(set_to_none=True)
        binary_cross_entropy_with_logits(model(inputs), targets).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    batches = {kind: _batches(of, config.batch_size) for kind, of in data.items()}
    found: dict[str, list[float]] = {kind: [] for kind in data}
    for turn in range(config.passes):
        for kind, of in data.items():
            progress(f"{name}, {kind}, pass {turn + 1} of {config.passes}")
            with _growth() as grown:
                speed, done = _pass(of, batches[kind], config, step)
            found[kind].append(speed)
            batches[kind] = batches[kind][done:] + batches[kind][:done]
            most = max(most, grown()) if kind == "streamed" else most
    medians = {kind: statistics.median(speeds) for kind, speeds in found.items()}
    return StreamTiming(name, medians["memory"], prepared, medians["streamed"], most)


def _pass(
    data: DataSet, batches: list[Tensor], config: StreamingConfig, step: Callable[[Any, Tensor], None]
) -> tuple[float, int]:
    """Networks a second, the wait for the first included, and the number of batches that were done."""
    networks = done = 0
    start = time.perf_counter()
    reading = data.read(batches)
    for index, inputs in zip(batches, reading, strict=False):
        step(inputs, data.targets[index])
        networks, done = networks + len(index), done + 1
        if time.perf_counter() - start > config.seconds:
            break
    speed = networks / (time.perf_counter() - start)
    getattr(reading, "close", lambda: None)()  # what is being read ahead, is of no later pass
    return speed, done


@contextmanager
def _growth() -> Iterator[Callable[[], int]]:
    """A block, and by how many bytes the memory of this process grew in it at most; 0 where the system does not say."""
    before = _resident("VmRSS", fresh=True)
    yield lambda: max(0, _resident("VmHWM") - before)


def _resident(what: str, fresh: bool = False) -> int:
    status = Path("/proc/self/status")
    if not status.exists():
        return 0
    if fresh:
        Path("/proc/self/clear_refs").write_text("5")  # the high-water mark is where memory is now
    line = next(line for line in status.read_text().splitlines() if line.startswith(what))
    return 1024 * int(line.split()[1])


def streaming_report(found: Streaming) -> Report:
    """A line for every model, and what reading alone takes."""
    reading, config = found.reading, found.config
    rows = tuple(
        (
            t.model,
            f"{t.memory:,.0f}",
            f"{t.prepared:,.0f}" if t.prepared else "every pass",
            f"{t.streamed:,.0f}",
            f"{t.streamed / t.memory:.2f}",
            f"{t.grown_bytes / MIB:.0f}",
        )
        for t in found.timings
    )
    alone = reading.networks / reading.seconds
    table = Table(
        f"Training on a zoo of {reading.nbytes / GIB:.1f} GiB, streamed and in memory, batches of {config.batch_size}",
        (
            "model",
            "in memory: networks/s",
            "prepared once: networks/s",
            "streamed: networks/s",
            "streamed / in memory",
            "grown MiB",
        ),
        rows,
        notes=(
            f"Medians of {config.passes} passes of {config.seconds:g} s each, by turns; in memory: "
            f"{config.memory_gib:g} GiB of the same networks, prepared before. prepared once: before the "
            "first streamed pass, where what is prepared stays in memory. grown: the most that the process's memory "
            f"grew in that or in a streamed pass. Reading all {reading.networks:,} networks in an epoch's order "
            f"without a model: {alone:,.0f} a second, {reading.nbytes / reading.seconds / GIB:.2f} GiB/s, "
            f"grown {reading.grown_bytes / MIB:.0f} MiB. "
            "The file was not in the system's cache before.",
        ),
    )
    results = {
        "environment": environment("cpu"), "config": asdict(config), "load": _load(), "reading": asdict(reading),
        "timings": [asdict(t) for t in found.timings],
    }  # fmt: skip
    return Report([table], results)


def _load() -> float | None:
    """Processes that wanted a core in the last quarter of an hour, where the system says so."""
    return os.getloadavg()[2] if hasattr(os, "getloadavg") else None
