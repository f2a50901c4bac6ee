"""Fingerprints: the same for all networks of an orbit, and for no others."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from orbits import changed, far_element, generator
from single_networks import drawn
from strategies import all_spaces
from torch import nn
from torch.nn import functional as F

from nfn_monomial import Axis, Symmetry, WeightSpace, fingerprint
from nfn_monomial.canonical.fingerprint import invariants
from nfn_monomial.space import Node

CHAINS = {
    "relu": WeightSpace.mlp([2, 16, 16, 3], "relu"),
    "tanh": WeightSpace.mlp([2, 16, 16, 3], "tanh"),
    "without biases": WeightSpace.mlp([2, 16, 16, 3], "tanh", bias=False),
    "linear": WeightSpace.mlp([3, 12, 12, 2], "identity"),
    "cnn": WeightSpace.cnn([1, 8, 8], 3, "relu", head=[6, 4]),
}


class Attention(nn.Module):
    """Two heads of two channels, behind a norm; the bias of the keys does not matter."""

    def __init__(self):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(4), nn.Linear(4, 12), nn.Linear(4, 4)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).view(len(x), -1, 3, 2, 2).permute(2, 0, 3, 1, 4)
        return x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


def moved(space, network, seed=0, decades=6):
    """By permutations, signs, and scales between ``10^-decades`` and ``10^decades``; in the dtype that it has."""
    wide = far_element(space, decades=decades, draws=generator(seed)).act(
        {name: x.double() for name, x in network.items()}
    )
    return {name: x.to(network[name].dtype) for name, x in wide.items()}


@given(all_spaces(), st.integers(0, 2**31))
def test_numbers_are_those_of_the_orbit(space, seed):
    network = drawn(space, seed)
    found, expected = (invariants(space, x)[0] for x in (moved(space, network, seed, decades=3), network))
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-7)


def test_signs_that_two_ends_share_count_once():
    nodes = {"x": Node((Symmetry.FIXED,), 2), "heads": Node((Symmetry.SIGN,), 2)}
    nodes |= {"q": Node((Symmetry.SIGN,), 3, "heads"), "v": Node((Symmetry.SIGN,), 3, "heads")}
    parameters = {
        "in": ((Axis("heads", 1), Axis("v")), Axis("x")),
        "joined": (Axis("heads", 1), Axis("q"), Axis("v")),
        "bias": ((Axis("heads", 1), Axis("q")),),
        "same": ((Axis("heads", 0), Axis("q")),),
    }
    space = WeightSpace(nodes, parameters)
    network = drawn(space)
    assert fingerprint(space, moved(space, network)) == fingerprint(space, network)
    assert fingerprint(space, changed(network, "joined", (0, 0, 0), -1)) != fingerprint(space, network)


@pytest.mark.parametrize("name", CHAINS)
def test_other_functions_have_others(name):
    space = CHAINS[name]
    network = drawn(space)
    first = next(iter(network))
    hidden = "weight.1"
    swapped = network[first].clone()
    swapped[[0, 1]] = swapped[[1, 0]]
    others = [
        drawn(space, 1),
        changed(network, first, (0,) * network[first].ndim, 1.001),
        changed(network, hidden, (0,) * network[hidden].ndim, -1),
        network | {first: swapped},
        {key: 2 * x for key, x in network.items()},
    ]
    found = {fingerprint(space, x) for x in (network, *others)}
    assert len(found) == 1 + len(others)


NARROW = (torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2)


@pytest.mark.parametrize("dtype", NARROW)
def test_where_digits_are_few_there_is_none(dtype):
    space = CHAINS["relu"]
    network = {name: x.float() for name, x in drawn(space).items()}
    narrow = {name: x.to(dtype) for name, x in network.items()}
    for found, name in ((narrow, "weight.0"), (network | {"bias.2": narrow["bias.2"]}, "bias.2")):
        with pytest.raises(TypeError, match=rf"{name} is a tensor .*{dtype}.* too few digits .* compare two such"):
            fingerprint(space, found)
    with pytest.raises(TypeError, match=r"weight.0 is a tensor .*int8.*; a floating point tensor is expected"):
        fingerprint(space, {name: x.to(torch.int8) for name, x in network.items()})


CHANGES = {
    "all by 0.1 %": lambda x, g: x * (1 + 1e-3 * torch.randn(x.shape, generator=g)),
    "a sign": lambda x, g: x * (1 - 2 * (torch.arange(x.numel()) == x.numel() // 2).view(x.shape)),
    "twice one": lambda x, g: x * (1 + (torch.arange(x.numel()) == x.numel() // 2).view(x.shape)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_float32_tells_small_networks_apart_and_finds_them_again(change):
    space = CHAINS["relu"]
    for seed in range(10):
        network = {n: x.float() / x.shape[-1] ** 0.5 for n, x in drawn(space, seed).items()}
        own, g = fingerprint(space, network), generator(seed)
        assert fingerprint(space, {n: CHANGES[change](x, g) for n, x in network.items()}) != own
        assert fingerprint(space, moved(space, network, seed, decades=2)) == own
        wide = {n: x.double() if n == "weight.1" else x for n, x in network.items()}
        assert fingerprint(space, wide) == own, "the coarser of two dtypes counts"


def test_names_do_not_matter_but_sizes_symmetries_and_order_do():
    network = drawn(CHAINS["relu"])
    net = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3))
    space = WeightSpace.from_module(net, torch.zeros(1, 2))
    renamed = dict(
        zip(["0.weight", "0.bias", "2.weight", "2.bias", "4.weight", "4.bias"], network.values(), strict=True)
    )
    chain = WeightSpace.sequential([2, 16, 16, 3], [()] * 3, "relu", names=[("a", "b"), ("c", "d"), ("e", "f")])
    own = fingerprint(CHAINS["relu"], network)
    assert fingerprint(chain, dict(zip("abcdef", network.values(), strict=True))) == own
    assert fingerprint(space, renamed | {"0.steps": torch.tensor(3)}) == fingerprint(space, renamed)
    assert fingerprint(CHAINS["tanh"], network) != own
    wider = WeightSpace.mlp([2, 17, 16, 3], "relu")
    zeros = dict(drawn(wider))
    assert fingerprint(wider, zeros) != own


def test_what_does_not_matter_is_left_out():
    space = WeightSpace.from_module(Attention(), torch.randn(2, 3, 4))
    assert space.dead == ("qkv.bias[1]",)
    network = drawn(space)
    keys, queries = network["qkv.bias"].clone(), network["qkv.bias"].clone()
    keys[4:8] += 1
    queries[:4] += 1
    own = fingerprint(space, network)
    assert fingerprint(space, moved(space, network | {"qkv.bias": keys}, decades=2)) == own
    assert fingerprint(space, network | {"qkv.bias": queries}) != own


def test_it_is_what_it_was():
    """Fingerprints are written down and looked up later: on other machines, by other versions."""
    network = {
        name: torch.arange(1.0, 1 + math.prod(shape), dtype=torch.float64).reshape(shape).cos()
        for name, shape in CHAINS["relu"].shapes().items()
    }
    assert fingerprint(CHAINS["relu"], network) == "09fa200f176d74e02d24afb3531efec7"
