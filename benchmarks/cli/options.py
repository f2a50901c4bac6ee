"""What all commands share: consoles, errors as one line, options that have one meaning, and what makes a command."""

from __future__ import annotations

import functools
import inspect
import logging
import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec, TypeVar, cast, get_args

import typer
from rich.console import Console
from rich.markup import escape

from nfn_monomial.benchmarks.settings import assignment, override
from nfn_monomial.benchmarks.settings.training import Precision
from nfn_monomial.errors import InvalidValueError, MonomialError

if TYPE_CHECKING:  # it imports torch
    from nfn_monomial.benchmarks.calls import Call

__all__ = [
    "OWN_OPTIONS",
    "Device",
    "Networks",
    "command",
    "command_line",
    "configured",
    "console",
    "debug",
    "errors",
    "own_process",
    "prepare_process",
    "split",
    "unfinished_call",
    "user_errors",
]

C = TypeVar("C")
P = ParamSpec("P")
R = TypeVar("R")

console = Console()
errors = Console(stderr=True)
debug: ContextVar[bool] = ContextVar("debug", default=False)  # set before a command runs, read where it fails
own_process: ContextVar[bool] = ContextVar("own_process", default=False)  # whether the process is the command's alone

Networks = Annotated[
    int, typer.Option("--networks", min=1, max=10**6, help="How many networks to train, shared by the activations.")
]
Device = Annotated[str, typer.Option("--device", help="cpu, cuda or cuda:N.")]
_KINDS: dict[str, tuple[Any, Any]] = {
    "networks": (Networks, 1000),
    "augmented": (
        Annotated[bool, typer.Option("--augmented", help="Train on augmented ReLU networks, too, which takes longer.")],
        False,
    ),
    "data": (
        Annotated[
            Path | None,
            typer.Option("--data", help="Folder of networks, made here or published; its format is detected."),
        ],
        None,
    ),
    "zoos": (
        Annotated[
            list[Path],
            typer.Option("--data", help="Folder of networks, made here or published; repeat it for several."),
        ],
        [],
    ),
    "data_options": (
        Annotated[
            list[str],
            typer.Option(
                "--data-option",
                help="key=value for an option of the format of the data, as limit=1000; repeat it for several. "
                "`list formats` has all.",
            ),
        ],
        [],
    ),
    "preset": (
        Annotated[
            str,
            typer.Option(
                "--preset",
                help="small (minutes on 2 cores), paper (its hyperparameters), or others that `list settings` names.",
            ),
        ],
        "small",
    ),
    "assignments": (
        Annotated[
            list[str],
            typer.Option(
                "--set",
                help="key=value for any setting that has no option, as training.epochs=3; repeat it for several. "
                "`list settings` has all.",
            ),
        ],
        [],
    ),
    "models": (
        Annotated[
            str,
            typer.Option("--models", help="Comma-separated; by default the preset's. `list models` has all."),
        ],
        "",
    ),
    "seeds": (
        Annotated[
            int | None, typer.Option("--seeds", min=1, max=1000, help="Number of seeds; by default the preset's.")
        ],
        None,
    ),
    "seed": (Annotated[int, typer.Option("--seed", min=0, max=2**31 - 1, help="First seed.")], 0),
    "device": (Device, "cpu"),
    "devices": (
        Annotated[
            int,
            typer.Option(
                "--devices", min=1, max=1024, help="Processes that share every batch; on cuda, a GPU for each."
            ),
        ],
        1,
    ),
    "precision": (Annotated[str | None, typer.Option("--precision", help=f"{', '.join(get_args(Precision))}.")], None),
    "tensorboard": (
        Annotated[bool, typer.Option("--tensorboard", help="Log epochs to tensorboard/ in the results folder.")],
        False,
    ),
}
"""Option -> its type and default. ``out`` has a default of its own for every command."""
OWN_OPTIONS = {
    "models": "--models",
    "seeds": "--seeds and --seed",
    "device": "--device",
    "training.device": "--device",
    "training.devices": "--devices",
    "training.precision": "--precision",
    "training.tensorboard": "--tensorboard",
}
"""Settings that have an option, which is the one way to set them."""


def command(
    group: typer.Typer, name: str, options: Sequence[str], out: str, text: str, body: Callable[..., None], keeps: bool
) -> None:
    """Add a command.

    Args:
        group: what it belongs to.
        name: of the command.
        options: those that it has, by name; ``out`` comes on top.
        out: the results folder by default, where ``TASK`` may stand for that of the configuration.
        text: the help.
        body: called with the options as keyword arguments.
        keeps: whether finished work in the results folder is kept.
    """
    kept = "finished work in it is kept" if keeps else "what it has of an earlier call is replaced"
    folder = Annotated[
        Path | None,
        typer.Option("--out", "-o", help=f"Folder for the results, by default {out}; {kept}.", show_default=False),
    ]
    kinds = {name: _KINDS[name] for name in options} | {"out": (folder, None)}

    def run(**given: Any) -> None:
        body(**given)

    only = inspect.Parameter.KEYWORD_ONLY
    parameters = [inspect.Parameter(n, only, default=default, annotation=a) for n, (a, default) in kinds.items()]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {n: a for n, (a, _) in kinds.items()}
    group.command(name, help=text)(user_errors(run))


def user_errors(run: Callable[P, R]) -> Callable[P, R]:
    """Show every error as one line; exit with 2 for what a user can mend, 1 for a fault of ours, 130 if interrupted."""

    @functools.wraps(run)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return run(*args, **kwargs)
        except KeyboardInterrupt as interruption:
            errors.print("Interrupted. Finished work is kept: the same command continues from here.", soft_wrap=True)
            raise typer.Exit(getattr(interruption, "code", 130)) from None
        except (ModuleNotFoundError, typer.Exit, typer.Abort):  # the first is explained by the entry point
            raise
        except Exception as error:
            if debug.get():
                raise
            line = escape(" ".join(str(error).split()) or repr(error))
            if isinstance(error, (MonomialError, OSError)):
                errors.print(f"[bold red]error:[/] {line}", soft_wrap=True, highlight=False)
                raise typer.Exit(2) from None
            errors.print(
                f"[bold red]internal error:[/] {type(error).__name__}: {line}. This is a fault of nfn-monomial: please "
                "report it, with what `nfn-monomial --debug` and the same command say",
                soft_wrap=True, highlight=False,
            )  # fmt: skip
            raise typer.Exit(1) from None

    return wrapper


def prepare_process(*, trains: bool = True) -> None:
    """Choices for a process that computes, if it is the command's alone; commands call it first."""
    if not own_process.get():
        return
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # the profiler, which measures memory, writes two lines at its start
    if trains:
        import lightning_fabric  # noqa: F401  (which sets the level of its log, and takes seconds)
    import torch

    # Optimiser states of unused parameters decay to denormal numbers, which a CPU adds 100 times as slowly.
    torch.set_flush_denormal(True)
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)  # every process would say that it is there


def unfinished_call(
    out: Path | None,
    command: str,
    given: Mapping[str, Any],
    checkpoints: Sequence[Path],
    code: Sequence[str | None],
    leaves: str,
    *,
    force: bool,
) -> Call:
    """What an interrupted call of a command for networks of one's own has finished in its folder.

    Args:
        out: the folder, if there is one.
        command: its name.
        given: its options, as far as they determine the results.
        checkpoints: those that it reads, or folders of them.
        code: what else it reads, by path, or ``module.py:NAME``.
        leaves: a file that it writes in any case.
        force: whether files that are there may be replaced.
    """
    from nfn_monomial.benchmarks.calls import Call
    from nfn_monomial.benchmarks.checkpoints.files import files_of

    if out is None:
        return Call()
    named = (text for text in code if text)
    files = [Path(text if Path(text).is_file() else text.rpartition(":")[0]) for text in named]
    inputs = files_of(checkpoints) + [file for file in files if file.is_file()]
    arguments = {"checkpoints": list(map(str, checkpoints)), **given}
    return Call(out, command, arguments, inputs, leaves=[leaves], force=force)


def configured(
    presets: Mapping[str, C],
    preset: str = "small",
    assignments: Sequence[str] = (),
    *,
    models: str = "",
    seeds: int | None = None,
    seed: int = 0,
    **hardware: Any,
) -> C:
    """A preset, changed by options and by ``key=value``.

    Args:
        presets: name -> configuration.
        preset: which.
        assignments: see `override`.
        models: comma-separated names; without any, those of the preset.
        seeds: how many seeds; by default as many as the preset has.
        seed: the first.
        hardware: fields of `TrainConfig`, or of the configuration if it has no training; None leaves the preset's.

    Raises:
        ValueError: for an unknown preset or key, a key that has an option, and as the configuration.
    """
    if preset not in presets:
        raise InvalidValueError(f"unknown preset {preset!r}: choose from {', '.join(presets)}")
    for text in assignments:
        if option := OWN_OPTIONS.get(assignment(text)[0]):
            raise InvalidValueError(f"--set {text}: use {option}, which is the one way to set it")
    config: Any = presets[preset]
    changed: dict[str, Any] = {}
    if models:
        changed["models"] = split(models)
        if hasattr(config, "augmented_models"):
            changed["augmented_models"] = None  # of what was asked for, all
    if hasattr(config, "seeds"):
        changed["seeds"] = tuple(range(seed, seed + (seeds or len(config.seeds))))
    given = {name: value for name, value in hardware.items() if value is not None}
    changed |= {"training": replace(config.training, **given)} if hasattr(config, "training") else given
    return cast("C", override(replace(config, **changed), assignments))


def command_line() -> str:
    """The command as typed."""
    return shlex.join(["nfn-monomial", *sys.argv[1:]])


def split(text: str) -> tuple[str, ...]:
    """The parts between commas."""
    return tuple(part.strip() for part in text.split(",") if part.strip())
