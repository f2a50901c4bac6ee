"""The paper's ablation (App. D, Table 24): how many equivariant layers, and whether a layer of HNP follows.

Six stacks, ``mnf-1`` to ``mnf-3`` and ``mnf-1-hnp`` to ``mnf-3-hnp``, which are `MonomialStack` with its two settings;
``mnf-3`` is ``monomial`` and ``mnf-3-hnp`` is ``monomial-hnp``. The experiment is predicting generalisation, trained on
the networks as they are and tested on them moved by the group.
"""

from __future__ import annotations

from collections.abc import Sequence

from nfn_monomial.benchmarks.report.results import _short
from nfn_monomial.benchmarks.report.tables import Spread, Table, by_model, count
from nfn_monomial.benchmarks.train.runs import Run

__all__ = ["LEVELS", "PUBLISHED", "ablation_tables"]

LEVELS = (1e1, 1e2, 1e3, 1e4)  # the paper's levels of augmentation 1 to 4
PUBLISHED = {
    "mnf-1-hnp": (0.917, 0.916, 0.917, 0.917, 0.917),
    "mnf-2-hnp": (0.918, 0.917, 0.917, 0.917, 0.918),
    "mnf-3-hnp": (0.920, 0.919, 0.918, 0.920, 0.920),
    "mnf-1": (0.915, 0.914, 0.917, 0.916, 0.914),
    "mnf-2": (0.918, 0.919, 0.918, 0.917, 0.918),
    "mnf-3": (0.922, 0.920, 0.919, 0.920, 0.920),
}
"""Table 24: tau of ReLU networks of the Small CNN Zoo as they are, and moved with scales of `LEVELS`."""


def ablation_tables(runs: Sequence[Run]) -> list[Table]:
    """A table for each activation: tau here, and apart from it the paper's, which are of another data set.

    Args:
        runs: of `predict_generalization` with stacks for models, on one train set.
    """
    groups = by_model(runs)
    return [
        _table(subject, {model: group for (s, _, model), group in groups.items() if s == subject})
        for subject in dict.fromkeys(subject for subject, _, _ in groups)
    ]


def _table(subject: str, groups: dict[str, list[Run]]) -> Table:
    first = next(iter(groups.values()))[0]
    names = [_short(test.name, test.scale) for test in first.tests]
    header = ["stack", *(f"tau {name}" for name in names), "params", "s/epoch", "peak MiB", "seeds"]
    notes = [
        "MNF x 3, HNP: (MNF-act) x 3 -> Norm -> (HNP-ReLU) x 1 -> Avg -> MLP, with MNF the monomial equivariant layer "
        "and act the networks' activation. 1eK: test networks moved with scales in [1, 1eK]. Mean ± standard error "
        "over seeds."
    ]
    beside = subject == "relu"
    if beside:
        header += [f"paper: {name}" for name in ("original", *(_short("", s) for s in LEVELS))]
        notes.append(
            "paper: Table 24, ReLU networks of the published Small CNN Zoo (CIFAR-10). Other networks, so compare the "
            "order of the rows, never a number with one of the columns before."
        )
    cells = []
    for model, group in groups.items():
        line = [group[0].label]
        line += [Spread.of(run.tests[i].metrics["tau"] for run in group).show() for i in range(len(group[0].tests))]
        seconds = Spread.of(run.seconds_per_epoch for run in group).mean
        peak = max(run.peak_bytes for run in group) / 2**20
        line += [count(group[0].parameters), f"{seconds:.3g}", f"{peak:.0f}", str(len(group))]
        if beside:
            line += [f"{tau:.3f}" for tau in PUBLISHED[model]] if model in PUBLISHED else ["-"] * (1 + len(LEVELS))
        cells.append(tuple(line))
    return Table(f"Ablation: Kendall's tau of {subject} networks", tuple(header), tuple(cells), notes=tuple(notes))
