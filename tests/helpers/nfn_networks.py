"""Networks in nfn's container, for tests."""

import torch
from hypothesis import strategies as st
from nfn.common import ArraySpec, NetworkSpec

from nfn_monomial import WeightSpace
from nfn_monomial.adapters.nfn import from_tensors, to_tensors
from nfn_monomial.testing import random_networks

channels = st.integers(1, 3)
seeds = st.integers(0, 10**6)
SIREN = WeightSpace.mlp([2, 6, 5, 1], "sin")


def spec_of(space, known=True):
    """nfn's spec of a feed-forward space: all sizes, or -1 for hidden ones as nfn writes them."""
    depth = sum(name.startswith("weight") for name in space.parameters)
    shapes = space.shapes()
    weights, biases = [], []
    for i in range(depth):
        out, columns, *kernel = shapes[f"weight.{i}"]
        out = out if known or i == depth - 1 else -1
        weights.append(ArraySpec((out, columns if known or i == 0 else -1, *kernel)))
        biases.append(ArraySpec((out,)) if f"bias.{i}" in space.parameters else None)
    return NetworkSpec(weights, biases)


def arguments(space):
    """The symmetries that the layers have to be given for a space."""
    *_, last = space.nodes.values()
    hidden = [node.symmetry for name, node in space.nodes.items() if name.startswith("h")]
    return {"symmetry": hidden, "io_symmetry": last.symmetry}


def features(space, batch=3, c=1, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return from_tensors(random_networks(space, batch, c, dtype=dtype, generator=generator))


def named(layer):
    return lambda tensors: to_tensors(layer(from_tensors(tensors)))


def leaves(wsfeat):
    return [t for t in (*wsfeat.weights, *wsfeat.biases) if t is not None]
