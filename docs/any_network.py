"""The table of operators in docs/api/trace.md, and the picture of the ResNet in docs/any-network.md."""

from __future__ import annotations

import contextlib
import io
import re
import sys
from pathlib import Path
from typing import Any

from nfn_monomial.trace.operators import OPERATORS

PAGE = Path(__file__).parent / "any-network.md"
TABLE = PAGE.parent / "api" / "trace.md"
PICTURE = PAGE.parent / "images" / "resnet.svg"
BLOCK = re.compile(r"(<!-- operators -->\n).*?(<!-- end of operators -->)", re.DOTALL)


def table() -> str:
    """One line for each module of rules: what its first line says, and the operators that have a rule there."""
    families: dict[str, list[str]] = {}
    for name, entry in OPERATORS.items():
        if entry.rule is not None:
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


def picture(page: str) -> str:
    """The space of the page's residual network, as its code draws it."""
    names: dict[str, Any] = {}
    with contextlib.redirect_stdout(io.StringIO()):
        exec(next(code for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "picture =" in code), names)
    return str(names["picture"])


def main() -> None:
    """Write both."""
    TABLE.write_text(written(TABLE.read_text(encoding="utf-8")), encoding="utf-8")
    PICTURE.write_text(picture(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
