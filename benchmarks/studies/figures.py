"""Figures of the ablation, the training curves, the parameter counts and the costs, each as PNG."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from nfn_monomial.benchmarks.report.figures import MARKERS, PALETTE
from nfn_monomial.benchmarks.report.tables import MIB, Spread, by_model
from nfn_monomial.benchmarks.settings.generalization import STACKS
from nfn_monomial.benchmarks.settings.measurements import REFERENCE, ParamsConfig
from nfn_monomial.benchmarks.train.runs import Run

from .augment import Curves
from .cost import Cost
from .params import FAMILIES, IO, Family, closed_form, counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw_ablation", "draw_costs", "draw_params", "draw_training_curves"]

LEAST = 1e-17  # of differences in the figure: on a logarithmic axis, none has no place
SHIFT = 0.06  # of points that would hide others
LARGEST_COUNTED = 64  # layers up to this size are built for the figure, larger ones are drawn from the formula


def _axes(columns: int, width: float = 4.8, height: float = 3.8) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(width * columns, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes: list[Axes] = figure.subplots(1, columns, squeeze=False).flatten().tolist()
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)
        ax.grid(color="#E5E5E5", linewidth=0.8)
        ax.set_axisbelow(True)
    return figure, axes


def _png(figure: Figure) -> bytes:
    png = io.BytesIO()
    figure.savefig(png, format="png", dpi=130, metadata={"Software": None})
    return png.getvalue()


def draw_ablation(runs: Sequence[Run]) -> bytes:
    """Tau against the number of equivariant layers, with and without a layer of HNP, unchanged and moved the most."""
    groups = {key: group for key, group in by_model(runs).items() if key[2] in STACKS}
    subjects = list(dict.fromkeys(subject for subject, _, _ in groups))
    figure, axes = _axes(len(subjects))
    for ax, subject in zip(axes, subjects, strict=True):
        for hnp, color in ((False, PALETTE[3]), (True, PALETTE[4])):
            own = sorted(
                (STACKS[model][0], group)
                for (found, _, model), group in groups.items()
                if found == subject and STACKS[model][1] == hnp
            )
            if not own:
                continue
            depths = [depth for depth, _ in own]
            styles: dict[int, dict[str, Any]] = {0: {"marker": "o"}, -1: {"marker": "x", "linestyle": ":"}}
            for test, style in styles.items():
                name = own[0][1][0].tests[test].name
                taus = [Spread.of(run.tests[test].metrics["tau"] for run in group) for _, group in own]
                ax.errorbar(
                    [depth + SHIFT * bool(test) for depth in depths], [t.mean for t in taus],
                    [t.error or 0.0 for t in taus], color=color, capsize=3,
                    label=f"{'with' if hnp else 'without'} HNP, {name}", **style,
                )  # fmt: skip
        ax.set_xticks([1, 2, 3])
        ax.set_xlabel("equivariant layers")
        ax.set_ylabel("Kendall's tau on test networks")
        ax.set_title(f"{subject} networks", fontsize=10)
        ax.legend(fontsize=8, frameon=False)
    return _png(figure)


def draw_training_curves(curves: Sequence[Curves]) -> bytes:
    """Left: losses on original networks (lines) and on moved ones (circles). Right: their relative difference."""
    figure, (left, right) = _axes(2)
    for i, c in enumerate(curves):
        color, marker = PALETTE[i % len(PALETTE)], MARKERS[i % len(MARKERS)]
        label = f"{c.label}, {c.subject}"
        weight: dict[str, Any] = {"linewidth": 2.2 if c.invariant_under == "group" else 1.2}
        left.plot(range(1, len(c.original) + 1), c.original, color=color, label=label, **weight)
        left.plot(range(1, len(c.moved) + 1), c.moved, "o", color=color, markersize=5, fillstyle="none")
        pairs = list(zip(c.original, c.moved, strict=False))
        difference = [max(abs(a - b) / abs(a), LEAST) for a, b in pairs]
        right.plot(range(1, len(pairs) + 1), difference, color=color, marker=marker, markersize=4, **weight)
    left.set_ylabel("loss: original (lines), moved (circles)")
    right.set_ylabel("relative difference of the two")
    for ax in (left, right):
        ax.set_yscale("log")
        ax.set_xlabel("epoch")
    right.set_ylim(bottom=LEAST / 2)
    right.set_xlabel("epoch\nthick: invariant to the whole group; float64")
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    return _png(figure)


def draw_params(config: ParamsConfig) -> bytes:
    """Parameters of one layer against the number of inputs and the depth; crosses are counted, lines the formula."""
    figure, axes = _axes(2)
    channels = (config.channels[0], config.channels[1])
    sizes = [2**i for i in range(1, config.largest.bit_length())]
    kinds: list[tuple[Family, IO]] = [(family, "full") for family in FAMILIES]
    kinds += [("SCALE", "factored"), ("SIGN", "factored")]

    def network(grows: str, size: int) -> list[int]:
        return [size, 8, 8, 1] if grows == "inputs" else [1, *[8] * (size - 1), 1]

    for ax, grows in zip(axes, ("inputs", "depth"), strict=True):
        for i, (family, io_) in enumerate(kinds):
            # Thinner lines over thicker ones, as some coincide.
            lines: dict[str, Any] = {"color": PALETTE[i], "linestyle": "-" if io_ == "full" else "--"}
            lines["linewidth"] = 3.6 - 0.5 * i
            shapes = [network(grows, size) for size in sizes]
            values = [closed_form(family, s, [1] * (len(s) - 1), channels, io_) for s in shapes]
            ax.plot(sizes, values, label=family + ", factored" * (io_ == "factored"), **lines)
            built = [(n, s) for n, s in zip(sizes, shapes, strict=True) if n <= LARGEST_COUNTED]
            found = [counted(family, s, [1] * (len(s) - 1), channels, io_) for _, s in built]
            ax.plot([n for n, _ in built], found, "x", color=PALETTE[i], markersize=5)
        for power, style in ((1, ":"), (2, "-.")):
            start = channels[0] * channels[1] * 2
            ax.plot(
                sizes, [start * (n / sizes[0]) ** power for n in sizes], style, color="#A0A0A0", linewidth=1,
                label="linear" if power == 1 else "quadratic",
            )  # fmt: skip
        ax.set_xscale("log", base=2)
        ax.set_yscale("log")
        ax.set_xlabel("inputs n_0 of a network n_0-8-8-1" if grows == "inputs" else "layers L of a network 1-8-...-8-1")
        ax.set_ylabel(f"parameters of one {channels[0]} -> {channels[1]} layer")
    axes[0].legend(fontsize=8, frameon=False)
    return _png(figure)


def draw_costs(costs: Sequence[Cost]) -> bytes:
    """Time of a step and memory of every model relative to HNP, for each activation and batch size."""
    models = list(dict.fromkeys(c.model for c in costs))
    settings = list(dict.fromkeys((c.activation, c.batch) for c in costs))
    figure, axes = _axes(2, width=5.2, height=0.32 * len(models) + 1.6)
    by = {(c.activation, c.batch, c.model): c for c in costs}
    height = 0.8 / len(settings)
    for ax, what in zip(axes, ("time of a step", "peak memory"), strict=True):
        for i, setting in enumerate(settings):
            found = [by[(*setting, model)] for model in models]
            values = [c.step_ms if ax is axes[0] else c.peak_bytes / MIB for c in found]
            reference = values[models.index(REFERENCE)]
            places = [j + (i - (len(settings) - 1) / 2) * height for j in range(len(models))]
            label = f"{setting[0]}, batch {setting[1]}"
            ax.barh(places, [v / reference for v in values], height * 0.92, color=PALETTE[i % 8], label=label)
        ax.axvline(1, color="#404040", linewidth=0.8)
        ax.set_xscale("log")
        ax.set_xlabel(f"{what}, HNP = 1")
        ax.set_yticks(range(len(models)), [by[(*settings[0], model)].label for model in models], fontsize=8)
        ax.invert_yaxis()
    handles, labels = axes[1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    return _png(figure)
