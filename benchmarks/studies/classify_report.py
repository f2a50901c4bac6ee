"""Finished runs of `classify-inr`: a table, confusion matrices and learning curves."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from nfn_monomial.benchmarks.report.figures import draw_learning
from nfn_monomial.benchmarks.report.results import record_of
from nfn_monomial.benchmarks.report.tables import INVARIANT, Mean, by_model, model_table, over_seeds
from nfn_monomial.benchmarks.train.runs import Run
from nfn_monomial.tools.report import Report, Table, panels

from . import Study
from .classify import classify_inrs, require_models

__all__ = ["STUDY", "classify_report", "classify_table", "draw_confusion"]

TESTS = ("original", "moved", "shifted", "train")
PREPARED = ("absorb_omega", "canonical_phase", "normalize")  # fields of InputConfig
WIDE = 4  # panels side by side


def classify_report(runs: Sequence[Run]) -> Report:
    """Table, confusion matrices, learning curves, and the numbers of all.

    Raises:
        ValueError: if there are no runs, or runs that would share a line differ in more than their seed.
    """
    record = record_of(runs)
    results = {"rows": [_row(model, group) for (_, _, model), group in by_model(runs).items()], **record}
    curves = {"training loss": _train_loss, "validation accuracy (%)": _val_accuracy}
    figures = {"confusion.png": draw_confusion(runs), "learning.png": draw_learning(runs, curves)}
    return Report([classify_table(runs)], results, figures)


def classify_table(runs: Sequence[Run]) -> Table:
    """A line per model: accuracy in percent on every set, cross-entropy on the test networks, size and time."""
    columns: dict[str, Callable[[Run], float]] = {
        "train": lambda run: 100 * _metric(run, "train"),
        "test": lambda run: 100 * _metric(run, "original"),
        "moved": lambda run: 100 * _metric(run, "moved"),
        "shifted": lambda run: 100 * _metric(run, "shifted"),
        "loss": lambda run: _metric(run, "original", "loss"),
    }
    notes = [
        f"Accuracy in percent, and cross-entropy on the test networks: {over_seeds(runs)}; epochs are "
        "selected on validation networks only. moved: the test networks after random sign flips and permutations of "
        "their neurons; shifted: after shifts of their phases by multiples of pi. Neither changes an image.",
        "invariant: to sign flips and permutations (yes), to permutations of hidden neurons (perm. only), or to "
        "nothing (no). sees: the weights alone, or also what the networks compute (runs them). s/epoch: the pass over "
        "the training set. peak MiB: parameters, optimiser state and one training step.",
    ]
    notes.append(f"{_preparation(runs[0].settings.options['inputs'])} {_learning_rates(runs)}")
    lost = {run.label: None for run in runs if any(test.non_finite for test in run.tests)}
    if lost:
        notes.append(f"NaN or infinite predictions, NaN taken as the lowest: {', '.join(lost)}.")
    if lost := {run.label: None for run in runs if run.diverged}:
        notes.append(f"The loss became NaN or infinite, which ended the training early: {', '.join(lost)}.")
    subjects = ", ".join(dict.fromkeys(run.settings.subject for run in runs))
    return model_table(f"Images of {subjects} classified by their networks", runs, columns, digits=2, notes=notes)


def _preparation(inputs: Mapping[str, Any]) -> str:
    """What was done to networks in front of all models, by the fields of `InputConfig`."""
    noise = f" and noise of {inputs['noise']:g}" * bool(inputs["noise"])
    warp = inputs["warp"]
    done = [f"moved by random group elements{noise}"] * inputs["augment"]
    done += [f"changed so that their images are turned, zoomed and shifted at random (up to {warp:g})"] * bool(warp)
    prepared = ", ".join(name for name in PREPARED if inputs[name]) or "nothing"
    return f"In training, networks were {' and '.join(done) or 'seen as they are'}. Done to all networks: {prepared}."


def _learning_rates(runs: Sequence[Run]) -> str:
    rates: dict[float, dict[str, None]] = {}
    for run in runs:
        rates.setdefault(run.settings.training.learning_rate, {})[run.label] = None
    (usual, _), *others = sorted(rates.items(), key=lambda item: -len(item[1]))
    exceptions = [f"{rate:g} for {', '.join(labels)}" for rate, labels in others]
    return f"Learning rate: {'; '.join([f'{usual:g}', *exceptions])}."


def _metric(run: Run, test: str, name: str = "accuracy") -> float:
    return next(t.metrics[name] for t in run.tests if t.name == test)


def _row(model: str, group: Sequence[Run]) -> dict[str, Any]:
    first = group[0]
    return {
        "model": model,
        "label": first.label,
        "sees": first.sees,
        "invariant": INVARIANT.get(first.invariant_under, first.invariant_under),
        "subject": first.settings.subject,
        "seeds": [run.settings.seed for run in group],
        "accuracy": {name: asdict(Mean.of(_metric(run, name) for run in group)) for name in TESTS},
        "loss": {name: asdict(Mean.of(_metric(run, name, "loss") for run in group)) for name in TESTS},
        "best_epoch": [run.best_epoch for run in group],
        "parameters": first.parameters,
        "seconds_per_epoch": asdict(Mean.of(run.seconds_per_epoch for run in group)),
        "seconds": asdict(
            Mean.of(math.fsum(e["seconds"] + e["validation_seconds"] for e in run.history) for run in group)
        ),
        "peak_bytes": max(run.peak_bytes for run in group),
        "confusion": _confusion(group).tolist(),
    }


def _confusion(group: Sequence[Run]) -> Any:
    """Counts ``(true class, predicted class)`` over all seeds."""
    return np.sum([run.extra["confusion"] for run in group], axis=0)


def _train_loss(epoch: dict[str, Any]) -> float:
    return float("nan") if epoch["train_loss"] is None else float(epoch["train_loss"])


def _val_accuracy(epoch: dict[str, Any]) -> float:
    return 100 * float(epoch["metrics"]["accuracy"])


def draw_confusion(runs: Sequence[Run]) -> Figure:
    """One panel a model: of the test images of every class (rows), the shares that were taken for every class."""
    groups = list(by_model(runs).values())
    wide = min(len(groups), WIDE)
    high = math.ceil(len(groups) / wide)
    figure, axes = panels(high, wide, (2.9 * wide, 3.1 * high + 0.3), grid=False)
    for ax, group in zip(axes, groups, strict=False):
        counts = _confusion(group)
        shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
        ax.imshow(shares, vmin=0, vmax=1, cmap="Blues")
        classes = len(counts)
        for (i, j), share in np.ndenumerate(shares):
            if share >= 0.005 and classes <= 10:
                color = "white" if share > 0.5 else "#303030"
                ax.text(j, i, f"{100 * share:.0f}", ha="center", va="center", fontsize=5.5, color=color)
        ticks = range(classes) if classes <= 10 else ()
        ax.set(xticks=ticks, yticks=ticks)
        ax.tick_params(labelsize=7, length=0)
        accuracy = Mean.of(100 * _metric(run, "original") for run in group)
        bold = "bold" if group[0].invariant_under == "group" else "normal"
        ax.set_title(f"{group[0].label}: {accuracy.show(1)} %", fontsize=8.5, fontweight=bold)
    figure.supxlabel(f"predicted class (numbers: percent of the row); titles: accuracy, {over_seeds(runs)}", fontsize=9)
    figure.supylabel("class of the image", fontsize=9)
    return figure


STUDY = Study(classify_inrs, lambda runs, config, store: classify_report(runs), require_models)
