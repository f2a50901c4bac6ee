"""The commands for networks of one's own, as a user types them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import typer
from invoking import invoke, plain, said
from own_networks import SOURCE, mlp, saved
from published_writers import Marker

from nfn_monomial.tools.cli.options import shown_progress, user_errors

RELU = "--activation relu"
OUTSIDE = "Outputs were not compared: strides and pools are not known"
TOLD = [
    (
        "symmetries a.safetensors",
        ["S(6) scale", "Tested on a.safetensors: 4", "The neurons of"],
        "symmetries.svg",
    ),
    ("compare a.safetensors b.safetensors", ["a and b: the same function", "raw L2"], "compare.png"),
    ("compare conv.pt conv2.pt", ["the same function", OUTSIDE], "compare.png"),
    ("align a.safetensors b.safetensors", ["Moved into the frame of a: ", "barrier"], "barrier.png"),
    ("align conv.pt conv2.pt --merge 0.5", ["Moved into the frame of conv: ", OUTSIDE], "merged.pt"),
    ("balance a.safetensors", ["Fingerprint of a.safetensors: ", "The canonical form of"], "a.safetensors"),
]
"""A command, what it says, and what it leaves."""


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a network, and one with its neurons in another order and of other scales."""
    state = mlp(1)
    order, scales = torch.tensor([3, 1, 5, 0, 2, 4]), torch.tensor([1.0, 2.0, 0.5, 8.0, 3.0, 0.1])
    other = dict(state)
    other["0.weight"], other["0.bias"] = scales[:, None] * state["0.weight"][order], scales * state["0.bias"][order]
    other["2.weight"] = state["2.weight"][:, order] / scales
    saved(tmp_path / "a.safetensors", state)
    saved(tmp_path / "b.safetensors", other)
    for name in ("conv", "conv2"):
        saved(tmp_path / f"{name}.pt", {"0.weight": torch.ones(4, 1, 3, 3), "1.weight": torch.ones(2, 4, 3, 3)})
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("call", "told", "left"), TOLD, ids=[call for call, _, _ in TOLD])
def test_every_command_answers(call: str, told: list[str], left: str, pair: Path) -> None:
    words = [*call.split(), *RELU.split()]
    result = invoke(*words, "--json", "--out", pair / "out")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout) == json.loads((pair / "out" / "results.json").read_text(encoding="utf-8"))
    assert {path.name for path in (pair / "out").iterdir()} >= {"table.md", "results.json", left}
    text = said(*words, "--out", pair / "words")
    assert [part for part in told if part not in text] == []
    results = [(pair / folder / "results.json").read_bytes() for folder in ("out", "words")]
    assert results[0] == results[1]
    assert "is there already: give another --out, or --force" in said(*words, "--out", pair / "words", code=2)


def test_a_class_says_what_network_it_is(source: Path) -> None:
    text = said("symmetries", "--net", f"{source}:Residual", "--input", "2,1,5,5")
    assert "batch_norm" in text
    assert text.count("Tested:") == 1
    text = said("symmetries", "--net", f"{source}:Residual", "--net-args", "width=5", "--input", "2,1,5,5")
    assert "S(5) scale" in text
    assert "--net-args width: give arguments by name" in said(
        "symmetries", "--net", "a.py:A", "--net-args", "width", code=2
    )


@pytest.mark.parametrize("call", ["align a.safetensors b.safetensors", "balance b.safetensors"])
def test_nothing_that_was_read_is_written_over(call: str, pair: Path) -> None:
    before = [path.read_bytes() for path in sorted(pair.iterdir())]
    for force in ((), ("--force",)):
        text = said(*call.split(), *RELU.split(), "--out", pair, *force, code=2)
        assert "which was read, and is not written over: give another --out" in text
    assert [path.read_bytes() for path in sorted(pair.iterdir())] == before


WRONG = {
    f"symmetries a.safetensors {RELU} --input 3,x": "--input 3,x: give sizes with commas between, batch included",
    "symmetries a.safetensors": "say what network it is by --net",  # the code beside it is not run
    f"compare a.safetensors {RELU}": "compare needs two networks, or a folder of them; found a",
    f"align a.safetensors {RELU}": "align needs two networks, or a folder of them; found a",
    f"symmetries pipe.safetensors {RELU}": "pipe.safetensors: no such file",
    f"compare folder.pt {RELU}": "folder.pt has no checkpoints, expected a .safetensors file",
    f"compare a.safetensors wide.pt {RELU}": "wide.pt has 7 neurons of node layer0, but ",
    f"balance bad.pt {RELU}": "bad.pt holds a builtins.getattr, expected a state dict",
    f"balance a.safetensors {RELU} --out a.safetensors": "a.safetensors is a file: give a folder for the results",
    f"align conv.pt conv2.pt {RELU} --data code.py:nan": "conv cannot be run: strides and pools",
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


@pytest.mark.parametrize("call", WRONG)
def test_what_is_wrong_is_said_in_one_line(call: str, pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(pair))
    for name, text in CODE.items():
        Path(name).write_text(text, encoding="utf-8")
    saved(Path("wide.pt"), mlp(1, (4, 7, 5, 2)))
    torch.save(Marker(pair / "ran"), "bad.pt")
    os.mkfifo("pipe.safetensors")
    Path("folder.pt").mkdir()
    result = invoke(*call.split(), *(["--out", "out"] if "--out" not in call else []))
    assert result.exit_code == 2, result.output
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ")
    assert WRONG[call] in plain(line)
    assert result.stdout == ""
    assert not Path("out").exists()
    assert not Path("ran").exists()


def test_a_pipe_that_is_closed_is_no_fault(capsys: pytest.CaptureFixture[str]) -> None:
    @user_errors
    def printing() -> None:
        """As rich does it, of which a command's table is printed."""
        try:
            raise BrokenPipeError
        except BrokenPipeError:
            raise SystemExit(1)  # noqa: B904

    with pytest.raises(typer.Exit):
        printing()
    assert not capsys.readouterr().err


PRINTS = """
import atexit, os, torch
from torch import nn

print("imported")

class Net(nn.Sequential):
    def __init__(self):
        print("built")
        super().__init__(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2))

    def forward(self, x):
        print("run")
        return super().forward(x)

def example_inputs():
    os.system("echo shell")
    return torch.ones(2, 4)

TRAIN = torch.utils.data.TensorDataset(torch.ones(9, 4), torch.ones(9))

def test_set():
    print("data")
    return torch.ones(3, 4), torch.tensor([0, 1, 0])
"""
ODD = ["[red]a.pt", "b:llama:[bold].safetensors", "[link=x]c[bold].pt"]


def test_what_a_module_prints_is_no_part_of_the_answer(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(PRINTS, encoding="utf-8")
    paths = [saved(tmp_path / f"{i}.pt", mlp(i)) for i in (1, 2)]
    call = ["align", *map(str, paths), "--net", f"{tmp_path}/net.py:Net", "--data", f"{tmp_path}/net.py:test_set"]
    call += ["--merge", "0.5", "--symmetry", "permutation", "--repair-data", f"{tmp_path}/net.py:TRAIN"]
    call += ["--json", "--out", str(tmp_path / "out")]
    result = invoke(*call)
    found = json.loads(result.stdout)
    assert (found["judged_by"], found["merged_by"]) == ("cross-entropy on 3 samples", "permutation")
    assert {"imported", "built", "run", "data"} <= set(result.stderr.split())
    # Of a process of its own, also what does not go through Python, and what is printed last.
    (tmp_path / "last.py").write_text(f"{PRINTS}\natexit.register(print, 'left')\n", encoding="utf-8")
    call = ["balance", str(paths[0]), "--net", f"{tmp_path}/last.py:Net", "--json", "--out", str(tmp_path / "last")]
    done = subprocess.run([sys.executable, "-m", "nfn_monomial.tools", *call], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["network"] == "Net"
    assert {"built", "shell", "left"} <= set(done.stderr.split())


@pytest.mark.parametrize("command", ["symmetries", "align", "balance", "family"])
def test_names_of_files_are_names(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "300")
    Path("hfnets.py").write_text(PRINTS.replace("Net", "llama"), encoding="utf-8")
    for number, name in enumerate(ODD):
        saved(Path("runs:llama:", name), mlp(number))
    paths = [f"runs:llama:/{name}" for name in ODD]
    call = {"align": ["align", *paths], "family": ["compare", "runs:llama:"]}
    text = said(*call.get(command, [command, paths[0]]), "--net", "hfnets.py:llama", "--out", "out:llama:")
    named = {"align": ODD, "family": ODD}.get(command, ODD[:1])
    assert [name for name in named if name not in text and Path(name).stem not in text] == []
    assert "out:llama:/table.md" in text
    assert "[red]missing:llama:.pt: no such file" in said("symmetries", "[red]missing:llama:.pt", *RELU.split(), code=2)
    assert "hfnets.py:llama: " in said("symmetries", "--net", "hfnets.py:llama", "--input", "2,5", code=2)


def test_where_nobody_sees_a_bar_a_line_says_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    clock = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])

    def lines(total: int, seconds: float) -> list[str]:
        """What is said of so many steps of so many seconds."""
        with shown_progress("compare") as progress:
            for done in range(1, total + 1):
                clock[0] += seconds
                progress(done, total)
        out, err = capsys.readouterr()
        assert not out
        return err.splitlines()

    assert lines(9, 1) == [], "which nobody has to be told"
    assert lines(1000, 1)[:2] == ["compare: 30 of 1000, 16 min left", "compare: 60 of 1000, 16 min left"]
    assert lines(40, 1) == [f"compare: {done} of 40, {40 - done} s left" for done in (10, 20, 30)]
    assert lines(3, 9000) == ["compare: 1 of 3", "compare: 2 of 3, 2.5 h left"]


def test_files_that_cannot_be_used_are_left_out_and_told(pair: Path) -> None:
    runs = pair / "runs"
    good = [saved(runs / f"good{i}.pt", mlp(i)) for i in range(3)]
    saved(runs / "nan.pt", mlp(1) | {"0.bias": torch.full((6,), torch.nan)})
    saved(runs / "wide.pt", mlp(1, (4, 7, 5, 2)))
    saved(runs / "other.pt", {"table": torch.ones(3, 4)})
    (runs / "broken.pt").write_bytes(b"PK")
    saved(runs / "sharded" / "m-00001-of-00002.safetensors", mlp(2))
    (runs / "sharded" / "m.safetensors.index.json").write_text("{}", encoding="utf-8")
    first = "broken.pt is damaged or of another kind"
    for command in ("compare", "align"):
        assert first in (text := said(command, runs, *RELU.split(), "--out", pair / "none", code=2))
        assert "--skip-bad goes on without such files" in text
        call = [command, runs, *RELU.split(), "--skip-bad", "--out", pair / command]
        told = invoke(*call).output.splitlines()
        found = json.loads((pair / command / "results.json").read_text(encoding="utf-8"))
        bad = {Path(entry["file"]).name: entry["reason"] for entry in found["skipped"]}
        assert sorted(bad) == ["broken.pt", "m.safetensors.index.json", "nan.pt", "other.pt", "wide.pt"]
        assert bad["nan.pt"].startswith("0.bias holds NaN or infinite values")
        assert bad["broken.pt"].startswith("it is damaged or of another kind")
        assert bad["wide.pt"].startswith("it has 7 neurons of node ")
        assert all(reason in (pair / command / "table.md").read_text(encoding="utf-8") for reason in bad.values())
        lines = [f"left out: {entry['file']}: {entry['reason']}" for entry in found["skipped"]]
        assert [line for line in told if line.startswith("left out")] == lines, "a line for each file, unbroken"
    for path in good[1:]:
        path.unlink()
    text = said("compare", runs, *RELU.split(), "--skip-bad", code=2)
    assert "compare needs two networks, or a folder of them; found good0.pt alone; left out: " in text
    assert first.removeprefix("broken.pt ") in text
    assert text.strip().endswith("; and 2 more"), "of a large folder not all reasons are in one line"
