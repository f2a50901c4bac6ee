"""Message passing in networks that are no chains: nested neurons, several gauges, edges of three ends, vocabularies."""

import pytest
import torch
from every_layer import generator, random_neurons
from torch import nn

from nfn_monomial import Axis, Features, MessagePassing, Symmetry, WeightSpace
from nfn_monomial.nn import MessageBlock, NeuronEmbedding, NeuronReadout, neuron_layout
from nfn_monomial.space import Node, Sum
from nfn_monomial.space.certificate import relative_error
from nfn_monomial.testing import assert_equivariant, random_element, random_networks


def transformer(symmetry=Symmetry.SCALE):
    """Heads in which queries move on their own, a gain in front of them, a vocabulary, three axes, none."""
    nodes = {
        "words": Node((Symmetry.FIXED,), 7),
        "stream": Node((Symmetry.PERMUTATION, symmetry), 3),
        "heads": Node((Symmetry.PERMUTATION,), 2),
        "q": Node((symmetry,), 2, "heads"),
        "experts": Node((Symmetry.PERMUTATION,), 2),
    }
    query, key = (Axis("heads", 0), Axis("q", 1)), (Axis("heads", 0), Axis("q", -1))
    parameters = {
        "embedding": (Axis("words", -1), Axis("stream", (1, 0))),
        "gain": (Axis("stream", (0, 1)),),
        "query_key": (Sum((query, key)), Axis("stream", (-1, -1))),
        "grouped": (query, Axis("q", -1), 2),
        "expert": (Axis("experts", 0), Axis("stream", (1, 0)), Axis("stream", (-1, -1))),
        "temperature": (2,),
    }
    return WeightSpace(nodes, parameters)


@pytest.mark.parametrize("symmetry", [Symmetry.SCALE, Symmetry.MONOMIAL, Symmetry.PERMUTATION])
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
        for name, p in layer.named_parameters():
            p.fill_(float("stream_from_experts_stream.ends" in name or "nodes.stream.mixes" in name))
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
