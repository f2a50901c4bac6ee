"""Figures are equal whenever they are drawn equally, and learning curves show every run of every model."""

import hashlib
import io
from dataclasses import replace

import pytest
from made_up_runs import made_up_run
from PIL import Image

from nfn_monomial.benchmarks.report.figures import draw_learning, stroke
from nfn_monomial.tools.report import MARKERS, PALETTE, look, panels, png


def test_png_is_the_same_every_time_and_leaves_out_empty_panels() -> None:
    def draw(panels_used: int) -> bytes:
        figure, axes = panels(1, 2, (4.0, 2.0))
        for ax in axes[:panels_used]:
            ax.plot([1, 2, 3])
        return png(figure)

    assert draw(1) == draw(1)
    assert hashlib.sha256(draw(1)).digest() != hashlib.sha256(draw(2)).digest()
    with Image.open(io.BytesIO(draw(1))) as image:
        right = image.convert("L").crop((image.width * 2 // 3, 0, image.width, image.height))
        assert right.getextrema() == (255, 255), "nothing is drawn there, not even axes"


def test_models_differ_in_colour_or_marker() -> None:
    looks = [(look(i)["color"], look(i)["marker"]) for i in range(2 * len(PALETTE) + len(MARKERS))]
    assert len(set(looks)) == len(looks)
    assert stroke(True)["linestyle"] != stroke(False)["linestyle"]


def test_learning_curves() -> None:
    runs = [made_up_run(model, seed) for model in ("np", "mlp") for seed in (0, 1)]
    shorter = replace(runs[1], history=({"train_loss": 3.0, "metrics": {"accuracy": 1.0}},) * 2)
    runs = [runs[0], shorter, *(replace(run, invariant_under="nothing") for run in runs[2:])]
    curves = {"loss": lambda epoch: epoch["train_loss"], "accuracy": lambda epoch: epoch["metrics"]["accuracy"]}
    figure = draw_learning(runs, curves, ("chance", 0.25))
    assert [(ax.get_xlabel(), ax.get_ylabel()) for ax in figure.axes] == [("epoch", "loss"), ("epoch", "accuracy")]
    left = figure.axes[0]
    named = {line.get_label(): line for line in left.get_lines() if not str(line.get_label()).startswith("_")}
    assert list(named) == ["NP", "MLP", "chance"]
    assert named["NP"].get_xdata().tolist() == [1, 2], "as long as the shortest run"
    assert named["NP"].get_ydata().tolist() == pytest.approx([(1 + 3) / 2, (1 / 2 + 3) / 2])
    assert named["MLP"].get_ydata().tolist() == pytest.approx([1, 1 / 2, 1 / 3])
    assert named["chance"].get_ydata() == [0.25, 0.25]
    assert (named["NP"].get_linestyle(), named["MLP"].get_linestyle()) == ("-", "--")
    assert len(left.get_lines()) == 3 + 4, "and all four runs"
    (legend,) = figure.legends
    assert [(t.get_text(), t.get_fontweight()) for t in legend.get_texts()] == [
        ("NP", "bold"), ("MLP", "normal"), ("chance", "normal"),
    ]  # fmt: skip
