"""The JSON files of a results folder, as the page shows them: settings and environments, and finished runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nfn_monomial.benchmarks.reading import parse_json
from nfn_monomial.benchmarks.train.runs import Run
from nfn_monomial.errors import InvalidValueError, MonomialError

from .page_markdown import is_numeric

__all__ = ["RunLine", "Settings", "counted", "read_run", "read_settings", "runs_table"]

SHOWN = ("command", "version", "config", "settings", "data", "networks", "environment", "environments", "machine")
RUN_COLUMNS = ("networks", "model", "trained on", "seed")


@dataclass(frozen=True)
class RunLine:
    """A finished run as cells: before its tests, its tests by name, and after them."""

    what: tuple[str, ...]
    tests: dict[str, str]
    how: tuple[str, ...]


@dataclass(frozen=True)
class Settings:
    """Group -> key, as ``--set`` takes it -> its values; and of what else a file has, how much."""

    groups: dict[str, dict[str, tuple[str, ...]]]
    rest: str


def read_run(data: bytes) -> RunLine:
    """The run in a JSON file.

    Raises:
        ValueError: if it is none.
    """
    try:
        run = Run.from_json(data.decode())
        s = run.settings
        return RunLine(
            (str(s.subject), str(run.label), str(s.train_set), str(s.seed)),
            {f"{metric} {t.name}": f"{value:.4g}" for t in run.tests for metric, value in t.metrics.items()},
            (f"{run.best_epoch} of {len(run.history)}", f"{run.parameters:,}"),
        )
    except MonomialError:
        raise
    except (TypeError, ValueError, AttributeError) as error:
        raise InvalidValueError(f"not a run: {error}") from error


def runs_table(lines: Sequence[RunLine]) -> dict[str, Any]:
    """A table of runs, which may have different tests: columns with whether they hold numbers, and lines."""
    tests = list(dict.fromkeys(name for line in lines for name in line.tests))
    header = (*RUN_COLUMNS, *tests, "best epoch", "parameters")
    rows = [(*line.what, *(line.tests.get(name, "-") for name in tests), *line.how) for line in lines]
    numeric = [is_numeric(column) for column in zip(*rows, strict=True)] or [False] * len(header)
    return {"header": list(zip(header, numeric, strict=True)), "lines": rows}


def read_settings(data: bytes) -> Settings:
    """The settings and environments in a JSON file.

    Raises:
        ValueError: if it is not JSON, or no object.
    """
    values = parse_json(data, strict=False)
    if not isinstance(values, dict):
        raise InvalidValueError(f"expected a JSON object, found a {type(values).__name__}")
    rest = {key: value for key, value in values.items() if key not in SHOWN and isinstance(value, (dict, list))}
    order = (*(key for key in SHOWN if key in values), *(key for key in values if key not in (*SHOWN, *rest)))
    also = ", ".join(f"{key} ({len(value)})" for key, value in rest.items())
    return Settings({group: _flat(values[group]) for group in order}, also)


def counted(number: int, what: str) -> str:
    """As ``1 table``, ``2 tables``."""
    return f"{number} {what}{'s' * (number != 1)}"


def _flat(value: Any) -> dict[str, tuple[str, ...]]:
    """Every value by its key, as ``--set`` takes both; several values where the objects of a list differ."""
    if isinstance(value, dict) and value:
        pairs = ((name, *pair) for name, inner in value.items() for pair in _flat(inner).items())
        return {f"{name}.{key}" if key else name: found for name, key, found in pairs}
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        merged: dict[str, dict[str, None]] = {}
        for item in value:
            for key, found in _flat(item).items():
                merged.setdefault(key, {}).update(dict.fromkeys(found))
        return {key: tuple(found) for key, found in merged.items()}
    items = value if isinstance(value, list) else [value]
    return {"": (", ".join(map(_scalar, items)),)}


def _scalar(value: Any) -> str:
    if value is None:
        return "none"
    return value if isinstance(value, str) else json.dumps(value)
