import itertools

import pytest
import torch
from torch import nn

from nfn_monomial import Symmetry, register_activation, symmetry_of
from nfn_monomial.symmetry import _PARITIES


def test_hardtanh_is_odd_only_if_its_bounds_are_symmetric():
    assert symmetry_of(nn.Hardtanh()) is Symmetry.SIGN
    assert symmetry_of(nn.Hardtanh(-1, 2)) is Symmetry.PERMUTATION
    assert symmetry_of(nn.ReLU6()) is Symmetry.PERMUTATION


def test_intersections_are_those_of_the_groups():
    assert Symmetry.SCALE & Symmetry.SIGN is Symmetry.PERMUTATION
    assert Symmetry.MONOMIAL & Symmetry.SIGN is Symmetry.SIGN
    for a, b in itertools.product(Symmetry, repeat=2):
        both = a & b
        assert both <= a
        assert both <= b
        assert (a <= b) == (both is a)
        assert all(not (c <= a and c <= b) or c <= both for c in Symmetry)


def test_unknown_activations_are_errors_that_say_how_to_add_them():
    class Snake(nn.Module):
        def forward(self, x):
            return x + torch.sin(x) ** 2

    with pytest.raises(ValueError, match=r"unknown activation or symmetry 'snake'.*register_activation"):
        symmetry_of("snake")
    with pytest.raises(ValueError, match=r"Snake.*register_activation"):
        symmetry_of(Snake())
    with pytest.raises(ValueError, match="register_activation"):
        symmetry_of([1])
    with pytest.raises(ValueError, match="3 slopes"):
        symmetry_of(nn.PReLU(3))
    register_activation(Snake, "permutation")
    register_activation("snake", Symmetry.PERMUTATION)
    try:
        assert symmetry_of(Snake()) is symmetry_of("Snake") is Symmetry.PERMUTATION
    finally:
        del _PARITIES[Snake], _PARITIES["snake"]
    with pytest.raises(ValueError, match="use PERMUTATION"):
        register_activation(Snake, "fixed")


def test_charges_are_told_apart_exactly_when_they_act_differently():
    allowed = {Symmetry.PERMUTATION: [1.0], Symmetry.SIGN: [1.0, -1.0], Symmetry.SCALE: [1.0, 0.5, 3.0]}
    allowed[Symmetry.MONOMIAL] = [*allowed[Symmetry.SCALE], -1.0, -0.5]
    for symmetry, scales in allowed.items():
        for p, q in itertools.product(range(-3, 4), repeat=2):
            assert (symmetry.charge(p) == symmetry.charge(q)) == all(d**p == d**q for d in scales)
        for q in range(-3, 4):
            acting = symmetry.acting(q)
            assert acting.flips == any(d**q < 0 for d in scales)
            assert acting.scales == any(abs(d) ** q != 1 for d in scales)
