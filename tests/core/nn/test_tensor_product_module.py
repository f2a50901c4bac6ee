"""Tensor products are ordinary torch modules, and refuse what does not fit."""

import copy

import pytest
import torch
from bilinear_fields import BACK, COLUMNS, ROWS, WEIGHT, random_features
from oracle import known_sizes

from nfn_monomial import Axis, Features, WeightSpace
from nfn_monomial.nn.tensor_product import TensorProduct
from nfn_monomial.testing import assert_equivariant, random_networks

EQUATIONS = {"ab,b->a", "ab,b->ac", "ab,b->cc", "ab,->ab", "a,a->b", "a,a->bb"}


def example(mix="full"):
    """Contraction, alignment, invariant, broadcast and diagonals in one layer."""
    torch.manual_seed(0)
    space = WeightSpace.mlp([1, 3, 4, 1], ["relu", "gelu"])
    types = {
        "first_types": [WEIGHT, COLUMNS],
        "second_types": [COLUMNS, BACK, ()],
        "out_types": [ROWS, (Axis("h2", 0), Axis("h2", 0)), WEIGHT],
    }
    layer = TensorProduct(space, 2, 3, terms=lambda t: t.equation in EQUATIONS, mix=mix, **types)
    assert {t.equation for t in layer.terms} == EQUATIONS
    return layer.double(), *random_features(layer, known_sizes(space))


@pytest.mark.parametrize("mix", ["full", "factored"])
def test_torch_runs_it(mix):
    layer, x, y = example(mix)
    expected = layer(x, y).tensors
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    one_by_one = torch.func.vmap(lambda a, b: layer(a.map(lambda t: t[None]), b.map(lambda t: t[None])))
    for found in (compiled(x, y), one_by_one(x, y).map(lambda t: t[:, 0])):
        torch.testing.assert_close(found.tensors, expected)
    half = copy.deepcopy(layer).bfloat16()(x.to(torch.bfloat16), y.to(torch.bfloat16))
    assert {t.dtype for t in half.tensors} == {torch.bfloat16}
    torch.testing.assert_close(half.to(torch.float64).tensors, expected, rtol=0.1, atol=0.1)
    inputs, n = [t[:1].requires_grad_() for t in (*x.tensors, *y.tensors)], len(x.tensors)

    def function(*tensors):
        return layer(Features(x.layout, tensors[:n]), Features(y.layout, tensors[n:])).tensors

    assert torch.autograd.gradcheck(function, inputs, fast_mode=True)


def test_state_dict_names_are_pinned():
    space = WeightSpace.mlp([2, 4, 1], "relu", bias=[True, False])
    types = {"first_types": [COLUMNS], "second_types": [BACK, ()], "out_types": [COLUMNS, ()]}
    names = ["mix.h1+1,h1-1->const:a,a->", "mix.h1+1,const->h1+1:a,->a"]
    assert list(TensorProduct(space, 2, 2, **types).state_dict()) == [f"{name}.weight" for name in names]
    factored = TensorProduct(space, 2, 2, mix="factored", **types).state_dict()
    assert sorted(factored) == sorted(f"{name}.{part}" for name in names for part in ("down_0", "down_1", "up"))


def test_widths_are_not_baked_in():
    unknown = WeightSpace.sequential([1, None, None, 1], [(), (), ()], "relu")
    layer = TensorProduct(unknown, 2, 2).double()
    for widths in ([4, 4], [7, 9]):
        wide = WeightSpace.mlp([1, *widths, 1], "relu")
        assert_equivariant(layer, unknown, inputs=unknown.pack(random_networks(wide, channels=2)), trials=1)
    space = WeightSpace.sequential([1, None, 1], [(), ()], "gelu")
    with pytest.raises(ValueError, match="size of node 'h1' is neither known"):
        TensorProduct(space, 1, 1, first_types=[()], second_types=[()], out_types=[(Axis("h1"),)], terms="all")


def test_bad_inputs():
    layer, x, y = example()
    with pytest.raises(ValueError, match=r"TensorProduct, second input.*another weight space"):
        layer(x)
    with pytest.raises(ValueError, match="5 networks in the first input, 3 in the second"):
        layer(x, y[:3])
    wider = Features(y.layout, tuple(torch.cat([t, t], 1) if t.ndim > 2 else t for t in y.tensors))
    with pytest.raises(ValueError, match=r"node 'h1' has 6 neurons in field \[h1\^\+1\].*3 in a field before"):
        layer(x, wider)
