"""The paper's numbers beside ours, and which of its claims hold here: one mechanism for all experiments.

A claim compares two numbers of a table. They are counted again from the answers that the runs kept, and the interval of
their difference decides (`intervals`). Where a claim needs runs as long as the paper's, or as many networks, or models
that have learned as much (`Least`, `Published`), others neither hold nor refute it: they are not comparable.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from nfn_monomial.benchmarks.train.runs import Run, RunStore, TestResult
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.tools.report import Report, Table

from .intervals import Interval, Outcomes, mean_difference, paired
from .published import AS_IN_PAPER, PAPER, Cell, Claim, Least, Published, Relation, Row
from .tables import over, steps_per_epoch

__all__ = [
    "RULE",
    "Kept",
    "as_in_paper",
    "beside_paper",
    "claimed",
    "claims_table",
    "judge",
    "judge_claim",
    "kept_outcomes",
    "verdict",
]

EQUAL_TAU = 0.01  # rank correlations and accuracies that differ by less are the same
EQUAL_ERROR = 0.01  # likewise, errors, as a share of the larger one
# Of fewer test networks, what never occurs among them may occur more often than the bound allows. A model that is wrong
# on a share of the networks loses that share of an accuracy, and twice as much of tau.
LEAST_TESTED, LEAST_RANKED = (math.ceil(3 * times / EQUAL_TAU) for times in (1, 2))
RULE = (
    "A claim holds if the whole 95 % interval of the difference is on its side, and does not hold if it is on the "
    f"other; numbers are the same if the interval lies within {EQUAL_TAU} (tau, accuracy) or {EQUAL_ERROR:.0%} "
    "(errors), and one is as good as another if the interval ends nowhere further below. The interval is of a paired "
    "bootstrap over test networks, and of Student's distribution over seeds. Equal accuracies need "
    f"{LEAST_TESTED} test networks, equal taus {LEAST_RANKED}."
)

Kept = Mapping[tuple[str, Row, str], Outcomes]
"""Subject, row and column of a table -> the answers that its number is counted from."""
KEYS = ("trained on",)


def kept_outcomes(
    runs: Sequence[Run], store: RunStore, column: Callable[[TestResult], str], *, train_sets: bool
) -> Kept:
    """Returns the answers that runs have left in their store.

    Args:
        runs: of one experiment.
        store: that has them.
        column: of the table that shows a test set; empty for none.
        train_sets: whether rows are named by model and train set, or by the model alone.

    Raises:
        ValueError: if answers of a run are missing, or its test networks have other true values than those of another
            seed.
    """
    kept: dict[tuple[str, Row, str], dict[int, tuple[Run, Any, Any]]] = {}
    for run in runs:
        tensors, settings = store.artifacts(run.settings), run.settings
        row = (run.label, *[settings.trained_on] * train_sets)
        for test in run.tests:
            if not (name := column(test)):
                continue
            answers, true = (tensors.get(f"{test.name}: {what}") for what in ("answers", "true"))
            if answers is None:
                raise InvalidValueError(
                    f"the answers to {test.name!r} are missing in {store.run_file(settings)}: remove this file, and "
                    "the same command makes it again"
                )
            by_seed = kept.setdefault((settings.subject, row, name), {})
            first = next(iter(by_seed.values()), (run, answers, true))[2]
            same = first is true if first is None or true is None else torch.equal(first, true)
            if not same:
                raise InvalidValueError(f"{store.run_file(settings)} was tested on other networks than another seed")
            by_seed.setdefault(settings.seed, (run, answers, true))
    return {
        cell: Outcomes(
            tuple(by_seed),
            np.stack([answers.double().numpy() for _, answers, _ in by_seed.values()]),
            None if true is None else true.double().numpy(),
            min(_seen(run) for run, _, _ in by_seed.values()),
            min(_steps(run) for run, _, _ in by_seed.values()),
            shared=max(_shared(run) for run, _, _ in by_seed.values()),
        )
        for cell, by_seed in kept.items()
        for _, _, true in list(by_seed.values())[:1]
    }


def as_in_paper(kept: Kept) -> Kept:
    """Returns the answers by the names that the paper's models have: those of `AS_IN_PAPER` in place of others."""
    renamed = {
        (subject, (AS_IN_PAPER[label], *rest), column): outcomes
        for (subject, (label, *rest), column), outcomes in kept.items()
        if label in AS_IN_PAPER
    }
    return {**kept, **renamed}


def _seen(run: Run) -> int:
    """Returns the number of networks that a run was trained on, without moved copies that were stored beside them."""
    copies = run.settings.train_set == "augmented" and "augment_scale" in run.settings.options
    return run.networks["train"] // (2 if copies else 1)


def _shared(run: Run) -> float:
    """Returns the share of its training networks that another seed has, too; 0 if all of them train on the same."""
    if not run.settings.options.get("train_networks"):
        return 0.0
    share = _seen(run) / run.networks["pool"]
    return share if share < 1 else 0.0


def _steps(run: Run) -> int:
    return len(run.history) * steps_per_epoch(run)


def beside_paper(report: Report, experiment: str, kept: Kept = {}) -> Report:  # noqa: B006  # nobody writes to it
    """Returns the report with two more tables if the paper has numbers: those beside ours, and its claims.

    A claim is looked at where the answers behind both of its numbers are here.

    Args:
        report: of an experiment.
        experiment: its name in `PAPER`; others have nothing to be compared with.
        kept: see `kept_outcomes`.
    """
    tables: list[Table] = []
    lines: list[tuple[str, ...]] = []
    kept = as_in_paper(kept)
    for table in report.tables:
        published = next((p for p in PAPER.get(experiment, ()) if f" {p.of}" in f" {table.title}"), None)
        if published is None or not {*published.columns} & {*table.header}:
            continue
        # Our lines, by the names of the rows of `Published`.
        ours: dict[Row, dict[str, str]] = {}
        for line in sorted(table.cells, key=lambda line: line[0] in AS_IN_PAPER):
            cells = dict(zip(table.header, line, strict=True))
            ours[AS_IN_PAPER.get(line[0], line[0]), *(cells[key] for key in KEYS if key in cells)] = cells
        if not any(row in ours for row in published.rows):
            continue
        tables.append(_beside(table, ours, published, report.results))
        for claim in published.claims:
            pair = claimed(kept, table.subject, claim, claim.first, claim.second)
            if pair is not None:
                lines.append((_subject(table), claim.text, claim.source, *judge_claim(published, claim, [pair])))
    if not tables:
        return report
    if lines:
        tables.append(claims_table(lines, "of the seeds that both have"))
    return replace(report, tables=[*report.tables, *tables])


def claims_table(lines: Sequence[tuple[str, ...]], numbers: str) -> Table:
    """Returns the table of claims that were looked at; ``numbers``: what those under *here* are."""
    return Table(
        "Claims of the paper",
        ("of", "claim", "paper", "here", "verdict", "why"),
        tuple(lines),
        text_columns=6,
        names=(0, 1),
        notes=(f"here: the two numbers, {numbers}. {RULE}",),
    )


def claimed(kept: Kept, subject: str, claim: Claim, first: Cell, second: Cell) -> tuple[Outcomes, Outcomes] | None:
    """Returns the answers behind both numbers of a claim, of the seeds that both have; None where some are missing.

    Args:
        kept: see `kept_outcomes`.
        subject: of the table.
        claim: of the paper.
        first, second: its cells, by the names of our rows.
    """
    sides = [kept.get((subject, row, column)) for row, column in (first, second)]
    if claim.since:
        before = [kept.get((subject, row, claim.since)) for row, _ in (first, second)]
        sides = [side and side.since(earlier) for side, earlier in zip(sides, before, strict=True)]
    return paired(*sides)


def judge_claim(published: Published, claim: Claim, pairs: Sequence[tuple[Outcomes, Outcomes]]) -> tuple[str, str, str]:
    """Judges a claim as `judge` does, if no model is on a plateau.

    Returns:
        The two numbers, the verdict, and why.
    """
    seeds = tuple(seed for seed in pairs[0][0].seeds if all(seed in first.seeds for first, _ in pairs))
    pairs = [(first.of(seeds), second.of(seeds)) for first, second in pairs] if seeds else pairs
    means = [float(np.mean([outcomes.mean for outcomes in side])) for side in zip(*pairs, strict=True)]
    digits = 2 if published.percent else 3 if _shares(pairs) else 4
    numbers = " and ".join(f"{mean * (100 if published.percent else 1):.{digits}f}" for mean in means)
    for (row, column), mean in zip((claim.first, claim.second), means, strict=True):
        cell = published.rows[row][published.columns.index(column)] if published.plateau else ""
        if cell and 100 * mean < published.plateau * float(cell.split()[0]):
            why = f"{row[0]} stays on a plateau, at {100 * mean:.0f}%; the paper has {float(cell.split()[0]):.0f}%"
            return numbers, "not comparable", why
    return numbers, *judge(pairs, claim.relation, published.least, claim.least, percent=published.percent)


def _shares(pairs: Sequence[tuple[Outcomes, Outcomes]]) -> bool:
    """Whether numbers are accuracies or rank correlations, and no errors."""
    return all(o.true is not None or set(np.unique(o.answers)) <= {0.0, 1.0} for o in itertools.chain(*pairs))


def _subject(table: Table) -> str:
    subject = table.title.split(":")[0]
    for words in ("Test accuracy of ", " predicted from their weights", " classified by their networks"):
        subject = subject.replace(words, "")
    return subject


def _beside(
    table: Table, ours: Mapping[Row, Mapping[str, str]], published: Published, results: Mapping[str, Any]
) -> Table:
    """Returns our numbers and the paper's in pairs of columns; ``results``: as `record_of` has them."""
    shown = [name for name in published.columns if name in table.header]
    places = [published.columns.index(name) for name in shown]
    rows = [row for row in ours if row in published.rows]
    keys = (table.header[0], *(key for key in KEYS if key in table.header))
    cells = []
    for row in rows:
        pairs = ((ours[row][name], published.rows[row][i] or "-") for name, i in zip(shown, places, strict=True))
        cells.append((*row, *(cell for pair in pairs for cell in pair), ours[row]["params"], ours[row]["seeds"]))
    # On how many networks, and for how long, our models were trained.
    networks = results.get("networks") or {}
    sizes = sorted({counts["train"] for counts in networks.values() if isinstance(counts, dict)})
    trainings = [settings["training"] for settings in results.get("settings") or ()]
    trained = [f"{' or '.join(map(str, sizes))} training networks"] * bool(sizes)
    for name, unit in (("epochs", "{} epochs"), ("batch_size", "batches of {}")):
        values = sorted({training[name] for training in trainings})
        trained += [unit.format(" or ".join(map(str, values)))] * bool(values)
    words = over(int(ours[row]["seeds"]) for row in rows)
    return Table(
        f"Beside the paper: {_subject(table)}",
        (*keys, *(name for column in shown for name in (column, f"paper: {column}")), "params", "seeds"),
        tuple(cells),
        text_columns=len(keys),
        names=tuple(range(len(keys))),
        notes=(
            f"Here: {'; '.join(filter(None, (words, ', '.join(trained))))}. paper: {published.source}, ± "
            f"{published.spread}. The same: {published.same}. Not the same: {published.other}. Other networks, so "
            "compare the order of lines, never number with number.",
        ),
    )


def judge(
    pairs: Sequence[tuple[Outcomes, Outcomes]], relation: Relation, *least: Least, percent: bool = False
) -> tuple[str, str]:
    """Judges a claim on two numbers, or on their means over several sets of test networks, and says why.

    Args:
        pairs: of two models, on each set of test networks.
        relation: the first is larger (``>``), at least as large (``>=``) or the same (``=``).
        least: what runs need to be comparable with the paper's.
        percent: whether the difference is told in percent.

    Returns:
        ``holds``, ``does not hold``, ``cannot be told`` or ``not comparable``, and the difference with its interval.
    """
    for needed in least:
        for outcomes in itertools.chain(*pairs):
            if outcomes.steps < needed.steps:
                return "not comparable", f"{outcomes.steps:,} steps; the paper has {needed.paper}"
            if outcomes.networks < needed.networks:
                return "not comparable", f"{outcomes.networks:,} training networks; the paper has {needed.paper}"
    if any(o.true is not None and (o.answers == o.answers[:, :1]).all() for o in itertools.chain(*pairs)):
        return "not comparable", "a model gives all networks the same answer"
    interval = mean_difference(pairs)
    shares = _shares(pairs)
    difference = f"difference {interval.show(1, 100) if percent else interval.show(3 if shares else 4)}"
    if interval.low is None:
        return "cannot be told", f"{difference}, one seed"
    size = max(abs(float(np.mean([outcomes.mean for outcomes in side]))) for side in zip(*pairs, strict=True))
    said = verdict(interval, relation, EQUAL_TAU if shares else EQUAL_ERROR * size)
    tested = sum(first.answers.shape[1] for first, _ in pairs)
    enough = (LEAST_TESTED if pairs[0][0].true is None else LEAST_RANKED) if shares else 0
    if tested < enough and said == "holds" and (relation == "=" or verdict(interval, ">", 0) != "holds"):
        return "cannot be told", f"{difference}, {tested} test networks"
    return said, difference


def verdict(interval: Interval, relation: Relation, bound: float) -> str:
    """Returns ``holds``, ``does not hold`` or ``cannot be told``.

    Args:
        interval: of the difference of two numbers, with ends.
        relation: see `judge`.
        bound: numbers that differ by no more are the same.
    """
    assert interval.low is not None
    assert interval.high is not None
    low, high, bound = (round(x, 12) for x in (interval.low, interval.high, bound))  # 0.75 - 0.76 is not -0.01
    holds = {">": low > 0, ">=": low >= -bound, "=": -bound <= low and high <= bound}[relation]
    fails = {">": high < 0, ">=": high < -bound, "=": low > bound or high < -bound}[relation]
    return "holds" if holds else "does not hold" if fails else "cannot be told"
