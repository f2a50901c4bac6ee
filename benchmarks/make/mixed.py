"""Make a mixed zoo: draw architectures, train the networks of each together, store each as soon as it is finished."""

from __future__ import annotations

import json
import logging
import math
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nfn_monomial.benchmarks.data.formats.mixed_files import (
    KIND,
    Group,
    group_path,
    read_config,
    read_group,
    write_group,
)
from nfn_monomial.benchmarks.data.formats.zoo_files import FILES
from nfn_monomial.benchmarks.data.formats.zoo_layout import ZooError
from nfn_monomial.benchmarks.data.images import Images, load_images
from nfn_monomial.benchmarks.train.devices import require_device

from .mixed_recipes import Architecture, MixedConfig, draw_architecture
from .mixed_training import train_group
from .recipes import Recipe, draw_recipes, redraw
from .zoo import ATTEMPTS, CONFIG_FILE, GROUPS, LARGEST_WEIGHT, MadeZoo, Progress, set_up_worker, write_json

__all__ = ["make_mixed_zoo"]

log = logging.getLogger(__name__)


def make_mixed_zoo(
    out: str | Path,
    config: MixedConfig | None = None,
    *,
    overwrite: bool = False,
    device: str | torch.device = "cpu",
    workers: int | None = None,
    progress: Progress | None = None,
) -> MadeZoo:
    """Train the networks of ``config`` and write them to the folder ``out``, see `zoo_mixed_files` for the format.

    Architectures are trained side by side by ``workers`` threads (default: as many as torch may use; one on a GPU),
    each stored as soon as it is finished. A call that was interrupted is continued by an equal call and ends in the
    same zoo, bit for bit; one whose zoo is there returns at once. Numbers of threads have no influence on the result.

    Raises:
        ZooError: if the folder holds another configuration (unless ``overwrite``), another kind of zoo, or files that
            are not ours; or if networks keep diverging.
        ValueError: if there is no such device.
    """
    out, config = Path(out), config or MixedConfig()
    require_device(device)
    found = _existing(out, config, overwrite)
    paths = [group_path(out, number) for number in range(math.ceil(config.networks / config.per_architecture))]
    if found is not None and "groups" in found and all(path.exists() for path in paths):
        return MadeZoo(out, config.networks, int(found["diverged"]), made=False)
    images = load_images(config.images)  # may fail, so before anything is written
    images = replace(images, **{name: getattr(images, name).to(device) for name in ("x", "y", "train", "test")})
    out.mkdir(parents=True, exist_ok=True)
    stated = {"kind": KIND, "config": _as_json(config)}
    write_json(out / CONFIG_FILE, stated)
    diverged = _train_all(paths, config, images, workers, progress)
    write_json(out / CONFIG_FILE, stated | {"groups": len(paths), "diverged": diverged})
    return MadeZoo(out, config.networks, diverged, made=True)


def _existing(out: Path, config: MixedConfig, overwrite: bool) -> dict[str, Any] | None:
    """The contents of ``zoo.json`` if ``out`` holds this zoo, finished or not; clears the folder if told to."""
    found = read_config(out) if out.exists() else None
    ours = sorted(out.glob(GROUPS))
    if found is None:
        names = [*(name for name in FILES if (out / name).exists()), *(path.name for path in ours)]
        if names:
            raise ZooError(
                f"{out} holds {', '.join(names[:3])} but no {CONFIG_FILE}: a zoo that was not made by this command, "
                "and that it will not overwrite; choose another folder"
            )
        return None
    if overwrite:
        for path in (out / CONFIG_FILE, *ours):
            path.unlink()
        return None
    old, new = found["config"], _as_json(config)
    if differing := [name for name in sorted({*old, *new}) if old.get(name) != new.get(name)]:
        shown = "; ".join(f"{name} is {old.get(name)!r} there, {new.get(name)!r} asked for" for name in differing)
        raise ZooError(
            f"{out} holds a zoo of another configuration: {shown}; pass overwrite=True (--overwrite) to make it anew, "
            "or choose another folder"
        )
    return found


class _StoppedError(Exception):
    """Raised in the worker threads when the main thread has given up."""


def _train_all(
    paths: Sequence[Path], config: MixedConfig, images: Images, workers: int | None, progress: Progress | None
) -> int:
    """Train and store the groups that are missing; returns how many networks diverged, in all groups."""
    recipes = draw_recipes(config.training)
    size = config.per_architecture
    drawn = [recipes[size * i : size * (i + 1)] for i in range(len(paths))]
    epochs = [sum(r.epochs * r.train_fraction for r in part) for part in drawn]
    work = [max(1, round(e * len(images.train) / config.batch)) for e in epochs]
    diverged = [_diverged_in(path) for path in paths]
    todo = sorted((i for i, count in enumerate(diverged) if count is None), key=lambda i: -work[i])
    done = sum(work) - sum(work[i] for i in todo)
    if progress is not None:
        progress(done, sum(work))
    stop = threading.Event()

    def check() -> None:
        if stop.is_set():
            raise _StoppedError

    def job(number: int) -> int:
        architecture = draw_architecture(config, number, images.size, images.classes)
        group, final, count = _make_group(config, architecture, size * number, drawn[number], images, check)
        write_group(paths[number], group, final, count)
        return number

    threads = torch.get_num_threads()
    pool = ThreadPoolExecutor(workers or (threads if images.x.device.type == "cpu" else 1), initializer=set_up_worker)
    try:
        for future in as_completed([pool.submit(job, number) for number in todo]):
            number = future.result()
            diverged[number] = read_group(paths[number])[1]
            done += work[number]
            if progress is not None:
                progress(done, sum(work))
    finally:
        stop.set()
        pool.shutdown(wait=True, cancel_futures=True)
        torch.set_num_threads(threads)  # a part of the setting is not per thread, but of the whole process
    total = sum(count or 0 for count in diverged)
    if total:
        log.info("%d networks diverged and were replaced", total)
    return total


def _make_group(
    config: MixedConfig,
    architecture: Architecture,
    first: int,
    recipes: Sequence[Recipe],
    images: Images,
    check: Callable[[], None],
) -> tuple[Group, list[Recipe], int]:
    """Train networks number ``first`` and following; those that diverge are drawn again, and counted."""
    recipes = list(recipes)

    def run(chosen: list[int]) -> dict[str, Tensor]:
        tensors, accuracy = train_group(
            [recipes[i] for i in chosen], images, architecture, batch=config.batch, check=check
        )
        return tensors | {"accuracy": accuracy}

    trained = run(list(range(len(recipes))))
    diverged = attempt = 0
    while bad := _unbounded(trained):
        diverged, attempt = diverged + len(bad), attempt + 1
        if attempt > ATTEMPTS:
            raise ZooError(
                f"network {first + bad[0]} diverged {attempt} times: choose smaller learning rates than "
                f"{config.learning_rate} and, for sgd, {config.sgd_learning_rate}"
            )
        for i in bad:
            recipes[i] = redraw(config.training, first + i, attempt, recipes[i])
        for name, values in run(bad).items():
            trained[name][bad] = values
    accuracy = trained.pop("accuracy")
    return Group(trained, accuracy, architecture.space, architecture), recipes, diverged


def _unbounded(trained: dict[str, Tensor]) -> list[int]:
    """Numbers of the networks with an entry that is too large, or NaN."""
    bounded = [(t.abs() <= LARGEST_WEIGHT).flatten(1).all(1) for name, t in trained.items() if name != "accuracy"]
    return (~torch.stack(bounded).all(0)).nonzero().flatten().tolist()


def _diverged_in(path: Path) -> int | None:
    """How many networks diverged while this file's were trained; None if it has to be made."""
    if not path.exists():
        return None
    try:
        return read_group(path)[1]
    except ZooError as error:
        log.warning("its networks are trained again: %s", error)
        return None


def _as_json(config: MixedConfig) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(json.dumps(asdict(config)))  # tuples become lists, as in the file
    return values
