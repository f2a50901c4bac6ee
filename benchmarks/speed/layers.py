"""Speed of one layer, and of a stack of three: ours, and nfn's NPLinear and HNPLinear; and of `balance`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from nfn.common import NetworkSpec, WeightSpaceFeatures, network_spec_from_wsfeat
from nfn.layers import HNPLinear, NPLinear, TupleOp
from torch import Tensor, nn

from nfn_monomial import EquivariantLinear, Features, PointwiseActivation, WeightSpace, balance
from nfn_monomial.adapters.nfn import MonomialActivation, MonomialLinear, MonomialStack, from_tensors
from nfn_monomial.nn import MessageBlock, NeuronEmbedding, NeuronReadout
from nfn_monomial.testing import random_networks
from nfn_monomial.tools.report import Table

from .harness import NETWORKS, Contender, Make, Timing, fewer, measured, parts, ratio_tables

__all__ = ["CORE", "HNP", "balance_tables", "bench_balance", "bench_layers", "layer_tables"]

SYMMETRY = {"zoo CNN": "relu", "SIREN 2-32-32-1": "sin"}
CORE, HNP = "EquivariantLinear", "nfn HNPLinear"


def bench_layers(
    batches: Sequence[int],
    channels: int,
    repeats: int,
    device: str = "cpu",
    progress: Callable[[str], None] = lambda _: None,
) -> list[Timing]:
    """Times one ``channels -> channels`` layer, and a stack of three with activations.

    Networks are those of `SYMMETRY`: linear layers mix all pairs of tensors, which takes long where layers are many.

    Args:
        batches: numbers of networks.
        channels: of input and output.
        repeats: timed repetitions of each contender, after three that are not counted.
        device: ``"cpu"`` or ``"cuda"``.
        progress: called with a line of text before each setting.
    """
    timings: list[Timing] = []
    for name, build in NETWORKS.items():
        for batch in batches if name in SYMMETRY else ():
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

    def messages() -> Contender:
        # Message passing works on networks whose scales are balanced.
        inner = space.restricted("sign")
        embed, readout = NeuronEmbedding(inner, channels, channels), NeuronReadout(inner, channels, channels)
        blocks = nn.Sequential(*[MessageBlock(inner, channels) for _ in range(3)])
        features = inner.pack(tensors)

        def call(*t: Tensor) -> tuple[Tensor, ...]:
            out: Features = readout(blocks(embed(Features(features.layout, t), in_buckets=True)))
            return out.tensors

        return Contender(nn.ModuleList([embed, blocks, readout]), features.tensors, call, device)

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
            "message passing (3 blocks)": messages,
        },
    }


def _three(layer: Callable[[], nn.Module], activation: Callable[[], nn.Module]) -> list[nn.Module]:
    return [make() for _ in range(3) for make in (layer, activation)]


def layer_tables(timings: Sequence[Timing]) -> list[Table]:
    """A table for every network, of one layer and of a stack: medians, and ratios to others of the same setting."""
    columns = {
        "forward ms": parts("forward_ms"),
        "both ms": parts("step_ms"),
        "operators": parts("step_operators", ".0f"),
        "forward: HNP /": fewer("forward_ms", HNP),
        "both: HNP /": fewer("step_ms", HNP),
    }
    note = (
        "Medians of forward, and of forward and backward (both). operators: of both, without views. HNP /: how many "
        "times faster than nfn's HNPLinear."
    )
    return ratio_tables(timings, columns, note)


def bench_balance(
    batches: Sequence[int],
    repeats: int,
    device: str = "cpu",
    progress: Callable[[str], None] = lambda _: None,
) -> list[Timing]:
    """Times `balance` of networks with random weights; for arguments see `bench_layers`."""
    timings: list[Timing] = []
    for name, build in NETWORKS.items():
        space = build()
        for batch in batches:
            progress(f"balance of {name}, batch {batch}")
            tensors = random_networks(space, batch, dtype=torch.float32, generator=torch.Generator().manual_seed(0))

            def call(*t: Tensor, space: WeightSpace = space) -> tuple[Tensor, ...]:
                canonical, _ = balance(dict(zip(space.parameters, t, strict=True)), space)
                return tuple(canonical.values())

            weights = [tensors[parameter] for parameter in space.parameters]
            makes: dict[str, Make] = {name: partial(Contender, nn.Identity(), weights, call, device)}
            timings += measured("balance", batch, 1, makes, repeats, device, memory=False)
    return timings


def balance_tables(timings: Sequence[Timing]) -> list[Table]:
    """One table of all networks."""
    columns = {"ms": parts("forward_ms"), "operators": parts("forward_operators", ".0f")}
    note = "Medians; scales are found in float64. Operators without views."
    return ratio_tables(timings, columns, note, "Canonical forms: {}")
