"""Networks of a user's own: a file with their classes, and checkpoints of them."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from nfn_monomial.tools.definitions.define import Definition

SOURCE = '''
import torch
from torch import nn

class Residual(nn.Module):
    """With batch norms, and a buffer that nothing moves."""
    def __init__(self, width=4):
        super().__init__()
        self.stem, self.norm = nn.Conv2d(1, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.inner, self.outer = nn.Conv2d(width, 6, 3, padding=1), nn.Conv2d(6, width, 3, padding=1)
        self.head = nn.Linear(width, 3)
        self.register_buffer("offset", torch.zeros(3))

    def forward(self, x):
        x = self.norm(self.stem(x)).relu()
        return self.head((x + self.outer(self.inner(x).relu())).relu().mean((2, 3))) + self.offset

class Words(nn.Module):
    """Its head is tied to its embedding."""
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)
        self.head.weight = self.embed.weight
        self.up, self.down = nn.Linear(4, 6), nn.Linear(6, 4)

    def forward(self, x):
        x = self.embed(x)
        return self.head(x + self.down(self.up(x).tanh()))

class Pruned(nn.Module):
    """With a mask of weights, an order and a scale of inputs that nothing moves, and a head that nothing reads."""
    def __init__(self):
        super().__init__()
        self.first, self.second, self.auxiliary = nn.Linear(4, 6), nn.Linear(6, 3), nn.Linear(6, 2)
        self.register_buffer("mask", torch.ones(3, 6))
        self.register_buffer("order", torch.arange(4))
        self.register_buffer("deviation", torch.ones(4))

    def forward(self, x):
        x = self.first(x[:, self.order] / self.deviation).relu()
        return torch.nn.functional.linear(x, self.second.weight * self.mask, self.second.bias)

def pruned():
    return Pruned(), torch.randn(8, 4)

def words():
    return Words(), torch.tensor([[1, 2, 6], [0, 3, 3]])

def example_inputs():
    return torch.randn(8, 1, 6, 6)

def images():
    return torch.randn(40, 1, 6, 6), torch.arange(40) % 3

def scores():
    return [(torch.randn(5, 1, 6, 6), torch.randn(5, 3)), (torch.randn(4, 1, 6, 6), torch.randn(4, 3))]

def nothing():
    return torch.randn(3)

def fails():
    raise RuntimeError("no such disk")
'''
State = dict[str, Tensor]


def weights(definition: Definition, seed: int) -> State:
    """A state dict of a network with random weights and statistics."""
    torch.manual_seed(seed)
    module: Any = type(definition.template())()
    for name, buffer in module.named_buffers():
        if name.startswith("norm.running"):
            buffer.uniform_(0.5, 2.0) if "var" in name else buffer.normal_()
    return {name: t.clone() for name, t in module.state_dict().items()}


def moved(definition: Definition, state: State, seed: int, scales: tuple[float, float] = (0.1, 10.0)) -> State:
    """The same function in other weights; tied tensors stay tied."""
    generator = torch.Generator().manual_seed(seed)
    found = definition.space.sample(scale_range=scales, generator=generator).proper().act(state)
    return found | {key: found[name].clone() for key, name in definition.tied.items()}


def saved(path: Path, state: State) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".safetensors":
        safetensors.torch.save_file({k: t.clone().contiguous() for k, t in state.items()}, path, {"made": "here"})
    else:
        torch.save(state, path)
    return path


def mlp(seed: int, sizes: tuple[int, ...] = (4, 6, 5, 2), make: Callable[[], nn.Module] = nn.ReLU) -> State:
    """The state dict of a plain network, with the keys of ``nn.Sequential``."""
    torch.manual_seed(seed)
    layers = [part for a, b in itertools.pairwise(sizes) for part in (nn.Linear(a, b), make())]
    return dict(nn.Sequential(*layers[:-1]).state_dict())
