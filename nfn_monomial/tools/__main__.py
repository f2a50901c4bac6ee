"""The command ``nfn-monomial``, also ``python -m nfn_monomial.tools``."""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import FrameType

from nfn_monomial.errors import MissingExtraError
from nfn_monomial.tools.experiments import missing_extra


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
        from nfn_monomial.tools.cli.application import run

        for number in before:
            signal.signal(number, _interrupt)
        run()
    except ModuleNotFoundError as error:
        sys.exit(f"error: {missing_extra(error, 'nfn-monomial')}")
    except MissingExtraError as error:
        sys.exit(f"error: {error}")
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
