"""One trial: damage a file, read it, and say what came of it."""

from __future__ import annotations

import contextlib
import logging
import random
import resource
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from nfn_monomial.errors import MonomialError

from .mutations import OF_BYTES, OF_MEANING, REPAIRS
from .samples import Facts, Sample, facts, make

SECONDS = 5.0  # of the processor
PATIENCE = 120.0  # by the clock: only something that waits for a pipe takes as long, however busy a machine is
MEMORY = 2**20  # KiB beyond what there was
CHECKSUMS = (".pt", ".pth", ".ckpt")  # an archive's


class TooSlowError(BaseException):
    """Reading takes too long. No `Exception`, as parsers are asked to turn those into errors of ours."""


class Outcome(NamedTuple):
    """``kind``: ``same`` (the data of before), ``refused`` (an error of ours), ``other`` (other data, valid), or
    ``FAULT``; ``detail``: the error or the fault.
    """

    kind: str
    detail: str


class Bench:
    """A sample, what it means, and one damage after another."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.sample: Sample = make(name, folder)
        self.contents = {file: file.read_bytes() for file in self.sample.victims}
        self.mark = folder / f"{name}.ran"
        self.expected = facts(self.sample.load(self.sample.path))
        assert self.expected
        assert _invalid(self.expected) is None

    def trial(self, number: int) -> tuple[str, Outcome]:
        """What was done, and what came of it; the same for the same number."""
        with self.damaged(number) as (file, how):
            return f"{self.name}/{number}: {how} {file.name}", self._read(file, how)

    @contextlib.contextmanager
    def damaged(self, number: int) -> Iterator[tuple[Path, str]]:
        """While one file is damaged: which, and by what."""
        rng = random.Random(f"{self.name}/{number}")
        kinds = {file.suffix: [f for f in self.sample.victims if f.suffix == file.suffix] for file in self.contents}
        file = rng.choice(rng.choice(list(kinds.values())))
        able = list(OF_BYTES) if self.sample.slow else [*OF_BYTES, *OF_MEANING, *OF_MEANING]
        try:
            while True:
                how = rng.choice(able)
                if how in OF_BYTES:
                    file.write_bytes(OF_BYTES[how](self.contents[file], rng))
                    break
                if OF_MEANING[how](file, rng, self.mark):
                    break
            yield file, how
        finally:
            self._restore(file)

    def _restore(self, file: Path) -> None:
        if file.is_dir() and not file.is_symlink():
            shutil.rmtree(file)
        file.unlink(missing_ok=True)
        file.write_bytes(self.contents[file])

    def _read(self, file: Path, how: str) -> Outcome:
        with contextlib.suppress(OSError):  # a process that once took more would not show that it takes more
            Path("/proc/self/clear_refs").write_text("5")
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        found: Facts | None = None
        try:
            with _limited():
                result = self.sample.load(self.sample.path)
                found = None if result is None else facts(result)
            outcome = Outcome("refused", "a warning") if found is None else self._judged(found, file, how)
        except MonomialError as error:
            text = str(error)
            outcome = Outcome("refused", text) if text and "\n" not in text else Outcome("FAULT", f"lines: {text!r}")
        except OSError as error:
            outcome = Outcome("refused" if error.filename else "FAULT", repr(error))
        except TooSlowError as error:
            outcome = Outcome("FAULT", f"more than {error} s")
        except Exception as error:  # each of which is a fault
            outcome = Outcome("FAULT", repr(error)[:500])
        if (grown := resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) > MEMORY:
            return Outcome("FAULT", f"{grown} KiB more memory; {outcome}")
        if self.mark.exists():
            self.mark.unlink()
            return Outcome("FAULT", "code in the file ran")
        return outcome

    def _judged(self, found: Facts, file: Path, how: str) -> Outcome:
        if _same(found, self.expected):
            return Outcome("same", "")
        checked = file.suffix in CHECKSUMS and how not in REPAIRS and self.name != "legacy_torch_file"
        if self.sample.sealed or (
            checked and how != "other_kind"
        ):  # a file less is a smaller set, where none is listed
            return Outcome("FAULT", f"damage was taken for data: {_difference(found, self.expected)}")
        wrong = _invalid(found)
        return Outcome("FAULT", wrong) if wrong else Outcome("other", "")


@contextlib.contextmanager
def _limited() -> Iterator[None]:
    """At most 5 seconds of the processor, whatever else it does; nothing is logged."""

    def stop(*_: object) -> None:
        raise TooSlowError(SECONDS)

    def give_up(*_: object) -> None:
        raise TooSlowError(PATIENCE)

    handlers = [(signal.SIGPROF, stop), (signal.SIGALRM, give_up)]
    before = [signal.signal(number, handler) for number, handler in handlers]
    logging.disable(logging.CRITICAL)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        logging.disable(logging.NOTSET)
        for (number, _), handler in zip(handlers, before, strict=True):
            signal.signal(number, handler)


def _same(found: Facts, expected: Facts) -> bool:
    return found.keys() == expected.keys() and all(_equal(value, expected[name]) for name, value in found.items())


def _equal(a: Tensor | str, b: Tensor | str) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    return isinstance(a, str) and a == b


def _difference(found: Facts, expected: Facts) -> str:
    names = [
        n for n in {**found, **expected} if n not in found or n not in expected or not _equal(found[n], expected[n])
    ]
    return ", ".join(names)


def _invalid(found: Facts) -> str | None:
    """Why this cannot be data, where nobody can tell that it is not the data of before."""
    for name, value in found.items():
        if not isinstance(value, Tensor):
            continue
        last = name.rpartition("/")[2]
        if last in ("label", "image"):
            if value.dtype != torch.int64 or bool((value < 0).any()):
                return f"{name} is {value}"
        elif any(part in name for part in ("train", "val", "test")) and not bool(torch.isfinite(value).all()):
            return f"{name} is not finite"
        elif last == "accuracy" and not bool(((value >= 0) & (value <= 1)).all()):
            return f"{name} is {value}"
    return None
