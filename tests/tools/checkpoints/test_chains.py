"""Chains of layers without a definition: the order in which they run is known, said, or asked for."""

import itertools
from pathlib import Path

import pytest
import torch
from own_networks import State, saved

from nfn_monomial.adapters.files import FileError
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.tools import compare_checkpoints, find_symmetries
from nfn_monomial.tools.checkpoints.networks import read_networks


def layers(*named: tuple[str, tuple[int, ...]], bias: bool = True) -> State:
    """The state dict of layers of these shapes, in this order."""
    torch.manual_seed(0)
    state: State = {}
    for name, shape in named:
        state[f"{name}.weight"] = torch.randn(shape)
        if bias:
            state[f"{name}.bias"] = torch.randn(shape[0])
    return state


def order_of(path: Path, *, doubt: bool = False, **naming: object) -> list[str]:
    (network,) = read_networks([path], activation="relu", **naming)  # type: ignore[arg-type]
    assert bool(network.doubt) == doubt
    return [name.removesuffix(".weight") for name in network if name.endswith(".weight")]


IN, ONE, TWO, OUT = ("conv_in", (4, 1, 3, 3)), ("conv_mid1", (4, 4, 3, 3)), ("conv_mid2", (4, 4, 3, 3)), ("out", (2, 4))
KNOWN = {
    "shapes": [("head", (2, 5)), ("first", (6, 4)), ("second", (5, 6))],
    "shapes, a layer twice as wide": [("a", (6, 4)), ("c", (2, 6)), ("b", (6, 6))],
    "shapes against numbers": [("fc2", (6, 4)), ("fc1", (2, 6))],
    "a flatten": [("conv", (4, 1, 3, 3)), ("two", (3, 8)), ("one", (8, 36))],
}
"""Layers whose shapes fit in one order alone, in files of any order, and whatever they are called."""


@pytest.mark.parametrize("kind", KNOWN)
@pytest.mark.parametrize("suffix", ["pt", "safetensors"])
def test_shapes_that_fit_in_one_order_say_it(kind: str, suffix: str, tmp_path: Path) -> None:
    shapes = dict(KNOWN[kind])
    path = saved(tmp_path / f"net.{suffix}", layers(*KNOWN[kind]))
    found = order_of(path)
    assert sorted(found) == sorted(shapes)
    for before, after in itertools.pairwise(found):
        assert shapes[after][1] % shapes[before][0] == 0


@pytest.mark.parametrize("suffix", ["pt", "safetensors"])
def test_numbers_that_the_file_bears_out_are_taken_and_said(suffix: str, tmp_path: Path) -> None:
    path = saved(tmp_path / f"a.{suffix}", layers(IN, ONE, TWO, OUT))
    said = "Layers are taken in the order conv_in, conv_mid1, conv_mid2, out, as they are numbered; others fit, too"
    assert said in find_symmetries(path, activation="relu").summary
    other = saved(tmp_path / "b.pt", layers(("in", (4, 1, 3, 3)), ("l.1", (4, 4, 3, 3)), ("l.9", (4, 4, 3, 3)), OUT))
    found = compare_checkpoints(path, other, activation="relu")
    assert [note for note in found.results["notes"] if "in, l.1, l.9, out" in note] != []
    deep = [(f"layers.{i}", (5, 5 - (i < 1), 1, 1)) for i in range(0, 24, 2)]
    assert order_of(saved(tmp_path / f"deep.{suffix}", layers(*deep)), doubt=True) == [name for name, _ in deep]


ASKED = {
    "file against numbers": ([IN, TWO, ONE, OUT], "behind conv_in may be conv_mid2 or conv_mid1"),
    "no numbers": ([("a", (6, 4)), ("b", (6, 6)), ("c", (6, 6)), ("d", (2, 6))], "behind a may be b or c"),
    "a ring": ([("enc", (3, 8)), ("dec", (8, 3))], "the first may be enc or dec"),
    "stretches": (
        [("a", (6, 4)), ("b", (3, 6)), ("c", (5, 3)), ("d", (6, 5)), ("e", (7, 6)), ("f", (6, 7)), ("g", (1, 6))],
        "behind a may be b or e",
    ),
}


@pytest.mark.parametrize("kind", ASKED)
def test_of_several_orders_it_asks(kind: str, tmp_path: Path) -> None:
    named, doubt = ASKED[kind]
    named = [(name, (*shape, 1, 1)[:4]) for name, shape in named]
    path = saved(tmp_path / "net.pt", layers(*named))
    with pytest.raises(InvalidValueError, match=rf"net\.pt: .*{doubt}.* --order .* --net"):
        order_of(path)
    order = [name for name, _ in named]
    assert order_of(path, order=order) == order


def test_orders_that_are_given_must_fit(tmp_path: Path) -> None:
    state = layers(IN, TWO, ONE, OUT)
    paths = (saved(tmp_path / f"{i}.pt", dict(sorted(state.items(), reverse=bool(i)))) for i in range(2))
    b, a = paths
    order = ["conv_in", "conv_mid2", "conv_mid1", "out"]
    assert order_of(b, order=order) == order
    with pytest.raises(FileError, match=r"1\.pt: its layers fit in several orders"):
        compare_checkpoints(b, a, activation="relu")
    found = compare_checkpoints(a, b, activation="relu", order=order)
    assert found.results["same_function"]
    wrong = {
        ("conv_in", "conv_mid1", "out"): r"--order .*: expected each layer once, .*conv_mid2",
        ("conv_in", "conv_mid1", "conv_mid2", "conv"): r"--order .*: expected each layer once, .*conv_in",
        ("conv_mid1", "conv_in", "conv_mid2", "out"): r"--order .*: conv_in does not fit behind conv_mid1",
    }
    for names, message in wrong.items():
        with pytest.raises(InvalidValueError, match=message):
            order_of(a, order=names)
