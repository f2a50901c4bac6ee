"""Tensor products are equivariant, compute what their terms say, and refuse what does not fit."""

import copy
import itertools
import math

import every_layer
import numpy as np
import pytest
import torch
from bilinear_fields import BACK, COLUMNS, GRADIENTS, ROWS, WEIGHT, as_fields, fields, random_features
from hypothesis import assume, given
from hypothesis import strategies as st
from oracle import known_sizes
from strategies import HIDDEN, all_spaces

from nfn_monomial import Axis, Features, WeightSpace
from nfn_monomial.basis import bilinear_terms, count_bilinear_terms
from nfn_monomial.nn.tensor_product import TensorProduct, _cheapest_order
from nfn_monomial.testing import assert_equivariant, random_networks

seeds = st.integers(0, 10**6)
mixes = st.sampled_from(["full", "factored"])


def joint(layer, space, batch=2, seed=0):
    """Both inputs of a layer as the one input that the checker acts on, and the layer as a function of it."""
    first = {t: m * layer.in_channels for t, m in as_fields(layer.in_layout).items()}
    second = {t: m * layer.second_channels for t, m in as_fields(layer.second_layout).items()}
    layout = space.layout_of({t: first.get(t, 0) + second.get(t, 0) for t in {**first, **second}})
    both = every_layer.random_features(space, layout, 1, batch, seed)

    def split(z):
        x = layer.in_layout.features({t: z.fields[t][..., :m] for t, m in first.items()})
        y = layer.second_layout.features({t: z.fields[t][..., -m:] for t, m in second.items()})
        return x, y

    return both, lambda z: layer(*split(z))


@given(st.data())
def test_three_operands_are_multiplied_in_the_order_of_numpy(data):
    letters = st.lists(st.sampled_from("abcd"), unique=True).map("".join)
    first, second = data.draw(letters), data.draw(letters)
    kept = "".join(data.draw(st.sets(st.sampled_from(sorted({*first, *second}))))) if first or second else ""
    sizes = {"Y": 1} | {letter: data.draw(st.sampled_from([1, 2, 3, 16, 32])) for letter in "abcdIJO"}
    operands, result = (f"Y{first}I", f"Y{second}J", "OIJ"), f"Y{kept}O"
    shapes = [np.broadcast_to(0.0, [sizes[letter] for letter in operand]) for operand in operands]
    path, _ = np.einsum_path(f"{','.join(operands)}->{result}", *shapes, optimize=("optimal", 2**62))
    assert _cheapest_order(operands, result, sizes)[:2] == path[1]


def check_equivariant(layer, space, seed=0):
    both, call = joint(layer.double(), space, seed=seed)
    assert_equivariant(call, space, inputs=both, trials=1, seed=seed)


# -- equivariance -----------------------------------------------------------------------------------------------------


@given(all_spaces(), st.integers(1, 2), st.integers(1, 2), st.integers(1, 2), mixes, seeds)
def test_equivariance_on_parameters_of_random_spaces(space, c_1, c_2, c_out, mix, seed):
    torch.manual_seed(seed)
    types = space.layout.types
    reached = {
        t: m
        for t, m in as_fields(space.layout).items()
        if any(x.standard for a in types for b in types for x in bilinear_terms(a, b, t, space.nodes))
    }
    if len(reached) < len(types):
        with pytest.raises(ValueError, match="no term leads to field"):
            TensorProduct(space, c_1, c_out)
    assume(reached)
    layer = TensorProduct(space, c_1, c_out, second_channels=c_2, out_types=reached, mix=mix)
    check_equivariant(layer, space, seed)
    if c_1 == c_2:
        assert_equivariant(layer, space, batch=2, trials=1, seed=seed)  # the square


@given(
    st.lists(st.sampled_from(HIDDEN), min_size=2, max_size=2),
    fields(["h1", "h2"], 2),
    fields(["h1", "h2"], 2),
    fields(["h1", "h2"], 2),
    mixes,
    seeds,
)
def test_equivariance_between_hidden_types(symmetries, first, second, target, mix, seed):
    torch.manual_seed(seed)
    space = WeightSpace.mlp([1, 4, 3, 1], symmetries)
    layouts = [space.layout_of(t) for t in (first, second, target)]
    sources = [as_fields(x) for x in layouts[:2]]
    reached = {t: m for t, m in as_fields(layouts[2]).items() if count_bilinear_terms(*sources, {t: 1}, space.nodes)}
    assume(reached)
    options = {"first_types": first, "second_types": second, "out_types": reached, "terms": "all"}
    check_equivariant(TensorProduct(space, 2, 1, mix=mix, **options), space, seed)


def test_an_unbalanced_term_is_not_there_and_would_break_equivariance():
    relu, gelu = (WeightSpace.mlp([1, 4, 1], s) for s in ("relu", "gelu"))
    charged, plain = (Axis("h1", 1),), (Axis("h1", 0),)
    options = {"first_types": [charged], "second_types": [charged], "out_types": [charged]}
    with pytest.raises(ValueError, match=r"no term leads to field \[h1\^\+1\].*its charges cannot"):
        TensorProduct(relu, 1, 1, **options)
    layer = TensorProduct(gelu, 1, 1, first_types=[plain], second_types=[plain], out_types=[plain]).double()
    layout = relu.layout_of([charged])
    x = Features(layout, (torch.randn(3, 4, 1, dtype=torch.float64),))
    with pytest.raises(AssertionError, match="not equivariant"):
        assert_equivariant(
            lambda z: Features(layout, layer(Features(layer.in_layout, z.tensors)).tensors), relu, inputs=x
        )


# -- what the terms compute -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second", "target", "equation", "averaged"),
    [
        (WEIGHT, COLUMNS, ROWS, "nabi,nbj,oij->nao", 3),
        (WEIGHT, GRADIENTS, BACK, "nabi,naj,oij->nbo", 5),
        (ROWS, BACK, WEIGHT, "nai,nbj,oij->nabo", 1),
        (BACK, ROWS, WEIGHT, "nbi,naj,oij->nabo", 1),
        (ROWS, GRADIENTS, (Axis("h2", 0),), "nai,naj,oij->nao", 1),
        (WEIGHT, (Axis("h1", 0),), WEIGHT, "nabi,nbj,oij->nabo", 1),
    ],
    ids=["forward", "backward", "outer", "outer swapped", "invariant", "aligned"],
)
def test_messages_products_and_invariants(first, second, target, equation, averaged):
    """Each of these is the only standard term between its fields, and computes what its equation says."""
    space = WeightSpace.mlp([1, 3, 5, 1], "relu")
    types = {"first_types": [first], "second_types": [second], "out_types": [target]}
    layer = TensorProduct(space, 2, 3, second_channels=4, **types).double()
    x, y = random_features(layer, known_sizes(space))
    (weight,) = layer.parameters()
    expected = torch.einsum(equation, x.tensors[0], y.tensors[0], weight) / averaged
    torch.testing.assert_close(layer(x, y).tensors[0], expected)
    check_equivariant(layer, space)


def test_a_factored_term_is_a_full_one_of_low_rank():
    space = WeightSpace.mlp([1, 3, 5, 1], "relu")
    types = {"first_types": {WEIGHT: 2}, "second_types": [COLUMNS], "out_types": {ROWS: 2}}
    factored = TensorProduct(space, 2, 3, mix="factored", **types).double()
    full = TensorProduct(space, 2, 3, **types).double()
    ((name, _),) = full.named_parameters()
    parts = [factored.state_dict()[name.replace(".weight", f".{part}")] for part in ("up", "down_0", "down_1")]
    full.load_state_dict({name: torch.einsum("or,ri,rj->oij", *parts)})
    x, y = random_features(full, known_sizes(space))
    torch.testing.assert_close(factored(x, y).tensors[0], full(x, y).tensors[0])


@pytest.mark.parametrize("mix", ["full", "factored"])
def test_diagonals_averages_and_broadcasts(mix):
    """All terms of a permuted node, one by one, against their definition with every index written out."""
    space = WeightSpace.mlp([1, 4, 1], "gelu")
    pair, one = (Axis("h1", 0), Axis("h1", 0)), (Axis("h1", 0),)
    terms = bilinear_terms(pair, one, pair, space.nodes)
    assert len(terms) == 52  # Bell(5)
    for term in terms:
        layer = TensorProduct(
            space, 1, 1, first_types=[pair], second_types=[one], out_types=[pair], terms=term.__eq__, mix=mix
        ).double()
        x, y = random_features(layer, known_sizes(space), batch=2)
        factor = math.prod(p.detach().flatten().sum() for p in layer.parameters()) if mix == "full" else None
        first, second, target = term.letters
        expected = torch.zeros(2, 4, 4, dtype=torch.float64)
        averaged = set(first + second) - set(target)
        for values in itertools.product(range(4), repeat=len(set("".join(term.letters)))):
            at = dict(zip(sorted(set("".join(term.letters))), values, strict=True))
            value = x.tensors[0][:, at[first[0]], at[first[1]], 0] * y.tensors[0][:, at[second], 0]
            expected[:, at[target[0]], at[target[1]]] += value / 4 ** len(averaged)
        if factor is None:
            factor = sum(a * b * c for a, b, c in zip(*(p.detach().flatten() for p in layer.parameters()), strict=True))
        torch.testing.assert_close(layer(x, y).tensors[0][..., 0], factor * expected)


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
