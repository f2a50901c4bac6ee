"""Learning curves: named where they end, with a caption that tells what is drawn."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from made_up_runs import made_up_run
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text

from nfn_monomial.benchmarks.report.figures import draw_learning
from nfn_monomial.benchmarks.train.runs import Run

CURVES: dict[str, Callable[[dict[str, Any]], float]] = {
    "training loss": lambda epoch: epoch["train_loss"],
    "validation accuracy": lambda epoch: epoch["metrics"]["accuracy"],
}


def runs(models: int = 3, seeds: int = 1) -> list[Run]:
    """Models of accuracies that end close together; every second one is invariant."""
    return [
        made_up_run(
            f"m{i}",
            seed,
            label=f"model {i} (Fourier)",
            invariant_under="nothing" if i % 2 else "group",
            history=tuple(
                {"number": n, "train_loss": 1 / n, "metrics": {"accuracy": 0.2 * n + 0.001 * i + 0.01 * seed}}
                for n in (1, 2, 3)
            ),
        )
        for i in range(models)
        for seed in range(seeds)
    ]


def names(ax: Axes) -> dict[str, Any]:
    return {text.get_text(): text for text in ax.texts}


def boxes(figure: Figure) -> list[Any]:
    """Of the names without the lines that lead to them."""
    figure.draw_without_rendering()
    return [Text.get_window_extent(text) for text in figure.axes[-1].texts]


def test_curves_are_named_where_they_end_on_the_last_panel() -> None:
    figure = draw_learning(runs(), CURVES, ("chance", 0.5))
    assert not figure.legends
    assert not any(ax.get_legend() for ax in figure.axes)
    first, last = figure.axes
    assert not first.texts
    assert list(names(last)) == ["model 0 (Fourier)", "model 1 (Fourier)", "model 2 (Fourier)", "chance"]
    for line, (name, text) in zip(last.lines, names(last).items(), strict=True):
        assert line.get_label() == name
        assert text.get_color() == line.get_color()
        assert text.get_fontweight() == ("bold" if name in {"model 0 (Fourier)", "model 2 (Fourier)"} else "normal")
        assert text.xy[1] == pytest.approx(list(line.get_ydata())[-1])
    assert names(last)["model 0 (Fourier)"].xy == pytest.approx((3, 0.6))


@pytest.mark.parametrize("models", [2, 8, 24])
def test_names_do_not_overlap_and_are_in_the_figure(models: int) -> None:
    figure = draw_learning(runs(models), CURVES, ("chance", 0.6))
    found = boxes(figure)
    assert len(found) == models + 1
    assert not [pair for pair in itertools.combinations(found, 2) if pair[0].overlaps(pair[1])]
    assert all(box.x0 >= figure.axes[-1].bbox.x1 and box.x1 <= figure.bbox.x1 for box in found)
    assert all(figure.bbox.y0 <= box.y0 and box.y1 <= figure.bbox.y1 for box in found)


def test_a_name_leads_to_where_its_own_curve_ends() -> None:
    some = runs()
    some[1] = replace(some[1], history=some[1].history[:2])
    some[2] = replace(some[2], history=(*some[2].history[:2], some[2].history[2] | {"metrics": {"accuracy": math.nan}}))
    last = draw_learning(some, CURVES).axes[-1]
    assert names(last)["model 1 (Fourier)"].xy == pytest.approx((2, 0.401)), "it was stopped early"
    assert names(last)["model 2 (Fourier)"].xy == pytest.approx((2, 0.402)), "it has no value after that"


def test_a_seed_that_was_stopped_ends_the_mean_and_its_own_line_alone() -> None:
    for stopped in (0, 1):
        some = runs(1, seeds=2)
        some[stopped] = replace(some[stopped], history=some[stopped].history[:2])
        mean, *single = draw_learning(some, CURVES).axes[-1].lines
        assert list(mean.get_ydata()) == pytest.approx([0.205, 0.405])
        assert [list(line.get_xdata()) for line in single] == [[1, 2, 3][: 2 if i == stopped else 3] for i in (0, 1)]


def test_lines_lead_dotted_from_the_end_of_a_curve_to_its_name() -> None:
    found = names(draw_learning(runs(1), CURVES, ("chance", 0.5)).axes[-1])
    styles = {name: text.arrow_patch.get_linestyle() for name, text in found.items()}
    assert styles == {"model 0 (Fourier)": ":", "chance": "-"}


def test_several_subjects_are_told_apart() -> None:
    some = [replace(one, settings=replace(one.settings, subject=name)) for one in runs(1) for name in ("relu", "tanh")]
    last = draw_learning(some, CURVES).axes[-1]
    assert list(names(last)) == ["model 0 (Fourier), relu, original", "model 0 (Fourier), tanh, original"]


def test_caption_tells_of_means_and_faint_lines_where_there_are_some() -> None:
    one, several, some = runs(), runs(seeds=3), [*runs(1), *runs(2, seeds=2)[2:]]
    assert draw_learning(one, CURVES).get_supxlabel() == "Bold: invariant to the whole group; one seed."
    assert draw_learning(several, CURVES).get_supxlabel() == (
        "Bold: invariant to the whole group; means over seeds (3); faint: single runs."
    )
    assert "means over seeds (1 to 2); faint: single runs." in draw_learning(some, CURVES).get_supxlabel()
    for chosen, faint in ((one, 0), (several, 9), (some, 2)):
        lines = draw_learning(chosen, CURVES).axes[-1].lines
        assert sum(line.get_alpha() is not None for line in lines) == faint
