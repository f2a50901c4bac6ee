"""Damaged files: whatever they hold, reading them gives the data of before, or an error of ours that names the file.

``make fuzz FUZZ=20000`` tries so many damages in all, others every time, and prints what came of them.
"""

import contextlib
import functools
import logging
import os
import resource
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from fuzz.damages import REPAIRED, damages
from fuzz.samples import SAMPLES, Facts, facts, make
from hypothesis import given, settings
from hypothesis import strategies as st

from nfn_monomial.errors import MonomialError

EXAMPLES = max(1, int(os.environ.get("FUZZ", 540)) // len(SAMPLES))
SECONDS = 5.0  # of the processor
PATIENCE = 120.0  # by the clock: only something that waits for a pipe takes as long, however busy a machine is
MEMORY = 2**20  # KiB beyond what there was


Benches = Callable[[str], "Bench"]


class TooSlowError(BaseException):
    """Reading takes too long. No `Exception`, as parsers are asked to turn those into errors of ours."""


class Bench:
    """A sample, what it means, how its files are damaged, and what came of that so far."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.mark = name, folder / f"{name}.ran"
        self.sample = make(name, folder)
        self.contents = {file: file.read_bytes() for file in self.sample.victims}
        kinds = {file.suffix: [f for f in self.contents if f.suffix == file.suffix] for file in self.contents}
        self.files = st.one_of(*map(st.sampled_from, kinds.values()))
        self.damages = functools.cache(functools.partial(damages, mark=self.mark))
        self.expected = facts(self.sample.load(self.sample.path))
        self.outcomes: Counter[str] = Counter()
        assert self.expected
        assert valid(self.expected)

    def read(self, file: Path, how: str, load: Callable[[Path], Any]) -> str:
        """What comes of reading: ``refused``, ``same`` data as before, ``other`` valid ones; anything else is wrong."""
        with contextlib.suppress(OSError):  # a process that once took more would not show that it takes more
            Path("/proc/self/clear_refs").write_text("5")
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        try:
            with limited():
                read = load(self.sample.path)  # None comes with a warning
            outcome, text = "refused" if read is None else self.judged(facts(read), file, how), None
        except (MonomialError, OSError) as error:
            outcome, text = "refused", str(error)
        except TooSlowError as error:
            pytest.fail(f"takes more than {error} s")
        if text is not None:
            assert "\n" not in text, f"several lines: {text}"
            assert file.name in text or self.sample.path.name in text, f"names no file: {text}"
        assert not self.mark.exists(), "code in the file ran"
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert grown <= MEMORY, f"{grown} KiB more memory"
        return outcome

    def judged(self, found: Facts, file: Path, how: str) -> str:
        if found.keys() == self.expected.keys() and all(equal(x, self.expected[name]) for name, x in found.items()):
            return "same"
        checksums = file.suffix in (".pt", ".pth") and self.name != "legacy_torch_file"  # an archive's
        # A file less is a smaller set, where none is listed.
        sealed = self.sample.sealed or (checksums and how not in (*REPAIRED, "place"))
        assert not sealed, "damage was taken for data"
        assert valid(found), "this cannot be data"
        return "other"


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """At most 5 seconds of the processor, whatever else it does; nothing is logged."""

    def stop(number: int, _: object) -> None:
        raise TooSlowError(SECONDS if number == signal.SIGPROF else PATIENCE)

    timers = ((signal.SIGPROF, signal.ITIMER_PROF, SECONDS), (signal.SIGALRM, signal.ITIMER_REAL, PATIENCE))
    before = [signal.signal(number, stop) for number, _, _ in timers]
    logging.disable(logging.CRITICAL)
    for _, timer, seconds in timers:
        signal.setitimer(timer, seconds)
    try:
        yield
    finally:
        for (number, timer, _), handler in zip(timers, before, strict=True):
            signal.setitimer(timer, 0)
            signal.signal(number, handler)
        logging.disable(logging.NOTSET)


def equal(a: torch.Tensor | str, b: torch.Tensor | str) -> bool:
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    return isinstance(a, str) and a == b


def valid(found: Facts) -> bool:
    """Whether this can be data of networks, where nobody can tell that it is not the data of before."""
    for name, value in found.items():
        last = name.rpartition("/")[2]
        if not isinstance(value, torch.Tensor) or not name.startswith(("/train", "/val", "/test")):
            continue
        if last in ("label", "image"):
            if value.dtype != torch.int64 or bool((value < 0).any()):
                return False
        elif not bool(value.isfinite().all()) or (last == "accuracy" and not bool(((value >= 0) & (value <= 1)).all())):
            return False
    return True


@contextlib.contextmanager
def damaged(bench: Bench, data: st.DataObject) -> Iterator[tuple[Path, str]]:
    """While one file is damaged: which, and how."""
    file = data.draw(bench.files, "file")
    how, new = data.draw(bench.damages(file))
    file.unlink()
    try:
        new(file) if callable(new) else file.write_bytes(new)
        yield file, how
    finally:
        shutil.rmtree(file) if file.is_dir() and not file.is_symlink() else file.unlink(missing_ok=True)
        bench.mark.unlink(missing_ok=True)
        file.write_bytes(bench.contents[file])


@pytest.fixture(scope="module")
def bench_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Benches]:
    folder, benches = tmp_path_factory.mktemp("fuzz"), {}

    def bench_of(name: str) -> Bench:
        return benches.get(name) or benches.setdefault(name, Bench(name, folder))

    yield bench_of
    for name, bench in benches.items():
        print(f"{name:20} {dict(bench.outcomes)}")


@pytest.mark.parametrize("name", SAMPLES)
@settings(max_examples=EXAMPLES)
@given(data=st.data())
def test_damage_is_an_error_or_does_not_matter(name: str, bench_of: Benches, data: st.DataObject) -> None:
    bench = bench_of(name)
    with damaged(bench, data) as (file, how):
        bench.outcomes[bench.read(file, how, bench.sample.load)] += 1


def grow() -> float:
    """Takes 256 MiB more than this process has ever had at once, whichever tests it has run before."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return float(torch.ones((most + 2**28) // 4).sum())


WRONG_READERS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "another error": (lambda mark: {}["nobody"], "nobody"),
    "other data": (lambda mark: {"weight": torch.zeros(1)}, "damage was taken for data"),
    "too much memory": (lambda mark: grow() and None, "more memory"),
    "runs code": (Path.touch, "code in the file ran"),
}


@pytest.mark.parametrize("wrong", WRONG_READERS)
def test_wrong_readers_are_found(wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "MEMORY", 2**16)
    bench = Bench("torch_file", tmp_path)
    load, message = WRONG_READERS[wrong]
    with pytest.raises((AssertionError, KeyError), match=message):
        bench.read(bench.sample.path, "bytes", lambda path: load(bench.mark))
