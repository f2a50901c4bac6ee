"""The command `classify-inr`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nfn_monomial.benchmarks.data.formats.detection import load_inr
from nfn_monomial.benchmarks.models.catalogue import model_names
from nfn_monomial.benchmarks.settings.inrs import CLASSIFY as PRESETS
from nfn_monomial.benchmarks.studies.classify import classify_inrs, require_models
from nfn_monomial.benchmarks.studies.classify_report import classify_table, write_classify_report

from .common import (
    Assignments,
    DataOptions,
    DataPath,
    Device,
    Devices,
    Out,
    Precise,
    Preset,
    Seed,
    SeedCount,
    TensorBoard,
    app,
    configured,
    console,
    load_with_bar,
    main_process_only,
    open_store,
    split,
    training_bar,
    user_errors,
)

__all__ = ["classify"]

DEFAULT_DATA = Path("inrs/mnist5k")


@app.command("classify-inr")
@user_errors
def classify(
    data: DataPath = None,
    data_options: DataOptions = [],  # noqa: B006 (as assignments)
    out: Out = Path("results/classify-inr"),
    preset: Preset = "small",
    assignments: Assignments = [],  # noqa: B006  (typer makes a new one for every call)
    models: Annotated[
        str,
        typer.Option(
            help=f"Comma-separated; by default the preset's. Known: {', '.join(model_names('inr'))}; each also as "
            "balanced-..., behind a canonical form."
        ),
    ] = "",
    seeds: SeedCount = None,
    seed: Seed = 0,
    device: Device = "cpu",
    devices: Devices = 1,
    precision: Precise = None,
    tensorboard: TensorBoard = False,
) -> None:
    """Classify images by the weights of the networks that show them (Sec. 6.2).

    Trains every model on the training networks, selects the epoch by the accuracy on the validation networks, and
    tests on the test networks as they are, with signs flipped and neurons permuted, and with phases shifted. Writes
    `table.md`, `results.json`, `confusion.png`, `learning.png` and `config.json` to the results folder. Finished runs
    are kept: a second call does only what is missing.

    Presets: small; paper (the paper's hyperparameters for MNIST), paper-fashion and paper-cifar. How networks are
    prepared is part of the configuration: `inputs.absorb_omega`, `.canonical_phase`, `.normalize`, `.augment`, `.warp`.

    Examples:

    - `nfn-monomial inr make && nfn-monomial classify-inr`

    - `nfn-monomial classify-inr --models inr-hnp,inr-monomial-hnp --set inputs.canonical_phase=false --seeds 3`

    - `nfn-monomial classify-inr --data siren_cifar_wts --preset paper-cifar --device cuda`
    """
    config = configured(
        PRESETS, preset, assignments, seeds=seeds, seed=seed,
        hardware={"device": device, "devices": devices, "precision": precision, "tensorboard": tensorboard},
        models=split(models) or None,
    )  # fmt: skip
    require_models(config)
    folder = data or DEFAULT_DATA
    if data is None and not folder.exists():
        raise ValueError(
            f"{folder} is not there: make it with `nfn-monomial inr make --images mnist5k`, or give another folder as "
            "--data"
        )
    corpus = load_with_bar(load_inr, folder, data_options)
    parts = f"{len(corpus.train)} training, {len(corpus.val)} validation, {len(corpus.test)} test networks"
    console.print(f"{corpus.name}: {parts}", highlight=False)
    store = open_store(out, config, {"path": str(folder), **corpus.info})
    with training_bar() as show:
        runs = classify_inrs(corpus, config, store, show)
    main_process_only()
    paths = write_classify_report(runs, out)
    console.print("", classify_table(runs, short=True).rich(console.width), sep="\n")
    console.print(*(f"{path}" for path in paths.values()), sep="\n", highlight=False)
