"""Message passing: equivariant on random spaces to 1e-10, exact on what it can express, broken where it should be."""

import pytest
import torch
from every_layer import generator, random_neurons
from hypothesis import given
from hypothesis import strategies as st
from strategies import all_spaces
from torch import nn

from nfn_monomial import (
    Features,
    MessagePassing,
    PointwiseActivation,
    WeightSpace,
)
from nfn_monomial.nn import MessageBlock, neuron_layout
from nfn_monomial.nn import edges as of_edges
from nfn_monomial.testing import random_networks

any_networks = all_spaces()
channels = st.integers(1, 3)
seeds = st.integers(0, 10**6)


@given(any_networks, channels, st.booleans(), st.sampled_from([0, 2**18]), seeds)
def test_a_block_is_its_layers_one_after_the_other(space, width, norm, size, seed):
    """Values and gradients, whether or not the edges are scaled and added to in blocks of messages."""
    torch.manual_seed(seed)
    count, fields = len(neuron_layout(space).edges), len(neuron_layout(space).layout)
    block = MessageBlock(space, width, norm=norm).double()
    read = MessageBlock(space, width, norm=norm, reads=range(count, fields)).double()
    read.load_state_dict(block.state_dict(), strict=False)
    x = random_neurons(space, width, 3, seed).map(lambda t: t.requires_grad_())
    y = x if block.norm is None else block.norm(x)
    expected = x + block.gate(y + block.messages(y))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(of_edges, "BLOCK", size)
        found, unchanged = block(x), read(x)
        both = [
            torch.autograd.grad([t.sum() for t in f.tensors], x.tensors, materialize_grads=True)
            for f in (found, expected)
        ]
    torch.testing.assert_close((found.tensors, both[0]), (expected.tensors, both[1]), rtol=1e-10, atol=1e-10)
    assert all(a is b for a, b in zip(unchanged.tensors[:count], x.tensors[:count], strict=True))
    torch.testing.assert_close(unchanged.tensors[count:], expected.tensors[count:], rtol=1e-10, atol=1e-12)


def hand_set(space, width):
    """A message-passing layer whose update of ``out`` is the plain sum of weights times the source's ``out``."""
    layer = MessagePassing(space, width, tied=True).double()
    with torch.no_grad():
        for p in layer.parameters():
            p.zero_()
        layer.edges["all"].ends[1].against.weight.copy_(torch.eye(width))
        layer.nodes["all"].mixes[0].weight.copy_(torch.eye(width))
    return layer


@pytest.mark.parametrize(
    ("symmetry", "activation"), [("relu", "relu"), ("tanh", "tanh"), ("linear", "identity"), ("gelu", "gelu")]
)
def test_a_hand_set_layer_computes_the_networks_forward_pass(symmetry, activation):
    """Inputs on the input neurons' ``out``, one channel each; after every layer one more node is right."""
    sizes, points = [3, 5, 4, 2], 6
    space = WeightSpace.mlp(sizes, symmetry)
    neurons, networks = neuron_layout(space), random_networks(space, 4, generator=generator())
    x = torch.randn(points, 3, dtype=torch.float64, generator=generator(1))
    fields = [
        networks[f"weight.{i}"][:, 0, ..., None].expand(-1, -1, -1, points) for i in range(3)
    ]  # the weight itself in every channel
    for i, n in enumerate(sizes):
        out = x.T.expand(4, -1, -1) if i == 0 else torch.zeros(4, n, points, dtype=torch.float64)
        fields += [out, torch.zeros_like(out), torch.zeros_like(out)]
    features = Features(neurons.layout, tuple(fields))
    layer = hand_set(space, points)
    act = PointwiseActivation(space, activation, layout=neurons.layout)
    expected = x
    for _ in range(3):
        updated = layer(features)
        new = list(features.tensors)
        for at, node in enumerate(neurons.nodes):
            if at:  # the inputs stay; every other neuron: activation(sum + bias)
                index = neurons.stream(node, 1)
                bias = networks[f"bias.{at - 1}"][:, 0, :, None]
                tensors = list(updated.tensors)
                tensors[index] = tensors[index] + bias
                applied = Features(neurons.layout, tuple(tensors))
                new[index] = (applied if node == "y" else act(applied)).tensors[index]
        features = Features(neurons.layout, tuple(new))
    function = {"relu": torch.relu, "tanh": torch.tanh, "gelu": nn.functional.gelu, "identity": lambda t: t}[activation]
    expected = x.expand(4, -1, -1)
    for i in range(3):
        expected = expected @ networks[f"weight.{i}"][:, 0].mT + networks[f"bias.{i}"]
        expected = function(expected) if i < 2 else expected
    found = features.tensors[neurons.stream("y", 1)].mT
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_backward_messages_are_the_gradient_of_a_linear_network():
    space = WeightSpace.mlp([3, 4, 2], "linear", bias=False)
    neurons, networks = neuron_layout(space), random_networks(space, 2, generator=generator())
    layer = MessagePassing(space, 1, tied=True).double()
    with torch.no_grad():
        for p in layer.parameters():
            p.zero_()
        layer.edges["all"].ends[0].against.weight.fill_(1)
        layer.nodes["all"].mixes[1].weight.fill_(1)
    tensors = list(random_neurons(space, 1, 2).tensors)
    tensors[:2] = [networks[f"weight.{i}"][:, 0, ..., None] for i in range(2)]
    once = layer(Features(neurons.layout, tuple(tensors)))
    seed = tensors[neurons.stream("y", -1)]
    torch.testing.assert_close(once.tensors[neurons.stream("h1", -1)], networks["weight.1"][:, 0].mT @ seed)
