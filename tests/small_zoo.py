"""Small synthetic zoos with a target that weights determine and that the group leaves alone."""

import torch

from nfn_monomial.benchmarks.data.formats.small_cnn_zoo import Zoo
from nfn_monomial.benchmarks.data.layout import cnn_layout, unflatten
from nfn_monomial.benchmarks.data.networks import Corpus, Networks


def small_zoo(activation: str = "relu", networks: int = 48, seed: int = 0) -> Zoo:
    """CNNs of 4 and 5 channels, 3 outputs; accuracy: a sigmoid of the mean output bias, which no symmetry moves."""
    layout = cnn_layout(channels=(1, 4, 5), head=(3,))
    generator = torch.Generator().manual_seed(seed)
    rows = 0.5 * torch.randn(2 * networks, layout[-1].end, generator=generator)
    tensors = unflatten(rows, layout)
    accuracy = torch.sigmoid(3 * tensors["bias.2"].mean(1))
    every = Networks(tensors, accuracy)
    parts = {"train": slice(0, networks), "val": slice(networks, 3 * networks // 2)}
    return Zoo(
        **{name: every.subset(part) for name, part in parts.items()},
        test=every.subset(slice(3 * networks // 2, None)),
        activation=activation,
        layout=layout,
        info={},
    )


def corpus(activation: str) -> Corpus:
    return small_zoo(activation).corpus()
