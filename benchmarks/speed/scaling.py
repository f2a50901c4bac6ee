"""How time and memory of a training step grow: with the width and the depth of the networks read, and with blocks.

The first two are of single layers, over the number of edges of one network. The third is of a whole model, with and
without `recompute_blocks`: memory that is not taken, and the time it costs.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from nfn_monomial import EquivariantLinear, Features, WeightSpace
from nfn_monomial.benchmarks.files import write_json
from nfn_monomial.benchmarks.report.figures import look, panels
from nfn_monomial.benchmarks.report.results import Report
from nfn_monomial.benchmarks.report.tables import MIB, Table
from nfn_monomial.benchmarks.settings.measurements import ScalingConfig
from nfn_monomial.benchmarks.train.measure import race
from nfn_monomial.benchmarks.train.runs import environment
from nfn_monomial.models import MessagePassingNFN, recompute_blocks
from nfn_monomial.testing import random_networks

from .contenders import DENSE, GRAPH, PNA, Contender, Make, contenders
from .layers import CORE
from .memory import too_large

__all__ = ["AXES", "KEPT", "RECOMPUTED", "Point", "Scaling", "measure_scaling", "scaling_report"]

AXES = ("width", "depth", "blocks")
SIZES = ("widths", "depths", "blocks")  # fields of the configuration that say how far to go on each
KEPT, RECOMPUTED = "activations kept", "activations recomputed"
LARGE = 3  # so many of the largest sizes count for the slopes; at small ones calls cost more than arithmetic


@dataclass(frozen=True)
class Point:
    """A training step of one contender.

    Attributes:
        axis: one of `AXES`.
        size: on it.
        contender: a layer, or how a model is trained.
        amount: what the cost is held against: edges of one network, or blocks.
        step_ms: median.
        peak_bytes: see `step_memory`.
        skipped: why it did not run; the last two are 0 then.
    """

    axis: str
    size: int
    contender: str
    amount: int
    step_ms: float = 0.0
    peak_bytes: int = 0
    skipped: str = ""


@dataclass(frozen=True)
class Scaling:
    """All points of a configuration."""

    points: Sequence[Point]
    config: ScalingConfig

    def lines(self, axis: str) -> dict[str, list[Point]]:
        """Contender -> its points on an axis, without those that did not run."""
        found: dict[str, list[Point]] = {}
        for p in sorted(self.points, key=lambda p: p.size):
            if p.axis == axis and not p.skipped:
                found.setdefault(p.contender, []).append(p)
        return found

    def slopes(self, axis: str) -> dict[str, tuple[float, float]]:
        """Contender -> slopes of time and of memory, log-log, at the largest sizes; linear growth is 1."""
        found = {}
        for name, points in self.lines(axis).items():
            large = points[-LARGE:]
            if len(large) > 1:
                over = np.log([p.amount for p in large])
                time, memory = (
                    float(np.polyfit(over, np.log([value(p) for p in large]), 1)[0]) for value in _VALUES.values()
                )
                found[name] = time, memory
        return found

    def slope_table(self, axis: str) -> Table:
        """Slopes, and what the largest size costs."""
        lines = self.lines(axis)
        skipped = [
            f"{p.contender} left out at {axis} {p.size}: {p.skipped}."
            for p in self.points
            if p.axis == axis and p.skipped
        ]
        return Table(
            f"A training step over {_networks(axis, self.config)}: slopes over the edges",
            ("layer", "time", "memory", f"largest {axis}", "edges", "ms", "MiB"),
            tuple(
                (
                    name, f"{time:.2f}", f"{memory:.2f}", str(last.size), f"{last.amount:,}", f"{last.step_ms:.1f}",
                    f"{last.peak_bytes / MIB:.0f}",
                )
                for name, (time, memory) in self.slopes(axis).items()
                for last in lines[name][-1:]
            ),
            notes=(f"Log-log, at the {LARGE} largest sizes; 1 is linear growth.", *skipped),
        )  # fmt: skip

    def recompute_table(self) -> Table:
        """What it brings to compute blocks' activations twice."""
        lines = self.lines("blocks")
        by_size = {p.size: p for p in lines.get(RECOMPUTED, ())}
        pairs = [(p, by_size[p.size]) for p in lines.get(KEPT, ()) if p.size in by_size]
        return Table(
            f"A training step of MessagePassingNFN, {_networks('blocks', self.config)}: activations kept or recomputed",
            ("blocks", "kept ms", "recomputed ms", "time", "kept MiB", "recomputed MiB", "memory"),
            tuple(
                (
                    str(a.size), f"{a.step_ms:.1f}", f"{b.step_ms:.1f}", f"{b.step_ms / a.step_ms:.2f}x",
                    f"{a.peak_bytes / MIB:.1f}", f"{b.peak_bytes / MIB:.1f}", f"{b.peak_bytes / a.peak_bytes:.2f}x",
                )
                for a, b in pairs
            ),
            notes=("Medians, taking turns. time, memory: recomputed, in units of kept.",),
        )  # fmt: skip

    def draw(self) -> Figure:
        """Time and memory over edges, a line of panels for width and one for depth."""
        shown = [axis for axis in AXES[:2] if self.lines(axis)]
        figure, axes = panels(len(shown), 2, (10.8, 4.0 * len(shown)))
        for i, axis in enumerate(shown):
            for j, label in enumerate(_VALUES):
                self._panel(axes[2 * i + j], axis, j, label)
        return figure

    def _panel(self, ax: Axes, axis: str, which: int, label: str) -> None:
        value, slopes, lines = _VALUES[label], self.slopes(axis), self.lines(axis)
        for i, (name, points) in enumerate(lines.items()):
            slope = f" (slope {slopes[name][which]:.2f})" if name in slopes else ""
            ax.loglog([p.amount for p in points], [value(p) for p in points], label=name + slope, **look(i))
        every = [p for points in lines.values() for p in points]
        ends = [min(p.amount for p in every), max(p.amount for p in every)]
        low = min(value(p) / p.amount for p in every)
        ax.loglog(ends, [low * n for n in ends], "--", color="#7F7F7F", label="linear")
        ax.set(xlabel="edges of one network", ylabel=label)
        ax.set_title(_networks(axis, self.config), fontsize=9)
        ax.legend(fontsize=8, frameon=False)


_VALUES: Mapping[str, Callable[[Point], float]] = {
    "milliseconds of a training step": lambda p: p.step_ms,
    "peak MiB of a training step": lambda p: p.peak_bytes / MIB,
}


def _networks(axis: str, config: ScalingConfig) -> str:
    kinds = {
        "width": "MLPs 2-n-n-1",
        "depth": f"MLPs of n layers, {config.deep_width} wide",
        "blocks": f"MLPs 2-{config.block_width}-{config.block_width}-1",
    }
    return f"{kinds[axis]}, batch {config.batch}, {config.channels} channels"


def measure_scaling(
    config: ScalingConfig, folder: Path, progress: Callable[[int, int], object] = lambda done, total: None
) -> Scaling:
    """Measure every size; contenders take turns. What is done is kept in the folder, and not done again.

    A contender that would take more than half of the free memory is left out, judged by what it took for an edge at the
    size before, see `too_large`.

    Args:
        config: see `ScalingConfig`.
        folder: for ``cells.json``.
        progress: called after every size with the numbers of sizes that are done and that there are.
    """
    path = folder / "cells.json"
    points = _kept(path, config)
    wanted = [(axis, n) for axis, sizes in _sizes(config).items() for n in sorted(sizes)]
    done = {(p.axis, p.size) for p in points}
    for place, (axis, n) in enumerate(wanted):
        if (axis, n) not in done:
            points += _cell(config, axis, n, points)
            write_json(path, {"config": asdict(config), "points": [asdict(p) for p in points]})
        progress(place + 1, len(wanted))
    return Scaling([p for p in points if (p.axis, p.size) in wanted], config)


def _sizes(config: ScalingConfig) -> dict[str, tuple[int, ...]]:
    return {axis: getattr(config, name) for axis, name in zip(AXES, SIZES, strict=True)}


def _kept(path: Path, config: ScalingConfig) -> list[Point]:
    """What an earlier run with this configuration has measured, at whatever sizes."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        before = values["config"]
        now = json.loads(json.dumps(asdict(config)))
        same = all(before[name] == value for name, value in now.items() if name not in SIZES)
        return [Point(**p) for p in values["points"]] if same else []
    except (OSError, ValueError, TypeError, LookupError):
        return []


def _cell(config: ScalingConfig, axis: str, n: int, before: Sequence[Point]) -> list[Point]:
    """All contenders at one size."""
    inner = {"width": [n, n], "depth": [config.deep_width] * (n - 1), "blocks": [config.block_width] * 2}[axis]
    space = WeightSpace.mlp([2, *inner, 1], "relu")
    edges = sum(math.prod(shape) for name, shape in space.shapes().items() if name.startswith("weight"))
    amount = n if axis == "blocks" else edges
    made = _models(config, space, n) if axis == "blocks" else _layers(config, space)
    last = {p.contender: p for p in before if p.axis == axis and not p.skipped}
    out, ready = [], {}
    for name, make in made:
        needed = last[name].peak_bytes / last[name].amount * amount if name in last else 0.0
        if reason := too_large(needed, config.device):
            out.append(Point(axis, n, name, amount, skipped=reason))
        else:
            ready[name] = make()
    ms = race({name: c.step for name, c in ready.items()}, config.repeats, config.device, config.seconds)
    return out + [Point(axis, n, name, amount, ms[name], c.memory()) for name, c in ready.items()]


def _layers(config: ScalingConfig, space: WeightSpace) -> Iterator[tuple[str, Make]]:
    def linear() -> Contender:
        x = space.pack(random_networks(space, config.batch, config.channels))
        layer = EquivariantLinear(space, config.channels, config.channels)
        inputs = [t.float() for t in x.tensors]
        return Contender(layer, inputs, lambda *t: layer(Features(x.layout, t)).tensors, config.device)

    yield CORE, linear
    made = contenders(space, config.batch, config.channels, config.device)
    yield from ((name, make) for name, make in made if name in (DENSE, GRAPH, PNA))


def _models(config: ScalingConfig, space: WeightSpace, blocks: int) -> Iterator[tuple[str, Make]]:
    def model(recomputed: bool) -> Contender:
        networks = random_networks(space, config.batch)
        net = MessagePassingNFN(space, config.channels, blocks)
        recompute_blocks(net, recomputed)

        def call(*tensors: Tensor) -> tuple[Tensor, ...]:
            return (net(dict(zip(networks, tensors, strict=True))),)

        return Contender(net, [t.float() for t in networks.values()], call, config.device)

    yield KEPT, lambda: model(recomputed=False)
    yield RECOMPUTED, lambda: model(recomputed=True)


def scaling_report(scaling: Scaling) -> Report:
    """Slopes over width and depth with the figure, and what recomputing brings."""
    axes = [axis for axis in AXES[:2] if scaling.lines(axis)]
    tables = [scaling.slope_table(axis) for axis in axes]
    tables += [scaling.recompute_table()] * bool(scaling.lines("blocks"))
    results: dict[str, Any] = {
        "environment": environment(scaling.config.device),
        "config": asdict(scaling.config),
        "points": [asdict(p) for p in scaling.points],
        "slopes": {axis: scaling.slopes(axis) for axis in axes},
    }
    return Report(tables, results, {"scaling.png": scaling.draw()} if axes else {})
