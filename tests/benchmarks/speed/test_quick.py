"""Whole models in several ways, and what there is to wait for before the first step."""

import pytest
import torch

from nfn_monomial import WeightSpace
from nfn_monomial.benchmarks.experiments.layers import LAYERS
from nfn_monomial.benchmarks.speed import graphs, layers, whole
from nfn_monomial.benchmarks.speed.whole import (
    MODELS,
    Step,
    bench_models,
    model_table,
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


def test_gains_are_over_the_first_way_of_the_same_setting() -> None:
    steps = [
        Step("a", 8, "float32", 6.0, 0.5), Step("a", 8, "compiled", 2.0, 20.5), Step("b", 8, "float32", 2.0, 0.1),
        Step("b", 8, "compiled", 4.0, 9.0),
    ]  # fmt: skip
    assert [line[3:] for line in model_table(steps).cells] == [
        ("6.0", "1.00x", "-", "-"), ("2.0", "3.00x", "20.5", "5,000"), ("2.0", "1.00x", "-", "-"),
        ("4.0", "0.50x", "9.0", "never"),
    ]  # fmt: skip
