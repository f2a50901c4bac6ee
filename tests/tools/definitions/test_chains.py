"""Chains of layers without a definition: the order in which they run is known, said, or asked for."""

from pathlib import Path

import pytest
import torch
from own_networks import State, saved

from nfn_monomial.errors import InvalidValueError
from nfn_monomial.tools import compare_checkpoints, find_symmetries
from nfn_monomial.tools.checkpoints.networks import read_networks
from nfn_monomial.tools.files.untrusted import FileError


def layers(*named: tuple[str, tuple[int, ...]], bias: bool = True) -> State:
    """The state dict of layers of these shapes, in this order."""
    torch.manual_seed(0)
    state: State = {}
    for name, shape in named:
        state[f"{name}.weight"] = torch.randn(shape)
        if bias:
            state[f"{name}.bias"] = torch.randn(shape[0])
    return state


def order_of(path: Path, **naming: object) -> list[str]:
    (network,) = read_networks([path], activation="relu", **naming)  # type: ignore[arg-type]
    assert bool(network.doubt) == ("order" not in naming)
    return [name.removesuffix(".weight") for name in network if name.endswith(".weight")]


IN, ONE, TWO, OUT = ("conv_in", (4, 1, 3, 3)), ("conv_mid1", (4, 4, 3, 3)), ("conv_mid2", (4, 4, 3, 3)), ("out", (2, 4))
DEEP = [(f"layers.{i}", (5, 5 - (i < 1), 1, 1)) for i in range(0, 24, 2)]
TAKEN = {
    "pt": [[IN, TWO, ONE, OUT], [("fc2", (6, 4)), ("fc1", (2, 6))], DEEP, [("conv", (4, 1, 3, 3)), ("a", (8, 36))]],
    "safetensors": [[IN, ONE, TWO, OUT], DEEP],
}
"""Layers that are taken in the order of the file, of safetensors by name: numbers count as such."""


@pytest.mark.parametrize("suffix", TAKEN)
def test_the_order_of_the_file_is_taken_and_said(suffix: str, tmp_path: Path) -> None:
    for number, named in enumerate(TAKEN[suffix]):
        path = saved(tmp_path / f"{number}.{suffix}", layers(*named))
        assert order_of(path) == [name for name, _ in named]
        said = f"Layers are taken in the order {', '.join(name for name, _ in named)}: if they run in another one"
        assert said in find_symmetries(path, activation="relu").summary


def test_of_two_files_with_the_same_names_these_count(tmp_path: Path) -> None:
    state = layers(IN, TWO, ONE, OUT)
    paths = saved(tmp_path / "a.pt", state), saved(tmp_path / "b.safetensors", state)
    found = compare_checkpoints(*paths, activation="relu")
    assert found.results["same_function"]
    assert len(found.results["notes"]) == 1
    other = saved(tmp_path / "c.pt", layers(("in", (4, 1, 3, 3)), ("l.1", (4, 4, 3, 3)), ("l.9", (4, 4, 3, 3)), OUT))
    found = compare_checkpoints(paths[0], other, activation="relu")
    assert [note for note in found.results["notes"] if "in, l.1, l.9, out" in note] != []


ASKED = {
    "a name before another": (
        [("head", (2, 5)), ("first", (6, 4)), ("second", (5, 6))],
        r"first\.weight \(6, 4\) does not fit after head\.weight \(2, 5\)", "first,head,second",
    ),
    "numbers in the order of texts": (
        [("fc10", (2, 6)), ("fc8", (6, 4)), ("fc9", (6, 6))],
        r"fc8\.weight \(6, 4\) does not fit after fc10\.weight \(2, 6\)", "fc8,fc9,fc10",
    ),
    "a convolution after": ([("a", (4, 4)), ("b", (4, 4, 3, 3))], r"b\.weight .* after a\.weight .*", "a,b"),
}  # fmt: skip


@pytest.mark.parametrize("kind", ASKED)
def test_where_shapes_do_not_fit_it_asks(kind: str, tmp_path: Path) -> None:
    named, said, example = ASKED[kind]
    path = saved(tmp_path / "net.pt", layers(*named))
    with pytest.raises(
        FileError, match=rf"net\.pt: in the order of the file: {said}; .* --order {example}; or .*--net"
    ):
        order_of(path)


def test_orders_that_are_given_must_fit(tmp_path: Path) -> None:
    a = saved(tmp_path / "a.pt", layers(IN, OUT, TWO, ONE))
    for order in (["conv_in", "conv_mid2", "conv_mid1", "out"], ["conv_in", "conv_mid1", "conv_mid2", "out"]):
        assert order_of(a, order=order) == order
    wrong = {
        ("conv_in", "conv_mid1", "out"): r"--order .*: expected each layer once, .*conv_mid2",
        ("conv_in", "conv_mid1", "conv_mid2", "conv"): r"--order .*: expected each layer once, .*conv_in",
        (
            "conv_mid1",
            "conv_in",
            "conv_mid2",
            "out",
        ): r"--order .*: conv_in\.weight .* does not fit after conv_mid1\.weight",
    }
    for names, message in wrong.items():
        with pytest.raises(InvalidValueError, match=message):
            order_of(a, order=names)
