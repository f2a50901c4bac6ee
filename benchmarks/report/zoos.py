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
from nfn_monomial.tools.predictors.models import BALANCED, NORMAL
from nfn_monomial.tools.report import MARKERS, PALETTE, Table, panels

from .beside import Kept, as_in_paper, claimed, claims_table, judge_claim
from .intervals import Interval, Outcomes, difference, mean_difference, mean_of, paired, ranks
from .published import PAPER
from .tables import HEADLINE, INVARIANT, SEES, Estimate, by_model, headline, over_seeds, short, went_wrong

__all__ = ["DIFFERENCES", "draw_zoos", "zoo_tables"]

ORIGINAL, PLACES = "original", ("as they are", "moved")
MOVED_MEAN = "mean, moved"
# Published models and the paper's own, balanced or not. All others, also a user's, are compared with the best of these.
BASELINES = {
    "statnn", "statnn-set", "mlp", "np", "hnp", "nft", "gnn", "gnn-paper", "gnn-hnp",
    "monomial", "monomial-hnp", "monomial-gnn",
}  # fmt: skip
NOTHING = "-"
SHARED = "Intervals are wider by the training networks that seeds share, if each draws its own"
DIFFERENCES = (
    "Difference of tau, and its 95 % interval: a paired bootstrap over test networks, and Student's distribution over "
    f"seeds. {SHARED}. What is compared with is the best on these test networks, which flatters it."
)
ONE_SEED = (
    "Difference of tau, of one seed, which has no interval. What is compared with is the best on these test networks, "
    "which flatters it."
)
APART = 0.09  # of the dots of two zoos, of the height of a line
MEAN = "#303030"

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
            if not _column(taus, place):
                continue
            tables.append(_table(trained, words, place, taus, kept, runs))
            for title, models, rivals in _comparisons(taus):
                if lines := _differences(taus, place, kept, models, rivals):
                    title = f"{title}: {trained} training networks, test networks {words}"
                    tables.append(_compared(title, lines, _zoos(taus)))
    numbers = dict.fromkeys(run.settings.options.get("train_networks") for run in runs)
    zoos = list(dict.fromkeys(run.settings.subject for run in runs))
    claims = [line for number in numbers for line in _claims(number, zoos, kept)]
    numbers_of = "means over zoos" if len(zoos) > 1 else "of the seeds that both have"
    return [*tables, claims_table(claims, f"{numbers_of}. {SHARED}")] if claims else tables


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
    """Returns model -> zoo -> tau on the test set of a place, where there is one."""
    found: dict[str, dict[str, Estimate]] = {}
    for model, by_zoo in taus.items():
        for zoo, group in by_zoo.items():
            tests = [test for run in group if (test := _test(run, place))]
            if len(tests) == len(group):
                found.setdefault(model, {})[zoo] = Estimate.of(test.metrics["tau"] for test in tests)
    return found


def _test(run: Run, place: int) -> TestResult | None:
    """Returns the test set of a place: networks as they are, which may be missing, or moved with the largest scale."""
    if place == 0:
        return next((test for test in run.tests if test.name == ORIGINAL), None)
    moved = [test for test in run.tests if test.name != WIDENED]
    return max(reversed(moved), key=lambda test: test.scale or 0.0)  # the last one, if none was scaled


def _mean_ranks(column: Mapping[str, Mapping[str, Estimate]], zoos: Sequence[str]) -> dict[str, float]:
    """Returns the mean rank over zoos of each model that has all of them."""
    whole = [model for model, by_zoo in column.items() if set(zoos) <= set(by_zoo)]
    by_zoo = [ranks({model: column[model][zoo].mean for model in whole}) for zoo in zoos]
    return {model: statistics.fmean(rank[model] for rank in by_zoo) for model in whole}


def _table(trained: str, words: str, place: int, taus: Taus, kept: Kept, runs: Sequence[Run]) -> Table:
    zoos, bold, column = _zoos(taus), list[int](), _column(taus, place)
    several, intervals = len(zoos) > 1, False  # of one zoo there are no means, which are the zoo's numbers
    cells: list[tuple[str, ...]] = []
    rank = _mean_ranks(column, zoos)
    for model, by_zoo in column.items():
        first = next(iter(taus[model].values()))[0]
        line = [first.label, SEES.get(first.sees, first.sees), INVARIANT.get(first.invariant_under, "no")]
        line += [by_zoo[zoo].show() if zoo in by_zoo else NOTHING for zoo in zoos]
        if model in rank:
            over_zoos = [_mean(taus, each, kept, model, zoos) for each in range(place, len(PLACES))]
            over_zoos.append(f"{rank[model]:.1f}")
        else:
            over_zoos = [NOTHING] * (1 + len(PLACES) - place)
        intervals |= "(" in over_zoos[0]
        line += over_zoos * several
        bold += [len(cells)] * (first.invariant_under == "group")
        cells.append((*line, str(max(len(group) for group in taus[model].values()))))
    means = ("mean", *[MOVED_MEAN] * (place == 0), "rank") if several else ()
    brackets = "; in brackets its 95 % interval" * intervals
    ranked = f" mean, rank: over zoos, 1 the largest tau, of models that read all{brackets}." * several
    return Table(
        f"Kendall's tau{' over zoos' * several}: {trained} training networks, test networks {words}",
        ("model", "sees", "invariant", *zoos, *means, "seeds"),
        tuple(cells),
        text_columns=3,
        bold=frozenset(bold),
        notes=(
            f"{over_seeds(runs).capitalize()}.{ranked} moved: by random group elements{_scales_up_to(runs)}. Bold: "
            "invariant to the whole group.",
            *went_wrong([run for by_zoo in taus.values() for group in by_zoo.values() for run in group]),
        ),
    )


def _mean(taus: Taus, place: int, kept: Kept, model: str, zoos: Sequence[str]) -> str:
    """Returns the mean over zoos, with its interval where the answers were kept."""
    answers = [_answers(taus, place, kept, model, zoo) for zoo in zoos]
    whole = [outcomes for outcomes in answers if outcomes is not None]
    if len(whole) == len(zoos):
        return mean_of(whole).show(sign="-")
    return f"{statistics.fmean(_column(taus, place)[model][zoo].mean for zoo in zoos):.3f}"


def _answers(taus: Taus, place: int, kept: Kept, model: str, zoo: str) -> Outcomes | None:
    run = taus[model][zoo][0]
    if (test := _test(run, place)) is None:
        return None
    return kept.get((zoo, (run.label, run.settings.trained_on), f"tau {short(test.name, test.scale)}"))


def _scales_up_to(runs: Sequence[Run]) -> str:
    scales = [test.scale for run in runs for test in run.tests if test.scale is not None]
    return f", scales up to {short('', max(scales))}" if scales else ""


def _comparisons(taus: Taus) -> list[tuple[str, list[str], list[str]]]:
    """Returns titles of tables, the models that are compared there, and their rivals, of which the best counts."""
    ours = [model for model in taus if model.removeprefix(BALANCED).removeprefix(NORMAL) not in BASELINES]
    first = {model: next(iter(taus[model].values()))[0] for model in ours}
    running = [model for model in ours if first[model].sees == "functions"]
    weights = [model for model in ours if model not in running and first[model].invariant_under == "group"]
    several = len(_zoos(taus)) > 1
    return [
        (f"Ahead of the best baseline{' of each zoo' * several}", ours, [model for model in taus if model not in ours]),
        ("Running networks: ahead of the best of our invariant models that see weights alone", running, weights),
    ]


def _differences(
    taus: Taus, place: int, kept: Kept, models: Sequence[str], rivals: Sequence[str]
) -> dict[str, list[Interval]]:
    """Returns for each of the models the differences to the best of its rivals on every zoo, then their mean.

    That one is the best on these test networks, so differences are rather too small.
    """
    column, zoos = _column(taus, place), _zoos(taus)
    found: dict[str, list[Interval]] = {}
    for model in models:
        pairs = []
        for zoo in zoos:
            best = max(
                (other for other in rivals if zoo in column.get(other, {})),
                key=lambda other: column[other][zoo].mean,
                default=None,
            )
            if best is not None and zoo in taus[model]:
                pair = paired(*(_answers(taus, place, kept, each, zoo) for each in (model, best)))
                if pair is not None:
                    pairs.append(pair)
        if len(pairs) == len(zoos):
            label = next(iter(taus[model].values()))[0].label
            found[label] = [*(difference(*pair) for pair in pairs), mean_difference(pairs)]
    return found


def _compared(title: str, lines: Mapping[str, Sequence[Interval]], zoos: Sequence[str]) -> Table:
    return Table(
        title,
        ("model", *zoos, *["mean"] * (len(zoos) > 1)),
        tuple(
            (label, *(interval.show() for interval in some[: len(zoos) + (len(zoos) > 1)]))
            for label, some in lines.items()
        ),
        text_columns=1,
        notes=(DIFFERENCES if any(one.low is not None for some in lines.values() for one in some) else ONE_SEED,),
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
            first, second = (
                ((row[0], f"{number} {row[1]}" if number else row[1]), column)
                for row, column in (claim.first, claim.second)
            )
            pairs = [claimed(kept, zoo, claim, first, second) for zoo in mine]
            both = [pair for pair in pairs if pair is not None]
            if mine and len(both) == len(mine):
                of = f"{activation} zoos" + f", {number} training networks" * bool(number)
                lines.append((of, claim.text, claim.source, *judge_claim(published, claim, both)))
    return lines


def _activation(zoo: str) -> str:
    return next((word for word in reversed(zoo.split("-")) if word in get_args(MixedActivation)), "")


def draw_zoos(runs: Sequence[Run], kept: Kept) -> Figure:
    """Draws a dot for every model and zoo, and a line at the mean, with a band that is its 95 % interval.

    Invariant models are apart, above the others; of more than six, three of each kind (see `headline`). A row of panels
    for each number of training networks: test networks as they are, and moved.
    """
    numbers = {trained: _drawn(taus) for trained, taus in _by_number(runs).items()}
    every = list(dict.fromkeys(run.settings.subject for run in runs))
    high, bands = max(map(len, numbers.values())), False
    figure, axes = panels(len(numbers), 2, (11.0, (0.42 * high + 1.5) * len(numbers)))
    for i, (trained, taus) in enumerate(numbers.items()):
        first = {model: next(iter(by_zoo.values()))[0] for model, by_zoo in taus.items()}
        bold = [run.invariant_under == "group" for run in first.values()]
        heights = [j + 0.7 * invariant for j, invariant in enumerate(bold)]
        for ax, (place, words) in zip(axes[2 * i :], enumerate(PLACES), strict=False):
            column = _column(taus, place)
            for height, model in zip(heights, first, strict=True):
                by_zoo = column.get(model, {})
                for zoo, tau in by_zoo.items():
                    number = every.index(zoo)
                    apart = APART * ((len(every) - 1) / 2 - number)
                    ax.plot(tau.mean, height + apart, markersize=4, **_dot(number))
                if len(by_zoo) < len(_zoos(taus)):
                    continue  # a mean of other zoos is no mean to compare with
                mean = statistics.fmean(tau.mean for tau in by_zoo.values())
                ax.vlines(mean, height - 0.32, height + 0.32, color=MEAN, linewidth=1.5)
                answers = [_answers(taus, place, kept, model, zoo) for zoo in by_zoo]
                interval = mean_of([outcomes for outcomes in answers if outcomes]) if all(answers) else None
                if interval and interval.low is not None and interval.high is not None:
                    ends, bands = (interval.low, interval.high), True
                    ax.fill_betweenx([height - 0.32, height + 0.32], *ends, color=MEAN, alpha=0.22, linewidth=0)
            ax.set_ylim(-0.5, heights[-1] + 0.5)  # the same for both, which share their names
            ax.set_yticks(heights, [run.label for run in first.values()] if place == 0 else [])
            for text, invariant in zip(ax.get_yticklabels(), bold, strict=False):
                text.set_fontweight("bold" if invariant else "normal")
            ax.set_title(f"{trained} training networks, test networks {words}", fontsize=10)
            ax.set_xlabel("Kendall's tau")
    dots = [Line2D([], [], linestyle="", label=zoo, **_dot(number)) for number, zoo in enumerate(every)]
    figure.legend(handles=dots, fontsize=8, frameon=False, ncols=6, loc="outside upper center")
    most = max(len(taus) for taus in _by_number(runs).values())
    some = f" {HEADLINE} of {most} models, the best of each kind and the paper's." * (most > HEADLINE)
    words = "Bold: invariant to the whole group. Dots: zoos" + "; lines: means over them" * (len(every) > 1)
    figure.supxlabel(f"{words}{', bands: their 95 % intervals' * bands}.{some}", fontsize=8.5)
    return figure


def _dot(number: int) -> dict[str, Any]:
    """Returns how a zoo is drawn: in a colour of its own, then in another shape."""
    return {"color": PALETTE[number % len(PALETTE)], "marker": MARKERS[number // len(PALETTE) % len(MARKERS)]}


def _drawn(taus: Taus) -> Taus:
    """Returns the models that the figure shows, from the lowest line to the highest."""
    columns = [_column(taus, place) for place in range(len(PLACES))]
    means = {
        model: statistics.fmean(tau.mean for tau in columns[model not in columns[0]][model].values()) for model in taus
    }
    values = {
        model: (means[model], next(iter(by_zoo.values()))[0].invariant_under == "group")
        for model, by_zoo in taus.items()
    }
    order = sorted(headline(values), key=lambda model: (values[model][1], means[model]))
    return {model: taus[model] for model in order}
