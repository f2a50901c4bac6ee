"""Speed of one layer, as ratios taken in one run: ours, nfn's, and the matrix products that no layer can avoid."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

import torch
from nfn.common import NetworkSpec, WeightSpaceFeatures, network_spec_from_wsfeat
from nfn.layers import HNPLinear, NPLinear, TupleOp
from torch import Tensor, nn

from nfn_monomial import EquivariantLinear, PointwiseActivation, WeightSpace
from nfn_monomial.adapters.nfn import MonomialActivation, MonomialLinear, MonomialStack, from_tensors
from nfn_monomial.benchmarks.train.measure import race
from nfn_monomial.testing import random_networks
from nfn_monomial.tools.report import Table

__all__ = ["CORE", "GEMM", "HNP", "NETWORKS", "Timing", "bench_layers", "layer_tables", "matrices"]

NETWORKS: dict[str, Callable[[], WeightSpace]] = {
    "zoo CNN": lambda: WeightSpace.cnn([1, 16, 16, 16], 3, "relu", head=[10]),
    "SIREN 2-32-32-1": lambda: WeightSpace.mlp([2, 32, 32, 1], "sin"),
}
SYMMETRY = {"zoo CNN": "relu", "SIREN 2-32-32-1": "sin"}
GEMM, CORE, HNP = "bare GEMMs", "EquivariantLinear", "nfn HNPLinear"


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
    batches: Sequence[int],
    channels: int,
    repeats: int,
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
    hnp_maps = MonomialLinear(spec, channels, channels, symmetry="permutation").to(device)
    np_maps = MonomialLinear(spec, channels, channels, symmetry="permutation", io_symmetry="permutation").to(device)
    np_layer, hnp_layer = (kind(spec, channels, channels).to(device) for kind in (NPLinear, HNPLinear))
    # On both networks each field has one matrix of its own, so these are all the products there are.
    weights = [nn.Parameter(p.detach().clone()) for p in matrices(core)]

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
            "MonomialLinear with NPLinear's maps": lambda: outputs(np_maps, wsfeat),
            "nfn NPLinear": lambda: outputs(np_layer, wsfeat),
            "MonomialLinear with HNPLinear's maps": lambda: outputs(hnp_maps, wsfeat),
            HNP: lambda: outputs(hnp_layer, wsfeat),
        },
        "stack of 3": {
            CORE: lambda: stack(packed).tensors,
            "MonomialStack (nfn in, nfn out)": lambda: outputs(ours, wsfeat),
            "nfn NPLinear": lambda: outputs(np_stack, wsfeat),
            HNP: lambda: outputs(hnp_stack, wsfeat),
        },
    }


def matrices(layer: EquivariantLinear) -> list[Tensor]:
    """The layer's matrices in the order of its fields, one each."""
    keys = ["_".join(f"{a.node}{a.charge:+d}" for a in t) or "const" for t in layer.in_layout.types]
    return [cast("nn.Linear", layer.mix[key]).weight for key in keys]


def _three(layer: Callable[[], nn.Module], activation: Callable[[], nn.Module]) -> list[nn.Module]:
    return [make() for _ in range(3) for make in (layer, activation)]


def _both(call: Callable[[], tuple[Tensor, ...]], cotangents: Sequence[Tensor]) -> None:
    torch.autograd.backward(call(), cotangents)


def _race(
    contenders: dict[str, Callable[[], tuple[Tensor, ...]]], repeats: int, device: str
) -> dict[str, tuple[float, float]]:
    """Median milliseconds of forward, and of forward and backward, for each contender."""
    calls: dict[tuple[str, bool], Callable[[], object]] = {}
    for name, call in contenders.items():
        cotangents = [torch.ones_like(y) for y in call()]
        calls[name, True] = torch.no_grad()(call)
        calls[name, False] = partial(_both, call, cotangents)
    medians = race(calls, repeats, device)
    return {name: (medians[name, True], medians[name, False]) for name in contenders}


def layer_tables(timings: Sequence[Timing]) -> list[Table]:
    """A table for every network, of one layer and of a stack: medians, and ratios to others of the same setting."""
    groups: dict[tuple[str, str], list[Timing]] = {}
    for t in timings:
        groups.setdefault((t.network, t.what), []).append(t)
    ratios = ("forward / GEMMs", "both / GEMMs", "forward: HNP /", "both: HNP /")
    return [
        Table(
            f"{network}, {what}",
            ("layer", "batch", "forward ms", "both ms", *ratios),
            tuple(
                (t.contender, str(t.batch), f"{t.forward_ms:.2f}", f"{t.both_ms:.2f}", *_ratios(t, group))
                for t in group
            ),
            names=(0, 1),
            notes=(
                "Medians of forward, and of forward and backward (both). / GEMMs: times the bare matrix products. "
                "HNP /: how many times faster than nfn's HNPLinear.",
            ),
        )
        for (network, what), group in groups.items()
    ]


def _ratios(t: Timing, group: Sequence[Timing]) -> list[str]:
    """Times the bare GEMMs (empty where there are none), and faster than HNPLinear: forward and both, each."""
    peers = {p.contender: p for p in group if p.batch == t.batch}
    floor, hnp = peers.get(GEMM), peers[HNP]
    over = [f"{floor.ratio(t, forward):.2f}x" if floor else "" for forward in (True, False)]
    return [*over, *(f"{t.ratio(hnp, forward):.1f}x" for forward in (True, False))]
