"""The commands `ablation`, `augment`, `params` and `cost`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from nfn_monomial.benchmarks.data.formats.detection import load_generalization
from nfn_monomial.benchmarks.data.networks import Corpus
from nfn_monomial.benchmarks.files import write_atomically
from nfn_monomial.benchmarks.report.figures import draw_figure
from nfn_monomial.benchmarks.report.results import markdown, rich_tables, summarise
from nfn_monomial.benchmarks.report.tables import Table
from nfn_monomial.benchmarks.settings.generalization import ABLATION, AUGMENT, STACKS
from nfn_monomial.benchmarks.settings.measurements import COST, PARAMS
from nfn_monomial.benchmarks.settings.training import TrainConfig
from nfn_monomial.benchmarks.studies import ablation as ablation_study
from nfn_monomial.benchmarks.studies import augment as augment_study
from nfn_monomial.benchmarks.studies import cost, params
from nfn_monomial.benchmarks.studies.figures import draw_ablation, draw_costs, draw_params, draw_training_curves
from nfn_monomial.benchmarks.studies.param_tables import claims_table, layer_table, model_tables
from nfn_monomial.benchmarks.studies.predict import predict_generalization
from nfn_monomial.benchmarks.train.devices import make_fabric
from nfn_monomial.benchmarks.train.runs import environment, record

from .common import (
    Assignments,
    DataOptions,
    DataPath,
    Device,
    Devices,
    Models,
    Out,
    Precise,
    Preset,
    Seed,
    SeedCount,
    TensorBoard,
    app,
    command_line,
    configured,
    console,
    load_with_bar,
    main_process_only,
    open_store,
    split,
    training_bar,
    user_errors,
)

__all__ = ["ablation", "augment", "cost_command", "params_command"]

DEFAULT_DATA = Path("zoos/digits")


@app.command("ablation")
@user_errors
def ablation(
    data: DataPath = None,
    data_options: DataOptions = [],  # noqa: B006 (as assignments)
    preset: Preset = "small",
    assignments: Assignments = [],  # noqa: B006 (typer's way to say: none; nothing changes it)
    activations: Annotated[str, typer.Option(help="Comma-separated; the paper's table is of relu.")] = "relu",
    models: Annotated[str, typer.Option(help=f"Comma-separated, by default all: {', '.join(STACKS)}.")] = "",
    out: Out = Path("results/ablation"),
    seeds: SeedCount = None,
    seed: Seed = 0,
    device: Device = "cpu",
    devices: Devices = 1,
    precision: Precise = None,
    tensorboard: TensorBoard = False,
) -> None:
    """The paper's ablation: one to three equivariant layers, with and without a layer of HNP (Table 24).

    Trains six stacks on the zoo's training networks and tests them as `predict-generalization` does, under scales up
    to 1e4. Writes `table.md`, `results.json`, `ablation.png` and `config.json` to the results folder. Finished runs are
    kept: a second call does only what is missing. About five minutes on 2 cores with a zoo of 1000 networks.

    Examples:

    - `nfn-monomial zoo make && nfn-monomial ablation`

    - `nfn-monomial ablation --activations relu,tanh --seeds 1 --models mnf-1,mnf-1-hnp`
    """
    hardware = {"device": device, "devices": devices, "precision": precision, "tensorboard": tensorboard}
    chosen = split(models) or None
    config = configured(
        ABLATION,
        preset,
        assignments,
        seeds=seeds,
        seed=seed,
        hardware=hardware,
        models=chosen,
        activations=split(activations),
    )
    if other := [name for name in config.models if name not in STACKS]:
        raise ValueError(f"{', '.join(other)}: not of the ablation; choose from {', '.join(STACKS)}")
    corpora, source = _corpora(data, data_options, split(activations))
    store = open_store(out, config, source)
    with training_bar() as show:
        runs = predict_generalization(corpora, config, store, show)
    main_process_only()
    tables = ablation_study.ablation_tables(runs)
    results = {
        "runs": [{"name": run.settings.name, "tests": [asdict(test) for test in run.tests]} for run in runs],
        "published": {"source": "paper Table 24: ReLU networks of CIFAR-10", "tau": ablation_study.PUBLISHED},
        "environments": [run.environment for run in runs[:1]],
    }
    _finish(out, "\n".join(table.markdown() for table in tables), results, {"ablation.png": draw_ablation(runs)})
    _show(tables)


@app.command("augment")
@user_errors
def augment(
    data: DataPath = None,
    data_options: DataOptions = [],  # noqa: B006 (as assignments)
    preset: Preset = "small",
    assignments: Assignments = [],  # noqa: B006 (see ablation)
    per_scale: Annotated[
        bool | None,
        typer.Option(
            "--per-scale/--one-set",
            help="One augmented set for every range of scales, tested on that range, as the paper does; or one for all "
            "ranges. By default the preset's.",
        ),
    ] = None,
    models: Models = "",
    out: Out = Path("results/augment"),
    seeds: SeedCount = None,
    seed: Seed = 0,
    device: Device = "cpu",
    devices: Devices = 1,
    precision: Precise = None,
    tensorboard: TensorBoard = False,
) -> None:
    """Augmentation against symmetry: tau under scales up to 1e6 (Figure 1, Tables 2 and 12 to 15), and training curves.

    Trains models on the networks as they are and augmented by random group elements, and tests them as
    `predict-generalization` does. Then trains on moved copies of the networks alone, in float64: the loss of an
    invariant model is the one on the original networks, to rounding. Writes `table.md`, `results.json`, `figure1.png`,
    `training_curves.png` and `config.json`. Finished runs are kept: a second call does only what is missing. About
    ten minutes on 2 cores with a zoo of 1000 networks.

    Examples:

    - `nfn-monomial augment --models hnp,monomial --set scales=10,1e6`

    - `nfn-monomial augment --data cifar10 --preset paper --device cuda`
    """
    config = configured(
        AUGMENT, preset, assignments, seeds=seeds, seed=seed,
        hardware={"device": device, "devices": devices, "precision": precision, "tensorboard": tensorboard},
        models=split(models) or None,
        per_scale=per_scale,
    )  # fmt: skip
    corpora, source = _corpora(data, data_options, config.activations)
    store = open_store(out, config, source)
    with training_bar() as show:
        runs, shown = augment_study.augment_study(corpora, config, store, show)
    curves: list[augment_study.Curves] = []
    if config.curve_models:
        with training_bar() as show:
            curves = augment_study.training_curves(corpora, config, store, show)
    main_process_only()
    rows = summarise(shown)
    tables = augment_study.published_tables()
    figures = {"figure1.png": draw_figure(rows)}
    if curves:
        tables.insert(0, augment_study.curves_table(curves))
        figures["training_curves.png"] = draw_training_curves(curves)
    text = "\n".join([markdown(rows), *(table.markdown() for table in tables)])
    if config.per_scale:
        text = f"{augment_study.PER_SCALE}\n\n{text}"
    results = {
        "rows": [asdict(row) for row in rows],
        "curves": [c.record() for c in curves],
        "runs": [run.settings.name for run in runs],
        "environments": [run.environment for run in runs[:1]],
    }
    _finish(out, text, results, figures)
    for rich in rich_tables(rows, console.width):
        console.print("", rich, sep="\n")
    _show(tables)


@app.command("params")
@user_errors
def params_command(
    preset: Preset = "small",
    assignments: Assignments = [],  # noqa: B006 (see ablation)
    out: Out = Path("results/params"),
) -> None:
    """Count the parameters of one layer and of every model, against the paper's (Tables 1, 17, 21, 22). Seconds.

    Writes `table.md`, `results.json`, `params.png` and `config.json`. Nothing is trained: both presets are the same.

    Examples:

    - `nfn-monomial params`

    - `nfn-monomial params --set sizes=784,128,128,10 --set kernel=1 --set channels=1,16`
    """
    config = configured(PARAMS, preset, assignments)
    record(out, command_line(), config, {}, "cpu")
    counts = params.layer_counts(config)
    tables = [layer_table(counts, config), claims_table(config), *model_tables()]
    results = {"layers": [asdict(c) for c in counts], "tables": [asdict(table) for table in tables]}
    _finish(out, "\n".join(t.markdown() for t in tables), results, {"params.png": draw_params(config)})
    _show(tables)


@app.command("cost")
@user_errors
def cost_command(
    preset: Preset = "small",
    assignments: Assignments = [],  # noqa: B006 (see ablation)
    models: Models = "",
    out: Out = Path("results/cost"),
    device: Device = "cpu",
) -> None:
    """Run time and memory of training for every model in one run, relative to HNP (Tables 10 and 11).

    Models take turns, step by step, on networks with random weights: time and memory do not depend on the weights, and
    no zoo is needed. About five minutes on 2 cores; use an idle machine. Writes `table.md`, `results.json`, `cost.png`
    and `config.json`.

    Examples:

    - `nfn-monomial cost`

    - `nfn-monomial cost --models np,hnp,gnn,monomial --device cuda --set batch_sizes=8,64,512`
    """
    config = configured(COST, preset, assignments, models=split(models) or None, device=device)
    make_fabric(TrainConfig(device=config.device))  # raises if there is no such device
    record(out, command_line(), config, {"networks": "random weights"}, config.device)
    with console.status("timing") as status:
        costs = cost.measure_costs(config, lambda text: status.update(f"timing {text}"))
    machine = environment(config.device)
    settings = dict.fromkeys((c.activation, c.batch) for c in costs)
    where = f"{machine['device']}, {machine['threads']} threads" if config.device == "cpu" else machine["device"]
    tables = [
        cost.cost_table([c for c in costs if (c.activation, c.batch) == setting], config.networks, where)
        for setting in settings
    ]
    tables.append(cost.published_table())
    results = {"costs": [asdict(c) for c in costs], "environment": machine}
    _finish(out, "\n".join(t.markdown() for t in tables), results, {"cost.png": draw_costs(costs)})
    _show(tables)


def _corpora(
    data: Path | None, data_options: Sequence[str], activations: Sequence[str]
) -> tuple[dict[str, Corpus], dict[str, Any]]:
    """The networks with these activations, and what is recorded of them."""
    folder = data or DEFAULT_DATA
    if data is None and not folder.exists():
        raise ValueError(f"{folder} is not there: make it by `nfn-monomial zoo make`, or give another zoo by --data")
    found = load_with_bar(load_generalization, folder, data_options)
    corpora = {name: corpus for name, corpus in found.items() if name in activations}
    if not corpora:
        raise ValueError(f"{folder} has networks with {', '.join(found)}, none with {', '.join(activations)}")
    for name, corpus in corpora.items():
        train, val, test = (sum(map(len, parts)) for parts in (corpus.train, corpus.val, corpus.test))
        console.print(f"{name}: {train} training, {val} validation, {test} test networks", highlight=False)
    return corpora, {"path": str(folder), **{name: dict(corpus.source) for name, corpus in corpora.items()}}


def _finish(out: Path, text: str, results: Mapping[str, Any], figures: Mapping[str, bytes]) -> None:
    """Write ``table.md``, ``results.json`` and the figures."""
    write_atomically(out / "table.md", text.encode())
    write_atomically(out / "results.json", (json.dumps(results, indent=1, default=str) + "\n").encode())
    for name, png in figures.items():
        write_atomically(out / name, png)
    console.print(*(f"{out / name}" for name in ("table.md", "results.json", *figures)), sep="\n", highlight=False)


def _show(tables: Sequence[Table]) -> None:
    """Tables in the terminal, one that is too wide in parts that repeat its first column."""
    for table in tables:
        for part in _parts(table, console.width):
            console.print("", part.rich(console.width), sep="\n")


def _parts(table: Table, width: int) -> list[Table]:
    columns = zip(table.header, *table.cells, strict=True)
    least = [max([6, *(len(word) for cell in column for word in cell.split())]) + 1 for column in columns]
    groups = [[0]]
    for i in range(1, len(least)):
        if len(groups[-1]) > 1 and sum(least[j] for j in (*groups[-1], i)) > width + 1:
            groups.append([0])
        groups[-1].append(i)
    return [
        replace(
            table,
            title=table.title + ", continued" * (group is not groups[0]),
            header=tuple(table.header[i] for i in group),
            cells=tuple(tuple(line[i] for i in group) for line in table.cells),
            text_columns=sum(i < table.text_columns for i in group),
            notes=table.notes if group is groups[-1] else (),
        )
        for group in groups
    ]
