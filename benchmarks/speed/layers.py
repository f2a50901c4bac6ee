"""Speed of one layer, and of a stack of three: ours, and nfn's NPLinear and HNPLinear."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from nfn.common import NetworkSpec, WeightSpaceFeatures, network_spec_from_wsfeat
from nfn.layers import HNPLinear, NPLinear, TupleOp
from torch import Tensor, nn

from nfn_monomial import EquivariantLinear, Features, PointwiseActivation, WeightSpace
from nfn_monomial.adapters.nfn import MonomialActivation, MonomialLinear, MonomialStack, from_tensors
from nfn_monomial.testing import random_networks
from nfn_monomial.tools.report import Table

from .harness import NETWORKS, Contender, Make, Timing, fewer, measured, parts, ratio_tables

__all__ = ["CORE", "HNP", "bench_layers", "layer_tables"]

SYMMETRY = {"zoo CNN": "relu", "SIREN 2-32-32-1": "sin"}
CORE, HNP = "EquivariantLinear", "nfn HNPLinear"


def bench_layers(
    batches: Sequence[int],
    channels: int,
    repeats: int,
    device: str = "cpu",
    progress: Callable[[str], None] = lambda _: None,
) -> list[Timing]:
    """Times one ``channels -> channels`` layer, and a stack of three with activations, on both networks.

    Args:
        batches: numbers of networks.
        channels: of input and output.
        repeats: timed repetitions of each contender, after three that are not counted.
        device: ``"cpu"`` or ``"cuda"``.
        progress: called with a line of text before each setting.
    """
    timings: list[Timing] = []
    for name, build in NETWORKS.items():
        for batch in batches:
            progress(f"{name}, batch {batch}")
            for what, makes in _contenders(name, build(), batch, channels, device).items():
                timings += measured(f"{name}, {what}", batch, channels, makes, repeats, device, memory=False)
    return timings


def _contenders(name: str, space: WeightSpace, batch: int, channels: int, device: str) -> dict[str, dict[str, Make]]:
    generator = torch.Generator().manual_seed(0)
    tensors = random_networks(space, batch, channels, dtype=torch.float32, generator=generator)
    packed, wsfeat = space.pack(tensors), from_tensors(tensors)
    spec: NetworkSpec = network_spec_from_wsfeat(wsfeat)
    symmetry, depth = SYMMETRY[name], len(wsfeat.weights)

    def ours(*layers: nn.Module) -> Contender:
        stack = nn.Sequential(*layers)
        return Contender(stack, packed.tensors, lambda *t: stack(Features(packed.layout, t)).tensors, device)

    def nfns(layer: nn.Module) -> Contender:
        def call(*t: Tensor) -> tuple[Tensor, ...]:
            y = layer(WeightSpaceFeatures(t[:depth], t[depth:]))
            return (*y.weights, *y.biases)

        return Contender(layer, [*wsfeat.weights, *wsfeat.biases], call, device)

    act = torch.relu if symmetry == "relu" else torch.tanh
    core = partial(EquivariantLinear, space, channels, channels)
    linear = partial(MonomialLinear, spec, channels, channels)
    activation = partial(MonomialActivation, spec, act, symmetry=symmetry)
    permuted = partial(linear, symmetry="permutation")
    np_layer, hnp_layer = (partial(kind, spec, channels, channels) for kind in (NPLinear, HNPLinear))
    return {
        "one layer": {
            CORE: lambda: ours(core()),
            "MonomialLinear (nfn in, nfn out)": lambda: nfns(linear(symmetry=symmetry)),
            "MonomialLinear with NPLinear's maps": lambda: nfns(permuted(io_symmetry="permutation")),
            "nfn NPLinear": lambda: nfns(np_layer()),
            "MonomialLinear with HNPLinear's maps": lambda: nfns(permuted()),
            HNP: lambda: nfns(hnp_layer()),
        },
        "stack of 3": {
            CORE: lambda: ours(*_three(core, partial(PointwiseActivation, space, act))),
            "MonomialStack (nfn in, nfn out)": lambda: nfns(
                MonomialStack(spec, *_three(partial(linear, symmetry=symmetry), activation))
            ),
            "nfn NPLinear": lambda: nfns(nn.Sequential(*_three(np_layer, partial(TupleOp, act)))),
            HNP: lambda: nfns(nn.Sequential(*_three(hnp_layer, partial(TupleOp, act)))),
        },
    }


def _three(layer: Callable[[], nn.Module], activation: Callable[[], nn.Module]) -> list[nn.Module]:
    return [make() for _ in range(3) for make in (layer, activation)]


def layer_tables(timings: Sequence[Timing]) -> list[Table]:
    """A table for every network, of one layer and of a stack: medians, and ratios to others of the same setting."""
    columns = {
        "forward ms": parts("forward_ms"),
        "both ms": parts("step_ms"),
        "forward: HNP /": fewer("forward_ms", HNP),
        "both: HNP /": fewer("step_ms", HNP),
    }
    note = "Medians of forward, and of forward and backward (both). HNP /: how many times faster than nfn's HNPLinear."
    return ratio_tables(timings, columns, note)
