"""Tables of results as people have them: CSV with commas, semicolons or tabs, JSON, and JSON lines."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from nfn_monomial.benchmarks.reading import read_json, read_rows
from nfn_monomial.checks import listed, shown
from nfn_monomial.tools.files.untrusted import damaged, parse_json, read_bytes

from .base import CorpusError

__all__ = ["TableLine", "columns_of", "number_in", "read_table", "require_points", "text_of"]

OBJECTS, LINES = (".json",), (".jsonl", ".ndjson")
LARGEST = 1e100  # of numbers; a training that left a larger one diverged
NOTHING = ("", "-", "nan", "none", "null", "na", "n/a", "inf", "+inf", "-inf", "infinity", "-infinity")


class TableLine(NamedTuple):
    """A line of a table: its place, and column -> cell, a text or a value of JSON."""

    place: str
    cells: dict[str, Any]


def read_table(path: Path, form: str) -> list[TableLine]:
    """All lines of a table; in JSON it is a list of objects.

    Raises:
        FileNotFoundError: if there is no such file.
        CorpusError: naming the file and the line, if it is no table; ``form`` describes the table.
    """
    with damaged(path, f"expected {form}", CorpusError):
        if path.suffix in OBJECTS:
            return _objects(read_json(path), path, form, "entry")
        if path.suffix in LINES:
            texts = read_bytes(path).decode("utf-8-sig").splitlines()
            return _objects([parse_json(text) for text in texts if text.strip()], path, form, "line")
        delimiter = max(",;\t", key=lambda mark: len(next(read_rows(path, mark), (0, []))[1]))
        rows = read_rows(path, delimiter)
        header = [name.strip() for name in next(rows, (0, []))[1]]
        if twice := {name for name in header if name and header.count(name) > 1}:
            raise CorpusError(f"{path} has several columns {listed(sorted(twice))}: rename one")
        lines = []
        for place, row in rows:
            if row and len(row) != len(header):
                raise CorpusError(
                    f"{path}, line {place} has {len(row)} cells, expected {len(header)}: {listed(header)}"
                )
            if row:
                lines.append(TableLine(f"line {place}", dict(zip(header, row, strict=True))))
        return lines


def _objects(entries: Any, path: Path, form: str, what: str) -> list[TableLine]:
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise CorpusError(f"{path} holds {shown(entries)}, expected a list of objects with {form}")
    return [TableLine(f"{what} {number}", entry) for number, entry in enumerate(entries)]


def text_of(cell: Any) -> str:
    """Returns a cell as text, without blanks around it; empty for null."""
    return "" if cell is None else str(cell).strip()


def number_in(cell: Any) -> tuple[float | None, str]:
    """Returns the number in a cell, as ``0.931``, ``1e-3``, ``93.1%``, ``0,931``, and its unit: a percent sign or none.

    The number is None if the cell is empty, NaN or beyond 1e100.

    Raises:
        ValueError: if it says something else.
    """
    text = text_of(cell)
    if text.lower() in NOTHING:
        return None, ""
    if isinstance(cell, bool):
        raise ValueError
    unit = "%" if text.endswith("%") else ""
    digits = text.removesuffix("%").strip()
    if "_" in digits:  # which Python reads as nothing, and a name such as 0_1 is no number
        raise ValueError
    value = float(digits.replace(",", ".") if re.fullmatch(r"[+-]?\d+,\d+", digits) else digits)
    return (value if abs(value) < LARGEST else None), unit


def require_points(column: str, texts: Iterable[str], table: Path) -> None:
    """Raises a CorpusError for ``1,000`` beside ``970``, where a comma would be read as a point."""
    digits = [text.removesuffix("%").strip() for text in texts]
    commas = [text for text in digits if "," in text]
    others = [text for text in digits if "," not in text and re.match(r"[+-]?\d", text)]
    if commas and others and all(re.fullmatch(r"[+-]?[1-9]\d{0,2},\d{3}", text) for text in commas):
        raise CorpusError(
            f"{table}: {column} has {shown(commas[0])} and {shown(others[0])}: are commas points, or between "
            "thousands? Write these numbers without commas"
        )


def columns_of(lines: Iterable[TableLine]) -> list[str]:
    """The names of all columns, in the order in which they first occur."""
    return list(dict.fromkeys(name for line in lines for name in line.cells))
