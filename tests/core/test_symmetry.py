import itertools

import pytest
import torch
from torch import nn

from nfn_monomial import Symmetry, register_activation, symmetry_of
from nfn_monomial.symmetry import _BY_NAME, _BY_OBJECT

D = torch.tensor([-2.0, -1.0, -0.3, 0.4, 1.0, 3.0], dtype=torch.float64)
X = torch.linspace(-3, 3, 101, dtype=torch.float64)


def commuting(fn):
    """The largest symmetry that a function really commutes with, by trying scales of each group."""

    def commutes(d):
        return all(torch.allclose(fn(s * X), s * fn(X), rtol=1e-12, atol=1e-12) for s in d)

    flips, scales = commutes([-torch.ones(())]), commutes(D[D > 0])
    return {
        (False, False): Symmetry.PERMUTATION,
        (True, False): Symmetry.SIGN,
        (False, True): Symmetry.SCALE,
        (True, True): Symmetry.MONOMIAL,
    }[flips, scales]


def registered():
    for thing, symmetry in _BY_OBJECT.items():
        yield pytest.param(
            thing() if isinstance(thing, type) else thing, symmetry, id=str(getattr(thing, "__name__", thing))
        )


@pytest.mark.parametrize(("fn", "symmetry"), list(registered()))
def test_registered_functions_commute_with_exactly_the_group_they_are_registered_for(fn, symmetry):
    if isinstance(fn, nn.Module):
        fn = fn.double()
    assert commuting(lambda x: fn(x).detach()) is symmetry


def test_names_agree_with_the_functions_of_that_name():
    found = {name: getattr(torch, name, None) or getattr(nn.functional, name, None) for name in _BY_NAME}
    compared = [
        commuting(fn) is _BY_NAME[name]
        for name, fn in found.items()
        if callable(fn) and name not in ("prelu", "linear")
    ]
    assert all(compared)
    assert len(compared) > 15


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


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("scale", Symmetry.SCALE),
        ("relu", Symmetry.SCALE),
        ("ReLU", Symmetry.SCALE),
        (nn.ReLU(), Symmetry.SCALE),
        (nn.Tanh, Symmetry.SIGN),
        (torch.sin, Symmetry.SIGN),
        (nn.PReLU(), Symmetry.SCALE),
        (Symmetry.FIXED, Symmetry.FIXED),
        ("identity", Symmetry.MONOMIAL),
    ],
)
def test_coerce(value, expected):
    assert Symmetry.coerce(value) is expected


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
        del _BY_OBJECT[Snake], _BY_NAME["snake"]
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
