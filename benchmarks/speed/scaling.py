"""How the cost of message passing grows with the number of edges: a figure over widths of an MLP."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from nfn_monomial import WeightSpace
from nfn_monomial.benchmarks.report.figures import MARKERS, PALETTE

from .graphs import DENSE, GRAPH, PNA, SECONDS, contenders, too_large
from .layers import race

__all__ = ["Point", "Scaling", "bench_scaling"]

WIDTHS = (16, 32, 64, 128, 256, 512)
LARGE = 3  # so many of the largest sizes count for the slopes; at small ones calls cost more than arithmetic


@dataclass(frozen=True)
class Point:
    """A training step of one contender on a batch of MLPs ``2-width-width-1``; ``edges`` are those of one of them."""

    contender: str
    width: int
    edges: int
    step_ms: float
    peak_bytes: int


@dataclass(frozen=True)
class Scaling:
    """Points of all contenders, and what was left out: ``skipped`` are lines of text."""

    points: list[Point]
    batch: int
    channels: int
    skipped: list[str]

    def slopes(self) -> dict[str, dict[str, float]]:
        """Contender -> slopes of time and of memory over edges, log-log, at the largest sizes; linear growth is 1."""
        found = {}
        for name, points in self.lines().items():
            large = sorted(points, key=lambda p: p.edges)[-LARGE:]
            edges = np.log([p.edges for p in large])
            values: dict[str, list[float]] = {
                "time": [p.step_ms for p in large],
                "memory": [p.peak_bytes for p in large],
            }
            if len(large) > 1:
                found[name] = {what: float(np.polyfit(edges, np.log(y), 1)[0]) for what, y in values.items()}
        return found

    def lines(self) -> dict[str, list[Point]]:
        """Contender -> its points."""
        return {name: [p for p in self.points if p.contender == name] for name in {p.contender: 0 for p in self.points}}

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return asdict(self) | {"slopes": self.slopes()}

    def as_markdown(self) -> str:
        """The slopes as a table."""
        lines = [
            f"A training step over MLPs 2-n-n-1, batch {self.batch}, {self.channels} channels: slopes over the number "
            f"of edges (log-log, {LARGE} largest sizes); 1 is linear growth.",
            "",
            "| layer | time | memory |",
            "|---|---|---|",
        ]
        lines += [f"| {name} | {s['time']:.2f} | {s['memory']:.2f} |" for name, s in self.slopes().items()]
        return "\n".join([*lines, *(["", *self.skipped] if self.skipped else [])])

    def draw(self) -> bytes:
        """The figure as PNG: time and memory over edges."""
        figure = Figure(figsize=(10.8, 4.2), layout="constrained")
        FigureCanvasAgg(figure)
        slopes = self.slopes()
        panels: dict[str, tuple[str, Callable[[Point], float]]] = {
            "time": ("milliseconds of a training step", lambda p: p.step_ms),
            "memory": ("peak MiB of a training step", lambda p: p.peak_bytes / 2**20),
        }
        for ax, (what, (label, value)) in zip(figure.subplots(1, 2), panels.items(), strict=True):
            for i, (name, points) in enumerate(self.lines().items()):
                slope = f" (slope {slopes[name][what]:.2f})" if name in slopes else ""
                x, y = [p.edges for p in points], [value(p) for p in points]
                ax.loglog(x, y, color=PALETTE[i], marker=MARKERS[i], markersize=5, label=name + slope)
            edges = [p.edges for p in self.points]
            low = min(value(p) / p.edges for p in self.points)
            ax.loglog(
                [min(edges), max(edges)], [low * min(edges), low * max(edges)], "--", color="#7F7F7F", label="linear"
            )
            ax.set_xlabel("edges of one network")
            ax.set_ylabel(label)
            ax.spines[["top", "right"]].set_visible(False)
            ax.grid(color="#E5E5E5", linewidth=0.8)
            ax.legend(fontsize=8, frameon=False)
        figure.suptitle(
            f"MLPs 2-n-n-1, batch {self.batch}, {self.channels} channels; slopes at the {LARGE} largest sizes",
            fontsize=10,
        )
        png = io.BytesIO()
        figure.savefig(png, format="png", dpi=130, metadata={"Software": None})
        return png.getvalue()


def bench_scaling(
    widths: Sequence[int] = WIDTHS,
    batch: int = 1,
    channels: int = 16,
    repeats: int = 10,
    device: str = "cpu",
    progress: Callable[[str], None] = lambda _: None,
    seconds: float = SECONDS,
) -> Scaling:
    """Time training steps on MLPs ``2-n-n-1`` of all widths n; contenders take turns.

    A width at which a contender would take more than half of the free memory is left out, see `too_large`.

    Args:
        widths: the n.
        batch: number of networks.
        channels: of all features.
        repeats: timed repetitions, after three that are not counted.
        device: ``"cpu"`` or ``"cuda"``.
        progress: called with a line of text before each width.
        seconds: after so many a width has no further repetition.
    """
    points: list[Point] = []
    skipped: list[str] = []
    per_edge = dict.fromkeys((DENSE, GRAPH, PNA), 0.0)  # bytes, as the widths before had them
    for width in sorted(widths):
        progress(f"MLP 2-{width}-{width}-1, batch {batch}")
        space = WeightSpace.mlp([2, width, width, 1], "relu")
        edges = sum(math.prod(shape) for name, shape in space.shapes().items() if name.startswith("weight"))
        ready = {}
        for name, make in contenders(space, batch, channels, device):
            if name not in per_edge:
                continue
            if reason := too_large(per_edge[name] * edges, device):
                skipped.append(f"{name} left out at n = {width}: {reason}.")
            else:
                ready[name] = make()
        ms = race({name: c.step for name, c in ready.items()}, repeats, device, seconds)
        for name, contender in ready.items():
            points.append(Point(name, width, edges, ms[name], contender.memory()))
            per_edge[name] = points[-1].peak_bytes / edges
    return Scaling(points, batch, channels, skipped)
