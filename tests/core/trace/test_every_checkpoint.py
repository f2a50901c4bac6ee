"""Groups hold for every checkpoint and length: what the example does not reach or happens to hold says nothing."""

import pytest
import torch
import torch.nn.functional as F
from derived_groups import Of, error, permutations, scalings
from deriving import derive
from torch import Tensor, nn

from nfn_monomial import WeightSpace
from nfn_monomial.report.explain import explain
from nfn_monomial.running import answers, doubled, largest_change


def moved_by(space: WeightSpace, module: nn.Module, *inputs: Tensor) -> float:
    """By how much a random group element changes the outputs, relative to them, in float64."""
    state = {k: doubled(t) for k, t in (*module.named_parameters(), *module.named_buffers())}
    element = space.sample(generator=torch.Generator().manual_seed(0)).proper()
    inputs = tuple(map(doubled, inputs))
    return largest_change(answers(module, element.act(state), inputs), answers(module, state, inputs))


def trained(module: nn.Module) -> nn.Module:
    """The module with parameters and buffers that no initialisation has."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            if tensor.is_floating_point():
                tensor.copy_(torch.rand(tensor.shape, generator=generator) + 0.5)
    return module


def places(read) -> nn.Module:
    """A stream with a table of places, of which it reads as many rows as there are tokens."""
    parts = {"enter": nn.Linear(3, 6), "leave": nn.Linear(6, 2), "places": nn.Parameter(torch.randn(1, 16, 6))}
    return Of(lambda s, x: s.leave(torch.relu(s.enter(x) + read(s.places, x.shape[1]))), **parts)


READS = {
    "a slice": lambda table, length: table[:, :length],
    "the mean of some rows": lambda table, length: table[:, : length + 3].mean(1, keepdim=True),
    "the mean of all but one row": lambda table, length: table[:, : length + 11].mean(1, keepdim=True),
    "from a place on": lambda table, length: table[:, 5 : 5 + length],
    "a slice of what is made of it": lambda table, length: (table * 2)[:, :length],
    "one row": lambda table, length: table[:, length],
    "all of it": lambda table, length: table[:, :length] + table[:, length:].mean(1, keepdim=True),
}


@pytest.mark.parametrize("read", READS)
def test_rows_of_a_table_that_the_example_does_not_read_are_fixed(read):
    module = places(READS[read])
    space = WeightSpace.from_module(module, torch.randn(2, 4, 3))
    assert space.group_dimension == 6, "the stream's scales, and nothing of the table alone"
    assert "read in part on the example" in space.explain()
    for length in (1, 2, 4, 5):
        assert moved_by(space, module, torch.randn(2, length, 3)) < 1e-9


def frozen() -> nn.Module:
    """A batch norm whose four vectors are buffers, 1 and 0 before any training."""

    def norm(s, x: Tensor) -> Tensor:
        gain = s.gain * (s.variance + 1e-5).rsqrt()
        x = x * gain[:, None, None] + (s.shift - s.mean * gain)[:, None, None]
        return s.second(torch.relu(x)).mean((2, 3))

    starts = {"gain": 1.0, "shift": 0.0, "mean": 0.0, "variance": 1.0}
    buffers = {name: nn.Buffer(torch.full((4,), start)) for name, start in starts.items()}
    return Of(lambda s, x: norm(s, s.first(x)), first=nn.Conv2d(1, 4, 3), second=nn.Conv2d(4, 3, 3), **buffers)


def test_a_frozen_norm_has_one_group_fresh_and_trained():
    image = torch.randn(2, 1, 7, 7)
    fresh, later = (WeightSpace.from_module(module, image) for module in (frozen(), trained(frozen())))
    assert fresh == later
    assert {"gain", "shift", "mean", "variance"} <= fresh.parameters.keys()
    assert [node.size for node in fresh.nodes.values() if node.permutes] == [4]
    assert moved_by(fresh, trained(frozen()), image) < 1e-9


BUFFERS = {
    "a mask of the lottery": (torch.ones(4, 3), lambda s, x: F.linear(x, s.enter.weight * s.table, s.enter.bias)),
    "a mask of truths": (torch.ones(4, 3, dtype=torch.bool), lambda s, x: F.linear(x, s.enter.weight * s.table)),
    "a shift": (torch.zeros(4), lambda s, x: s.enter(x) + s.table),
    "an order of neurons": (torch.arange(4), lambda s, x: s.enter(x)[:, s.table]),
    "mean of the inputs": (torch.zeros(3), lambda s, x: s.enter(x - s.table)),
    "a single number": (torch.tensor(1.0), lambda s, x: s.enter(x) * s.table),
    "a number with a dimension": (torch.ones(1), lambda s, x: torch.tanh(F.linear(x, s.enter.weight * s.table))),
    "a fixed matrix": (torch.eye(4), lambda s, x: s.enter(x) @ s.table),
}


@pytest.mark.parametrize("name", BUFFERS)
def test_values_of_buffers_decide_nothing(name):
    values, enter = BUFFERS[name]

    def net() -> nn.Module:
        parts = {"enter": nn.Linear(3, 4), "leave": nn.Linear(4, 2), "table": nn.Buffer(values.clone())}
        return Of(lambda s, x: s.leave(torch.relu(enter(s, x))), **parts)

    fresh, other = net(), net()
    generator = torch.Generator().manual_seed(2)
    if values.is_floating_point():
        other.table.copy_(torch.randn(values.shape, generator=generator))
    else:
        shuffled = torch.randperm(values.numel(), generator=generator).view(values.shape)
        other.table.copy_(shuffled % 2 == 0 if values.dtype == torch.bool else shuffled)
    x = torch.randn(5, 3)
    space = WeightSpace.from_module(fresh, x)
    assert space == WeightSpace.from_module(other, x)
    assert moved_by(space, other, x) < 1e-9


def slopes(heads: int) -> Tensor:
    return torch.tensor([2.0**-i for i in range(1, heads + 1)])


def alibi(length: int) -> Tensor:
    places = torch.arange(length, dtype=torch.float32)
    return slopes(4)[:, None, None] * (places[None] - places[:, None])


def alibi_of_a_mask(length: int) -> Tensor:
    return slopes(4)[:, None, None] * (torch.ones(1, 1, length).cumsum(-1) - 1)


def alibi_from_behind(length: int) -> Tensor:
    return slopes(4).view(1, -1, 1, 1) * torch.arange(1 - length, 1).view(1, 1, 1, length)


def all_but_itself(length: int) -> Tensor:
    return slopes(4)[:, None, None] * (1 - torch.eye(length))


def what_is_ahead(length: int) -> Tensor:
    return slopes(4)[:, None, None] * torch.ones(length, length).triu(1)


def nothing(length: int) -> float:
    return 0.0


def sines(length: int) -> Tensor:
    return torch.sin(torch.arange(length)[:, None] * torch.tensor([1.0, 0.7, 0.5, 0.3, 0.2, 0.1, 0.05, 0.02]))


class Attention(nn.Module):
    """Four heads of two channels, with something added to tokens or to scores."""

    def __init__(self, table=nothing, bias=nothing) -> None:
        super().__init__()
        self.table, self.bias = table, bias
        self.tokens, self.head = nn.Embedding(9, 8), nn.Linear(8, 3)
        self.q, self.k, self.v, self.out = (nn.Linear(8, 8) for _ in range(4))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.table(tokens.shape[1])
        q, k, v = (layer(x).view(*tokens.shape, 4, 2).transpose(1, 2) for layer in (self.q, self.k, self.v))
        weights = (q @ k.transpose(-2, -1) + self.bias(tokens.shape[1])).softmax(-1)
        return self.head(x + self.out((weights @ v).transpose(1, 2).flatten(2)))


class Beside(nn.Module):
    """Networks beside one another: one export for all of them."""

    def __init__(self) -> None:
        super().__init__()
        biases = (alibi, alibi_of_a_mask, alibi_from_behind, all_but_itself, what_is_ahead)
        self.networks = nn.ModuleList([Attention(sines), *(Attention(bias=bias) for bias in biases)])

    def forward(self, tokens: Tensor) -> list[Tensor]:
        return [network(tokens) for network in self.networks]


def test_one_token_has_the_group_of_several():
    module = Beside()
    short, long = (derive(module, torch.zeros(2, length, dtype=torch.long)) for length in (1, 4))
    assert (permutations(short), scalings(short)) == (permutations(long), scalings(long))
    assert error(module, short, (torch.arange(10).view(2, 5) % 9,)) < 1e-9
    assert "Too short to tell: " in explain(WeightSpace(short.nodes, short.parameters), short.origin)


def test_nothing_is_dead_where_a_softmax_has_one_entry():
    """All but the bias of the keys matters: with one key, all would seem to be dead."""
    short, long = (WeightSpace.from_module(Attention(), torch.zeros(2, n, dtype=torch.long)) for n in (1, 4))
    assert long.dead == ("k.bias",)
    assert short.dead == ()
    assert "Too short to tell: softmax" in short.explain()
    assert "Too short" not in long.explain()


def test_nothing_is_dead_where_a_mean_is_that_of_one_entry():
    module = nn.Sequential(nn.Conv2d(2, 4, 3), nn.GroupNorm(4, 4), nn.Flatten(), nn.Linear(4, 2))
    assert WeightSpace.from_module(module, torch.randn(2, 2, 3, 3)).dead == ()
    module = nn.Sequential(nn.Conv2d(2, 4, 3), nn.GroupNorm(4, 4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    assert WeightSpace.from_module(module, torch.randn(2, 2, 5, 5)).dead == ("0.bias",)
