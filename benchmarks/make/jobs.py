"""Making a data set in a folder, part by part: side by side, each stored at once, continued by an equal call."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

from nfn_monomial.errors import InvalidValueError
from nfn_monomial.tools.files import results_folder

__all__ = ["Place", "Progress", "Tick", "make_parts", "progress_bar"]

T = TypeVar("T")
Progress = Callable[[int, int], None]
"""Called as (done, total), in units of work; from any thread, but never twice at a time."""
Tick = Callable[[int], None]
"""Called between steps with the units of work done since the last call, 0 included; what it raises ends the work."""


@dataclass(frozen=True)
class Place:
    """What a data set is called and by which files a command knows its own.

    Attributes:
        what: ``zoo`` or ``corpus``.
        file: states the configuration. Data without it are not ours.
        data: patterns of all other files that are overwritten, in the order of deletion.
        read: folder -> contents of ``file``; raises a ValueError if that is damaged or another program's.
    """

    what: str
    file: str
    data: tuple[str, ...]
    read: Callable[[Path], dict[str, Any]]

    def claim(self, folder: Path, stated: Mapping[str, Any], overwrite: bool) -> dict[str, Any] | None:
        """Contents of the file if a folder holds this very data set, finished or not; None if it is to be begun.

        Args:
            folder: which need not exist.
            stated: what the file of this data set says from the start, as JSON has it; entries, and fields of those
                that are mappings, are compared.
            overwrite: empty the folder of what is ours.

        Raises:
            ValueError: if the folder is a file, or holds data that are not ours, or (unless ``overwrite``) another
                configuration.
        """
        results_folder(folder)
        ours = [path for pattern in self.data for path in sorted(folder.glob(pattern))]
        if not (folder / self.file).exists():
            if ours:
                raise InvalidValueError(
                    f"{folder} holds {', '.join(path.name for path in ours[:3])} but no {self.file}: files that were "
                    "not made by this command, and that it will not overwrite; choose another folder"
                )
            return None
        found = self.read(folder)
        if not overwrite:
            if differing := list(_differing(found, stated)):
                raise InvalidValueError(
                    f"{folder} holds a {self.what} of another configuration: {'; '.join(differing)}; pass "
                    "overwrite=True (--overwrite) to make it anew, or choose another folder"
                )
            return found
        # The file last: data without it would be nobody's.
        for path in (*ours, folder / self.file):
            path.unlink()
        return None


def _differing(found: Mapping[str, Any], stated: Mapping[str, Any]) -> Iterator[str]:
    for name, asked in stated.items():
        there = found.get(name)
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
    progress: Progress | None = None,
) -> tuple[list[T], list[int]]:
    """Make the parts that are missing, those with the most work first.

    Args:
        work: of each part, in any unit.
        read: number of a part -> what is stored of it; None if there is nothing, or nothing of use.
        make: makes a part and stores it. What it does not tell its `Tick` counts when it is finished.
        device: of the work.
        workers: threads, by default as many as torch may use; one on a GPU. Each has torch to itself on one core.
        progress: called at the start, and whenever work is done.

    Returns:
        What is stored of all parts, and the numbers of those that were made now.

    Raises:
        ValueError: if a part that was made cannot be read.
    """
    found = [read(number) for number in range(len(work))]
    todo = sorted((number for number, part in enumerate(found) if part is None), key=lambda number: -work[number])
    done, total = sum(work) - sum(work[number] for number in todo), sum(work)
    lock, stop = threading.Lock(), threading.Event()

    def tell(units: int) -> None:
        nonlocal done
        with lock:
            done += units
            if progress is not None:
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
                found[number] = read(number)
    finally:
        stop.set()
        pool.shutdown(wait=True, cancel_futures=True)
        torch.set_num_threads(threads)  # a part of the setting is not per thread, but of the whole process
    parts = [part for part in found if part is not None]
    if len(parts) < len(found):
        raise InvalidValueError(f"part {found.index(None)} was written but cannot be read back: is the disk full?")
    return parts, todo


def _set_up_worker() -> None:
    torch.set_num_threads(1)  # threads work on parts of their own, which is faster than sharing each small product
    torch.set_flush_denormal(True)  # running means of gradients that are 0 decay to numbers that take 100 times as long


@contextmanager
def progress_bar(title: str = "training the zoo") -> Iterator[Progress]:
    """A bar in the terminal: ``with progress_bar() as progress: make_zoo(..., progress=progress)``."""
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
    with Bar(*columns, TimeElapsedColumn(), TimeRemainingColumn()) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
