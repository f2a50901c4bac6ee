"""Random elements of the whole fibre are seen through, and no two networks of other functions are taken for one.

The full numbers are slow: a thousand copies of each architecture and dtype, and as many other networks.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from fibres import CASES, GPT, Llama, encoder, generic, normal, tokens
from torch import Tensor, nn
from torch.nn import functional as F

from nfn_monomial.fibre import NormalForm, compare_fibres, fingerprint_fibre, normal_form
from nfn_monomial.fibre.compare import _DRAWS, _allowed, _decided, _noisy, _norms_agree

State = dict[str, Tensor]
MANY = 1000


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
    *((name, torch.float32, 6) for name in NETWORKS if name != "ResNet"),
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


def stacked(form: NormalForm, states: list[State], dtype: torch.dtype) -> State:
    return {n: torch.stack([state[n] for state in states]).unsqueeze(1).to(dtype) for n in form.whole.parameters}


def decisions(form: NormalForm, a: State, b: State) -> Iterator[bool]:
    """What `compare_fibres` says of each two of batches of networks, whose normal forms are made all at once."""
    eps = max(torch.finfo(t.dtype).eps for t in a.values())
    count = len(next(iter(a.values())))
    found, noisy = [], []
    for number, batch in enumerate((a, b)):
        wide = {n: t.double() for n, t in batch.items()}
        again = []
        for draw in range(_DRAWS):
            each = [_noisy({n: t[i] for n, t in wide.items()}, eps, number + 2 * draw) for i in range(count)]
            again.append(form({n: torch.stack([network[n] for network in each]) for n in wide}))
        found.append(form(wide))
        noisy.append(again)
    for i in range(count):
        one, two = ({n: t[i, 0] for n, t in x.items()} for x in found)
        noise = [{n: t[i, 0] for n, t in noisy[j % 2][j // 2].items()} for j in range(2 * _DRAWS)]
        allowed = _allowed(form, [one, two], noise)
        yield _norms_agree([one, two], allowed) and _decided(form, [one, two], allowed, eps, 0)[0]


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
    states = [drawn(module, seed) for seed in range(count)]
    a = stacked(form, states, dtype)
    moved = form.sample(a, generator=torch.Generator().manual_seed(1))
    assert [i for i, same in enumerate(decisions(form, a, moved)) if not same] == []
    other = form.sample(stacked(form, others(form, states), dtype), generator=torch.Generator().manual_seed(2))
    assert [i for i, same in enumerate(decisions(form, a, other)) if same] == []


def test_decisions_of_batches_are_those_of_comparisons() -> None:
    module, form = made("Llama")
    states = [drawn(module, seed) for seed in range(6)]
    a = stacked(form, states, torch.float32)
    moved = form.sample(stacked(form, [*others(form, states)[:5], states[5]], torch.float32))
    one_by_one = [
        compare_fibres(form, *({n: t[i, 0] for n, t in batch.items()} for batch in (a, moved))).same_function
        for i in range(6)
    ]
    assert list(decisions(form, a, moved)) == one_by_one == [False] * 5 + [True]


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
        fingerprint_fibre(form, stacked(form, states, torch.float32))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["chain", "batch norm", "two of them", "patches"])
def test_more_networks_are_seen_through(name: str) -> None:
    torch.manual_seed(0)
    module = CASES[name].module()
    form = normal_form(module, CASES[name].inputs())
    states = [generic(module, torch.Generator().manual_seed(seed)) for seed in range(200)]
    a = stacked(form, states, torch.float64)
    assert all(decisions(form, a, form.sample(a, generator=torch.Generator().manual_seed(1))))
