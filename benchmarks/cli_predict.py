"""The commands `predict-generalization` and `demo`."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from .cli_common import (
    BatchSize,
    Device,
    Devices,
    Epochs,
    Models,
    Out,
    Precise,
    Seed,
    Seeds,
    TensorBoard,
    app,
    console,
    main_process_only,
    numbers,
    on_hardware,
    split,
    training_bar,
    user_errors,
)
from .cli_zoo import make
from .predict import (
    DEMO_MODELS,
    LOSSES,
    PredictConfig,
    behind_balance,
    default_models,
    predict_generalization,
)
from .predict_data import Corpus, corpus_of, stated
from .processes import make_fabric, on_main_process_first
from .registry import model_names
from .report import rich_tables, summarise, write_report
from .runs import RunStore
from .training import TrainConfig
from .zoo_files import check_folder, read_metrics
from .zoo_format import load_zoo
from .zoo_make import ZooConfig, make_zoo
from .zoo_mixed import load_mixed_zoo
from .zoo_mixed_files import KIND

__all__ = ["demo", "predict"]

SHORT_LIST = ",".join(DEMO_MODELS)


@app.command("predict-generalization")
@user_errors
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
    devices: Devices = 1,
    precision: Precise = None,
    tensorboard: TensorBoard = False,
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

    - `nfn-monomial predict-generalization --devices 2`

    - `torchrun --nproc-per-node 2 -m nfn_monomial.benchmarks predict-generalization`

    - `nfn-monomial predict-generalization zoos/mixed --out results/mixed --unseen-architectures`
    """
    training = TrainConfig(epochs, batch_size, learning_rate, patience=patience)
    config = PredictConfig(
        models=split(models) or model_names(),
        train_sets=cast("Any", split(train_sets)),  # which checks them
        augmented_models=split(augmented_models) or None,
        seeds=tuple(range(seed, seed + seeds)),
        scales=numbers(scales),
        augment_scale=None if augment_scale == "mixed" else numbers(augment_scale)[0],
        widen=widen,
        loss=loss,
        training=on_hardware(training, device, devices, precision, tensorboard),
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
        corpora = _load(zoo, split(activations) or _activations(zoo), **loading)
    if not models:
        config = replace(config, models=default_models(corpora))
    if balance:
        config = replace(config, models=tuple(dict.fromkeys(behind_balance(config.models))))
    _predict(corpora, out, config)


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
    config = PredictConfig(
        models=split(models),
        seeds=tuple(range(seed, seed + seeds)),
        augmented_models=("statnn", "mlp", "np", "hnp", "monomial"),
        augmented_activations=("relu",),
        training=training,
    )
    _predict(_load(zoo, ("relu", "tanh")), out, config)
    console.print(f"Took {(time.perf_counter() - started) / 60:.1f} minutes.")


def _load(zoo: Path, activations: tuple[str, ...], **loading: Any) -> dict[str, Corpus]:
    return {activation: corpus_of(load_zoo(zoo, activation, **loading)) for activation in activations}


def _predict(corpora: dict[str, Corpus], out: Path, config: PredictConfig) -> None:
    for name, corpus in corpora.items():
        train, val, test = (sum(map(len, parts)) for parts in (corpus.train, corpus.val, corpus.test))
        console.print(f"{name}: {train} training, {val} validation, {test} test networks", highlight=False)
    with training_bar() as show:
        runs = predict_generalization(corpora, config, RunStore(out), show)
    main_process_only()
    paths = write_report(runs, out)
    for table in rich_tables(summarise(runs), console.width):
        console.print("", table, sep="\n")
    console.print(f"Figure: {paths['figure']}\nTable:  {paths['table']}\nData:   {paths['results']}", highlight=False)


def _activations(zoo: Path) -> tuple[str, ...]:
    check_folder(zoo)
    return tuple(sorted(set(read_metrics(zoo / "metrics.csv.gz").activation.tolist())))
