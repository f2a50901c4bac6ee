"""Message passing: exact on what it can express, in chains and in networks of any other kind."""

import pytest
import torch
from every_layer import generator, of_heads, random_neurons, transformer
from hypothesis import given
from hypothesis import strategies as st
from strategies import all_spaces
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

from nfn_monomial import (
    Axis,
    Features,
    MessagePassing,
    PointwiseActivation,
    Symmetry,
    WeightSpace,
)
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.models import MessagePassingNFN
from nfn_monomial.nn import MessageBlock, NeuronEmbedding, NeuronReadout, edges, neuron_layout
from nfn_monomial.nn.neurons.layout import kinds_of
from nfn_monomial.running import relative_error
from nfn_monomial.testing import assert_equivariant, random_element, random_networks

any_networks = all_spaces()
channels = st.integers(1, 3)
seeds = st.integers(0, 10**6)


@given(any_networks, channels, st.booleans(), seeds)
def test_inputs_that_backward_makes_again_are_those_of_before(space, width, last, seed):
    """Values, gradients, and gradients of gradients, whether inputs of products are kept or made again."""
    torch.manual_seed(seed)
    block = MessageBlock(space, width, last=last).double()
    x = random_neurons(space, width, 2, seed).map(lambda t: t.requires_grad_())
    results = []
    for kept in (2**40, 0):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(edges, "KEPT", kept)
            inputs = [*x.tensors, *block.parameters()]
            loss = sum(t.square().sum() for t in block(x).tensors)
            first = torch.autograd.grad(loss, inputs, create_graph=True, allow_unused=True, materialize_grads=True)
            again = sum(t.square().sum() for t in first)
            second = torch.autograd.grad(again, inputs, allow_unused=True, materialize_grads=True)
            results.append([loss, *first, *second])
    for one, two in zip(*results, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-9 * (1 + float(two.detach().abs().max())))


def test_large_inputs_of_products_are_not_kept_for_backward(monkeypatch):
    """Those of neurons, a third of what message passing keeps on few edges."""
    space = WeightSpace.mlp([2, 8, 8, 1], "sin")
    model, networks = MessagePassingNFN(space, 16, 2), random_networks(space, 32, dtype=torch.float32)
    networks, sizes = model.prepare(networks), []
    for kept in (2**40, 0):
        monkeypatch.setattr(edges, "KEPT", kept)
        storages = {}

        def pack(t, storages=storages):
            storage = t.untyped_storage()
            storages[storage.data_ptr()] = storage  # held, so that no other one is at its place
            return t

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            model(networks)
        sizes.append(sum(storage.nbytes() for storage in storages.values()))
    assert sizes[1] < 0.8 * sizes[0]


@given(any_networks, channels, st.booleans(), st.booleans(), seeds)
def test_a_block_is_its_layers_one_after_the_other(space, width, norm, last, seed):
    """Values and gradients, whether the block does all at once or, because they have hooks, calls its layers."""
    torch.manual_seed(seed)
    block = MessageBlock(space, width, norm=norm, last=last).double()
    x = random_neurons(space, width, 3, seed).map(lambda t: t.requires_grad_())
    y = x if block.norm is None else block.norm(x)
    outputs = [block(x)]
    for register in (block.messages.register_forward_hook, register_module_forward_hook):
        handle = register(lambda module, inputs, out: None)
        outputs.append(block(x))
        handle.remove()
    if not last:
        outputs.append(x + block.gate(y + block.messages(y)))
    leaves = [*x.tensors, *block.parameters()]
    options = {"allow_unused": True, "materialize_grads": True}
    both = [torch.autograd.grad([t.square().sum() for t in f.tensors], leaves, **options) for f in outputs]
    for out, gradients in zip(outputs, both, strict=True):
        torch.testing.assert_close((out.tensors, gradients), (outputs[0].tensors, both[0]), rtol=1e-10, atol=1e-10)


@given(any_networks, channels, st.booleans(), seeds)
def test_a_last_block_makes_the_same_invariants_and_leaves_edges(space, width, norm, seed):
    """Its parameters are a part of those of any other block."""
    block, last = (MessageBlock(space, width, norm=norm, last=last).double() for last in (False, True))

    def part(name, p):
        if name.endswith(".ends"):
            return p[:, [0, 2]]
        return p[..., -width:] if ".gates." in name and ".out" in name else p

    state = {name: part(name, p) for name, p in block.state_dict().items()}
    last.load_state_dict({name: p for name, p in state.items() if not name.endswith("gate")})
    x, neurons = random_neurons(space, width, 3, seed), neuron_layout(space)
    found, expected = last(x), block(x)
    assert all(map(torch.equal, found.tensors[: len(neurons.edges)], x.tensors[: len(neurons.edges)]))
    fields = [neurons.stream(node) for node in neurons.nodes] + [-1] * neurons.const
    for field in fields:
        torch.testing.assert_close(found.tensors[field], expected.tensors[field], rtol=1e-10, atol=1e-12)


def hand_set(space, width):
    """A message-passing layer whose update of ``out`` is the plain sum of weights times the source's ``out``."""
    layer = MessagePassing(space, width, tied=True).double()
    with torch.no_grad():
        for p in layer.parameters():
            p.zero_()
        layer.edges["2"].ends[1, 0] = torch.eye(width)  # of the source, the stream against the edges' charge
        layer.nodes[0].mixes[0] = torch.eye(width)
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
        layer.edges["2"].ends[0, 0] = 1
        layer.nodes[0].mixes[1] = 1
    tensors = list(random_neurons(space, 1, 2).tensors)
    tensors[:2] = [networks[f"weight.{i}"][:, 0, ..., None] for i in range(2)]
    once = layer(Features(neurons.layout, tuple(tensors)))
    seed = tensors[neurons.stream("y", -1)]
    torch.testing.assert_close(once.tensors[neurons.stream("h1", -1)], networks["weight.1"][:, 0].mT @ seed)


@pytest.mark.parametrize("symmetry", [Symmetry.MONOMIAL, Symmetry.PERMUTATION])
def test_all_kinds_of_parameters_get_in_talk_to_one_another_and_get_out(symmetry):
    """Every parameter changes what every other one is edited to, and no scale of a million changes a digit."""
    torch.manual_seed(0)
    space = transformer(symmetry)
    embed, readout = NeuronEmbedding(space, 1, 4).double(), NeuronReadout(space, 4, 1).double()
    model = nn.Sequential(embed, *(MessageBlock(space, 4).double() for _ in range(8)), readout)
    networks = random_networks(space, 2, generator=generator())
    assert_equivariant(model, space, inputs=space.pack(networks), rtol=1e-8)
    plain = space.unpack(model(networks))
    other = random_networks(space, 2, generator=generator(1))
    for name in networks:
        changed = space.unpack(model(networks | {name: other[name]}))
        assert not [n for n in plain if torch.equal(changed[n], plain[n])], name
    g = space.sample(2, scale_range=(1, 1e6), generator=generator())
    moved = g.inverse().act(space.unpack(model(g.act(networks))))
    for name in networks:
        assert relative_error(moved[name], plain[name], plain[name].detach().abs().max()) < 1e-8


def test_streams_and_edges():
    neurons = neuron_layout(transformer())
    assert neurons.nodes["stream"].charges == (((1, 0),), ((0, 1),), ((-1, 0),), ((1, 1),), ((-1, -1),), ((0, 0),))
    assert neurons.nodes["q"].charges == ((0, 1), (0, -1), (0, 0))
    assert neurons.nodes["experts"].charges == neurons.nodes["heads"].charges == ((0,),)
    assert [edge.key for edge in neurons.edges] == [
        "stream_from_words", "stream_from_experts_stream", "q_from_stream", "q_from_stream_1", "q_from_q",
    ]  # fmt: skip
    grouped = next(edge for edge in neurons.edges if edge.key == "q_from_q")
    assert grouped.axes == (Axis("heads", 0), Axis("q", 1), Axis("q", -1))
    assert [end.at for end in grouped.ends] == [(0, 1), (0, 2)]
    assert neurons.const
    assert neurons.layout.types[-1] == ()
    assert neurons.stream("q", 0, -1) == neurons.fields("q").start + 1
    assert neurons.stream("q") == neurons.fields("q").start + 2


def test_three_ends_contract_all_but_one():
    space = transformer()
    layer = MessagePassing(space, 1).double()
    with torch.no_grad():
        for p in layer.parameters():
            p.zero_()
        layer.edges["3"].ends.fill_(1)
        kinds = zip(layer.nodes, kinds_of(layer.neurons, tied=False).nodes.values(), strict=True)
        (of_stream,) = (update for update, nodes in kinds if "stream" in nodes)
        of_stream.mixes[: of_stream.kind.summed] = 1
    x = random_neurons(space, 1)
    fields = {edge.key: t for edge, t in zip(layer.neurons.edges, x.tensors, strict=False)}
    edge = next(edge for edge in layer.neurons.edges if len(edge.ends) == 3)
    expert = x.tensors[layer.neurons.stream("experts")][..., 0]
    read = x.tensors[layer.neurons.stream("stream", (1, 1))][..., 0]
    letters = "".join({0: "x", (1, 0): "o", (-1, -1): "i"}[axis.charge] for axis in edge.axes)
    weight = fields[edge.key][..., 0]
    found = layer(x).tensors[layer.neurons.stream("stream", (1, 0))][..., 0]
    expected = torch.einsum(f"b{letters},bx,bi->bo", weight, expert, read)
    torch.testing.assert_close(found, expected)


def test_extra_fields_of_any_charge_on_nested_neurons_and_several_gauges():
    torch.manual_seed(0)
    space = transformer()
    charges = {"stream": (1, 1), "q": -1}
    embed = NeuronEmbedding(space, 1, 3, extra=2, charges=charges).double()
    networks, g = random_networks(space, 2, generator=generator()), random_element(space, 2, generator=generator())
    layout = space.layout_of([(Axis("stream", (1, 1)),), (Axis("heads", 0), Axis("q", -1))], fold=False)
    fields = [torch.randn(2, *s, 2, dtype=torch.float64, generator=generator()) for s in ((3,), (2, 2))]
    extra = Features(layout, tuple(fields))

    def named(features):
        return dict(zip(charges, features.tensors, strict=True))

    found, expected = embed(g.act(networks), named(g.act(extra))), g.act(embed(networks, named(extra)))
    for a, b in zip(found.tensors, expected.tensors, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


def test_a_charge_that_no_stream_has_is_told():
    with pytest.raises(
        InvalidValueError, match=r"neurons of node 'stream' have no stream for a field of charge \(5, 5\)"
    ):
        NeuronEmbedding(transformer(), 1, 3, extra=2, charges={"stream": (5, 5)})


def test_fields_of_nested_neurons_are_not_placed_where_the_signs_of_their_groups_act():
    """Gains have the signs of a norm's groups, activations behind it do not: only these are fields of a probe."""
    norm = torch.nn.Sequential(
        torch.nn.Conv1d(2, 4, 1), torch.nn.GroupNorm(2, 4), torch.nn.ReLU(), torch.nn.Conv1d(4, 1, 1)
    )
    space = WeightSpace.from_module(norm, torch.randn(2, 2, 3))
    (node,) = (name for name, node in space.nodes.items() if node.parent)
    NeuronEmbedding(space, 1, 3, extra=2, charges={node: (1, 1)})
    with pytest.raises(InvalidValueError, match=r"no stream for a field of charge \(0, 1\)"):
        NeuronEmbedding(space, 1, 3, extra=2, charges={node: (0, 1)})


def test_nested_neurons_send_their_mean():
    """However many there are: invariants of 1 arrive as 1."""
    space = of_heads(Symmetry.PERMUTATION)
    layer, neurons = MessagePassing(space, 2).double(), neuron_layout(space)
    with torch.no_grad():
        for p in layer.parameters():
            p.zero_()
        layer.up.copy_(torch.eye(2))
    features = random_neurons(space, 2)
    updates = layer(features.map(torch.ones_like)).fields
    head = neurons.layout.types[neurons.stream("head")]
    children = sum(parent == "head" for _, parent in neurons.nests)
    torch.testing.assert_close(updates[head], torch.full_like(updates[head], children))
