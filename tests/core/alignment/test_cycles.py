"""Many networks in one frame: ways compose, copies come back, and nothing gets worse."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from strategies import all_spaces

from nfn_monomial import WeightSpace
from nfn_monomial.alignment import align, align_all, mean_of
from nfn_monomial.testing import random_networks


def some(space, count, seed=0):
    tensors = random_networks(space, count, generator=torch.Generator().manual_seed(seed))
    return [{name: t[i, 0] for name, t in tensors.items()} for i in range(count)]


def is_identity(element, tolerance=1e-10):
    return all(
        torch.equal(m.permutation, torch.arange(m.size))
        and all(bool(((s - 1).abs() < tolerance).all()) for s in m.scales)
        for m in element.matrices.values()
    )


@settings(max_examples=3)
@given(all_spaces())
def test_ways_between_networks_compose(space):
    networks = some(space, 3)
    frame = align_all(space, networks)
    assert not frame.elements[0].matrices
    between = {(i, j): frame.elements[i].inverse() @ frame.elements[j] for i, j in itertools.permutations(range(3), 2)}
    for i, j, k in itertools.permutations(range(3)):
        assert is_identity(between[i, j] @ between[j, k] @ between[k, i])
    for element, network, found in zip(frame.elements, networks, frame.aligned, strict=True):
        for name, t in element.act(network).items():
            assert torch.equal(found[name], t)


SPACES = {
    "relu": WeightSpace.mlp([3, 6, 5, 2], "relu"),
    "tanh": WeightSpace.mlp([3, 6, 5, 2], "tanh"),
    "cnn": WeightSpace.cnn([1, 4, 5], 3, "relu", [6, 3]),
    "linear": WeightSpace.mlp([3, 6, 2], "monomial"),
}


@pytest.mark.parametrize("name", SPACES)
def test_moved_copies_come_back(name):
    space = SPACES[name]
    (a,) = some(space, 1)
    generator = torch.Generator().manual_seed(1)
    copies = [space.sample(generator=generator).proper().act(a) for _ in range(3)]
    frame = align_all(space, [a, *copies])
    for network in frame.aligned:
        for key, t in network.items():
            torch.testing.assert_close(t, a[key], rtol=1e-9, atol=1e-9)
    assert not torch.allclose(copies[0]["weight.0"], a["weight.0"])


@pytest.mark.parametrize("symmetry", [None, "permutation"])
def test_the_sum_of_distances_is_not_above_that_of_pairwise_matching(symmetry):
    space = WeightSpace.mlp([3, 8, 8, 2], "tanh")
    networks = some(space, 4)
    frame = align_all(space, networks, symmetry=symmetry)
    to_first = [networks[0], *(align(space, networks[0], n, symmetry=symmetry).aligned for n in networks[1:])]

    def total(aligned):
        pairs = itertools.combinations(aligned, 2)
        return sum(float((x[name] - y[name]).square().sum()) for x, y in pairs for name in x)

    assert total(frame.aligned) < total(to_first) < total(networks)
    if symmetry:
        assert all(bool((s == 1).all()) for g in frame.elements for m in g.matrices.values() for s in m.scales)


def test_the_mean_of_what_was_aligned_is_a_network_of_the_first_frame():
    space = SPACES["relu"]
    networks = some(space, 3)
    mean = mean_of(align_all(space, networks).aligned)
    element = space.sample(generator=torch.Generator().manual_seed(4))
    moved = mean_of(align_all(space, [element.act(networks[0]), *networks[1:]]).aligned)
    for name, t in element.act(mean).items():
        torch.testing.assert_close(moved[name], t, rtol=1e-8, atol=1e-8 * float(t.abs().max()))
