"""The command `train`: from a folder of checkpoints and a table of results to one predictor."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from nfn_monomial.benchmarks.experiments.predict import COLUMN, KEPT, ColumnTask
from nfn_monomial.benchmarks.settings.base import Count, read_value
from nfn_monomial.tools.cli.options import KEY, NETWORKS_PANEL, OUTPUT, console, option, show, shown_progress
from nfn_monomial.tools.files.atomic import results_folder

from .experiments import bar_of_runs
from .options import command, command_line, configured, prepare_process

__all__ = ["add_train"]

TEXT = f"""Learn a column of a table of results from the weights of checkpoints, and leave a predictor for new ones.

The folder has checkpoints of one architecture, in any form and at any depth. The table has a line for each: CSV with
commas, semicolons or tabs, JSON, or JSON lines. The command finds the column that names the files: by a path or a name,
with a suffix or without, or by the name of a folder that holds one checkpoint. Numbers are learned by regression, or by
their order (`--task ranking`), texts as classes. 15 percent of the networks are drawn for validation, which chooses the
model, and 15 percent for testing it.

Three models that suit the networks are trained, and STATNN. The best on the validation networks is kept, and only it
and the baselines are tested. Writes `predictor.safetensors`, `table.md`, `results.json`, `config.json` and a figure of
predicted against true values. {KEPT}

`--net` is `module.py:Class`, `package.module:Class`, `hf:FOLDER`, `timm:NAME`, `torchvision:NAME`, or `net.pt2`. **Its
code runs.**

Examples:

- `nfn-monomial train runs --net net.py:Net --targets runs.csv --column loss`

- `nfn-monomial train runs --net net.py:Net --targets runs.csv --column optimiser --group run --out results/optimiser`

- `nfn-monomial train logs --net net.py:Net --targets runs.csv --column acc --names '{{run}}/{{epoch}}.ckpt'`
"""
OPTIONS = {
    "folder": (Annotated[Path, typer.Argument(show_default=False, metavar="FOLDER", help="Of the checkpoints.")], ...),
    "net": option(str, "--net", "The network's class. **Its code runs.**", ..., show_default=False),
    "net_args": option(str | None, "--net-args", "Arguments of the class or function of --net, as width=64,depth=3."),
    "input_shape": option(str | None, "--input", "Shape of an example input, batch included, if NET states none."),
    **KEY,
    "targets": option(Path, "--targets", "The table of results.", ..., show_default=False),
    "column": option(str, "--column", "Column of the table that is learned.", ..., show_default=False),
    "names": option(
        str | None, "--names", "Column that names the files, or a text of columns, as '{run}/{epoch}.ckpt'.",
    ),
    "task": option(str | None, "--task", "regression, ranking or classification; by default the cells decide."),
    "split": option(str | None, "--split", "Column that says train, val or test; by default sides are drawn."),
    "group": option(list[str], "--group", "Column whose equal cells stay on one side, as run; may be repeated.", []),
    "epochs": option(int | None, "--epochs", "Passes over the training networks; by default the preset's.", min=1),
    "preset": option(str, "--preset", f"{', '.join(COLUMN)}: fewer or more epochs.", "small"),
    **OUTPUT,
}  # fmt: skip
SHARED = ("assignments", "models", "seeds", "seed", "device")
OUT = "results/train"


def add_train(app: typer.Typer) -> None:
    """Adds the command."""
    command(app, "train", SHARED, OUT, TEXT, _train, keeps=True, presets=COLUMN, more=OPTIONS, panel=NETWORKS_PANEL)


def _train(
    folder: Path, net: str, net_args: str | None, input_shape: str | None, key: str | None, targets: Path, column: str,
    names: str | None, task: Any, split: str | None, group: Sequence[str], epochs: int | None, preset: str,
    assignments: Sequence[str], out: Path | None, as_json: bool, force: bool, **shared: Any,
) -> None:  # fmt: skip
    prepare_process()
    from nfn_monomial.benchmarks.data.formats.labelled import Request, read_labelled
    from nfn_monomial.benchmarks.models.catalogue import require_task
    from nfn_monomial.benchmarks.studies.columns import PREDICTOR, columns_report, learn_column, models_for
    from nfn_monomial.benchmarks.train.devices import require_device
    from nfn_monomial.benchmarks.train.runs import CONFIG_NAME, RunStore, record
    from nfn_monomial.tools.definitions.architectures import read_architecture

    # Wrong options are an error before anything is read.
    config = configured(COLUMN, preset, assignments, **shared)
    config = replace(config, training=replace(config.training, epochs=epochs or config.training.epochs))
    require_device(config.training.device)
    require_task(config.models, "generalization")
    task = None if task is None else read_value(task, ColumnTask, "--task")
    request = Request(folder, targets, column, names, task, split, tuple(group), key, config.seeds[0])
    shape = None if input_shape is None else read_value(input_shape, tuple[Count, ...], "--input")
    home = results_folder(out or OUT, CONFIG_NAME)
    console.quiet = as_json
    try:
        definition = read_architecture(None, net=net, input_shape=shape, net_args=net_args)
        with shown_progress(f"reading {folder}") as progress:
            labelled = read_labelled(request, lambda _: definition, progress)
        if not config.models:
            models, why = models_for(labelled.corpus.train[0].info)
            config, labelled = replace(config, models=models), replace(labelled, notes=(*labelled.notes, *why))
        console.print(*labelled.notes, sep="\n", highlight=False, markup=False, soft_wrap=True)
        store = RunStore(home)
        with bar_of_runs() as tell:
            learned = learn_column(labelled, definition, config, store, tell, force=force)
        record(home, command_line(), config, dict(labelled.corpus.source), config.training.device)
        report = columns_report(learned)
        paths = [home / PREDICTOR, *report.write(home)]
    finally:
        console.quiet = False
    show(report.results, as_json, lambda: report.show(console), paths)
    if not as_json:
        words = ["nfn-monomial", "predict", "NEW", "--predictor", str(paths[0])]
        if learned.chosen.sees == "functions":
            words += ["--net", net, *(["--net-args", net_args] if net_args else [])]
        console.print(f"\nFor new checkpoints: {shlex.join(words)}", highlight=False, markup=False, soft_wrap=True)
