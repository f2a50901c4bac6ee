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
    text = (tmp_path / "table.md").read_text(encoding="utf-8")
    assert "Parameters of one 1 -> 4 layer on networks 2-8-8-1" in text
    assert models.markdown() in text
    expected = closed_form("SIGN", (2, 8, 8, 1), (1, 1, 1), (1, 4))
    assert f"| EquivariantLinear, SIGN | {expected} | {expected} |" in text
    assert next(c for c in read(tmp_path)["layers"] if c["family"] == "SIGN")["counted"] == expected
    assert "unknown key 'width'" in said("params", "--out", tmp_path, "--set", "width=3", code=2)
    assert "No such option" in said("params", "--preset", "paper", code=2)


def test_cost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "_width", 80)
    small = ("--set", "batch_sizes=2", "--set", "repeats=1", "--set", "activations=tanh")
    result = invoke("cost", "--out", tmp_path, "--models", "hnp,stats", *small)
    assert result.exit_code == 0, result.output
    assert max(map(len, result.output.replace(str(tmp_path), "").splitlines())) <= 80
    assert files(tmp_path) == {"table.md", "results.json", "cost.png", "config.json"}
    text = (tmp_path / "table.md").read_text(encoding="utf-8")
    assert text.index("Training on tanh networks in batches of 2") < text.index("Published: 50 epochs")
    assert [c["model"] for c in read(tmp_path)["costs"]] == ["hnp", "stats"]
    assert read(tmp_path)["environment"]["device"] == "cpu"


def test_bench_layers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it is real, but for the size of the networks."""
    for module in (graphs, layers):
        monkeypatch.setattr(module, "NETWORKS", {"zoo CNN": lambda: WeightSpace.mlp([2, 4, 3, 1], "relu")})
    monkeypatch.setattr(graphs, "MODELS", "zoo CNN")
    tiny = ("--set", "batches=1,2", "--set", "repeats=1", "--set", "channels=2", "--set", "width=2")
    text = said("bench", "layers", *tiny, "--out", tmp_path / "with")
    assert "Message passing on zoo CNN" in text
    assert files(tmp_path / "with") == {"table.md", "results.json", "config.json"}
    timings = read(tmp_path / "with")["layers"]
    assert {(t["batch"], t["contender"]) for t in timings} >= {(1, "nfn HNPLinear"), (2, "EquivariantLinear")}
    assert all(t["forward_ms"] > 0 for t in timings)
    said("bench", "layers", *tiny, "--set", "graphs=false", "--out", tmp_path / "without")
    assert files(tmp_path / "without") == {"table.md", "results.json", "config.json"}
    assert set(read(tmp_path / "without")) == {"environment", "layers"}


def test_bench_expressivity(tmp_path: Path) -> None:
    tiny = ("networks=8", "test_networks=8", "epochs=3", "channels=2", "sizes=2,3,1", "activations=relu")
    options = [part for text in tiny for part in ("--set", text)]
    assert "message passing" in said("bench", "expressivity", *options, "--seeds", 2, "--out", tmp_path)
    assert files(tmp_path) == {"table.md", "results.json", "expressivity.png", "config.json"}
    assert sorted({o["seed"] for o in read(tmp_path)["outcomes"]}) == [0, 1]


def test_bench_merge(tmp_path: Path) -> None:
    tiny = ("subjects=digits-mlp-4", "several=digits-mlp-4", "together=2", "pairs=1", "validation_pairs=1")
    options = [part for text in (*tiny, "steps=1", "points=3", "inputs=8") for part in ("--set", text)]
    assert "permutation and scale" in said("bench", "merge", *options, "--out", tmp_path)
    assert files(tmp_path) == {"table.md", "results.json", "merge.png", "config.json", "networks", "pairs"}
    assert set(read(tmp_path)["accuracies"]) == {"digits-mlp-4"}
    wrong = ("--set", "several=digits-gpt-4", "--out", tmp_path / "other")
    assert "'digits-gpt-4' is not images-architecture-width" in said("bench", "merge", *wrong, code=2)
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("asked", ["cost", "bench layers", "bench expressivity"])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--out {file}", "{file} is a file: give a folder for the results"),
        ("--device mps", "device 'mps' is unknown; use cpu, cuda or cuda:N"),
        ("--device cuda:9", "device 'cuda:9' is not there"),
        ("--set nothing=1", "unknown key 'nothing'"),
    ],
)
def test_what_cannot_be_done_is_found_out_first(
    asked: str, options: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path)

    def measured(*_: object, **__: object) -> None:
        raise AssertionError("it has begun")

    for place in ("studies.cost.measure_costs", "speed.graphs.bench_speed", "studies.expressivity.bench_expressivity"):
        monkeypatch.setattr(f"nfn_monomial.benchmarks.{place}", measured)
    file = tmp_path / "file"
    assert message.format(file=file) in said(*asked.split(), *options.format(file=file).split(), code=2)
    assert files(tmp_path) == {"file"}


@pytest.mark.parametrize("assignment", ["batches=1.5", "batches=0", "repeats=0", "batches=8,none"])
def test_sizes_are_whole_numbers(assignment: str, tmp_path: Path) -> None:
    key = assignment.partition("=")[0]
    assert f"error: {key}" in said("bench", "layers", "--out", tmp_path / "out", "--set", assignment, code=2)
    assert not (tmp_path / "out").exists()
