"""Shared by all commands: consoles, errors as one line, options, progress, and how a command is added."""

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
    "DATA_PANEL",
    "EXPERIMENTS_PANEL",
    "FORMS",
    "KEY",
    "NETWORKS_PANEL",
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
    "progress_bar",
    "results_of",
    "show",
    "show_left_out",
    "shown_progress",
    "split_names",
    "user_errors",
]

P = ParamSpec("P")
R = TypeVar("R")

# Names of files are no markup: ":llama:" would be an emoji, and "[red]" a colour.
console = Console(markup=False, emoji=False)
errors = Console(stderr=True, markup=False, emoji=False)
debug: ContextVar[bool] = ContextVar("debug", default=False)  # set before a command runs, read where it fails
own_process: ContextVar[bool] = ContextVar("own_process", default=False)  # whether it runs nothing but the command
NETWORKS_PANEL, EXPERIMENTS_PANEL, DATA_PANEL = "Your networks", "Experiments", "Data"
"""The groups of commands in the application's help."""
FORMS = ".safetensors (a file, or the index of several), .pt or .pth"


def user_errors(run: Callable[P, R]) -> Callable[P, R]:
    """Shows an error as one line; exits with 2 for one that a user can mend, 1 for a fault of ours, 130 on Ctrl-C."""

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
            if isinstance(error.__context__, BrokenPipeError):  # nobody reads on, as after `| head`
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
    """Makes an option for `add_command`: its type for typer, with ``more`` of `typer.Option`, and its default."""
    annotated: Any = Annotated
    return annotated[kind, typer.Option(*flags.split(), help=text, **more)], default


ORDER = {
    "order": option(
        str | None,
        "--order",
        "The layers of a chain in the order in which they run, such as fc1,fc2,out, if it is not that of the file.",
    )
}
SKIP = {"skip_bad": option(bool, "--skip-bad", "Leave out files that cannot be used, and say why.", False)}
KEY = {"key": option(str | None, "--key", "Key of the state dict in a .pt file that has several.")}
OUTPUT = {
    "as_json": option(bool, "--json", "Print JSON and nothing else.", False),
    "force": option(bool, "--force", "Replace existing files.", False),
}


def add_command(
    group: typer.Typer, name: str, kinds: Mapping[str, tuple[Any, Any]], text: str, body: Callable[..., None],
    panel: str = NETWORKS_PANEL, epilog: str | None = None,
) -> None:  # fmt: skip
    """Adds a command, whose body is called with all arguments and options by keyword.

    ``kinds``: argument or option, as the body calls it -> its type for typer and its default, ``...`` for none.
    ``panel``: the group of commands in the application's help.
    ``epilog``: the end of the help, after the options.
    """

    def run(**options: Any) -> None:
        with _results_alone():
            body(**options)

    only, empty = inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.empty
    parameters = [
        inspect.Parameter(n, only, default=empty if default is ... else default, annotation=a)
        for n, (a, default) in kinds.items()
    ]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {n: a for n, (a, _) in kinds.items()}
    group.command(name, help=text, epilog=epilog, rich_help_panel=panel)(user_errors(run))


@contextlib.contextmanager
def _results_alone() -> Iterator[None]:
    """Lets only `console` write to the standard output; other output, as of a user's code, goes to stderr."""
    stdout = sys.stdout
    if own_process.get() and sys.stdout and sys.stderr:  # for good: also C code, child processes, and code at exit
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
    """Splits names at commas."""
    return None if text is None else [name.strip() for name in text.split(",")]


def prepare_process() -> None:
    """Sets up a process that runs nothing but a command; commands that compute call it first."""
    if own_process.get():
        import torch

        # Optimiser states of unused parameters decay to denormal numbers, which a CPU adds 100 times as slowly.
        torch.set_flush_denormal(True)


def progress_bar() -> Progress:
    """A bar on stderr, if that is a terminal: not in a notebook or a log, even one that asks for colours."""
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    # A notebook gives the programs that it starts a terminal of their own.
    seen = errors.file.isatty() and "JPY_PARENT_PID" not in os.environ
    return Progress(*columns, console=errors, transient=True, disable=not seen)


@contextlib.contextmanager
def shown_progress(command: str) -> Iterator[Callable[[int, int], None]]:
    """Shows the progress of a command: by a bar in a terminal, elsewhere, as in a log, by a line now and then.

    Lines come each 10 seconds if a tenth is new, each 30 seconds in any case; there are none of short work.
    """
    bar = progress_bar()
    task = bar.add_task(command, total=None)
    begun = shown_at = time.monotonic()
    shown_done = 0

    def progress(done: int, total: int) -> None:
        nonlocal shown_at, shown_done
        bar.update(task, completed=done, total=total)
        now = time.monotonic()
        due = now - shown_at >= (10 if 10 * (done - shown_done) >= total else 30)
        if bar.disable and due and done < total:
            shown_at, shown_done = now, done
            left = (now - begun) / max(1, done) * (total - done)
            words = f"{left:.0f} s" if left < 100 else f"{left / 60:.0f} min" if left < 6000 else f"{left / 3600:.1f} h"
            words = f", {words} left" if done > 1 else ""  # the first step may be the longest
            errors.print(f"{command}: {done} of {total}{words}", soft_wrap=True, highlight=False)

    with contextlib.nullcontext() if bar.disable else bar:  # older versions of rich end one with an empty line
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
    """Returns the folder for the results of a command for a user's own networks; None without ``--out``.

    ``arguments`` are the options that determine the results. ``code`` are the other files that are read, each a path or
    ``module.py:NAME``. For the rest see `Results`.
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


def show_left_out(skipped: Mapping[str, str]) -> None:
    """Prints a line for each file that ``--skip-bad`` left out; ``skipped``: path -> reason."""
    from nfn_monomial.tools.checkpoints.finding import left_out

    for line in left_out(skipped):
        console.print(line, soft_wrap=True, highlight=False)


def show(results: object, as_json: bool, print_tables: Callable[[], None], paths: Sequence[Path]) -> None:
    """Prints JSON and nothing else; or words and tables, and the paths of the files that were written."""
    if as_json:
        typer.echo(json.dumps(results, indent=1, allow_nan=False), file=console.file)
        return
    print_tables()
    if paths:
        console.print("", *map(str, paths), sep="\n", highlight=False, soft_wrap=True)
