"""Finished runs of `classify-inr` -> a table, a JSON file, confusion matrices and learning curves."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from nfn_monomial.benchmarks.files import write_atomically
from nfn_monomial.benchmarks.report.figures import MARKERS, PALETTE
from nfn_monomial.benchmarks.report.results import _distinct
from nfn_monomial.benchmarks.report.tables import INVARIANT, Spread, Table, by_model, model_table
from nfn_monomial.benchmarks.train.runs import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["classify_table", "draw_confusion", "draw_learning", "write_classify_report"]

TESTS = ("original", "moved", "shifted", "train")
LONG = ("sees", "loss", "peak MiB", "seeds")  # columns that a terminal has no room for
PREPARED = ("absorb_omega", "canonical_phase", "normalize")  # fields of InputConfig
WIDE = 4  # panels side by side


def classify_table(runs: Sequence[Run], *, short: bool = False) -> Table:
    """A line per model: accuracy in percent on every set, cross-entropy on the test networks, size and time.

    ``short``: with the columns that fit into 80 characters.
    """
    columns: dict[str, Callable[[Run], float]] = {
        "train": lambda run: 100 * _metric(run, "train"),
        "test": lambda run: 100 * _metric(run, "original"),
        "moved": lambda run: 100 * _metric(run, "moved"),
        "shifted": lambda run: 100 * _metric(run, "shifted"),
        "loss": lambda run: _metric(run, "original", "loss"),
    }
    notes = [
        "Accuracy in percent, and cross-entropy on the test networks, as mean ± standard error over seeds; epochs are "
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
    table = model_table(f"Images of {subjects} classified by their networks", runs, columns, digits=2, notes=notes)
    return _without(table, LONG) if short else table


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


def _without(table: Table, names: Sequence[str]) -> Table:
    kept = [i for i, name in enumerate(table.header) if name not in names]
    return replace(
        table,
        header=tuple(table.header[i] for i in kept),
        cells=tuple(tuple(line[i] for i in kept) for line in table.cells),
        text_columns=sum(i < table.text_columns for i in kept),
    )


def write_classify_report(runs: Sequence[Run], folder: str | Path) -> dict[str, Path]:
    """Write ``table.md``, ``results.json``, ``confusion.png`` and ``learning.png``.

    Returns:
        ``{"table": path, "results": path, "confusion": path, "learning": path}``.
    """
    if not runs:
        raise ValueError("no finished runs to report on")
    folder = Path(folder)
    names = {"table": "table.md", "results": "results.json", "confusion": "confusion.png", "learning": "learning.png"}
    paths = {key: folder / name for key, name in names.items()}
    results: dict[str, Any] = {
        "rows": [_row(model, group) for (_, _, model), group in by_model(runs).items()],
        "runs": [run.settings.name for run in runs],
        "settings": _distinct([asdict(replace(run.settings, seed=0)) for run in runs]),
        "networks": {run.settings.subject: run.networks for run in runs},
        "environments": _distinct([run.environment for run in runs]),
    }
    write_atomically(paths["table"], classify_table(runs).markdown().encode())
    write_atomically(paths["results"], (json.dumps(results, indent=1, allow_nan=False) + "\n").encode())
    write_atomically(paths["confusion"], draw_confusion(runs))
    write_atomically(paths["learning"], draw_learning(runs))
    return paths


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
        "accuracy": {name: asdict(Spread.of(_metric(run, name) for run in group)) for name in TESTS},
        "loss": {name: asdict(Spread.of(_metric(run, name, "loss") for run in group)) for name in TESTS},
        "best_epoch": [run.best_epoch for run in group],
        "parameters": first.parameters,
        "seconds_per_epoch": asdict(Spread.of(run.seconds_per_epoch for run in group)),
        "seconds": asdict(
            Spread.of(math.fsum(e["seconds"] + e["validation_seconds"] for e in run.history) for run in group)
        ),
        "peak_bytes": max(run.peak_bytes for run in group),
        "confusion": _confusion(group).tolist(),
    }


def _confusion(group: Sequence[Run]) -> Any:
    """Counts ``(true class, predicted class)`` over all seeds."""
    return np.sum([run.extra["confusion"] for run in group], axis=0)


def draw_confusion(runs: Sequence[Run]) -> bytes:
    """One panel a model: of the test images of every class (rows), the shares that were taken for every class. PNG."""
    groups = list(by_model(runs).values())
    wide = min(len(groups), WIDE)
    high = math.ceil(len(groups) / wide)
    figure, axes = _panels(wide, high, 2.9, 3.1)
    for ax, group in zip(axes, groups, strict=False):
        counts = _confusion(group)
        shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
        ax.imshow(shares, vmin=0, vmax=1, cmap="Blues")
        classes = len(counts)
        for (i, j), share in np.ndenumerate(shares):
            if share >= 0.005 and classes <= 10:
                color = "white" if share > 0.5 else "#303030"
                ax.text(j, i, f"{100 * share:.0f}", ha="center", va="center", fontsize=5.5, color=color)
        ax.set_xticks(range(classes) if classes <= 10 else [])
        ax.set_yticks(range(classes) if classes <= 10 else [])
        ax.tick_params(labelsize=7, length=0)
        accuracy = Spread.of(100 * _metric(run, "original") for run in group)
        _title(ax, group[0], f": {accuracy.show(1)} %")
    figure.supxlabel("predicted class (numbers: percent of the row)", fontsize=9)
    figure.supylabel("class of the image", fontsize=9)
    return _png(figure)


def draw_learning(runs: Sequence[Run]) -> bytes:
    """Training loss and validation accuracy by epoch, the mean over seeds with all runs in the background. PNG."""
    figure, (loss, accuracy) = _panels(2, 1, 5.0, 4.2)
    labels = []
    for i, group in enumerate(by_model(runs).values()):
        color, marker = PALETTE[i % len(PALETTE)], MARKERS[i % len(MARKERS)]
        bold = group[0].invariant_under == "group"
        style = {"linewidth": 2.2 if bold else 1.3, "linestyle": "-" if bold else "--"}
        for ax, value in ((loss, _train_loss), (accuracy, _val_accuracy)):
            curves = [[value(epoch) for epoch in run.history] for run in group]
            shortest = min(map(len, curves))
            mean = np.mean([curve[:shortest] for curve in curves], axis=0)
            ax.plot(range(1, shortest + 1), mean, color=color, marker=marker, markersize=4, **style)  # type: ignore[arg-type]
            for curve in curves if len(curves) > 1 else []:
                ax.plot(range(1, len(curve) + 1), curve, color=color, alpha=0.25, linewidth=0.8)
        labels.append(group[0])
    for ax, text in ((loss, "training loss"), (accuracy, "validation accuracy (%)")):
        ax.set_xlabel("epoch", fontsize=9)
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        ax.set_ylabel(text, fontsize=9)
        ax.spines[["top", "right"]].set_visible(False)
        ax.grid(axis="y", color="#E5E5E5", linewidth=0.8)
    legend = figure.legend(
        [line for line in loss.get_lines() if line.get_marker() != "None"], [run.label for run in labels],
        loc="outside right upper", fontsize=9, frameon=False, handlelength=3,
    )  # fmt: skip
    for text, run in zip(legend.get_texts(), labels, strict=True):
        text.set_fontweight("bold" if run.invariant_under == "group" else "normal")
    figure.supxlabel("Bold: invariant to sign flips and permutations.", fontsize=8.5)
    return _png(figure)


def _train_loss(epoch: dict[str, Any]) -> float:
    return float("nan") if epoch["train_loss"] is None else float(epoch["train_loss"])


def _val_accuracy(epoch: dict[str, Any]) -> float:
    return 100 * float(epoch["metrics"]["accuracy"])


def _title(ax: Axes, run: Run, more: str) -> None:
    ax.set_title(run.label + more, fontsize=8.5, fontweight="bold" if run.invariant_under == "group" else "normal")


def _panels(wide: int, high: int, width: float, height: float) -> tuple[Figure, list[Axes]]:
    """Empty panels of this size in inches; those that are left over stay invisible until drawn on."""
    figure = Figure(figsize=(width * wide + (1.9 if high == 1 else 0), height * high + 0.3), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(high, wide, squeeze=False).flatten().tolist()


def _png(figure: Figure) -> bytes:
    for ax in figure.axes:
        ax.set_visible(ax.has_data())
    png = BytesIO()
    figure.savefig(png, format="png", dpi=130, metadata={"Software": None})
    return png.getvalue()
