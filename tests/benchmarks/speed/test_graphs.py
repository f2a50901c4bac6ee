"""The graph side of the layer benchmark: contenders compute what they claim, all is timed, skipped or written."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from nfn_monomial import Features, MessagePassing, WeightSpace
from nfn_monomial.adapters.pyg import MonomialConv
from nfn_monomial.benchmarks.settings.measurements import LayersConfig
from nfn_monomial.benchmarks.speed import graphs, layers, memory
from nfn_monomial.benchmarks.speed.contenders import (
    COMPILED,
    COPY,
    DENSE,
    FLOOR,
    GRAPH,
    PNA,
    PRODUCTS,
    UNTIED,
    PNAWithEdges,
    Products,
    as_graph,
    contenders,
    floor,
    neuron_features,
)
from nfn_monomial.benchmarks.speed.graphs import (
    GraphTiming,
    bench_graphs,
    bench_speed,
    graph_tables,
    over_dense,
    over_floor,
)

SMALL = WeightSpace.mlp([2, 4, 3, 1], "relu")


@pytest.fixture
def _one_small_network(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (graphs, layers):
        monkeypatch.setattr(module, "NETWORKS", {"zoo CNN": lambda: SMALL})
    monkeypatch.setattr(graphs, "MODELS", "zoo CNN")


@pytest.mark.usefixtures("_one_small_network")
def test_all_settings_are_timed_and_reported() -> None:
    seen: list[str] = []
    report = bench_speed(LayersConfig((2,), 2, 1, True, 4), seen.append)
    assert seen == ["zoo CNN, batch 2", "whole models, 4 channels, batch 2", "zoo CNN, batch 2"]
    timings = [GraphTiming(**t) for t in report.results["graphs"]]
    assert [t.contender for t in timings] == [DENSE, UNTIED, GRAPH, PNA, *FLOOR]
    assert all(t.forward_ms > 0 and t.step_ms > 0 and not t.skipped for t in timings)
    assert all((t.peak_bytes > 0) == (t.contender not in FLOOR) for t in timings)
    assert len(report.results["layers"]) == 7 + 4
    assert [table.title for table in report.tables] == [
        "zoo CNN, one layer",
        "zoo CNN, stack of 3",
        "Message passing on zoo CNN",
        "The tied dense layer against what it cannot avoid",
        "Whole models of 3 rounds on zoo CNN",
    ]
    assert [line[0] for line in report.tables[2].cells] == [DENSE, UNTIED, GRAPH, PNA, *FLOOR]
    assert report.tables[2].cells[0][6:] == ("1.0x",) * 3
    assert not report.figures


@pytest.mark.usefixtures("_one_small_network")
def test_graphs_can_be_left_out() -> None:
    layers_alone = bench_speed(LayersConfig((2,), 2, 1, False))
    assert set(layers_alone.results) == {"environment", "layers"}


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
        assert all(g is not None for g in gradients)
        assert len(gradients) == len(contender.inputs) + len(list(contender.layer.parameters()))
        assert contender.memory() >= 2 * sum(t.nbytes for t in contender.inputs)


@pytest.mark.usefixtures("_one_small_network")
def test_what_is_too_large_is_skipped_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    peaks = {name: make().memory() for name, make in contenders(SMALL, 1, 4, "cpu")}
    half = 1.5 * peaks[PNA]  # room for one network and not for two, whatever else is allocated meanwhile
    monkeypatch.setattr(memory, "free_bytes", lambda _: 2 * half)
    timings = bench_graphs((1, 2), width=4, repeats=1)
    skipped = [t for t in timings if t.skipped]
    assert (2, PNA) in [(t.batch, t.contender) for t in skipped]
    assert not [t for t in skipped if t.batch == 1]
    table = graph_tables(timings)[0]
    assert f"{PNA}, batch 2, left out: needs 0.0 GiB, 0.0 GiB are free." in table.notes
    assert next(line for line in table.cells if line[:2] == (PNA, "2"))[3:] == ("-",) * 6
    monkeypatch.setattr(memory, "free_bytes", lambda _: 0.0)
    nothing = bench_graphs((1,), width=4, repeats=1)
    assert [t.contender for t in nothing if not t.skipped] == list(FLOOR)
    assert [t.title for t in graph_tables(nothing)] == ["Message passing on zoo CNN"], "no ratios to what did not run"


def test_ratios_are_to_the_tied_dense_layer() -> None:
    rows = {DENSE: (2.0, 6.0, 100), PNA: (12.0, 30.0, 250), COPY: (0.5, 1.25, 0), PRODUCTS: (1.0, 3.0, 0)}
    timings = [GraphTiming("net", 8, name, f, s, 7 * (m > 0), m) for name, (f, s, m) in rows.items()]
    group = {t.contender: t for t in timings}
    assert over_dense(group[DENSE], group[DENSE]) == (1, 1, 1)
    assert over_dense(group[PNA], group[DENSE]) == (6, 5, 2.5)
    assert over_floor(group) == (2, 2, 2 / 1.5, 6 / 4.25)
    of_all, of_floor = graph_tables(timings)
    assert of_all.cells[1] == (PNA, "8", "7", "12.00", "30.00", "0.0", "6.0x", "5.0x", "2.5x")
    assert of_all.cells[2][-3:] == ("-", "-", "-")
    assert of_floor.cells == (("net", "8", "2.00x", "2.00x", "1.33x", "1.41x"),)


def test_the_compiled_contender_computes_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    def traced(call: object, fullgraph: bool) -> object:
        asked.append(fullgraph)
        return call

    monkeypatch.setattr(torch, "compile", traced)
    made = {name: make() for name, make in contenders(SMALL, 2, 3, "cpu", compiled=True)}
    assert asked == [True]
    made[COMPILED].layer.load_state_dict(made[DENSE].layer.state_dict())
    torch.testing.assert_close(made[COMPILED].forward(), made[DENSE].forward())
    monkeypatch.setattr(graphs, "NETWORKS", {"zoo CNN": lambda: SMALL})
    timings = bench_graphs((1,), width=2, repeats=1, compiled=True)
    assert COMPILED in [t.contender for t in timings]


def test_layouts_agree() -> None:
    """Contenders take tensors one by one; features put them together again."""
    features = neuron_features(SMALL, 2, 3)
    name, make = next(iter(contenders(SMALL, 2, 3, "cpu")))
    contender = make()
    assert name == DENSE
    expected = contender.layer(Features(features.layout, tuple(contender.inputs))).tensors
    torch.testing.assert_close(tuple(contender.forward()), expected)
