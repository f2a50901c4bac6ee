"""Tables and the figure of the merging study."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from nfn_monomial.benchmarks.experiments.merge import MergeConfig, Subject, read_subject
from nfn_monomial.benchmarks.report.tables import Mean, over
from nfn_monomial.benchmarks.settings.register import Said, Study
from nfn_monomial.benchmarks.train.runs import environment
from nfn_monomial.tools.report import Report, Table, look, panels

from .measure import Findings, Line, measure_merging, shares_left

__all__ = ["draw_lines", "line_table", "merge_report", "merged_table", "overview_table", "variant_table"]

REPAIRED = {False: "no", True: "yes"}
KINDS = {
    "mlp": "MLP", "vgg": "VGG-like", "resnet": "ResNet-20", "transformer": "transformer, one block",
    "transformer2": "transformer, two blocks",
}  # fmt: skip


def merge_report(findings: Findings, config: MergeConfig) -> Report:
    """All tables, the numbers, and the figure of the lines."""
    tables = [
        overview_table(findings),
        line_table(findings, "barrier of the loss", lambda line: line.barrier, 3),
        line_table(findings, "accuracy at the middle", lambda line: line.middle, 3),
        variant_table(findings),
        merged_table(findings, config),
    ]
    results = {
        "environment": environment("cpu"),
        "config": asdict(config),
        "variants": {REPAIRED[repaired]: name for repaired, name in findings.variants.items()},
        "accuracies": findings.accuracies,
        "parameters": findings.parameters,
        "lines": [asdict(line) | {"barrier": line.barrier} for line in findings.lines],
        "validation": [
            {"subject": x.subject, "pair": x.pair, "method": x.method, "repaired": x.repaired, "barrier": x.barrier}
            for x in findings.validation
        ],
        "merged": [asdict(entry) for entry in findings.merged],
    }
    return Report(tables, results, {"merge.png": draw_lines(findings)})


def shown(subject: Subject) -> str:
    """A subject in words."""
    return f"{KINDS[subject.kind]}, width {subject.width}, {subject.images}"


def _subjects(lines: Iterable[Line]) -> list[Subject]:
    return [read_subject(text) for text in dict.fromkeys(line.subject for line in lines)]


def _taken(lines: Iterable[Line], subject: Subject, method: str, repaired: bool) -> list[Line]:
    found = [x for x in lines if (x.subject, x.method, x.repaired) == (str(subject), method, repaired)]
    return sorted(found, key=lambda x: x.pair)


def _share(values: Sequence[float]) -> str:
    return Mean.of(values).show(2) if values else "-"  # where no pair has a naive barrier


def overview_table(findings: Findings) -> Table:
    """What is left of the naive barrier, and how far the middle's accuracy is below that of the ends, over all."""
    family = findings.family
    cells, counts = [], []
    for method in family.methods:
        for repaired in (False, True):
            own = [x for x in findings.lines if x.repaired == repaired]
            share = shares_left(own)[method]
            lost = [x.ends - x.middle for x in own if x.method == method]
            variant = findings.variants[repaired] if method == family.ours else ""
            heights, rivals = (
                [x.barrier for s in _subjects(own) for x in _taken(own, s, name, repaired)]
                for name in (method, family.rival)
            )
            lower = sum(x < y for x, y in zip(heights, rivals, strict=True))
            below = "-" if method == family.rival else str(lower)
            numbers = (_share(share), Mean.of(lost).show(3), below, str(len(lost)))
            cells.append((method, REPAIRED[repaired], variant, *numbers))
            counts.append(len(lost))
    return Table(
        "Merging: mean over all networks",
        ("method", "REPAIR", "variant", "barrier / naive", "accuracy lost", f"below {family.rival}", "pairs"),
        tuple(cells),
        text_columns=3,
        names=(0, 1),
        bold=frozenset(i for i, line in enumerate(cells) if line[0] == family.ours),
        notes=(
            "barrier / naive: of the loss, as a share of that of the networks as they are, equally repaired. accuracy "
            "lost: mean accuracy of the two networks less that of their mean. All on test images: "
            f"{over(counts, 'pair')}, of all networks. below {family.rival}: pairs whose barrier is lower. variant: "
            f"{family.chosen}; chosen on other pairs, on validation images.",
        ),
    )


def line_table(findings: Findings, what: str, value: Callable[[Line], float], digits: int) -> Table:
    """One number of every pair: a line for each subject and REPAIR, a column for each method."""
    cells, counts = [], []
    for subject in _subjects(findings.lines):
        for repaired in (False, True):
            by = {method: _taken(findings.lines, subject, method, repaired) for method in findings.family.methods}
            ends = Mean.of(line.ends for line in by["naive"]).show(3)
            numbers = [Mean.of(value(line) for line in lines).show(digits) for lines in by.values()]
            first = (shown(subject), REPAIRED[repaired], f"{findings.parameters[str(subject)]:,}", ends)
            cells.append((*first, *numbers, str(len(by[findings.family.ours]))))
            counts.append(len(by[findings.family.ours]))
    return Table(
        f"Merging: {what}",
        ("networks", "REPAIR", "parameters", "accuracy of the two", *findings.family.methods, "pairs"),
        tuple(cells),
        text_columns=2,
        names=(0, 1),
        notes=(f"On test images: {over(counts, 'pair')}.",),
    )


def variant_table(findings: Findings) -> Table:
    """All variants on the validation pairs, where the choice was made."""
    family = findings.family
    shares = {r: shares_left([x for x in findings.validation if x.repaired == r]) for r in (False, True)}
    cells = tuple(
        (name, *(_share(shares[r][name]) for r in (False, True)), str(len(shares[False][name])))
        for name in (*family.baselines, *family.variants)
    )
    chosen, counts = set(findings.variants.values()), map(len, shares[False].values())
    return Table(
        f"Merging: variants of {family.ours}, on validation pairs",
        (family.chosen, "barrier / naive", "with REPAIR", "pairs"),
        cells,
        bold=frozenset(i for i, line in enumerate(cells) if line[0] in chosen),
        notes=(f"On validation images, of other networks: {over(counts, 'pair')}, of all networks. Bold: chosen.",),
    )


def merged_table(findings: Findings, config: MergeConfig) -> Table:
    """Several networks merged at once."""
    cells, counts = [], []
    for method in dict.fromkeys(x.method for x in findings.merged):
        for repaired in (False, True):
            own = [x for x in findings.merged if (x.method, x.repaired) == (method, repaired)]
            numbers = ([x.loss for x in own], [x.accuracy for x in own], [x.single for x in own])
            cells.append((method, REPAIRED[repaired], *(Mean.of(found).show(3) for found in numbers), str(len(own))))
            counts.append(len(own))
    return Table(
        f"Merging {config.together} networks at once: {shown(read_subject(config.several))}",
        ("method", "REPAIR", "loss", "accuracy", "accuracy of one", "groups"),
        tuple(cells),
        text_columns=2,
        names=(0, 1),
        notes=(
            f"On test images: {over(counts, 'group')}, each of which has half its networks in common with the next.",
        ),
    )


def draw_lines(findings: Findings) -> Figure:
    """Loss along the line, a panel for every subject: means over pairs; with REPAIR, bands of ± as in the tables.

    Panels end a quarter above the naive lines: what rises higher leaves them.
    """
    lines, methods = findings.lines, findings.family.methods
    subjects = _subjects(lines)
    columns = min(3, len(subjects))
    rows = -(-len(subjects) // columns)
    figure, axes = panels(rows, columns, (3.5 * columns, 2.6 * rows + 0.7))
    for ax, subject in zip(axes, subjects, strict=False):
        highest = 0.0
        for i, method in enumerate(methods):
            for repaired in (False, True):
                own = [line.loss for line in _taken(lines, subject, method, repaired)]
                means = [Mean.of(values) for values in zip(*own, strict=True)]
                t = [point / (len(means) - 1) for point in range(len(means))]
                color = look(i)["color"]
                highest = max(highest, *(m.mean for m in means)) if method == methods[0] else highest
                ax.plot(t, [m.mean for m in means], color=color, linestyle="-" if repaired else ":", linewidth=1.6)
                if repaired:
                    low, high = ([m.mean + sign * (m.error or 0) for m in means] for sign in (-1, 1))
                    ax.fill_between(t, low, high, color=color, alpha=0.15, linewidth=0)
        ax.set_title(shown(subject), fontsize=9)
        ax.set_ylim(0, 1.25 * highest)
    for ax in axes[::columns]:
        ax.set_ylabel("test loss", fontsize=9)
    for ax in axes[-columns:]:
        ax.set_xlabel("t, from a to b", fontsize=9)
    handles = [Line2D([], [], color=look(i)["color"], label=method) for i, method in enumerate(methods)]
    handles.append(Line2D([], [], color="#404040", linestyle="-", label="REPAIR"))
    handles.append(Line2D([], [], color="#404040", linestyle=":", label="without"))
    figure.legend(handles=handles, loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    return figure


STUDY = Study(
    lambda data, config, store, tell: measure_merging(config, store.folder, lambda *at: tell(Said("merging", *at))),
    lambda findings, config, store: merge_report(findings, config),
)
