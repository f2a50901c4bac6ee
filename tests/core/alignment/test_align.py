import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from orbits import far_element
from strategies import all_spaces, general

from nfn_monomial import Axis, GroupElement, MonomialError, MonomialMatrix, Symmetry, WeightSpace, align
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
    found = align(space, a, b)
    assert found.distance <= 1e-8 * _norm(a)
    assert _distance(a, found.element.act(b)) <= 1e-8 * _norm(a)
    assert _distance(found.aligned, found.element.act(b)) == 0


@given(SPACES, SEEDS)
def test_no_network_is_moved_away(space, seed):
    generator = torch.Generator().manual_seed(seed)
    a, b = _network(space, generator), _network(space, generator)
    found = align(space, a, b)
    assert found.distance <= _distance(a, b) * (1 + 1e-12)
    assert _distance(a, found.aligned) == pytest.approx(found.distance, rel=1e-9)
    assert align(space, a, found.aligned).distance <= found.distance * (1 + 1e-9)
    assert align(space, a, a).distance == 0


@given(SPACES, st.sampled_from(["permutation", "sign", "scale"]), SEEDS)
def test_smaller_groups_do_no_more_than_they_may(space, symmetry, seed):
    generator = torch.Generator().manual_seed(seed)
    a = _network(space, generator)
    smaller = space.restricted(symmetry)
    b = random_element(smaller, sizes=_sizes(space), generator=generator).act(a)
    found = align(space, a, b, symmetry=symmetry)
    assert found.distance <= 1e-8 * _norm(a)
    assert found.element.space == space
    GroupElement(smaller, found.element.matrices)  # raises for what the smaller group does not do


@pytest.mark.parametrize("symmetry", ["relu", "tanh", "none"])
@pytest.mark.parametrize("change", [lambda x: x, torch.Tensor.float], ids=["float64", "float32"])
def test_scales_of_a_million_are_found(symmetry, change):
    space = WeightSpace.mlp([3, 24, 16, 24, 2], Symmetry.MONOMIAL if symmetry == "none" else symmetry)
    generator = torch.Generator().manual_seed(1)
    a = _network(space, generator)
    planted = far_element(space, None, 6, generator)
    b = {name: change(x) for name, x in planted.act(a).items()}
    found = align(space, a, b)
    error = 1e-12 if b["bias.0"].dtype == torch.float64 else 1e-6
    assert found.distance <= error * _norm(a)
    for name, matrix in (found.element @ planted).matrices.items():
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


def test_networks_of_any_width_and_dtype_and_nothing_is_written_to():
    space = WeightSpace.mlp([2, 8, 1], "relu")
    sizes = {"x": 2, "h1": 40, "y": 1}
    generator = torch.Generator().manual_seed(8)
    a = {n: x[0, 0] for n, x in random_networks(space, 1, sizes=sizes, generator=generator).items()}
    b = {n: x.to(torch.bfloat16) for n, x in space.sample(sizes=sizes, generator=generator).act(a).items()}
    copies = [{n: x.clone() for n, x in network.items()} for network in (a, b)]
    found = align(space, a, b)
    assert found.distance < 0.05 * _norm(a)
    assert {x.dtype for x in found.aligned.values()} == {torch.bfloat16}
    assert all(torch.equal(x[n], y[n]) for x, y in zip((a, b), copies, strict=True) for n in x)


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
    found = align(space, a | head, b)
    assert found.unmoved == list(head)
    assert all(found.aligned[name] is b[name] for name in head)
    assert not align(space, a, a).unmoved
