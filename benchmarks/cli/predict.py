"""The commands `predict-generalization` and `demo`."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from nfn_monomial.benchmarks.data.formats.detection import load_generalization
from nfn_monomial.benchmarks.data.networks import Corpus
from nfn_monomial.benchmarks.make.recipes import ZooConfig
from nfn_monomial.benchmarks.make.zoo import make_zoo
from nfn_monomial.benchmarks.report.results import rich_tables, summarise, write_report
from nfn_monomial.benchmarks.settings import override
from nfn_monomial.benchmarks.settings.generalization import PREDICT as PRESETS
from nfn_monomial.benchmarks.settings.generalization import PredictConfig
from nfn_monomial.benchmarks.settings.training import TrainConfig
from nfn_monomial.benchmarks.studies.predict import (
    behind_balance,
    default_models,
    predict_generalization,
)
from nfn_monomial.benchmarks.train.devices import make_fabric, on_main_process_first

from .common import (
    Assignments,
    BatchSize,
    DataOptions,
    DataPath,
    Device,
    Devices,
    Epochs,
    Models,
    Out,
    Precise,
    Preset,
    Seed,
    SeedCount,
    Seeds,
    TensorBoard,
    app,
    configured,
    console,
    load_with_bar,
    main_process_only,
    numbers,
    on_hardware,
    open_store,
    split,
    training_bar,
    user_errors,
)
from .zoo import make

__all__ = ["demo", "predict"]

SHORT_LIST = ",".join(PredictConfig().models)


@app.command("predict-generalization")
@user_errors
def predict(
    zoo: Annotated[
        Path | None, typer.Argument(help="Folder of a zoo, as --data; by default zoos/digits.", show_default=False)
    ] = None,
    data: DataPath = None,
    data_options: DataOptions = [],  # noqa: B006 (as assignments)
    preset: Preset = "small",
    assignments: Assignments = [],  # noqa: B006 (typer's way to say: none; nothing changes it)
    out: Out = Path("results/predict"),
    models: Models = "",
    balance: Annotated[
        bool, typer.Option("--balance", help="Put a canonical form in front of all models that know permutations only.")
    ] = False,
    activations: Annotated[str, typer.Option(help="Comma-separated; by default all that the zoo has.")] = "",
    train_sets: Annotated[str, typer.Option(help="Comma-separated: original, augmented.")] = "",
    scales: Annotated[str, typer.Option(help="Largest scales of the test networks, as 1e1,1e6.")] = "",
    seeds: SeedCount = None,
    seed: Seed = 0,
    epochs: Annotated[int | None, typer.Option(help="Passes over the training networks.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Networks per step.")] = None,
    limit: Annotated[int | None, typer.Option(help="Use that many training networks.")] = None,
    split_file: Annotated[Path | None, typer.Option(help="Order of the zoo's rows (nfn's *_split.csv).")] = None,
    split_order: Annotated[
        str | None, typer.Option(help="activation-then-split (the paper) or split-then-activation (ScaleGMN).")
    ] = None,
    unseen_architectures: Annotated[
        bool, typer.Option("--unseen-architectures", help="Of a mixed zoo, test on architectures not trained on.")
    ] = False,
    device: Device = "cpu",
    devices: Devices = 1,
    precision: Precise = None,
    tensorboard: TensorBoard = False,
) -> None:
    """Predict the test accuracy of CNNs from their weights, under permutations, scalings and sign flips (Sec. 6.1).

    Trains every model on the zoo's training networks, as they are and augmented by random group elements, selects the
    epoch by Kendall's tau on the validation networks, and tests on the test networks as they are, moved by the group,
    and with more neurons but the same functions. Writes `table.md`, `results.json`, `figure1.png` and `config.json` to
    the results folder. Finished runs are kept, and an unfinished one continues: a second call does only what is
    missing. Networks of different architectures are read by the models on graphs.

    Presets: small, eight models, 12 epochs, some six minutes on 2 cores with a zoo of 1000 networks; paper, its models
    and hyperparameters. `--models all`: all models that can read the networks, which takes hours, most of it for those
    on graphs. Options, too, are part of the configuration: `--set widen=2`, `--set loss=rank`,
    `--set augment_scale=none`, `--set training.learning_rate=3e-4`.

    Examples:

    - `nfn-monomial predict-generalization zoos/digits`

    - `nfn-monomial predict-generalization --data cifar10 --split-file cifar10_split.csv --preset paper --device cuda`

    - `nfn-monomial predict-generalization --models monomial,hnp --epochs 5 --seeds 1`

    - `nfn-monomial predict-generalization --devices 2`

    - `torchrun --nproc-per-node 2 -m nfn_monomial.benchmarks predict-generalization`

    - `nfn-monomial predict-generalization zoos/mixed --out results/mixed --unseen-architectures`
    """
    if zoo is not None and data is not None:
        raise ValueError(f"give the folder once, not {zoo} and --data {data}")
    folder = zoo or data or Path("zoos/digits")
    config = configured(
        PRESETS, preset, (), seeds=seeds, seed=seed,
        hardware={"device": device, "devices": devices, "precision": precision, "tensorboard": tensorboard},
        train_sets=cast("Any", split(train_sets)) or None,  # which the configuration checks
        scales=numbers(scales) or None,
    )  # fmt: skip
    changed = {"epochs": epochs, "batch_size": batch_size}
    training = replace(config.training, **{name: value for name, value in changed.items() if value is not None})
    config = replace(config, training=training)
    given = {
        "activations": split(activations) or None, "limit": limit, "split_file": split_file,
        "split_order": split_order, "unseen_architectures": unseen_architectures or None,
    }  # fmt: skip
    options = {name: value for name, value in given.items() if value is not None}
    corpora = load_with_bar(load_generalization, folder, data_options, **options)
    able = default_models(corpora)
    names = split(models) or tuple(name for name in config.models if name in able) or able
    config = replace(config, models=able if names == ("all",) else names)
    if models or train_sets:
        config = replace(config, augmented_models=None)  # of what was asked for, all
    config = override(config, assignments)
    if balance:
        config = replace(config, models=tuple(dict.fromkeys(behind_balance(config.models))))
    _predict(corpora, out, config, folder)


@app.command()
@user_errors
def demo(
    out: Out = Path("results/demo"),
    networks: Annotated[int, typer.Option(help="How many networks to train, half of them ReLU, half tanh.")] = 1000,
    models: Models = SHORT_LIST,
    seeds: Seeds = 2,
    seed: Seed = 0,
    epochs: Epochs = 12,
    batch_size: BatchSize = 16,
    device: Device = "cpu",
    devices: Devices = 1,
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
    training = on_hardware(TrainConfig(epochs, batch_size), device, devices)
    with on_main_process_first(make_fabric(training)):
        make(make_zoo, zoo, ZooConfig(networks=networks), overwrite=False, device=device)
    config = replace(
        PRESETS["small"],
        models=split(models),
        augmented_activations=("relu",),
        seeds=tuple(range(seed, seed + seeds)),
        training=training,
    )
    _predict(load_generalization(zoo), out, config, zoo)
    console.print(f"Took {(time.perf_counter() - started) / 60:.1f} minutes.")


def _predict(corpora: dict[str, Corpus], out: Path, config: PredictConfig, folder: Path) -> None:
    for name, corpus in corpora.items():
        train, val, test = (sum(map(len, parts)) for parts in (corpus.train, corpus.val, corpus.test))
        console.print(f"{name}: {train} training, {val} validation, {test} test networks", highlight=False)
    source = {"path": str(folder), **{name: dict(corpus.source) for name, corpus in corpora.items()}}
    store = open_store(out, config, source)
    with training_bar() as show:
        runs = predict_generalization(corpora, config, store, show)
    main_process_only()
    paths = write_report(runs, out)
    for table in rich_tables(summarise(runs), console.width):
        console.print("", table, sep="\n")
    console.print(f"Figure: {paths['figure']}\nTable:  {paths['table']}\nData:   {paths['results']}", highlight=False)
