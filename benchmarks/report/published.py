"""Numbers and claims of the paper, by its tables: data alone. `beside` sets it beside what was found here.

Rows are found in our tables by their first cell, and by that under ``trained on`` where a table has such a column.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["AS_IN_PAPER", "PAPER", "Cell", "Claim", "Least", "Published", "Relation", "Row"]

Row = tuple[str, ...]
Cell = tuple[Row, str]
"""A row and a column."""
Relation = Literal[">", ">=", "="]

AS_IN_PAPER: Mapping[str, str] = {"GNN (5.5M)": "GNN"}
"""A model of ours that is more like the paper's than that of the paper's name, in whose place claims look at it."""


@dataclass(frozen=True)
class Least:
    """The least that a run needs to be comparable with the paper's: steps, training networks; ``paper``: its own."""

    steps: int = 0
    networks: int = 0
    paper: str = ""


@dataclass(frozen=True)
class Claim:
    """A claim of the paper on two numbers of one table: the first is larger, at least as large, or the same.

    ``since``: a column; then the claim is on how far both numbers are above those of their rows there.
    """

    text: str
    source: str
    first: Cell
    relation: Relation
    second: Cell
    least: Least = Least()
    since: str = ""


@dataclass(frozen=True)
class Published:
    """Numbers of the paper for one of our tables.

    Attributes:
        of: stands in the title of that table.
        source: tables of the paper.
        columns: of ours that the paper has, too.
        rows: first cells of a line -> the paper's numbers in these columns, empty where it has none.
        same: what is as in the paper.
        other: what is not; what was trained on here is said beside it.
        spread: what the paper's ± is.
        claims: that can be looked up in the table.
        least: of all of them.
        percent: whether the columns are shares in percent.
        plateau: of such: a model that has less than this part of the paper's number has not learned what the paper's
            did, and claims on it are not looked at.
    """

    of: str
    source: str
    columns: tuple[str, ...]
    rows: Mapping[Row, tuple[str, ...]]
    same: str
    other: str
    spread: str = "not stated"
    claims: tuple[Claim, ...] = ()
    least: Least = Least()
    percent: bool = False
    plateau: float = 0.0


_ORIGINAL, _AUGMENTED = "original", "augmented"
_MNF, _MNF_AUGMENTED = ("Monomial-NFN", _ORIGINAL), ("Monomial-NFN", _AUGMENTED)
_UNMOVED, _FAR, _FLIPPED = "tau original", "tau 1e4", "tau sign flips"
_LEVELS = (_UNMOVED, "tau 1e1", "tau 1e2", "tau 1e3", _FAR)


def _falls(label: str, source: str) -> Claim:
    row = (label, _ORIGINAL)
    return Claim(f"{label} falls when networks are scaled", source, (row, _UNMOVED), ">", (row, _FAR))


def _above(label: str, source: str, column: str, least: Least = Least()) -> Claim:
    what = {_UNMOVED: "networks as they are", _FAR: "networks with scales up to 1e4"}[column]
    text = f"Monomial-NFN is above {label} on {what}"
    return Claim(text, source, (_MNF, column), ">", ((label, _ORIGINAL), column), least)


_MANY = "some 6,000"  # 6,050 ReLU networks, 5,949 tanh
_FOR_ALL = Least(networks=500, paper=_MANY)  # with fewer, models have not learned what the paper's have
_FOR_GNN = Least(networks=1000, paper=_MANY)  # a GNN that learns from hundreds is not the paper's, whatever its size
_ZOO: dict[str, Any] = {
    "same": "the architectures of models, and those of networks but for channels, selection on validation networks",
    "other": "the paper has the Small CNN Zoo of CIFAR-10, 50 epochs in batches of 8, five seeds; its GNN has 5.5M "
    "parameters",
    "least": _FOR_ALL,
}
_RELU = Published(
    "relu networks",
    "Tables 12 and 14",
    _LEVELS,
    {
        ("GNN", _ORIGINAL): ("0.897", "0.794", "0.679", "0.586", "0.562"),
        _MNF: ("0.922", "0.920", "0.919", "0.920", "0.920"),
        ("GNN", _AUGMENTED): ("", "0.892", "0.885", "0.858", "0.851"),
        _MNF_AUGMENTED: ("", "0.920", "0.919", "0.920", "0.920"),
    },
    **_ZOO,
    claims=(
        Claim("Monomial-NFN keeps its tau at any scale", "Figure 1, Table 14", (_MNF, _UNMOVED), "=", (_MNF, _FAR)),
        *(_falls(label, "Figure 1") for label in ("STATNN", "NP", "HNP")),
        _falls("GNN", "Table 14"),
        Claim(
            "NP falls less far than HNP",
            "Figure 1", (("NP", _ORIGINAL), _FAR), ">", (("HNP", _ORIGINAL), _FAR), since=_UNMOVED,
        ),
        Claim(
            "Monomial-NFN is as good as HNP on networks as they are",
            "Figure 1", (_MNF, _UNMOVED), ">=", (("HNP", _ORIGINAL), _UNMOVED),
        ),
        _above("GNN", "Table 12", _UNMOVED, _FOR_GNN),
        *(_above(label, "Figure 1", _FAR) for label in ("STATNN", "NP", "HNP")),
        Claim(
            "trained on scaled copies, the GNN stays below Monomial-NFN there",
            "Table 12", (_MNF_AUGMENTED, _FAR), ">", (("GNN", _AUGMENTED), _FAR), _FOR_GNN,
        ),
    ),
)  # fmt: skip
_TANH = Published(
    "tanh networks",
    "Tables 2, 13 and 15",
    (_UNMOVED, _FLIPPED),
    {
        ("STATNN", _ORIGINAL): ("0.913 ±0.001", ""),
        ("NP", _ORIGINAL): ("0.925 ±0.001", ""),
        ("HNP", _ORIGINAL): ("0.933 ±0.002", ""),
        ("GNN", _ORIGINAL): ("0.893", "0.883"),
        _MNF: ("0.939 ±0.001", "0.940"),
        ("STATNN", _AUGMENTED): ("", "0.914 ±0.001"),
        ("NP", _AUGMENTED): ("", "0.928 ±0.001"),
        ("HNP", _AUGMENTED): ("", "0.935 ±0.001"),
        ("GNN", _AUGMENTED): ("", "0.902"),
        _MNF_AUGMENTED: ("", "0.943 ±0.001"),
    },
    **_ZOO,
    claims=(
        *(_above(label, "Table 2", _UNMOVED) for label in ("STATNN", "NP", "HNP")),
        _above("GNN", "Table 13", _UNMOVED, _FOR_GNN),
        Claim("augmentation makes Monomial-NFN better", "Table 2", (_MNF_AUGMENTED, _FLIPPED), ">", (_MNF, _FLIPPED)),
    ),
)


def _stack(layers: int, hnp: bool = False) -> Row:
    return (f"MNF x {layers}" + ", HNP" * hnp,)


def _stacks(text: str, first: Row, relation: Relation, second: Row) -> Claim:
    return Claim(text, "Table 24", (first, _UNMOVED), relation, (second, _UNMOVED))


_ABLATION = Published(
    "relu networks",
    "Table 24",
    _LEVELS,
    {
        _stack(1, True): ("0.917", "0.916", "0.917", "0.917", "0.917"),
        _stack(2, True): ("0.918", "0.917", "0.917", "0.917", "0.918"),
        _stack(3, True): ("0.920", "0.919", "0.918", "0.920", "0.920"),
        _stack(1): ("0.915", "0.914", "0.917", "0.916", "0.914"),
        _stack(2): ("0.918", "0.919", "0.918", "0.917", "0.918"),
        _stack(3): ("0.922", "0.920", "0.919", "0.920", "0.920"),
    },
    same="the six stacks, selection on validation networks",
    other="the paper has the Small CNN Zoo of CIFAR-10, 50 epochs in batches of 8, five seeds",
    least=_FOR_ALL,
    claims=(
        _stacks("three equivariant layers are better than one", _stack(3), ">", _stack(1)),
        _stacks("three equivariant layers are better than two", _stack(3), ">", _stack(2)),
        _stacks("a layer of HNP behind three brings nothing", _stack(3), ">=", _stack(3, True)),
        _stacks("a layer of HNP behind one brings something", _stack(1, True), ">", _stack(1)),
    ),
)  # fmt: skip


def _classification(of: str, hybrid: str, base: str, accuracies: tuple[str, str, str, str]) -> Published:
    """A line of Table 3. ``hybrid``, ``base``: what Table 20 has its model made of."""
    rows = (("MLP",), ("NP (Fourier)",), ("HNP (Fourier)",), (f"Monomial-{hybrid} (Fourier)",))
    mlp, np, hnp, ours = ((row, "test") for row in rows)
    claims = []
    for other, label, accuracy in ((np, "NP", accuracies[1]), (hnp, "HNP", accuracies[2])):
        above = float(accuracies[3].split()[0]) > float(accuracy.split()[0])
        text = f"the hybrid with {hybrid} is {'above' if above else 'below'} {label}"
        claims.append(Claim(text, "Table 3", ours if above else other, ">", other if above else ours))
    return Published(
        of, "Table 3", ("test",), {row: (value,) for row, value in zip(rows, accuracies, strict=True)},
        same="the kinds of models, the architecture of the networks, selection on validation networks",
        other=f"the paper's networks are those of Zhou et al. ({base}), 45,000 to train on, 200,000 steps in batches "
        "of 32, models of 2M to 42M parameters, five seeds, no canonical phases",
        spread="standard error over five runs",
        claims=(*claims, Claim(f"the hybrid with {hybrid} is above the MLP", "Table 3", ours, ">", mlp)),
        least=Least(steps=100_000, paper="200,000"),
        percent=True,
        plateau=0.5,
    )  # fmt: skip


def _editing(of: str, images: str, errors: tuple[str, str, str, str]) -> Published:
    """A line of Table 4."""
    rows = (("MLP",), ("NP",), ("HNP",), ("Monomial-NP",))
    mlp, np, hnp, ours = ((row, "MSE") for row in rows)
    return Published(
        of, "Table 4", ("MSE",), {row: (value,) for row, value in zip(rows, errors, strict=True)},
        same="the kinds of editors, the architecture of the networks, the task, selection on validation networks",
        other=f"the paper's networks are those of Zhou et al. ({images}), 45,000 to train on, 50,000 steps in batches "
        "of 32, editors of 4.1M to 12.8M parameters, five seeds; its pixels are presumably in [-1, 1], which makes "
        "errors four times as large",
        spread="standard error over five runs",
        claims=(
            Claim("the hybrid's error is below that of HNP", "Table 4", hnp, ">", ours),
            Claim("the hybrid's error is that of NP", "Table 4", ours, "=", np),
            Claim("the MLP's error is the largest", "Table 4", mlp, ">", hnp),
        ),
        least=Least(steps=25_000, paper="50,000"),
    )  # fmt: skip


PAPER: Mapping[str, tuple[Published, ...]] = {
    "predict-generalization": (_RELU, _TANH),
    "ablation": (_ABLATION,),
    "classify-inr": (
        _classification("fashion", "NP", "FashionMNIST", ("9.95 ±0.36", "58.21 ±0.31", "57.43 ±0.46", "61.15 ±0.55")),
        _classification("mnist", "HNP", "MNIST", ("10.62 ±0.54", "69.82 ±0.42", "66.02 ±0.51", "68.43 ±0.51")),
        _classification("cifar", "HNP", "CIFAR-10", ("10.48 ±0.74", "33.74 ±0.26", "31.61 ±0.22", "34.23 ±0.33")),
    ),
    "edit-inr": (
        _editing("dilate", "MNIST", ("0.306 ±0.001", "0.068 ±0.002", "0.071 ±0.001", "0.069 ±0.002")),
        _editing("contrast", "CIFAR-10", ("0.031 ±0.001", "0.020 ±0.002", "0.021 ±0.002", "0.020 ±0.001")),
    ),
}
"""Experiment -> what the paper has of it; of several whose ``of`` stands in a title, the first counts."""
