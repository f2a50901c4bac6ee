"""The versions of what experiments compute, and hashes of the code they are of: ``python tests/helpers/versions.py``.

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
RENEW = ".venv/bin/python tests/helpers/versions.py"
TRAINING = ("train/loop.py", "train/schedule.py")
ZOO_MODELS = tuple(f"models/{name}.py" for name in ("baselines", "graphs", "monomial", "parts", "sets"))
INR_MODELS = ("models/inr.py", "models/inr_input.py", "models/parts.py")
COMPUTES: dict[str, tuple[str, ...]] = {
    "predict-generalization": ("studies/predict.py", "data/moves.py", "data/widen.py", *ZOO_MODELS, *TRAINING),
    "classify-inr": ("studies/classify.py", *INR_MODELS, *TRAINING),
    "edit-inr": ("studies/edit.py", "models/editors.py", "models/inr_input.py", "models/parts.py", *TRAINING),
    "train": ("studies/columns.py", "studies/predict.py", *ZOO_MODELS, *TRAINING),
    "tune": ("studies/tune.py", "studies/predict.py", *ZOO_MODELS, *TRAINING),
}
"""Experiment -> the modules that compute its results; the first has its ``VERSION``."""


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


def versions() -> dict[str, int]:
    """Experiment -> the number beside its code."""
    found = {}
    for name, (first, *_) in COMPUTES.items():
        numbers = re.findall(r"^VERSION = (\d+)\b", (CODE / first).read_text(encoding="utf-8"), flags=re.MULTILINE)
        assert len(numbers) == 1, f"{first} has not one line VERSION = NUMBER"
        found[name] = int(numbers[0])
    return found


def hashes() -> dict[str, str]:
    """Module -> a hash of its code."""
    modules = sorted({module for modules in COMPUTES.values() for module in modules})
    return {module: code_hash((CODE / module).read_text(encoding="utf-8")) for module in modules}


def changed(table: dict[str, Any]) -> list[str]:
    """A line for each module whose code is not that of the table, with what there is to do."""
    now, lines = hashes(), []
    for module in sorted(now.keys() | table["code"].keys()):
        if now.get(module) != table["code"].get(module):
            places = sorted({modules[0] for modules in COMPUTES.values() if module in modules})
            lines.append(
                f"benchmarks/{module} has changed: if results change by it, raise VERSION in {', '.join(places)}, so "
                f"that what was finished before is not taken for them; in any case run `{RENEW}`"
            )
    return lines


if __name__ == "__main__":
    TABLE.write_text(json.dumps({"versions": versions(), "code": hashes()}, indent=1) + "\n", encoding="utf-8")
