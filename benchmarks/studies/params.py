"""Numbers of parameters of layers and models: counted, by closed formulas, and as the paper states them.

**Formulas.** A chain of L layers has biases, kernels of ``k_1, ..., k_L`` entries (1 for a linear layer), ``n_0``
inputs and ``n_L`` outputs; an equivariant layer maps c to c' channels. Tensors that transform alike are one field, and
every type that fields can be contracted to costs the square of their multiplicity in it. Times c c', for L >= 2:

    NP      (K + L)^2 + sum_{i=0}^{L} (k_i + k_{i+1} + [i > 0])^2 + sum_{i=1}^{L} k_i^2           k_0 = k_{L+1} = 0
    HNP     (K' + L - 1 + n_L)^2 + sum_{i=1}^{L-1} (1 + k'_i + k'_{i+1})^2 + sum_{i=2}^{L-1} k_i^2
    SCALE   (k'_1 + 1)^2 + sum_{i=2}^{L-1} (k_i^2 + 1) + k'_L^2 + n_L^2
    SIGN    (k'_1 + 1)^2 + (k'_L + 1)^2 + sum_{i=2}^{L-1} k_i^2 + (L - 3) + n_L^2                 L >= 3
            (k'_1 + 1 + k'_2)^2 + n_2^2                                                           L = 2

where ``k'`` is k but for ``k'_1 = n_0 k_1`` and ``k'_L = n_L k_L``, and K, K' are sums over all layers. Constants come
on top: c' times K + L for NP, K' + L - 1 + n_L for HNP, n_L for SCALE and SIGN. So the monomial layers are linear in L,
where NP and HNP are quadratic, and *quadratic* in n_0 and n_L, as HNP is; Table 1 claims linear. With ``io="factored"``
they are linear in all three: a field's m^2 c c' becomes ``m (r (c + c') + c c')``, r = max(c, c'), where that is less.

nfn's own layers have more than that, in biases and broadcasts that coincide.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal

import torch
from matplotlib.figure import Figure
from nfn.layers import HNPLinear, NPLinear
from torch import nn

from nfn_monomial import EquivariantLinear, WeightSpace
from nfn_monomial.benchmarks.data.sirens import Siren
from nfn_monomial.benchmarks.experiments.classify import CLASSIFY
from nfn_monomial.benchmarks.experiments.edit import EditorConfig
from nfn_monomial.benchmarks.experiments.params import ParamsConfig
from nfn_monomial.benchmarks.models.catalogue import model_names
from nfn_monomial.benchmarks.models.editors import build_editor, register_editor
from nfn_monomial.benchmarks.models.inr import inr_info
from nfn_monomial.benchmarks.models.parts import nfn_chain
from nfn_monomial.benchmarks.report.tables import INVARIANT, count
from nfn_monomial.benchmarks.settings.register import Study
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.tools.predictors.architectures import PlainCNN
from nfn_monomial.tools.predictors.models import NetworkInfo, build_model
from nfn_monomial.tools.report import PALETTE, Report, Table, panels

from .classify import sizes_of

__all__ = ["LAYERS", "closed_form", "counted", "params_report", "space_of", "zoo_network"]

Family = Literal["NP", "HNP", "SCALE", "SIGN"]
IO = Literal["full", "factored"]
LAYERS: dict[str, tuple[Family, IO]] = {
    "NP": ("NP", "full"),
    "HNP": ("HNP", "full"),
    "SCALE": ("SCALE", "full"),
    "SCALE, factored": ("SCALE", "factored"),
    "SIGN": ("SIGN", "full"),
    "SIGN, factored": ("SIGN", "factored"),
}
"""Our layers as tables name them."""


def closed_form(
    family: Family, sizes: Sequence[int], kernels: Sequence[int], channels: tuple[int, int], io: IO = "full"
) -> int:
    """Number of parameters of one layer by the formulas above, constants included.

    Args:
        family: the group: ``NP``, ``HNP``, ``SCALE`` (ReLU) or ``SIGN`` (tanh, sin).
        sizes: ``[n_0, ..., n_L]``; of hidden ones only their number counts.
        kernels: entries of the kernels, one for each of the L layers; 1 for a linear layer.
        channels: in and out.
        io: of `EquivariantLinear`; ``factored`` is for SCALE and SIGN.

    Raises:
        ValueError: without a hidden layer, or for factored NP and HNP.
    """
    depth, (n_in, n_out), (c_in, c_out) = len(kernels), (sizes[0], sizes[-1]), channels
    if depth < 2 or len(sizes) != depth + 1:
        raise InvalidValueError(f"{len(sizes)} sizes and {depth} kernels: L + 1 sizes and L >= 2 kernels are needed")
    wide = [*kernels]
    wide[0] *= n_in
    wide[-1] *= n_out
    inner = range(1, depth - 1)  # layers between hidden neurons, counted from 0
    if family in ("NP", "HNP"):
        if io != "full":
            raise InvalidValueError(f"{family} has no factored form here: choose SCALE or SIGN, or io='full'")
        if family == "NP":
            sums = [sum(kernels) + depth]
            around = [0, *kernels, 0]
            sums += [around[i] + around[i + 1] + (i > 0) for i in range(depth + 1)]
            fields = [*sums, *kernels]
        else:
            sums = [sum(wide) + depth - 1 + n_out]
            sums += [1 + wide[i] + wide[i + 1] for i in range(depth - 1)]
            fields = [*sums, *(kernels[i] for i in inner)]
        return c_in * c_out * sum(m * m for m in fields) + c_out * sums[0]
    ones = [1] * len(inner)
    if family == "SCALE":
        fields = [wide[0] + 1, *(kernels[i] for i in inner), *ones, wide[-1], n_out]
    elif depth == 2:
        fields = [wide[0] + 1 + wide[1], n_out]
    else:
        fields = [wide[0] + 1, wide[-1] + 1, *(kernels[i] for i in inner), *ones[1:], n_out]
    parameters = c_out * n_out
    for m in fields:  # the matrix of a field of multiplicity m
        full = m * m * c_in * c_out
        parameters += full if io == "full" else min(full, m * (max(c_in, c_out) * (c_in + c_out) + c_in * c_out))
    return parameters


def space_of(family: Family, sizes: Sequence[int], kernels: Sequence[int]) -> WeightSpace:
    """The weight space of a chain of layers, whose group is the family's. ``kernels``: sides of square ones, or 1."""
    group = {"NP": "permutation", "HNP": "permutation", "SCALE": "scale", "SIGN": "sign"}[family]
    shapes = [() if k == 1 else (k, k) for k in kernels]
    return WeightSpace.sequential(sizes, shapes, group, io_symmetry="permutation" if family == "NP" else "fixed")


def counted(
    family: Family, sizes: Sequence[int], kernels: Sequence[int], channels: tuple[int, int], io: IO = "full"
) -> int:
    """Number of parameters of `EquivariantLinear`, built without memory for them (on the meta device).

    Args:
        family: see `closed_form`.
        sizes: ``[n_0, ..., n_L]``.
        kernels: sides of the square kernels; 1 for a linear layer.
        channels: in and out.
        io: of the layer.
    """
    return _numel(lambda: EquivariantLinear(space_of(family, sizes, kernels), *channels, io=io))


def _numel(build: Callable[[], nn.Module]) -> int:
    with torch.device("meta"):
        return sum(p.numel() for p in build().parameters())


@dataclass(frozen=True)
class LayerCount:
    """Parameters of one layer: counted and by the formula (None where there is none, as for nfn's layers)."""

    layer: str
    family: Family
    io: IO
    counted: int
    formula: int | None


def layer_counts(config: ParamsConfig) -> list[LayerCount]:
    """One layer of every kind on the configured network, ours and nfn's."""
    sizes, sides, (c_in, c_out) = config.sizes, config.kernels, config.channels
    entries = [k * k for k in sides]
    counts = []
    for name, (family, io) in LAYERS.items():
        here = counted(family, sizes, sides, (c_in, c_out), io)
        formula = closed_form(family, sizes, entries, (c_in, c_out), io)
        counts.append(LayerCount(f"EquivariantLinear, {name}", family, io, here, formula))
    spec = nfn_chain(space_of("HNP", sizes, sides)).spec
    for name, family, kind in (("nfn NPLinear", "NP", NPLinear), ("nfn HNPLinear", "HNP", HNPLinear)):
        counts.append(LayerCount(name, family, "full", _numel(partial(kind, spec, c_in, c_out)), None))
    return counts


def zoo_network(activation: str) -> NetworkInfo:
    """The Small CNN Zoo's network as the zoo of digits has it: 3x3 convolutions 1-16-16-16, stride 2, pool, 16-10."""
    architecture = PlainCNN(
        (1, 16, 16, 16),
        (3, 3, 3),
        (2, 2, 2),
        (1, 1, 1),
        (10,),
        (activation,) * 3,  # type: ignore[arg-type]
    )
    return NetworkInfo(architecture.space, activation, architecture.module, (1, 8, 8))


# -- tables and figures ------------------------------------------------------------------------------------------------

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
"""Table 22."""


def params_report(config: ParamsConfig) -> Report:
    """Returns all counts: of one layer, their growth, and of every model."""
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
    """Compares the growth with depth, inputs and outputs with the orders of the paper's Table 1.

    An exponent is the slope of the formula between a size and its double, far out; a slope of 1 is linear growth.
    """
    far = 2**14

    def parameters(family: Family, io: IO, grows: str, size: int) -> int:
        shape = {"depth": 3, "n_in": 1, "n_out": 1, grows: size}
        sizes = [shape["n_in"], *[1] * (shape["depth"] - 1), shape["n_out"]]
        return closed_form(family, sizes, [1] * shape["depth"], config.channels, io)

    cells = []
    for name, (family, io) in LAYERS.items():
        claim, *orders = CLAIMS[family]
        line = [name, claim]
        for grows, order in zip(("depth", "n_in", "n_out"), orders, strict=True):
            slope = math.log2(parameters(family, io, grows, 2 * far) / parameters(family, io, grows, far))
            line.append(f"{slope:.2f}" if round(slope) == order else f"{slope:.2f} (claim: {order})")
        cells.append(tuple(line))
    return Table(
        "Growth of one layer's parameters: exponents of L, n_0 and n_L, against the paper's Table 1",
        ("layer", "claimed", "in L", "in n_0", "in n_L"),
        tuple(cells),
        text_columns=2,
        notes=(
            "Every equivariant map counts here, so n_0 and n_L enter squared: they are multiplicities of one field, "
            "and each of its entries may depend on each. The factored layer has the orders that the paper claims.",
        ),
    )


def model_tables() -> list[Table]:
    """Returns the sizes of all registered models with the paper's settings, for CNNs, classifying and editing INRs."""
    zoo = {name: zoo_network(name) for name in ("relu", "tanh")}
    grey, colour = Siren((2, 32, 32, 1), 30.0, (1, 28, 28)), Siren((2, 32, 32, 3), 30.0, (3, 32, 32))
    inrs = ((inr_info(grey), CLASSIFY["paper"].sizes), (inr_info(colour), CLASSIFY["paper-cifar"].sizes))
    cnn = {name: [build_model(name, info, seed=0) for info in zoo.values()] for name in model_names("generalization")}
    classifiers = {
        name: [build_model(name, info, seed=0, out_features=10, **sizes_of(sizes, name)) for info, sizes in inrs]
        for name in model_names("inr")
    }
    editors = {
        name: [build_editor(name, siren, EditorConfig(), seed=0) for siren in (grey, colour)]
        for name in register_editor
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
    channels = config.channels
    sizes = [2**i for i in range(1, config.largest.bit_length())]
    kinds = sorted(LAYERS.items(), key=lambda kind: kind[1][1] == "factored")

    def network(grows: str, size: int) -> list[int]:
        return [size, 8, 8, 1] if grows == "inputs" else [1, *[8] * (size - 1), 1]

    for ax, grows in zip(axes, ("inputs", "depth"), strict=True):
        for i, (name, (family, io)) in enumerate(kinds):
            # Thinner lines over thicker ones, as some coincide.
            lines: dict[str, Any] = {"color": PALETTE[i], "linestyle": "-" if io == "full" else "--"}
            lines["linewidth"] = 3.6 - 0.5 * i
            shapes = [network(grows, size) for size in sizes]
            values = [closed_form(family, s, [1] * (len(s) - 1), channels, io) for s in shapes]
            ax.plot(sizes, values, label=name, **lines)
            built = [(n, s) for n, s in zip(sizes, shapes, strict=True) if n <= LARGEST_COUNTED]
            counts = [counted(family, s, [1] * (len(s) - 1), channels, io) for _, s in built]
            ax.plot([n for n, _ in built], counts, "x", color=PALETTE[i], markersize=5)
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


STUDY = Study(lambda data, config, store, tell: params_report(config), lambda report, config, store: report)
