"""What linear layers, canonicalisation and activations compute, how they start, and what they refuse."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import all_spaces
from torch import nn

from nfn_monomial import (
    Canonicalize,
    EquivariantLinear,
    Features,
    InvariantPool,
    MessagePassing,
    MonomialNFN,
    PointwiseActivation,
    WeightSpace,
)
from nfn_monomial.models import MessagePassingNFN
from nfn_monomial.testing import assert_equivariant, assert_invariant, random_networks

channels = st.integers(1, 3)
seeds = st.integers(0, 10**6)


@given(all_spaces(), channels, st.sampled_from(["norm", "square"]), seeds)
def test_scales_of_a_million(space, c, kind, seed):
    """Rounding errors are those of every entry by itself, whatever its neurons' scales."""
    torch.manual_seed(seed)
    linear, canonical = EquivariantLinear(space, c, c).double(), Canonicalize(space, c, kind).double()
    x = space.pack(random_networks(space, 2, c))
    g = space.sample(2, scale_range=(1e-6, 1e6))
    pool, (plain, moved) = InvariantPool(space, c), (linear(z).detach() for z in (x, g.act(x)))
    for a, b in zip(plain.tensors, g.inverse().act(moved).tensors, strict=True):
        assert float((a - b).abs().max()) <= 1e-10 * float(a.abs().max())
    torch.testing.assert_close(pool(canonical(plain)), pool(canonical(moved)), rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("symmetry", ["relu", "linear", ["relu", "tanh"]], ids=str)
@pytest.mark.parametrize("scale", [1e-300, 1e-13, 1.0, 1e13, 1e150])
@pytest.mark.parametrize("kind", ["norm", "square"])
def test_canonicalize_is_exact_at_any_scale(symmetry, scale, kind):
    """No epsilon: features as small or large as floating point goes give what those of size 1 give."""
    space = WeightSpace.mlp([2, 3, 3, 2], symmetry)
    layer = Canonicalize(space, 2, kind)
    x = space.pack(random_networks(space, channels=2))
    moving = [any(a.scales for a in acting) for acting in space.layout.acting]
    scaled = Features(x.layout, tuple(t * scale if m else t for t, m in zip(x.tensors, moving, strict=True)))
    for a, b in zip(layer(x).tensors, layer(scaled).tensors, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=0)


@pytest.mark.parametrize("kind", ["norm", "square"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [0, 1e-44, 1e-36, 1e-5])
def test_canonicalize_maps_zero_to_zero_with_finite_gradients_at_and_near_it(kind, dtype, size):
    space = WeightSpace.mlp([2, 3, 1], "relu")
    networks = random_networks(space, dtype=dtype)
    tensors = {name: (t * size).requires_grad_() for name, t in networks.items()}
    out = Canonicalize(space, 1, kind, learnable=False)(space.pack(tensors))
    assert all(bool(t.any()) == any(bool(x.any()) for x in tensors.values()) for t in out.tensors)
    sum((3 * t).sum() for t in out.tensors).backward()
    assert all(bool(torch.isfinite(t.grad).all()) for t in tensors.values() if t.grad is not None)


def test_canonicalize_computes_the_papers_formula():
    space = WeightSpace.mlp([2, 3, 1], "relu")
    networks = random_networks(space, channels=2)
    x = space.pack(networks)
    out = space.uncharged().unpack(Canonicalize(space, 2, "square", learnable=False)(x))
    first = torch.cat([networks["weight.0"].flatten(1, 1), networks["bias.0"][..., None]], -1)  # (B, C, n, 3)
    expected = first**2 / (first**2).sum((1, 3), keepdim=True)
    torch.testing.assert_close(out["weight.0"], expected[..., :2])
    torch.testing.assert_close(out["bias.0"], expected[..., 2])


@pytest.mark.parametrize(
    ("symmetry", "fn", "legal"),
    [
        ("sign", torch.relu, "tanh"),
        ("sign", nn.GELU(), "tanh"),
        ("scale", "tanh", "relu"),
        ("scale", torch.sin, "relu"),
        ("monomial", "relu", "identity"),
        (["relu", "tanh"], "relu", "identity"),
    ],
)
def test_illegal_activations_are_refused_when_built_and_would_break_equivariance(symmetry, fn, legal):
    space = (
        WeightSpace.mlp([2, 3, 3, 1], symmetry) if isinstance(symmetry, list) else WeightSpace.mlp([2, 3, 1], symmetry)
    )
    with pytest.raises(ValueError, match=rf"illegal on field \[h.*Legal there: '{legal}'"):
        PointwiseActivation(space, fn)
    call = getattr(torch, fn) if isinstance(fn, str) else fn
    with pytest.raises(AssertionError, match="not equivariant"):
        assert_equivariant(lambda x: x.map(call), space)


def test_abs_canonicalisation_is_for_signs_only():
    space = WeightSpace.mlp([2, 3, 1], "tanh")
    assert_equivariant(Canonicalize(space, 2, "abs"), space, rtol=1e-4)
    with pytest.raises(ValueError, match="kind='abs'"):
        Canonicalize(WeightSpace.mlp([2, 3, 1], "relu"), 2, "abs")


@pytest.mark.parametrize(
    "space",
    [WeightSpace.cnn([1, 16, 16, 16], 3, s, head=[10]) for s in ("relu", "tanh", "gelu")]
    + [WeightSpace.mlp([2, 32, 32, 1], s) for s in ("relu", "sin", "gelu")],
    ids=str,
)
@pytest.mark.parametrize("io", ["full", "factored"])
def test_initialisation_treats_all_output_blocks_alike(space, io):
    """No block forgotten: standard deviations of the output tensors within 2x of one another, and no signal lost.

    Averages of random networks are smaller than their entries, so charged fields keep all of the signal, pooled
    ones a part.
    """
    torch.manual_seed(0)
    layer = EquivariantLinear(space, 16, 16, io=io)
    x = space.pack(random_networks(space, 16, 16, dtype=torch.float32))
    stds = [float(t.std()) for t in space.unpack(layer(x).detach()).values()]
    assert max(stds) < (2 if any(a.scales or a.flips for t in space.layout.acting for a in t) else 4) * min(stds)
    assert 0.2 < math.prod(stds) ** (1 / len(stds)) < 1.5


def test_the_zoo_network_has_the_papers_parameter_counts():
    """The paper's Table 16: 0.25M (ReLU) and 1.41M (tanh) parameters."""
    relu = WeightSpace.cnn([1, 16, 16, 16], 3, "relu", head=[10])
    assert sum(p.numel() for p in EquivariantLinear(relu, 16, 16).parameters()) == 118_944
    assert sum(p.numel() for p in MonomialNFN(relu).parameters()) == 254_799
    big = sum(p.numel() for p in MonomialNFN(relu, hidden=1000).parameters())
    assert abs(big / 1.41e6 - 1) < 0.01


@given(st.integers(1, 4), st.integers(3, 6), st.integers(1, 4), channels, channels)
def test_the_scale_layer_counts_as_the_design_says(n_in, depth, n_out, c_in, c_out):
    """cc'((n_0 + 1)^2 + 2 (L - 2) + 2 n_L^2) + c' n_L for L >= 3, w_i = b_i = 1."""
    space = WeightSpace.mlp([n_in, *[2] * (depth - 1), n_out], "relu")
    expected = c_in * c_out * ((n_in + 1) ** 2 + 2 * (depth - 2) + 2 * n_out**2) + c_out * n_out
    assert sum(p.numel() for p in EquivariantLinear(space, c_in, c_out).parameters()) == expected


def test_widths_are_not_baked_in():
    """A layer built for one width runs on wider networks, equivariantly, without hearing of it."""
    torch.manual_seed(0)
    narrow, wide = WeightSpace.mlp([2, 4, 4, 1], "relu"), WeightSpace.mlp([2, 9, 7, 1], "relu")
    model = MonomialNFN(narrow, hidden=8).double()
    networks = random_networks(wide)
    assert model(networks).shape == (3, 1)
    assert_invariant(model, narrow, inputs=networks)
    assert_invariant(MessagePassingNFN(narrow, 4, 2, hidden=8).double(), narrow, inputs=networks, rtol=1e-8)
    unknown = WeightSpace.sequential([2, None, None, 1], [(), (), ()], "relu")
    same = MonomialNFN(unknown, hidden=8).double()
    same.load_state_dict(model.state_dict())
    assert torch.equal(same(networks), model(networks))


def test_state_dict_names_are_pinned():
    """Names are public: saved models must load for as long as the major version lasts."""
    space = WeightSpace.mlp([2, 4, 4, 1], "relu")
    mixed = ["const", "h1+1", "h2+1", "h2-1", "h2+1_h1-1"]
    assert list(EquivariantLinear(space, 2, 2).state_dict()) == ["bias", *(f"mix.{name}.weight" for name in mixed)]
    assert list(Canonicalize(space, 2).state_dict()) == [f"{kind}.{i}" for kind in ("weight", "bias") for i in range(5)]
    keys = [f"edges.2.{name}" for name in ("ends", "hidden", "bias", "gate")]
    keys += [f"nodes.0.{name}" for name in ("mixes", "inv", "bias")]
    for tied in (False, True):
        assert list(MessagePassing(space, 2, tied=tied).state_dict()) == keys
