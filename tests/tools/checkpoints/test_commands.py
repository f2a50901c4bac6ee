"""The commands for networks of one's own, as a user types them."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from invoking import invoke, plain, said
from own_networks import SOURCE, mlp, saved
from published_writers import Marker

from nfn_monomial.tools.cli.options import console, errors


@pytest.fixture(autouse=True)
def _wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERMINAL_WIDTH", "200")
    for shown in (console, errors):
        monkeypatch.setattr(shown, "_width", 200)


@pytest.fixture
def pair(tmp_path: Path) -> list[Path]:
    """A network, and one with its neurons in another order and of other scales."""
    state = mlp(1)
    order, scales = torch.tensor([3, 1, 5, 0, 2, 4]), torch.tensor([1.0, 2.0, 0.5, 8.0, 3.0, 0.1])
    other = dict(state)
    other["0.weight"], other["0.bias"] = scales[:, None] * state["0.weight"][order], scales * state["0.bias"][order]
    other["2.weight"] = state["2.weight"][:, order] / scales
    return [saved(tmp_path / "a.safetensors", state), saved(tmp_path / "b.safetensors", other)]


def test_symmetries(pair: list[Path], tmp_path: Path) -> None:
    text = said("symmetries", pair[0], "--activation", "relu", "--out", tmp_path / "out")
    assert "S(6) scale" in text
    assert "Tested on a.safetensors: 4 random elements of the group changed no output" in text
    assert "The neurons of a.safetensors" in text
    assert (tmp_path / "out" / "symmetries.svg").read_text(encoding="utf-8").startswith("<svg")
    assert "error: " in said("symmetries", pair[0], "--activation", "relu", "--out", tmp_path / "out", code=2)
    said("symmetries", pair[0], "--activation", "relu", "--out", tmp_path / "out", "--force")


def test_symmetries_of_a_class(source: Path) -> None:
    text = said("symmetries", "--net", f"{source}:Residual", "--input", "2,1,5,5")
    assert "batch_norm" in text
    assert text.count("Tested:") == 1
    tokens = json.loads(invoke("symmetries", "--net", f"{source}:words", "--json").stdout)
    assert tokens["network"] == "words"


def test_compare(pair: list[Path], tmp_path: Path) -> None:
    text = said("compare", *pair, "--activation", "relu", "--out", tmp_path / "out")
    assert "a and b: the same function" in text
    assert "raw L2 aligned L2" in text
    names = ["compare.png", "results.json", "table.md"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == names


def test_compare_a_folder(pair: list[Path], tmp_path: Path) -> None:
    saved(pair[0].with_name("c.safetensors"), mlp(2))
    text = said("compare", pair[0].parent, "--activation", "relu", "--out", tmp_path / "out")
    assert "3 networks; the nearest relatives first: a - b:" in text
    assert (tmp_path / "out" / "family.png").is_file()


def test_align(pair: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    text = said("align", *pair, "--activation", "relu", "--merge", "0.5", "--out", out)
    assert "Moved into the frame of a: b: distance" in text
    assert str(out / "merged.safetensors") in text
    assert "the same function" in said(
        "compare", out / "b.safetensors", out / "merged.safetensors", "--activation", "relu"
    )


def test_balance(pair: list[Path], tmp_path: Path) -> None:
    prints = []
    for path in pair:
        result = invoke("balance", path, "--activation", "relu", "--out", tmp_path / "out", "--force", "--json")
        prints.append(json.loads(result.stdout)["fingerprint"])
    assert prints[0] == prints[1], "in float32, of these two"
    assert (tmp_path / "out" / "a.safetensors").is_file()


@pytest.mark.parametrize("name", ["symmetries", "compare", "align", "balance"])
def test_json_is_alone_on_stdout_and_the_same_every_time(name: str, pair: list[Path], tmp_path: Path) -> None:
    paths = pair if name in ("compare", "align") else pair[:1]
    given = [name, *paths, "--activation", "relu", "--json", "--force", "--out", tmp_path / "out"]
    first, second = invoke(*given), invoke(*given)
    assert first.exit_code == 0, first.output
    assert first.stdout == second.stdout
    assert json.loads(first.stdout) == json.loads((tmp_path / "out" / "results.json").read_text(encoding="utf-8"))


def test_nothing_that_was_read_is_written_over(pair: list[Path]) -> None:
    before = [path.read_bytes() for path in pair]
    for given in (("align", *pair), ("balance", pair[1])):
        for force in ((), ("--force",)):
            text = said(*given, "--activation", "relu", "--out", pair[0].parent, *force, code=2)
            assert "b.safetensors is b" in text
            assert "which was read, and is not written over: give another --out" in text
    assert [path.read_bytes() for path in pair] == before
    assert sorted(path.name for path in pair[0].parent.iterdir()) == ["a.safetensors", "b.safetensors"]


def no_net(folder: Path) -> list[object]:
    return ["symmetries"]


def wrong_keys(folder: Path) -> list[object]:
    (folder / "own.py").write_text(SOURCE, encoding="utf-8")
    return ["balance", folder / "a.safetensors", "--net", f"{folder / 'own.py'}:Residual"]


def wrong_shapes(folder: Path) -> list[object]:
    return ["compare", folder / "a.safetensors", saved(folder / "w.pt", mlp(1, (4, 7, 5, 2))), "--activation", "relu"]


def not_finite(folder: Path) -> list[object]:
    state = mlp(1)
    state["2.bias"][1] = torch.nan
    return ["align", folder / "a.safetensors", saved(folder / "nan.pt", state), "--activation", "relu"]


def pickled(folder: Path) -> list[object]:
    torch.save(Marker(folder / "ran"), folder / "bad.pt")
    return ["balance", folder / "bad.pt", "--activation", "relu"]


def empty_folder(folder: Path) -> list[object]:
    (folder / "empty").mkdir()
    return ["compare", folder / "empty", "--activation", "relu"]


def pipe(folder: Path) -> list[object]:
    os.mkfifo(folder / "pipe.safetensors")
    return ["symmetries", folder / "pipe.safetensors", "--activation", "relu"]


def code_beside(folder: Path) -> list[object]:
    (folder / "hubconf.py").write_text(f"open({str(folder / 'ran')!r}, 'w')", encoding="utf-8")
    return ["symmetries", folder / "a.safetensors"]


def bad_input(folder: Path) -> list[object]:
    return ["symmetries", folder / "a.safetensors", "--activation", "relu", "--input", "3,x"]


def out_is_a_file(folder: Path) -> list[object]:
    return ["balance", folder / "a.safetensors", "--activation", "relu", "--out", folder / "a.safetensors"]


WRONG: dict[Callable[[Path], list[object]], str] = {
    no_net: "which network? --net module.py:Class",
    wrong_keys: "a.safetensors: the weights are of another architecture than Residual: missing are",
    wrong_shapes: "w.pt has 7 neurons of node layer0, but ",
    not_finite: "nan.pt: 2.bias holds NaN or infinite values",
    pickled: "bad.pt holds a builtins.getattr, expected a state dict",
    empty_folder: "empty has no checkpoints, expected a .safetensors file",
    pipe: "pipe.safetensors: no such file",
    code_beside: "say what network it is by --net",
    bad_input: "--input 3,x: give sizes with commas between, batch included, as 1,3,32,32",
    out_is_a_file: "a.safetensors is a file: give a folder for the results",
}


@pytest.mark.parametrize("make", WRONG, ids=[make.__name__ for make in WRONG])
def test_what_is_wrong_is_said_in_one_line(
    make: Callable[[Path], list[object]], pair: list[Path], tmp_path: Path
) -> None:
    result = invoke(*make(tmp_path), *(["--out", tmp_path / "out"] if make is not out_is_a_file else []))
    assert result.exit_code == 2, result.output
    lines = result.stderr.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    assert WRONG[make] in plain(lines[0])
    assert result.stdout == ""
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "ran").exists()
