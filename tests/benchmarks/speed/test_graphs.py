"""Layers and whole models against one another: contenders compute what they claim, and ratios say what they claim."""

import pytest
import torch
from torch import nn

from nfn_monomial import EquivariantLinear, WeightSpace
from nfn_monomial.adapters.pyg import to_graph
from nfn_monomial.benchmarks.experiments.speed import LAYERS
from nfn_monomial.benchmarks.models.scale_gmn import ScaleGMN
from nfn_monomial.benchmarks.speed import graphs, harness, whole
from nfn_monomial.benchmarks.speed.contenders import (
    COPY,
    DENSE,
    FLOOR,
    OURS,
    PNA,
    PRODUCTS,
    SCALE_GMN,
    PNAWithEdges,
)
from nfn_monomial.benchmarks.speed.graphs import (
    bench_graphs,
    beside_table,
    graph_tables,
    over_floor,
)
from nfn_monomial.benchmarks.speed.harness import NETWORKS, Timing
from nfn_monomial.benchmarks.speed.layers import CORE, GEMM, HNP, layer_tables, matrices
from nfn_monomial.benchmarks.speed.whole import MODELS, Step, bench_models, model_table
from nfn_monomial.testing import random_networks

SMALL = WeightSpace.mlp([2, 4, 3, 1], "relu")


def stepped(step: object, layer: nn.Module, *_: object) -> int:
    """In place of a measured step, which takes a profiler: PNAConv needs the most."""
    return 2**20 * (1 + isinstance(layer, PNAWithEdges))


@pytest.fixture
def _one_small_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "NETWORKS", {"zoo CNN": lambda: SMALL})
    monkeypatch.setattr(harness, "step_memory", stepped)


@pytest.mark.parametrize("name", NETWORKS)
def test_the_bare_gemms_are_all_the_products_of_the_layer(name: str) -> None:
    """Without constants, the layer on these networks is nothing but these products."""
    space = NETWORKS[name]()
    layer = EquivariantLinear(space, 2, 3, bias=False)
    x = space.pack(random_networks(space, 2, 2, dtype=torch.float32))
    products = [torch.nn.functional.linear(t, w) for t, w in zip(x.tensors, matrices(layer), strict=True)]
    torch.testing.assert_close(layer(x).tensors, tuple(products))


@pytest.mark.parametrize("kernel", [0, 3])
@pytest.mark.parametrize("activation", ["sin", "relu"])
def test_scale_gmn_is_invariant_and_reads_the_weights(activation: str, kernel: int) -> None:
    torch.manual_seed(0)
    mlp, cnn = WeightSpace.mlp([2, 5, 4, 1], activation), WeightSpace.cnn([2, 5, 4], 3, activation, head=[1])
    space = cnn if kernel else mlp
    model = ScaleGMN(8, 2, 3, flips=activation == "sin", entries=max(1, kernel**2)).double()
    first, second = ({n: 10 * t for n, t in random_networks(space, 3).items()} for _ in range(2))
    element = space.sample(3, scale_range=(1, 3)) if activation == "relu" else space.sample(3)
    found, moved, other = (model(to_graph(n, space)).detach() for n in (first, element.act(first), second))
    error, change = float((found - moved).abs().max()), float((found - other).abs().min())
    assert error <= 1e-12 * float(found.abs().max())
    assert change > 1e6 * error
    assert change > 0


@pytest.mark.usefixtures("_one_small_network")
def test_what_is_too_large_is_skipped_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "free_bytes", lambda _: 2 * 1.5 * 2**21)  # room for one network, not for two
    timings = bench_graphs((1, 2), width=4, repeats=1)
    skipped = [t for t in timings if t.skipped]
    assert (2, PNA) in [(t.batch, t.contender) for t in skipped]
    assert not [t for t in skipped if t.batch == 1]
    table = graph_tables(timings)[0]
    assert f"{PNA}, batch 2, left out: needs 0.0 GiB, 0.0 GiB are free." in table.notes
    assert next(line for line in table.cells if line[:2] == (PNA, "2"))[3:] == ("-",) * 6
    monkeypatch.setattr(harness, "free_bytes", lambda _: 0.0)
    nothing = bench_graphs((1,), width=4, repeats=1)
    assert [t.contender for t in nothing if not t.skipped] == list(FLOOR)
    assert [t.title for t in graph_tables(nothing)] == ["Message passing on zoo CNN"], "no ratios to what did not run"


def test_ratios() -> None:
    rows = {DENSE: (2.0, 6.0, 100), PNA: (12.0, 30.0, 250), COPY: (0.5, 1.25, 0), PRODUCTS: (1.0, 3.0, 0)}
    timings = [Timing("net", 8, 2, name, f, s, 7 * (m > 0), m) for name, (f, s, m) in rows.items()]
    assert over_floor({t.contender: t for t in timings}) == (2, 2, 2 / 1.5, 6 / 4.25)
    of_all, of_floor = graph_tables(timings)
    assert of_all.cells[0][-3:] == ("1.0x", "1.0x", "1.0x")
    assert of_all.cells[1] == (PNA, "8", "7", "12.00", "30.00", "0.0", "6.0x", "5.0x", "2.5x")
    assert of_floor.cells == (("net", "8", "2.00x", "2.00x", "1.33x", "1.41x"),)

    ms = {GEMM: (1.0, 4.0), CORE: (2.0, 5.0), HNP: (6.0, 20.0)}
    (table,) = layer_tables([Timing("net", 8, 2, name, *both) for name, both in ms.items()])
    assert table.cells[1] == (CORE, "8", "2.00", "5.00", "2.00x", "1.25x", "3.0x", "4.0x")
    (stack,) = layer_tables([Timing("net", 8, 2, name, *ms[name]) for name in (CORE, HNP)])
    assert stack.cells[0][4:] == ("-", "-", "3.0x", "4.0x"), "no bare products of a stack"

    beside = [Timing("net", 2, 4, OURS, 1, 2.0, 1, 2**20), Timing("net", 2, 4, SCALE_GMN, 1, 5.0, 1, 3 * 2**20)]
    cells = beside_table(beside).cells
    assert [line[2:] for line in cells] == [("4", "2.00", "1.0", "1.0x", "1.0x"), ("4", "5.00", "3.0", "2.5x", "3.0x")]


def test_every_way_of_every_model_is_timed_or_said_to_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole, "NETWORKS", {"zoo CNN": lambda: SMALL})
    asked: list[object] = []

    def compiled(call: object, mode: str | None) -> object:
        asked.append(mode)
        return call

    monkeypatch.setattr(torch, "compile", compiled)
    seen: list[str] = []
    ways = LAYERS["quick"].ways
    steps = bench_models((2,), ways, 1, progress=seen.append)
    assert seen == [f"{name}, batch 2" for name in MODELS]
    assert [(s.model, s.way) for s in steps] == [(label, way) for label in MODELS for way in ways]
    assert all(bool(s.ms) == bool(s.first_s) != bool(s.skipped) for s in steps)
    assert asked == [None] * len(MODELS), "no CUDA graphs on a CPU"


def test_gains_are_over_the_first_way_of_the_same_setting() -> None:
    steps = [
        Step("a", 8, "float32", 6.0, 0.5), Step("a", 8, "compiled", 2.0, 20.5), Step("b", 8, "float32", 2.0, 0.1),
        Step("b", 8, "compiled", 4.0, 9.0),
    ]  # fmt: skip
    assert [line[3:] for line in model_table(steps).cells] == [
        ("6.0", "1.00x", "-", "-"), ("2.0", "3.00x", "20.5", "5,000"), ("2.0", "1.00x", "-", "-"),
        ("4.0", "0.50x", "9.0", "never"),
    ]  # fmt: skip
