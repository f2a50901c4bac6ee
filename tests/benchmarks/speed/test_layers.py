import json
from pathlib import Path

import pytest
import torch

from nfn_monomial import EquivariantLinear
from nfn_monomial.benchmarks.speed.layers import (
    CORE,
    GEMM,
    HNP,
    NETWORKS,
    Timing,
    _matrices,
    as_markdown,
    bench_layers,
    rich_tables,
    write,
)
from nfn_monomial.testing import random_networks


def test_all_settings_are_timed_and_written(tmp_path: Path) -> None:
    seen: list[str] = []
    timings = bench_layers((2,), channels=2, repeats=1, progress=seen.append)
    assert seen == [f"{name}, batch 2" for name in NETWORKS]
    assert len(timings) == len(NETWORKS) * (5 + 4)
    assert all(t.forward_ms > 0 and t.both_ms > 0 for t in timings)
    record, table = write(timings, tmp_path, "cpu")
    assert [Timing(**t) for t in json.loads(record.read_text())["timings"]] == timings
    assert table.read_text() == as_markdown(timings)
    assert len(rich_tables(timings)) == 2 * len(NETWORKS)


def test_ratios_say_how_many_times_slower_than_the_gemms_and_faster_than_hnp() -> None:
    ms = {GEMM: (1.0, 4.0), CORE: (2.0, 5.0), HNP: (6.0, 20.0)}
    text = as_markdown([Timing("net", 8, "one layer", name, *times) for name, times in ms.items()])
    row = next(line for line in text.splitlines() if CORE in line)
    assert "| 2.00x, 1.25x | 3.0x, 4.0x |" in row


@pytest.mark.parametrize("name", NETWORKS)
def test_the_bare_gemms_are_all_the_products_of_the_layer(name: str) -> None:
    """Without constants, the layer on these networks is nothing but these products."""
    space = NETWORKS[name]()
    layer = EquivariantLinear(space, 2, 3, bias=False)
    x = space.pack(random_networks(space, 2, 2, dtype=torch.float32))
    products = [torch.nn.functional.linear(t, w) for t, w in zip(x.tensors, _matrices(layer), strict=True)]
    assert all(torch.equal(a, b) for a, b in zip(layer(x).tensors, products, strict=True))
