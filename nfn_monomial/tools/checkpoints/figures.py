"""The figures of the commands for checkpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from nfn_monomial.alignment import Comparison
from nfn_monomial.tools.report import PALETTE, look, panels

__all__ = ["draw_comparison", "draw_family", "draw_lines"]

RAW, ALIGNED = PALETTE[7], PALETTE[3]
KINDS = {"permutation": PALETTE[3], "scale": PALETTE[0], "sign": PALETTE[2], "rest": "#D9D9D9"}
ROW = 0.24  # inches of a layer


def draw_lines(
    losses: Mapping[str, Sequence[float]], accuracies: Mapping[str, Sequence[float]], measured: str
) -> Figure:
    """Draws loss and, if there is one, accuracy on lines of networks: method that moved them -> values from 0 to 1."""
    shown = {"loss": losses} | ({"accuracy": accuracies} if accuracies else {})
    figure, axes = panels(1, len(shown), (5.2 * len(shown), 3.8))
    for ax, (name, curves) in zip(axes, shown.items(), strict=True):
        for i, (method, values) in enumerate(curves.items()):
            style: dict[str, Any] = look(i) | {"linestyle": "--" if "," in method else "-", "label": method}
            ax.plot(np.linspace(0, 1, len(values)), values, **style)
        ax.set(xlabel="share of the others", ylabel=name)
    named, columns = axes[0].get_legend_handles_labels(), 1 + len(shown)
    figure.legend(*named, loc="outside upper center", ncols=columns, frameon=False, fontsize=9)
    figure.supxlabel(f"Loss: {measured}", fontsize=8)
    return figure


def draw_comparison(comparison: Comparison) -> Figure:
    """Draws the distances of every parameter, and the shares of the symmetries."""
    figure, axes = panels(1, 2, (10.5, max(2.6, 0.9 + ROW * len(comparison.layers))))
    names = list(comparison.layers)
    places = np.arange(len(names))
    layers = list(comparison.layers.values())
    axes[0].barh(places - 0.2, [layer.raw_l2 for layer in layers], 0.4, color=RAW, label="as they are")
    axes[0].barh(places + 0.2, [layer.aligned_l2 for layer in layers], 0.4, color=ALIGNED, label="aligned")
    axes[0].set_yticks(places, names, fontsize=8)
    axes[0].invert_yaxis()
    axes[0].set(xlabel="L2 distance")
    axes[0].legend(frameon=False, fontsize=8)
    start = 0.0
    for kind, share in comparison.explained.items():
        axes[1].bar([0], [share], 0.5, bottom=start, color=KINDS[kind], label=f"{kind} {share:.1%}")
        start += share
    axes[1].set(ylabel="share of the squared distance", xlim=(-0.5, 1.6), xticks=[], ylim=(0, 1))
    axes[1].legend(frameon=False, fontsize=8, loc="center right")
    return figure


def draw_family(
    labels: Sequence[str], distances: Sequence[Sequence[float]], merges: Sequence[Sequence[float]], kin: Any
) -> Figure:
    """Draws the tree of many networks, and the matrix of their distances in the same order, with dots for relatives."""
    from scipy.cluster.hierarchy import dendrogram

    tree = dendrogram(np.asarray(merges), no_plot=True, labels=list(labels))
    order = [int(i) for i in tree["leaves"] or ()]
    side = max(3.2, 1.2 + 0.28 * len(labels))
    figure, axes = panels(1, 2, (5.2 + 1.25 * side, side), grid=False)
    for across, along in zip(tree["icoord"], tree["dcoord"], strict=True):
        axes[0].plot(along, across, color=PALETTE[3], linewidth=1.4)
    axes[0].set_yticks([5 + 10 * i for i in range(len(order))], [labels[i] for i in order], fontsize=8)
    axes[0].set(xlabel="distance once symmetry is taken out", ylim=(0, 10 * len(order)))
    axes[0].set_xlim(left=-0.02 * max(map(max, tree["dcoord"])) or -1)  # so that joints at 0 are seen
    axes[0].invert_xaxis()
    axes[0].yaxis.tick_right()
    axes[0].spines[["top", "left"]].set_visible(False)
    matrix = np.asarray(distances)[np.ix_(order, order)]
    image = axes[1].imshow(matrix, cmap="viridis_r", vmin=0, origin="lower")
    axes[1].set_yticks(range(len(order)), [labels[i] for i in order], fontsize=8)
    axes[1].set_xticks([])
    rows, columns = np.nonzero(np.asarray(kin)[np.ix_(order, order)])
    axes[1].scatter(columns, rows, s=18, color=PALETTE[4], edgecolors="white", linewidths=0.8)
    axes[1].set(xlabel="dots: p ≤ 0.05, corrected")
    figure.colorbar(image, ax=axes[1], shrink=0.8, label="distance")
    return figure
