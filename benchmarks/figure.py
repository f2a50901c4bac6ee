"""The paper's Figure 1: Kendall's tau against the size of the scales, one line per model, a panel per train set.

Activations whose group does not scale (tanh) have a panel of bars instead: test networks as they are, and moved.
Panels of one activation share their vertical range.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from .report import Row

__all__ = ["draw_figure"]

# Okabe and Ito's palette, which people with any form of colour blindness can tell apart; yellow is too light for lines.
PALETTE = ("#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00", "#CC79A7", "#000000", "#7F7F7F")
MARKERS = "osv^DPX*"
GAP = 0.048  # smallest distance of two labels, as a share of the height of the axes


def draw_figure(rows: Sequence[Row]) -> bytes:
    """The figure as PNG."""
    models = list(dict.fromkeys(row.model for row in rows))
    styles = {m: (PALETTE[i % len(PALETTE)], MARKERS[i % len(MARKERS)]) for i, m in enumerate(models)}
    panels: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        panels.setdefault((row.activation, row.train_set), []).append(row)
    wide = min(len(panels), 2)
    high = math.ceil(len(panels) / wide)
    figure = Figure(figsize=(5.4 * wide, 3.9 * high + 0.3), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(high, wide, squeeze=False).flatten().tolist()
    for ax in axes[len(panels) :]:
        ax.set_visible(False)
    for ax, ((activation, train_set), group) in zip(axes, panels.items(), strict=False):
        if _scaled(group):
            _lines(ax, group, styles)
        else:
            _bars(ax, group, styles)
        ax.set_title(f"{activation} networks, trained on {train_set} weights", fontsize=10)
        ax.spines[["top", "right"]].set_visible(False)
        ax.grid(axis="y", color="#E5E5E5", linewidth=0.8)
        ax.set_axisbelow(True)
        ax.set_ylabel("Kendall's tau on test networks", fontsize=9)
    seeds = max(len(row.seeds) for row in rows)
    figure.supxlabel(
        f"Bold: invariant to the whole group. Mean and standard deviation over {seeds} seeds; higher is better.",
        fontsize=8.5,
    )
    for ax, ((activation, _), group) in zip(axes, panels.items(), strict=False):
        shared = [other for other, (name, _) in zip(axes, panels, strict=False) if name == activation]
        limits = [value for other in shared for value in other.get_ylim()]
        ax.set_ylim(min(limits), max(limits))
        if _scaled(group):
            _label_ends(ax, group, styles)
    png = io.BytesIO()
    figure.savefig(png, format="png", dpi=130, metadata={"Software": None})
    return png.getvalue()


def _lines(ax: Axes, rows: Sequence[Row], styles: dict[str, tuple[str, str]]) -> None:
    for row in rows:
        color, marker = styles[row.model]
        x = _log_scales(row)
        mean = [row.tau[name].mean for name in row.scales]
        std = [row.tau[name].std or 0.0 for name in row.scales]
        invariant = row.invariant == "yes"
        ax.plot(
            x, mean, color=color, marker=marker, markersize=5,
            linewidth=2.4 if invariant else 1.4, linestyle="-" if invariant else "--",
        )  # fmt: skip
        below = [m - s for m, s in zip(mean, std, strict=True)]
        above = [m + s for m, s in zip(mean, std, strict=True)]
        ax.fill_between(x, below, above, color=color, alpha=0.18, linewidth=0)
    end = max(x)
    ax.set_xticks(x, ["0" if value == 0 else f"{value:g}" for value in x])
    ax.set_xlim(-0.15, end * 1.45)
    ax.set_xlabel("log10 of the largest scale of the test networks (0: unchanged)")


def _label_ends(ax: Axes, rows: Sequence[Row], styles: dict[str, tuple[str, str]]) -> None:
    """Names at the ends of the lines, which need no looking up in a legend; once the axes' limits are settled."""
    end = _log_scales(rows[0])[-1]
    low, high = ax.get_ylim()
    ends = [row.tau[list(row.scales)[-1]].mean for row in rows]
    for row, y, at in zip(rows, ends, _spread(ends, (high - low) * GAP), strict=True):
        color = styles[row.model][0]
        weight = "bold" if row.invariant == "yes" else "normal"
        ax.annotate(
            row.label, (end, y), (end * 1.06, at), color=color, fontsize=9, va="center", fontweight=weight,
            arrowprops={"arrowstyle": "-", "color": color, "linewidth": 0.6}, annotation_clip=False,
        )  # fmt: skip


def _log_scales(row: Row) -> list[float]:
    return [math.log10(scale) if scale is not None else 0.0 for scale in row.scales.values()]


def _scaled(rows: Sequence[Row]) -> bool:
    return any(scale is not None for scale in rows[0].scales.values())


def _spread(heights: Sequence[float], gap: float) -> list[float]:
    """The same heights, moved apart to at least ``gap``, as little as a few rounds of relaxation need."""
    order = sorted(range(len(heights)), key=lambda i: heights[i])
    at = [heights[i] for i in order]
    for _ in range(200):
        for i in range(1, len(at)):
            missing = gap - (at[i] - at[i - 1])
            if missing > 0:
                at[i - 1], at[i] = at[i - 1] - missing / 2, at[i] + missing / 2
    spread = [0.0] * len(at)
    for place, i in enumerate(order):
        spread[i] = at[place]
    return spread


def _bars(ax: Axes, rows: Sequence[Row], styles: dict[str, tuple[str, str]]) -> None:
    names = list(rows[0].scales)
    width = 0.8 / len(names)
    for i, row in enumerate(rows):
        color = styles[row.model][0]
        for j, name in enumerate(names):
            value = row.tau[name]
            x = i + (j - (len(names) - 1) / 2) * width
            ax.bar(
                x, value.mean, width * 0.92, yerr=value.std, capsize=2.5, error_kw={"linewidth": 1},
                color=color, alpha=1.0 if j == 0 else 0.45, hatch=None if j == 0 else "///", edgecolor="white",
            )  # fmt: skip
    ax.axhline(0, color="#404040", linewidth=0.8)
    ax.set_xticks(range(len(rows)), [row.label for row in rows], rotation=25, ha="right", fontsize=9)
    for label, row in zip(ax.get_xticklabels(), rows, strict=True):
        label.set_fontweight("bold" if row.invariant == "yes" else "normal")
    ax.set_xlabel(f"solid: {names[0]} test networks; hatched: {', '.join(names[1:])}")
