"""Input normalisation: entries of size 1, by constants that commute with the group."""

import copy
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import all_spaces

from nfn_monomial import Symmetry, WeightSpace
from nfn_monomial.nn import InputNorm
from nfn_monomial.testing import random_networks

ALL = [Symmetry.PERMUTATION, Symmetry.SIGN, Symmetry.SCALE, Symmetry.MONOMIAL]


def networks(space, batch=8, channels=1, seed=0, dtype=torch.float64, shift=1.0):
    generator = torch.Generator().manual_seed(seed)
    x = random_networks(space, batch, channels, dtype=dtype, generator=generator)
    return {name: 3 * t + shift for name, t in x.items()}


# -- equivariance -----------------------------------------------------------------------------------------------------


# -- the statistics ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("symmetry", ALL, ids=str)
def test_every_position_has_its_own_statistics_hidden_neurons_share_theirs(symmetry):
    space = WeightSpace.cnn([2, 4, 3], (2, 3), symmetry, head=[5, 2], positions=3)
    x = networks(space, 50, 2)
    for name, t in x.items():  # every entry, of every position, at another size and place
        t.mul_(torch.rand(t.shape[1:], generator=torch.Generator().manual_seed(len(name)), dtype=t.dtype) * 5 + 0.1)
    y = InputNorm(space, 2).double().fit(x)(x)
    centred = symmetry is Symmetry.PERMUTATION
    # dimensions that share: networks, and those of permuted neurons; the third weight's columns are 3 x 3 positions
    shared = {
        "weight.0": (0, 2), "bias.0": (0, 2), "weight.1": (0, 2, 3), "bias.1": (0, 2), "weight.2": (0, 2, 3),
        "bias.2": (0, 2), "weight.3": (0, 3), "bias.3": (0,),
    }  # fmt: skip
    for name, dims in shared.items():
        t = y[name].unflatten(3, (3, 3)) if name == "weight.2" else y[name]
        mean, size = t.mean(dims), t.square().mean(dims).sqrt()
        torch.testing.assert_close(size, torch.ones_like(size), rtol=1e-10, atol=0)
        if centred or name == "bias.3":
            torch.testing.assert_close(mean, torch.zeros_like(mean), rtol=0, atol=1e-10)
        else:
            assert float(mean.abs().min()) > 0.1  # left where it was


@given(all_spaces(), st.integers(0, 10**6))
def test_batches_have_the_statistics_of_the_whole(space, seed):
    x = networks(space, 10, 2, seed)
    whole = InputNorm(space, 2).double().fit(space.pack(x))
    parts = ({name: t[i:j] for name, t in x.items()} for i, j in ((0, 1), (1, 1), (1, 5), (5, 10)))
    batched = InputNorm(space, 2).double().fit(parts)
    torch.testing.assert_close(batched.mean, whole.mean, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(batched.scale, whole.scale, rtol=1e-12, atol=1e-12)


@given(all_spaces(), st.integers(0, 10**6))
def test_inverse(space, seed):
    x = networks(space, 4, 1, seed)
    norm = InputNorm(space).double().fit(x)
    back = norm.inverse(norm(x))
    packed = space.unpack(norm.inverse(norm(space.pack(x))))
    for name, t in x.items():
        torch.testing.assert_close(back[name], t, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(packed[name], t, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("symmetry", ["sin", "gelu"])
@pytest.mark.parametrize("value", [0.0, 0.1, -1e30])
def test_constant_entries(symmetry, value):
    space = WeightSpace.mlp([2, 4, 3, 1], symmetry)
    x = networks(space, dtype=torch.float32)
    for name in ("bias.0", "weight.1", "bias.2"):
        x[name] = torch.full_like(x[name], value)
    y = InputNorm(space).fit(x)(x)
    for name in ("bias.0", "weight.1", "bias.2"):
        centred = symmetry == "gelu" or name == "bias.2"
        expected = 0.0 if centred else math.copysign(1.0, value) if value else 0.0
        torch.testing.assert_close(y[name], torch.full_like(y[name], expected), rtol=1e-5, atol=1e-5)
    # what varies by rounding errors only is not blown up to size 1
    x["bias.2"] = torch.where(torch.rand(x["bias.2"].shape) < 0.5, 1.0, 1.0 + torch.finfo(torch.float32).eps)
    assert float(InputNorm(space).fit(x)(x)["bias.2"].abs().max()) < 1e-6


# -- a module like others ---------------------------------------------------------------------------------------------


def test_identity_before_fit_and_state():
    space = WeightSpace.mlp([2, 4, 1], "sin")
    x = networks(space, dtype=torch.float32)
    norm = InputNorm(space)
    assert all(torch.equal(t, x[name]) for name, t in norm(x).items())
    norm.fit(x)
    assert list(norm.state_dict()) == ["mean", "scale"]
    assert not list(norm.parameters())
    other = InputNorm(space)
    other.load_state_dict(norm.state_dict())
    wider = networks(WeightSpace.mlp([2, 9, 1], "sin"), dtype=torch.float32)
    for copied in (other, copy.deepcopy(norm)):
        assert all(torch.equal(t, norm(wider)[name]) for name, t in copied(wider).items())
    half = norm.fit({name: t.bfloat16() for name, t in x.items()})({name: t.bfloat16() for name, t in x.items()})
    assert all(t.dtype == torch.bfloat16 for t in half.values())
    assert not any(t.requires_grad for t in norm.fit({k: v.requires_grad_() for k, v in x.items()}).buffers())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_statistics_keep_their_precision_in_a_narrower_model(dtype):
    """In float16 sizes of 1e-8 would be 0, and those of 1e6 infinite."""
    space = WeightSpace.mlp([2, 4, 1], "gelu")
    sizes = {"weight.0": 1e-8, "bias.0": 1e6, "weight.1": 3.0, "bias.1": 1e-20}
    x = {name: t * sizes[name] for name, t in networks(space, 50, dtype=torch.float32, shift=5.0).items()}
    norm = InputNorm(space).fit(x)
    half = copy.deepcopy(norm).to(dtype)
    assert all(map(torch.equal, half.buffers(), norm.buffers()))
    assert all(map(torch.equal, copy.deepcopy(half).float().buffers(), norm.buffers()))
    assert {b.dtype for b in copy.deepcopy(norm).double().to(dtype).buffers()} == {torch.float64}
    narrow = {name: t.to(dtype) for name, t in networks(space, 50, shift=0.0).items()}
    for name, t in half(narrow).items():
        assert t.dtype == dtype
        torch.testing.assert_close(t, norm({n: v.float() for n, v in narrow.items()})[name].to(dtype), rtol=0, atol=0)


def test_a_narrow_default_dtype_and_no_device_yet():
    space = WeightSpace.mlp([2, 4, 1], "sin")
    x = networks(space, dtype=torch.float32)
    norm = InputNorm(space).fit(x)
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("meta"):
            empty = InputNorm(space).half()
    finally:
        torch.set_default_dtype(torch.float32)
    assert {(b.dtype, b.is_meta) for b in empty.buffers()} == {(torch.float32, True)}
    empty.to_empty(device="cpu").reset_parameters()
    assert all(torch.equal(t, x[name]) for name, t in empty(x).items())
    empty.load_state_dict(norm.state_dict())
    assert all(torch.equal(t, norm(x)[name]) for name, t in empty(x).items())


@pytest.mark.parametrize("symmetry", ["sin", "gelu"])
@pytest.mark.parametrize("size", [1e-280, 1e-160, 1e160, 1e280])
def test_sizes_whose_squares_float64_does_not_hold(symmetry, size):
    space = WeightSpace.mlp([2, 4, 3, 1], symmetry)
    x = networks(space)
    expected = InputNorm(space).double().fit(x)(x)
    moved = {name: t * size for name, t in x.items()}
    norm = InputNorm(space).double().fit({name: t[i : i + 3] for name, t in moved.items()} for i in range(0, 8, 3))
    for name, t in norm(moved).items():
        torch.testing.assert_close(t, expected[name], rtol=1e-12, atol=1e-12)


def test_what_does_not_fit_is_refused():
    space = WeightSpace.mlp([2, 4, 1], "sin")
    norm = InputNorm(space)
    x = networks(space)
    with pytest.raises(ValueError, match="no networks given"):
        norm.fit({name: t[:0] for name, t in x.items()})
    with pytest.raises(ValueError, match=r"use module\.double"):
        norm.fit({name: t * 1e-60 for name, t in x.items()})
    InputNorm(space).double().fit({name: t * 1e-60 for name, t in x.items()})
    x["weight.1"][2, 0, 0, 1] = torch.nan
    before = norm.scale.clone()
    with pytest.raises(
        ValueError, match=r"weight\.1 holds 1 NaN or infinite values, the first at index \[2, 0, 0, 1\]"
    ):
        norm.fit(x)
    with pytest.raises(ValueError, match=r"weight\.1 holds 1 NaN"):
        norm(x)
    assert torch.equal(norm.scale, before)
