"""Results of editing INRs: the table, the paper's last figure (images side by side), and learning curves."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from nfn_monomial.benchmarks.report.figures import draw_learning
from nfn_monomial.benchmarks.report.results import record_of
from nfn_monomial.benchmarks.report.tables import Mean, by_model, model_table, over_seeds
from nfn_monomial.benchmarks.train.runs import Run, RunStore
from nfn_monomial.tools.report import Report, Table, panels

from . import Study
from .edit import edit_inrs, require_models

__all__ = ["STUDY", "draw_edits", "edit_report", "edit_table"]

NO_EDIT = "no edit"
DIGITS = 4  # of errors


def edit_report(runs: Sequence[Run], store: RunStore) -> Report:
    """Table, images and learning curves of finished runs, which the store has.

    Args:
        runs: of one task and configuration, see `edit_inrs`.
        store: that has them.

    Raises:
        ValueError: if there are no runs, or runs that would share a line differ in more than their seed.
    """
    record, first = record_of(runs), runs[0]
    results: dict[str, Any] = {
        "task": first.settings.options["task"],
        "subject": first.settings.subject,
        "unedited": first.extra["unedited"],
        "rows": [_row(group) for group in by_model(runs).values()],
        **record,
    }
    curve = {"mean squared error on validation networks": lambda epoch: float(epoch["metrics"]["mse"])}
    learning = draw_learning(runs, curve, (NO_EDIT, first.extra["unedited"]["mse"]))
    learning.axes[0].set_title(f"{first.settings.options['task']}, {first.settings.subject}", fontsize=10)
    return Report([edit_table(runs)], results, {"edits.png": draw_edits(runs, store), "learning.png": learning})


def _mse(run: Run, test: str) -> float:
    return next(t.metrics["mse"] for t in run.tests if t.name == test)


def edit_table(runs: Sequence[Run]) -> Table:
    """A line per editor, with its test errors; above them what doing nothing costs."""
    first = runs[0]
    notes = [
        "Mean squared error between the edited network's image and the ground truth, pixels in [0, 1]; in [-1, 1], as "
        "presumably in the paper, it is 4 times as much. moved: the same test networks, moved by permutations and "
        "sign flips that change no image.",
        "invariant: whether the edited image stays when the network is moved, by permutations of hidden neurons and "
        f"sign flips (yes), by permutations (perm. only), or not (no). {over_seeds(runs).capitalize()}; epochs are "
        "selected on validation networks. s/epoch: the pass over the training set. peak MiB: parameters, optimiser "
        "state and one training step.",
    ]
    if lost := [f"{run.label} (seed {run.settings.seed})" for run in runs if run.diverged]:
        notes.append(f"The loss became NaN or infinite, which ended the training early: {', '.join(lost)}.")
    what = f"{first.settings.subject} INRs, {first.settings.options['task']}"
    table = model_table(
        f"Editing {what}: mean squared error on {first.networks['test']} test networks",
        runs,
        {"MSE": lambda run: _mse(run, "original"), "MSE moved": lambda run: _mse(run, "moved")},
        digits=DIGITS,
        notes=notes,
    )
    cost = f"{first.extra['unedited']['mse']:.{DIGITS}f}"
    nothing = (NO_EDIT, "-", "yes", cost, cost, "0", "-", "-", "-")
    return replace(table, cells=(nothing, *table.cells), bold=frozenset(i + 1 for i in table.bold))


def draw_edits(runs: Sequence[Run], store: RunStore) -> Figure:
    """A row per test network, and one for the first of them moved; original, target, every editor's image.

    Below every image its mean squared error. Of several seeds the first is shown.
    """
    groups = [group[0] for group in by_model(runs).values()]
    kept = [store.artifacts(run.settings) for run in groups]
    unedited, target = kept[0]["unedited"], kept[0]["target"]
    columns = {"original INR": unedited, "target": target}
    columns |= {run.label: found["edited"] for run, found in zip(groups, kept, strict=True)}
    columns = {label: torch.cat([images, images[:1]]) for label, images in columns.items()}
    for run, found in zip(groups, kept, strict=True):
        columns[run.label][-1] = found["moved"][0]
    target = columns["target"]
    rows, wide = len(target), len(columns)
    figure, axes = panels(rows, wide, (1.15 * wide + 0.4, 1.38 * rows + 0.5), grid=False)
    for j, (label, images) in enumerate(columns.items()):
        axes[j].set_title(label.replace(" ", "\n", 1), fontsize=8)
        for i, ax in enumerate(axes[j::wide]):
            _show(ax, images[i])
            if label != "target":
                ax.set_xlabel(f"{_error(images[i], target[i]):.{DIGITS}f}", fontsize=7, labelpad=2)
    axes[-wide].set_ylabel("moved", fontsize=8)
    settings = runs[0].settings
    figure.suptitle(f"{settings.options['task']}, {settings.subject}: mean squared errors below the images", fontsize=9)
    figure.supxlabel("Last row: the first network again, moved by permutations and sign flips.", fontsize=8)
    return figure


def _show(ax: Axes, image: Tensor) -> None:
    pixels = torch.nan_to_num(image).clamp(0, 1).movedim(0, -1).numpy()
    ax.imshow(pixels[..., 0] if pixels.shape[-1] == 1 else pixels, cmap="gray", vmin=0, vmax=1)
    ax.set(xticks=[], yticks=[])


def _error(image: Tensor, target: Tensor) -> float:
    return float((image - target).double().square().mean())


def _row(group: Sequence[Run]) -> dict[str, Any]:
    first = group[0]
    return {
        "model": first.settings.model,
        "label": first.label,
        "invariant": first.invariant_under,
        "seeds": [run.settings.seed for run in group],
        "mse": {t.name: asdict(Mean.of(_mse(run, t.name) for run in group)) for t in first.tests},
        "parameters": first.parameters,
        "seconds_per_epoch": statistics.fmean(run.seconds_per_epoch for run in group),
    }


STUDY = Study(edit_inrs, lambda runs, config, store: edit_report(runs, store), require_models)
