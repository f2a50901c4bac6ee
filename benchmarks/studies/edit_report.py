"""Results of editing INRs: the table, the paper's last figure (images side by side), learning curves, and JSON."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from nfn_monomial.benchmarks.files import write_atomically
from nfn_monomial.benchmarks.report.figures import PALETTE
from nfn_monomial.benchmarks.report.tables import Spread, Table, by_model, model_table
from nfn_monomial.benchmarks.train.runs import Run, RunStore

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw_edits", "draw_learning", "edit_table", "write_report"]

NO_EDIT = "no edit"
DIGITS = 4  # of errors


def _mse(run: Run, test: str) -> float:
    return next(t.metrics["mse"] for t in run.tests if t.name == test)


def edit_table(runs: Sequence[Run]) -> Table:
    """A line per editor, test errors as mean ± standard error over seeds; above them what doing nothing costs."""
    first = runs[0]
    notes = [
        "Mean squared error between the edited network's image and the ground truth, pixels in [0, 1]; in [-1, 1], as "
        "presumably in the paper, it is 4 times as much. moved: the same test networks, moved by permutations and "
        "sign flips that change no image.",
        "invariant: whether the edited image stays when the network is moved, by permutations of hidden neurons and "
        "sign flips (yes), by permutations (perm. only), or not (no). Mean ± standard error over seeds; epochs are "
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


def draw_edits(runs: Sequence[Run], store: RunStore) -> bytes:
    """PNG: a row per test network, and one for the first of them moved; original, target, every editor's image.

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
    figure = Figure(figsize=(1.15 * wide + 0.4, 1.38 * rows + 0.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, wide, squeeze=False)
    for j, (label, images) in enumerate(columns.items()):
        axes[0, j].set_title(label.replace(" ", "\n", 1), fontsize=8)
        for i in range(rows):
            _show(axes[i, j], images[i])
            if label != "target":
                axes[i, j].set_xlabel(f"{_error(images[i], target[i]):.4f}", fontsize=7, labelpad=2)
    axes[-1, 0].set_ylabel("moved", fontsize=8)
    settings = runs[0].settings
    figure.suptitle(f"{settings.options['task']}, {settings.subject}: mean squared errors below the images", fontsize=9)
    figure.supxlabel("Last row: the first network again, moved by permutations and sign flips.", fontsize=8)
    return _png(figure)


def _show(ax: Axes, image: Tensor) -> None:
    pixels = torch.nan_to_num(image).clamp(0, 1).movedim(0, -1).numpy()
    ax.imshow(pixels[..., 0] if pixels.shape[-1] == 1 else pixels, cmap="gray", vmin=0, vmax=1)
    ax.set(xticks=[], yticks=[])


def _error(image: Tensor, target: Tensor) -> float:
    return float((image - target).double().square().mean())


def draw_learning(runs: Sequence[Run]) -> bytes:
    """PNG: validation error of every editor, epoch by epoch, mean over seeds; dashed, what doing nothing costs."""
    figure = Figure(figsize=(6.6, 4.0), layout="constrained")
    FigureCanvasAgg(figure)
    ax = figure.subplots()
    for i, group in enumerate(by_model(runs).values()):
        epochs = range(min(len(run.history) for run in group))
        errors = [Spread.of(run.history[k]["metrics"]["mse"] for run in group).mean for k in epochs]
        best = group[0].invariant_under == "group"
        ax.plot(
            [k + 1 for k in epochs], errors, color=PALETTE[i % len(PALETTE)], label=group[0].label,
            linewidth=2.2 if best else 1.4, linestyle="-" if best else "--", marker="o", markersize=3,
        )  # fmt: skip
    ax.axhline(runs[0].extra["unedited"]["mse"], color="#7F7F7F", linewidth=0.8, linestyle=":", label=NO_EDIT)
    ax.set(xlabel="epoch", ylabel="mean squared error on validation networks")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_title(f"{runs[0].settings.options['task']}, {runs[0].settings.subject}", fontsize=10)
    ax.grid(axis="y", color="#E5E5E5", linewidth=0.8)
    ax.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside right upper", fontsize=8, frameon=False)
    return _png(figure)


def _png(figure: Figure) -> bytes:
    png = io.BytesIO()
    figure.savefig(png, format="png", dpi=140, metadata={"Software": None})
    return png.getvalue()


def write_report(runs: Sequence[Run], store: RunStore) -> dict[str, Path]:
    """Write ``table.md``, ``results.json``, ``edits.png`` and ``learning.png`` to the store's folder.

    Everything comes from the store, so that it can be made again without training.

    Args:
        runs: of one task and configuration, see `edit_inrs`.
        store: that has them.

    Returns:
        ``{"table": path, "results": path, "edits": path, "learning": path}``.

    Raises:
        ValueError: if there are no runs, or runs that would share a line differ in more than their seed.
    """
    if not runs:
        raise ValueError("no finished runs to report on")
    first = runs[0]
    results: dict[str, Any] = {
        "task": first.settings.options["task"],
        "subject": first.settings.subject,
        "networks": first.networks,
        "unedited": first.extra["unedited"],
        "rows": [_row(group) for group in by_model(runs).values()],
        "runs": [run.settings.name for run in runs],
        "settings": [asdict(group[0].settings) for group in by_model(runs).values()],
        "environment": first.environment,
    }
    names = {"table": "table.md", "results": "results.json", "edits": "edits.png", "learning": "learning.png"}
    paths = {key: store.folder / name for key, name in names.items()}
    write_atomically(paths["table"], edit_table(runs).markdown().encode())
    write_atomically(paths["results"], (json.dumps(results, indent=1, allow_nan=False) + "\n").encode())
    write_atomically(paths["edits"], draw_edits(runs, store))
    write_atomically(paths["learning"], draw_learning(runs))
    return paths


def _row(group: Sequence[Run]) -> dict[str, Any]:
    first = group[0]
    return {
        "model": first.settings.model,
        "label": first.label,
        "invariant": first.invariant_under,
        "seeds": [run.settings.seed for run in group],
        "mse": {t.name: asdict(Spread.of(_mse(run, t.name) for run in group)) for t in first.tests},
        "parameters": first.parameters,
        "seconds_per_epoch": math.fsum(run.seconds_per_epoch for run in group) / len(group),
    }
