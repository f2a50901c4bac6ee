"""Make a zoo: train many small CNNs on images that ship in a package, and write them in the published format.

The networks are those of the Small CNN Zoo (Unterthiner et al. 2020): three 3x3 stride-2 convolutions of 16 channels,
global average pooling, one dense layer. As there, every network draws its own optimiser, learning rate, initialisation,
weight decay, dropout and share of the training images, so that test accuracies spread from chance to the best.
"""

from __future__ import annotations

import itertools
import json
import logging
import math
import os
import shutil
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from nfn_monomial.benchmarks.data.formats.zoo_files import FILES, METRIC_COLUMNS, write_zoo
from nfn_monomial.benchmarks.data.formats.zoo_layout import ZooError, cnn_geometry, cnn_layout
from nfn_monomial.benchmarks.data.images import ImageSet, load_images
from nfn_monomial.benchmarks.train.devices import require_device

from .recipes import Recipe, ZooConfig, draw_recipes, redraw
from .training import ImageTensors, train

__all__ = ["MadeZoo", "ZooConfig", "draw_recipes", "make_zoo", "progress_bar", "set_up_worker", "write_json"]

log = logging.getLogger(__name__)

LAYOUT = cnn_layout()
PADDING: dict[ImageSet, int] = {"digits": 1, "mnist5k": 0}  # 8x8 pixels are too few for three valid convolutions
CONFIG_FILE = "zoo.json"
GROUPS = "group_*.safetensors"  # the networks of a mixed zoo, see `zoo_mixed_files`
CHUNK_FOLDER = ".chunks"
ATTEMPTS = 5  # per network, before a zoo whose networks keep diverging is given up
LARGEST_WEIGHT = 1e3  # beyond this a network counts as diverged though its weights are finite

Progress = Callable[[int, int], None]
"""Called as (done, total) after each chunk, in steps of training summed over the networks."""


@dataclass(frozen=True)
class MadeZoo:
    """What ``make_zoo`` left: ``made`` is False if the folder held this very zoo already."""

    path: Path
    networks: int
    diverged: int  # networks drawn and trained in vain, each replaced by another draw
    made: bool


def make_zoo(
    out: str | Path,
    config: ZooConfig | None = None,
    *,
    overwrite: bool = False,
    device: str | torch.device = "cpu",
    workers: int | None = None,
    progress: Progress | None = None,
) -> MadeZoo:
    """Train the networks of ``config`` and write them to the folder ``out`` in the published format.

    Chunks of networks are trained side by side by ``workers`` threads (default: as many as torch may use; one on a
    GPU), each stored as soon as it is finished. A call that was interrupted is continued by an equal call and ends
    in the same zoo, bit for bit; one whose zoo is there returns at once. A folder with another configuration is
    refused unless ``overwrite``. Numbers of threads have no influence on the result.

    Raises:
        ZooError: if the folder is refused, or networks keep diverging.
        ValueError: if there is no such device.
    """
    out, config = Path(out), config or ZooConfig()
    require_device(device)
    if overwrite:
        _check_ours(out)
        _clear(out)
    elif (found := _stored(out, config)) is not None and all((out / name).exists() for name in FILES):
        shutil.rmtree(out / CHUNK_FOLDER, ignore_errors=True)
        return MadeZoo(out, config.networks, int(found["diverged"]), made=False)

    data = _load_data(config, torch.device(device))  # may fail, so before anything is written
    (out / CHUNK_FOLDER).mkdir(parents=True, exist_ok=True)
    write_json(out / CONFIG_FILE, {"config": _as_json(config)})
    weights, records, diverged = _train_all(out / CHUNK_FOLDER, config, data, workers, progress)
    # Before the metrics, whose presence says that a zoo is finished.
    write_json(
        out / CONFIG_FILE,
        {"config": _as_json(config), "padding": PADDING[config.images], "diverged": diverged},
    )
    metrics = {name: [record[name] for record in records] for name in METRIC_COLUMNS}
    write_zoo(out, weights, metrics, LAYOUT)
    shutil.rmtree(out / CHUNK_FOLDER)
    return MadeZoo(out, config.networks, diverged, made=True)


@contextmanager
def progress_bar(title: str = "training the zoo") -> Iterator[Progress]:
    """A bar in the terminal: ``with progress_bar() as progress: make_zoo(..., progress=progress)``."""
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
    with Bar(*columns, TimeElapsedColumn(), TimeRemainingColumn()) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


class _StoppedError(Exception):
    """Raised in the worker threads when the main thread has given up."""


def _load_data(config: ZooConfig, device: torch.device) -> ImageTensors:
    images = load_images(config.images)
    x, y = images.x.movedim(1, -1), images.y
    tensors = (x[images.train], y[images.train], x[images.test], y[images.test])
    return ImageTensors(*(t.contiguous().to(device) for t in tensors))


def _train_all(
    folder: Path, config: ZooConfig, data: ImageTensors, workers: int | None, progress: Progress | None
) -> tuple[Tensor, list[dict[str, object]], int]:
    """Weights ``(networks, columns)``, the metrics of each and the number that diverged, training what is missing."""
    recipes = draw_recipes(config)
    chunks = _chunks(recipes, config.chunk)
    epochs = [sum(recipes[i].epochs * recipes[i].train_fraction for i in chunk) for chunk in chunks]
    work = [max(1, round(e * len(data.train_y) / config.batch)) for e in epochs]
    weights = torch.empty(config.networks, LAYOUT[-1].end)
    records: list[dict[str, object]] = [{} for _ in recipes]
    done, diverged = 0, 0
    paths = [folder / f"{number:05d}.safetensors" for number in range(len(chunks))]

    def collect(number: int) -> bool:
        nonlocal done, diverged
        stored = _read_chunk(paths[number])
        if stored is None:
            return False
        weights[chunks[number]], rows, bad = stored
        for network, row in zip(chunks[number], rows, strict=True):
            records[network] = row
        done, diverged = done + work[number], diverged + bad
        return True

    todo = [number for number in range(len(chunks)) if not collect(number)]
    if progress is not None:
        progress(done, sum(work))
    stop = threading.Event()

    def check() -> None:
        if stop.is_set():
            raise _StoppedError

    def job(number: int) -> int:
        _write_chunk(paths[number], *_train_chunk(config, chunks[number], recipes, data, check))
        return number

    threads = torch.get_num_threads()
    workers = workers or (threads if data.train_x.device.type == "cpu" else 1)
    pool = ThreadPoolExecutor(workers, initializer=set_up_worker)
    try:
        for future in as_completed([pool.submit(job, number) for number in todo]):
            if not collect(future.result()):
                raise ZooError(f"{paths[future.result()]} was written but cannot be read back: is the disk full?")
            if progress is not None:
                progress(done, sum(work))
    finally:
        stop.set()
        pool.shutdown(wait=True, cancel_futures=True)
        torch.set_num_threads(threads)  # a part of the setting is not per thread, but of the whole process
    if diverged:
        log.info("%d networks diverged and were replaced", diverged)
    return weights, records, diverged


def set_up_worker() -> None:
    """What a thread that trains networks does first."""
    torch.set_num_threads(1)  # threads work on chunks of their own, which is faster than sharing each small product
    torch.set_flush_denormal(True)  # running means of gradients that are 0 decay to numbers that take 100 times as long


def _chunks(recipes: Sequence[Recipe], size: int) -> list[list[int]]:
    """Network numbers that are trained together: alike in kind, of similar length, the longest chunks first."""
    kinds: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for i, r in enumerate(recipes):
        kinds[r.activation, r.optimizer, r.dropout > 0].append(i)

    def length(i: int) -> float:
        return recipes[i].epochs * recipes[i].train_fraction

    chunks: list[list[int]] = []
    for numbers in kinds.values():
        numbers.sort(key=length, reverse=True)
        parts = math.ceil(len(numbers) / size)
        cuts = [len(numbers) * part // parts for part in range(parts + 1)]
        chunks += [numbers[a:b] for a, b in itertools.pairwise(cuts)]
    return sorted(chunks, key=lambda chunk: sum(map(length, chunk)), reverse=True)


def _train_chunk(
    config: ZooConfig, numbers: Sequence[int], recipes: Sequence[Recipe], data: ImageTensors, check: Callable[[], None]
) -> tuple[Tensor, list[dict[str, object]], int]:
    """Weights, metrics and the number of networks that diverged on the way and were drawn again."""

    def run(chosen: list[Recipe]) -> tuple[Tensor, list[dict[str, float]]]:
        result = train(chosen, data, LAYOUT, padding=PADDING[config.images], batch=config.batch, check=check)
        values = {name: column.tolist() for name, column in result.metrics.items()}
        return result.weights, [{name: column[i] for name, column in values.items()} for i in range(len(chosen))]

    chosen = [recipes[number] for number in numbers]
    weights, results = run(chosen)
    diverged = attempt = 0
    while bad := (~(weights.abs().amax(1) <= LARGEST_WEIGHT)).nonzero().flatten().tolist():  # `~`: NaN is bad, too
        diverged, attempt = diverged + len(bad), attempt + 1
        if attempt > ATTEMPTS:
            raise ZooError(
                f"network {numbers[bad[0]]} diverged {attempt} times: choose smaller learning rates than "
                f"{config.learning_rate} and, for sgd, {config.sgd_learning_rate}"
            )
        for i in bad:
            chosen[i] = redraw(config, numbers[i], attempt, chosen[i])
        weights[bad], again = run([chosen[i] for i in bad])
        for i, result in zip(bad, again, strict=True):
            results[i] = result
    rows = [_record(config, *item) for item in zip(numbers, chosen, results, strict=True)]
    return weights, rows, diverged


def _record(config: ZooConfig, number: int, recipe: Recipe, result: dict[str, float]) -> dict[str, object]:
    """One line of the metrics, in the published columns."""
    channels = cnn_geometry(LAYOUT).channels
    return {
        **{f"config.{name}": value for name, value in asdict(recipe).items()},
        "config.dataset": config.images,
        "config.dnn_architecture": "cnn",
        "config.epochs_between_checkpoints": recipe.epochs,
        "config.num_layers": len(channels) - 1,
        "config.num_units": channels[-1],
        "modeldir": f"networks/{number:06d}",
        "step": recipe.epochs,
        **result,
    }


def _write_chunk(path: Path, weights: Tensor, rows: list[dict[str, object]], diverged: int) -> None:
    partial = path.with_suffix(".partial")
    save_file({"weights": weights}, partial, metadata={"rows": json.dumps(rows), "diverged": str(diverged)})
    os.replace(partial, path)


def _read_chunk(path: Path) -> tuple[Tensor, list[dict[str, object]], int] | None:
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata()
            return file.get_tensor("weights"), json.loads(metadata["rows"]), int(metadata["diverged"])
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        log.warning("%s cannot be read (%s): its networks are trained again", path, error)
        return None


def _as_json(config: ZooConfig) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(json.dumps(asdict(config)))  # tuples become lists, as in the file
    return values


def write_json(path: Path, value: object) -> None:
    """Write a file that appears whole or not at all."""
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
    os.replace(partial, path)


def _check_ours(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise ZooError(f"{out} is a file: give a folder for the zoo")
    foreign = [*(name for name in FILES if (out / name).exists()), *sorted(path.name for path in out.glob(GROUPS))]
    if foreign and not (out / CONFIG_FILE).exists():
        raise ZooError(
            f"{out} holds {', '.join(foreign[:3])} but no {CONFIG_FILE}: a zoo that was not made by this command, "
            "and that it will not overwrite; choose another folder"
        )


def _stored(out: Path, config: ZooConfig) -> dict[str, Any] | None:
    """The contents of ``zoo.json`` if ``out`` holds this zoo, finished or not; None if it holds none."""
    _check_ours(out)
    path = out / CONFIG_FILE
    if not path.exists():
        return None
    way_out = "pass overwrite=True (--overwrite) to make it anew, or choose another folder"
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        old: dict[str, Any] = dict(found["config"])
    except (ValueError, KeyError, TypeError) as error:
        raise ZooError(f"{path} is damaged ({error!r}): {way_out}") from error
    new = _as_json(config)
    differing = [name for name in sorted({*old, *new}) if old.get(name) != new.get(name)]
    if differing:
        shown = "; ".join(f"{name} is {old.get(name)!r} there, {new.get(name)!r} asked for" for name in differing)
        raise ZooError(f"{out} holds a zoo of another configuration: {shown}; {way_out}")
    return found


def _clear(out: Path) -> None:
    # The metrics first: without them nothing that is left counts as a zoo.
    for name in (*reversed(FILES), CONFIG_FILE):
        (out / name).unlink(missing_ok=True)
    for path in out.glob(GROUPS):
        path.unlink()
    shutil.rmtree(out / CHUNK_FOLDER, ignore_errors=True)
