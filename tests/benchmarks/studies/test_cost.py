"""Costs: every model in every setting, relative to HNP, and the paper's numbers in a table of their own."""

import itertools

import pytest
import torch

from nfn_monomial.benchmarks.experiments.speed import REFERENCE
from nfn_monomial.benchmarks.studies import cost
from nfn_monomial.benchmarks.studies.cost import (
    Cost,
    cost_table,
    draw_costs,
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


@pytest.mark.parametrize("batches", [(8, 64), (8, 64, 512)])
def test_figure_has_a_dot_for_each_setting_at_the_height_of_its_model(batches: tuple[int, ...]) -> None:
    """No bars, which would not start at 0 on a logarithmic axis."""
    settings = [(activation, batch) for activation in ("relu", "tanh") for batch in batches]
    models = ["statnn", "hnp", *(f"model {i}" for i in range(21))]
    costs = [
        Cost(*setting, model, model.upper(), "group", 20_000, 2.0**i * (j + 1), 0.5, (i + 1) << 20)
        for j, setting in enumerate(settings)
        for i, model in enumerate(models)
    ]
    figure = draw_costs(costs)
    for ax, of_model in zip(
        figure.axes, ([2.0 ** (i - 1) for i in range(23)], [i / 2 for i in range(1, 24)]), strict=True
    ):
        low, high = ax.get_ylim()
        assert low > high, "the first model is on top"
        assert not ax.patches
        assert ax.get_xscale() == "log"
        *dots, one = ax.lines
        assert list(one.get_xdata()) == [1, 1], "HNP"
        assert len(dots) == len(settings)
        for line in dots:
            assert line.get_linestyle() == "None"
            assert line.get_marker() != "None"
            assert line.get_markerfacecolor() == "none"
            assert list(line.get_ydata()) == list(range(23))
            assert list(line.get_xdata()) == pytest.approx(of_model)
        assert len({(line.get_color(), line.get_marker()) for line in dots}) == len(settings)
        assert [tick.get_text() for tick in ax.get_yticklabels()] == [model.upper() for model in models]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [f"{a}, batch {b}" for a, b in settings]
    figure.draw_without_rendering()
    heights = [tick.get_window_extent() for tick in figure.axes[0].get_yticklabels()]
    assert not any(a.overlaps(b) for a, b in itertools.pairwise(heights))
