"""The settings of an experiment as its help shows them: key, value, type and meaning."""

from __future__ import annotations

import dataclasses
import inspect
import re
import types
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

__all__ = ["SET_BY_OPTION", "settings_help", "settings_of"]

NAMES = {int: "integer", float: "number", str: "text", bool: "true or false", type(None): "none"}
SET_BY_OPTION = {
    "models": "--models",
    "seeds": "--seeds and --seed",
    "device": "--device",
    "training.device": "--device",
    "training.devices": "--devices",
    "training.precision": "--precision",
    "training.tensorboard": "--tensorboard",
}
"""Settings that have an option, which is the one way to set them."""


def settings_help(presets: Mapping[str, Any]) -> str:
    """Returns in Markdown all settings with the first preset's values, and those that differ in other presets."""
    first, *others = presets
    settings = list(settings_of(presets[first]))
    lines = [f"Settings, for `--set`, with the values of the preset {first}:\n"]
    lines += [f"- `{key}={value}` ({kind}): {meaning}" for key, kind, value, meaning in settings]
    values = {key: value for key, _, value, _ in settings}
    for name in others:
        changed = [f"{key}={value}" for key, _, value, _ in settings_of(presets[name]) if values[key] != value]
        lines.append(f"\nPreset {name}: `{'`, `'.join(changed)}`")
    return "\n".join(lines)


def settings_of(config: Any, prefix: str = "") -> Iterator[tuple[str, str, str, str]]:
    """Yields key, type, value and meaning of every setting of a configuration; groups in it are separated by a dot."""
    kinds, meanings = get_type_hints(type(config), include_extras=True), dict[str, str]()
    # Meanings of the attributes, from the docstrings of the class and of its bases.
    for base in reversed(type(config).__mro__):
        _, _, section = inspect.cleandoc(base.__doc__ or "").partition("Attributes:\n")
        for names, text in re.findall(r"^    (\w+(?:, \w+)*): (.*(?:\n     .*)*)", section, flags=re.MULTILINE):
            meanings |= dict.fromkeys(names.split(", "), " ".join(text.split()))
    for field in dataclasses.fields(config):
        key, value = prefix + field.name, getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            yield from settings_of(value, f"{key}.")
        else:
            option = f" Set it by {SET_BY_OPTION[key]}." if key in SET_BY_OPTION else ""
            yield key, _kind(kinds[field.name]), _text(value), meanings.get(field.name, "") + option


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
