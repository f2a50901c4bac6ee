"""Tables, rows and Figure 1 hold the numbers of the runs, and nothing is averaged that differs."""

import math
import statistics
from dataclasses import replace

import pytest
from made_up_runs import made_up_run
from matplotlib.colors import to_hex
from matplotlib.container import BarContainer

from nfn_monomial.benchmarks.studies.predict_report import Row, draw_figure, predict_tables, summarise
from nfn_monomial.benchmarks.train.runs import Run, TestResult
from nfn_monomial.tools.report import PALETTE

MODELS = {
    "statnn": ("STATNN", "permutations", "weights"),
    "mlp": ("MLP", "nothing", "weights"),
    "monomial": ("Monomial-NFN", "group", "functions"),
}


def made_up(activation: str, model: str, train_set: str, seed: int) -> Run:
    label, invariant_under, sees = MODELS[model]
    scales = (10.0, 1e6) if activation == "relu" else ()
    names = [("original", None), *((f"scale {s:g}", s) for s in scales)]
    names += [] if scales else [("sign flips", None)]
    names += [] if model == "mlp" else [("widened", None)]
    fall = 0.0 if model == "monomial" else 0.1
    tests = [
        TestResult(name, scale, {"tau": 0.8 - fall * i + 0.01 * seed, "r2": 0.9 - fall * i}, non_finite=0)
        for i, (name, scale) in enumerate(names)
    ]
    return made_up_run(
        model, seed, tests, subject=activation, train_set=train_set, options={"scales": scales}, label=label,
        invariant_under=invariant_under, sees=sees, parameters=254_799, seconds_per_epoch=0.5 + seed,
        peak_bytes=3 * 2**20,
    )  # fmt: skip


def markdown(rows: list[Row]) -> str:
    return "\n".join(table.markdown() for table in predict_tables(rows))


def all_runs(seeds: int = 3) -> list[Run]:
    return [
        made_up(activation, model, train_set, seed)
        for seed in range(seeds)
        for activation in ("relu", "tanh")
        for train_set in ("original", "augmented")
        for model in MODELS
    ]


def test_rows() -> None:
    rows = summarise(all_runs())
    assert [(r.activation, r.train_set, r.model) for r in rows[:4]] == [
        ("relu", "original", "statnn"),
        ("relu", "original", "mlp"),
        ("relu", "original", "monomial"),
        ("relu", "augmented", "statnn"),
    ]
    assert len(rows) == 12
    row = rows[0]
    assert row.seeds == (0, 1, 2)
    assert list(row.tau) == ["original", "scale 10", "scale 1e+06", "widened"]
    assert [value.mean for value in row.tau.values()] == pytest.approx([0.81, 0.71, 0.61, 0.51])
    assert all(v.error == pytest.approx(statistics.stdev([0.8, 0.81, 0.82]) / math.sqrt(3)) for v in row.tau.values())
    assert row.seconds_per_epoch.mean == pytest.approx(1.5)
    assert row.peak_mib == pytest.approx(3)
    assert [r.invariant for r in rows[:3]] == ["perm. only", "no", "yes"]
    assert [r.sees for r in rows[:3]] == ["weights", "weights", "runs them"]


def test_markdown() -> None:
    text = markdown(summarise(all_runs()))
    header = "| model | sees | invariant | trained on | tau original | tau 1e1 | tau 1e6 | tau widened | R2 original "
    assert header + "| R2 1e6 | R2 widened | params | s/epoch |" in text
    line = "| STATNN | weights | perm. only | original | 0.810 ±0.006 | 0.710 ±0.006 | 0.610 ±0.006 | 0.510 ±0.006 "
    assert line + "| 0.900 ±0.000 | 0.700 ±0.000 | 0.600 ±0.000 | 0.25M | 1.5 | 3 | 3 |" in text
    assert "| **Monomial-NFN** | runs them | yes |" in text
    assert "| tau original | tau sign flips | tau widened | R2 original | R2 sign flips | R2 widened |" in text
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len(lines) == 2 * (2 + 6)
    assert len({line.count("|") for line in lines[:8]}) == 1
    assert "1eK: test networks moved by random group elements" in text
    assert text.count("widened: the same functions") == 2
    assert text.count("Mean ± standard error over seeds") == 2


def test_a_model_without_a_number_has_a_dash() -> None:
    text = markdown(summarise(all_runs()))
    assert "| MLP | weights | no | original | 0.810 ±0.006 | 0.710 ±0.006 | 0.610 ±0.006 | - | 0.900" in text
    first = [run for run in all_runs() if run.settings.model != "statnn"]  # the row without comes first
    assert "| tau 1e6 | tau widened | R2 original |" in markdown(summarise(first))
    alone = markdown(summarise([run for run in first if run.settings.model == "mlp"]))
    assert "widened" not in alone


def test_lost_predictions_and_divergence_are_mentioned() -> None:
    run = made_up("relu", "mlp", "original", 0)
    text = markdown(summarise([run]))
    assert "NaN or infinite" not in text
    bad = replace(run, diverged=True, tests=(replace(run.tests[0], non_finite=4), *run.tests[1:]))
    text = markdown(summarise([bad]))
    assert "NaN or infinite predictions, ranked" in text
    assert "MLP (original, 1 of 1 seeds)" in text


def test_lines_of_figure_1() -> None:
    rows = [row for row in summarise(all_runs()) if row.activation == "relu"]
    figure = draw_figure(rows)
    panels = {ax.get_title(): ax for ax in figure.axes}
    assert list(panels) == [f"relu networks, trained on {train_set} weights" for train_set in ("original", "augmented")]
    for train_set, ax in zip(("original", "augmented"), figure.axes, strict=True):
        lines = {line.get_label(): line for line in ax.get_lines() if not str(line.get_label()).startswith("_")}
        assert list(lines) == ["STATNN", "MLP", "Monomial-NFN"]
        own = {row.label: row for row in rows if row.train_set == train_set}
        for i, (label, line) in enumerate(lines.items()):
            assert line.get_xdata().tolist() == [0, 1, 6], "the logarithms of no scale, 10 and 1e6"
            taus = [value.mean for name, value in own[label].tau.items() if name != "widened"]
            assert line.get_ydata().tolist() == pytest.approx(taus)
            assert to_hex(line.get_color()) == PALETTE[i].lower()
            assert line.get_linestyle() == ("-" if label == "Monomial-NFN" else "--")
        assert len(ax.containers) == 2, "the widened ones of all models but the MLP"
        assert "log10 of the largest scale" in ax.get_xlabel()
        assert ax.get_ylabel() == "Kendall's tau on test networks"
        assert [t.get_text() for t in ax.get_xticklabels()] == ["0", "1", "6", "widened"]
    assert figure.axes[0].get_ylim() == figure.axes[1].get_ylim()
    (legend,) = figure.legends
    assert [(t.get_text(), t.get_fontweight()) for t in legend.get_texts()] == [
        ("STATNN", "normal"), ("MLP", "normal"), ("Monomial-NFN (runs them)", "bold"),
    ]  # fmt: skip
    assert "Mean ± standard error over seeds (3)" in figure.get_supxlabel()


def test_bars_of_figure_1() -> None:
    rows = [row for row in summarise(all_runs()) if (row.activation, row.train_set) == ("tanh", "original")]
    (ax,) = draw_figure(rows).axes
    bars = {
        bar.get_label(): [patch.get_height() for patch in bar] for bar in ax.containers if isinstance(bar, BarContainer)
    }
    assert bars["original"] == pytest.approx([0.81] * 3)
    assert bars["sign flips"] == pytest.approx([0.71, 0.71, 0.81])
    assert bars["widened"] == pytest.approx([0.61, 0.81]), "the MLP has none"
    assert [t.get_text() for t in ax.get_xticklabels()] == ["STATNN", "MLP", "Monomial-NFN"]
    assert ax.get_xlabel() == "test networks: solid: original, hatched: sign flips, dotted: widened"


@pytest.mark.parametrize("models", [2, 20])
def test_the_legend_has_room_for_every_model(models: int) -> None:
    runs = [
        replace(run, label=f"Model {i}", settings=replace(run.settings, model=f"m{i}"))
        for i in range(models)
        for run in all_runs(2)
        if run.settings.model == "statnn" and run.settings.train_set == "original"
    ]
    figure = draw_figure(summarise(runs))
    assert figure.get_figheight() > 0.21 * models
    figure.draw_without_rendering()
    box = figure.legends[0].get_window_extent()
    assert box.height <= figure.bbox.height
    assert all(box.x0 >= ax.get_window_extent().x1 for ax in figure.axes if ax.has_data()), "beside, not over panels"
