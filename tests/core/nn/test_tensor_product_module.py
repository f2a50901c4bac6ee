"""Tensor products are ordinary torch modules, and refuse what does not fit."""

import copy

import pytest
import torch
from bilinear_fields import BACK, COLUMNS, GRADIENTS, ROWS, WEIGHT, random_features
from oracle import known_sizes

from nfn_monomial import Axis, Features, WeightSpace
from nfn_monomial.basis import BilinearTerm
from nfn_monomial.nn.tensor_product import TensorProduct
from nfn_monomial.testing import assert_equivariant, random_networks

# -- an ordinary torch module -----------------------------------------------------------------------------------------


def example(mix="full", seed=0):
    """Contraction, alignment, invariant, broadcast and diagonals in one layer."""
    torch.manual_seed(seed)
    space = WeightSpace.mlp([1, 3, 4, 1], ["relu", "gelu"])
    types = {
        "first_types": [WEIGHT, COLUMNS],
        "second_types": [COLUMNS, BACK, ()],
        "out_types": [ROWS, (Axis("h2", 0), Axis("h2", 0)), WEIGHT],
    }
    equations = {"ab,b->a", "ab,b->ac", "ab,b->cc", "ab,->ab", "a,a->b", "a,a->bb"}
    layer = TensorProduct(space, 2, 3, terms=lambda t: t.equation in equations, mix=mix, **types)
    assert {t.equation for t in layer.terms} == equations
    x, y = random_features(layer, known_sizes(space))
    return layer, x.to(torch.float32), y.to(torch.float32)


over_mixes = pytest.mark.parametrize("mix", ["full", "factored"])


def assert_same(a, b, **kwargs):
    for s, t in zip(a.tensors, b.tensors, strict=True):
        torch.testing.assert_close(s, t, **kwargs)


@over_mixes
def test_compiles_as_one_graph(mix):
    layer, x, y = example(mix)
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    out = compiled(x, y)
    assert_same(out, layer(x, y))
    sum(t.sum() for t in out.tensors).backward()
    assert all(p.grad is not None for p in layer.parameters())


@over_mixes
def test_vmap_over_an_ensemble_and_over_networks(mix):
    layers = [example(mix, seed)[0] for seed in range(3)]
    _, x, y = example(mix)
    params, buffers = torch.func.stack_module_state(layers)
    out = torch.func.vmap(lambda p, b: torch.func.functional_call(layers[0], (p, b), (x, y)))(params, buffers)
    for i, layer in enumerate(layers):
        assert_same(Features(out.layout, tuple(t[i] for t in out.tensors)), layer(x, y))
    one = torch.func.vmap(
        lambda a, b: layers[0](a.map(lambda t: t[None]), b.map(lambda t: t[None])).map(lambda t: t[0])
    )
    assert_same(one(x, y), layers[0](x, y))


@over_mixes
def test_autocast_and_dtypes(mix):
    layer, x, y = example(mix)
    with torch.autocast("cpu", torch.bfloat16):
        out = layer(x, y)
    assert_same(out.to(torch.float32), layer(x, y), rtol=0.1, atol=0.1)
    sum(t.float().sum() for t in out.tensors).backward()
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in layer.parameters())
    half = copy.deepcopy(layer).bfloat16()(x.to(torch.bfloat16), y.to(torch.bfloat16))
    assert {t.dtype for t in half.tensors} == {torch.bfloat16}
    assert_same(half.to(torch.float32), layer(x, y), rtol=0.1, atol=0.1)


@over_mixes
def test_gradients(mix):
    layer, x, y = example(mix)
    layer, n = layer.double(), len(x.tensors)
    inputs = [t[:1].double().requires_grad_() for t in (*x.tensors, *y.tensors)]

    def fn(*tensors):
        return layer(Features(x.layout, tensors[:n]), Features(y.layout, tensors[n:])).tensors

    assert torch.autograd.gradcheck(fn, inputs, fast_mode=True)


def test_state_dict_names_are_pinned():
    space = WeightSpace.mlp([2, 4, 1], "relu", bias=[True, False])
    types = {"first_types": [COLUMNS], "second_types": [BACK, ()], "out_types": [COLUMNS, ()]}
    assert list(TensorProduct(space, 2, 2, **types).state_dict()) == [
        "mix.h1+1,h1-1->const:a,a->.weight",
        "mix.h1+1,const->h1+1:a,->a.weight",
    ]
    one = {"terms": lambda t: str(t) == "h1+1,const->h1+1:a,->a", **types, "out_types": [COLUMNS]}
    assert list(TensorProduct(space, 2, 2, mix="factored", **one).state_dict()) == [
        "mix.h1+1,const->h1+1:a,->a.down_0",
        "mix.h1+1,const->h1+1:a,->a.down_1",
        "mix.h1+1,const->h1+1:a,->a.up",
    ]


def test_widths_are_not_baked_in():
    unknown = WeightSpace.sequential([1, None, None, 1], [(), (), ()], "relu")
    layer = TensorProduct(unknown, 2, 2, mix="full").double()
    for widths in ([4, 4], [7, 9]):
        wide = WeightSpace.mlp([1, *widths, 1], "relu")
        assert_equivariant(layer, unknown, inputs=unknown.pack(random_networks(wide, channels=2)), trials=1)


def test_terms_by_predicate_and_by_word_are_the_same():
    space = WeightSpace.mlp([1, 3, 5, 1], "relu")
    types = {"first_types": [WEIGHT], "second_types": [COLUMNS], "out_types": [ROWS]}
    term = BilinearTerm(WEIGHT, COLUMNS, ROWS, "ab,b->a")
    chosen = [lambda t: t == term, lambda t: str(t) == str(term), "standard", "all"]
    assert all(TensorProduct(space, 1, 1, terms=terms, **types).terms == (term,) for terms in chosen)


# -- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"terms": "some"}, "terms must be 'standard'"),
        ({"terms": lambda t: False}, r"no term leads to field \[h2\^\+1\].*choose some of its 1 terms"),
        ({"out_types": [GRADIENTS]}, r"no term leads to field \[h2\^-1\].*charges cannot"),
        ({"mix": "half"}, "mix must be"),
        ({"second_channels": 0}, "channels must be at least 1"),
    ],
)
def test_bad_options(options, match):
    space = WeightSpace.mlp([1, 3, 5, 1], "relu")
    types = {"first_types": [WEIGHT], "second_types": [COLUMNS], "out_types": [ROWS]}
    with pytest.raises(ValueError, match=match):
        TensorProduct(space, 1, 1, **types | options)


def test_sizes_must_be_known_to_broadcast():
    space = WeightSpace.sequential([1, None, 1], [(), ()], "gelu")
    with pytest.raises(ValueError, match="size of node 'h1' is neither known"):
        TensorProduct(space, 1, 1, first_types=[()], second_types=[()], out_types=[(Axis("h1"),)], terms="all")


def test_bad_inputs():
    layer, x, y = example()
    with pytest.raises(ValueError, match=r"TensorProduct, second input.*another weight space"):
        layer(x)
    with pytest.raises(ValueError, match=r"TensorProduct, first input.*channels"):
        layer(x.map(lambda t: t[..., :1]), y)
    with pytest.raises(ValueError, match="5 networks in the first input, 3 in the second"):
        layer(x, y[:3])
    wider = Features(y.layout, tuple(torch.cat([t, t], 1) if t.ndim > 2 else t for t in y.tensors))
    with pytest.raises(ValueError, match=r"node 'h1' has 6 neurons in field \[h1\^\+1\].*3 in a field before"):
        layer(x, wider)
