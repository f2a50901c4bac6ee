"""The table of operators in the API and the picture on the page are those of the code."""

import torch
from scripts import script

from nfn_monomial.trace import OPERATORS

page = script("any_network")


def test_the_table_and_the_picture_are_up_to_date() -> None:
    torch.manual_seed(0)
    table, text = (path.read_text(encoding="utf-8") for path in (page.TABLE, page.PAGE))
    assert page.table() in table, "run: python docs/any_network.py"
    assert page.PICTURE.read_text(encoding="utf-8") == page.picture(text), "run: python docs/any_network.py"


def test_every_operator_is_listed_once() -> None:
    lines = page.table().splitlines()[2:]
    listed = [name.strip("`") for line in lines for name in line.split(" | ")[-1].strip(" |").split(", ")]
    assert sorted(listed) == sorted(n for n, entry in OPERATORS.items() if entry.rule and not n.startswith("_"))
