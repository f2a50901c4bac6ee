"""The command ``nfn-monomial``, also ``python -m nfn_monomial.benchmarks``."""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import FrameType

BENCH_PACKAGES = (
    "PIL", "lightning_fabric", "matplotlib", "mlxtend", "pydantic", "rich", "scipy", "sklearn",
    "typer",
)  # fmt: skip
"""What the extra ``[bench]`` installs, as it is imported: by a command when it runs."""


class Terminated(KeyboardInterrupt):
    """Asked to end by another process; what is under way ends as it does on Ctrl-C."""

    code = 128 + signal.SIGTERM


def main() -> None:
    """Run the command line; says what to install if the extra is missing, and one line if it is interrupted."""
    watched = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)} if watched else {}
    try:
        for number in before:
            signal.signal(number, _leave)  # imports may swallow an exception, or show it in many lines
        from nfn_monomial.benchmarks.cli.application import run

        for number in before:
            signal.signal(number, _interrupt)
        run()
    except ModuleNotFoundError as error:
        package = (error.name or "").split(".")[0]
        if package not in BENCH_PACKAGES:
            raise
        sys.exit(f"nfn-monomial needs the package {package}: pip install nfn-monomial[bench]")
    except KeyboardInterrupt as interruption:
        sys.stderr.write("Interrupted.\n")
        sys.exit(getattr(interruption, "code", 130))
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _leave(number: int, frame: FrameType | None) -> None:
    """End at once: nothing has begun."""
    os.write(2, b"Interrupted.\n")
    os._exit(128 + number)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt if number == signal.SIGINT else Terminated


if __name__ == "__main__":
    main()
