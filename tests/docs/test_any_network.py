"""The table of operators and the picture on the page are those of the code."""

from __future__ import annotations

from types import ModuleType

import torch

from nfn_monomial.space.trace import OPERATORS


def test_the_table_is_up_to_date(any_network: ModuleType) -> None:
    page = any_network.PAGE.read_text(encoding="utf-8")
    assert any_network.written(page) == page, "run: python docs/any_network.py"


def test_every_operator_is_listed_once(any_network: ModuleType) -> None:
    lines = any_network.table().splitlines()[2:]
    listed = [name.strip("`") for line in lines for name in line.split(" | ")[-1].strip(" |").split(", ")]
    assert sorted(listed) == sorted(name for name in OPERATORS if not name.startswith("_"))
    assert len(lines) == len({entry.rule.__module__ for entry in OPERATORS.values()})


def test_the_picture_is_that_of_the_code(any_network: ModuleType) -> None:
    torch.manual_seed(0)
    drawn = any_network.picture(any_network.PAGE.read_text(encoding="utf-8"))
    assert any_network.PICTURE.read_text(encoding="utf-8") == drawn, "run: python docs/any_network.py"
