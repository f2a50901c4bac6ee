"""Speed of one layer, as ratios taken in one run: ours, nfn's, and the matrix products that no layer can avoid."""

from __future__ import annotations

import json
import math
import os
import platform
import statistics
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch
from nfn.common import NetworkSpec, WeightSpaceFeatures, network_spec_from_wsfeat
from nfn.layers import HNPLinear, NPLinear, TupleOp
from rich import box
from rich.table import Table
from torch import Tensor, nn

from nfn_monomial import EquivariantLinear, PointwiseActivation, WeightSpace
from nfn_monomial.adapters.nfn import MonomialActivation, MonomialLinear, MonomialStack, from_tensors
from nfn_monomial.testing import random_networks

NETWORKS = {
    "zoo CNN": lambda: WeightSpace.cnn([1, 16, 16, 16], 3, "relu", head=[10]),
    "SIREN 2-32-32-1": lambda: WeightSpace.mlp([2, 32, 32, 1], "sin"),
}
SYMMETRY = {"zoo CNN": "relu", "SIREN 2-32-32-1": "sin"}
GEMM, CORE, HNP = "bare GEMMs", "EquivariantLinear", "nfn HNPLinear"
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Timing:
    """One contender in one setting; times are medians in milliseconds."""

    network: str
    batch: int
    what: str
    contender: str
    forward_ms: float
    both_ms: float

    def ratio(self, other: Timing, forward: bool) -> float:
        """How many times faster this one is than ``other``."""
        return other.forward_ms / self.forward_ms if forward else other.both_ms / self.both_ms


def bench_layers(
    batches: Sequence[int] = (8, 64, 512),
    channels: int = 16,
    repeats: int = 20,
    device: str = "cpu",
    progress: Callable[[str], None] = lambda _: None,
) -> list[Timing]:
    """Time one ``channels -> channels`` layer, and a stack of three with activations, on both networks.

    Contenders take turns within every repetition, so that a slow moment of the machine hits all of them. Backward is
    with respect to inputs and parameters.

    Args:
        batches: numbers of networks.
        channels: of input and output.
        repeats: timed repetitions of each contender, after three that are not counted.
        device: ``"cpu"`` or ``"cuda"``.
        progress: called with a line of text before each setting.
    """
    timings = []
    for name, build in NETWORKS.items():
        for batch in batches:
            progress(f"{name}, batch {batch}")
            for what, contenders in _contenders(name, build(), batch, channels, device).items():
                medians = _race(contenders, repeats, device)
                timings += [Timing(name, batch, what, contender, *ms) for contender, ms in medians.items()]
    return timings


def _contenders(
    name: str, space: WeightSpace, batch: int, channels: int, device: str
) -> dict[str, dict[str, Callable[[], tuple[Tensor, ...]]]]:
    generator = torch.Generator().manual_seed(0)
    tensors = random_networks(space, batch, channels, dtype=torch.float32, generator=generator)
    tensors = {k: v.to(device).requires_grad_() for k, v in tensors.items()}
    packed = space.pack(tensors).detach().map(lambda t: t.requires_grad_())
    wsfeat = from_tensors(tensors)
    spec: NetworkSpec = network_spec_from_wsfeat(wsfeat)
    symmetry = SYMMETRY[name]
    core = EquivariantLinear(space, channels, channels).to(device)
    adapter = MonomialLinear(spec, channels, channels, symmetry=symmetry).to(device)
    np_layer, hnp_layer = (kind(spec, channels, channels).to(device) for kind in (NPLinear, HNPLinear))
    # On both networks each field has one matrix of its own, so these are all the products there are.
    weights = [nn.Parameter(p.detach().clone()) for p in _matrices(core)]

    def outputs(layer: nn.Module, x: WeightSpaceFeatures) -> tuple[Tensor, ...]:
        y = layer(x)
        return (*y.weights, *y.biases)

    act = torch.relu if symmetry == "relu" else torch.tanh
    linear = partial(MonomialLinear, spec, channels, channels, symmetry=symmetry)
    activation = partial(MonomialActivation, spec, act, symmetry=symmetry)
    stack = nn.Sequential(
        *_three(partial(EquivariantLinear, space, channels, channels), partial(PointwiseActivation, space, act))
    ).to(device)
    ours = MonomialStack(spec, *_three(linear, activation)).to(device)
    np_stack, hnp_stack = (
        nn.Sequential(*_three(partial(kind, spec, channels, channels), partial(TupleOp, act))).to(device)
        for kind in (NPLinear, HNPLinear)
    )
    return {
        "one layer": {
            GEMM: lambda: tuple(nn.functional.linear(x, w) for x, w in zip(packed.tensors, weights, strict=True)),
            CORE: lambda: core(packed).tensors,
            "MonomialLinear (nfn in, nfn out)": lambda: outputs(adapter, wsfeat),
            "nfn NPLinear": lambda: outputs(np_layer, wsfeat),
            HNP: lambda: outputs(hnp_layer, wsfeat),
        },
        "stack of 3": {
            CORE: lambda: stack(packed).tensors,
            "MonomialStack (nfn in, nfn out)": lambda: outputs(ours, wsfeat),
            "nfn NPLinear": lambda: outputs(np_stack, wsfeat),
            HNP: lambda: outputs(hnp_stack, wsfeat),
        },
    }


def _matrices(layer: EquivariantLinear) -> list[Tensor]:
    """The layer's matrices in the order of its fields, one each."""
    keys = ["_".join(f"{a.node}{a.charge:+d}" for a in t) or "const" for t in layer.in_layout.types]
    return [layer.mix[key].weight for key in keys]


def _three(layer: Callable[[], nn.Module], activation: Callable[[], nn.Module]) -> list[nn.Module]:
    return [make() for _ in range(3) for make in (layer, activation)]


def _race(
    contenders: dict[str, Callable[[], tuple[Tensor, ...]]], repeats: int, device: str
) -> dict[str, tuple[float, float]]:
    """Median milliseconds of forward, and of forward and backward, for each contender."""
    calls: dict[tuple[str, bool], Callable[[], object]] = {}
    for name, call in contenders.items():
        cotangents = [torch.ones_like(y) for y in call()]
        calls[name, True] = torch.no_grad()(call)
        calls[name, False] = lambda c=call, g=cotangents: torch.autograd.backward(c(), g)
    medians = race(calls, repeats, device)
    return {name: (medians[name, True], medians[name, False]) for name in contenders}


def race(
    calls: Mapping[Key, Callable[[], object]], repeats: int, device: str, seconds: float = math.inf
) -> dict[Key, float]:
    """Median milliseconds of each call, which take turns; the first three rounds are not counted.

    Args:
        calls: what to time.
        repeats: rounds that are counted.
        device: ``"cpu"`` or ``"cuda"``.
        seconds: after so many no further round begins, but for the first that is counted.
    """
    times: dict[Key, list[float]] = {key: [] for key in calls}
    start = time.perf_counter()
    for repeat in range(-3, repeats):
        if repeat > 0 and time.perf_counter() - start > seconds:
            break
        for key, call in calls.items():
            milliseconds = _clock(call, device)
            if repeat >= 0:
                times[key].append(milliseconds)
    return {key: statistics.median(found) for key, found in times.items()}


def _clock(call: Callable[[], object], device: str) -> float:
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - start)


def _ratios(t: Timing, timings: Sequence[Timing]) -> tuple[list[str], list[str]]:
    """Forward and forward + backward: times the bare GEMMs (empty where there are none), and faster than HNPLinear."""
    peers = {p.contender: p for p in timings if (p.network, p.batch, p.what) == (t.network, t.batch, t.what)}
    floor, hnp = peers.get(GEMM), peers[HNP]
    over = [f"{floor.ratio(t, forward):.2f}x" if floor else "" for forward in (True, False)]
    return over, [f"{t.ratio(hnp, forward):.1f}x" for forward in (True, False)]


def as_markdown(timings: Sequence[Timing]) -> str:
    """A table of medians, and of ratios to the bare GEMMs and to HNPLinear of the same setting."""
    lines = [
        "| network | batch | what | layer | forward ms | fwd+bwd ms | times the GEMMs (fwd, fwd+bwd) "
        "| faster than HNPLinear (fwd, fwd+bwd) |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for t in timings:
        over, faster = _ratios(t, timings)
        lines.append(
            f"| {t.network} | {t.batch} | {t.what} | {t.contender} | {t.forward_ms:.2f} | {t.both_ms:.2f} "
            f"| {', '.join(filter(None, over))} | {', '.join(faster)} |"
        )
    return "\n".join(lines) + "\n"


def rich_tables(timings: Sequence[Timing]) -> list[Table]:
    """One table a setting, narrow enough for a terminal."""
    tables: dict[str, Table] = {}
    for t in timings:
        name = f"{t.network}, batch {t.batch}, {t.what}"
        if name not in tables:
            tables[name] = Table(title=name, box=box.SIMPLE_HEAD, title_justify="left")
            for i, column in enumerate(("layer", "fwd ms", "both ms", "/ GEMMs", "", "vs HNP", "")):
                tables[name].add_column(column, justify="right" if i else "left", no_wrap=True)
        over, faster = _ratios(t, timings)
        contender = t.contender.split(" (")[0]
        tables[name].add_row(contender, f"{t.forward_ms:.2f}", f"{t.both_ms:.2f}", *over, *faster)
    return list(tables.values())


def write(timings: Sequence[Timing], out: Path, device: str) -> tuple[Path, Path]:
    """Write ``layers.json`` and ``layers.md`` into ``out``; returns both paths."""
    out.mkdir(parents=True, exist_ok=True)
    record, table = out / "layers.json", out / "layers.md"
    record.write_text(json.dumps({"machine": machine(device), "timings": [asdict(t) for t in timings]}, indent=1))
    table.write_text(as_markdown(timings))
    return record, table


def machine(device: str) -> dict[str, object]:
    """What the times were taken on."""
    return {
        "device": torch.cuda.get_device_name() if device.startswith("cuda") else platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }
