"""What all commands share: the application, consoles, errors as one line, and options that have one meaning."""

from __future__ import annotations

import functools
import logging
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ParamSpec, TypeVar, cast, get_args

import rich.progress
import torch
import typer
from rich.console import Console
from rich.markup import escape

from nfn_monomial.benchmarks.models import baselines, graphs, invariant  # noqa: F401  (which register their models)
from nfn_monomial.benchmarks.models.catalogue import model_names
from nfn_monomial.benchmarks.settings import override
from nfn_monomial.benchmarks.settings.training import Precision, TrainConfig
from nfn_monomial.benchmarks.train.devices import is_main_process, make_fabric
from nfn_monomial.benchmarks.train.runs import RunStore, record
from nfn_monomial.benchmarks.train.sweep import Progress

__all__ = [
    "Assignments",
    "BatchSize",
    "DataOptions",
    "DataPath",
    "Device",
    "Devices",
    "Epochs",
    "Models",
    "Out",
    "Precise",
    "Preset",
    "Seed",
    "SeedCount",
    "Seeds",
    "TensorBoard",
    "app",
    "bench_app",
    "command_line",
    "configured",
    "console",
    "errors",
    "inr_app",
    "load_with_bar",
    "main_process_only",
    "numbers",
    "on_hardware",
    "open_store",
    "run",
    "split",
    "training_bar",
    "user_errors",
    "zoo_app",
]

C = TypeVar("C")
D = TypeVar("D")
P = ParamSpec("P")
R = TypeVar("R")

_debug: ContextVar[bool] = ContextVar("debug", default=False)  # set before a command runs, read where it fails
console = Console(quiet=not is_main_process())
errors = Console(stderr=True, quiet=not is_main_process())

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode="markdown",
    help="Neural functionals that respect permutations, scalings and sign flips: the paper's experiments.\n\n"
    "Start with `nfn-monomial demo`, or step by step: `nfn-monomial zoo make` trains many small CNNs, "
    "`nfn-monomial predict-generalization` learns to read their accuracy off their weights.",
)
zoo_app = typer.Typer(no_args_is_help=True, help="Make zoos: many small networks, trained in every way, to learn from.")
bench_app = typer.Typer(no_args_is_help=True, help="Compare speed and memory.")
inr_app = typer.Typer(no_args_is_help=True, help="Make corpora of INRs: one small sine network for every image.")
app.add_typer(zoo_app, name="zoo")
app.add_typer(inr_app, name="inr")
app.add_typer(bench_app, name="bench")

Out = Annotated[Path, typer.Option("--out", "-o", help="Folder for the results; finished work in it is kept.")]
Device = Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")]
Devices = Annotated[int, typer.Option(help="Processes that share every batch; on cuda, a GPU for each.")]
Precise = Annotated[str | None, typer.Option("--precision", help=f"{', '.join(get_args(Precision))}.")]
TensorBoard = Annotated[bool, typer.Option("--tensorboard", help="Log epochs to tensorboard/ in the results folder.")]
Seed = Annotated[int, typer.Option(help="First seed.")]
Seeds = Annotated[int, typer.Option(min=1, help="Number of seeds; results are means over them.")]
SeedCount = Annotated[int | None, typer.Option("--seeds", min=1, help="Number of seeds; by default the preset's.")]
Epochs = Annotated[int, typer.Option(help="Passes over the training networks, unless a model has its own.")]
Preset = Annotated[str, typer.Option(help="small (minutes on 2 cores) or paper (the paper's hyperparameters).")]
Assignments = Annotated[
    list[str],
    typer.Option("--set", help="key=value for any setting, as training.epochs=3; repeat it for several."),
]
DataPath = Annotated[
    Path | None, typer.Option("--data", help="Folder of networks, made here or published; its format is detected.")
]
DataOptions = Annotated[
    list[str],
    typer.Option(
        "--data-option",
        help="key=value for an option of the format of the data, as limit=1000; repeat it for several. An unknown key "
        "lists those that the format has.",
    ),
]
BatchSize = Annotated[int, typer.Option(help="Networks per step.")]
Models = Annotated[
    str,
    typer.Option(
        help=f"Comma-separated; known: {', '.join(model_names())}; each also as balanced-..., behind a canonical form."
    ),
]


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error. Before the command.")] = False,
) -> None:
    """Options that all commands have."""
    _debug.set(debug)


def run() -> None:
    """Entry point."""
    # A process-wide choice, so made here: optimiser states of unused parameters decay to denormal numbers, which a CPU
    # adds 100 times as slowly; and the profiler, which measures memory, would write two lines at every start.
    torch.set_flush_denormal(True)
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)  # every process would say that it is there
    app(prog_name="nfn-monomial")


def user_errors(command: Callable[P, R]) -> Callable[P, R]:
    """Show what a user can mend as one line and exit with 2; say what is kept when interrupted and exit with 130."""

    @functools.wraps(command)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except KeyboardInterrupt:
            errors.print("Interrupted. Finished work is kept: the same command continues from here.")
            raise typer.Exit(130) from None
        except (ValueError, OSError, ImportError) as error:
            if _debug.get():
                raise
            errors.print(f"[bold red]error:[/] {_escape(error)}", soft_wrap=True, highlight=False)
            raise typer.Exit(2) from None

    return wrapper


def _escape(error: BaseException) -> str:
    return escape(" ".join(str(error).split()) or repr(error))


def on_hardware(
    training: TrainConfig,
    device: str = "cpu",
    devices: int = 1,
    precision: str | None = None,
    tensorboard: bool = False,
) -> TrainConfig:
    """The same training there; ``precision`` None leaves that of the training.

    Raises:
        ValueError: if the precision is unknown.
    """
    chosen = cast("Any", precision or training.precision)  # which TrainConfig checks
    return replace(training, device=device, devices=devices, precision=chosen, tensorboard=tensorboard)


def configured(
    presets: Mapping[str, C],
    preset: str,
    assignments: Sequence[str],
    *,
    seeds: int | None = None,
    seed: int = 0,
    hardware: Mapping[str, Any] | None = None,
    **given: Any,
) -> C:
    """A preset, changed by options, then by ``key=value``.

    Args:
        presets: name -> configuration.
        preset: which.
        assignments: see `override`.
        seeds: how many seeds; by default as many as the preset has.
        seed: the first.
        hardware: keyword arguments of `on_hardware`, for a configuration with a ``training``.
        given: field -> value; None leaves that of the preset.

    Raises:
        ValueError: for an unknown preset or key, and as the configuration.
    """
    if preset not in presets:
        raise ValueError(f"unknown preset {preset!r}: choose from {', '.join(presets)}")
    config: Any = presets[preset]
    changed = {name: value for name, value in given.items() if value is not None}
    if hasattr(config, "seeds"):
        changed["seeds"] = tuple(range(seed, seed + (seeds or len(config.seeds))))
    if hardware is not None:
        changed["training"] = on_hardware(config.training, **hardware)
    return cast("C", override(replace(config, **changed), assignments))


def command_line() -> str:
    """The command as typed."""
    return shlex.join(["nfn-monomial", *sys.argv[1:]])


def load_with_bar(load: Callable[..., D], folder: Path, assignments: Sequence[str] = (), **options: Any) -> D:
    """``load(folder, assignments, **options)``, one of `detect`, with a bar while files are read."""
    with rich.progress.Progress(console=console, transient=True) as bar:
        task = bar.add_task(f"reading {folder}", total=None, visible=False)

        def show(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total, visible=True)

        return load(folder, assignments, on_progress=show, **options)


def open_store(out: Path, config: Any, data: Mapping[str, Any]) -> RunStore:
    """The results folder of an experiment, with its ``config.json``; what cannot be done is found out here.

    Args:
        out: the folder.
        config: a configuration with a ``training``.
        data: what is known of the data.
    """
    store = RunStore(out)
    make_fabric(config.training)  # raises if a device is not there
    record(out, command_line(), config, dict(data), config.training.device)
    return store


def main_process_only() -> None:
    """End all other processes. A command calls it after its last training, before it writes tables and figures."""
    if not is_main_process():
        raise typer.Exit


def split(text: str) -> tuple[str, ...]:
    """The parts between commas."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def numbers(text: str) -> tuple[float, ...]:
    """The numbers between commas.

    Raises:
        ValueError: if one is none.
    """
    try:
        return tuple(float(part) for part in split(text))
    except ValueError:
        raise ValueError(f"{text!r}: numbers with commas between are expected, as 1e1,1e6") from None


@contextmanager
def training_bar() -> Iterator[Callable[[Progress], None]]:
    """A bar over all runs and their epochs, and a line for every run that is finished."""
    columns = (
        rich.progress.TextColumn("{task.description}"),
        rich.progress.BarColumn(),
        rich.progress.TaskProgressColumn(),
        rich.progress.TimeElapsedColumn(),
    )
    with rich.progress.Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting", total=None)

        def show(progress: Progress) -> None:
            s = progress.settings
            name = f"{s.subject} {s.model}, {s.train_set}, seed {s.seed}"
            done = progress.number - 1 + (progress.epoch.number / s.training.epochs if progress.epoch else 0)
            if progress.run is not None:
                done = progress.number
                how = "kept" if progress.kept else f"{sum(e['seconds'] for e in progress.run.history):.0f} s"
                tests = progress.run.tests
                metric = next(iter(tests[0].metrics))
                found = ", ".join(f"{t.name} {t.metrics[metric]:.3f}" for t in (tests[0], *tests[1:][-2:]))
                line = f"{progress.number}/{progress.total} {name} ({how}): {metric} {found}"
                bar.console.print(line, markup=False, highlight=False)
            bar.update(task, description=name, completed=done, total=progress.total)

        yield show
