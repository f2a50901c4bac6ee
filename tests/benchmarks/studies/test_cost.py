"""Costs: every model in every setting, relative to HNP, and the paper's numbers in a table of their own."""

from dataclasses import replace

import pytest
import torch

from nfn_monomial.benchmarks.experiments.cost import COST as PRESETS
from nfn_monomial.benchmarks.experiments.cost import CostConfig
from nfn_monomial.benchmarks.studies import cost
from nfn_monomial.benchmarks.studies.cost import (
    Cost,
    cost_report,
    cost_table,
    draw_costs,
    measure_costs,
    published_table,
)
from nfn_monomial.benchmarks.studies.params import zoo_network

TINY = CostConfig(("hnp", "stats", "monomial"), ("relu",), (2, 4), networks=10, repeats=1)


def a_cost(model: str, step_ms: float, peak_bytes: int) -> Cost:
    return Cost("relu", 8, model, model.upper(), "permutations", 20_000, step_ms, 0.5, peak_bytes)


def test_every_model_in_every_setting() -> None:
    told: list[str] = []
    costs = measure_costs(TINY, told.append)
    assert [(c.batch, c.model) for c in costs] == [(b, m) for b in (2, 4) for m in ("hnp", "stats", "monomial")]
    assert told == ["relu networks, batches of 2", "relu networks, batches of 4"]
    assert all(min(c.step_ms, c.prepare_ms, c.peak_bytes) > 0 for c in costs)
    small, large = ({c.model: c for c in costs if c.batch == batch} for batch in (2, 4))
    assert small["monomial"].parameters == 254_799
    # Parameters, gradients and Adam's two moments are there at least, and more of a larger batch.
    assert all(c.peak_bytes > 4 * 4 * c.parameters for c in costs)
    assert small["monomial"].peak_bytes < large["monomial"].peak_bytes
    assert small["stats"].peak_bytes < small["monomial"].peak_bytes < small["hnp"].peak_bytes
    report = cost_report(costs, TINY)
    assert [c["step_ms"] for c in report.results["costs"]] == [c.step_ms for c in costs]
    assert [t.title.split(",")[0] for t in report.tables[:2]] == [
        f"Training on relu networks in batches of {batch}" for batch in (2, 4)
    ]


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


def test_configurations() -> None:
    assert PRESETS["paper"].batch_sizes == (8,)
    for wrong, message in (
        ({"models": ("monomial",)}, "models is monomial: add hnp"),
        ({"batch_sizes": (8, 8)}, "none twice"),
        ({"batch_sizes": (0,)}, "batch_sizes is 0"),
        ({"activations": ()}, "at least one"),
    ):
        with pytest.raises(ValueError, match=message):
            CostConfig(**wrong)
    with pytest.raises(ValueError, match="unknown model 'nothing'"):
        measure_costs(CostConfig(models=("hnp", "nothing")))


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
