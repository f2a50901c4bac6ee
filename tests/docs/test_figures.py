"""The pictures of the guide show what is true, and the committed ones are those that the script draws."""

import itertools
import re
import tomllib
from collections import Counter
from html import unescape
from pathlib import Path

import numpy as np
import pytest
import torch
from fibres import null_space
from matplotlib.patches import Rectangle
from scripts import script

from nfn_monomial import Symmetry, WeightSpace
from nfn_monomial.testing import random_element, random_networks

ROOT = Path(__file__).parents[2]
figures = script("figures")
NAMES = ("same_function", "charges", "partitions", "rooms", "houses", "fibre")


@pytest.mark.parametrize("name", NAMES)
def test_the_files_are_those_of_the_script(name: str) -> None:
    assert set(figures.FIGURES) == set(NAMES)
    file = (ROOT / "docs" / "images" / f"{name}.svg").read_text(encoding="utf-8")
    (described,) = re.findall(r"<dc:description>(.*?)</dc:description>", file, flags=re.DOTALL)
    assert unescape(described) == figures.words(figures.FIGURES[name]()), "run: python docs/figures.py"


def test_the_same_function() -> None:
    first, second, left, right = figures.same_function().axes
    (before,), (after,) = left.get_lines(), right.get_lines()
    np.testing.assert_allclose(after.get_ydata(), before.get_ydata(), rtol=0, atol=1e-12)
    assert np.ptp(before.get_ydata()) > 1
    weights = [{text.get_text() for text in axes.texts} for axes in (first, second)]
    assert len(weights[0] - weights[1]) >= 8  # 4 neurons, of which one keeps its scale
    colours = [[tuple(dots.get_facecolor()[0]) for dots in axes.collections[:4]] for axes in (first, second)]
    assert sorted(colours[0]) == sorted(colours[1])
    assert colours[0] != colours[1]


@pytest.mark.parametrize("symmetry", ["PERMUTATION", "SIGN", "SCALE"])
def test_partitions_are_equivariant_where_the_picture_says_so(symmetry: str) -> None:
    space = WeightSpace.mlp([2, 4, 3, 1], Symmetry[symmetry])
    generator = torch.Generator().manual_seed(0)
    networks = random_networks(space, batch=1, generator=generator)
    element = random_element(space, 1, generator=generator)

    def moved(weight: torch.Tensor) -> torch.Tensor:
        return element.act({**networks, "weight.1": weight[None, None]})["weight.1"][0, 0]

    weight = networks["weight.1"][0, 0]
    for axes, (partition, (_, f)) in zip(figures.partitions().axes[1:], figures.PARTITIONS.items(), strict=True):
        difference = (f(moved(weight)) - moved(f(weight))).abs().max()
        says = next(text.get_text() for text in axes.texts if text.get_text().startswith(symmetry)).split(": ")[1]
        assert says == ("yes" if difference < 1e-9 else "no"), partition


def test_there_is_a_square_for_each_direction() -> None:
    figure = figures.fibre()
    squares = Counter(x.get_facecolor() for x in figure.axes[0].patches if type(x) is Rectangle)
    torch.manual_seed(0)
    tokens = torch.randint(11, (2, 6))
    assert sum(squares.values()) == null_space(figures.Block(), tokens) == 150
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert sorted(int(words.split()[0]) for words in legend) == sorted(squares.values())


def test_every_room_of_the_core_is_in_a_house_or_under_it_once() -> None:
    (core,) = (layers for name, layers in figures.contracts().items() if name == "rooms of the core")
    shown = " ".join(text.get_text() for text in figures.houses().axes[0].texts).split()
    titles = "a space is data a module -> a space"
    assert not [room for layer in core for room in layer if shown.count(room) - titles.split().count(room) != 1]


def test_rooms_are_those_of_the_contract() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = project["tool"]["importlinter"]["contracts"]
    packages = (["nfn_monomial"], ["nfn_monomial.tools"], ["nfn_monomial.benchmarks"])
    layers = [contract["layers"] for contract in contracts if contract.get("containers") in packages]
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    for axes, wanted in zip(figures.rooms().axes, layers, strict=True):
        height = {text.get_text(): text.get_position()[1] for text in axes.texts}
        levels = [re.findall(r"\w+", layer) for layer in wanted]
        assert set(height) == {room for rooms in levels for room in rooms} | {"may import"}
        for above, below in itertools.pairwise(levels):
            assert min(height[room] for room in above) > max(height[room] for room in below)
        assert not [room for rooms in levels for room in rooms if f"`{room}`" not in page]
