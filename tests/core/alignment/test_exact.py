"""Equal functions are recognised by reading one parameter after the other."""

import pytest
import torch
from single_networks import drawn
from torch import nn

from nfn_monomial import WeightSpace, compare
from nfn_monomial.alignment import comparison, exact, matching
from nfn_monomial.alignment.exact import matched

CHAIN = WeightSpace.mlp([3, 10, 10, 2], "relu")


def sampled(space, seed=0):
    return space.sample(generator=torch.Generator().manual_seed(seed), scale_range=(1e-3, 1e3)).proper()


class Block(nn.Module):
    """Grouped heads without attention, a norm, a residual: nested nodes and several gauges."""

    def __init__(self):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(6), nn.Linear(6, 36), nn.Linear(12, 6)
        self.up, self.down = nn.Linear(6, 8), nn.Linear(8, 6)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).view(len(x), -1, 3, 3, 4).permute(2, 0, 3, 1, 4)
        x = x + self.out((torch.softmax(q @ k.mT, -1) @ v).transpose(1, 2).flatten(2))
        return x + self.down(torch.relu(self.up(x)))


@pytest.mark.parametrize("seed", range(3))
def test_neurons_that_noise_confuses_are_told_apart_by_their_neighbours(seed):
    space = WeightSpace.mlp([4, 200, 200, 200, 200, 4], "relu")
    a, noise = drawn(space, seed), drawn(space, seed + 100)
    element = sampled(space, seed)
    b = {name: x * (1 + 0.1 * noise[name]) for name, x in element.act(a).items()}
    left = matched(space, a, b) @ element
    for matrix in left.matrices.values():
        assert torch.equal(matrix.permutation, torch.arange(matrix.size))
        assert (matrix.scale > 0).all()


SPACES = {
    "heads, norms and residuals": WeightSpace.from_module(Block(), torch.randn(2, 5, 6)),
    "convolutions": WeightSpace.sequential([2, 5, 6, 3], [(3,), (2,), ()], "relu"),
    "a number": WeightSpace(CHAIN.nodes, CHAIN.parameters | {"temperature": ()}),
}


@pytest.mark.parametrize("entries", [1, 7, exact._SLICE])
@pytest.mark.parametrize("name", SPACES)
def test_elements_are_found_in_slices_of_any_size(name, entries, monkeypatch):
    monkeypatch.setattr(exact, "_SLICE", entries)
    space = SPACES[name]
    a = drawn(space)
    if "temperature" in a:
        a["temperature"] *= 0
    b = sampled(space).act(a)
    torch.testing.assert_close(matched(space, a, b).act(b), a, rtol=1e-10, atol=0)


ALIKE = {
    "all": {name: torch.ones_like(x) for name, x in drawn(CHAIN).items()},
    "biases of 0": drawn(CHAIN) | {"bias.0": torch.arange(10).double() // 4, "bias.1": torch.zeros(10).double()},
    "most are 0": drawn(CHAIN) | {"weight.1": torch.eye(10).double(), "bias.1": torch.zeros(10).double()},
}


@pytest.mark.parametrize("most", [0, 4096])
@pytest.mark.parametrize("name", ALIKE)
def test_neurons_that_are_alike_may_change_places(name, most, monkeypatch):
    monkeypatch.setattr(matching, "_MOST", most)
    a = ALIKE[name]
    b = sampled(CHAIN).act(a)
    torch.testing.assert_close(matched(CHAIN, a, b).act(b), a, rtol=1e-10, atol=0)


def test_nothing_is_searched_where_networks_are_equal_or_too_large(monkeypatch):
    monkeypatch.setattr(comparison, "align", None)
    a = drawn(CHAIN)
    assert compare(CHAIN, a, sampled(CHAIN).act(a)).same_function
    monkeypatch.setattr(comparison, "_SEARCHED", 10)
    assert not compare(CHAIN, a, drawn(CHAIN, 1)).same_function
