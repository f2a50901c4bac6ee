"""Augmentation against symmetry (paper Figure 1, Tables 2 and 12 to 15), and quasi-invariance in training.

**Curves of tau.** Models are trained on the networks as they are and on the set augmented by random group elements, and
tested under scales up to 1e6. The paper trains and tests once for each range of scales, so that a model meets at test
time the range that it was trained on (``per_scale``); by default one augmented set serves all ranges.

**Training curves.** For an invariant model the augmented copies are the original networks again: trained on them
*alone*, its loss is the same at every step, to rounding. Measured in float64, with one seed, one order of minibatches
and one initialisation, as the largest relative difference of the epochs' mean losses; models that know permutations
only are the contrast.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from matplotlib.figure import Figure

from nfn_monomial.benchmarks.data.networks import Corpus, Networks, Parts
from nfn_monomial.benchmarks.experiments.augment import AugmentConfig
from nfn_monomial.benchmarks.report.tables import INVARIANT, record_of
from nfn_monomial.benchmarks.settings.register import Study
from nfn_monomial.benchmarks.train.runs import Run, RunStore
from nfn_monomial.benchmarks.train.sweep import OnProgress, sweep
from nfn_monomial.tools.report import Report, Table, look, panels

from .predict import check, plan, predict_generalization, require_models
from .predict_report import draw_figure, predict_tables, summarise

__all__ = [
    "PER_SCALE",
    "STUDY",
    "Curves",
    "augment_report",
    "augment_study",
    "curves_table",
    "draw_training_curves",
    "training_curves",
]

PER_SCALE = "Augmented: under every range of scales, the model that was trained on the set augmented with that range."
LEAST = 1e-17  # of differences in the figure: on a logarithmic axis, none has no place


def augment_study(
    corpora: Mapping[str, Corpus],
    config: AugmentConfig,
    store: RunStore,
    on_progress: OnProgress = lambda progress: None,
) -> tuple[list[Run], list[Run]]:
    """Do all runs of the curves of tau that the store does not have.

    Args:
        corpora: activation -> networks.
        config: see `AugmentConfig`.
        store: where finished runs are kept.
        on_progress: see `sweep`.

    Returns:
        The runs as they are stored, and as tables show them: with ``per_scale``, the augmented runs of a model and seed
        as one, every test of which is of the run that was trained on its range.

    Raises:
        ValueError: as `predict_generalization`.
    """
    chosen = check(config.plans()[0], corpora)
    if config.curve_models:
        check(config.curve_plan(), corpora)
    jobs = {job.settings.name: job for planned in config.plans() for job in plan(planned, chosen)}
    runs = sweep(list(jobs.values()), store, on_progress)
    return runs, _by_range(runs) if config.per_scale else runs


def _by_range(runs: Sequence[Run]) -> list[Run]:
    """Augmented runs that differ only in their range of scales -> one, with the tests under scales of them all."""
    shown = [run for run in runs if run.settings.train_set == "original"]
    groups: dict[tuple[str, str, int], list[Run]] = {}
    for run in runs:
        if run.settings.train_set == "augmented":
            groups.setdefault((run.settings.subject, run.settings.model, run.settings.seed), []).append(run)
    for group in groups.values():
        if len(group) == 1:  # no group scales: there is one augmented set
            shown += group
            continue
        tests = [test for run in group for test in run.tests if test.scale is not None]
        options = {**group[0].settings.options, "scales": [t.scale for t in tests], "augment_scale": "of each test"}
        settings = replace(group[0].settings, options=options)
        diverged = any(run.diverged for run in group)
        shown.append(replace(group[0], settings=settings, tests=tuple(tests), diverged=diverged))
    return shown


# -- quasi-invariance in training -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Curves:
    """Training losses of one model, epoch by epoch, on the original networks and on moved copies of them alone."""

    subject: str
    model: str
    label: str
    invariant_under: str
    original: tuple[float, ...]
    moved: tuple[float, ...]

    @property
    def difference(self) -> float:
        """Largest relative difference over epochs; infinite where one of the trainings diverged."""
        if len(self.original) != len(self.moved) or not all(map(math.isfinite, (*self.original, *self.moved))):
            return math.inf
        return max(abs(a - b) / abs(a) for a, b in zip(self.original, self.moved, strict=True))

    def record(self) -> dict[str, Any]:
        """The curves with their difference as JSON has it, None where a number is not finite."""
        numbers = {"original": list(self.original), "moved": list(self.moved), "difference": [self.difference]}
        finite = {name: [x if math.isfinite(x) else None for x in values] for name, values in numbers.items()}
        return {**asdict(self), **finite, "difference": finite["difference"][0]}


def training_curves(
    corpora: Mapping[str, Corpus],
    config: AugmentConfig,
    store: RunStore,
    on_progress: OnProgress = lambda progress: None,
) -> list[Curves]:
    """Train in float64 on original and on moved networks; arguments and errors as `augment_study`."""
    with _float64():
        precise = {name: _precise(corpus, config.curve_networks) for name, corpus in corpora.items()}
        runs = predict_generalization(precise, config.curve_plan(), store, on_progress)
    losses = {
        (run.settings.subject, run.settings.model, run.settings.train_set): tuple(
            float("nan") if epoch["train_loss"] is None else float(epoch["train_loss"]) for epoch in run.history
        )
        for run in runs
    }
    return [
        Curves(
            run.settings.subject,
            run.settings.model,
            run.label,
            run.invariant_under,
            losses[run.settings.subject, run.settings.model, "original"],
            losses[run.settings.subject, run.settings.model, "moved"],
        )
        for run in runs
        if run.settings.train_set == "original"
    ]


@contextmanager
def _float64() -> Iterator[None]:
    """New tensors in float64, and so models, group elements, and what Fabric makes of outputs (the default dtype)."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _precise(corpus: Corpus, limit: int | None) -> Corpus:
    """The same networks in float64, the first ``limit`` of every part."""

    def convert(parts: Parts) -> Parts:
        taken = [(part, part.networks.subset(slice(limit))) for part in parts]
        return tuple(
            replace(part, networks=Networks({k: t.double() for k, t in n.tensors.items()}, n.accuracy.double()))
            for part, n in taken
        )

    return replace(corpus, train=convert(corpus.train), val=convert(corpus.val), test=convert(corpus.test))


# -- tables and figures ------------------------------------------------------------------------------------------------


def augment_report(
    runs: Sequence[Run], shown: Sequence[Run], curves: Sequence[Curves], config: AugmentConfig
) -> Report:
    """The curves of tau as tables and figure, and the training curves likewise.

    Args:
        runs: as they are stored, see `augment_study`.
        shown: as tables show them.
        curves: see `training_curves`; there need not be any.
        config: of the study.

    Raises:
        ValueError: if there are no runs.
    """
    record, rows = record_of(runs), summarise(shown)
    results = {"rows": [asdict(row) for row in rows], "curves": [c.record() for c in curves], **record}
    tables = [*predict_tables(rows), *[curves_table(curves)] * bool(curves)]
    figures = {"figure1.png": draw_figure(rows)}
    if curves:
        figures["training_curves.png"] = draw_training_curves(curves)
    return Report(tables, results, figures, PER_SCALE if config.per_scale else "")


def curves_table(curves: Sequence[Curves]) -> Table:
    """How far the loss on moved networks is from that on the original ones."""
    cells = tuple(
        (
            c.label,
            c.subject,
            INVARIANT.get(c.invariant_under, "no"),
            f"{c.original[-1]:.6f}",
            f"{c.moved[-1]:.6f}",
            f"{c.difference:.1e}",
            str(len(c.original)),
        )
        for c in curves
    )
    return Table(
        "Training loss on moved copies of the networks alone, and on the original networks",
        ("model", "networks", "invariant", "original", "moved", "difference", "epochs"),
        cells,
        text_columns=3,
        bold=frozenset(i for i, c in enumerate(curves) if c.invariant_under == "group"),
        notes=("float64, one seed. Losses of the last epoch; the largest relative difference of all epochs.",),
    )


def draw_training_curves(curves: Sequence[Curves]) -> Figure:
    """Left: losses on original networks (lines) and on moved ones (circles). Right: their relative difference."""
    figure, (left, right) = panels(1, 2, (9.6, 3.8))
    for i, c in enumerate(curves):
        color = look(i)["color"]
        label = f"{c.label}, {c.subject}"
        weight: dict[str, Any] = {"linewidth": 2.2 if c.invariant_under == "group" else 1.2}
        left.plot(range(1, len(c.original) + 1), c.original, color=color, label=label, **weight)
        left.plot(range(1, len(c.moved) + 1), c.moved, "o", color=color, markersize=5, fillstyle="none")
        pairs = list(zip(c.original, c.moved, strict=False))
        difference = [max(abs(a - b) / abs(a), LEAST) for a, b in pairs]
        right.plot(range(1, len(pairs) + 1), difference, **look(i), **weight)
    left.set_ylabel("loss: original (lines), moved (circles)")
    right.set_ylabel("relative difference of the two")
    for ax in (left, right):
        ax.set_yscale("log")
        ax.set_xlabel("epoch")
    right.set_ylim(bottom=LEAST / 2)
    right.set_xlabel("epoch\nthick: invariant to the whole group; float64")
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    return figure


def _run(
    corpora: Mapping[str, Corpus], config: AugmentConfig, store: RunStore, on_progress: OnProgress
) -> tuple[list[Run], list[Run], list[Curves]]:
    runs, shown = augment_study(corpora, config, store, on_progress)
    return runs, shown, training_curves(corpora, config, store, on_progress) if config.curve_models else []


def _check(config: AugmentConfig) -> None:
    for predict in (*config.plans(), *([config.curve_plan()] if config.curve_models else [])):
        require_models(predict)


STUDY = Study(_run, lambda found, config, store: augment_report(found[0], found[1], found[2], config), _check)
