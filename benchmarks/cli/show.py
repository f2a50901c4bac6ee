"""The commands that show what there is."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich import box
from rich.markup import escape
from rich.table import Table

from nfn_monomial.benchmarks.settings.experiments import EXPERIMENTS
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.tools.cli.options import console, user_errors

from .settings import settings_of

__all__ = ["list_app"]

list_app = typer.Typer(no_args_is_help=True, help="List models, formats of data, and settings.")


@list_app.command("models")
@user_errors
def list_models() -> None:
    """The models of every experiment; `balanced-` in front of any name brings networks into canonical form first."""
    from nfn_monomial.benchmarks.models.catalogue import model_names
    from nfn_monomial.benchmarks.models.editors import editor_class, editor_names
    from nfn_monomial.benchmarks.report.tables import INVARIANT, SEES
    from nfn_monomial.tools.predictors.models import model_class

    named = [name for name in model_names("ablation") if model_class(name).task == "ablation"]
    kinds = {
        "predict-generalization, augment, cost": (model_names("generalization"), model_class),
        "ablation, or by name": (named, model_class),
        "classify-inr": (model_names("inr"), model_class),
        "edit-inr": (editor_names(), editor_class),
    }
    for commands, (names, known) in kinds.items():
        table = _table(commands, "--models", "label", "invariant", "sees")
        for name in names:
            cls: Any = known(name)
            table.add_row(name, cls.label, INVARIANT[cls.invariant_under], SEES[getattr(cls, "sees", "weights")])
        console.print(table)
    console.print("invariant: to the whole group (yes), to permutations (perm. only), or to nothing (no).")


@list_app.command("formats")
@user_errors
def list_formats() -> None:
    """The formats of data that are detected in a folder, and their options for `--data-option`."""
    from nfn_monomial.benchmarks.data.formats.base import FORMATS
    from nfn_monomial.benchmarks.data.formats.detection import option_names

    table = _table("Formats", "format", "networks", "looked for", "--data-option")
    for name, known in sorted(FORMATS.items()):
        kind = "INRs" if known.kind == "inr" else "classifiers"
        table.add_row(name, kind, known.looks_for, ", ".join(option_names(name)) or "-")
    console.print(table)


@list_app.command("settings")
@user_errors
def list_settings(
    experiment: Annotated[str, typer.Argument(help=f"One of {', '.join(EXPERIMENTS)}; by default all.")] = "",
    preset: Annotated[str, typer.Option(help="Whose values are shown.")] = "small",
) -> None:
    """Every setting of an experiment: its key for `--set`, type, value by default, and meaning.

    Examples:

    - `nfn-monomial list settings edit-inr`

    - `nfn-monomial list settings classify-inr --preset paper-cifar`
    """
    if experiment and experiment not in EXPERIMENTS:
        raise InvalidValueError(f"unknown experiment {experiment!r}: choose from {', '.join(EXPERIMENTS)}")
    for name in [experiment] if experiment else EXPERIMENTS:
        presets = EXPERIMENTS[name]
        if preset not in presets:
            raise InvalidValueError(f"{name} has no preset {preset!r}: choose from {', '.join(presets)}")
        table = _table(f"{name}, preset {preset} of {', '.join(presets)}", "key", "type", "value", "meaning")
        for line in settings_of(presets[preset]):
            table.add_row(*map(escape, line))
        console.print(table)


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", title_style="bold", show_edge=False)
    for i, column in enumerate(columns):
        table.add_column(column, no_wrap=i == 0, overflow="fold")
    return table
