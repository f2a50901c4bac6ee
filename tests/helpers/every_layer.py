"""Every layer and model of the core, small, on any space, and random features of what it takes."""

import torch
from hypothesis import example, given
from hypothesis import strategies as st
from strategies import all_spaces
from torch import nn

from nfn_monomial import (
    Axis,
    Canonicalize,
    EquivariantLinear,
    EquivariantNFN,
    EquivariantNorm,
    Features,
    GatedActivation,
    InvariantPool,
    InvariantStatistics,
    MessagePassing,
    MonomialNFN,
    PointwiseActivation,
    ProbeFeatures,
    Symmetry,
    TensorProduct,
    WeightSpace,
)
from nfn_monomial.canonical import Balance
from nfn_monomial.models import MessagePassingEditor, MessagePassingNFN
from nfn_monomial.nn import InputNorm, MessageBlock, NeuronEmbedding, NeuronPool, NeuronReadout, neuron_layout
from nfn_monomial.read import GramStatistics
from nfn_monomial.space import Node, Sum
from nfn_monomial.testing import random_networks


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


EQUIVARIANT = {
    "linear": lambda s: EquivariantLinear(s, 2, 3),
    "linear, factored": lambda s: EquivariantLinear(s, 3, 2, io="factored", bias=False),
    "linear, uncharged": lambda s: EquivariantLinear(s.uncharged(), 2, 2),
    "activation": lambda s: PointwiseActivation(s, "auto"),
    "canonicalize": lambda s: Canonicalize(s, 2),
    "canonicalize, square": lambda s: Canonicalize(s, 2, "square"),
    "input norm": lambda s: InputNorm(s, 2),
    "embedding": lambda s: NeuronEmbedding(s, 2, 3),
    "readout": lambda s: NeuronReadout(s, 3, 2),
    "messages": lambda s: MessagePassing(s, 2),
    "messages, tied": lambda s: MessagePassing(s, 3, tied=True),
    "gate": lambda s: GatedActivation(s, 2),
    "gate, tied": lambda s: GatedActivation(s, 2, tied=True),
    "norm": lambda s: EquivariantNorm(s, 3),
    "block": lambda s: MessageBlock(s, 2),
    "block, tied": lambda s: MessageBlock(s, 2, tied=True, norm=False),
    "block, last": lambda s: MessageBlock(s, 2, last=True),
    "EquivariantNFN": lambda s: EquivariantNFN(s, (3,), init_scale=1.0),
    "EquivariantNFN, factored": lambda s: EquivariantNFN(s, (3,), io="factored", init_scale=1.0),
    "MessagePassingEditor": lambda s: MessagePassingEditor(s, 2, 1, init_scale=1.0),
    "MessagePassingEditor, tied": lambda s: MessagePassingEditor(s, 2, 1, tied=True, init_scale=1.0),
}
INVARIANT = {
    "pool": lambda s: InvariantPool(s, 2),
    "pool, sum": lambda s: InvariantPool(s, 2, "sum"),
    "neuron pool": lambda s: NeuronPool(s, 2),
    "neuron pool, normed": lambda s: NeuronPool(s, 2, norm=True),
    "MonomialNFN": lambda s: MonomialNFN(s, (3, 2), hidden=8),
    "MonomialNFN, factored": lambda s: MonomialNFN(s, (3,), hidden=8, io="factored", kind="square", reduce="sum"),
    "MessagePassingNFN": lambda s: MessagePassingNFN(s, 2, 2, hidden=8),
    "MessagePassingNFN, tied": lambda s: MessagePassingNFN(s, 2, 1, hidden=8, tied=True, norm=False),
}
ON_VALUES = {  # what depends on more than a forward of its own: statistics, where no value is looked at
    "balance": lambda s: Balance(s, signs=False),
    "statistics": InvariantStatistics,
    "Gram matrices": GramStatistics,
}
LAYERS = EQUIVARIANT | INVARIANT


def probed(space):
    """A model that runs the networks as well."""
    template = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 1))
    probes = ProbeFeatures(template, 3, space=space)
    return MessagePassingNFN(space, 3, 2, hidden=16, append_stats=True, probes=probes)


TANH = WeightSpace.mlp([2, 4, 3, 1], "tanh")
CNN = WeightSpace.cnn([1, 3, 2], 3, "relu", head=[3])
LOOP = WeightSpace({"h": (Symmetry.SIGN, 4)}, {"loop": (Axis("h", 1), Axis("h", -1)), "b": (Axis("h"),)})
CASES = {name: (TANH, make) for name, make in (LAYERS | ON_VALUES).items()} | {
    "tensor product": (TANH, lambda s: TensorProduct(s, 2, 2)),
    "tensor product, factored": (TANH, lambda s: TensorProduct(s, 2, 2, mix="factored")),
    "MonomialNFN, statistics": (TANH, lambda s: MonomialNFN(s, (6, 6), hidden=16, append_stats=True)),
    "MonomialNFN, square": (
        WeightSpace.mlp([2, 3, 3, 1], ["relu", "tanh"]),
        lambda s: MonomialNFN(s, (6, 6), hidden=16, kind="square", reduce="sum"),
    ),
    "MonomialNFN, kernels": (CNN, lambda s: MonomialNFN(s, (6, 6), hidden=16, io="factored")),
    "MonomialNFN, loop": (LOOP, lambda s: MonomialNFN(s, (6, 6), hidden=16, io="factored")),
    "MessagePassingNFN, one layer": (
        WeightSpace.mlp([3, 2], "relu"),
        lambda s: MessagePassingNFN(s, 3, 2, hidden=16),
    ),
    "MessagePassingNFN, probes": (WeightSpace.mlp([2, 4, 3, 1], "relu"), probed),
    "MessagePassingEditor, kernels": (CNN, lambda s: MessagePassingEditor(s, 3, 1)),
}
"""The same on one space, and more of what a space or an option changes."""


def built(make, space, seed=0):
    """A layer in float64, whose parameters and statistics are not as it starts with."""
    torch.manual_seed(seed)
    layer = make(space).double()
    if isinstance(layer, InputNorm):
        layer.fit(random_networks(space, 8, 2, generator=generator()))
    with torch.no_grad():
        for p in layer.parameters():
            p += 0.3 * torch.randn_like(p)
    return layer


def random_features(space, layout, channels, batch=3, seed=0, dtype=torch.float64):
    """Features of a layout in which nothing is 0."""
    draws, sizes = generator(seed), {name: node.size or 4 for name, node in space.nodes.items()}
    shapes = [
        (batch, *(sizes[a.node] for a in t), m * channels)
        for t, m in zip(layout.types, layout.multiplicities, strict=True)
    ]
    return Features(layout, tuple(torch.randn(s, dtype=torch.float64, generator=draws).to(dtype) for s in shapes))


def random_neurons(space, width, batch=3, seed=0):
    """The same of neurons and edges."""
    return random_features(space, neuron_layout(space).layout, width, batch, seed)


def features_for(layer, space, batch=4, seed=0, dtype=torch.float64):
    """What a layer takes."""
    channels = getattr(layer, "in_channels", getattr(layer, "channels", 1))
    layout = getattr(layer, "in_layout", getattr(layer, "layout", space.layout))
    return random_features(space, layout, channels, batch, seed, dtype)


EXPERTS = WeightSpace(
    {
        "x": (Symmetry.FIXED, 2),
        "expert": (Symmetry.FIXED, 3),
        "h": Node((Symmetry.SCALE,), 4, "expert"),
        "s": (Symmetry.SIGN, 5),
        "y": (Symmetry.FIXED, 2),
    },
    {
        "router": (Axis("expert"), Axis("x", -1)),
        "first": (Axis("s"), Axis("x", -1)),
        "up": (Axis("expert", 0), Axis("h"), Axis("s", -1)),
        "up_bias": (Axis("expert", 0), Axis("h")),
        "down": (Axis("expert", 0), Axis("s"), Axis("h", -1)),
        "last": (Axis("y"), Axis("s", -1)),
    },
)
"""Neurons nested in others that stay."""


def of_heads(symmetry):
    """Interleaved rows, in heads that are permuted or stay."""
    q, k, v = ((Axis("head", 0), Axis(*axis)) for axis in (("k", 1), ("k", -1), ("v", 1)))
    rows = Sum((q, k, v), shared=1)
    nodes = {"s": (Symmetry.PERMUTATION, 5), "head": (symmetry, 2)}
    nodes |= {name: Node((Symmetry.SCALE,), 3, "head") for name in "kv"}
    out = (Axis("s"), (Axis("head", 0), Axis("v", -1)))
    return WeightSpace(nodes, {"qkv": (rows, Axis("s", -1)), "bias": (rows,), "out": out})


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


RAGGED = WeightSpace.mlp([2, 5, 9, 4, 5, 1], ["relu", "tanh", "gelu", "relu"])
NUMBERS = WeightSpace({"h": (Symmetry.PERMUTATION, 3)}, {"a": (2,), "b": (3, 1)})
HEADS = [of_heads(symmetry) for symmetry in (Symmetry.FIXED, Symmetry.PERMUTATION)]
RARE = [RAGGED, EXPERTS, *HEADS, transformer(), transformer(Symmetry.MONOMIAL), NUMBERS]
"""Spaces that have what is rare in random ones: widths that differ, nests, hyperedges, numbers, neurons that stay."""


def over_spaces(test):
    """A test of a space and a seed: random spaces, and those that have what is rare in them."""
    for space in RARE:
        test = example(space, 0)(test)
    return given(all_spaces(), st.integers(0, 10**6))(test)
