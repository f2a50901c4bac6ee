"""The commands for networks of one's own, as a user types them."""

import json
import os
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


RELU = "--activation relu"
WRONG = {
    "symmetries": "which network? --net module.py:Class",
    f"symmetries a.safetensors {RELU} --input 3,x": "--input 3,x: give sizes with commas between, batch included",
    "symmetries a.safetensors": "say what network it is by --net",  # the code beside it is not run
    f"symmetries pipe.safetensors {RELU}": "pipe.safetensors: no such file",
    f"symmetries folder.pt {RELU}": "folder.pt has no checkpoints, expected a .safetensors file",
    f"compare folder.pt {RELU}": "folder.pt has no checkpoints, expected a .safetensors file",
    f"compare a.safetensors wide.pt {RELU}": "wide.pt has 7 neurons of node layer0, but ",
    f"compare a.safetensors other.pt {RELU}": "other.pt: the keys of the state dict do not fit",
    "balance a.safetensors --net own.py:Residual": "a.safetensors: the weights are of another architecture than Res",
    f"balance bad.pt {RELU}": "bad.pt holds a builtins.getattr, expected a state dict",
    f"balance a.safetensors {RELU} --out a.safetensors": "a.safetensors is a file: give a folder for the results",
    f"align a.safetensors nan.pt {RELU}": "nan.pt: 2.bias holds NaN or infinite values",
    f"align a.safetensors b.safetensors {RELU} --data code.py:nan": "a loss is nan; inputs, targets and outputs must",
    f"align a.safetensors b.safetensors {RELU} --data code.py:leave": "code.py:leave fails: SystemExit: 5",
    "balance a.safetensors --net leaves.py:Net": "leaves.py cannot be run: SystemExit: 3",
    "balance a.safetensors --net lacks.py:Net": "lacks.py cannot be run: ModuleNotFoundError: No module named 'no_",
    "balance a.safetensors --net breaks:Net": "breaks cannot be imported, expected module.py:Class",
    "balance a.safetensors --net ends.py:Net": "the code that was named leaves the program: SystemExit(4)",
    "balance a.safetensors --net :Net": "':Net' names no network, expected module.py:Class",
}
CODE = {
    "own.py": SOURCE,
    "hubconf.py": "open('ran', 'w')",
    "leaves.py": "raise SystemExit(3)",
    "lacks.py": "import no_such_package",
    "ends.py": "import sys\n\nimport torch\n\n\nclass Net(torch.nn.Linear):\n    def __init__(self):\n"
    "        super().__init__(4, 2)\n\n    def forward(self, x):\n        sys.exit(4)\n\n\n"
    "def example_inputs():\n    return torch.ones(2, 4)\n",
    "breaks.py": "raise KeyError('here')",
    "code.py": "import torch\n\n\ndef nan():\n    return torch.full((3, 4), torch.nan), torch.tensor([0, 1, 0])\n\n\n"
    "def leave():\n    raise SystemExit(5)\n",
}


@pytest.mark.usefixtures("pair")
@pytest.mark.parametrize("call", WRONG)
def test_what_is_wrong_is_said_in_one_line(call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name, text in CODE.items():
        Path(name).write_text(text, encoding="utf-8")
    nan = mlp(1)
    nan["2.bias"][1] = torch.nan
    for name, state in {"nan": nan, "wide": mlp(1, (4, 7, 5, 2)), "other": mlp(1, (4, 2))}.items():
        saved(Path(f"{name}.pt"), state)
    torch.save(Marker(tmp_path / "ran"), "bad.pt")
    os.mkfifo("pipe.safetensors")
    Path("folder.pt").mkdir()
    result = invoke(*call.split(), *(["--out", "out"] if "--out" not in call else []))
    assert result.exit_code == 2, result.output
    lines = result.stderr.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    assert WRONG[call] in plain(lines[0])
    assert result.stdout == ""
    assert not Path("out").exists()
    assert not Path("ran").exists()
