"""Fields between which bilinear maps are tested."""

import torch
from hypothesis import strategies as st

from nfn_monomial import Axis, Features

WEIGHT, ROWS, COLUMNS = (Axis("h2", 1), Axis("h1", -1)), (Axis("h2", 1),), (Axis("h1", 1),)
GRADIENTS, BACK = (Axis("h2", -1),), (Axis("h1", -1),)


def as_fields(layout):
    return dict(zip(layout.types, layout.multiplicities, strict=True))


def fields(nodes, max_size):
    axis = st.builds(Axis, st.sampled_from(nodes), st.integers(-1, 1))
    field = st.lists(axis, max_size=2).map(tuple)
    return st.dictionaries(field, st.integers(1, 2), min_size=1, max_size=max_size)


def random_features(layer, sizes, seed=0, batch=5):
    """Both inputs of a product of features."""
    draws = torch.Generator().manual_seed(seed)
    made = []
    for layout, channels in ((layer.in_layout, layer.in_channels), (layer.second_layout, layer.second_channels)):
        shapes = [(batch, *(sizes[a.node] for a in t), m * channels) for t, m in as_fields(layout).items()]
        made.append(Features(layout, tuple(torch.randn(s, dtype=torch.float64, generator=draws) for s in shapes)))
    return made
