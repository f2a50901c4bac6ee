"""The norm: equivariant, of size 1 at any scale that a float holds, and what it was where sizes are ordinary."""

import pytest
import torch
from every_layer import random_features

from nfn_monomial import EquivariantNorm, Features, WeightSpace
from nfn_monomial.nn import neuron_layout
from nfn_monomial.nn.norm import over_size
from nfn_monomial.testing import assert_equivariant

SYMMETRIES = pytest.mark.parametrize("symmetry", ["relu", "tanh", "linear", "gelu", ["relu", "tanh"]], ids=str)


def random_neurons(symmetry, width=4, dtype=torch.float64, batch=3):
    """A space, and neuron features of it in which nothing is 0."""
    space = WeightSpace.mlp([2, 8, 8, 1], symmetry)
    return space, random_features(space, neuron_layout(space).layout, width, batch, dtype=dtype)


@SYMMETRIES
@pytest.mark.parametrize("factor", [1e-30, 1e-23, 1e-4, 1e-2, 1e6, 1e19, 1e30])
def test_every_field_has_size_one_at_any_scale(symmetry, factor):
    """Also features as large or small as float32 has them to be."""
    space, x = random_neurons(symmetry, dtype=torch.float32)
    layer = EquivariantNorm(space, 4)
    expected, found = layer(x), layer(x.map(lambda t: t * factor))
    for field, t in found.fields.items():
        torch.testing.assert_close(t, expected.fields[field], rtol=1e-4, atol=1e-6)
        charged = len(field) == 1 and field[0].charge
        if charged and not space.nodes[field[0].node].symmetry.scales:
            size = t.square().mean((1, 2)).sqrt()
            torch.testing.assert_close(size, torch.ones_like(size), rtol=1e-5, atol=0)
    for x_inv, y_inv in zip(x.tensors[5::3], found.tensors[5::3], strict=True):
        size = y_inv.square().mean(-1).sqrt()
        torch.testing.assert_close(size, torch.ones_like(size), rtol=1e-5, atol=0)
        assert torch.equal(x_inv.sign(), y_inv.sign())


@SYMMETRIES
def test_ordinary_sizes_are_divided_by_their_root_mean_square(symmetry):
    """The definition, with an epsilon of 1e-8 under the root: the same but for rounding."""
    space, x = random_neurons(symmetry)
    layer = EquivariantNorm(space, 4).double()
    edges, found_edges = (t.tensors[: len(layer.neurons.edges)] for t in (x, layer(x)))
    nodes, found = ({n: t.tensors[layer.neurons.fields(n)] for n in layer.neurons.nodes} for t in (x, layer(x)))
    rho = {
        name: (out.norm(dim=-1, keepdim=True) / back.norm(dim=-1, keepdim=True)).sqrt()
        if space.nodes[name].scales
        else torch.ones_like(out[..., :1])
        for name, (out, back, _) in nodes.items()
    }
    for (_, _, (target, source)), e, y in zip(layer.neurons.edges, edges, found_edges, strict=True):
        square = (e * rho[source.node][:, None] / rho[target.node][:, :, None]).square().mean((1, 3)).sum(-1)
        expected = e * torch.rsqrt(square + 1e-8)[:, None, None, None]
        torch.testing.assert_close(y, expected, rtol=1e-6, atol=0)
    for name, (out, back, inv) in nodes.items():
        for x_of, measured, y in ((out, out / rho[name], found[name][0]), (back, back * rho[name], found[name][1])):
            expected = x_of * torch.rsqrt(measured.square().mean((1, 2), keepdim=True) + 1e-8)
            torch.testing.assert_close(y, expected, rtol=1e-6, atol=0)
        expected = inv * torch.rsqrt(inv.square().mean(-1, keepdim=True) + 1e-8)
        torch.testing.assert_close(found[name][2], expected, rtol=1e-6, atol=0)


@SYMMETRIES
def test_half_precision(symmetry):
    """Squares of entries leave float16 (above 65504, below 6e-8); what is returned does not."""
    space, x = random_neurons(symmetry)
    layer = EquivariantNorm(space, 4)
    expected = layer.double()(x)
    layer.half()
    for factor in (1e-3, 1.0, 1e3):
        found = layer(x.map(lambda t, f=factor: (t * f).half()))
        for a, b in zip(found.tensors, expected.tensors, strict=True):
            assert a.dtype == torch.float16
            torch.testing.assert_close(a.double(), b, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("factor", [0.0, 1e-40, 1e-38, 1e-20, 1e30])
def test_gradients_are_finite_at_any_scale(factor):
    space, x = random_neurons(["relu", "gelu"], dtype=torch.float32)
    layer = EquivariantNorm(space, 4)
    given = x.map(lambda t: (t.double() * factor).float().requires_grad_())  # denormal numbers, too
    y = layer(given)
    assert factor or not any(bool(t.any()) for t in y.tensors)
    sum(t.square().sum() for t in y.tensors).backward()
    assert all(bool(t.grad.isfinite().all()) for t in given.tensors)


@pytest.mark.parametrize("symmetry", ["linear", ["relu", "tanh"]], ids=str)
def test_derivatives_and_derivatives_of_derivatives(symmetry):
    space, x = random_neurons(symmetry, width=2, batch=1)
    layer, tensors = EquivariantNorm(space, 2).double(), [t[:, :2] if t.ndim < 4 else t[:, :2, :2] for t in x.tensors]

    def function(*tensors):
        return layer(Features(x.layout, tensors)).tensors

    given = tuple(t.clone().requires_grad_() for t in tensors)
    assert torch.autograd.gradcheck(function, given, fast_mode=True)
    assert torch.autograd.gradgradcheck(function, given, atol=1e-4, fast_mode=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("limit", ["tiny", "max"])
@pytest.mark.parametrize("share", [0.9, 1.1])
def test_sizes_are_the_same_on_both_sides_of_what_is_squared_as_it_is(dtype, limit, share):
    """At the limits where squares are about to overflow or vanish: factors, and gradients by what is measured."""
    limits = torch.finfo(dtype)
    factor = getattr(limits, limit) ** (share / 4)
    plain = torch.randn(3, 5, 4, dtype=dtype, generator=torch.Generator().manual_seed(0)).requires_grad_()
    moved = (plain.detach() * factor).requires_grad_()
    one = torch.ones((), dtype=torch.float64)
    expected, found = (over_size(x, (1, 2), one) for x in (plain, moved))
    close = {"rtol": 100 * limits.eps, "atol": 0.0}
    torch.testing.assert_close(found * factor, expected, **close)
    torch.testing.assert_close(expected.square() * plain.square().sum((1, 2), True), torch.ones_like(expected), **close)
    by = [torch.autograd.grad(f.log().sum(), x)[0] for f, x in ((expected, plain), (found, moved))]
    torch.testing.assert_close(by[1] * factor, by[0], rtol=1000 * limits.eps, atol=limits.eps)


def test_a_field_of_zeros_among_others_stays_zero():
    """Where messages have not come yet: the frame is that of the other stream alone."""
    space, x = random_neurons("relu")
    layer = EquivariantNorm(space, 4).double()
    back = [3 + 3 * i + 1 for i in range(4)]
    zeroed = Features(x.layout, tuple(t * (i not in back) for i, t in enumerate(x.tensors)))
    y = layer(zeroed)
    assert not any(bool(y.tensors[i].any()) for i in back)
    assert all(bool(t.isfinite().all()) for t in y.tensors)
    assert_equivariant(layer, space, inputs=zeroed)
