"""What the page on own networks shows is what its commands print, but for digits that machines round in other ways."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import pytest
from PIL import Image

NUMBER = re.compile(r"[-+]?\b\d+(\.\d+)?(e[-+]?\d+)?\b%?")
LINK = re.compile(r"^  \S+ - \S+: .*$", re.MULTILINE)  # which of equal ways is the shortest is rounding, too


def words(page: str) -> list[str]:
    """Without numbers, rules and the layout, which depends on the width of numbers."""
    return [word for word in NUMBER.sub("#", LINK.sub("", page)).split() if word.strip("─")]


def test_the_outputs_are_those_of_the_commands(
    own_networks: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = own_networks.PAGE.read_text(encoding="utf-8")
    assert len(own_networks.COMMAND.findall(page)) == 6
    own_networks.make_networks(tmp_path, page)
    assert words(own_networks.written(page, tmp_path)) == words(page), "run: python docs/own_networks.py"
    for picture, path in own_networks.PICTURES.items():
        if picture.endswith(".svg"):
            assert (tmp_path / path).read_bytes() == (own_networks.IMAGES / picture).read_bytes()
            continue
        with Image.open(tmp_path / path) as made, Image.open(own_networks.IMAGES / picture) as shown:
            assert abs(made.width - shown.width) < 30
            assert abs(made.height - shown.height) < 30


def test_the_page_says_what_is_true(own_networks: ModuleType) -> None:
    page = own_networks.PAGE.read_text(encoding="utf-8")
    assert "a and a-moved: the same function" in page
    assert "a and b: not the same" in page
    shares = [float(x) for x in re.findall(r"rest ([\d.]+)%", page)]
    assert shares[0] == 0 < shares[1]
    related = LINK.findall(page)[:6]
    assert all(line.split()[0][0] == line.split()[2][0] for line in related), "families come first"
    barriers = re.findall(r"^(?:as they are|permutation|all symmetries) +\S+ +(\S+)", page, re.MULTILINE)
    naive, *aligned = map(float, barriers)
    assert max(aligned) < naive
