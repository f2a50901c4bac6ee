"""Docstrings for the API pages: examples (``>>>``) and tables ruled with ``===`` become blocks of code in Markdown."""

from __future__ import annotations

import re
from typing import Any

import griffe

RULE = re.compile(r" *=+( +=+)+")


class Blocks(griffe.Extension):
    """Puts fences around examples and tables."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for every module, class, function and attribute that is read."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(text: str) -> str:
    """A docstring with its examples and tables in fences, each of which ends at an empty line."""
    lines: list[str] = []
    indent: str | None = None  # of the block that is open
    for line in [*text.splitlines(), ""]:
        if indent is None and (line.lstrip().startswith(">>>") or RULE.fullmatch(line)):
            indent = line[: len(line) - len(line.lstrip())]
            lines.append(f"{indent}```{'text' if RULE.fullmatch(line) else 'pycon'}")
        elif indent is not None and not line.strip():
            lines.append(f"{indent}```")
            indent = None
        lines.append(line)
    return "\n".join(lines[:-1])
