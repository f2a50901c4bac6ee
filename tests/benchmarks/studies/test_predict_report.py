"""Tables, rows and Figure 1 hold the numbers of the runs, and nothing is averaged that differs."""

import itertools
import math
import statistics
from dataclasses import replace

import numpy as np
import pytest
from made_up_runs import made_up_run

from nfn_monomial.benchmarks.report.beside import Kept
from nfn_monomial.benchmarks.report.figures import name_lines
from nfn_monomial.benchmarks.report.intervals import Outcomes, difference
from nfn_monomial.benchmarks.report.tables import short
from nfn_monomial.benchmarks.studies.predict_report import (
    Row,
    difference_tables,
    draw_figure,
    predict_report,
    predict_tables,
    summarise,
)
from nfn_monomial.benchmarks.train.runs import Run, TestResult
from nfn_monomial.tools.report import panels

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


def test_a_model_without_widened_networks_has_a_dash() -> None:
    text = markdown(summarise(all_runs()))
    assert "| MLP | weights | no | original | 0.810 ±0.006 | 0.710 ±0.006 | 0.610 ±0.006 | - | 0.900" in text
    first = [run for run in all_runs() if run.settings.model != "statnn"]  # the row without widened ones comes first
    assert "| tau 1e6 | tau widened | R2 original |" in markdown(summarise(first))


def test_notes_name_scales_as_columns_do() -> None:
    moved = "test networks moved by random group elements, scales uniform in"
    assert f"1eK: {moved} [1, 1eK]." in markdown(summarise(all_runs()))
    other = [
        replace(run, tests=tuple(replace(t, name="scale 5", scale=5.0) if t.scale == 10 else t for t in run.tests))
        for run in all_runs()
    ]
    text = markdown(summarise(other))
    assert f"5, 1e6: {moved} [1, that]." in text
    assert "1eK" not in text


def answers(runs: list[Run]) -> Kept:
    """Of all models to 100 networks; those of the monomial one are closest."""
    rng, true = np.random.default_rng(0), np.arange(100.0)
    kept = {}
    for run in runs:
        noise = 10 if run.settings.model == "monomial" else 60
        for test in run.tests:
            key = run.settings.subject, (run.label, run.settings.train_set), f"tau {short(test.name, test.scale)}"
            kept[key] = Outcomes((0, 1, 2), true + noise * rng.normal(size=(3, 100)), true, 200, 200)
    return kept


def test_invariant_models_are_compared_with_the_best_of_the_others() -> None:
    """On networks as they are and moved furthest, of every activation and train set; the best is named."""
    better = {"scale 1e+06": 0.5}  # the MLP's, where it is moved furthest
    runs = [
        replace(run, tests=tuple(
            replace(test, metrics=test.metrics | {"tau": test.metrics["tau"] + better.get(test.name, 0)})
            for test in run.tests
        )) if run.settings.model == "mlp" else run
        for run in all_runs()
    ]  # fmt: skip
    kept = answers(runs)
    tables = predict_report(runs, answers=kept).tables[2:]
    assert [table.title.split(": ")[1] for table in tables] == [
        f"{activation} networks, trained on {train_set}"
        for activation in ("relu", "tanh") for train_set in ("original", "augmented")
    ]  # fmt: skip
    for table in tables:
        activation, train_set = table.title.split(": ")[1].split(" networks, trained on ")
        last, best = ("tau 1e6", "MLP") if activation == "relu" else ("tau sign flips", "STATNN")
        assert table.header == ("model", "tau original: ahead of STATNN", f"{last}: ahead of {best}")
        ((label, *shown),) = table.cells
        assert label == "Monomial-NFN"
        pairs = [
            [kept[activation, (model, train_set), column] for model in (label, rival)]
            for column, rival in (("tau original", "STATNN"), (last, best))
        ]
        assert shown == [difference(*pair).show() for pair in pairs]
        assert all(cell.startswith("+") for cell in shown)
        assert any("the best on these test networks, which flatters it" in note for note in table.notes)


def test_no_two_models_are_compared_by_what_is_not_known() -> None:
    runs = all_runs()
    rows, kept = summarise(runs), answers(runs)
    assert not difference_tables(rows, {})
    assert not difference_tables(rows, {key: of.of((0,)) for key, of in kept.items()}), "of one seed"
    assert not difference_tables([row for row in rows if row.model == "monomial"], kept)
    assert not difference_tables([row for row in rows if row.model != "monomial"], kept)
    best = {key: of.of((0,)) if key[1][0] == "STATNN" else of for key, of in kept.items()}
    assert difference_tables(rows, best)[0].header[1] == "tau original: ahead of MLP", "the best that can be compared"
    few = {key: of.of((0, 1) if key[1][0] == "Monomial-NFN" else (1, 2)) for key, of in kept.items()}
    assert not difference_tables(rows, few), "one seed in common"
    apart = {key: of.of((2,) if key[1][0] == "STATNN" else (0, 1)) for key, of in kept.items()}
    assert difference_tables(rows, apart)[0].header[1] == "tau original: ahead of MLP", "the best with seeds in common"
    near = {key: of for key, of in kept.items() if key[1][0] != "Monomial-NFN" or key[2] == "tau original"}
    assert difference_tables(rows, near)[0].header == ("model", "tau original: ahead of STATNN")
    both = [replace(row, invariant="yes") if row.model == "mlp" else row for row in rows]
    some = {key: of for key, of in kept.items() if key[1][0] != "MLP" or key[2] == "tau original"}
    cells = {line[0]: line[1:] for line in difference_tables(both, some)[0].cells}
    assert cells["MLP"][1] == "-"
    assert "-" not in {cells["MLP"][0], *cells["Monomial-NFN"]}
    # Where each range of scales has a model of its own, the augmented ones are not tested on networks as they are.
    scaled = [replace(run, tests=run.tests[1:]) if run.settings.train_set == "augmented" else run for run in runs]
    headers = [table.header[1:] for table in difference_tables(summarise(scaled), kept)[:2]]
    assert [len(header) for header in headers] == [2, 1]
    assert headers[1][0].startswith("tau 1e6")


def test_lost_predictions_and_divergence_are_mentioned() -> None:
    run = made_up("relu", "mlp", "original", 0)
    text = markdown(summarise([run]))
    assert "NaN or infinite" not in text
    bad = replace(run, diverged=True, tests=(replace(run.tests[0], non_finite=4), *run.tests[1:]))
    text = markdown(summarise([bad]))
    assert "NaN or infinite predictions, ranked" in text
    assert "MLP (original, 1 of 1 seeds)" in text


def test_figure_names_lines_where_they_end_and_has_intervals_over_seeds() -> None:
    figure = draw_figure(summarise(all_runs(3)))
    assert len(figure.axes) == 4
    first = figure.axes[0]
    names = {text.get_text(): text for text in first.texts}
    assert set(names) == {"STATNN", "MLP", "Monomial-NFN (runs them)"}
    assert [name for name, text in names.items() if text.get_fontweight() == "bold"] == ["Monomial-NFN (runs them)"]
    statnn = first.lines[0]
    assert list(statnn.get_ydata()) == pytest.approx([0.81, 0.71, 0.61]), "as they are, and under the two scales"
    assert [tick.get_text() for tick in first.get_xticklabels()] == ["as they are", "1e1", "1e6"]
    heights = [point[1] for point in first.collections[0].get_paths()[0].vertices]
    reach = 4.303 * 0.01 / math.sqrt(3)  # Student's 97.5 % point of two degrees of freedom
    assert (max(heights), min(heights)) == pytest.approx((0.81 + reach, 0.61 - reach), abs=1e-4)
    assert "95 % intervals over seeds (3)" in figure.get_supxlabel()
    tanh = figure.axes[2]
    assert [tick.get_text() for tick in tanh.get_xticklabels()] == ["as they are", "sign flips"]
    assert figure.axes[0].get_ylim() == figure.axes[1].get_ylim() != tanh.get_ylim()
    one = draw_figure(summarise(all_runs(1)))
    assert not one.axes[0].collections
    assert "one seed" in one.get_supxlabel()


def test_names_of_lines_that_end_alike_do_not_overlap() -> None:
    rows = [row for row in summarise(all_runs(2)) if (row.activation, row.train_set) == ("relu", "original")]
    alike = [replace(rows[0], model=f"m{i}", label=f"model {i}") for i in range(6)]
    (ax,) = draw_figure(alike).axes
    top = panels(1, 1, (4.0, 3.0))[1][0]
    name_lines(top, {f"model {i}": (1.0, "#000000", False) for i in range(6)})  # where the panel ends
    for one in (ax, top):
        heights = sorted(text.xyann[1] for text in one.texts)  # type: ignore[attr-defined]
        low, high = one.get_ylim()
        assert min(b - a for a, b in itertools.pairwise(heights)) > 0.05 * (high - low)
        assert low < heights[0] < heights[-1] <= high


def test_figure_has_the_best_three_of_each_kind() -> None:
    rows = [row for row in summarise(all_runs(1)) if (row.activation, row.train_set) == ("relu", "original")]

    def model(i: int, invariant: str) -> Row:
        order = {name: i if name == "original" else -i for name in rows[0].tau}  # moved, the best is the worst
        tau = {name: replace(t, mean=t.mean + order[name] / 100) for name, t in rows[0].tau.items()}
        return replace(rows[0], model=f"{invariant}{i}", label=f"{invariant} {i}", tau=tau, invariant=invariant)

    drawn = [model(i, invariant) for i in range(5) for invariant in ("yes", "perm. only")]
    tanh = [replace(row, activation="tanh", model=f"t{row.model}") for row in drawn[:6]]
    figure = draw_figure([*drawn, *tanh])
    assert {text.get_text() for text in figure.axes[0].texts} == {
        *(f"yes {i}" for i in (2, 3, 4)), *(f"perm. only {i}" for i in (2, 3, 4)),
    }  # fmt: skip
    assert "; 6 of 10 models, the best of each kind and the paper's" in figure.get_supxlabel(), "of one panel"
    own = [replace(row, model="monomial" if row.model == "yes0" else row.model) for row in drawn]
    names = {text.get_text() for text in draw_figure(own).axes[0].texts}
    assert {"yes 0", "yes 3", "yes 4"} < names, "the paper's own model always"
    assert "yes 2" not in names
