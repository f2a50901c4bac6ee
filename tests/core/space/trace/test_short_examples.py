"""Examples of one token have the group of longer ones: what a single place does not show is FIXED, and said."""

import torch
from derived_groups import error, permutations, scalings
from torch import Tensor, nn

from nfn_monomial import WeightSpace
from nfn_monomial.space.report.explain import explain
from nfn_monomial.space.trace import derive


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
    assert "Too short to tell: " in explain(WeightSpace(short.nodes, short.parameters), short.report)


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
    module = nn.Sequential(nn.Conv2d(2, 4, 3), nn.GroupNorm(4, 4), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    assert WeightSpace.from_module(module, torch.randn(2, 2, 5, 5)).dead == ("0.bias",)
