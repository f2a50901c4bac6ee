"""Gram matrices of the balanced form: invariant, right where a plain computation can check them, finite everywhere."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from orbits import networks
from strategies import all_spaces

from nfn_monomial import WeightSpace, balance
from nfn_monomial.read import GramStatistics

ZOO = WeightSpace.cnn([1, 6, 5, 4], 3, "relu", head=[10])
TANH = WeightSpace.mlp([2, 4, 3, 1], "tanh")
SPACES = [ZOO, TANH, WeightSpace.mlp([2, 1, 3, 1], "relu"), WeightSpace.cnn([1, 3, 3], (5, 1), "tanh", head=[4, 2])]


def moved_by(space, x, seed):
    element = space.sample(len(next(iter(x.values()))), generator=torch.Generator().manual_seed(seed))
    statistics = GramStatistics(space, next(iter(x.values())).shape[1])
    return statistics(x), statistics(element.act(x))


@given(all_spaces(), st.integers(1, 2), st.integers(0, 10**6))
def test_invariant(space, channels, seed):
    found, moved = moved_by(space, networks(space, 4, channels, seed), seed)
    assert found.shape == (4, GramStatistics(space, channels).out_features)
    torch.testing.assert_close(moved, found, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("empty", ["none", "weight.0", "weight.1", "all"])
def test_invariant_where_weights_are_zero(space, empty):
    x = {name: v * float(empty not in (name, "all")) for name, v in networks(space, 6).items()}
    found, moved = moved_by(space, x, 1)
    torch.testing.assert_close(moved, found, rtol=1e-10, atol=1e-10)
    if empty == "none":
        assert bool((found.std(0) > 1e-3).any())


def test_invariant_where_rows_are_orthogonal():
    x = networks(TANH, 6)
    x["weight.1"] = torch.linalg.qr(x["weight.1"].mT).Q.mT.contiguous()
    found, moved = moved_by(TANH, x, 2)
    torch.testing.assert_close(moved, found, rtol=1e-10, atol=1e-10)


def test_values():
    x = networks(ZOO)
    balanced = balance(x, ZOO)[0]
    w = [balanced[f"weight.{i}"][:, 0] for i in range(4)]
    w = [v.reshape(*v.shape[:3], -1) for v in w]
    w = [v / v.square().mean((1, 2, 3), keepdim=True).sqrt() for v in w]
    found = GramStatistics(ZOO)(x)
    rows = w[1].square().mean((1, 2)).view(-1, 3, 3)
    torch.testing.assert_close(found[:, 6:9], (rows.mean(2) + 1e-4).log() / 2)
    into = torch.einsum("boik,bpik->bop", w[2], w[2])
    out = torch.einsum("boik,bojk->bij", w[3], w[3])
    for gram, at in ((into, -13), (out, -7)):  # the last node has I, I of sums over kernels, O, then two pairs
        levels = torch.linalg.eigvalsh(gram)
        levels = levels / levels.mean(-1, keepdim=True)
        expected = torch.stack([(levels**k).mean(-1).log() / k for k in (2, 3, 4)], -1)
        torch.testing.assert_close(found[:, at : at + 3], expected)
    cosine = torch.nn.functional.cosine_similarity(into.flatten(1), out.flatten(1))
    torch.testing.assert_close(found[:, -4], cosine)


@pytest.mark.parametrize("size", [0.0, 1e-38, 1e-20, 1e20, 1e38])
def test_finite_for_all_that_float32_holds(size):
    for space in (ZOO, TANH):
        x = {k: (v.clamp(-3, 3) * size).requires_grad_() for k, v in networks(space, dtype=torch.float32).items()}
        out = GramStatistics(space)(x)
        out.sum().backward()
        assert out.dtype == torch.float32
        assert bool(out.detach().isfinite().all())
        assert float(out.detach().abs().max()) <= 100
        assert all(bool(v.grad.isfinite().all()) for name, v in x.items() if name.startswith("weight"))


def test_nothing_to_compare():
    single = WeightSpace.mlp([3, 2], "relu")
    assert GramStatistics(single)(networks(single, 4)).shape == (4, 0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_of_16_bits_are_those_of_the_same_numbers(dtype):
    """Rounded once, at the end."""
    space = WeightSpace.mlp([2, 32, 32, 1], "tanh")
    x = {name: t.to(dtype) for name, t in networks(space, 20).items()}
    reader = GramStatistics(space)
    assert torch.equal(reader(x), reader({name: t.double() for name, t in x.items()}).to(dtype))
