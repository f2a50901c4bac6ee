"""Whole models against one another: message passing both ways on layers, and ScaleGMN, forward only, on graphs."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nfn_monomial import WeightSpace
from nfn_monomial.adapters.pyg import to_graph
from nfn_monomial.benchmarks.report.tables import MIB
from nfn_monomial.benchmarks.train.measure import race
from nfn_monomial.models import MessagePassingNFN
from nfn_monomial.testing import random_networks
from nfn_monomial.tools.report import Table

from .contenders import Contender, Make
from .scale_gmn import ScaleGMN

__all__ = ["OURS", "SCALE_GMN", "BesideTiming", "bench_beside", "beside_table", "whole_models"]

OURS, SCALE_GMN = "MessagePassingNFN (both ways)", "ScaleGMN (forward only)"
ROUNDS = 3


@dataclass(frozen=True)
class BesideTiming:
    """One model of so many channels on so many networks: median milliseconds and peak memory of a training step."""

    model: str
    channels: int
    batch: int
    step_ms: float
    peak_bytes: int


def whole_models(space: WeightSpace, batch: int, width: int, device: str) -> Iterator[tuple[str, Make]]:
    """Name -> what makes the model, of three rounds, and its input: MLPs on which signs or scales act."""
    networks = random_networks(space, batch, dtype=torch.float32)
    flips = any(node.flips for node in space.nodes.values())
    fixed = sum(node.size or 1 for node in space.nodes.values() if not node.permutes)

    def dense() -> Contender:
        model = MessagePassingNFN(space, width, ROUNDS, width)
        return Contender(model, [*networks.values()], lambda *t: (model(dict(zip(networks, t, strict=True))),), device)

    def graph() -> Contender:
        graphs, model = to_graph(networks, space).to(device), ScaleGMN(width, ROUNDS, fixed, flips)

        def call(x: Tensor, edge_attr: Tensor) -> tuple[Tensor, ...]:
            given = copy.copy(graphs)
            given.x, given.edge_attr = x, edge_attr
            return (model(given),)

        return Contender(model, [graphs.x, graphs.edge_attr], call, device)

    yield OURS, dense
    yield SCALE_GMN, graph


def bench_beside(
    space: WeightSpace,
    settings: Sequence[tuple[int, int]],
    repeats: int,
    device: str = "cpu",
    progress: Callable[[str], None] = lambda _: None,
) -> list[BesideTiming]:
    """Time training steps; models take turns.

    Args:
        space: of MLPs.
        settings: pairs of channels and numbers of networks.
        repeats: timed repetitions, after three that are not counted.
        device: ``"cpu"`` or ``"cuda"``.
        progress: called with a line of text before each setting.
    """
    timings = []
    for width, batch in settings:
        progress(f"whole models, {width} channels, batch {batch}")
        ready = {name: make() for name, make in whole_models(space, batch, width, device)}
        ms = race({name: contender.step for name, contender in ready.items()}, repeats, device)
        timings += [BesideTiming(name, width, batch, ms[name], c.memory()) for name, c in ready.items()]
    return timings


def beside_table(timings: Sequence[BesideTiming], network: str) -> Table:
    """Medians, memory, and ratios to ours."""
    ours = {(t.channels, t.batch): t for t in timings if t.model == OURS}
    lines = []
    for t in timings:
        own = ours[t.channels, t.batch]
        ratios = f"{t.step_ms / own.step_ms:.1f}x", f"{t.peak_bytes / own.peak_bytes:.1f}x"
        cells = f"{t.step_ms:.2f}", f"{t.peak_bytes / MIB:.1f}"
        lines.append((t.model, str(t.channels), str(t.batch), *cells, *ratios))
    return Table(
        f"Whole models of {ROUNDS} rounds on {network}",
        ("model", "channels", "batch", "step ms", "step MiB", "step / ours", "memory / ours"),
        tuple(lines),
        names=(0, 1, 2),
        notes=("ScaleGMN is written anew after its paper, in torch-geometric, without its code; forward alone.",),
    )
