"""Statistics of the balanced form: invariant, right where a plain computation can check them, finite everywhere."""

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from orbits import networks
from strategies import all_spaces

from nfn_monomial import GroupElement, MonomialMatrix, WeightSpace
from nfn_monomial.canonical.balance import balance
from nfn_monomial.canonical.signs import canonical_signs
from nfn_monomial.read.statistics import InvariantStatistics
from nfn_monomial.testing import assert_invariant

ZOO = WeightSpace.cnn([1, 6, 5, 4], 3, "relu", head=[10])
TANH = WeightSpace.mlp([2, 4, 3, 1], "tanh")


@given(all_spaces(), st.integers(1, 2), st.integers(0, 10**6))
def test_invariant(space, channels, seed):
    statistics = InvariantStatistics(space, channels)
    x = networks(space, 4, channels, seed)
    out = statistics(x)
    assert out.shape == (4, statistics.out_features)
    signs = canonical_signs(space, space.pack(x), 1e-13)
    assume(all(bool((sign != 0).all()) for sign in signs.values()))
    assume(float(out.std(0).max()) > 1e-3)
    assert_invariant(statistics, space, inputs=x, trials=1, seed=seed)
    assert_invariant(statistics, space, inputs=space.pack(x), trials=1, seed=seed)


@pytest.mark.parametrize("exponent", [6, 8])
def test_float32_at_extreme_scales(exponent):
    x = networks(ZOO, 10, dtype=torch.float32)
    generator = torch.Generator().manual_seed(0)
    scales = {
        name: 10 ** torch.empty(10, node.size, dtype=torch.float64).uniform_(-exponent, exponent, generator=generator)
        for name, node in ZOO.nodes.items()
        if node.scales
    }
    moved = GroupElement(ZOO, {n: MonomialMatrix(d, torch.arange(d.shape[1]).expand_as(d)) for n, d in scales.items()})
    out = InvariantStatistics(ZOO)(moved.act(x))
    torch.testing.assert_close(out, InvariantStatistics(ZOO)(x), rtol=1e-5, atol=1e-5)


def test_values():
    x = networks(TANH)
    balanced = balance(x, TANH)[0]
    found = InvariantStatistics(TANH)(x)
    for i, name in enumerate(TANH.parameters):
        v = balanced[name].flatten(1)
        expected = torch.cat([
            v.mean(1, keepdim=True), v.std(1, correction=0, keepdim=True),
            v.quantile(torch.linspace(0, 1, 5).double(), 1).T,
            *((v.abs() ** p).mean(1, keepdim=True) ** (1 / p) for p in (1, 3, 4)),
        ], 1)  # fmt: skip
        expected = expected.sign() * expected.abs().log1p()
        torch.testing.assert_close(found[:, 11 * i : 11 * i + 10], expected)
        torch.testing.assert_close(found[:, 11 * i + 10], v.square().mean(1).sqrt().log())
    v, norms = torch.ones(3, 2, 1, dtype=torch.float64), []
    paths = []
    for layer in range(3):
        square = balanced[f"weight.{layer}"][:, 0].square()
        norms.append(square.mean((1, 2)))
        v = square / norms[-1][:, None, None] @ v / square.shape[-1]
        paths.append(v.sqrt().mean((1, 2)).log())
    torch.testing.assert_close(found[:, -4:-1], torch.stack(paths, 1))
    torch.testing.assert_close(found[:, -1], torch.stack(norms).log().mean(0) / 2)


@pytest.mark.parametrize("size", [0.0, 1e-38, 1e-20, 1e20, 1e38])
def test_finite_for_all_that_float32_holds(size):
    for space in (ZOO, TANH):
        x = {k: (v.clamp(-3, 3) * size).requires_grad_() for k, v in networks(space, dtype=torch.float32).items()}
        out = InvariantStatistics(space)(x)
        out.sum().backward()
        out = out.detach()
        assert out.dtype == torch.float32
        assert bool(out.isfinite().all())
        assert float(out.abs().max()) <= 100
        assert all(bool(v.grad.isfinite().all()) for v in x.values())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_of_16_bits_are_those_of_the_same_numbers(dtype):
    """Rounded once, at the end."""
    space = WeightSpace.mlp([2, 32, 32, 1], "tanh")
    x = {name: t.to(dtype) for name, t in networks(space, 20).items()}
    reader = InvariantStatistics(space)
    assert torch.equal(reader(x), reader({name: t.double() for name, t in x.items()}).to(dtype))
