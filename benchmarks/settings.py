"""Configurations as dataclasses: changed by ``key=value`` from the command line, and kept beside the results."""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from nfn_monomial import __version__
from nfn_monomial.benchmarks.files import results_folder, write_atomically
from nfn_monomial.benchmarks.train.runs import environment

__all__ = ["CONFIG_NAME", "assignment", "override", "read_value", "record"]

CONFIG_NAME = "config.json"
C = TypeVar("C")


def override(config: C, assignments: Sequence[str]) -> C:
    """A copy of a dataclass with fields replaced, those of dataclasses in it as ``training.epochs=3``.

    A value is read as what its field holds: ``none``, ``true`` and ``false``, numbers, names; values with commas
    between for a tuple. The dataclass checks what it gets, as always.

    Args:
        config: a frozen or mutable dataclass.
        assignments: each ``key=value``; later ones win.

    Raises:
        ValueError: for a text without ``=``, an unknown key (listing the known ones), or a value of another type.
    """
    for text in assignments:
        key, value = assignment(text)
        config = _replaced(config, key.split("."), value, key)
    return config


def assignment(text: str) -> tuple[str, str]:
    """Key and value of ``key=value``.

    Raises:
        ValueError: for a text without ``=``.
    """
    key, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"{text!r}: expected key=value, as training.epochs=3")
    return key.strip(), value.strip()


def _replaced(config: Any, path: Sequence[str], text: str, key: str) -> Any:
    name, *rest = path
    kinds = typing.get_type_hints(type(config))
    known = [f.name for f in dataclasses.fields(config)]
    if name not in known:
        raise ValueError(f"unknown key {key!r}: {type(config).__name__} has {', '.join(known)}")
    current = getattr(config, name)
    if dataclasses.is_dataclass(current):
        if not rest:
            inner = ", ".join(f"{key}.{f.name}" for f in dataclasses.fields(current))
            raise ValueError(f"{key} is a group of settings: set one of {inner}")
        value = _replaced(current, rest, text, key)
    elif rest:
        raise ValueError(f"unknown key {key!r}: {'.'.join(path[:-1])} is a single value")
    else:
        value = read_value(text, kinds[name], key)
    return dataclasses.replace(config, **{name: value})


def read_value(text: str, kind: Any, key: str) -> Any:
    """The text as a value of this type, of a union as of its first member that is not None; see `override`.

    Raises:
        ValueError: naming the key, if it is none.
    """
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        if type(None) in inner and text.lower() == "none":
            return None
        return read_value(text, next(k for k in inner if k is not type(None)), key)
    if origin is Literal:
        if text not in map(str, inner):
            raise ValueError(f"{key} is {text!r}: choose one of {', '.join(map(str, inner))}")
        return next(value for value in inner if str(value) == text)
    if origin in (tuple, Sequence):
        return tuple(read_value(part.strip(), inner[0], key) for part in text.split(",") if part.strip())
    if kind is bool and text.lower() in ("true", "false"):
        return text.lower() == "true"
    if kind is str:
        return text
    if kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    raise ValueError(f"{key} is {text!r}, expected {getattr(kind, '__name__', kind)}")


def record(folder: Path, command: str, config: Any, data: dict[str, Any], device: str) -> Path:
    """Write ``config.json``: what was asked for and with what it was done, so that it can be done again.

    Args:
        folder: of the results.
        command: as typed.
        config: a dataclass.
        data: what is known of the data.
        device: where it ran.

    Raises:
        ValueError: if the folder is a file.
    """
    values = {
        "command": command,
        "version": __version__,
        "config": dataclasses.asdict(config),
        "data": data,
        "environment": environment(device),
    }
    path = results_folder(folder) / CONFIG_NAME
    write_atomically(path, (json.dumps(values, indent=1, default=str) + "\n").encode())
    return path
