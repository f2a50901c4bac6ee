"""What all commands share: consoles, errors as one line, and what makes a command."""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec, TypeVar

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from nfn_monomial.errors import InvalidValueError, MonomialError
from nfn_monomial.tools.experiments import missing_extra

if TYPE_CHECKING:  # it imports torch
    from nfn_monomial.tools.results import Results

__all__ = [
    "FORMS",
    "KEY",
    "ORDER",
    "OUTPUT",
    "SKIP",
    "add_command",
    "console",
    "debug",
    "errors",
    "option",
    "own_process",
    "prepare_process",
    "results_of",
    "show",
    "split_names",
    "told_progress",
    "user_errors",
]

P = ParamSpec("P")
R = TypeVar("R")

# Names of files are no markup: ":llama:" would be an emoji, and "[red]" a colour.
console = Console(markup=False, emoji=False)
errors = Console(stderr=True, markup=False, emoji=False)
debug: ContextVar[bool] = ContextVar("debug", default=False)  # set before a command runs, read where it fails
own_process: ContextVar[bool] = ContextVar("own_process", default=False)  # whether the process is the command's alone
FORMS = ".safetensors (a file, or the index of several), .pt or .pth"


def user_errors(run: Callable[P, R]) -> Callable[P, R]:
    """Show every error as one line; exit with 2 for what a user can mend, 1 for a fault of ours, 130 if interrupted."""

    @functools.wraps(run)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return run(*args, **kwargs)
        except KeyboardInterrupt as interruption:
            errors.print("Interrupted: the same command continues, with the work that it has kept.", soft_wrap=True)
            raise typer.Exit(getattr(interruption, "code", 130)) from None
        except (typer.Exit, typer.Abort):
            raise
        except (Exception, SystemExit) as error:
            if debug.get():
                raise
            if isinstance(error.__context__, BrokenPipeError):  # nobody reads on, as behind `| head`
                raise typer.Exit(1) from None
            if isinstance(error, SystemExit):
                error = InvalidValueError(f"the code that was named leaves the program: {error!r}")
            if isinstance(error, ModuleNotFoundError):
                with contextlib.suppress(ModuleNotFoundError):
                    error = missing_extra(error, "this")
            line = " ".join(str(error).split()) or repr(error)
            ours = not isinstance(error, (MonomialError, OSError))
            if ours:
                line = (
                    f"{type(error).__name__}: {line}. This is a fault of nfn-monomial: please report it, with what "
                    "`nfn-monomial --debug` and the same command say"
                )
            errors.print(Text.assemble(("internal " * ours + "error:", "bold red"), " ", line), soft_wrap=True)
            raise typer.Exit(1 if ours else 2) from None

    return wrapper


def option(kind: Any, flags: str, text: str, default: Any = None, **more: Any) -> tuple[Any, Any]:
    """An option for `add_command`: its type, as typer takes it, and its default; ``more``: of `typer.Option`."""
    annotated: Any = Annotated
    return annotated[kind, typer.Option(*flags.split(), help=text, **more)], default


ORDER = {
    "order": option(
        str | None,
        "--order",
        "The layers of a chain in the order in which they run, as fc1,fc2,out, where the file has another.",
    )
}
SKIP = {"skip_bad": option(bool, "--skip-bad", "Leave out files that cannot be used, and say why.", False)}
KEY = {"key": option(str | None, "--key", "Of the state dict in a .pt file that has several.")}
OUTPUT = {
    "as_json": option(bool, "--json", "Print JSON and nothing else.", False),
    "force": option(bool, "--force", "Replace files that are there.", False),
}


def add_command(
    group: typer.Typer, name: str, kinds: Mapping[str, tuple[Any, Any]], text: str, body: Callable[..., None],
    epilog: str | None = None,
) -> None:  # fmt: skip
    """Add a command, whose body is called with all arguments and options by keyword.

    ``kinds``: argument or option, as the body calls it -> its type for typer and its default, ``...`` for none.
    ``epilog``: what the help says behind the options.
    """

    def run(**given: Any) -> None:
        with _answers_alone():
            body(**given)

    only, empty = inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.empty
    parameters = [
        inspect.Parameter(n, only, default=empty if default is ... else default, annotation=a)
        for n, (a, default) in kinds.items()
    ]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {n: a for n, (a, _) in kinds.items()}
    group.command(name, help=text, epilog=epilog)(user_errors(run))


@contextlib.contextmanager
def _answers_alone() -> Iterator[None]:
    """Only `console` writes to the standard output; what else is printed, as by a user's code, goes to stderr."""
    stdout = sys.stdout
    if own_process.get() and sys.stdout and sys.stderr:  # for good: C code, child processes, and what is done at exit
        sys.stdout.flush()
        stdout = os.fdopen(os.dup(1), "w", encoding=sys.stdout.encoding, errors=sys.stdout.errors)
        os.dup2(2, 1)
    console.file = stdout
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        console.file = None  # type: ignore[assignment]  # which is sys.stdout to it


def split_names(text: str | None) -> list[str] | None:
    """Names between commas."""
    return None if text is None else [name.strip() for name in text.split(",")]


def prepare_process() -> None:
    """Choices for a process that computes, if it is the command's alone; commands call it first."""
    if own_process.get():
        import torch

        # Optimiser states of unused parameters decay to denormal numbers, which a CPU adds 100 times as slowly.
        torch.set_flush_denormal(True)


class _Lines:
    """How far a command is, where nobody sees a bar, as in a log: a plain line now and then, none of short work."""

    def __init__(self, command: str) -> None:
        self._command, self._begun = command, time.monotonic()
        self._told, self._told_done = self._begun, 0

    def tell(self, done: int, total: int) -> None:
        """Say it, each 10 seconds if a tenth is new, each 30 seconds in any case; the time left from 2 steps on."""
        now = time.monotonic()
        new = now - self._told >= (10 if 10 * (done - self._told_done) >= total else 30)
        if new and done < total:
            self._told, self._told_done = now, done
            left = (now - self._begun) / max(1, done) * (total - done)
            words = f"{left:.0f} s" if left < 100 else f"{left / 60:.0f} min" if left < 6000 else f"{left / 3600:.1f} h"
            said = f", {words} left" if done > 1 else ""  # of one step, which may be the longest, nothing is known
            errors.print(f"{self._command}: {done} of {total}{said}", soft_wrap=True, highlight=False)


@contextlib.contextmanager
def told_progress(command: str) -> Iterator[Callable[[int, int], None]]:
    """Shows how far a command is: a bar in a terminal, elsewhere a line now and then."""
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    bar = Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal)
    task = bar.add_task(command, total=None)
    lines = _Lines(command)

    def progress(done: int, total: int) -> None:
        bar.update(task, completed=done, total=total)
        if bar.disable:
            lines.tell(done, total)

    with bar:
        yield progress


def results_of(
    out: Path | None,
    command: str,
    arguments: Mapping[str, Any],
    checkpoints: Sequence[Path],
    code: Sequence[str | None],
    leaves: str,
    *,
    force: bool,
) -> Results | None:
    """The folder for the results of a command for networks of one's own; None without ``--out``.

    ``arguments`` are the options that determine the results, ``code`` what is read beside checkpoints, by path or
    ``module.py:NAME``; for the others see `Results`.
    """
    from nfn_monomial.tools.files.checkpoints import files_of
    from nfn_monomial.tools.results import Results, command_key

    if out is None:
        return None
    named = [text for text in code if text]
    files = [Path(text if Path(text).is_file() else text.rpartition(":")[0]) for text in named]
    files += [Path(text[3:], "config.json") for text in named if text.startswith("hf:")]
    arguments = {"checkpoints": list(map(str, checkpoints)), **arguments}
    key = command_key(command, arguments, [*files_of(checkpoints), *files])
    return Results(out, key, leaves=[leaves], force=force)


def show(results: object, as_json: bool, tell: Callable[[], None], paths: Sequence[Path]) -> None:
    """Print JSON and nothing else; or, as ``tell`` does, words and tables, and what was written."""
    if as_json:
        typer.echo(json.dumps(results, indent=1, allow_nan=False), file=console.file)
        return
    tell()
    if paths:
        console.print("", *map(str, paths), sep="\n", highlight=False, soft_wrap=True)
