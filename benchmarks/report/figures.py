"""The paper's Figure 1: Kendall's tau against the size of the scales, one line per model, a panel per train set.

Activations whose group does not scale (tanh) have a panel of bars instead: test networks as they are, moved, and
widened; in panels of lines, the widened ones stand apart on the right. Panels of one activation share their vertical
range, all share one legend.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from nfn_monomial.benchmarks.data.moves import WIDENED

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from .results import Row

__all__ = ["draw_figure"]

# Okabe and Ito's palette, which people with any form of colour blindness can tell apart; yellow is too light for lines.
PALETTE = ("#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00", "#CC79A7", "#000000", "#7F7F7F")
MARKERS = "osv^DPX*<>hpd8"  # so that models of one colour differ, too
HATCHES = (None, "////", "....")  # of bars: original, moved, widened


def draw_figure(rows: Sequence[Row]) -> bytes:
    """The figure as PNG."""
    models = list(dict.fromkeys(row.model for row in rows))
    styles = {m: (PALETTE[i % len(PALETTE)], MARKERS[i % len(MARKERS)]) for i, m in enumerate(models)}
    panels: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        panels.setdefault((row.activation, row.train_set), []).append(row)
    wide = min(len(panels), 2)
    high = math.ceil(len(panels) / wide)
    least = 0.21 * len(models) + 0.6  # inches that the legend needs
    figure = Figure(figsize=(5.2 * wide + 1.9, max(3.9 * high + 0.3, least)), layout="constrained")
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
    for ax, (activation, _) in zip(axes, panels, strict=False):
        shared = [other for other, (name, _) in zip(axes, panels, strict=False) if name == activation]
        limits = [value for other in shared for value in other.get_ylim()]
        ax.set_ylim(min(limits), max(limits))
    _legend(figure, rows, styles)
    png = io.BytesIO()
    figure.savefig(png, format="png", dpi=130, metadata={"Software": None})
    return png.getvalue()


def _legend(figure: Figure, rows: Sequence[Row], styles: dict[str, tuple[str, str]]) -> None:
    """Beside the panels: they would have no room for as many names as there are models."""
    first = {row.model: row for row in reversed(rows)}
    handles = [
        Line2D([], [], color=color, marker=marker, markersize=5, **_stroke(first[model]), label=_name(first[model]))
        for model, (color, marker) in styles.items()
    ]  # fmt: skip
    legend = figure.legend(handles=handles, loc="outside right upper", fontsize=9, frameon=False, handlelength=3)
    for text, model in zip(legend.get_texts(), styles, strict=True):
        text.set_fontweight("bold" if first[model].invariant == "yes" else "normal")


def _name(row: Row) -> str:
    return row.label if row.sees == "weights" else f"{row.label} ({row.sees})"


def _stroke(row: Row) -> dict[str, Any]:
    invariant = row.invariant == "yes"
    return {"linewidth": 2.4 if invariant else 1.4, "linestyle": "-" if invariant else "--"}


def _lines(ax: Axes, rows: Sequence[Row], styles: dict[str, tuple[str, str]]) -> None:
    end = 0.0
    for row in rows:
        color, marker = styles[row.model]
        names = [name for name in row.scales if name != WIDENED]
        x = [math.log10(row.scales[name] or 1.0) for name in names]
        mean = [row.tau[name].mean for name in names]
        std = [row.tau[name].std or 0.0 for name in names]
        ax.plot(x, mean, color=color, marker=marker, markersize=5, **_stroke(row))
        below = [m - s for m, s in zip(mean, std, strict=True)]
        above = [m + s for m, s in zip(mean, std, strict=True)]
        ax.fill_between(x, below, above, color=color, alpha=0.18, linewidth=0)
        end = max(end, *x)
    ticks = {value: "0" if value == 0 else f"{value:g}" for value in x}
    for i, row in enumerate(rows):
        if WIDENED in row.tau:
            color, marker = styles[row.model]
            at, value = end * (1.12 + 0.12 * i / len(rows)), row.tau[WIDENED]
            ax.errorbar(at, value.mean, value.std, color=color, marker=marker, markersize=5, capsize=2, linewidth=1)
            ticks[end * 1.18] = WIDENED
    ax.set_xticks(list(ticks), list(ticks.values()))
    ax.set_xlabel("log10 of the largest scale of the test networks (0: unchanged)")


def _scaled(rows: Sequence[Row]) -> bool:
    return any(scale is not None for scale in rows[0].scales.values())


def _bars(ax: Axes, rows: Sequence[Row], styles: dict[str, tuple[str, str]]) -> None:
    names = list(dict.fromkeys(name for row in rows for name in row.scales))
    width = 0.8 / len(names)
    for i, row in enumerate(rows):
        color = styles[row.model][0]
        for j, name in enumerate(names):
            if name not in row.tau:
                continue
            value = row.tau[name]
            x = i + (j - (len(names) - 1) / 2) * width
            ax.bar(
                x, value.mean, width * 0.92, yerr=value.std, capsize=2, error_kw={"linewidth": 1},
                color=color, alpha=1.0 if j == 0 else 0.45, hatch=HATCHES[j % len(HATCHES)], edgecolor="white",
            )  # fmt: skip
    ax.axhline(0, color="#404040", linewidth=0.8)
    ax.set_xticks(range(len(rows)), [row.label for row in rows], rotation=40, ha="right", fontsize=8)
    for label, row in zip(ax.get_xticklabels(), rows, strict=True):
        label.set_fontweight("bold" if row.invariant == "yes" else "normal")
    kinds = zip(("solid", "hatched", "dotted"), names, strict=False)
    ax.set_xlabel("test networks: " + ", ".join(f"{kind}: {name}" for kind, name in kinds))
