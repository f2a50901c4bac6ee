"""The table of operators that ``WeightSpace.from_module`` knows, written into docs/any-network.md from the code."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from nfn_monomial.space.trace.operators import OPERATORS

PAGE = Path(__file__).parent / "any-network.md"
BLOCK = re.compile(r"(<!-- operators -->\n).*?(<!-- end of operators -->)", re.DOTALL)


def table() -> str:
    """One line for each module of rules: what its first line says, and the operators that have a rule there."""
    families: dict[str, list[str]] = {}
    for name, entry in OPERATORS.items():
        families.setdefault(entry.rule.__module__, []).append(name)
    lines = ["| | operators |", "|---|---|"]
    for module, names in sorted(families.items()):
        title = (sys.modules[module].__doc__ or module).splitlines()[0].removeprefix("Rules of ").rstrip(".")
        shown = ", ".join(f"`{name}`" for name in sorted(names) if not name.startswith("_"))
        lines.append(f"| {title[0].upper()}{title[1:]} | {shown} |")
    return "\n".join(lines) + "\n"


def written(page: str) -> str:
    """The page with the table as it is now."""
    return BLOCK.sub(lambda found: f"{found[1]}\n{table()}\n{found[2]}", page)


def main() -> None:
    """Write the table, or with ``--check`` only tell whether it is up to date."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the table is out of date")
    check = parser.parse_args().check
    before = PAGE.read_text(encoding="utf-8")
    after = written(before)
    if check and before != after:
        sys.exit(f"{PAGE} is out of date: python docs/operators.py")
    PAGE.write_text(after, encoding="utf-8")


if __name__ == "__main__":
    main()
