"""Costs: every model in every setting, relative to HNP, and the paper's numbers in a table of their own."""

import pytest
import torch

from nfn_monomial.benchmarks.experiments.speed import REFERENCE
from nfn_monomial.benchmarks.studies import cost
from nfn_monomial.benchmarks.studies.cost import (
    Cost,
    cost_table,
)
from nfn_monomial.benchmarks.studies.params import zoo_network


def a_cost(model: str, step_ms: float, peak_bytes: int) -> Cost:
    return Cost("relu", 8, model, model.upper(), "permutations", 20_000, step_ms, 0.5, peak_bytes)


@pytest.mark.parametrize("model", [REFERENCE, "message-passing"])
def test_a_step_trains(model: str) -> None:
    _, step, _, _ = cost._contender(model, zoo_network("tanh"), 4, torch.device("cpu"))
    losses = [float(step()) for _ in range(8)]  # type: ignore[arg-type]
    assert losses[-1] < losses[0]


def test_table_is_relative_to_hnp() -> None:
    table = cost_table([a_cost("hnp", 100.0, 8 << 20), a_cost("other", 25.0, 16 << 20)], 81, "cpu")
    lines = [dict(zip(table.header, line, strict=True)) for line in table.cells]
    assert [line["time / HNP"] for line in lines] == ["1.00", "0.25"]
    assert [line["memory / HNP"] for line in lines] == ["1.00", "2.00"]
    assert [line["peak MiB"] for line in lines] == ["8", "16"]
    assert lines[0]["s/epoch"] == "1.1", "81 networks are 11 steps"
    assert lines[0]["min/50 epochs"] == "0.9"
