"""Rows: layers of a stack that run some networks at a time compute what they do one by one, derivatives included."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import spaces
from torch import nn

from nfn_monomial import Canonicalize, EquivariantLinear, Features, PointwiseActivation, WeightSpace
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.models import MonomialNFN
from nfn_monomial.nn.rows import Map, Product, Rows, Stack, maps, product, stacked
from nfn_monomial.testing import random_networks

ZOO = WeightSpace.cnn([1, 4, 4], 3, "relu", head=[3])


@pytest.fixture(params=[1, 2**11])
def blocks(request, monkeypatch):
    """One network at a time, or a few of them."""
    monkeypatch.setattr(maps, "BLOCK", request.param)
    monkeypatch.setattr(maps, "WORTHWHILE", 1)


def stack_on(space, hidden=3, hnp=True):
    """Layers as in the hybrids: rows to rows, then rows that are averaged."""
    layers = [EquivariantLinear(space, 1, hidden), PointwiseActivation(space, "auto")]
    layers += [
        EquivariantLinear(space, hidden, hidden),
        PointwiseActivation(space, "auto"),
        Canonicalize(space, hidden),
    ]
    if hnp:
        plain = space.uncharged()
        layers += [EquivariantLinear(plain, hidden, 2), PointwiseActivation(plain, "gelu")]
    return Stack(*layers).double()


def one_by_one(modules, x):
    for module in modules:
        x = module(x)
    return x


def outputs_and_gradients(run, x, parameters):
    out = run(x).tensors
    weights = [torch.randn(y.shape, generator=torch.Generator().manual_seed(1), dtype=y.dtype) for y in out]
    loss = sum((w * y).sum() for w, y in zip(weights, out, strict=True))
    return [*out, *torch.autograd.grad(loss, [*parameters, *x.tensors], allow_unused=True)]


def assert_same(found, expected):
    """To 1e-10, and to 1e-11 of the largest number of all: some gradients are 0 but for rounding."""
    top = max(float(b.detach().abs().max()) for b in expected if b is not None)
    for a, b in zip(found, expected, strict=True):
        if b is None:
            assert a is None or not a.any()
        else:
            torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-11 * top)


@given(space=spaces(), seed=st.integers(0, 2**16))
def test_any_architecture(space, seed):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(maps, "BLOCK", 1)
        patch.setattr(maps, "WORTHWHILE", 1)
        torch.manual_seed(seed)
        stack = stack_on(space)
        x = space.pack(random_networks(space, 3, generator=torch.Generator().manual_seed(seed)))
        x = x.map(lambda t: t.requires_grad_())
        expected = outputs_and_gradients(lambda x: one_by_one(stack, x), x, [*stack.parameters()])
        assert_same(outputs_and_gradients(stack, x, [*stack.parameters()]), expected)


@pytest.mark.parametrize("hnp", [False, True])
def test_second_derivatives(blocks, hnp):
    space = WeightSpace.mlp([1, 2, 1], "tanh")
    stack = stack_on(space, 1, hnp)
    names = [name for name, _ in stack.named_parameters()]
    tensors = space.pack(random_networks(space, 2)).tensors

    def function(*given):
        changed = dict(zip(names, given, strict=False))
        return torch.func.functional_call(stack, changed, (Features(space.layout, given[len(names) :]),)).tensors

    given = [t.detach().clone().requires_grad_() for t in (*stack.parameters(), *tensors)]
    assert torch.autograd.gradcheck(function, given)
    assert torch.autograd.gradgradcheck(function, given, atol=1e-4)


def test_parameters_that_are_functions_of_others(blocks):
    """As those of a hypernetwork are: their gradients reach what made them."""
    stack = stack_on(ZOO)
    x = ZOO.pack(random_networks(ZOO, 3))
    factor = torch.tensor(1.5, dtype=torch.float64, requires_grad=True)

    def gradient(run):
        changed = {name: p.detach() * factor for name, p in stack.named_parameters()}
        out = torch.func.functional_call(run, changed, (x,))
        return torch.autograd.grad(sum(y.square().sum() for y in out.tensors), factor)[0]

    torch.testing.assert_close(gradient(stack), gradient(nn.Sequential(*stack)), rtol=1e-10, atol=0)


def test_hooks_see_every_layer(blocks):
    stack, seen = stack_on(ZOO), []
    stack[1].register_forward_hook(lambda module, given, out: seen.append(out))
    x = ZOO.pack(random_networks(ZOO, 3))
    stack(x)
    assert len(seen) == 1
    assert_same(seen[0].tensors, one_by_one(stack[:2], x).tensors)


def test_a_function_of_ones_own_is_called_once(blocks):
    class Drawn(nn.Module):
        calls = 0

        def forward(self, x):
            self.calls += 1
            return x * torch.rand(())

    drawn = Drawn()
    activation = PointwiseActivation(ZOO, "auto")
    activation._functions = [drawn] * len(ZOO.layout)
    stack = Stack(EquivariantLinear(ZOO, 1, 3), activation, EquivariantLinear(ZOO, 3, 2)).double()
    sum(y.square().sum() for y in stack(ZOO.pack(random_networks(ZOO, 3))).tensors).backward()
    assert drawn.calls == len(ZOO.layout)


def test_what_does_not_fit_is_refused_as_by_the_layer(blocks):
    wrong = Stack(EquivariantLinear(ZOO, 1, 3), EquivariantLinear(ZOO, 4, 2)).double()
    x = ZOO.pack(random_networks(ZOO, 3))
    with pytest.raises(InvalidValueError, match=r"3 channels x multiplicity .* the layer was built for 4 channels"):
        wrong(x)
    other = Stack(EquivariantLinear(ZOO, 1, 3), Canonicalize(ZOO.restricted("permutation"), 3)).double()
    with pytest.raises(InvalidValueError, match="the features are of another weight space"):
        other(x)


def test_only_the_input_is_kept():
    """Of a stack on which scales act, whatever its depth: not one field between its layers."""
    space = WeightSpace.cnn([1, 8, 8, 8], 3, "relu", head=[3])
    networks = space.pack(random_networks(space, 64, dtype=torch.float32))

    def kept(depth):
        found = {}

        def pack(t):
            found[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
            return t

        model = MonomialNFN(space, (32,) * depth + (2,))
        own = {p.untyped_storage().data_ptr() for p in model.parameters()}
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            model(networks)
        return sum(size for at, size in found.items() if at not in own)

    field = 64 * 8 * 8 * 9 * 32 * 4
    assert kept(1) > 0
    assert kept(4) - kept(1) < field


def test_a_row_reads_what_is_asked_for(blocks):
    x, weight = torch.randn(5, 2, 3, 4), torch.randn(6, 4)
    rows = Rows(x).then(Map(torch.sin))
    found = rows.read(weight, (1, 2), whole=True)
    torch.testing.assert_close(found.product, x.sin() @ weight.T)
    torch.testing.assert_close(found.means[1], x.sin().mean(1))
    torch.testing.assert_close(found.means[2], x.sin().mean(2))
    torch.testing.assert_close(found.whole, x.sin())
    assert rows.read(means=(2,)).product is None
    assert Rows(x).read(whole=True).whole is x


def test_nothing_is_kept_without_gradients(blocks):
    stack = stack_on(ZOO)
    with torch.no_grad():
        assert not any(y.requires_grad for y in stacked(stack, ZOO.pack(random_networks(ZOO, 3))).tensors)


@pytest.mark.parametrize("shape", [(3, 4), (3, 2, 4), (3, 2, 5, 4), (1, 1, 1, 4), (3, 2, 1, 2, 4)])
def test_channels_that_lie_first_stay_there(shape):
    given = torch.randn(shape, dtype=torch.float64)
    first = given.movedim(-1, 1).contiguous().movedim(1, -1)
    layer = Product(4, 6).double()
    expected = given @ layer.weight.T
    for x in (given, first):
        torch.testing.assert_close(layer(x), expected)
        torch.testing.assert_close(torch.func.vmap(product, (0, None))(x[:, None], layer.weight)[:, 0], expected)
    assert layer(first).movedim(-1, 1).is_contiguous()
    assert torch.autograd.gradcheck(product, (first.requires_grad_(), layer.weight))
    assert layer.bias is None
