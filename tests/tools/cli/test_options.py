"""Bars of progress: on stderr, and only where somebody sees them move."""

import os
import pty
import subprocess
import sys

import pytest

BARS = """
from nfn_monomial.benchmarks.cli.experiments import bar_of_runs
from nfn_monomial.benchmarks.settings.register import News
from nfn_monomial.tools.cli.options import console, shown_progress
with shown_progress("reading") as progress:
    progress(1, 2)
with bar_of_runs() as tell:
    tell(News("training", 1, 2, "a run is finished"))
console.print("results")
"""


def bars(terminal: bool, **environment: str) -> tuple[str, str]:
    """The words on stdout and on stderr, which is a terminal or not."""
    kept = {
        name: value for name, value in os.environ.items() if name not in ("FORCE_COLOR", "NO_COLOR", "JPY_PARENT_PID")
    }
    ours, theirs = pty.openpty()
    try:
        done = subprocess.run(
            [sys.executable, "-c", BARS],
            stdout=subprocess.PIPE,
            stderr=theirs if terminal else subprocess.PIPE,
            env=kept | {"TERM": "xterm"} | environment,
            check=True,
        )
        os.write(theirs, b"\nend\n")
        seen = b""
        while b"end" not in seen:
            seen += os.read(ours, 2**16)
        return done.stdout.decode(), (seen if terminal else done.stderr).decode()
    finally:
        os.close(ours)
        os.close(theirs)


def test_a_terminal_shows_bars_on_stderr() -> None:
    out, err = bars(terminal=True)
    assert out == "results\n"
    assert [words for words in ("reading", "training", "a run is finished", "\x1b[") if words not in err] == []


@pytest.mark.parametrize("colours", [{}, {"FORCE_COLOR": "1"}], ids=["plain", "colours"])
def test_a_log_has_lines_and_no_bars_even_if_it_asks_for_colours(colours: dict[str, str]) -> None:
    out, err = bars(terminal=False, **colours)
    assert (out, err) == ("results\n", "a run is finished\n")


def test_a_notebook_has_no_bars() -> None:
    """It starts programs in a terminal of their own, whose output it keeps."""
    out, err = bars(terminal=True, JPY_PARENT_PID="1")
    assert out == "results\n"
    assert [words for words in ("reading", "training", "a run is finished") if words in err] == ["a run is finished"]
