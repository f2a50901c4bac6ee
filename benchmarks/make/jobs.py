"""Sets of networks in folders, made shard by shard: side by side, each stored at once, continued by an equal call."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

from nfn_monomial.benchmarks.data.formats.made import (
    COLUMNS,
    SHARDS,
    ZOO_FILE,
    Shard,
    read_shard,
    shard_path,
    stated,
    write_shard,
)
from nfn_monomial.benchmarks.train.runs import environment
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.tools.files.atomic import results_folder, write_json
from nfn_monomial.tools.results import Progress, silent

__all__ = ["Made", "Tick", "claim", "make_parts", "make_set"]

log = logging.getLogger(__name__)

LATER = ("channels",)  # settings that sets may be older than

T = TypeVar("T")
Tick = Callable[[int], None]
"""Called between steps with the units of work done since the last call, 0 included; an error in it ends the work."""


@dataclass(frozen=True)
class Made:
    """A set of networks after a call.

    Attributes:
        path: of its folder.
        networks: their number.
        made: the number of those that this call made.
        summary: of all, see `make_set`.
    """

    path: Path
    networks: int
    made: int
    summary: dict[str, Any]


def make_set(
    out: Path,
    config: Any,
    described: Mapping[str, Any],
    shards: Sequence[Sequence[int]],
    train: Callable[[int, Tick], Shard],
    summarise: Callable[[Sequence[Shard]], dict[str, Any]],
    *,
    overwrite: bool,
    device: torch.device,
    workers: int | None,
    progress: Progress,
    work: Sequence[int] | None = None,
) -> Made:
    """Makes a set of networks of one kind; see `formats.made` for its files.

    Shards are made side by side by ``workers`` threads (default: as many as torch may use; one on a GPU), each stored
    as soon as it is finished. A call that was interrupted is continued by an equal call and ends in the same set, bit
    for bit; one whose set is there makes nothing. Numbers of threads have no influence on the result.

    Args:
        out: the folder.
        config: a dataclass of all that determines the networks.
        described: the other entries of ``zoo.json`` from the start, the kind of the set among them.
        shards: the numbers of the networks in each.
        train: makes a shard.
        summarise: returns the summary of all shards for ``zoo.json``.
        overwrite: replace a set of another configuration.
        device: of the work.
        workers: threads.
        progress: called at the start, and whenever work is done.
        work: of each shard, by default its number of networks.

    Raises:
        ValueError: if the folder is a file, or holds data that are not ours, or (unless ``overwrite``) another
            configuration.
    """
    count = sum(map(len, shards))
    stated_first = {**described, "config": asdict(config), "networks": count, "shards": len(shards)}
    wanted: dict[str, Any] = json.loads(json.dumps(stated_first))  # tuples become lists, as in the file
    older = {**wanted, "config": dict(wanted["config"])}  # as a set states it from before some settings were there
    there, default = stated(out).get("config"), json.loads(json.dumps(asdict(type(config)())))
    for name in LATER:
        if there is not None and name not in there and older["config"].get(name) == default.get(name):
            older["config"].pop(name, None)
    description = claim(out, older, overwrite)
    wanted = older if description else wanted
    if not description:
        write_json(out / ZOO_FILE, wanted)

    def stored(number: int) -> Shard | None:
        """Returns the columns of a shard that is there; None if it has to be made."""
        if not shard_path(out, number).exists():
            return None
        try:
            shard = read_shard(out, number, wanted)
            if shard.numbers != shards[number]:
                raise InvalidValueError(f"{shard_path(out, number)} holds other networks than its place demands")
        except ValueError as error:
            log.warning("its networks are made again: %s", error)
            return None
        return shard._replace(tensors={name: shard.tensors[name].clone() for name in COLUMNS[wanted["kind"]]})

    def make(number: int, tick: Tick) -> None:
        write_shard(out, number, wanted, train(number, tick))

    parts, made = make_parts(
        [len(shard) for shard in shards] if work is None else work,
        stored,
        make,
        device=device,
        workers=workers,
        progress=progress,
    )
    if made or "made" not in description:
        description = wanted | {"made": {**summarise(parts), "environment": environment(str(device))}}
        write_json(out / ZOO_FILE, description)
    return Made(out, count, sum(len(shards[number]) for number in made), description["made"])


def claim(folder: Path, described: Mapping[str, Any], overwrite: bool) -> dict[str, Any]:
    """Returns ``zoo.json`` if a folder holds this very set, finished or not; empty if it is to be begun.

    Raises:
        ValueError: as `make_set`.
    """
    results_folder(folder)
    description, shards = stated(folder), sorted(folder.glob(SHARDS))
    if not description and shards:
        raise InvalidValueError(
            f"{folder} holds {', '.join(path.name for path in shards[:3])} but no {ZOO_FILE}: files that were not made "
            "by this command, and that it will not overwrite; choose another folder"
        )
    differing = list(_differing(description, described)) if description else []
    if not differing:
        return description
    if not overwrite:
        raise InvalidValueError(
            f"{folder} holds networks of another configuration: {'; '.join(differing)}; make them again by "
            "overwrite=True (zoo make --overwrite, inr make --overwrite), or choose another folder"
        )
    for path in shards:  # the file stays until another takes its place: data without it would be nobody's
        path.unlink()
    return {}


def _differing(present: Mapping[str, Any], wanted: Mapping[str, Any]) -> Iterator[str]:
    for name, asked in wanted.items():
        there = present.get(name)
        if isinstance(asked, Mapping):
            there = there if isinstance(there, Mapping) else {}
            yield from _differing(there, {key: asked.get(key) for key in sorted({*there, *asked})})
        elif there != asked:
            yield f"{name} is {there!r} there, {asked!r} asked for"


class _StoppedError(Exception):
    """Raised in the worker threads when a part has failed, or the main thread has given up."""


def make_parts(
    work: Sequence[int],
    read: Callable[[int], T | None],
    make: Callable[[int, Tick], None],
    *,
    device: torch.device,
    workers: int | None = None,
    progress: Progress = silent,
) -> tuple[list[T], list[int]]:
    """Makes the parts that are missing, those with the most work first.

    Args:
        work: of each part, in any unit.
        read: number of a part -> the stored part; None if there is none, or none of use.
        make: makes a part and stores it. Work that it does not tell its `Tick` counts when it is finished.
        device: of the work.
        workers: threads, by default as many as torch may use; one on a GPU. Each has torch to itself on one core.
        progress: called at the start, and whenever work is done, in its unit; from any thread, but never twice at a
            time.

    Returns:
        All stored parts, and the numbers of those that were made now.

    Raises:
        ValueError: if a part that was made cannot be read.
    """
    parts = [read(number) for number in range(len(work))]
    todo = sorted((number for number, part in enumerate(parts) if part is None), key=lambda number: -work[number])
    done, total = sum(work) - sum(work[number] for number in todo), sum(work)
    lock, stop = threading.Lock(), threading.Event()

    def tell(units: int) -> None:
        nonlocal done
        with lock:
            done += units
            progress(done, total)

    def job(number: int) -> int | None:
        left = work[number]

        def tick(units: int) -> None:
            nonlocal left
            if stop.is_set():
                raise _StoppedError
            left -= units
            if units:
                tell(units)

        try:
            tick(0)
            make(number, tick)
            if left:
                tell(left)
            return number
        except _StoppedError:
            return None  # why is told by another part
        except BaseException:
            stop.set()  # here already: the main thread may be late
            raise

    tell(0)
    threads = torch.get_num_threads()
    pool = ThreadPoolExecutor(workers or (threads if device.type == "cpu" else 1), initializer=_set_up_worker)
    try:
        for future in as_completed([pool.submit(job, number) for number in todo]):
            if (number := future.result()) is not None:
                parts[number] = read(number)
    finally:
        stop.set()
        pool.shutdown(wait=True, cancel_futures=True)
        torch.set_num_threads(threads)  # a part of the setting is not per thread, but of the whole process
    read_parts = [part for part in parts if part is not None]
    if len(read_parts) < len(parts):
        raise InvalidValueError(f"part {parts.index(None)} was written but cannot be read back: is the disk full?")
    return read_parts, todo


def _set_up_worker() -> None:
    torch.set_num_threads(1)  # threads work on parts of their own, which is faster than sharing each small product
    torch.set_flush_denormal(True)  # running means of gradients that are 0 decay to numbers that take 100 times as long
