"""Errors and interruptions on the command line: one line each, and an exit code that says what it was."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from invoking import invoke, said

from nfn_monomial.errors import InvalidIndexError

SIGNALLED = """
import os, sys
watched, number, *arguments = sys.argv[1:]

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == watched:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), int(number))

sys.meta_path.insert(0, Watch())
sys.argv[1:] = arguments
from nfn_monomial.tools.__main__ import main
main()
"""


@pytest.mark.parametrize(
    ("while_importing", "number", "code", "line"),
    [
        ("typer", 2, 130, "Interrupted."),
        ("torch", 15, 143, "Interrupted: the same command continues, with the work that it has kept."),
    ],
)
def test_a_signal_while_the_command_starts_is_one_line(
    tmp_path, while_importing: str, number: int, code: int, line: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SIGNALLED, while_importing, str(number), "params", "--out", str(tmp_path)],
        capture_output=True, text=True,
    )  # fmt: skip
    assert (done.returncode, done.stdout, " ".join(done.stderr.split())) == (code, "", line)


def failing(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("nfn_monomial.benchmarks.studies.params.params_report", fail)


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (InvalidIndexError("network 5 of\na batch of 3"), 2, "error: network 5 of a batch of 3"),
        (OSError(28, "No space left on device", "a/b"), 2, "error: [Errno 28] No space left on device: 'a/b'"),
        (
            ZeroDivisionError("division by zero"),
            1,
            "internal error: ZeroDivisionError: division by zero. This is a fault of nfn-monomial: please report it, "
            "with what `nfn-monomial --debug` and the same command say",
        ),
        (ValueError("of another library"), 1, "internal error: ValueError: of another library."),
    ],
    ids=lambda value: type(value).__name__,
)
def test_errors_are_one_line(
    error: Exception, code: int, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(error, monkeypatch)
    assert said("params", "--out", tmp_path, code=code).strip().startswith(line)
    assert invoke("--debug", "params", "--out", tmp_path).exception is error
