"""Group elements: what they are, and how they act on networks of any kind."""

import pytest
import torch
from every_layer import EXPERTS, of_heads
from hypothesis import given
from hypothesis import strategies as st
from strategies import HIDDEN, all_spaces

from nfn_monomial import (
    Axis,
    GroupElement,
    MonomialMatrix,
    Symmetry,
    WeightSpace,
    compare,
)
from nfn_monomial.adapters.pyg import act, from_graph, to_graph
from nfn_monomial.alignment import align
from nfn_monomial.canonical import balance
from nfn_monomial.models import MessagePassingNFN
from nfn_monomial.space import Node
from nfn_monomial.testing import random_element, random_networks


def matrix(n, symmetry, seed, batch=None):
    return MonomialMatrix.random(n, symmetry, batch=batch, generator=torch.Generator().manual_seed(seed))


@given(st.integers(1, 6), st.sampled_from(HIDDEN), st.sampled_from([None, 3]), st.integers(0, 10**6))
def test_matrices_multiply_invert_and_act_as_dense_matrices_do(n, symmetry, batch, seed):
    g, h = matrix(n, symmetry, seed, batch), matrix(n, symmetry, seed + 1, batch)
    x = torch.randn(3, 2, n, dtype=torch.float64)
    dense = g.dense() if batch else g.dense().expand(3, n, n)
    torch.testing.assert_close(g.act(x, 2), x @ dense.mT)
    torch.testing.assert_close(g.act(x, 2, charge=-1), x @ torch.linalg.inv(dense))
    torch.testing.assert_close((g @ h).dense(), g.dense() @ h.dense())
    torch.testing.assert_close(g.inverse().dense(), torch.linalg.inv(g.dense()))
    torch.testing.assert_close(g.act(x, -1, charge=0), x @ (dense != 0).to(x.dtype).mT)


@given(all_spaces(), st.sampled_from([None, 3]), st.integers(0, 10**6))
def test_group_elements_act_as_a_group_on_tensors_and_features_alike(space, batch, seed):
    generator = torch.Generator().manual_seed(seed)
    tensors = random_networks(space, 3, 2, generator=generator)
    g = random_element(space, batch, generator=generator)
    h = random_element(space, 3, generator=generator)
    once, twice = (g @ h).act(tensors), g.act(h.act(tensors))
    back = g.inverse().act(g.act(tensors))
    packed = space.unpack(g.act(space.pack(tensors)))
    moved = g.act(tensors)
    for name, x in tensors.items():
        torch.testing.assert_close(once[name], twice[name], rtol=1e-12, atol=0)
        torch.testing.assert_close(back[name], x, rtol=1e-12, atol=0)
        torch.testing.assert_close(packed[name], moved[name], rtol=1e-14, atol=0)


def test_gauges_have_charges_of_their_own_over_one_permutation():
    nodes = {"h": Node((Symmetry.SCALE, Symmetry.SIGN, Symmetry.SCALE), 4)}
    space = WeightSpace(nodes, {"w": (Axis("h", (1, 1, 0)), Axis("h", (0, 1, -2)))})
    g = random_element(space)
    (a, s, b), p = g.matrices["h"].scales, g.matrices["h"].motion.dense()
    w = torch.randn(4, 4, dtype=torch.float64)
    expected = torch.diag(a * s) @ p @ w @ p.mT @ torch.diag(s * b**-2)
    torch.testing.assert_close(g.act({"w": w})["w"], expected)
    assert space.group_dimension == 8
    with pytest.raises(ValueError, match="has 3 gauges, its matrix 1"):
        GroupElement(space, {"h": MonomialMatrix.identity(4)})


def test_a_nested_nodes_matrix_must_stay_inside_its_parents():
    nodes = {"g": Node((Symmetry.PERMUTATION,), 2), "o": Node((Symmetry.PERMUTATION,), 2, "g")}
    space = WeightSpace(nodes, {"b": (Axis("o"),)})
    across = MonomialMatrix(torch.ones(4), torch.tensor([2, 1, 0, 3]))
    with pytest.raises(ValueError, match="must leave each neuron in the one that it lies in"):
        GroupElement(space, {"g": MonomialMatrix.identity(2), "o": across})


def test_the_action_on_weights_is_that_of_the_paper():
    """Def. 4.2: (gW)_jk = d_j / d'_k W_{pi^-1(j) pi'^-1(k)} and (gb)_j = d_j b_{pi^-1(j)}."""
    space = WeightSpace.mlp([2, 3, 4, 1], "linear")
    tensors = {name: x[0, 0] for name, x in random_networks(space).items()}
    g = random_element(space)
    g1, g2 = g.matrices["h1"].dense(), g.matrices["h2"].dense()
    moved = g.act(tensors)
    torch.testing.assert_close(moved["weight.0"], g1 @ tensors["weight.0"])
    torch.testing.assert_close(moved["weight.1"], g2 @ tensors["weight.1"] @ torch.linalg.inv(g1))
    torch.testing.assert_close(moved["weight.2"], tensors["weight.2"] @ torch.linalg.inv(g2))
    torch.testing.assert_close(moved["bias.1"], g2 @ tensors["bias.1"])
    assert torch.equal(moved["bias.2"], tensors["bias.2"])


@pytest.mark.parametrize("symmetry", HIDDEN)
def test_random_elements_are_members_and_fill_the_group(symmetry):
    g = MonomialMatrix.random(3, symmetry, batch=200, generator=torch.Generator().manual_seed(0))
    GroupElement(WeightSpace.mlp([1, 3, 1], symmetry), {"h1": g})
    assert len({tuple(p.tolist()) for p in g.permutation}) == 6
    assert bool((g.scale < 0).any()) == symmetry.flips
    assert bool((g.scale.abs() != 1).any()) == symmetry.scales


@pytest.mark.parametrize(
    ("symmetry", "scale", "permutation", "message"),
    [
        ("scale", [1.0, -2.0], [1, 0], "negative scale on node 'h', whose symmetry is SCALE"),
        ("sign", [1.0, 2.0], [1, 0], r"symmetry SIGN: scales must be \+1 or -1"),
        ("permutation", [1.0, 2.0], [1, 0], "symmetry PERMUTATION: scales must be 1"),
        ("fixed", [1.0, 1.0], [1, 0], "'h' is FIXED"),
        ("monomial", [1.0, 0.0], [1, 0], "finite and nonzero"),
        ("monomial", [1.0, 1.0], [0, 0], r"each of 0\.\.1 once"),
        ("monomial", [1.0, 1.0, 1.0], [1, 0], "same shape"),
    ],
)
def test_elements_outside_the_group_are_refused(symmetry, scale, permutation, message):
    space = WeightSpace({"h": (Symmetry.coerce(symmetry), 2)}, {"b": (Axis("h"),)})
    with pytest.raises(ValueError, match=message):
        GroupElement(space, {"h": MonomialMatrix(torch.tensor(scale), torch.tensor(permutation))})


def test_matrices_of_the_wrong_size_or_batch_are_refused():
    g = matrix(3, "scale", 0, batch=2)
    with pytest.raises(ValueError, match="3 neurons cannot act on axis 1 of"):
        g.act(torch.zeros(2, 4), 1)
    with pytest.raises(ValueError, match="of 3 and 4 neurons do not compose"):
        g @ matrix(4, "scale", 0, batch=2)
    with pytest.raises(ValueError, match="batches of 2 and 3"):
        g @ matrix(3, "scale", 0, batch=3)
    with pytest.raises(ValueError, match="different spaces"):
        WeightSpace.mlp([1, 2, 1], "relu").sample() @ WeightSpace.mlp([1, 3, 1], "relu").sample()
    with pytest.raises(ValueError, match=r"size of node 'h1' is not known; give sizes=\{'h1': n\}"):
        WeightSpace.sequential([1, None, 1], [(), ()], "relu").sample()


@pytest.mark.parametrize("packed", [False, True])
def test_half_networks_that_leave_their_range_are_refused(packed):
    """float16 ends at 65504; what lies within it in the end is right, whatever happens on the way."""
    space = WeightSpace.mlp([2, 3, 4, 1], "relu")
    x = {name: t.half() for name, t in random_networks(space, 1, generator=torch.Generator().manual_seed(0)).items()}
    given = space.pack(x) if packed else x
    large = {name: MonomialMatrix.diagonal(torch.full((n,), 1e6)) for name, n in (("h1", 3), ("h2", 4))}
    name = r"\[h1\^\+1\]" if packed else r"weight\.0"
    with pytest.raises(ValueError, match=name + r" has entries of up to \S+, which .* larger than 65504"):
        GroupElement(space, large).act(given)
    small = {"h1": MonomialMatrix.diagonal(torch.full((3,), 1e4)), "h2": MonomialMatrix.diagonal(torch.full((4,), 1e4))}
    g = GroupElement(space, small)
    moved = g.act({"weight.1": x["weight.1"], "weight.2": x["weight.2"]})
    assert torch.equal(moved["weight.1"], x["weight.1"])  # times 1e4, divided by 1e4
    torch.testing.assert_close(moved["weight.2"].float(), x["weight.2"].float() / 1e4, rtol=1e-2, atol=1e-7)
    lost = g.act({"bias.0": torch.full((1, 1, 3), torch.inf, dtype=torch.float16)})  # it was infinite before
    assert bool(lost["bias.0"].isinf().all())


def test_diagonal_elements_move_nothing():
    space = WeightSpace.mlp([2, 3, 1], "linear")
    x = random_networks(space, 2)
    scale = torch.tensor([[2.0, -1.0, 0.5], [1.0, 3.0, -4.0]], dtype=torch.float64)
    element, full = MonomialMatrix.diagonal(scale), MonomialMatrix(scale, torch.arange(3).expand(2, 3))
    for a, b in ((element, full), (element.inverse(), full.inverse()), (element @ element, full @ full)):
        assert not a.permutes
        assert torch.equal(a.permutation, b.permutation)
        moved, expected = (GroupElement(space, {"h1": m}).act(x) for m in (a, b))
        assert all(torch.equal(moved[name], t) for name, t in expected.items())
    g = matrix(3, "monomial", 0, 2)
    torch.testing.assert_close((element @ g).dense(), element.dense() @ g.dense())
    torch.testing.assert_close((g @ element).dense(), g.dense() @ element.dense())
    with pytest.raises(ValueError, match="finite and nonzero"):
        MonomialMatrix.diagonal(torch.tensor([1.0, 0.0]))


def test_a_cyclic_element_leaves_no_part_of_the_neurons_in_its_place():
    nodes = {"h": (Symmetry.SCALE, 2), "k": Node((Symmetry.SIGN,), 5, "h")}
    space = WeightSpace(nodes, {"w": (Axis("h"),), "v": (Axis("h"), Axis("k"))})
    element = space.sample(3, generator=torch.Generator().manual_seed(0))
    found = element.cyclic().matrices
    assert all(torch.equal(found[name].scale, matrix.scale) for name, matrix in element.matrices.items())
    for row in found["k"].permutation.tolist():
        for start in (0, 5):
            orbit = [start]
            while (following := row[orbit[-1]]) != start:
                orbit.append(following)
            assert sorted(orbit) == list(range(start, start + 5))


SPACES = {"experts": EXPERTS} | {f"{s} heads": of_heads(s) for s in (Symmetry.PERMUTATION, Symmetry.FIXED)}


@pytest.mark.parametrize("name", SPACES)
def test_groups_act_and_are_found_again(name):
    space, generator = SPACES[name], torch.Generator().manual_seed(1)
    assert WeightSpace.from_json(space.to_json()) == space
    tensors, element = random_networks(space, 2, 1), space.sample(2, generator=generator).proper()
    moved = element.act(tensors)
    packed, graph = space.pack(tensors), to_graph(tensors, space)
    for found in (space.unpack(element.act(packed)), from_graph(act(graph, element), space)):
        assert all(torch.allclose(found[key], x, rtol=1e-12) for key, x in moved.items())
    assert all(torch.allclose(x, tensors[key], rtol=1e-12) for key, x in element.inverse().act(moved).items())
    for one, other in zip(*(space.pack(balance(x, space)[0]).tensors for x in (tensors, moved)), strict=True):
        assert torch.allclose(one.abs().sum(), other.abs().sum(), rtol=1e-9)
    single = {key: x[0, 0] for key, x in tensors.items()}
    other = space.sample(generator=generator).proper().act(single)
    assert compare(space, single, other).same_function
    assert max(float((x - single[key]).abs().max()) for key, x in align(space, single, other).aligned.items()) < 1e-9


def test_what_stays_is_not_moved():
    """The identity alone acts on experts; neurons stay in theirs, unlike in a node of their own for all of them."""
    element = EXPERTS.sample(generator=torch.Generator().manual_seed(0)).proper()
    assert "expert" not in element.matrices
    assert torch.equal(element.matrices["h"].permutation // 4, torch.arange(12) // 4)
    assert EXPERTS.group_dimension == 3 * 4
    networks = random_networks(EXPERTS, 1, 1)
    networks = {key: x[0, 0] for key, x in networks.items()}
    swapped = networks | {key: networks[key].flip(0) for key in ("router", "up", "up_bias", "down")}
    assert not compare(EXPERTS, networks, swapped).same_function
    model = MessagePassingNFN(EXPERTS, 4, 2, hidden=8).double()  # layers on fields may see no difference, this one does
    one, other = (model({key: x[None, None] for key, x in n.items()}) for n in (networks, swapped))
    assert float((one - other).detach().abs().max()) > 1e-9
