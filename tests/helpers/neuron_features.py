"""Random features of neurons and edges, as message passing takes them."""

import torch

from nfn_monomial import Features
from nfn_monomial.nn import neuron_layout


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def random_neurons(space, width, batch=3, seed=0):
    """Neuron features in which nothing is 0."""
    layout = neuron_layout(space).layout
    sizes = {name: node.size for name, node in space.nodes.items()}
    tensors = [torch.randn(batch, *(sizes[a.node] for a in t), width, generator=generator(seed)) for t in layout.types]
    return Features(layout, tuple(t.double() for t in tensors))
