"""The graph side of the layer benchmark: contenders compute what they claim, all is timed, skipped or written."""

import json
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from typer.testing import CliRunner

from nfn_monomial import Features, MessagePassing, WeightSpace
from nfn_monomial.adapters.pyg import MonomialConv
from nfn_monomial.benchmarks.cli import application as cli
from nfn_monomial.benchmarks.speed import graphs as graph_speed
from nfn_monomial.benchmarks.speed import report as graph_report
from nfn_monomial.benchmarks.speed import scaling as graph_scaling
from nfn_monomial.benchmarks.speed.graphs import (
    COMPILED,
    COPY,
    DENSE,
    FLOOR,
    GRAPH,
    PNA,
    PRODUCTS,
    UNTIED,
    GraphTiming,
    PNAWithEdges,
    Products,
    as_graph,
    bench_graphs,
    contenders,
    floor,
    neuron_features,
)
from nfn_monomial.benchmarks.speed.layers import NETWORKS, race
from nfn_monomial.benchmarks.speed.report import as_markdown, ratios, rich_tables, write
from nfn_monomial.benchmarks.speed.scaling import Point, Scaling, bench_scaling

SMALL = WeightSpace.mlp([2, 4, 3, 1], "relu")


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KINETO_LOG_LEVEL", "6")


def test_all_settings_are_timed_and_written(tmp_path: Path) -> None:
    seen: list[str] = []
    timings = bench_graphs((2,), width=4, repeats=1, progress=seen.append)
    assert seen == [f"{name}, batch 2" for name in NETWORKS]
    assert [t.contender for t in timings] == 2 * [DENSE, UNTIED, GRAPH, PNA, *FLOOR]
    assert all(t.forward_ms > 0 and t.step_ms > 0 and not t.skipped for t in timings)
    assert all((t.peak_bytes > 0) == (t.contender not in FLOOR) for t in timings)
    scaling = bench_scaling((2, 4), batch=1, channels=2, repeats=1)
    paths = write(timings, scaling, tmp_path, "cpu", 4)
    record = json.loads(paths["data"].read_text())
    assert [GraphTiming(**t) for t in record["timings"]] == timings
    assert record["ratios"][0]["slower"][DENSE] == [1.0, 1.0, 1.0]
    assert set(record["scaling"]["slopes"]) == {DENSE, GRAPH, PNA}
    assert paths["table"].read_text() == as_markdown(timings, scaling)
    assert paths["figure"].read_bytes().startswith(b"\x89PNG")
    assert len(rich_tables(timings)) == len(NETWORKS)
    assert set(write(timings, None, tmp_path / "no_figure", "cpu", 4)) == {"table", "data"}


def test_dense_and_graph_contenders_have_the_same_input_in_their_own_layout() -> None:
    """With the same parameters, they compute the same function on it."""
    features = neuron_features(SMALL, 3, 4)
    x, edge_index, edge_attr = as_graph(features, SMALL)
    dense, conv = MessagePassing(SMALL, 4, tied=True), MonomialConv(4)
    conv.edges.load_state_dict(dense.edges["all"].state_dict())
    conv.nodes.load_state_dict(dense.nodes["all"].state_dict())
    expected_x, _, expected_edges = as_graph(dense(features), SMALL)
    found_x, found_edges = conv(x, edge_index, edge_attr)
    torch.testing.assert_close(found_x, expected_x)
    torch.testing.assert_close(found_edges, expected_edges)


def test_the_pna_contender_updates_edges_from_both_ends() -> None:
    x, edge_index, edge_attr = as_graph(neuron_features(SMALL, 1, 4), SMALL)
    layer = PNAWithEdges(4, torch.bincount(edge_index[1]))
    nodes, edges = layer(x[:, :4], edge_index, edge_attr)
    assert nodes.shape == (10, 4)
    assert edges.shape == edge_attr.shape
    for end in edge_index[:, 5]:
        moved = x[:, :4].index_fill(0, end, 7.0)
        assert not torch.equal(layer(moved, edge_index, edge_attr)[1][5], edges[5])


def test_products_are_those_of_the_layer() -> None:
    """Counted independently, by the profiler: the tied layer's multiply-adds in matrix products."""
    features = neuron_features(SMALL, 3, 4)
    layer = MessagePassing(SMALL, 4, tied=True)
    with FlopCounterMode(display=False) as counter:
        layer(features)
    expected = counter.get_total_flops() // 2
    assert floor(SMALL, 3, 4)["forward_multiply_adds"] == expected
    assert sum(t.numel() for t in Products(SMALL, 4)(features)) * 4 == expected
    entries = sum(t.numel() for t in features.tensors)
    assert floor(SMALL, 3, 4)["forward_bytes"] == 2 * 4 * entries
    assert floor(SMALL, 3, 4)["step_bytes"] == 5 * 4 * entries


def test_a_step_gives_all_gradients_and_its_memory_is_at_least_its_input_and_gradients() -> None:
    for _, make in contenders(SMALL, 2, 4, "cpu"):
        contender = make()
        gradients = contender.step()
        assert len(gradients) == len(contender.inputs) + len(list(contender.layer.parameters()))
        assert contender.memory() >= 2 * sum(t.nbytes for t in contender.inputs)


def test_what_is_too_large_is_skipped_and_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    peaks = {name: make().memory() for name, make in contenders(NETWORKS["zoo CNN"](), 1, 4, "cpu")}
    monkeypatch.setattr(graph_speed, "NETWORKS", {"zoo CNN": NETWORKS["zoo CNN"]})
    monkeypatch.setattr(graph_speed, "_free_bytes", lambda _: 2.0 * 2 * peaks[PNA] - 1)
    timings = bench_graphs((1, 2), width=4, repeats=1)
    skipped = [t for t in timings if t.skipped]
    assert (2, PNA) in [(t.batch, t.contender) for t in skipped]
    assert not [t for t in skipped if t.batch == 1]
    text = as_markdown(timings)
    assert f"{PNA} (skipped: needs 0.0 GiB, 0.0 GiB are free)" in text
    assert f"{PNA} (too large)" in rich_tables(timings)[1].columns[0]._cells
    monkeypatch.setattr(graph_speed, "_free_bytes", lambda _: 0.0)
    nothing = bench_graphs((1,), width=4, repeats=1)
    assert [t.contender for t in nothing if not t.skipped] == list(FLOOR)
    assert ratios(nothing) == []
    assert write(nothing, None, tmp_path, "cpu", 4)["table"].exists()
    scaling = bench_scaling((2, 4), batch=1, channels=2, repeats=1)
    assert {p.width for p in scaling.points} == {2}  # the first width is tried: nothing is known of it
    assert len(scaling.skipped) == 3
    assert "left out at n = 4" in scaling.as_markdown()


def test_ratios_are_to_the_tied_dense_layer() -> None:
    rows = {DENSE: (2.0, 6.0, 100), PNA: (12.0, 30.0, 250), COPY: (0.5, 1.25, 0), PRODUCTS: (1.0, 3.0, 0)}
    timings = [GraphTiming("net", 8, name, f, s, 7 * (m > 0), m) for name, (f, s, m) in rows.items()]
    (found,) = ratios(timings)
    assert found.slower == {DENSE: (1, 1, 1), PNA: (6, 5, 2.5)}
    assert found.over_larger == (2, 2)
    assert found.over_sum == (2 / 1.5, 6 / 4.25)
    row = next(line for line in as_markdown(timings).splitlines() if PNA in line)
    assert row.endswith("| 6.0x | 5.0x | 2.5x |")


def test_slopes_are_one_for_linear_growth_and_two_for_quadratic() -> None:
    sizes = [10, 100, 1000, 10000]
    points = [Point("linear", n, n, 3.0 * n, 5 * n) for n in sizes]
    points += [Point("quadratic", n, n, 3.0 * n * n, 5 * n) for n in sizes]
    scaling = Scaling(points, 1, 1, [])
    slopes = scaling.slopes()
    assert slopes["linear"] == {"time": pytest.approx(1), "memory": pytest.approx(1)}
    assert slopes["quadratic"] == {"time": pytest.approx(2), "memory": pytest.approx(1)}
    assert "| quadratic | 2.00 | 1.00 |" in scaling.as_markdown()


def test_a_race_stops_when_time_is_up_but_times_every_call() -> None:
    calls = {"a": lambda: None, "b": lambda: None}
    assert set(race(calls, 10**9, "cpu", seconds=0.0)) == {"a", "b"}


def test_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nfn_monomial.benchmarks.speed.layers.bench_layers", lambda *_: [])
    for module in (graph_speed, graph_report):
        monkeypatch.setattr(module, "NETWORKS", {"zoo CNN": NETWORKS["zoo CNN"]})
    arguments = ["bench", "layers", "--batches", "2", "--repeats", "1", "--width", "2", "--widths", "2,3", "--out"]
    result = CliRunner().invoke(cli.app, [*arguments, str(tmp_path / "with")])
    assert result.exit_code == 0, result.output
    assert f"{DENSE}: time grows as edges^" in result.output
    assert {p.name for p in (tmp_path / "with").iterdir()} >= {"graphs.md", "graphs.json", "graphs.png"}
    result = CliRunner().invoke(cli.app, [*arguments, str(tmp_path / "without"), "--no-graphs"])
    assert result.exit_code == 0, result.output
    assert {p.name for p in (tmp_path / "without").iterdir()} == {"layers.md", "layers.json"}


def test_the_compiled_contender_computes_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    def traced(call: object, fullgraph: bool) -> object:
        asked.append(fullgraph)
        return call

    monkeypatch.setattr(torch, "compile", traced)
    made = {name: make() for name, make in contenders(SMALL, 2, 3, "cpu", compiled=True)}
    assert asked == [True]
    made[COMPILED].layer.load_state_dict(made[DENSE].layer.state_dict())
    pairs = zip(made[COMPILED].forward(), made[DENSE].forward(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    monkeypatch.setattr(graph_speed, "NETWORKS", {"zoo CNN": NETWORKS["zoo CNN"]})
    timings = bench_graphs((1,), width=2, repeats=1, compiled=True)
    assert COMPILED in [t.contender for t in timings]


def test_layouts_agree() -> None:
    """Contenders take tensors one by one; features put them together again."""
    features = neuron_features(SMALL, 2, 3)
    name, make = next(iter(contenders(SMALL, 2, 3, "cpu")))
    contender = make()
    assert name == DENSE
    expected = contender.layer(Features(features.layout, tuple(contender.inputs))).tensors
    assert all(torch.equal(a, b) for a, b in zip(contender.forward(), expected, strict=True))
    assert graph_scaling.WIDTHS[0] == 16
    assert graph_scaling.WIDTHS[-1] == 512
