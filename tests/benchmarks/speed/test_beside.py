"""Whole models in the speed comparison: ScaleGMN is invariant, and both are timed in training steps."""

import pytest
import torch

from nfn_monomial import WeightSpace
from nfn_monomial.adapters.pyg import to_graph
from nfn_monomial.benchmarks.speed.beside import OURS, SCALE_GMN, BesideTiming, bench_beside, beside_table, whole_models
from nfn_monomial.benchmarks.speed.scale_gmn import ScaleGMN
from nfn_monomial.testing import random_networks

SMALL = WeightSpace.mlp([2, 4, 3, 1], "sin")


@pytest.mark.parametrize("activation", ["sin", "relu"])
def test_scale_gmn_is_invariant_and_reads_the_weights(activation: str) -> None:
    torch.manual_seed(0)
    space = WeightSpace.mlp([2, 5, 4, 1], activation)
    model = ScaleGMN(8, 2, 3, flips=activation == "sin").double()
    first, second = ({n: 10 * t for n, t in random_networks(space, 3).items()} for _ in range(2))
    element = space.sample(3, scale_range=(1, 3)) if activation == "relu" else space.sample(3)
    found, moved, other = (model(to_graph(n, space)).detach() for n in (first, element.act(first), second))
    error, change = float((found - moved).abs().max()), float((found - other).abs().min())
    assert error <= 1e-12 * float(found.abs().max())
    assert change > 1e6 * error
    assert change > 0


def test_whole_models_are_timed() -> None:
    timings = bench_beside(SMALL, [(4, 2), (2, 3)], repeats=1)
    assert [(t.model, t.channels, t.batch) for t in timings] == [
        (name, *setting) for setting in ((4, 2), (2, 3)) for name in (OURS, SCALE_GMN)
    ]
    assert all(t.step_ms > 0 and t.peak_bytes > 0 for t in timings)
    for _, make in whole_models(SMALL, 2, 4, "cpu"):
        contender = make()
        assert [y.shape for y in contender.forward()] == [(2, 1)]


def test_ratios_are_to_ours() -> None:
    table = beside_table([BesideTiming(OURS, 4, 2, 2.0, 2**20), BesideTiming(SCALE_GMN, 4, 2, 5.0, 3 * 2**20)], "net")
    assert table.cells[0][3:] == ("2.00", "1.0", "1.0x", "1.0x")
    assert table.cells[1][3:] == ("5.00", "3.0", "2.5x", "3.0x")
