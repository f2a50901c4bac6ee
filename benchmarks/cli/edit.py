"""The command `edit-inr`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, cast

import typer

from nfn_monomial.benchmarks.data.formats.detection import load_inr
from nfn_monomial.benchmarks.models.editors import editor_names
from nfn_monomial.benchmarks.settings.inrs import EDIT as PRESETS
from nfn_monomial.benchmarks.studies.edit import edit_inrs, require_models
from nfn_monomial.benchmarks.studies.edit_report import edit_table, write_report

from .common import (
    Assignments,
    DataOptions,
    DataPath,
    Device,
    Devices,
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

__all__ = ["edit_inr"]

DEFAULT_IMAGES = {"dilate": "mnist5k", "contrast": "crops"}


@app.command("edit-inr")
@user_errors
def edit_inr(
    task: Annotated[
        str, typer.Option(help="dilate (by default on inrs/mnist5k) or contrast (on inrs/crops).")
    ] = "dilate",
    data: DataPath = None,
    data_options: DataOptions = [],  # noqa: B006 (as assignments)
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder for the results, by default results/edit-TASK.")
    ] = None,
    preset: Preset = "small",
    assignments: Assignments = [],  # noqa: B006  (typer makes a new one for every call)
    models: Annotated[
        str,
        typer.Option(
            help=f"Comma-separated, by default those of the preset; known: {', '.join(editor_names())}; each also as "
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
    """Edit INRs so that their images are dilated, or have more contrast (Sec. 6.3).

    Trains every editor to change the weights of the training networks so that they render the changed image, selects
    the epoch on the validation networks, and tests on the test networks as they are and moved by sign flips and
    permutations. Writes `table.md`, `results.json`, `edits.png` (originals, targets and edits side by side) and
    `learning.png` to the results folder. Finished runs are kept: a second call does only what is missing.

    Examples:

    - `nfn-monomial edit-inr`

    - `nfn-monomial edit-inr --task contrast --seeds 3`

    - `nfn-monomial edit-inr --data siren_mnist_wts --preset paper --device cuda`

    - `nfn-monomial edit-inr --models np,message-passing --set training.epochs=2 --set limit=500`
    """
    config = configured(
        PRESETS, preset, assignments, seeds=seeds, seed=seed,
        hardware={"device": device, "devices": devices, "precision": precision, "tensorboard": tensorboard},
        task=cast("Any", task),  # which the configuration checks
        models=split(models) or None,
    )  # fmt: skip
    require_models(config)
    folder = data or _default_data(config.task)
    corpus = load_with_bar(load_inr, folder, data_options)
    parts = f"{len(corpus.train)} training, {len(corpus.val)} validation, {len(corpus.test)} test networks"
    console.print(f"{corpus.name}: {parts}", highlight=False)
    store = open_store(out or Path(f"results/edit-{config.task}"), config, {"path": str(folder), **corpus.info})
    with training_bar() as show:
        runs = edit_inrs(corpus, config, store, show)
    main_process_only()
    paths = write_report(runs, store)
    console.print("", edit_table(runs).rich(console.width), sep="\n")
    console.print(*(f"{path}" for path in paths.values()), sep="\n", highlight=False)


def _default_data(task: str) -> Path:
    """Where `inr make` leaves the images that a task is shown on.

    Raises:
        ValueError: if they are not there, naming the command that makes them.
    """
    images = DEFAULT_IMAGES[task]
    folder = Path("inrs") / images
    if not folder.exists():
        raise ValueError(
            f"{folder} is not there: make it with `nfn-monomial inr make --images {images}`, or give another folder "
            "as --data"
        )
    return folder
