"""The table of operators on the page is that of the code."""

from __future__ import annotations

from types import ModuleType

from nfn_monomial.space.trace import OPERATORS


def test_the_table_is_up_to_date(operators: ModuleType) -> None:
    page = operators.PAGE.read_text(encoding="utf-8")
    assert operators.written(page) == page, "run: python docs/operators.py"


def test_every_operator_is_listed_once(operators: ModuleType) -> None:
    lines = operators.table().splitlines()[2:]
    listed = [name.strip("`") for line in lines for name in line.split(" | ")[-1].strip(" |").split(", ")]
    assert sorted(listed) == sorted(name for name in OPERATORS if not name.startswith("_"))
    assert len(lines) == len({entry.rule.__module__ for entry in OPERATORS.values()})
