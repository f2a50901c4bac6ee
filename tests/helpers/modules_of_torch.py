"""Networks as torch modules and their states, for tests."""

import torch
from torch import nn

from nfn_monomial import WeightSpace
from nfn_monomial.testing import random_networks

SPACE = WeightSpace.mlp([2, 5, 5, 5, 1], "sin")


def siren(width=5):
    return nn.Sequential(
        nn.Linear(2, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(),
        nn.Linear(width, 1),
    )  # fmt: skip


def cnn():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.PReLU(), nn.Conv2d(4, 3, 2, bias=False), nn.PReLU(), nn.Flatten(), nn.Linear(3 * 4, 2)
    )


def shuffled(state, seed=0):
    keys = list(state)
    order = torch.randperm(len(keys), generator=torch.Generator().manual_seed(seed)).tolist()
    return {keys[i]: state[keys[i]] for i in order}


def states(space, count=1, dtype=torch.float32, seed=0):
    tensors = random_networks(space, count, 1, dtype=dtype, generator=torch.Generator().manual_seed(seed))
    return [{name: t[b, 0] for name, t in tensors.items()} for b in range(count)]
