"""The commands `bench layers` and `bench expressivity`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nfn_monomial.benchmarks.make.jobs import progress_bar
from nfn_monomial.benchmarks.settings.training import TrainConfig
from nfn_monomial.benchmarks.train.devices import make_fabric

from .common import BatchSize, Device, Epochs, Out, Seed, Seeds, bench_app, console, numbers, split, user_errors

__all__ = ["bench_expressivity_command", "bench_layers_command"]


@bench_app.command("layers")
@user_errors
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
    from nfn_monomial.benchmarks.speed.layers import bench_layers, rich_tables, write

    make_fabric(TrainConfig(device=device))  # raises if there is no such device
    sizes = [int(n) for n in numbers(batches)]
    with console.status("timing") as status:
        timings = bench_layers(sizes, channels, repeats, device, lambda text: status.update(f"timing {text}"))
    record, table = write(timings, out, device)
    console.print("Medians of forward, and of forward + backward (both); their ratios in the same order.")
    for shown in rich_tables(timings):
        console.print(shown)
    console.print(f"Table: {table}\nData:  {record}", highlight=False)
    if graphs:
        _bench_graphs(sizes, width, [int(n) for n in numbers(widths)], repeats, out, device, compiled)


def _bench_graphs(
    batches: list[int], width: int, widths: list[int], repeats: int, out: Path, device: str, compiled: bool
) -> None:
    from nfn_monomial.benchmarks.speed.graphs import bench_graphs
    from nfn_monomial.benchmarks.speed.report import rich_tables, write
    from nfn_monomial.benchmarks.speed.scaling import bench_scaling

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
@user_errors
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
    from nfn_monomial.benchmarks.settings.measurements import ExpressivityConfig
    from nfn_monomial.benchmarks.studies.expressivity import bench_expressivity, rich_table, write

    config = ExpressivityConfig(
        activations=split(activations),
        sizes=tuple(int(n) for n in numbers(sizes)),
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
