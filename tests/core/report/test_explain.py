"""A space in words and as a picture, readable for deep networks."""

import xml.etree.ElementTree as ET
from collections import OrderedDict

import pytest
import torch
from deriving import derive
from hypothesis import given
from strategies import all_spaces
from torch import nn

from nfn_monomial import Axis, Symmetry, WeightSpace
from nfn_monomial.report import draw
from nfn_monomial.report.explain import explain, outlined, rows_of
from nfn_monomial.space import Node
from nfn_monomial.space.origin import Dead, Loss, NodeReport, Origin


def residual(depth: int) -> WeightSpace:
    """A stream with a norm's gain in front of every block."""
    stream = Node((Symmetry.PERMUTATION, *[Symmetry.SCALE] * depth), 8)
    nodes = {"x": Node((Symmetry.FIXED,), 3), "stream": stream}
    charge = [tuple(int(i == j) for j in range(depth)) for i in range(depth)]
    parameters = {"embed.weight": (Axis("stream", (1, *[0] * depth)), Axis("x", -1))}
    for i in range(depth):
        nodes[f"blocks_{i}_up"] = Node((Symmetry.SCALE,), 6)
        parameters[f"blocks.{i}.norm.weight"] = (Axis("stream", (0, *charge[i])),)
        parameters[f"blocks.{i}.up.weight"] = (Axis(f"blocks_{i}_up"), Axis("stream", (-1, *(-q for q in charge[i]))))
        parameters[f"blocks.{i}.down.weight"] = (Axis("stream", (1, *[0] * depth)), Axis(f"blocks_{i}_up", -1))
    return WeightSpace(nodes, parameters)


def test_repeated_blocks_are_one_row_however_deep_the_network():
    shallow, deep = explain(residual(3)), explain(residual(40))
    assert len(deep.splitlines()) <= len(shallow.splitlines()) + 2
    assert "blocks_{0-39}_up (40 alike)" in " ".join(deep.split())
    assert "S(8) scale x40" in deep
    assert deep.startswith("121 parameter tensors on 42 nodes, 41 of them permuted, 560 independent scalings")
    assert max(map(len, deep.splitlines())) <= 120


class DenseLayer(nn.Module):
    """Reads all layers before it in its block."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.conv1 = nn.BatchNorm2d(width), nn.Conv2d(width, 6, 1, bias=False)
        self.conv2 = nn.Conv2d(6, 4, 3, padding=1, bias=False)

    def forward(self, x):
        return torch.cat([x, self.conv2(torch.relu(self.conv1(torch.relu(self.norm(x)))))], 1)


def dense(*depths: int) -> nn.Module:
    """Blocks of dense layers, each behind a convolution that makes the stream narrower."""
    parts, width = {"enter": nn.Conv2d(3, 8, 3)}, 8
    for b, depth in enumerate(depths):
        for i in range(depth):
            parts[f"block{b}_layer{i}"] = DenseLayer(width)
            width += 4
        parts[f"next{b}"] = nn.Conv2d(width, width // 2, 1)
        width //= 2
    return nn.Sequential(OrderedDict(parts))


def test_any_network_fits_two_screens():
    derived = derive(dense(4, 8, 9), torch.randn(2, 3, 8, 8))
    space = WeightSpace(derived.nodes, derived.parameters)
    brief, full = explain(space, derived.origin), explain(space, derived.origin, full=True)
    assert len(brief.splitlines()) <= 60 < 100 < len(full.splitlines())
    assert max(map(len, brief.splitlines())) <= 125
    assert brief.endswith(f"explain(full=True) tells all, {len(full.splitlines())} lines")
    assert sum(len(row.names) for row in outlined(rows_of(space))) == len(space.nodes)


def test_what_was_lost_and_what_does_not_matter_is_said():
    losses = tuple(Loss(f"h{i}", "scale", f"layer1.{i}.bn: batch_norm", "its eps is added") for i in (1, 2))
    ran = NodeReport("h1", 4, (Symmetry.SCALE,), None, (), ("0: relu", "1: max_pool2d"))
    dead = (Dead("k.bias", "softmax ignores it", False), Dead("spare", "not read", True))
    text = explain(
        WeightSpace.mlp([2, 4, 3, 1], "relu"), Origin((ran,), losses, dead, ("odd.op",), tested="Tested: 4 draws")
    )
    lines = text.splitlines()
    assert any("relu, max_pool2d" in line and line.startswith("h1") for line in lines)
    assert any(line.split("  ")[0] == "batch_norm" and "layer1.{1-2}.bn" in line and "h{1-2}" in line for line in lines)
    assert "Does not matter to the function: k.bias (softmax ignores it)" in text
    assert "Not in the space: spare (not read)" in text
    assert "Operators without a rule: odd.op" in text
    assert text.endswith("Tested: 4 draws")


CHANNELS = nn.Linear(4, 6)
COSTS = {
    "one gauge": ([CHANNELS, nn.ReLU()], {("relu", "sign")}),
    "batch norm": ([CHANNELS, nn.BatchNorm1d(6), nn.ReLU()], {("relu", "sign"), ("batch_norm", "scale")}),
    "batch norm, then an odd function": (
        [CHANNELS, nn.BatchNorm1d(6), nn.Tanh()], {("tanh", "scale"), ("batch_norm", "scale")},
    ),
    "layer norm": ([CHANNELS, nn.LayerNorm(6)], {("layer_norm", "scale"), ("layer_norm", "sign")}),
    "batch norm alone": ([CHANNELS, nn.BatchNorm1d(6)], {("batch_norm", "scale")}),
    "none": ([CHANNELS], set()),
}  # fmt: skip


@pytest.mark.parametrize("name", COSTS)
def test_costs_are_shown_for_nodes_of_several_gauges_too(name: str) -> None:
    layers, costs = COSTS[name]
    derived = derive(nn.Sequential(*layers, nn.Linear(6, 2)), torch.randn(8, 4))
    lost = {(loss.operation.split(": ")[-1], loss.symmetry) for loss in derived.origin.losses if loss.node == "layer0"}
    assert lost == costs
    text = explain(WeightSpace(derived.nodes, derived.parameters), derived.origin)
    assert ("What operations cost" in text) == bool(costs)


def test_tensors_of_a_node_are_in_the_order_of_the_module() -> None:
    for row in rows_of(WeightSpace.from_module(dense(2), torch.randn(2, 3, 8, 8))):
        names = [piece.partition("[")[0] for piece, _ in row.tensors]
        order = [name for name in dense(2).state_dict() if name in names]
        for piece in row.names:
            assert [n for n in dict.fromkeys(names) if n in order] == order, piece


@given(all_spaces())
def test_every_space_can_be_explained_and_drawn(space):
    text, image = explain(space), draw(space)
    for name in space.nodes:
        assert name in text or "alike" in text
    tree = ET.fromstring(image)
    drawn = "".join(tree.itertext())
    assert all(name in drawn for name in space.parameters if "{" not in drawn)


@pytest.mark.parametrize("name", ["<script>", 'a"b&c'])
def test_names_are_text_not_markup(name):
    space = WeightSpace({"h": (Symmetry.SCALE, 2), "g": (Symmetry.SCALE, 2)}, {name: (Axis("h"), Axis("g"))})
    assert name in "".join(ET.fromstring(draw(space)).itertext())


def test_parameters_that_are_not_read_are_named_and_left_alone():
    class Tasks(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.enter, self.heads = nn.Linear(3, 4), nn.ModuleList(nn.Linear(4, 2) for _ in range(4))

        def forward(self, x, task=0):
            return self.heads[task](torch.relu(self.enter(x)))

    module = Tasks()
    space = WeightSpace.from_module(module, torch.randn(4, 3))
    assert "heads.{1-3}.weight" in space.explain()
    text = space.explain(full=True)
    assert all(f"heads.{n}.{kind}" in text for n in (1, 2, 3) for kind in ("weight", "bias"))
    state = module.state_dict()
    moved = space.sample().act(state)
    assert all(
        moved[f"heads.{n}.{kind}"] is state[f"heads.{n}.{kind}"] for n in (1, 2, 3) for kind in ("weight", "bias")
    )
