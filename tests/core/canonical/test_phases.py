"""Input preparation of sine networks: same function, one form for all phases, and no claim beyond sines."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from orbits import difference, motion_of
from torch import nn

from nfn_monomial import Axis, GroupElement, Symmetry, WeightSpace, balance
from nfn_monomial.canonical import absorb_omega, canonical_phase, shift_phase
from nfn_monomial.nn import Augment
from nfn_monomial.testing import random_element, random_networks

seeds = st.integers(0, 10**6)
SIREN = WeightSpace.mlp([2, 5, 4, 3], "sin")
CNN = WeightSpace.cnn([2, 4, 3], 2, "sin", head=[5, 2], positions=4)


@st.composite
def sine_spaces(draw):
    if draw(st.booleans()):
        return CNN
    sizes = draw(st.lists(st.integers(1, 4), min_size=2, max_size=5))
    bias = [draw(st.booleans()) for _ in sizes[1:]]
    return WeightSpace.mlp(sizes, draw(st.sampled_from(["sin", "permutation"])), bias)


def networks(space, batch=3, channels=1, seed=0, spread=5.0):
    """Random networks with biases of many periods."""
    x = random_networks(space, batch, channels, generator=torch.Generator().manual_seed(seed))
    return {name: t * spread if "bias" in name else t for name, t in x.items()}


def shifts_of(space, x, seed=0, largest=6):
    generator = torch.Generator().manual_seed(seed)
    hidden = [f"h{i}" for i in range(1, len(space.nodes) - 1) if f"bias.{i - 1}" in x]
    return {
        node: torch.randint(-largest, largest + 1, x[f"bias.{i}"].shape, generator=generator)
        for node, i in ((node, int(node[1:]) - 1) for node in hidden)
    }


def run(space, x, inputs, omega=1.0, fn=torch.sin):
    """The first network's outputs: layers of `mlp`, or convolutions, a flatten and linear layers."""
    depth = len(space.nodes) - 1
    for i in range(depth):
        weight, bias = x[f"weight.{i}"][0, 0], x.get(f"bias.{i}")
        bias = None if bias is None else bias[0, 0]
        if weight.ndim > 2:
            inputs = nn.functional.conv2d(inputs, weight, bias)
        else:
            inputs = nn.functional.linear(inputs.flatten(1), weight, bias)
        if i < depth - 1:
            inputs = fn((omega[i] if isinstance(omega, list) else omega) * inputs)
    return inputs


def inputs_of(space):
    size = (4, 4) if space is CNN else ()
    generator = torch.Generator().manual_seed(1)
    return torch.randn(7, space.nodes["x"].size, *size, dtype=torch.float64, generator=generator)


# -- the frequency ----------------------------------------------------------------------------------------------------


@given(sine_spaces(), seeds)
def test_absorbing_the_frequency_preserves_the_function(space, seed):
    x, inputs = networks(space, seed=seed, spread=1.0), inputs_of(space)
    expected = run(space, x, inputs, 3.0)
    torch.testing.assert_close(run(space, absorb_omega(x, space, 3.0), inputs), expected, rtol=1e-10, atol=1e-10)
    omegas = [3.0 - i / 2 for i in range(len(space.nodes) - 2)]
    found = run(space, absorb_omega(x, space, omegas), inputs)
    torch.testing.assert_close(found, run(space, x, inputs, omegas), rtol=1e-10, atol=1e-10)
    back = absorb_omega(absorb_omega(x, space, 3.0), space, 1 / 3.0)
    assert difference(back, x) < 1e-14
    g = random_element(space, 3, generator=torch.Generator().manual_seed(seed))
    assert difference(absorb_omega(g.act(x), space, 3.0), g.act(absorb_omega(x, space, 3.0))) < 1e-14


# -- phases -----------------------------------------------------------------------------------------------------------


@given(sine_spaces(), seeds)
def test_the_phase_preserves_the_function_and_lies_in_the_interval(space, seed):
    x, inputs = networks(space, seed=seed), inputs_of(space)
    found = canonical_phase(x, space)
    torch.testing.assert_close(run(space, found, inputs), run(space, x, inputs), rtol=1e-10, atol=1e-10)
    shifted = shift_phase(x, space, shifts_of(space, x, seed))
    torch.testing.assert_close(run(space, shifted, inputs), run(space, x, inputs), rtol=1e-10, atol=1e-10)
    for i in range(len(space.nodes) - 2):
        if f"bias.{i}" in found:
            assert bool((found[f"bias.{i}"].abs() <= math.pi / 2).all())
    assert torch.equal(found[f"weight.{0}"], x["weight.0"])
    assert all(torch.equal(t, found[k]) for k, t in canonical_phase(found, space).items())  # idempotent, bit by bit


@given(sine_spaces(), st.integers(1, 2), seeds)
def test_one_form_for_all_phases_equivariant_under_flips_and_permutations(space, channels, seed):
    x = networks(space, 3, channels, seed)
    expected = canonical_phase(x, space)
    shifted = shift_phase(x, space, shifts_of(space, x, seed))
    assert difference(canonical_phase(shifted, space), expected) < 1e-10
    g = random_element(space, 3, generator=torch.Generator().manual_seed(seed))
    assert difference(canonical_phase(g.act(x), space), g.act(expected)) < 1e-10


@given(sine_spaces(), seeds)
def test_with_balanced_signs_one_form_for_the_whole_group(space, seed):
    space = space.restricted("sign")
    x = networks(space, seed=seed)
    moved, permutation = x, GroupElement(space, {})
    for step in range(3):  # a word in the generators
        g = random_element(space, 3, generator=torch.Generator().manual_seed(seed + step))
        moved = g.act(shift_phase(moved, space, shifts_of(space, x, seed + step)))
        permutation = motion_of(g) @ permutation
    expected = permutation.act(balance(canonical_phase(x, space), space)[0])
    assert difference(balance(canonical_phase(moved, space), space)[0], expected) < 1e-10


def test_the_open_end():
    """Cosines (b = pi/2 modulo pi) have one form under phases however they are rounded, and none under flips."""
    x = networks(SIREN, 1)
    for dtype in (torch.float64, torch.float32):
        cosines = {name: t.to(dtype) for name, t in x.items()}
        cosines["bias.0"] = torch.tensor([-2.5, -1.5, -0.5, 0.5, 1.5], dtype=dtype).mul(math.pi)[None, None]
        found = canonical_phase(cosines, SIREN)
        assert torch.equal(found["bias.0"], torch.full_like(found["bias.0"], math.pi / 2))
        signs = torch.tensor([-1, 1, -1, 1, -1])
        assert torch.equal(found["weight.1"], cosines["weight.1"] * signs)
        assert all(torch.equal(t, found[k]) for k, t in canonical_phase(found, SIREN).items())
        above = {**cosines, "bias.0": torch.full_like(found["bias.0"], math.pi / 2).nextafter(torch.tensor(9.0))}
        below = {**cosines, "bias.0": -above["bias.0"]}
        assert torch.equal(canonical_phase(above, SIREN)["bias.0"], found["bias.0"])
        assert torch.equal(canonical_phase(above, SIREN)["weight.1"], above["weight.1"])
        assert torch.equal(canonical_phase(below, SIREN)["bias.0"], found["bias.0"])
        assert torch.equal(canonical_phase(below, SIREN)["weight.1"], -below["weight.1"])
    flipped = random_element(SIREN, 1).act(cosines)
    assert torch.equal(canonical_phase(flipped, SIREN)["bias.0"], found["bias.0"])  # not flipped along


@pytest.mark.parametrize("size", [1e2, 1e5, 1e8, 1e15])
def test_large_biases_lose_no_more_than_rounding(size):
    space = WeightSpace.mlp([1, 50, 1], "sin")
    x = networks(space, 1, spread=size)
    found = canonical_phase(x, space)
    # sin b and cos b are what the function knows of b; the sign is that of the outgoing weight
    sign = (found["weight.1"] / x["weight.1"])[..., 0, :]
    assert set(sign.unique().tolist()) == {-1.0, 1.0}
    for fn in (torch.sin, torch.cos):
        torch.testing.assert_close(sign * fn(found["bias.0"]), fn(x["bias.0"]), rtol=0, atol=1e-15)
    single = {name: t.float() for name, t in x.items()}
    short = canonical_phase(single, space)
    exact = canonical_phase({name: t.double() for name, t in single.items()}, space)
    assert short["bias.0"].dtype == torch.float32
    torch.testing.assert_close(short["bias.0"].double(), exact["bias.0"], rtol=1e-7, atol=1e-7)
    assert torch.equal(short["weight.1"].double(), exact["weight.1"])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_phases_in_16_bits_are_those_of_the_same_numbers(dtype):
    space = WeightSpace.mlp([1, 300, 1], "sin")
    x = {name: torch.ones(1, 1, *shape, dtype=dtype) for name, shape in space.shapes().items()}
    x["bias.0"] = torch.linspace(-5, 5, 300).to(dtype).reshape(1, 1, -1)
    expected = canonical_phase({name: t.float() for name, t in x.items()}, space)
    assert all(torch.equal(t, expected[name].to(dtype)) for name, t in canonical_phase(x, space).items())


# -- what is refused --------------------------------------------------------------------------------------------------


def test_what_does_not_fit_is_refused():
    x = networks(SIREN)
    with pytest.raises(ValueError, match="3 frequencies for 2 sine layers"):
        absorb_omega(x, SIREN, [30.0, 1.0, 1.0])
    for omega in (0.0, math.inf, math.nan):
        with pytest.raises(ValueError, match="omega_0 must be finite and not 0"):
            absorb_omega(x, SIREN, omega)
    with pytest.raises(ValueError, match=r"'y' of .* is no layer sin.* not one of its hidden nodes .*: h1, h2\."):
        canonical_phase(x, SIREN, layers=["y"])
    with pytest.raises(ValueError, match=r"'y' is no sine layer with a bias"):
        shift_phase(x, SIREN, {"y": torch.ones(3)})
    relu = WeightSpace.mlp([2, 5, 4, 3], ["relu", "sin"])
    with pytest.raises(ValueError, match=r"'h1' of .* is no layer sin.* has the symmetry SCALE"):
        canonical_phase(x, relu)
    with pytest.raises(ValueError, match=r"'x' of .* is no layer sin.* on axes of charges \{0\}"):
        absorb_omega(x, SIREN.uncharged(), 30.0)


NODES = {"x": (Symmetry.FIXED, 2), "h": (Symmetry.SIGN, 3), "y": (Symmetry.FIXED, 1)}
INWARD, BIAS, OUTWARD = (Axis("h"), Axis("x", -1)), (Axis("h"),), (Axis("y"), Axis("h", -1))
LAYER = {"inward": INWARD, "bias": BIAS, "outward": OUTWARD}


SHARED = {
    "a second bias": {"second": BIAS},
    "a residual branch": {"branch": (Axis("h"), Axis("h", -1))},
    "a second weight": {"second": INWARD},
    "a gate": {"gate": (Axis("h", -1),)},
    "a bilinear form": {"form": (Axis("y"), Axis("h", -1), Axis("h", -1))},
}


@pytest.mark.parametrize("case", SHARED)
def test_nodes_that_are_no_plain_layer_are_refused(case):
    space = WeightSpace(NODES, {**LAYER, **SHARED[case]})
    x = networks(space, 1)
    message = f"node 'h' of .* has .*{next(iter(SHARED[case]))}, .* need not be the one sine"
    for refused in (
        lambda: canonical_phase(x, space),
        lambda: canonical_phase(x, space, layers=["h"]),
        lambda: shift_phase(x, space, {"h": torch.tensor([1, 0, 3])}),
        lambda: Augment(space, phases=3),
    ):
        with pytest.raises(ValueError, match=message):
            refused()
    assert list(absorb_omega(x, space, 30.0)) == list(x)  # all rows of a node have its frequency
    assert all(torch.equal(t, x[name]) for name, t in canonical_phase(x, space, layers=[]).items())
