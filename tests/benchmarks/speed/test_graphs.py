"""Layers against one another: what is too large is left out, and ratios say what they claim."""

import pytest
from torch import nn

from nfn_monomial import WeightSpace
from nfn_monomial.benchmarks.models.graphs import PNAWithEdges
from nfn_monomial.benchmarks.speed import graphs, harness
from nfn_monomial.benchmarks.speed.graphs import DENSE, PNA, bench_graphs, graph_tables
from nfn_monomial.benchmarks.speed.harness import Timing
from nfn_monomial.benchmarks.speed.layers import CORE, HNP, layer_tables

SMALL = WeightSpace.mlp([2, 4, 3, 1], "relu")


def stepped(step: object, layer: nn.Module, *_: object) -> int:
    """In place of a measured step, which takes a profiler: PNAConv needs the most."""
    return 2**20 * (1 + any(isinstance(part, PNAWithEdges) for part in layer.modules()))


@pytest.fixture
def _one_small_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "NETWORKS", {"zoo CNN": lambda: SMALL})
    monkeypatch.setattr(harness, "step_memory", stepped)


@pytest.mark.usefixtures("_one_small_network")
def test_what_is_too_large_is_skipped_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "free_bytes", lambda _: 2 * 1.5 * 2**21)  # room for one network, not for two
    timings = bench_graphs((1, 2), width=4, repeats=1)
    skipped = [t for t in timings if t.skipped]
    assert (2, PNA) in [(t.batch, t.contender) for t in skipped]
    assert not [t for t in skipped if t.batch == 1]
    table = graph_tables(timings)[0]
    assert f"{PNA}, batch 2, left out: needs 0.0 GiB, 0.0 GiB are free." in table.notes
    assert next(line for line in table.cells if line[:2] == (PNA, "2"))[3:] == ("-",) * 7
    monkeypatch.setattr(harness, "free_bytes", lambda _: 0.0)
    nothing = bench_graphs((1,), width=4, repeats=1)
    assert all(t.skipped for t in nothing)
    assert {line[2:] for line in graph_tables(nothing)[0].cells} == {("-",) * 8}, "no ratios to what did not run"


def test_ratios() -> None:
    rows = {DENSE: (2.0, 6.0, 100), PNA: (12.0, 30.0, 250)}
    timings = [Timing("net", 8, 2, name, f, s, 50, 120, 7, m) for name, (f, s, m) in rows.items()]
    timings.append(Timing("net", 64, 2, DENSE, 1.0, 1.0, 1, 1, 7, 1))
    (table,) = graph_tables(timings)
    assert table.title == "Message passing on net"
    assert table.cells[0][-3:] == ("1.0x", "1.0x", "1.0x")
    assert table.cells[1] == (PNA, "8", "7", "12.00", "30.00", "120", "0.0", "6.0x", "5.0x", "2.5x")
    assert table.cells[2][-3:] == ("1.0x", "1.0x", "1.0x"), "each batch has its own base"

    ms = {CORE: (2.0, 5.0), HNP: (6.0, 20.0)}
    of_layers = [Timing(name, 8, 2, layer, *both) for name in ("net", "other") for layer, both in ms.items()]
    tables = layer_tables(of_layers)
    assert [t.title for t in tables] == ["net", "other"]
    assert tables[0].cells == (
        (CORE, "8", "2.00", "5.00", "-", "3.0x", "4.0x"),
        (HNP, "8", "6.00", "20.00", "-", "1.0x", "1.0x"),
    )
