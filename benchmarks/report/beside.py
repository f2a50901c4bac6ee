"""The paper's numbers beside ours, and which of its claims hold here: one mechanism for all experiments.

A claim compares two numbers of a table. It holds, or does not, where they differ by more than twice the standard error
of their difference; of one seed, that is not known, and a difference of a quarter of the larger one is asked for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from nfn_monomial.tools.report import Report, Table

from .published import AS_IN_PAPER, PAPER, Claim, Published, Row
from .tables import Mean, over

__all__ = ["beside_paper", "verdict"]

ERRORS = 2  # standard errors of a difference
CLEAR = 0.25  # of the larger number: what tells with one seed
EQUAL = 0.005  # of the larger number: what is called the same
RULE = (
    f"A difference tells if it is larger than {ERRORS} standard errors of the difference or, with one seed, than "
    f"{CLEAR:.0%} of the larger number; what differs by less than {EQUAL:.1%} is the same."
)
KEYS = ("trained on",)


def beside_paper(report: Report, experiment: str) -> Report:
    """The report with two more tables where the paper has numbers: those beside ours, and what became of its claims.

    A claim is looked at where both of its numbers are here.

    Args:
        report: of an experiment.
        experiment: its name in `PAPER`; others have nothing to be compared with.
    """
    tables: list[Table] = []
    lines: list[tuple[str, ...]] = []
    for table in report.tables:
        known = next((p for p in PAPER.get(experiment, ()) if p.of in table.title), None)
        found = _values(table) if known and {*known.columns} & {*table.header} else {}
        if known and any(row in found for row in known.rows):
            tables.append(_beside(table, found, known, _trained(report.results)))
            judged = [_judged(claim, found) for claim in known.claims]
            lines += [(_subject(table), *line) for line in judged if line]
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


def _values(table: Table) -> dict[Row, dict[str, str]]:
    """Lines by what `Published` calls them."""
    found = {}
    for line in sorted(table.cells, key=lambda line: line[0] in AS_IN_PAPER):
        cells = dict(zip(table.header, line, strict=True))
        found[AS_IN_PAPER.get(line[0], line[0]), *(cells[key] for key in KEYS if key in cells)] = cells
    return found


def _trained(results: Mapping[str, Any]) -> str:
    """On how many networks, and for how long, as `record_of` has it."""
    networks = results.get("networks") or {}
    sizes = sorted({counts["train"] for counts in networks.values() if isinstance(counts, dict)})
    trainings = [settings["training"] for settings in results.get("settings") or ()]
    said = [f"{' or '.join(map(str, sizes))} training networks"] * bool(sizes)
    for name, unit in (("epochs", "{} epochs"), ("batch_size", "batches of {}")):
        values = sorted({training[name] for training in trainings})
        said += [unit.format(" or ".join(map(str, values)))] * bool(values)
    return ", ".join(said)


def _beside(table: Table, found: Mapping[Row, Mapping[str, str]], known: Published, trained: str) -> Table:
    shown = [name for name in known.columns if name in table.header]
    places = [known.columns.index(name) for name in shown]
    own = [row for row in found if row in known.rows]
    keys = (table.header[0], *(key for key in KEYS if key in table.header))
    cells = []
    for row in own:
        pairs = ((found[row][name], known.rows[row][i] or "-") for name, i in zip(shown, places, strict=True))
        cells.append((*row, *(cell for pair in pairs for cell in pair), found[row]["params"], found[row]["seeds"]))
    names = (name for column in shown for name in (column, f"paper: {column}"))
    seeds = [int(found[row]["seeds"]) for row in own]
    return Table(
        f"Beside the paper: {_subject(table)}",
        (*keys, *names, "params", "seeds"),
        tuple(cells),
        text_columns=len(keys),
        names=tuple(range(len(keys))),
        notes=(
            f"Here: {'; '.join(filter(None, (over(seeds), trained)))}. paper: {known.source}, ± {known.spread}. "
            f"The same: {known.same}. Not the same: {known.other}. Other networks, so compare the order of lines, "
            "never number with number.",
        ),
    )


def _judged(claim: Claim, found: Mapping[Row, Mapping[str, str]]) -> tuple[str, ...]:
    """Claim, source, our two numbers, verdict and why; empty if one of the two was not asked for."""
    cells = [found.get(row, {}).get(column, "") for row, column in (claim.first, claim.second)]
    first, second = map(_number, cells)
    if first is None or second is None:
        return ()
    return claim.text, claim.source, " and ".join(cells), *verdict(first, claim.relation, second)


def _number(cell: str) -> Mean | None:
    """What `Mean.show` wrote; None where there is none."""
    mean, _, error = cell.partition(" ±")
    try:
        return Mean(float(mean), float(error) if error else None)
    except ValueError:
        return None


def verdict(first: Mean, relation: str, second: Mean) -> tuple[str, str]:
    """Whether the first number is larger (``>``), at least as large (``>=``) or the same (``=``), and why.

    Returns:
        ``holds``, ``does not hold`` or ``cannot be told``, and the difference with what it is compared to.
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
