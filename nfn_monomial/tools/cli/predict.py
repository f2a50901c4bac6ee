"""The command that applies a trained model: `predict`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table

from nfn_monomial.errors import InvalidValueError

from .options import (
    FORMS,
    KEY,
    ORDER,
    OUTPUT,
    SKIP,
    add_command,
    console,
    option,
    prepare_process,
    results_of,
    show,
    show_left_out,
    shown_progress,
    split_names,
)

__all__ = ["add_predict"]

TEXT = """Ask a trained predictor about checkpoints: how accurate is a network, which digit does an INR show, edit it.

`train` writes a predictor of a column of your own table of results; `predict-generalization`, `classify-inr` and
`edit-inr` write one for every model that they have trained, in `predictors/` of their results folder. One ships with
this package: it reads the ReLU networks of the demo, small CNNs on 8x8 digits, and predicts their test accuracy from
their weights; neurons may be permuted and scaled.

A checkpoint is checked first: it must have the layers that the predictor was trained on; it may have more neurons if
the model reads any width. Weights do not show activations: those of the training networks are assumed.
Nothing that a checkpoint or a predictor names is imported or called; the code that `--net` names runs.

Examples:

- `nfn-monomial predict net.safetensors`

- `nfn-monomial predict runs/ --json`

- `nfn-monomial predict new/ --predictor results/train/predictor.safetensors --net net.py:Net`

- `nfn-monomial predict --predictor results/edit-dilate/predictors/editor.safetensors siren.pt --out edited`
"""
KINDS = {
    "checkpoints": (Annotated[list[Path], typer.Argument(metavar="CHECKPOINT", help=f"{FORMS}; or folders.")], ...),
    "predictor": option(
        Path | None,
        "--predictor -p",
        "A file in predictors/ of a results folder; by default the one that ships with this package.",
    ),
    "net": option(
        str | None,
        "--net",
        "The class of these networks, as module.py:Class, for a predictor that runs them. **Its code runs.**",
    ),
    "net_args": option(
        str | None, "--net-args", "Arguments of the class or function of --net, such as width=64,depth=3."
    ),
    "out": option(
        Path | None, "--out -o", "Folder for predictions.json, edited networks and pictures. Editors need one."
    ),
    **ORDER,
    **SKIP,
    **KEY,
    **OUTPUT,
}


def add_predict(app: typer.Typer) -> None:
    """Adds the command."""
    add_command(app, "predict", KINDS, TEXT, _predict)


def _predict(
    checkpoints: list[Path], predictor: Path | None, net: str | None, net_args: str | None, out: Path | None,
    order: str | None, skip_bad: bool, key: str | None, as_json: bool, force: bool,
) -> None:  # fmt: skip
    prepare_process()
    from nfn_monomial.tools.predictors.answers import PREDICTIONS, Answers
    from nfn_monomial.tools.predictors.predictor import SHIPPED, Predictor
    from nfn_monomial.tools.predictors.tasks import score_in_words, warning_of_few

    loaded = Predictor.load(predictor or SHIPPED, net, net_args)
    if loaded.task.edits and out is None:
        raise InvalidValueError(f"{predictor} edits networks: give a folder for them, --out DIR")
    code = [str(predictor or SHIPPED), net]
    options: dict[str, Any] = {
        "key": key, "net": net, "net_args": net_args, "order": split_names(order), "skip_bad": skip_bad
    }  # fmt: skip
    skipped: dict[str, str] | None = {} if skip_bad else None
    results = results_of(out, "predict", options, checkpoints, code, PREDICTIONS, force=force)
    store = results.store if results else None
    with shown_progress("predict") as progress:
        predictions = loaded.predict(
            checkpoints, key=key, order=options["order"], skipped=skipped, store=store, progress=progress
        )
    answers = Answers(loaded, tuple(predictions), skipped or {})
    paths = answers.write(results) if results else []

    def print_tables() -> None:
        kept = {name: value for name, value in loaded.metrics.items() if name != "selection"}  # which chose the epoch
        count = loaded.tested
        measured = ", ".join(f"{name} {score_in_words(name, value, count)}" for name, value in kept.items())
        console.print(f"Trained on networks of {loaded.reads}.", soft_wrap=True, highlight=False)
        console.print(f"On test networks of that kind: {measured}.", soft_wrap=True, highlight=False)
        if count is not None and "tau" in kept and (warning := warning_of_few(count)):
            console.print(warning, soft_wrap=True, highlight=False)
        for note in answers.notes:
            console.print(note, soft_wrap=True, highlight=False)
        head, rows = answers.rows()
        table = Table(box=box.SIMPLE_HEAD, show_edge=False)
        for i, name in enumerate(head):
            table.add_column(name, overflow="fold", justify="right" if i else "left")
        for row in rows:
            table.add_row(*row)
        console.print(table)
        show_left_out(answers.skipped)

    show(answers.to_json(), as_json, print_tables, paths)
