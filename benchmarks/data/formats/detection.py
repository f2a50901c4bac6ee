"""Loading data by its path: the format of a folder is detected, and its networks are read.

Commands call `load_generalization` and `load_inr`; published and home-made data are the same to them.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, cast

from nfn_monomial.benchmarks.data.networks import Corpus
from nfn_monomial.benchmarks.data.sirens import InrCorpus
from nfn_monomial.benchmarks.settings import assignment, read_value
from nfn_monomial.checks import shown

from .base import FORMATS, CorpusError, Kind, require_folder

__all__ = ["detect", "load_generalization", "load_inr", "option_names"]

COMMANDS: dict[Kind, tuple[str, str]] = {
    "inr": ("images (INRs)", "classify-inr and edit-inr"),
    "generalization": ("classifiers with their accuracies", "predict-generalization"),
}
CALLBACK = "on_progress"  # which is no option that a user gives
SHOWN = 8  # entries of a folder in a message

for _module in iter_modules([str(Path(__file__).parent)]):  # every file of this folder registers its formats
    import_module(f"{__package__}.{_module.name}")


def detect(path: str | Path) -> str:
    """The name of the format that a folder has.

    Raises:
        CorpusError: if it is no folder, or has no known format or several, naming the files that formats need and those
            that it has.
    """
    folder = require_folder(path)
    names = sorted(name for name, known in FORMATS.items() if known.detects(folder))  # registered in any order
    if len(names) == 1:
        return names[0]
    if names:
        raise CorpusError(f"{folder} looks like several formats, {', '.join(names)}: put each in a folder of its own")
    entries = sorted(f"{entry.name}/" if entry.is_dir() else entry.name for entry in folder.iterdir())
    present = ", ".join(entries[:SHOWN]) + f" and {len(entries) - SHOWN} more" * (len(entries) > SHOWN)
    wanted = "; ".join(f"{name}: {known.looks_for}" for name, known in FORMATS.items())
    raise CorpusError(f"{folder} has no known format. Looked for: {wanted}. Found: {present or 'nothing, it is empty'}")


def load_generalization(
    path: str | Path, assignments: Sequence[str] = (), /, *, activations: Sequence[str] = (), **options: Any
) -> dict[str, Corpus]:
    """The networks of a zoo by activation, ``mixed`` for many architectures.

    Args:
        path: the folder.
        assignments: options as ``key=value``, read by the types that the format's ``load`` states, see
            `settings.override`; they win over ``options``.
        activations: those that are wanted, by default all; if the format has no such option, its corpora are chosen.
        options: those of the format's ``load``; any takes ``on_progress(done, total)``, for a bar.

    Raises:
        CorpusError: as `detect`; for an option that the format does not have, naming those it has; for a corpus of
            INRs, naming the commands that read it; for an activation that no network has; and for data that is
            missing or damaged, naming the file.
        ValueError: for an assignment without ``=`` or with a value of another type.
    """
    name = _format_of(path, "generalization")
    selects = "activations" in option_names(name)
    if activations and selects:
        options["activations"] = activations
    corpora = cast("dict[str, Corpus]", _load(path, name, assignments, options))
    if not activations or selects:
        return corpora
    if missing := [activation for activation in activations if activation not in corpora]:
        raise CorpusError(f"{path}: no network has the activation {missing[0]!r}; those present: {', '.join(corpora)}")
    return {activation: corpora[activation] for activation in activations}


def load_inr(path: str | Path, assignments: Sequence[str] = (), /, **options: Any) -> InrCorpus:
    """A corpus of INRs; otherwise as `load_generalization`.

    Raises:
        CorpusError: also for a zoo of classifiers, naming the command that reads it.
    """
    return cast("InrCorpus", _load(path, _format_of(path, "inr"), assignments, options))


def option_names(name: str) -> list[str]:
    """Returns the options of a format that a user may give."""
    return [option for option in list(inspect.signature(FORMATS[name].load).parameters)[1:] if option != CALLBACK]


def _format_of(path: str | Path, kind: Kind) -> str:
    name = detect(path)
    if FORMATS[name].kind != kind:
        what, commands = COMMANDS[FORMATS[name].kind]
        raise CorpusError(
            f"{path} has the format {name}: {what}, expected {COMMANDS[kind][0]}; it is data for nfn-monomial "
            f"{commands}"
        )
    return name


def _load(path: str | Path, name: str, assignments: Sequence[str], options: Mapping[str, Any]) -> Any:
    load, able, texts = FORMATS[name].load, option_names(name), dict(map(assignment, assignments))
    if unknown := [
        option for option in (*options, *texts) if option not in able and (option in texts or option != CALLBACK)
    ]:
        has = ", ".join(able) or "none"
        raise CorpusError(f"{path} has the format {name}, which has no option {', '.join(unknown)}; it has {has}")
    kinds = typing.get_type_hints(load) if texts else {}
    values = {**options, **{option: read_value(text, kinds[option], option) for option, text in texts.items()}}
    if (limit := values.get("limit")) is not None and limit < 1:
        raise CorpusError(f"limit is {limit}, but at least 1 training network is needed")
    if (seed := values.get("seed")) is not None and not 0 <= seed < 2**31:
        raise CorpusError(f"seed is {shown(seed)}, but should be a whole number from 0 to {2**31 - 1}")
    if CALLBACK not in inspect.signature(load).parameters:  # formats that read at once have none
        values.pop(CALLBACK, None)
    return load(path, **values)
