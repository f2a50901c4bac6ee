"""Figures of trained models, and how well networks that are images show these."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from nfn_monomial.benchmarks.data.sirens import InrCorpus
from nfn_monomial.benchmarks.train.runs import Run
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.tools.report import Report, Table, look, panels

from .tables import by_model, over_seeds, steps_per_epoch

__all__ = ["draw_learning", "draw_reconstructions", "legend_beside", "name_lines", "report_on_fits", "stroke"]

COLUMNS = 10  # reconstructions side by side
BESIDE = 1.9  # inches beside the panels, for a legend or for names of lines
NAME_GAP = 0.055  # between names of lines, as a share of the panel's height
NAME_AWAY = 0.05  # of them from the panel, as a share of its width
NAME_HIGH = 0.21  # inches that a model's name needs there
LEVEL_COLOR = "#7F7F7F"


def stroke(invariant: bool) -> dict[str, Any]:
    """Lines of models that are invariant to the whole group are bold, the others' are dashed."""
    return {"linewidth": 2.4 if invariant else 1.4, "linestyle": "-" if invariant else "--"}


def legend_beside(figure: Figure, handles: Sequence[Artist], bold: Sequence[bool]) -> None:
    """Puts the legend beside the panels, which have no room for so many names; some names are bold."""
    high = NAME_HIGH * len(handles) + 0.6
    figure.set_size_inches(figure.get_figwidth() + BESIDE, max(figure.get_figheight(), high))
    legend = figure.legend(handles=handles, loc="outside right upper", fontsize=9, frameon=False, handlelength=3)
    for text, invariant in zip(legend.get_texts(), bold, strict=True):
        text.set_fontweight("bold" if invariant else "normal")


def name_lines(ax: Axes, lines: Mapping[str, tuple[float, str, bool]], ends: Mapping[str, float] = {}) -> None:
    """Writes the names of lines where they end, on the right, apart from one another.

    Args:
        ax: with its final vertical range.
        lines: name -> height of its end, colour, and whether it is bold.
        ends: name -> where its line ends, if that is not the panel's edge: then the line to its name is dotted.
    """
    low, high = ax.get_ylim()
    gap = min(NAME_GAP, 1 / max(len(lines), 1)) * (high - low)
    heights: dict[str, float] = {}
    for name in sorted(lines, key=lambda name: lines[name][0]):  # from the lowest on, each above the one before
        heights[name] = max(lines[name][0], max(heights.values(), default=-np.inf) + gap)
    top = high
    for name in sorted(heights, key=lambda name: -heights[name]):  # and down again, where they left the panel
        heights[name] = min(heights[name], top)
        top = heights[name] - gap
    left, right = ax.get_xlim()
    for name, (value, color, bold) in lines.items():
        ax.annotate(
            name, (ends.get(name, right), value), (right + NAME_AWAY * (right - left), heights[name]), color=color,
            fontsize=8.5, fontweight="bold" if bold else "normal", va="center", annotation_clip=False,
            arrowprops={"arrowstyle": "-", "linestyle": ":" if name in ends else "-", "color": color, "alpha": 0.6,
                        "linewidth": 0.9 if name in ends else 0.6, "shrinkA": 1, "shrinkB": 0, "relpos": (0, 0.5)},
        )  # fmt: skip


def draw_learning(
    runs: Sequence[Run], curves: Mapping[str, Callable[[dict[str, Any]], float]], level: tuple[str, float] | None = None
) -> Figure:
    """Draws learning curves: a panel for each, a line for every model, the mean over seeds; single runs are faint.

    Over steps, as models of different batches and numbers of networks have epochs of different lengths. On the last
    panel, models are named where their lines end.

    Args:
        runs: of one experiment, see `by_model`.
        curves: label of the vertical axis -> value of an epoch, as a run's history has it.
        level: name and value of a horizontal line.
    """
    groups = by_model(runs)
    several = len({key[:2] for key in groups}) > 1
    high = max(4.2, NAME_HIGH * (len(groups) + 1) + 1)
    figure, axes = panels(1, len(curves), (5.0 * len(curves) + BESIDE, high))
    for ax, (label, value) in zip(axes, curves.items(), strict=True):
        names: dict[str, tuple[float, str, bool]] = {}
        ends: dict[str, float] = {}
        for i, (key, group) in enumerate(groups.items()):
            validated = [[epoch for epoch in run.history if epoch["metrics"]] for run in group]
            lines = [[value(epoch) for epoch in epochs] for epochs in validated]
            steps = [epoch["number"] * steps_per_epoch(group[0]) for epoch in max(validated, key=len)]
            shortest = min(map(len, lines))
            mean = np.mean([curve[:shortest] for curve in lines], axis=0)
            name = ", ".join([group[0].label, *key[:2] * several])
            bold = group[0].invariant_under == "group"
            ax.plot(steps[:shortest], mean, label=name, **look(i), **stroke(bold))
            for curve in lines if len(lines) > 1 else ():
                ax.plot(steps[: len(curve)], curve, color=look(i)["color"], alpha=0.25, linewidth=0.8)
            if len(finite := np.flatnonzero(np.isfinite(mean))):
                names[name] = float(mean[finite[-1]]), look(i)["color"], bold
                ends[name] = steps[finite[-1]]
        ax.set(xlabel="training steps", ylabel=label)
        ax.xaxis.set_major_locator(MaxNLocator(5, integer=True, min_n_ticks=1))
        ax.xaxis.set_major_formatter("{x:,.0f}")
        if level:
            ax.axhline(level[1], color=LEVEL_COLOR, linewidth=0.8, linestyle=":", label=level[0])
            names[level[0]] = level[1], LEVEL_COLOR, False
    name_lines(axes[-1], names, ends)
    words = over_seeds(runs).replace("mean ± standard error", "means")
    words += "; faint: single runs" * any(len(group) > 1 for group in groups.values())
    figure.supxlabel(f"Bold: invariant to the whole group; {words}.", fontsize=8.5)
    return figure


def report_on_fits(corpus: InrCorpus, psnr: Callable[[Tensor, Tensor], Tensor]) -> Report:
    """Reports how well the networks of a corpus that ``inr make`` made show the images: ``psnr`` as for the figure."""
    made, config = corpus.info["made"], corpus.info["config"]
    sides = [len(part) for part in (corpus.train, corpus.val, corpus.test)]
    levels = [f"{made['psnr'][level]:.1f}" for level in ("min", "median", "max")]
    table = Table(
        "INRs fitted to images: peak signal-to-noise ratio in dB",
        ("images", "network", "train", "val", "test", "fits", "steps", "min", "median", "max"),
        (
            (
                corpus.name,
                "-".join(map(str, corpus.siren.sizes)),
                *map(str, (*sides, config["fits"], config["steps"])),
                *levels,
            ),
        ),
        text_columns=2,
        notes=(
            f"Of every network against its image; sin({corpus.siren.omega_0:g} (W x + b)); fits: networks of each "
            "training image; steps: of Adam for each network.",
        ),
    )
    numbers = {"networks": sum(sides), "psnr": made["psnr"], "environments": [made["environment"]]}
    return Report([table], numbers, {"reconstructions.png": draw_reconstructions(corpus, psnr)})


def draw_reconstructions(corpus: InrCorpus, psnr: Callable[[Tensor, Tensor], Tensor]) -> Figure:
    """Draws test images (first row) and their reconstructions (second), from the worst to the best of the split.

    Args:
        corpus: networks and the images that they were fitted to.
        psnr: reconstructions and images ``(N, C, H, W)`` -> decibels ``(N,)``.

    Raises:
        ValueError: if the images of the corpus are not known.
    """
    if corpus.pixels is None:
        raise InvalidValueError(f"{corpus.name}: the images that its networks were fitted to are not known")
    part = corpus.test
    pixels = corpus.pixels[part.image]
    shown = corpus.siren.render(part.tensors)
    decibels = psnr(shown, pixels)
    order = decibels.argsort()
    chosen = order[torch.linspace(0, len(order) - 1, min(COLUMNS, len(order))).round().long()].tolist()
    figure, axes = panels(2, len(chosen), (0.95 * len(chosen) + 0.3, 2.6), grid=False)
    for ax, image in zip(axes, (*pixels[chosen], *shown[chosen]), strict=True):
        ax.imshow(image.clamp(0, 1).movedim(0, -1).squeeze(-1).numpy(), cmap="gray", vmin=0, vmax=1)
        ax.set(xticks=[], yticks=[])
    for ax, network in zip(axes[len(chosen) :], chosen, strict=True):
        ax.set_xlabel(f"{decibels[network]:.1f} dB", fontsize=8)
    axes[0].set_ylabel("image", fontsize=8)
    axes[len(chosen)].set_ylabel("network", fontsize=8)
    title = f"{corpus.name}: {len(chosen)} of {len(part)} test networks, worst to best"
    figure.suptitle(f"{title}; median {decibels.median():.1f} dB", fontsize=9)
    return figure
