"""The pictures of these commands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure

from nfn_monomial.benchmarks.report.figures import look, panels

if TYPE_CHECKING:
    from .alignments import Line

__all__ = ["draw_lines"]


def draw_lines(lines: Sequence[Line], places: Sequence[float], measured: str) -> Figure:
    """Loss, and accuracy where there is one, on the line between networks, for every way to move them."""
    accuracies = lines[0].scores[0].accuracy is not None
    figure, axes = panels(1, 1 + accuracies, (5.2 * (1 + accuracies), 3.8))
    for i, line in enumerate(lines):
        style: dict[str, Any] = look(i) | {"linestyle": "--" if "," in line.method else "-", "label": line.method}
        axes[0].plot(places, [score.loss for score in line.scores], **style)
        if accuracies:
            axes[1].plot(places, [score.accuracy for score in line.scores], **style)
    axes[0].set(xlabel="share of the others", ylabel="loss")
    if accuracies:
        axes[1].set(xlabel="share of the others", ylabel="accuracy")
    axes[0].legend(frameon=False, fontsize=9)
    figure.supxlabel(f"Loss: {measured}", fontsize=8)
    return figure
