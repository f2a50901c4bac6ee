"""Does `compare` tell the same function from another one? Many pairs of networks of which that is known.

Pairs that are the same: a random network, and one moved by a random element of its group. Pairs that are not: what has
been changed before it was moved, by little or by much, in ways that a careless test would not see.
"""

from __future__ import annotations

import functools
import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor

from nfn_monomial import GroupElement, MonomialMatrix, WeightSpace, compare
from nfn_monomial.benchmarks.data.architectures.plain import PlainCNN
from nfn_monomial.benchmarks.data.architectures.residual import ResidualCNN
from nfn_monomial.benchmarks.data.architectures.transformers import Transformer
from nfn_monomial.benchmarks.data.seeds import derive_seed
from nfn_monomial.benchmarks.files import write_json
from nfn_monomial.benchmarks.report.results import Report
from nfn_monomial.benchmarks.report.tables import Table
from nfn_monomial.benchmarks.settings.measurements import VerdictsConfig
from nfn_monomial.benchmarks.train.runs import environment
from nfn_monomial.space import Axis, packing

__all__ = ["CHANGES", "NETWORKS", "Cell", "count_verdicts", "verdicts_report"]

_DECADES = {torch.float64: 6.0, torch.float32: 3.0}  # of the scales that move networks, each way
_LEAST = {torch.float64: 1e-8, torch.float32: 1e-3}  # relative changes

NETWORKS: Mapping[str, Callable[[], WeightSpace]] = {
    "MLP, ReLU": lambda: WeightSpace.mlp([4, 16, 16, 3], "relu"),
    "MLP, tanh": lambda: WeightSpace.mlp([4, 16, 16, 3], "tanh"),
    "CNN": lambda: PlainCNN((1, 8, 8), (3, 3), (1, 1), (0, 0), (8, 4), ("relu", "tanh", "gelu")).space,
    "residual": lambda: ResidualCNN(1, (4, 6), (1, 1), (4, 6), True, ("relu",), 4).space,
    "transformer": lambda: Transformer(1, 4, 2, 6, (2,), 3, (8,), ("gelu",), 4).space,
}
"""Name -> its weight space."""

_SHARES = {"MLP, ReLU": 6, "MLP, tanh": 6, "CNN": 6, "residual": 1, "transformer": 1}  # of the pairs, by what they cost


@dataclass(frozen=True)
class Cell:
    """What was said of the pairs of one kind.

    Attributes:
        network: a name of `NETWORKS`.
        change: a name of `CHANGES`, or ``none``.
        pairs: how many.
        same: how many were called the same function.
        least: the smallest largest relative difference of weights of any pair.
        most: the largest.
        seconds: for all.
    """

    network: str
    change: str
    pairs: int
    same: int
    least: float
    most: float
    seconds: float


def _independent(space: WeightSpace, network: dict[str, Tensor], generator: Generator) -> dict[str, Tensor]:
    return _drawn(space, next(iter(network.values())).dtype, generator)


def _one_weight(space: WeightSpace, network: dict[str, Tensor], generator: Generator) -> dict[str, Tensor]:
    name, x = _any_piece(space, network, generator, lambda name: True)
    at = int(torch.randint(x.numel(), (), generator=generator))
    x.view(-1)[at] *= 1 + _size(x.dtype, generator)
    return _with(space, network, name, x)


def _noise(space: WeightSpace, network: dict[str, Tensor], generator: Generator) -> dict[str, Tensor]:
    size = _size(next(iter(network.values())).dtype, generator)
    return {n: x * (1 + size * torch.randn(x.shape, dtype=x.dtype, generator=generator)) for n, x in network.items()}


def _one_sign(space: WeightSpace, network: dict[str, Tensor], generator: Generator) -> dict[str, Tensor]:
    """One neuron's weights on one side have the other sign."""
    name, x = _any_piece(space, network, generator, lambda name: bool(_movable(space, name)))
    dim = _movable(space, name)[0]
    at = int(torch.randint(x.shape[dim], (), generator=generator))
    x.select(dim, at).neg_()
    return _with(space, network, name, x)


def _swapped(space: WeightSpace, network: dict[str, Tensor], generator: Generator) -> dict[str, Tensor]:
    """Two neurons' weights are swapped on one side, and not on the other."""
    wide = {name for name, x in _pieces(space, network).items() if any(x.shape[d] > 1 for d in _movable(space, name))}
    name, x = _any_piece(space, network, generator, wide.__contains__)
    dim = next(d for d in _movable(space, name) if x.shape[d] > 1)
    order = torch.arange(x.shape[dim])
    pair = torch.randperm(len(order), generator=generator)[:2]
    order[pair] = pair.flip(0)
    return _with(space, network, name, x.index_select(dim, order))


CHANGES: Mapping[str, Callable[[WeightSpace, dict[str, Tensor], Generator], dict[str, Tensor]]] = {
    "independent": _independent,
    "one weight": _one_weight,
    "noise": _noise,
    "one sign": _one_sign,
    "two swapped": _swapped,
}
"""What makes another function of a network."""


def _size(dtype: torch.dtype, generator: Generator) -> float:
    """A relative change, with uniform logarithm, from the least that is to be seen up to 1."""
    return float(_LEAST[dtype] ** torch.rand((), generator=generator, dtype=torch.float64))


def _pieces(space: WeightSpace, network: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return packing.pieces(space, network, space.sizes())


def _movable(space: WeightSpace, name: str) -> list[int]:
    """Dimensions of a piece along which neurons are permuted."""
    axes = enumerate(space.axes[name])
    return [i for i, axis in axes if isinstance(axis, Axis) and space.nodes[axis.node].permutes]


def _any_piece(
    space: WeightSpace, network: Mapping[str, Tensor], generator: Generator, wanted: Callable[[str], bool]
) -> tuple[str, Tensor]:
    found = {n: x for n, x in _pieces(space, network).items() if n not in space.dead and wanted(n)}
    name = list(found)[int(torch.randint(len(found), (), generator=generator))]
    return name, found[name].clone()


def _with(space: WeightSpace, network: Mapping[str, Tensor], name: str, x: Tensor) -> dict[str, Tensor]:
    return packing.whole(space, _pieces(space, network) | {name: x}, space.sizes())


def _drawn(space: WeightSpace, dtype: torch.dtype, generator: Generator) -> dict[str, Tensor]:
    return {n: torch.randn(shape, dtype=dtype, generator=generator) for n, shape in space.shapes().items()}


def _moved(space: WeightSpace, network: Mapping[str, Tensor], generator: Generator) -> dict[str, Tensor]:
    """By a random element, whose scales have uniform logarithms."""
    decades = _DECADES[next(iter(network.values())).dtype]
    matrices = {}
    for name, m in space.sample(generator=generator).matrices.items():
        scales = []
        for gauge, scale in zip(space.nodes[name].gauges, m.scales, strict=True):
            exponents = decades * (2 * torch.rand(scale.shape, generator=generator, dtype=torch.float64) - 1)
            scales.append(scale.sign() * 10**exponents if gauge.scales else scale)
        matrices[name] = MonomialMatrix(scales, m.permutation)
    return GroupElement(space, matrices).act(dict(network))


def count_verdicts(
    config: VerdictsConfig, folder: Path, progress: Callable[[int, int], object] = lambda done, total: None
) -> list[Cell]:
    """Compare all pairs. What is done is kept in the folder, and not done again.

    Args:
        config: see there.
        folder: for ``cells.json``.
        progress: called after every pair with the numbers of pairs that are done and that there are in all.
    """
    path = folder / "cells.json"
    cells = _kept(path, config)
    wanted = [(network, change) for network in NETWORKS for change in ("none", *CHANGES)]
    counts = {
        (network, change): (config.same if change == "none" else config.different // len(CHANGES))
        * _SHARES[network] // sum(_SHARES.values())
        for network, change in wanted
    }  # fmt: skip
    total = sum(counts.values())
    for network, change in wanted:
        if not any((cell.network, cell.change) == (network, change) for cell in cells):
            done = sum(cell.pairs for cell in cells)
            report = functools.partial(_report, progress, done, total)
            cells.append(_cell(config, network, change, counts[network, change], report))
            write_json(path, {"config": asdict(config), "cells": [asdict(cell) for cell in cells]})
    return cells


def _report(progress: Callable[[int, int], object], before: int, total: int, done: int) -> None:
    progress(before + done, total)


def _kept(path: Path, config: VerdictsConfig) -> list[Cell]:
    """What an earlier run with this configuration has done."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        return [Cell(**cell) for cell in values["cells"]] if values["config"] == asdict(config) else []
    except (OSError, ValueError, TypeError, LookupError):
        return []


def _cell(config: VerdictsConfig, network: str, change: str, count: int, progress: Callable[[int], None]) -> Cell:
    space, start = NETWORKS[network](), time.perf_counter()
    same, least, most = 0, math.inf if count else 0.0, 0.0
    for i in range(count):
        generator = Generator().manual_seed(derive_seed(config.seed, network, change, i))
        a = _drawn(space, (torch.float64, torch.float32)[i % 2], generator)
        b = _moved(space, CHANGES[change](space, a, generator) if change in CHANGES else a, generator)
        found = compare(space, a, b)
        same += found.same_function
        least, most = min(least, found.max_weight_difference), max(most, found.max_weight_difference)
        progress(i + 1)
    return Cell(network, change, count, same, least, most, time.perf_counter() - start)


def verdicts_report(cells: list[Cell], config: VerdictsConfig) -> Report:
    """A line for every kind of pair."""
    rows = [
        (
            cell.network,
            cell.change,
            f"{cell.pairs:,}",
            f"{cell.same:,}",
            f"{cell.least:.0e}",
            f"{cell.most:.0e}",
            f"{1000 * cell.seconds / max(cell.pairs, 1):.0f}",
        )
        for cell in cells
    ]
    sums = {s: [c for c in cells if (c.change == "none") == s] for s in (True, False)}
    right = sum(c.same for c in sums[True]), sum(c.pairs for c in sums[True])
    wrong = sum(c.same for c in sums[False]), sum(c.pairs for c in sums[False])
    table = Table(
        "Pairs of networks that are, and are not, the same function",
        ("networks", "change", "pairs", "called the same", "least difference", "largest", "ms a pair"),
        tuple(rows),
        text_columns=2,
        names=(0, 1),
        notes=(
            f"Called the same: {right[0]:,} of {right[1]:,} pairs that are, {wrong[0]:,} of {wrong[1]:,} that are not.",
            "Every other pair in float64, the rest in float32. All are moved by random permutations, signs and scales "
            "(to 1e6 each way, 1e3 in float32). Changes of one weight and noise: from 1e-8 of a weight (float32: 1e-3) "
            "up to all of it, logarithms uniform. Differences: of weights, once aligned, relative to the weight.",
        ),
    )
    results: dict[str, Any] = {
        "environment": environment("cpu"), "config": asdict(config), "cells": [asdict(cell) for cell in cells]
    }  # fmt: skip
    return Report([table], results)
