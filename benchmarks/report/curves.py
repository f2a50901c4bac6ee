"""Tau over the number of training networks: tables, and a figure with the paper's numbers at its own."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from nfn_monomial.benchmarks.train.runs import Run
from nfn_monomial.tools.report import Table, look, panels

from .beside import RULE, Kept, judge
from .figures import legend_beside, stroke
from .intervals import paired
from .published import PAPER
from .tables import INVARIANT, SEES, Estimate, by_model, over_seeds, short, went_wrong

__all__ = ["curve_tables", "draw_curves"]

PAPER_NETWORKS = {"relu": 6050, "tanh": 5949}  # to train on (App. D.3)
PAIR = ("monomial", "hnp")  # whose order the paper tells
NOTHING = "-"
LEAST = PAPER["predict-generalization"][0].least  # training networks, the same for all activations
OF_ALL = "Intervals are of any training networks; with all that there are, of these, and so narrower."

Curves = dict[str, dict[int, list[Run]]]
"""Model -> number of training networks -> runs over seeds."""


def curve_tables(runs: Sequence[Run], kept: Kept) -> list[Table]:
    """Returns for every activation a table for each test set; and one of Monomial-NFN beside HNP.

    Args:
        runs: of `predict_generalization` with ``train_networks`` and one train set.
        kept: their answers, see `kept_outcomes`.
    """
    tables = []
    lines: list[tuple[str, ...]] = []
    for activation, curves in _curves(runs).items():
        for test in _tests(curves):
            tables.append(_table(runs, activation, test, curves))
            if set(PAIR) <= set(curves):  # is the paper's model as good as HNP?
                first, second = (curves[model] for model in PAIR)
                for size in (n for n in first if n in second):
                    pair = [first[size], second[size]]
                    rows = [(group[0].label, group[0].settings.trained_on) for group in pair]
                    scale = next(t.scale for t in pair[0][0].tests if t.name == test)
                    answers = paired(*(kept.get((activation, row, f"tau {short(test, scale)}")) for row in rows))
                    if answers is not None:
                        taus = (_tau(group, test).show() for group in pair)
                        lines.append((activation, test, f"{size:,}", *taus, *judge([answers], ">=", LEAST)))
    if lines:
        header = ("networks", "tested on", "training networks", "Monomial-NFN", "HNP", "is as good", "why")
        title = "Monomial-NFN is as good as HNP"
        tables.append(Table(title, header, tuple(lines), text_columns=7, names=(0, 1, 2), notes=(RULE, OF_ALL)))
    return tables


def _curves(runs: Sequence[Run]) -> dict[str, Curves]:
    """Returns the curves by activation; numbers of networks ascend."""
    by_activation: dict[str, Curves] = {}
    for (activation, _, model), group in by_model(runs).items():
        count = group[0].settings.options["train_networks"]
        by_activation.setdefault(activation, {}).setdefault(model, {})[count] = group
    return {a: {model: dict(sorted(c.items())) for model, c in curves.items()} for a, curves in by_activation.items()}


def _tests(curves: Curves) -> list[str]:
    """Names of the test sets that all runs have."""
    each = [[test.name for test in run.tests] for c in curves.values() for group in c.values() for run in group]
    return [name for name in each[0] if all(name in names for names in each)]


def _tau(group: Sequence[Run], test: str) -> Estimate:
    return Estimate.of(run.metric(test, "tau") for run in group)


def _table(runs: Sequence[Run], activation: str, test: str, curves: Curves) -> Table:
    sizes = sorted({size for c in curves.values() for size in c})
    cells, bold = [], []
    for by_size in curves.values():
        first = next(iter(by_size.values()))[0]
        taus = [_tau(by_size[n], test).show() if n in by_size else NOTHING for n in sizes]
        seeds = [str(len(by_size[n])) if n in by_size else NOTHING for n in sizes]
        texts = (first.label, SEES.get(first.sees, first.sees), INVARIANT.get(first.invariant_under, "no"))
        cells.append((*texts, *taus, ", ".join(dict.fromkeys(seeds)) if len(set(seeds)) == 1 else ", ".join(seeds)))
        bold += [len(cells) - 1] * (first.invariant_under == "group")
    return Table(
        f"{activation}, {test}: Kendall's tau by the number of training networks",
        ("model", "sees", "invariant", *(f"{n:,}" for n in sizes), "seeds"),
        tuple(cells),
        text_columns=3,
        bold=frozenset(bold),
        notes=(
            f"{over_seeds(runs).capitalize()}; seeds: of each column, where they differ.",
            *went_wrong([run for by_size in curves.values() for group in by_size.values() for run in group]),
        ),
    )


def draw_curves(runs: Sequence[Run]) -> Figure:
    """Draws tau over the number of training networks: a row of panels for each activation, a panel for each test set.

    Stars are the paper's numbers, of its own zoo.
    """
    by_activation = _curves(runs)
    numbers = {model: i for i, model in enumerate(dict.fromkeys(run.settings.model for run in runs))}
    labels = {run.settings.model: run for run in runs}
    wide = max(len(_tests(curves)) for curves in by_activation.values())
    figure, axes = panels(len(by_activation), wide, (5.0 * wide, 3.7 * len(by_activation) + 0.3))
    for row, (activation, curves) in enumerate(by_activation.items()):
        for ax, test in zip(axes[row * wide : (row + 1) * wide], _tests(curves), strict=False):
            for model, by_size in curves.items():
                taus = [_tau(group, test) for group in by_size.values()]
                style = look(numbers[model]) | stroke(labels[model].invariant_under == "group")
                errors = [tau.error or 0.0 for tau in taus]
                ax.errorbar(list(by_size), [tau.mean for tau in taus], errors, capsize=2, **style)
                if mark := _published(activation, labels[model].label, test):
                    color = look(numbers[model])["color"]
                    ax.plot(PAPER_NETWORKS[activation], mark, marker="*", markersize=11, color=color, linestyle="none")
            sizes = sorted({size for c in curves.values() for size in c})
            ax.set_xscale("log")
            ax.set_xticks(sizes, [f"{n:,}" for n in sizes])
            ax.minorticks_off()
            ax.set(xlabel="training networks", ylabel="Kendall's tau on test networks")
            ax.set_title(f"{activation} networks, {test}", fontsize=10)
    bold = [labels[model].invariant_under == "group" for model in numbers]
    handles: list[Artist] = [
        Line2D([], [], label=labels[model].label, **look(i), **stroke(bold[i])) for model, i in numbers.items()
    ]
    star = Line2D([], [], marker="*", markersize=11, color="#7F7F7F", linestyle="none", label="the paper, its zoo")
    marked = any(
        _published(a, labels[m].label, test) for a, c in by_activation.items() for m in c for test in _tests(c)
    )
    legend_beside(figure, [*handles, *[star] * marked], [*bold, *[False] * marked])
    figure.supxlabel(f"Bold: invariant to the whole group. {over_seeds(runs).capitalize()}.", fontsize=8.5)
    return figure


def _published(activation: str, label: str, test: str) -> float | None:
    """The paper's tau of a model that was trained on networks as they are, if it has one."""
    column = {"scale 10000": "tau 1e4"}.get(test, f"tau {test}")
    known = next((p for p in PAPER["predict-generalization"] if p.of == f"{activation} networks"), None)
    row = known.rows.get((label, "original")) if known and column in known.columns else None
    cell = row[known.columns.index(column)] if known and row else ""
    return float(cell.split()[0]) if cell else None
