"""The versions of results of experiments, and hashes of the code they depend on: ``python tests/helpers/versions.py``.

The script writes both into ``tests/benchmarks/versions.json``, as they are now. A test compares.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
CODE = ROOT / "benchmarks"
TABLE = ROOT / "tests" / "benchmarks" / "versions.json"
VERSION = re.compile(r"^VERSION = (\d+)\b", re.MULTILINE)
RENEW = ".venv/bin/python tests/helpers/versions.py"
TRAINING = ("train/loop.py",)
"""Modules that all results depend on."""


def code_hash(source: str) -> str:
    """A hash of code without its comments, docstrings and layout; the same under every version of Python."""
    return hashlib.sha256(json.dumps(_plain(ast.parse(source))).encode()).hexdigest()[:16]


def _plain(part: Any) -> Any:
    """A syntax tree as lists of texts: nodes without empty fields, blocks without texts that stand alone."""
    if isinstance(part, list):
        return [_plain(entry) for entry in part if not _is_text(entry)]
    if isinstance(part, ast.AST):
        fields = [(name, value) for name, value in ast.iter_fields(part) if value is not None and value != []]
        return [type(part).__name__, *([name, _plain(value)] for name, value in fields)]
    return repr(part)


def _is_text(statement: Any) -> bool:
    match statement:
        case ast.Expr(value=ast.Constant(value=str())):
            return True
    return False


def computed_by() -> dict[str, tuple[str, ...]]:
    """Module with a ``VERSION`` -> all modules that its results depend on, by ``COMPUTED_BY`` of it and of these."""
    stated: dict[str, tuple[str, ...]] = {}
    for path in CODE.rglob("*.py"):
        source = path.read_text(encoding="utf-8")
        if VERSION.search(source):
            listed = [
                ast.literal_eval(statement.value)
                for statement in ast.parse(source).body
                if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "COMPUTED_BY"
            ]
            stated[path.relative_to(CODE).as_posix()] = listed[0] if listed else ()
    modules = {}
    for module in sorted(stated):
        reached = [module]
        for other in reached:  # which grows on the way
            reached += [name for name in stated.get(other, ()) if name not in reached]
        modules[module] = (*reached, *TRAINING)
    return modules


def versions() -> dict[str, int]:
    """Module -> its ``VERSION``."""
    return {module: int(VERSION.findall((CODE / module).read_text(encoding="utf-8"))[0]) for module in computed_by()}


def hashes() -> dict[str, str]:
    """Module -> a hash of its code."""
    modules = sorted({module for modules in computed_by().values() for module in modules})
    return {module: code_hash((CODE / module).read_text(encoding="utf-8")) for module in modules}


def changed(table: dict[str, Any]) -> list[str]:
    """A line for each module whose code is not that of the table, with what there is to do."""
    now, lines = hashes(), []
    for module in sorted(now.keys() | table["code"].keys()):
        if now.get(module) != table["code"].get(module):
            places = [first for first, modules in computed_by().items() if module in modules]
            lines.append(
                f"benchmarks/{module} has changed: if results change by it, raise VERSION in {', '.join(places)}, so "
                f"that what was finished before is not taken for them; in any case run `{RENEW}`"
            )
    return lines


if __name__ == "__main__":
    TABLE.write_text(json.dumps({"versions": versions(), "code": hashes()}, indent=1) + "\n", encoding="utf-8")
