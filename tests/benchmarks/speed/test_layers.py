"""The layer benchmark: every contender is timed, and ratios say what they claim."""

import pytest
import torch

from nfn_monomial import EquivariantLinear, WeightSpace
from nfn_monomial.benchmarks.speed import layers
from nfn_monomial.benchmarks.speed.layers import (
    CORE,
    GEMM,
    HNP,
    NETWORKS,
    Timing,
    bench_layers,
    layer_tables,
    matrices,
)
from nfn_monomial.testing import random_networks


def test_all_settings_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    small = {name: WeightSpace.mlp([2, 4, 3, 1], symmetry) for name, symmetry in layers.SYMMETRY.items()}
    monkeypatch.setattr(layers, "NETWORKS", {name: lambda space=space: space for name, space in small.items()})
    seen: list[str] = []
    timings = bench_layers((2,), channels=2, repeats=1, progress=seen.append)
    assert seen == [f"{name}, batch 2" for name in NETWORKS]
    assert len(timings) == len(NETWORKS) * (7 + 4)
    assert all(t.forward_ms > 0 and t.both_ms > 0 for t in timings)
    tables = layer_tables(timings)
    assert [t.title for t in tables] == [f"{name}, {what}" for name in NETWORKS for what in ("one layer", "stack of 3")]
    assert [len(t.cells) for t in tables] == [7, 4, 7, 4]


def test_ratios_say_how_many_times_slower_than_the_gemms_and_faster_than_hnp() -> None:
    ms = {GEMM: (1.0, 4.0), CORE: (2.0, 5.0), HNP: (6.0, 20.0)}
    (table,) = layer_tables([Timing("net", 8, "one layer", name, *times) for name, times in ms.items()])
    assert table.cells[1] == (CORE, "8", "2.00", "5.00", "2.00x", "1.25x", "3.0x", "4.0x")
    (stack,) = layer_tables([Timing("net", 8, "stack", name, *ms[name]) for name in (CORE, HNP)])
    assert stack.cells[0][4:] == ("", "", "3.0x", "4.0x"), "no bare products of a stack"


@pytest.mark.parametrize("name", NETWORKS)
def test_the_bare_gemms_are_all_the_products_of_the_layer(name: str) -> None:
    """Without constants, the layer on these networks is nothing but these products."""
    space = NETWORKS[name]()
    layer = EquivariantLinear(space, 2, 3, bias=False)
    x = space.pack(random_networks(space, 2, 2, dtype=torch.float32))
    products = [torch.nn.functional.linear(t, w) for t, w in zip(x.tensors, matrices(layer), strict=True)]
    torch.testing.assert_close(layer(x).tensors, tuple(products))
