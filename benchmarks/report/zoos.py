"""Models over several zoos: tau on each, ranks, differences to the best baseline, and claims of the paper, all with
their intervals.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from nfn_monomial.benchmarks.data.moves import WIDENED
from nfn_monomial.benchmarks.train.runs import Run, TestResult
from nfn_monomial.tools.predictors.architectures import MixedActivation
from nfn_monomial.tools.predictors.invariants import InvariantModel
from nfn_monomial.tools.predictors.models import model_class
from nfn_monomial.tools.report import PALETTE, Table, panels

from .beside import Kept, as_in_paper, claims_table, judge
from .intervals import Interval, Outcomes, difference, mean_difference, paired, ranks
from .published import PAPER
from .tables import INVARIANT, SEES, Estimate, by_model, over_seeds, short, trained_on

__all__ = ["draw_zoos", "zoo_tables"]

PLACES = ("as they are", "moved")
NOTHING = "-"

Taus = dict[str, dict[str, list[Run]]]
"""Model -> zoo -> runs over seeds."""


def zoo_tables(runs: Sequence[Run], kept: Kept) -> list[Table]:
    """Returns for every number of training networks, and for test networks as they are and moved: tau, and differences.

    Then the paper's claims, of the means over all zoos of an activation.

    Args:
        runs: of `predict_generalization` on several zoos.
        kept: their answers.
    """
    tables = list[Table]()
    for trained, taus in _by_number(runs).items():
        for place, words in enumerate(PLACES):
            tables.append(_table(trained, words, _column(taus, place), taus, runs))
            if lines := _differences(taus, place, kept):
                tables.append(_compared(trained, words, lines, _zoos(taus)))
    numbers = dict.fromkeys(run.settings.options.get("train_networks") for run in runs)
    zoos = list(dict.fromkeys(run.settings.subject for run in runs))
    claims = [line for number in numbers for line in _claims(number, zoos, kept)]
    return [*tables, claims_table(claims, "means over zoos")] if claims else tables


def _by_number(runs: Sequence[Run]) -> dict[str, Taus]:
    """Returns the runs by what they were trained on."""
    numbers: dict[str, Taus] = {}
    for (zoo, trained, model), group in by_model(runs).items():
        some = "all" if trained == "original" else trained.removesuffix(" original")
        numbers.setdefault(some, {}).setdefault(model, {})[zoo] = group
    return numbers


def _zoos(taus: Taus) -> list[str]:
    return list(dict.fromkeys(zoo for by_zoo in taus.values() for zoo in by_zoo))


def _column(taus: Taus, place: int) -> dict[str, dict[str, Estimate]]:
    """Returns model -> zoo -> tau on the first or last test set."""
    return {
        model: {zoo: Estimate.of(_test(run, place).metrics["tau"] for run in group) for zoo, group in by_zoo.items()}
        for model, by_zoo in taus.items()
    }


def _test(run: Run, place: int) -> TestResult:
    """Returns the test set of a place: networks as they are, or moved with the largest scale."""
    if place == 0:
        return run.tests[0]
    moved = [test for test in run.tests if test.name != WIDENED]
    return max(reversed(moved), key=lambda test: test.scale or 0.0)  # the last one, if none was scaled


def _mean_ranks(column: Mapping[str, Mapping[str, Estimate]], zoos: Sequence[str]) -> dict[str, float]:
    """Returns the mean rank over zoos of each model that has all of them."""
    whole = [model for model, by_zoo in column.items() if set(zoos) <= set(by_zoo)]
    by_zoo = [ranks({model: column[model][zoo].mean for model in whole}) for zoo in zoos]
    return {model: statistics.fmean(rank[model] for rank in by_zoo) for model in whole}


def _table(
    trained: str, words: str, column: Mapping[str, Mapping[str, Estimate]], taus: Taus, runs: Sequence[Run]
) -> Table:
    zoos, bold = _zoos(taus), list[int]()
    cells: list[tuple[str, ...]] = []
    rank = _mean_ranks(column, zoos)
    for model, by_zoo in column.items():
        first = next(iter(taus[model].values()))[0]
        line = [first.label, SEES.get(first.sees, first.sees), INVARIANT.get(first.invariant_under, "no")]
        line += [by_zoo[zoo].show() if zoo in by_zoo else NOTHING for zoo in zoos]
        mean = statistics.fmean(tau.mean for tau in by_zoo.values())
        line += [f"{mean:.3f}" if model in rank else NOTHING, f"{rank[model]:.1f}" if model in rank else NOTHING]
        bold += [len(cells)] * (first.invariant_under == "group")
        cells.append((*line, str(max(len(group) for group in taus[model].values()))))
    return Table(
        f"Kendall's tau over zoos: {trained} training networks, test networks {words}",
        ("model", "sees", "invariant", *zoos, "mean", "rank", "seeds"),
        tuple(cells),
        text_columns=3,
        bold=frozenset(bold),
        notes=(
            f"{over_seeds(runs).capitalize()}. mean, rank: over zoos, 1 the largest tau, of models that read all. "
            f"moved: by random group elements, scales up to {_largest(runs)}. Bold: invariant to the whole group.",
        ),
    )


def _largest(runs: Sequence[Run]) -> str:
    scales = [test.scale for run in runs for test in run.tests if test.scale is not None]
    return short("", max(scales)) if scales else "1"


def _differences(taus: Taus, place: int, kept: Kept) -> dict[str, list[Interval]]:
    """Returns for each of our models the differences to the best baseline on every zoo, then their mean.

    The baseline is the best on these test networks, so differences are rather too small.
    """

    def outcomes(model: str, zoo: str) -> Outcomes | None:
        run = taus[model][zoo][0]
        test = _test(run, place)
        row = run.label, trained_on(run.settings)
        return kept.get((zoo, row, f"tau {short(test.name, test.scale)}"))

    ours = [model for model in taus if issubclass(model_class(model), InvariantModel)]
    baselines = [model for model in taus if model not in ours]
    column, zoos = _column(taus, place), _zoos(taus)
    found: dict[str, list[Interval]] = {}
    for model in ours:
        pairs = []
        for zoo in zoos:
            best = max(
                (other for other in baselines if zoo in taus[other]),
                key=lambda other: column[other][zoo].mean,
                default=None,
            )
            if best is not None and zoo in taus[model]:
                pair = paired(outcomes(model, zoo), outcomes(best, zoo))
                if pair is not None:
                    pairs.append(pair)
        if len(pairs) == len(zoos):
            label = next(iter(taus[model].values()))[0].label
            found[label] = [*(difference(*pair) for pair in pairs), mean_difference(pairs)]
    return found


def _compared(trained: str, words: str, lines: Mapping[str, Sequence[Interval]], zoos: Sequence[str]) -> Table:
    return Table(
        f"Ahead of the best baseline of each zoo: {trained} training networks, test networks {words}",
        ("model", *zoos, "mean"),
        tuple((label, *(interval.show() for interval in intervals)) for label, intervals in lines.items()),
        text_columns=1,
        notes=(
            "Difference of tau, and its 95 % interval: a paired bootstrap over test networks, and Student's "
            "distribution over seeds. The baseline is the best on these test networks, which flatters it.",
        ),
    )


def _claims(number: int | None, zoos: Sequence[str], kept: Kept) -> list[tuple[str, ...]]:
    """Returns the paper's claims on networks of one activation, of the means over all zoos of these.

    Args:
        number: of training networks, as `trained_on` has it; None for all.
        zoos: their names; the last word that is an activation says which they have.
        kept: their answers.
    """
    by_activation = {published.of.split()[0]: published for published in PAPER["predict-generalization"]}
    kept = as_in_paper(kept)
    lines = list[tuple[str, ...]]()
    for activation, published in by_activation.items():
        mine = [zoo for zoo in zoos if _activation(zoo) == activation]
        for claim in published.claims:
            cells = [
                ((row[0], f"{number} {row[1]}" if number else row[1]), column)
                for row, column in (claim.first, claim.second)
            ]
            pairs = [paired(*(kept.get((zoo, *cell)) for cell in cells)) for zoo in mine]
            both = [pair for pair in pairs if pair is not None]
            if mine and len(both) == len(mine):
                means = (statistics.fmean(o.drawn[:, 0].mean() for o in side) for side in zip(*both, strict=True))
                numbers = " and ".join(f"{mean:.3f}" for mean in means)
                judged = judge(both, claim.relation, published.least, claim.least)
                of = f"{activation} zoos" + f", {number} training networks" * bool(number)
                lines.append((of, claim.text, claim.source, numbers, *judged))
    return lines


def _activation(zoo: str) -> str:
    return next((word for word in reversed(zoo.split("-")) if word in get_args(MixedActivation)), "")


def draw_zoos(runs: Sequence[Run]) -> Figure:
    """Draws a dot for every model and zoo, and a line at the mean; invariant models are apart, above the others.

    A row of panels for each number of training networks: test networks as they are, and moved.
    """
    numbers = _by_number(runs)
    models = list(dict.fromkeys(model for taus in numbers.values() for model in taus))
    every = list(dict.fromkeys(zoo for taus in numbers.values() for zoo in _zoos(taus)))
    figure, axes = panels(len(numbers), 2, (11.0, (0.34 * len(models) + 1.5) * len(numbers)))
    for i, (trained, taus) in enumerate(numbers.items()):
        column = _column(taus, 0)
        means = {model: statistics.fmean(tau.mean for tau in by_zoo.values()) for model, by_zoo in column.items()}
        labels = {model: next(iter(by_zoo.values()))[0] for model, by_zoo in taus.items()}
        apart = {model: labels[model].invariant_under == "group" for model in taus}
        order = sorted(taus, key=lambda model: (apart[model], means[model]))
        heights = {model: j + 0.7 * apart[model] for j, model in enumerate(order)}
        zoos = every
        for place, words in enumerate(PLACES):
            ax, taus_here = axes[2 * i + place], _column(taus, place)
            for model in order:
                for zoo, tau in taus_here[model].items():
                    color = PALETTE[zoos.index(zoo) % len(PALETTE)]
                    style: dict[str, Any] = {"fmt": "o", "color": color, "markersize": 4, "elinewidth": 0.8}
                    ax.errorbar(tau.mean, heights[model], xerr=tau.error, **style)
                mean = statistics.fmean(tau.mean for tau in taus_here[model].values())
                ax.vlines(mean, heights[model] - 0.32, heights[model] + 0.32, color="#303030", linewidth=2)
            ax.set_yticks(list(heights.values()), [labels[model].label for model in heights] if place == 0 else [])
            for text, model in zip(ax.get_yticklabels(), order, strict=False):
                text.set_fontweight("bold" if apart[model] else "normal")
            ax.set_title(f"{trained} training networks, test networks {words}", fontsize=10)
            ax.set_xlabel("Kendall's tau")
    colors = [PALETTE[i % len(PALETTE)] for i in range(len(every))]
    dots = [Line2D([], [], color=c, marker="o", linestyle="", label=z) for c, z in zip(colors, every, strict=True)]
    figure.legend(handles=dots, fontsize=8, frameon=False, ncols=6, loc="outside upper center")
    figure.supxlabel(
        f"Bold: invariant to the whole group. Dots: zoos, {over_seeds(runs)}; lines: means over zoos.", fontsize=8.5
    )
    return figure
