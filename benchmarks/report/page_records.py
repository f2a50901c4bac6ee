"""The JSON files of a results folder as HTML: settings and environments, and finished runs, a line each."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from nfn_monomial.benchmarks.train.runs import Run

from .page_markdown import is_numeric

__all__ = ["RunLine", "counted", "run_line", "runs_table", "settings_table"]

SHOWN = ("command", "version", "config", "settings", "data", "networks", "environment", "environments", "machine")
RUN_COLUMNS = ("networks", "model", "trained on", "seed")


@dataclass(frozen=True)
class RunLine:
    """A finished run as cells: before its tests, its tests by name, and after them."""

    what: tuple[str, ...]
    tests: dict[str, str]
    how: tuple[str, ...]


def run_line(data: bytes) -> RunLine:
    """The run in a JSON file.

    Raises:
        ValueError: if it is none.
    """
    run = Run.from_json(data.decode())
    s = run.settings
    try:
        return RunLine(
            (str(s.subject), str(run.label), str(s.train_set), str(s.seed)),
            {f"{metric} {t.name}": f"{value:.4g}" for t in run.tests for metric, value in t.metrics.items()},
            (f"{run.best_epoch} of {len(run.history)}", f"{run.parameters:,}"),
        )
    except (TypeError, AttributeError) as error:
        raise ValueError(f"not a run: {error}") from error


def runs_table(lines: Sequence[RunLine]) -> str:
    """A table of runs, which may have different tests."""
    tests = list(dict.fromkeys(name for line in lines for name in line.tests))
    header = (*RUN_COLUMNS, *tests, "best epoch", "parameters")
    rows = [(*line.what, *(line.tests.get(name, "-") for name in tests), *line.how) for line in lines]
    marks = [' class="n"' if is_numeric(column) else "" for column in zip(*rows, strict=True)] or [""] * len(header)

    def cells(tag: str, texts: Sequence[str]) -> str:
        return "".join(f"<{tag}{mark}>{escape(text)}</{tag}>" for mark, text in zip(marks, texts, strict=True))

    body = "\n".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return (
        '<div class="scroll" role="region" tabindex="0" aria-label="Finished runs">'
        f"<table><thead><tr>{cells('th', header)}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>"
    )


def settings_table(data: bytes) -> str:
    """The settings and environments in a JSON file; of what else it has, how much.

    Raises:
        ValueError: if it is not JSON, or no object.
    """
    values = json.loads(data.decode("utf-8-sig"))
    if not isinstance(values, dict):
        raise ValueError(f"expected a JSON object, found a {type(values).__name__}")
    rest = {key: value for key, value in values.items() if key not in SHOWN and isinstance(value, (dict, list))}
    known = [key for key in SHOWN if key in values]
    lines = []
    for group in (*known, *(key for key in values if key not in SHOWN and key not in rest)):
        flat = _flat(values[group])
        if list(flat) != [""]:
            lines.append(f'<tr><th colspan="2">{escape(group)}</th></tr>')
        lines += [
            f'<tr><th scope="row">{escape(key or group)}</th><td>{escape("; ".join(found))}</td></tr>'
            for key, found in flat.items()
        ]
    html = '<table class="settings"><tbody>\n{}\n</tbody></table>'.format("\n".join(lines)) if lines else ""
    if rest:
        also = ", ".join(f"{key} ({len(value)})" for key, value in rest.items())
        html += f'\n<p class="faint">Also in the file: {escape(also)}</p>'
    return html


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
