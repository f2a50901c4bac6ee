"""Whole models in several ways, and what there is to wait for before the first step."""

from functools import partial

import pytest
import torch

from nfn_monomial import WeightSpace
from nfn_monomial.benchmarks.experiments.layers import LAYERS, LayersConfig
from nfn_monomial.benchmarks.speed import graphs, layers, whole
from nfn_monomial.benchmarks.speed.graphs import bench_speed
from nfn_monomial.benchmarks.speed.whole import (
    MODELS,
    Start,
    Step,
    bench_models,
    bench_starting,
    model_table,
    starting_table,
)

SMALL = WeightSpace.mlp([2, 4, 1], "relu")


@pytest.fixture(autouse=True)
def _one_small_network(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (graphs, layers, whole):
        monkeypatch.setattr(module, "NETWORKS", {"zoo CNN": lambda: SMALL})


def test_every_way_of_every_model_is_timed_or_said_to_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def compiled(call: object, mode: str | None) -> object:
        asked.append(mode)
        return call

    monkeypatch.setattr(torch, "compile", compiled)
    seen: list[str] = []
    ways = LAYERS["quick"].ways
    steps = bench_models((2,), ways, 1, progress=seen.append)
    assert seen == [f"{name}, batch 2" for name in MODELS]
    assert [(s.model, s.way) for s in steps] == [(label, way) for label in MODELS for way in ways]
    assert all(bool(s.ms) == bool(s.first_s) != bool(s.skipped) for s in steps)
    assert asked == [None] * len(MODELS), "no CUDA graphs on a CPU"


def test_what_does_not_compile_is_said_beside_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> object:
        raise RuntimeError("no C++ compiler")

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    monkeypatch.setattr(whole, "MODELS", {"Monomial-NFN": MODELS["Monomial-NFN"]})
    plain, failed = bench_models((2,), ("float32", "compiled"), 1)
    assert (bool(plain.ms), plain.skipped, bool(failed.ms)) == (True, "", False)
    assert "Monomial could not be compiled on cpu" in failed.skipped
    assert "no C++ compiler" in failed.skipped


def test_a_way_that_the_machine_does_not_have_is_left_out_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole, "_missing", lambda way, device: f"not on {device}" if way == "bfloat16" else "")
    steps = bench_models((2,), ("float32", "bfloat16"), 1)
    assert [bool(s.ms) for s in steps] == [True, False] * len(MODELS)
    assert model_table(steps).cells[1][2:] == ("bfloat16", "not on cpu", "-", "-", "-")


def test_gains_are_over_the_first_way_of_the_same_setting() -> None:
    steps = [
        Step("a", 8, "float32", 6.0, 0.5), Step("a", 8, "compiled", 2.0, 20.5), Step("b", 8, "float32", 2.0, 0.1),
        Step("b", 8, "compiled", 4.0, 9.0),
    ]  # fmt: skip
    assert [line[3:] for line in model_table(steps).cells] == [
        ("6.0", "1.00x", "-", "-"), ("2.0", "3.00x", "20.5", "5,000"), ("2.0", "1.00x", "-", "-"),
        ("4.0", "0.50x", "9.0", "never"),
    ]  # fmt: skip


@pytest.mark.slow
def test_imports_and_layers_are_waited_for() -> None:
    starts = bench_starting(2)
    assert all(s.seconds > 0 for s in starts)
    assert [line[0] for line in starting_table(starts).cells[:3]] == [
        "import torch",
        "import nfn_monomial after torch",
        "WeightSpace on 4 tensors",
    ]
    assert starting_table([Start("import", 1.234)]).cells == (("import", "1.23"),)


@pytest.mark.slow
def test_both_tables_come_last_and_only_where_they_are_asked_for() -> None:
    report = bench_speed(LayersConfig((1,), 2, 1, False, ways=("float32",), depth=1))
    assert set(report.results) == {"environment", "layers", "models", "starting"}
    assert [t.title for t in report.tables[-2:]] == [
        "A training step of whole models on zoo CNN",
        "Before the first step",
    ]
