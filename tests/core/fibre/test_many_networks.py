"""Random elements of the whole fibre are seen through, and no two networks of other functions are taken for one.

The full numbers are slow: twelve copies of each architecture and dtype, and as many other networks.
"""

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from fibres import CASES, GPT, Llama, encoder, generic, normal, tokens
from torch import Tensor, nn
from torch.nn import functional as F

from nfn_monomial.fibre import NormalForm, compare_fibres, fingerprint_fibre, normal_form

State = dict[str, Tensor]
MANY = 12


class Block(nn.Module):
    """Of a ResNet-18: two convolutions with batch norms around a shortcut."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after)
        self.conv2, self.norm2 = nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after)
        self.down = nn.Sequential()
        if stride > 1:
            self.down = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x))))) + self.down(x))


class ResNet(nn.Module):
    """ResNet-18, of 2 to 16 channels."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 2, 7, 2, 3, bias=False), nn.BatchNorm2d(2)
        sizes = [(2, 2, 1), (2, 2, 1), (2, 4, 2), (4, 4, 1), (4, 8, 2), (8, 8, 1), (8, 16, 2), (16, 16, 1)]
        self.blocks, self.head = nn.Sequential(*(Block(*size) for size in sizes)), nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(F.max_pool2d(F.relu(self.norm(self.stem(x))), 3, 2, 1)).mean((2, 3)))


class Bert(nn.Module):
    """One block with its norms behind, and tokens and places in front."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places, self.norm = nn.Embedding(11, 6), nn.Embedding(6, 6), nn.LayerNorm(6)
        self.block, self.head = encoder(first=False), nn.Linear(6, 11)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.block(self.norm(self.tokens(x) + self.places(torch.arange(x.shape[1])))))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 7), nn.ReLU(), nn.Linear(7, 4))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Any]]] = {
    "MLP": (mlp, normal(40, 6)),
    "ResNet": (ResNet, normal(2, 3, 40, 40)),
    "BERT": (Bert, tokens(11)),
    "GPT": (GPT, tokens(11)),
    "Llama": (lambda: Llama(2), tokens(9)),
}
CUT = [  # architecture, dtype, how many: what is affordable every time, and all
    *((name, torch.float32, 6) for name in ("MLP", "BERT", "Llama")),
    *(
        pytest.param(name, dtype, MANY, marks=pytest.mark.slow)
        for name in NETWORKS
        for dtype in (torch.float64, torch.float32)
    ),
]


@functools.cache
def made(name: str) -> tuple[nn.Module, NormalForm]:
    torch.manual_seed(0)
    module, inputs = (make() for make in NETWORKS[name])
    return module, normal_form(module, inputs)


def drawn(module: nn.Module, seed: int) -> State:
    """Random weights and statistics."""
    generator = torch.Generator().manual_seed(seed)
    state = generic(module, generator)
    for name in state:
        if "running" in name:
            noise = torch.rand(state[name].shape, dtype=torch.float64, generator=generator)
            state[name] = noise + 0.5 if "var" in name else 2 * noise - 1
    return state


def same(form: NormalForm, a: State, b: State, dtype: torch.dtype = torch.float64) -> bool:
    """What `compare_fibres` says of two networks in a dtype."""
    one, other = ({name: network[name].to(dtype) for name in form.whole.parameters} for network in (a, b))
    return compare_fibres(form, one, other).same_function


def others(form: NormalForm, states: list[State]) -> list[State]:
    """Of each network another function near it, or one that has nothing to do with it."""
    generator = torch.Generator().manual_seed(0)
    matrices = [n for n in form.whole.parameters if states[0][n].ndim > 1]

    def pick(count: int) -> int:
        return int(torch.randint(count, (), generator=generator))

    found = []
    for i, state in enumerate(states):
        name = matrices[pick(len(matrices))]
        x, first = state[name].clone(), state[matrices[0]]
        dim = 0 if "tokens" in matrices[0] else 1  # of the inputs
        order = torch.arange(first.shape[dim])
        order[:2] = order[:2].flip(0)
        entry = pick(x.numel())
        changes: list[State] = [
            states[(i + 1) % len(states)],
            {name: x + 1e-3 * x.std() * torch.randn(x.shape, dtype=x.dtype, generator=generator)},
            {name: x.flatten().index_add(0, torch.tensor([entry]), x.new_tensor([0.05])).reshape(x.shape)},
            {name: torch.where(torch.arange(x.numel()).reshape(x.shape) == entry, -x, x)},
            {matrices[0]: first.index_select(dim, order)},
            {name: -x},
        ]
        found.append(state | changes[i % len(changes)])
    return found


@pytest.mark.parametrize(("name", "dtype", "count"), CUT, ids=str)
def test_planted_elements_are_seen_through_and_other_functions_are_not(
    name: str, dtype: torch.dtype, count: int
) -> None:
    module, form = made(name)
    states, generator = [drawn(module, seed) for seed in range(count)], torch.Generator().manual_seed(1)
    for i, (state, other) in enumerate(zip(states, others(form, states), strict=True)):
        assert same(form, state, form.sample(state, generator=generator), dtype), i
        assert not same(form, state, form.sample(other, generator=generator), dtype), i


@pytest.mark.parametrize("name", ["BERT", "Llama"])
def test_fingerprints_are_those_of_the_fibre(name: str) -> None:
    module, form = made(name)
    states = [drawn(module, seed) for seed in range(3)]
    prints = [fingerprint_fibre(form, state) for state in states]
    for i, state in enumerate(states):
        moved = form.sample(state, generator=torch.Generator().manual_seed(i))
        assert fingerprint_fibre(form, moved) == prints[i]
    changed = fingerprint_fibre(form, others(form, states)[2])
    assert len({*prints, changed}) == 4
    with pytest.raises(ValueError, match=r"a fingerprint is of one network: .*; give each of a batch .* as t\[i, 0\]"):
        fingerprint_fibre(form, {name: t[None, None] for name, t in states[0].items()})
    with pytest.raises(TypeError, match="too few digits to tell networks apart"):
        fingerprint_fibre(form, {name: t.bfloat16() for name, t in states[0].items()})


@pytest.mark.slow
@pytest.mark.parametrize("name", ["chain", "batch norm", "two of them", "patches"])
def test_more_networks_are_seen_through(name: str) -> None:
    torch.manual_seed(0)
    module = CASES[name].module()
    form = normal_form(module, CASES[name].inputs())
    generator = torch.Generator().manual_seed(1)
    for seed in range(20):
        state = generic(module, torch.Generator().manual_seed(seed))
        assert same(form, state, form.sample(state, generator=generator)), seed
