"""Parameter counts as tables and figure, beside the numbers and orders of the paper (Tables 1, 17, 21, 22)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from matplotlib.figure import Figure

from nfn_monomial.benchmarks.data.sirens import Siren
from nfn_monomial.benchmarks.models.catalogue import model_names
from nfn_monomial.benchmarks.models.editors import build_editor, editor_names
from nfn_monomial.benchmarks.models.inr import inr_info
from nfn_monomial.benchmarks.report.tables import INVARIANT, count
from nfn_monomial.benchmarks.settings.inrs import CLASSIFY as CLASSIFY
from nfn_monomial.benchmarks.settings.inrs import EditorConfig
from nfn_monomial.benchmarks.settings.measurements import ParamsConfig
from nfn_monomial.tools.predictors.models import build_model
from nfn_monomial.tools.report import PALETTE, Report, Table, panels

from .classify import sizes_of
from .params import FAMILIES, IO, Family, LayerCount, closed_form, counted, layer_counts, zoo_network

__all__ = ["claims_table", "draw_params", "layer_table", "model_tables", "params_report"]

LARGEST_COUNTED = 64  # layers up to this size are built for the figure, larger ones are drawn from the formula
CLAIMS = {
    "NP": ("O(cc' L^2)", 2, 0, 0),
    "HNP": ("O(cc' (L + n_0 + n_L)^2)", 2, 2, 2),
    "SCALE": ("O(cc' (L + n_0 + n_L))", 1, 1, 1),
    "SIGN": ("O(cc' (L + n_0 + n_L))", 1, 1, 1),
}
"""Table 1: the paper's order, and its exponents of L, n_0 and n_L."""
PUBLISHED_CNN = {
    "statnn": ("1.06M", "1.06M"),
    "np": ("2.03M", "2.03M"),
    "hnp": ("2.81M", "2.81M"),
    "monomial": ("0.25M", "1.41M"),
    "gnn": ("5.5M", "5.5M"),
}
"""Table 17, for ReLU and tanh networks; the GNN's from the text beside Tables 12 and 13."""
NOTE_CNN = "The GNN's number is from the text beside Tables 12 and 13; here it has 32 features."
NOTE_INR = (
    "By Table 20 the hybrid for CIFAR-10 is one with HNP and the one for FashionMNIST one with NP; the 16M of Table 21 "
    "are the size of a hybrid with NP, and its 20M fit neither, with the head of 1000 here or of 500 as in Table 20."
)
NOTE_EDIT = "Table 22 does not say for which images; its sizes are those for colour."
PUBLISHED_INR = {
    "mlp": ("2M", "2M"),
    "inr-np": ("15M", "16M"),
    "inr-hnp": ("22M", "42M"),
    "inr-monomial-hnp": ("22M (MNIST)", "16M"),
    "inr-monomial-np": ("20M (Fashion)", ""),
}
"""Table 21, grey (MNIST, FashionMNIST) and colour (CIFAR-10). Hybrids where Table 20 says so; the 16M of CIFAR-10's are
those of a hybrid with NP.
"""
PUBLISHED_EDIT = {"mlp": ("", "4.5M"), "np": ("", "4.1M"), "hnp": ("", "12.8M"), "monomial-np": ("", "4.1M")}
"""Table 22, which does not say for which images: the sizes are those for colour."""


def params_report(config: ParamsConfig) -> Report:
    """All counts: of one layer, their growth, and of every model."""
    counts = layer_counts(config)
    tables = [layer_table(counts, config), claims_table(config), *model_tables()]
    stated = [{"title": t.title, "header": t.header, "cells": t.cells} for t in tables]
    results = {"layers": [asdict(c) for c in counts], "tables": stated}
    return Report(tables, results, {"params.png": draw_params(config)})


def layer_table(counts: Sequence[LayerCount], config: ParamsConfig) -> Table:
    """One layer, counted and by formula."""
    hnp = next(c.counted for c in counts if c.layer == "nfn HNPLinear")
    cells = tuple(
        (c.layer, f"{c.counted:,}", "" if c.formula is None else f"{c.formula:,}", f"{c.counted / hnp:.3f}")
        for c in counts
    )
    sizes, (c_in, c_out) = "-".join(map(str, config.sizes)), config.channels
    kernels = f" with {config.kernel}x{config.kernel} kernels" * (config.kernel > 1)
    return Table(
        f"Parameters of one {c_in} -> {c_out} layer on networks {sizes}{kernels}",
        ("layer", "counted", "formula", "of nfn HNPLinear"),
        cells,
    )


def claims_table(config: ParamsConfig) -> Table:
    """How the counts grow with depth, inputs and outputs, against the orders of the paper's Table 1.

    An exponent is the slope of the formula between a size and its double, far out; a slope of 1 is linear growth.
    """
    far = 2**14
    channels = (config.channels[0], config.channels[1])

    def exponent(family: Family, io: IO, *, depth: int = 3, n_in: int = 1, n_out: int = 1, grows: str) -> float:
        def at(size: int) -> int:
            shape = {"depth": depth, "n_in": n_in, "n_out": n_out, grows: size}
            layers = shape["depth"]
            sizes = [shape["n_in"], *[1] * (layers - 1), shape["n_out"]]
            return closed_form(family, sizes, [1] * layers, channels, io)

        return math.log2(at(2 * far) / at(far))

    cells = []
    for family in FAMILIES:
        claim, *orders = CLAIMS[family]
        for io in ("full", "factored") if family in ("SCALE", "SIGN") else ("full",):
            line = [family + ", factored" * (io == "factored"), claim]
            for grows, order in zip(("depth", "n_in", "n_out"), orders, strict=True):
                found = exponent(family, io, grows=grows)
                line.append(f"{found:.2f}" if round(found) == order else f"{found:.2f} (claim: {order})")
            cells.append(tuple(line))
    return Table(
        "Growth of one layer's parameters: exponents of L, n_0 and n_L, against the paper's Table 1",
        ("layer", "claimed", "in L", "in n_0", "in n_L"),
        tuple(cells),
        text_columns=2,
        notes=(
            "Every equivariant map counts here, so n_0 and n_L enter squared: they are multiplicities of one field, "
            "and each of its entries may depend on each. The factored layer has what the paper claims.",
        ),
    )


def model_tables() -> list[Table]:
    """Every registered model with the paper's sizes: on the zoo's network, as classifiers and as editors of INRs."""
    zoo = {name: zoo_network(name) for name in ("relu", "tanh")}
    grey, colour = Siren((2, 32, 32, 1), 30.0, (1, 28, 28)), Siren((2, 32, 32, 3), 30.0, (3, 32, 32))
    inrs = ((inr_info(grey), CLASSIFY["paper"].sizes), (inr_info(colour), CLASSIFY["paper-cifar"].sizes))
    cnn = {name: [build_model(name, info, seed=0) for info in zoo.values()] for name in model_names("generalization")}
    classifiers = {
        name: [build_model(name, info, seed=0, out_features=10, **sizes_of(sizes, name)) for info, sizes in inrs]
        for name in model_names("inr")
    }
    editors = {
        name: [build_editor(name, siren, EditorConfig(), seed=0) for siren in (grey, colour)] for name in editor_names()
    }
    images = ("grey", "colour")
    return [
        _table("predict the accuracy of CNNs 1-16-16-16-10", cnn, tuple(zoo), PUBLISHED_CNN, "Table 17", NOTE_CNN),
        _table("classify INRs 2-32-32-1 and 2-32-32-3", classifiers, images, PUBLISHED_INR, "Table 21", NOTE_INR),
        _table("edit INRs 2-32-32-1 and 2-32-32-3", editors, images, PUBLISHED_EDIT, "Table 22", NOTE_EDIT),
    ]


def _table(
    what: str,
    models: Mapping[str, Sequence[Any]],
    networks: tuple[str, ...],
    published: Mapping[str, tuple[str, ...]],
    source: str,
    note: str,
) -> Table:
    cells = []
    for name, built in models.items():
        label, invariant = built[0].label, INVARIANT[built[0].invariant_under]
        counts = (count(sum(p.numel() for p in model.parameters())) for model in built)
        cells.append((name, label, invariant, *counts, *published.get(name, ("",) * len(networks))))
    header = ("model", "label", "invariant", *networks, *(f"paper: {n}" for n in networks))
    notes = (f"paper: {source}. Without an entry, the paper does not have the model, or does not state its size.", note)
    return Table(f"Parameters of models that {what}", header, tuple(cells), text_columns=3, notes=notes)


def draw_params(config: ParamsConfig) -> Figure:
    """Parameters of one layer against the number of inputs and the depth; crosses are counted, lines the formula."""
    figure, axes = panels(1, 2, (9.6, 3.8))
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
    return figure
