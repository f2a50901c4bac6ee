"""The commands that count and time: tiny from end to end, and what cannot be done is found out first."""

import json
from pathlib import Path
from typing import Any

import pytest
from invoking import invoke, said

from nfn_monomial import WeightSpace
from nfn_monomial.benchmarks.speed import graphs, layers
from nfn_monomial.benchmarks.studies import params
from nfn_monomial.benchmarks.studies.params import closed_form
from nfn_monomial.tools.cli.options import console
from nfn_monomial.tools.report import Table


def read(folder: Path) -> Any:
    return json.loads((folder / "results.json").read_text(encoding="utf-8"))


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_params(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models = Table("Models", ("model", "relu"), (("np", "2.03M"),))
    monkeypatch.setattr(params, "model_tables", lambda: [models])  # building them all takes its time
    options = ("--set", "sizes=2,8,8,1", "--set", "kernel=1", "--set", "channels=1,4", "--set", "largest=16")
    said("params", "--out", tmp_path, *options)
    assert files(tmp_path) == {"table.md", "results.json", "params.png", "config.json"}
    expected = closed_form("SIGN", (2, 8, 8, 1), (1, 1, 1), (1, 4))
    table = (tmp_path / "table.md").read_text(encoding="utf-8")
    assert f"| EquivariantLinear, SIGN | {expected} | {expected} |" in table


def test_cost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "_width", 80)
    small = ("--set", "batch_sizes=2,32", "--set", "repeats=1", "--set", "activations=relu")
    result = invoke("cost", "--out", tmp_path, "--models", "hnp,stats", *small)
    assert result.exit_code == 0, result.output
    assert max(map(len, result.output.replace(str(tmp_path), "").splitlines())) <= 80
    assert files(tmp_path) == {"table.md", "results.json", "cost.png", "config.json"}
    text = (tmp_path / "table.md").read_text(encoding="utf-8")
    assert text.index("Training on relu networks in batches of 2") < text.index("Published: 50 epochs")
    assert read(tmp_path)["environment"]["device"] == "cpu"
    costs = read(tmp_path)["costs"]
    assert [(c["batch"], c["model"]) for c in costs] == [(b, m) for b in (2, 32) for m in ("hnp", "stats")]
    assert all(min(c["step_ms"], c["prepare_ms"], c["peak_bytes"]) > 0 for c in costs)
    small_ones, large = ({c["model"]: c for c in costs if c["batch"] == batch} for batch in (2, 32))
    # Parameters, gradients and Adam's two moments are there at least, and more of a larger batch.
    assert all(c["peak_bytes"] > 4 * 4 * c["parameters"] for c in costs)
    assert small_ones["stats"]["peak_bytes"] < small_ones["hnp"]["peak_bytes"] < large["hnp"]["peak_bytes"]


def test_bench_layers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it is real, but for the size of the networks."""
    for module in (graphs, layers):
        monkeypatch.setattr(module, "NETWORKS", {"zoo CNN": lambda: WeightSpace.mlp([2, 4, 1], "relu")})
    tiny = ("--set", "batches=2", "--set", "repeats=1", "--set", "channels=2", "--set", "width=2")
    text = said("bench", "layers", *tiny, "--out", tmp_path / "with")
    assert "Message passing on zoo CNN" in text
    assert files(tmp_path / "with") == {"table.md", "results.json", "config.json"}
    timings = read(tmp_path / "with")["layers"]
    assert {(t["batch"], t["contender"]) for t in timings} >= {(2, "nfn HNPLinear"), (2, "EquivariantLinear")}
    assert all(t["forward_ms"] > 0 and t["step_operators"] > t["forward_operators"] > 0 for t in timings)
    assert [t["forward_operators"] > 0 for t in read(tmp_path / "with")["balance"]] == [True]
    assert {t["table"] for t in read(tmp_path / "with")["graphs"]} == {
        "zoo CNN, one layer",
        "zoo CNN, three blocks with norms",
    }


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("cost --out {file}", "{file} is a file: give a folder for the results"),
        ("bench layers --device mps", "device 'mps' is unknown; use cpu, cuda or cuda:N"),
        ("bench layers --device cuda:9", "device 'cuda:9' is not there"),
        ("params --set nothing=1", "unknown key 'nothing'"),
    ],
)
def test_what_cannot_be_done_is_found_out_first(
    asked: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.touch()
    monkeypatch.chdir(tmp_path)
    assert message.format(file=file) in said(*asked.format(file=file).split(), code=2)
    assert files(tmp_path) == {"file"}
