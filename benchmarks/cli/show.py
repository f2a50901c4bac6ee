"""The commands that show what there is: models, formats of data, and every setting with its meaning."""

from __future__ import annotations

import dataclasses
import inspect
import re
import types
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import typer
from rich import box
from rich.table import Table

from nfn_monomial.benchmarks.experiments import EXPERIMENTS
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.tools.cli.options import console, user_errors

from .options import OWN_OPTIONS

__all__ = ["list_app", "settings_of"]

NAMES = {int: "integer", float: "number", str: "text", bool: "true or false", type(None): "none"}

list_app = typer.Typer(no_args_is_help=True, help="List models, formats of data, and settings.")


@list_app.command("models")
@user_errors
def list_models() -> None:
    """The models of every experiment; `balanced-` in front of a name brings networks into canonical form first.

    So does `normal-`, into the normal form of their whole fibre, where their torch module is known.
    """
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
        presets = EXPERIMENTS[name].presets
        if preset not in presets:
            raise InvalidValueError(f"{name} has no preset {preset!r}: choose from {', '.join(presets)}")
        table = _table(f"{name}, preset {preset} of {', '.join(presets)}", "key", "type", "value", "meaning")
        for line in settings_of(presets[preset]):
            table.add_row(*line)
        console.print(table)


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", title_style="bold", show_edge=False)
    for i, column in enumerate(columns):
        table.add_column(column, no_wrap=i == 0, overflow="fold")
    return table


def settings_of(config: Any, prefix: str = "") -> Iterator[tuple[str, str, str, str]]:
    """Key, type, value and meaning of every setting of a configuration, those of groups in it with a dot."""
    kinds, meanings = get_type_hints(type(config), include_extras=True), _meanings(type(config))
    for field in dataclasses.fields(config):
        key, value = prefix + field.name, getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            yield from settings_of(value, f"{key}.")
        else:
            option = f" Set it by {OWN_OPTIONS[key]}." if key in OWN_OPTIONS else ""
            yield key, _kind(kinds[field.name]), _text(value), meanings.get(field.name, "") + option


def _meanings(cls: type) -> dict[str, str]:
    """What the docstrings of a class and of its bases say of its attributes."""
    meanings: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        _, _, section = inspect.cleandoc(base.__doc__ or "").partition("Attributes:\n")
        found = re.findall(r"^    (\w+(?:, \w+)*): (.*(?:\n     .*)*)", section, flags=re.MULTILINE)
        meanings |= {name: " ".join(text.split()) for names, text in found for name in names.split(", ")}
    return meanings


def _kind(kind: Any) -> str:
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _kind(inner[0])
    if origin is Literal:
        return " | ".join(map(str, inner))
    if origin in (Union, types.UnionType):
        return " or ".join(map(_kind, inner))
    if origin is tuple:
        return ",".join(map(_kind, inner)) if Ellipsis not in inner else f"{_kind(inner[0])},.."
    return NAMES.get(kind, str(kind))


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(_text, value))
    if isinstance(value, float):
        return f"{value:g}"
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)
