"""Networks are moved next to one another: one, by reading one parameter after the other, and many in one frame."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from orbits import far_element
from single_networks import drawn
from strategies import all_spaces, general
from torch import nn

from nfn_monomial import Axis, GroupElement, MonomialError, MonomialMatrix, Symmetry, WeightSpace, compare
from nfn_monomial.alignment import align, align_all, comparison, exact, matching
from nfn_monomial.alignment.exact import matched
from nfn_monomial.testing import random_element, random_networks

SEEDS = st.integers(0, 10**6)
SPACES = st.one_of(all_spaces(), general())


def _network(space, generator):
    sizes = _sizes(space)
    return {name: x[0, 0] for name, x in random_networks(space, 1, sizes=sizes, generator=generator).items()}


def _sizes(space):
    return {name: node.size or 4 for name, node in space.nodes.items()}


def _norm(network):
    return math.sqrt(sum(float(x.double().square().sum()) for x in network.values()))


def _distance(a, b):
    return _norm({name: a[name].double() - b[name].double() for name in a})


@given(SPACES, SEEDS)
def test_moved_networks_are_moved_back(space, seed):
    generator = torch.Generator().manual_seed(seed)
    a = _network(space, generator)
    b = random_element(space, sizes=_sizes(space), generator=generator).act(a)
    alignment = align(space, a, b)
    assert alignment.distance <= 1e-8 * _norm(a)
    assert _distance(a, alignment.element.act(b)) <= 1e-8 * _norm(a)
    assert _distance(alignment.aligned, alignment.element.act(b)) == 0


@given(SPACES, SEEDS)
def test_no_network_is_moved_away(space, seed):
    generator = torch.Generator().manual_seed(seed)
    a, b = _network(space, generator), _network(space, generator)
    alignment = align(space, a, b)
    assert alignment.distance <= _distance(a, b) * (1 + 1e-12)
    assert _distance(a, alignment.aligned) == pytest.approx(alignment.distance, rel=1e-9)
    assert align(space, a, alignment.aligned).distance <= alignment.distance * (1 + 1e-9)
    assert align(space, a, a).distance == 0


@given(SPACES, st.sampled_from(["permutation", "sign", "scale"]), SEEDS)
def test_smaller_groups_do_no_more_than_they_may(space, symmetry, seed):
    generator = torch.Generator().manual_seed(seed)
    a = _network(space, generator)
    smaller = space.restricted(symmetry)
    b = random_element(smaller, sizes=_sizes(space), generator=generator).act(a)
    alignment = align(space, a, b, symmetry=symmetry)
    assert alignment.distance <= 1e-8 * _norm(a)
    assert alignment.element.space == space
    GroupElement(smaller, alignment.element.matrices)  # raises for what the smaller group does not do


@pytest.mark.parametrize("symmetry", ["relu", "tanh", "none"])
@pytest.mark.parametrize("change", [lambda x: x, torch.Tensor.float], ids=["float64", "float32"])
def test_scales_of_a_million_are_found(symmetry, change):
    space = WeightSpace.mlp([3, 24, 16, 24, 2], Symmetry.MONOMIAL if symmetry == "none" else symmetry)
    generator = torch.Generator().manual_seed(1)
    a = _network(space, generator)
    planted = far_element(space, None, 6, generator)
    b = {name: change(x) for name, x in planted.act(a).items()}
    alignment = align(space, a, b)
    error = 1e-12 if b["bias.0"].dtype == torch.float64 else 1e-6
    assert alignment.distance <= error * _norm(a)
    for name, matrix in (alignment.element @ planted).matrices.items():
        assert torch.equal(matrix.permutation, torch.arange(matrix.size)), name
        torch.testing.assert_close(matrix.scale, torch.ones(matrix.size, dtype=torch.float64), rtol=error, atol=0)


def test_noise_on_every_weight_hides_no_neuron():
    space = WeightSpace.cnn([3, 16, 24, 24], 3, "relu", head=[32, 10])
    for seed in range(5):
        generator = torch.Generator().manual_seed(seed)
        a = _network(space, generator)
        planted = far_element(space, None, 6, generator)
        b = planted.act(a)
        b = {n: x * (1 + 0.01 * torch.randn(x.shape, generator=generator, dtype=x.dtype)) for n, x in b.items()}
        for name, matrix in (align(space, a, b).element @ planted).matrices.items():
            assert torch.equal(matrix.permutation, torch.arange(matrix.size)), name
            assert matrix.scale.log().abs().max() < 0.02


@pytest.mark.parametrize("symmetry", ["relu", "tanh"])
def test_neurons_that_are_equal_or_dead_are_no_trouble(symmetry):
    space = WeightSpace.mlp([2, 8, 8, 1], symmetry)
    generator = torch.Generator().manual_seed(3)
    a = _network(space, generator)
    for name in ("weight.0", "bias.0", "weight.1"):
        a[name] = a[name].clone()
    a["weight.0"][1], a["bias.0"][1], a["weight.1"][:, 1] = a["weight.0"][0], a["bias.0"][0], a["weight.1"][:, 0]
    a["weight.1"][:, 4] = 0  # read by nobody
    a["weight.0"][5], a["bias.0"][5] = 0, 0  # says nothing
    b = far_element(space, None, 6, generator).act(a)
    assert align(space, a, b).distance <= 1e-10 * _norm(a)
    zero = {name: torch.zeros_like(x) for name, x in a.items()}
    assert align(space, zero, zero).distance == 0
    assert align(space, a, zero).distance == pytest.approx(_norm(a))


def test_the_best_assignment_of_a_small_network_is_found():
    """Two layers have no other minimum where only one node moves: compare with all permutations."""
    space = WeightSpace.mlp([3, 5, 2], "sigmoid")
    generator = torch.Generator().manual_seed(4)
    for _ in range(5):
        a, b = _network(space, generator), _network(space, generator)
        best = min(
            _distance(a, GroupElement(space, {"h1": MonomialMatrix(torch.ones(5), torch.tensor(p))}).act(b))
            for p in itertools.permutations(range(5))
        )
        assert align(space, a, b).distance == pytest.approx(best)


def test_networks_of_different_widths_are_refused():
    space = WeightSpace.mlp([2, 4, 1], "relu")
    a, b = (_network(WeightSpace.mlp([2, n, 1], "relu"), torch.Generator().manual_seed(0)) for n in (4, 3))
    with pytest.raises(MonomialError, match=r"different widths.*'h1' has 4 neurons in a and 3 in b"):
        align(space, a, b)


def test_signs_that_only_neighbours_tell_are_found():
    """Every entry carries the signs of two neurons."""
    space = WeightSpace({"h": (Symmetry.SIGN, 9)}, {"loop": (Axis("h", 1), Axis("h", 1)), "size": (Axis("h", 2),)})
    generator = torch.Generator().manual_seed(11)
    a = _network(space, generator)
    for _ in range(10):
        assert align(space, a, random_element(space, generator=generator).act(a)).distance == 0


def test_what_is_no_parameter_of_the_space_is_said_to_be_unmoved():
    space = WeightSpace.mlp([2, 6, 1], "relu")
    a = _network(space, torch.Generator().manual_seed(12))
    head = {"auxiliary.weight": torch.randn(3, 6, dtype=torch.float64), "steps": torch.tensor(3)}
    b = space.sample(generator=torch.Generator().manual_seed(13)).act(a) | head
    alignment = align(space, a | head, b)
    assert alignment.unmoved == list(head)
    assert all(alignment.aligned[name] is b[name] for name in head)
    assert not align(space, a, a).unmoved


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


FRAMED = {
    "relu": WeightSpace.mlp([3, 6, 5, 2], "relu"),
    "tanh": WeightSpace.mlp([3, 6, 5, 2], "tanh"),
    "cnn": WeightSpace.cnn([1, 4, 5], 3, "relu", [6, 3]),
    "linear": WeightSpace.mlp([3, 6, 2], "monomial"),
}


@pytest.mark.parametrize("name", FRAMED)
def test_moved_copies_come_back(name):
    space = FRAMED[name]
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
    space = WeightSpace.mlp([3, 6, 6, 2], "tanh")
    networks = some(space, 3)
    frame = align_all(space, networks, symmetry=symmetry)
    to_first = [networks[0], *(align(space, networks[0], n, symmetry=symmetry).aligned for n in networks[1:])]

    def total(aligned):
        pairs = itertools.combinations(aligned, 2)
        return sum(float((x[name] - y[name]).square().sum()) for x, y in pairs for name in x)

    assert total(frame.aligned) < total(to_first) < total(networks)
    if symmetry:
        assert all(bool((s == 1).all()) for g in frame.elements for m in g.matrices.values() for s in m.scales)


def test_trained_apart_networks_come_nearer_by_more_symmetries():
    space = WeightSpace.mlp([4, 16, 16, 3], Symmetry.MONOMIAL)
    generator = torch.Generator().manual_seed(5)
    a, b = _network(space, generator), far_element(space, None, 1, generator).act(_network(space, generator))
    alignments = {name: align(space, a, b, symmetry=name) for name in ("permutation", "sign", "scale", None)}
    found = {name: x.distance for name, x in alignments.items()}
    assert {name: _distance(a, x.aligned) for name, x in alignments.items()} == pytest.approx(found, rel=1e-9)
    assert found[None] < found["scale"] < found["permutation"] < _distance(a, b)
    assert found["sign"] < found["permutation"]
