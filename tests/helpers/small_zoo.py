"""Small synthetic zoos with a target that weights determine and that the group leaves alone."""

import torch
from small_cnns import cnn_layout

from nfn_monomial.benchmarks.data.formats.layout import unflatten
from nfn_monomial.benchmarks.data.formats.small_cnn_zoo import network_info
from nfn_monomial.benchmarks.data.networks import Corpus, Networks, Part


def small_zoo(activation: str = "relu", networks: int = 48, seed: int = 0) -> Corpus:
    """CNNs of 4 and 5 channels, 3 outputs; accuracy: a sigmoid of the mean output bias, which no symmetry moves."""
    layout = cnn_layout(channels=(1, 4, 5), head=(3,))
    generator = torch.Generator().manual_seed(seed)
    rows = 0.5 * torch.randn(2 * networks, layout[-1].end, generator=generator)
    tensors = unflatten(rows, layout)
    accuracy = torch.sigmoid(3 * tensors["bias.2"].mean(1))
    every = Networks(tensors, accuracy)
    info, cut = network_info(layout, activation), 3 * networks // 2
    slices = {"train": slice(0, networks), "val": slice(networks, cut), "test": slice(cut, None)}
    parts = {name: (Part(every.subset(rows), info),) for name, rows in slices.items()}
    return Corpus(activation, **parts, info=info)


def corpus(activation: str) -> Corpus:
    return small_zoo(activation)
