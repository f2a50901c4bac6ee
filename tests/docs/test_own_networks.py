"""What the pages on own networks show is what its commands print, but for digits that machines round in other ways."""

import re
from pathlib import Path

import pytest
from PIL import Image
from scripts import script

page = script("own_networks")
TEXT = "\n".join(path.read_text(encoding="utf-8") for path in page.PAGES)
COMMANDS = {match[1]: match[0] for match in page.COMMAND.finditer(TEXT)}
SLOW = "nfn-monomial compare family "  # of all pairs of six networks
NUMBER = re.compile(r"\b[0-9a-f]{32}\b|[-+]?\b\d+(\.\d+)?(e[-+]?\d+)?\b%?")
LINK = re.compile(r"^  \S+ - \S+: .*$", re.MULTILINE)  # which of equal ways is the shortest is rounding, too
CHOSEN = re.compile(
    r"(?<= by )(as they are|permutation|all symmetries)(?=, the lowest)"
)  # and so is the best of a table


def words(text: str) -> list[str]:
    """In any order, without numbers and rules: where lines break depends on the width of numbers."""
    return sorted(word for word in NUMBER.sub("#", CHOSEN.sub("", LINK.sub("", text))).split() if word.strip("─"))


@pytest.mark.slow
def test_the_outputs_are_those_of_the_commands(tmp_path: Path) -> None:
    page.make_networks(tmp_path, TEXT)
    assert words(page.written(TEXT, tmp_path)) == words(TEXT), "run: python docs/own_networks.py"
    for picture, path in page.PICTURES.items():
        if not picture.endswith(".svg"):
            with Image.open(tmp_path / path) as made, Image.open(page.IMAGES / picture) as shown:
                assert abs(made.width - shown.width) < 30
                assert abs(made.height - shown.height) < 30


def test_commands_that_take_a_moment_say_what_the_pages_show(tmp_path: Path) -> None:
    page.make_networks(tmp_path, TEXT, epochs=1)
    quick = [shown for command, shown in COMMANDS.items() if not command.startswith(SLOW)]
    assert len(quick) == len(COMMANDS) - 1 == 6
    for shown in quick:
        assert words(page.written(shown, tmp_path)) == words(shown), "run: python docs/own_networks.py"
    (drawn,) = (picture for picture in page.PICTURES if picture.endswith(".svg"))
    assert (tmp_path / page.PICTURES[drawn]).read_bytes() == (page.IMAGES / drawn).read_bytes()


def test_the_pages_say_what_is_true() -> None:
    assert "a and a-moved: the same function" in TEXT
    assert "a and b: not the same" in TEXT
    shares = [float(x) for x in re.findall(r"rest ([\d.]+)%", TEXT)]
    assert shares[0] == 0 < shares[1]
    related = LINK.findall(TEXT)[:3]
    assert all(line.split()[0][0] == line.split()[2][0] for line in related), "families come first"
    barriers = re.findall(r"^(?:as they are|permutation|all symmetries) +\S+ +(\S+)", TEXT, re.MULTILINE)
    naive, *aligned = map(float, barriers)
    assert max(aligned) < naive
