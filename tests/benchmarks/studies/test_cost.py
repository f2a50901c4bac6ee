"""Costs: every model in every setting, relative to HNP, and the paper's numbers in a table of their own."""

from dataclasses import replace

import torch

from nfn_monomial.benchmarks.experiments.cost import CostConfig
from nfn_monomial.benchmarks.studies import cost
from nfn_monomial.benchmarks.studies.cost import (
    Cost,
    cost_table,
    draw_costs,
    published_table,
)
from nfn_monomial.benchmarks.studies.params import zoo_network

TINY = CostConfig(("hnp", "stats", "monomial"), ("relu",), (2, 4), networks=10, repeats=1)


def a_cost(model: str, step_ms: float, peak_bytes: int) -> Cost:
    return Cost("relu", 8, model, model.upper(), "permutations", 20_000, step_ms, 0.5, peak_bytes)


def test_a_step_trains() -> None:
    contender = cost._contender("hnp", zoo_network("tanh"), 4, torch.device("cpu"))
    losses = [float(contender.step()) for _ in range(8)]  # type: ignore[arg-type]
    assert losses[-1] < losses[0]


def test_table_is_relative_to_hnp() -> None:
    table = cost_table([a_cost("hnp", 100.0, 8 << 20), a_cost("other", 25.0, 16 << 20)], 81, "cpu")
    lines = [dict(zip(table.header, line, strict=True)) for line in table.cells]
    assert [line["time / HNP"] for line in lines] == ["1.00", "0.25"]
    assert [line["memory / HNP"] for line in lines] == ["1.00", "2.00"]
    assert [line["peak MiB"] for line in lines] == ["8", "16"]
    assert lines[0]["s/epoch"] == "1.1", "81 networks are 11 steps"
    assert lines[0]["min/50 epochs"] == "0.9"


def test_published() -> None:
    lines = {line[0]: line[1:] for line in published_table().cells}
    assert lines["HNP"][2:4] == ("1.00", "1.00")
    assert lines["Monomial-NFN"] == ("18m23s", "23m47s", "0.62", "0.79", "582MB", "560MB", "0.68", "0.65")
    assert lines["GNN"][2] == "8.96"


def test_figure_is_relative_to_hnp() -> None:
    costs = [a_cost("hnp", 100.0, 8 << 20), a_cost("other", 25.0, 16 << 20)]
    costs += [replace(c, batch=64, step_ms=2 * c.step_ms) for c in costs]
    time, memory = draw_costs(costs).axes
    assert (time.get_xlabel(), memory.get_xlabel()) == ("time of a step, HNP = 1", "peak memory, HNP = 1")
    for ax, ratio in ((time, 0.25), (memory, 2.0)):
        bars = {bar.get_label(): [patch.get_width() for patch in bar] for bar in ax.containers}
        assert bars == {"relu, batch 8": [1.0, ratio], "relu, batch 64": [1.0, ratio]}
        assert [t.get_text() for t in ax.get_yticklabels()] == ["HNP", "OTHER"]
        assert ax.yaxis_inverted(), "the first model is on top"
