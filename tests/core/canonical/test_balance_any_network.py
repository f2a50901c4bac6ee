"""Balancing networks that are no chains: several gauges on a node, nested nodes, sums, weights that share neurons."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from orbits import difference, far_element, generator, motion_of, networks
from strategies import all_spaces

from nfn_monomial import Axis, Symmetry, WeightSpace
from nfn_monomial.canonical.balance import Balance, balance
from nfn_monomial.canonical.signs import canonical_signs
from nfn_monomial.space import Node
from nfn_monomial.testing import random_element

PERMUTATION, SIGN, SCALE, MONOMIAL = Symmetry.PERMUTATION, Symmetry.SIGN, Symmetry.SCALE, Symmetry.MONOMIAL


def invariance_error(space, x, g, of=lambda x: x):
    moved, expected = balance(g.act(x), space)[0], motion_of(g).act(balance(x, space)[0])
    return difference({k: of(v) for k, v in moved.items()}, {k: of(v) for k, v in expected.items()})


@given(all_spaces(), st.integers(1, 2), st.integers(0, 10**6))
def test_one_form_for_all_of_an_orbit_up_to_the_permutation(space, channels, seed):
    x = networks(space, 2, channels, seed)
    signs = canonical_signs(space, space.pack(x), 1e-13)
    # Of networks some of whose signs nothing settles, sizes have one form.
    settled = all(bool((sign != 0).all()) for sign in signs.values())
    of = torch.clone if settled else torch.abs
    assert invariance_error(space, x, far_element(space, 2, draws=generator(seed)), of) < 1e-10


@given(all_spaces(), st.integers(0, 10**6))
def test_the_element_is_the_one_used_and_again_it_changes_nothing(space, seed):
    x = networks(space, 2, 1, seed)
    balanced, element = balance(x, space)
    assert difference(element.act(x), balanced) < 1e-12
    assert difference(balance(balanced, space)[0], balanced) < 1e-10
    assert difference(Balance(space)(x), balanced) < 1e-9
    for m in element.matrices.values():
        assert (m.batch, {scale.dtype for scale in m.scales}) == (2, {torch.float64})
        assert torch.equal(m.permutation, torch.arange(m.size).expand(2, -1))


def test_gauges_that_do_the_same_and_parameters_that_could_shrink_for_ever():
    """Neither makes the form less unique, nor the scales large."""
    both, other = Axis("h", (1, 1)), Axis("h", (-1, -1))
    twice = WeightSpace({"h": Node((SCALE, SCALE), 3)}, {"a": (both, 2), "b": (2, other)})
    once = WeightSpace({"h": (SCALE, 3)}, {"a": (Axis("h"), 2), "b": (2, Axis("h", -1))})
    x = networks(twice)
    assert difference(balance(x, twice)[0], balance(x, once)[0]) < 1e-12
    # Of (1, -1), (-1, 1) and (-1, 0), the last tends to 0 while the others keep their sizes.
    vanishing = WeightSpace(
        {"h": Node((SCALE, SCALE), 3)},
        {"a": (Axis("h", (1, -1)),), "b": (Axis("h", (-1, 1)),), "c": (Axis("h", (-1, 0)),)},
    )
    x = networks(vanishing)
    balanced, element = balance(x, vanishing)
    torch.testing.assert_close(balanced["a"].abs(), balanced["b"].abs())
    assert max(float(s.log().abs().max()) for s in element.matrices["h"].scales) < 10
    assert invariance_error(vanishing, x, far_element(vanishing, 3)) < 1e-10


@pytest.mark.parametrize("charge", [(1, 0), (0, 1)], ids=str)
def test_scales_that_are_settled_in_any_order(charge):
    """Those of `v` settle one of the two gauges of `h`, and that the other: no value is cut off."""
    space = WeightSpace(
        {"x": (Symmetry.FIXED, 2), "h": Node((SCALE, SCALE), 2), "v": (SCALE, 3)},
        {"a": (Axis("h", (1, 1)),), "b": (Axis("h", charge), Axis("v")), "c": (Axis("v", -1), Axis("x"))},
    )
    x = networks(space)
    assert difference(Balance(space)(x), balance(x, space)[0]) < 1e-12


@pytest.mark.parametrize("charges", [((1, 0), (0, 1)), ((1, 1), (0, 1)), ((1, 1), (1, 1))], ids=str)
def test_signs_of_several_gauges(charges):
    space = WeightSpace(
        {"h": Node((SIGN, SIGN), 4)}, {"a": (Axis("h", charges[0]), 2), "b": (Axis("h", charges[1]), 3)}
    )
    x = networks(space)
    g = random_element(space, 3)
    assert difference(balance(g.act(x), space)[0], motion_of(g).act(balance(x, space)[0])) < 1e-12
    changed = {**x, "a": -x["a"]}
    same = charges[0] != charges[1]  # then a can be flipped without b
    assert (difference(balance(changed, space)[0], balance(x, space)[0]) < 1e-12) == same
