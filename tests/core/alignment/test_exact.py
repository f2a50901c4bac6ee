"""Equal functions are recognised by reading one parameter after the other."""

from collections.abc import Mapping

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from single_networks import drawn
from strategies import all_spaces
from torch import nn

from nfn_monomial import MonomialError, WeightSpace, compare
from nfn_monomial.alignment import comparison, exact, matching
from nfn_monomial.alignment.exact import matched
from nfn_monomial.canonical.neuron_features import Refinement, Slice
from nfn_monomial.space import packing

CHAIN = WeightSpace.mlp([3, 10, 10, 2], "relu")


def sampled(space, seed=0):
    return space.sample(generator=torch.Generator().manual_seed(seed), scale_range=(1e-3, 1e3)).proper()


class Lazy(Mapping):
    """Tensors that are made whenever someone asks for them."""

    def __init__(self, tensors):
        self.tensors, self.reads = tensors, 0

    def __getitem__(self, name):
        self.reads += 1
        return self.tensors[name].clone()

    def __contains__(self, name):
        return name in self.tensors

    def __iter__(self):
        return iter(self.tensors)

    def __len__(self):
        return len(self.tensors)


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


@given(st.sampled_from(["relu", "tanh", "gelu", "identity"]), st.integers(0, 2**31), st.booleans())
def test_elements_of_chains_are_found(activation, seed, bias):
    space = WeightSpace.mlp([3, 9, 7, 2], activation, bias)
    a = drawn(space, seed)
    moved = matched(space, a, b := sampled(space, seed).act(a)).act(b)
    for name, x in a.items():
        torch.testing.assert_close(moved[name], x, rtol=1e-10, atol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_heads_norms_and_residuals(dtype):
    space = WeightSpace.from_module(Block(), torch.randn(2, 5, 6))
    for seed in range(5):
        a = drawn(space, seed, dtype)
        wide = sampled(space, seed).act({name: x.double() for name, x in a.items()})
        b = {name: x.to(dtype) for name, x in wide.items()}
        moved = matched(space, a, b).act({name: x.double() for name, x in b.items()})
        for name, x in a.items():
            torch.testing.assert_close(moved[name], x.double(), rtol=max(1e-10, 8 * torch.finfo(dtype).eps), atol=0)


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


@pytest.mark.parametrize("entries", [1, 7, 50])
def test_slices_of_any_size(entries, monkeypatch):
    convolutions = WeightSpace.sequential([2, 5, 6, 3], [(3,), (2,), ()], "relu")
    for space in (WeightSpace.from_module(Block(), torch.randn(2, 5, 6)), convolutions, CHAIN):
        a = drawn(space)
        b = sampled(space).act(a)
        whole = matched(space, a, b)
        with monkeypatch.context() as small:
            small.setattr(exact, "_SLICE", entries)
            found = matched(space, a, b)
        for name, matrix in whole.matrices.items():
            assert torch.equal(matrix.permutation, found.matrices[name].permutation)
            torch.testing.assert_close(found.matrices[name].scales, matrix.scales, rtol=1e-10, atol=0)
        for name, x in found.act(b).items():
            torch.testing.assert_close(x, a[name], rtol=1e-10, atol=0)


@given(all_spaces(), st.integers(0, 2**31))
def test_features_do_not_depend_on_slices(space, seed):
    sizes = {name: node.size or 1 for name, node in space.nodes.items()}
    taken = packing.pieces(space, drawn(space, seed), sizes)
    features = []
    for last in (False, True):
        slices = {}
        for link in space.links:
            dim, x = link.axes[-1 if last else 0], taken[link.parameter]
            parts = torch.split(x, 2, dim) if last else [x]
            slices[link.parameter] = [Slice(dim, 2 * i, part) for i, part in enumerate(parts)]
        features.append(Refinement(space, slices, sizes).refine())
    torch.testing.assert_close(features[0], features[1], rtol=1e-10, atol=1e-12)


@given(all_spaces(), st.integers(0, 2**31))
def test_any_space_gives_an_element(space, seed):
    a, b = drawn(space, seed), drawn(space, seed + 1)
    element = matched(space, a, b)
    assert {name: x.shape for name, x in element.act(b).items()} == {name: x.shape for name, x in a.items()}


@pytest.mark.parametrize("most", [0, 4096])
def test_neurons_that_are_alike_may_change_places(most, monkeypatch):
    monkeypatch.setattr(matching, "_MOST", most)
    a = {name: torch.ones_like(x) for name, x in drawn(CHAIN).items()}
    moved = matched(CHAIN, a, b := sampled(CHAIN).act(a)).act(b)
    for name, x in a.items():
        torch.testing.assert_close(moved[name], x, rtol=1e-10, atol=0)


def test_zeros_leave_no_trace():
    a = drawn(CHAIN)
    a["bias.0"] = torch.where(torch.arange(10) < 4, 0, a["bias.0"])
    a["bias.1"] = 0 * a["bias.1"]
    b = sampled(CHAIN).act(a)
    moved = matched(CHAIN, a, b).act(b)
    for name, x in a.items():
        torch.testing.assert_close(moved[name], x, rtol=1e-10, atol=0)


def test_parameters_that_tell_nothing_about_scales():
    a = drawn(CHAIN)
    a |= {name: torch.where(torch.eye(*x.shape) > 0, 0, x) for name, x in a.items() if name == "weight.1"}
    a |= {"bias.1": 0 * a["bias.1"], "weight.2": 0 * a["weight.2"]}
    assert matched(CHAIN, a, sampled(CHAIN).act(a)).act(a).keys() == a.keys()


def test_a_single_number_may_be_zero():
    space = WeightSpace(CHAIN.nodes, CHAIN.parameters | {"temperature": ()})
    a = drawn(space) | {"temperature": torch.zeros((), dtype=torch.float64)}
    moved = matched(space, a, b := sampled(space).act(a)).act(b)
    torch.testing.assert_close(moved, a, rtol=1e-10, atol=0)


def test_nothing_is_searched_where_networks_are_equal(monkeypatch):
    monkeypatch.setattr(comparison, "align", None)
    a = drawn(CHAIN)
    b = sampled(CHAIN).act(a)
    lazy = Lazy(a), Lazy(b)
    assert compare(CHAIN, *lazy).same_function
    assert all(network.reads < 40 * len(a) for network in lazy)


def test_nothing_is_searched_beyond_memory(monkeypatch):
    monkeypatch.setattr(comparison, "align", None)
    monkeypatch.setattr(comparison, "_SEARCHED", 10)
    a = drawn(CHAIN)
    found = compare(CHAIN, a, drawn(CHAIN, 1))
    assert not found.same_function
    assert sum(x.aligned_l2**2 for x in found.layers.values()) <= sum(x.raw_l2**2 for x in found.layers.values())
    near = compare(CHAIN, a, {name: 1.001 * x for name, x in a.items()})
    assert near.explained["rest"] > 0


def test_wider_networks_than_the_space_has():
    wide = WeightSpace.mlp([3, 30, 20, 2], "relu")
    a = drawn(wide)
    assert compare(CHAIN, a, sampled(wide).act(a)).same_function


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_values_that_are_no_numbers(value):
    a = drawn(CHAIN)
    b = a | {"bias.1": torch.full_like(a["bias.1"], value)}
    with pytest.raises(MonomialError, match=r"bias\.1 holds .*NaN or infinite"):
        compare(CHAIN, a, b)
    with pytest.raises(MonomialError, match=r"network b .*bias\.1 has shape \(9,\)"):
        matched(CHAIN, a, a | {"bias.1": a["bias.1"][:9]})
