"""The paper's numbers beside ours, and which of its claims hold here: one mechanism for all experiments.

A claim compares two numbers of a table. It holds, or does not, if they differ by more than twice the standard error of
their difference. With one seed that is not known, and they have to differ by a quarter of the larger one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from nfn_monomial.tools.report import Report, Table

from .published import AS_IN_PAPER, PAPER, Published, Row
from .tables import Estimate, over

__all__ = ["beside_paper", "verdict"]

ERRORS = 2  # standard errors of a difference
CLEAR = 0.25  # of the larger number: a difference that counts with one seed
EQUAL = 0.005  # of the larger number: smaller differences count as none
RULE = (
    f"A difference counts if it is larger than {ERRORS} standard errors of the difference or, with one seed, than "
    f"{CLEAR:.0%} of the larger number; numbers that differ by less than {EQUAL:.1%} are the same."
)
KEYS = ("trained on",)


def beside_paper(report: Report, experiment: str) -> Report:
    """Returns the report with two more tables if the paper has numbers: those beside ours, and its claims.

    A claim is looked at where both of its numbers are here.

    Args:
        report: of an experiment.
        experiment: its name in `PAPER`; others have nothing to be compared with.
    """
    tables: list[Table] = []
    lines: list[tuple[str, ...]] = []
    for table in report.tables:
        published = next((p for p in PAPER.get(experiment, ()) if p.of in table.title), None)
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
            cells_of_claim = [ours.get(row, {}).get(column, "") for row, column in (claim.first, claim.second)]
            first, second = map(_number, cells_of_claim)
            if first is not None and second is not None:
                judged = verdict(first, claim.relation, second)
                lines.append((_subject(table), claim.text, claim.source, " and ".join(cells_of_claim), *judged))
    if not tables:
        return report
    if lines:
        tables.append(
            Table(
                "Claims of the paper",
                ("of", "claim", "paper", "here", "verdict", "why"),
                tuple(lines),
                text_columns=6,
                names=(0, 1),
                notes=(f"here: the two numbers, ± as in the tables. {RULE}",),
            )
        )
    return replace(report, tables=[*report.tables, *tables])


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


def _number(cell: str) -> Estimate | None:
    """Reads a cell that `Estimate.show` wrote; None if it has no number."""
    mean, _, error = cell.partition(" ±")
    try:
        return Estimate(float(mean), float(error) if error else None)
    except ValueError:
        return None


def verdict(first: Estimate, relation: str, second: Estimate) -> tuple[str, str]:
    """Judges whether the first number is larger (``>``), at least as large (``>=``) or the same (``=``), and says why.

    Returns:
        ``holds``, ``does not hold`` or ``cannot be told``, and the difference with its threshold.
    """
    difference, size = first.mean - second.mean, max(abs(first.mean), abs(second.mean))
    seeded = first.error is not None and second.error is not None
    needed = ERRORS * math.hypot(first.error or 0.0, second.error or 0.0) if seeded else CLEAR * size
    same = abs(difference) <= EQUAL * size
    larger, smaller = (not same and sign * difference > needed for sign in (1, -1))
    why = f"difference {difference:+.2g}, " + (f"{ERRORS} errors {needed:.2g}" if seeded else "one seed")
    holds = {">": larger, ">=": larger or same, "=": same}[relation]
    equal = same and needed <= EQUAL * size  # and known to be
    fails = {">": smaller or equal, ">=": smaller, "=": larger or smaller}[relation]
    return "holds" if holds else "does not hold" if fails else "cannot be told", why
