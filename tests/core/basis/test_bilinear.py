"""Bilinear maps: counted against an oracle that knows no partitions, equivariant, and nothing that is not."""

import copy
import itertools
import math

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from oracle import basis_features, flat, invariant_dimension, known_sizes
from safetensors.torch import load, save
from strategies import HIDDEN, any_spaces
from torch.utils.flop_counter import FlopCounterMode

from nfn_monomial import Axis, Features, Symmetry, WeightSpace
from nfn_monomial.basis import BilinearTerm, bilinear_terms, count_bilinear_terms
from nfn_monomial.nn.tensor_product import TensorProduct
from nfn_monomial.testing import assert_equivariant, assert_invariant, random_networks

seeds = st.integers(0, 10**6)
mixes = st.sampled_from(["full", "factored"])

WEIGHT, ROWS, COLUMNS = (Axis("h2", 1), Axis("h1", -1)), (Axis("h2", 1),), (Axis("h1", 1),)
GRADIENTS, BACK = (Axis("h2", -1),), (Axis("h1", -1),)


def symmetries_of(space):
    return {name: node.symmetry for name, node in space.nodes.items()}


def as_fields(layout):
    return dict(zip(layout.types, layout.multiplicities, strict=True))


def joint(layer, space, batch=2, seed=0):
    """Both inputs of a layer as the one input that the checker acts on, and the layer as a function of it."""
    first = {t: m * layer.in_channels for t, m in as_fields(layer.in_layout).items()}
    second = {t: m * layer.second_channels for t, m in as_fields(layer.second_layout).items()}
    layout = space.layout_of({t: first.get(t, 0) + second.get(t, 0) for t in {**first, **second}})
    generator = torch.Generator().manual_seed(seed)
    sizes = {name: node.size or 4 for name, node in space.nodes.items()}
    both = Features(
        layout,
        tuple(
            torch.randn(batch, *(sizes[a.node] for a in t), m, dtype=torch.float64, generator=generator)
            for t, m in as_fields(layout).items()
        ),
    )

    def split(z):
        x = layer.in_layout.features({t: z.fields[t][..., :m] for t, m in first.items()})
        y = layer.second_layout.features({t: z.fields[t][..., -m:] for t, m in second.items()})
        return x, y

    return both, lambda z: layer(*split(z))


def check_equivariant(layer, space, seed=0):
    both, call = joint(layer.double(), space, seed=seed)
    assert_equivariant(call, space, inputs=both, trials=1, seed=seed)


def bilinear_rank(layer, sizes):
    """Rank of the layer's bilinear maps over all values of its parameters."""
    layer = layer.double()
    x, y = basis_features(layer.in_layout, sizes), basis_features(layer.second_layout, sizes)
    pairs = x.map(lambda t: t.repeat_interleave(len(y), 0)), y.map(lambda t: torch.cat([t] * len(x)))
    parameters = {name: p.detach() for name, p in layer.named_parameters()}
    lengths = [p.numel() for p in parameters.values()]
    one_hot = torch.eye(sum(lengths), dtype=torch.float64).split(lengths, 1)
    stacked = {name: o.reshape(-1, *p.shape) for o, (name, p) in zip(one_hot, parameters.items(), strict=True)}
    maps = torch.func.vmap(lambda p: flat(torch.func.functional_call(layer, p, pairs)))(stacked)
    return int(torch.linalg.matrix_rank(maps.flatten(1)))


def check_complete(space, first, second, target, sizes):
    """Count, oracle and rank of the layer agree."""
    layouts = [space.layout_of(t) for t in (first, second, target)]
    count = count_bilinear_terms(*map(as_fields, layouts), symmetries_of(space))
    assert count == invariant_dimension(space, layouts[:2], layouts[2], sizes)
    options = {"first_types": first, "second_types": second, "out_types": target, "terms": "all"}
    reached = [count_bilinear_terms(first, second, {t: 1}, symmetries_of(space)) for t in layouts[2].types]
    if not all(reached):
        with pytest.raises(ValueError, match="no term leads to field"):
            TensorProduct(space, 1, 1, **options)
        return
    layer = TensorProduct(space, 1, 1, **options)
    assert sum(p.numel() for p in layer.parameters()) == count
    assert bilinear_rank(layer, sizes) == count


# -- the basis --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("symmetry", [s for s in Symmetry if s.permutes], ids=str)
@pytest.mark.parametrize(
    ("first", "second", "target", "size"),
    [
        ([1], [1], [1], 3),
        ([1], [-1], [0], 3),
        ([1, -1], [1], [1], 4),
        ([1, 0], [-1], [0], 4),
        ([0], [0], [0, 0], 4),
    ],
)
def test_counts_on_one_node(symmetry, first, second, target, size):
    """As many neurons as axes, so that no two partitions look alike."""
    space = WeightSpace.mlp([1, size, 1], symmetry)
    first, second, target = (
        dict.fromkeys(space.layout_of([tuple(Axis("h1", q) for q in charges)]).types, 1)
        for charges in (first, second, target)
    )
    check_complete(space, first, second, target, known_sizes(space))


@pytest.mark.parametrize("symmetry", ["relu", "tanh", "linear"])
def test_counts_with_six_axes_on_one_node(symmetry):
    """Loop x loop -> loop, as in a recurrent cell: no block holds one charged axis alone, so three neurons do."""
    space = WeightSpace.mlp([1, 3, 1], symmetry)
    loop = dict.fromkeys(space.layout_of([(Axis("h1", 1), Axis("h1", -1))]).types, 1)
    count = count_bilinear_terms(loop, loop, loop, symmetries_of(space))
    layout = space.layout_of(loop)
    assert count == invariant_dimension(space, [layout, layout], layout, known_sizes(space))
    layer = TensorProduct(space, 1, 1, first_types=loop, second_types=loop, out_types=loop, terms="all")
    assert bilinear_rank(layer, known_sizes(space)) == count


def fields(nodes, max_size):
    axis = st.builds(Axis, st.sampled_from(nodes), st.integers(-1, 1))
    field = st.lists(axis, max_size=2).map(tuple)
    return st.dictionaries(field, st.integers(1, 2), min_size=1, max_size=max_size)


@given(
    st.lists(st.sampled_from(HIDDEN), min_size=2, max_size=2),
    fields(["h1", "h2"], 2),
    fields(["h1", "h2"], 1),
    fields(["h1", "h2"], 2),
)
def test_completeness_on_small_mixed_spaces(symmetries, first, second, target):
    """Charges -1, 0 and 1, two axes on one node included, every pair of symmetries."""
    space = WeightSpace.mlp([1, 2, 2, 1], symmetries)
    layouts = [space.layout_of(t) for t in (first, second, target)]

    def most(node, charged):
        """Blocks that a partition can have on a node: charged axes lie in blocks of two at least."""
        counts = [[sum(a.node == node and bool(a.charge) is charged for a in t) for t in x.types] for x in layouts]
        return sum(map(max, counts))

    sizes = {"x": 1, "y": 1} | {n: max(2, most(n, False) + most(n, True) // 2) for n in ("h1", "h2")}
    assume(math.prod(len(basis_features(x, sizes)) for x in layouts) <= 500)
    check_complete(space, *map(as_fields, layouts), sizes)


@pytest.mark.parametrize(
    "space",
    [
        WeightSpace.mlp([1, 2, 1], "relu"),
        WeightSpace.mlp([1, 2, 1], "sin"),
        WeightSpace.mlp([2, 1], "relu"),
        WeightSpace.mlp([1, 2, 2, 1], ["relu", "tanh"], bias=False),
        WeightSpace.cnn([1, 2, 1], [(2,), (1,)], "linear", bias=False),
        WeightSpace.mlp([1, 3, 1], "gelu", bias=[True, False]),
    ],
    ids=str,
)
def test_completeness_on_parameters(space):
    """FIXED nodes, kernels and biases: multiplicities."""
    own = as_fields(space.layout)
    check_complete(space, own, own, own, known_sizes(space))


def test_the_oracle_misses_a_missing_term():
    space = WeightSpace.mlp([1, 3, 1], "relu")
    loop = [(Axis("h1", 1), Axis("h1", -1))]
    options = {"first_types": loop, "second_types": loop, "out_types": loop}
    full = bilinear_rank(TensorProduct(space, 1, 1, terms="all", **options), known_sizes(space))
    layer = TensorProduct(space, 1, 1, terms=lambda t: t.equation != "ab,bc->ac", **options)
    assert bilinear_rank(layer, known_sizes(space)) == full - 1


def test_terms_are_readable_and_standard_ones_join_fields():
    h = (Axis("h1", 0),)
    terms = bilinear_terms(h, h, h, {"h1": Symmetry.PERMUTATION})
    assert [t.equation for t in terms] == ["a,a->a", "a,a->b", "a,b->a", "a,b->b", "a,b->c"]
    assert [t.equation for t in terms if t.standard] == ["a,a->a"]
    assert str(terms[0]) == "h1+0,h1+0->h1+0:a,a->a"
    loop = (Axis("h1", 1), Axis("h1", -1))
    terms = bilinear_terms(loop, loop, (), {"h1": Symmetry.SCALE})
    assert {t.equation: t.standard for t in terms} == {"aa,aa->": False, "aa,bb->": False, "ab,ba->": True}


def test_deep_spaces_have_few_terms():
    """Linear in depth: only neighbours meet. Every term once, each one balanced."""
    counts = []
    for depth in (4, 5, 6, 7):
        space = WeightSpace.mlp([2, *[8] * depth, 1], "relu")
        types = space.layout.types
        found = [t for f in itertools.product(types, types, types) for t in bilinear_terms(*f, symmetries_of(space))]
        assert len(set(found)) == len(found)
        assert not any(t.imbalance(symmetries_of(space)) for t in found)
        counts.append(len(found))
    assert len({b - a for a, b in itertools.pairwise(counts)}) == 1


# -- equivariance -----------------------------------------------------------------------------------------------------


@given(any_spaces(), st.integers(1, 2), st.integers(1, 2), st.integers(1, 2), mixes, seeds)
def test_equivariance_on_parameters_of_random_spaces(space, c_1, c_2, c_out, mix, seed):
    torch.manual_seed(seed)
    types = space.layout.types
    reached = {
        t: m
        for t, m in as_fields(space.layout).items()
        if any(x.standard for a in types for b in types for x in bilinear_terms(a, b, t, symmetries_of(space)))
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
    st.sampled_from(["mean", "sum"]),
    seeds,
)
def test_equivariance_between_hidden_types(symmetries, first, second, target, mix, reduce, seed):
    torch.manual_seed(seed)
    space = WeightSpace.mlp([1, 4, 3, 1], symmetries)
    layouts = [space.layout_of(t) for t in (first, second, target)]
    sources, symmetries = [as_fields(x) for x in layouts[:2]], symmetries_of(space)
    reached = {t: m for t, m in as_fields(layouts[2]).items() if count_bilinear_terms(*sources, {t: 1}, symmetries)}
    assume(reached)
    options = {"first_types": first, "second_types": second, "out_types": reached, "terms": "all"}
    check_equivariant(TensorProduct(space, 2, 1, mix=mix, reduce=reduce, **options), space, seed)


def test_an_unbalanced_term_is_refused_and_would_break_equivariance():
    relu, gelu = (WeightSpace.mlp([1, 4, 1], s) for s in ("relu", "gelu"))
    charged, plain = (Axis("h1", 1),), (Axis("h1", 0),)
    wrong = BilinearTerm(charged, charged, charged, "a,a->a")
    options = {"first_types": [charged], "second_types": [charged], "out_types": [charged]}
    with pytest.raises(ValueError, match=r"no term leads to field \[h1\^\+1\].*its charges cannot"):
        TensorProduct(relu, 1, 1, **options)
    with pytest.raises(ValueError, match=r"h1\+1:a,a->a is not among.*not equivariant.*\+1 on 'a'"):
        TensorProduct(relu, 1, 1, terms=[wrong], **options)
    layer = TensorProduct(gelu, 1, 1, first_types=[plain], second_types=[plain], out_types=[plain]).double()
    layout = relu.layout_of([charged])
    x = Features(layout, (torch.randn(3, 4, 1, dtype=torch.float64),))
    with pytest.raises(AssertionError, match="not equivariant"):
        assert_equivariant(
            lambda z: Features(layout, layer(Features(layer.in_layout, z.tensors)).tensors), relu, inputs=x
        )


# -- what the terms compute -------------------------------------------------------------------------------------------


def random_features(layer, sizes, seed=0, batch=5):
    generator = torch.Generator().manual_seed(seed)
    return tuple(
        Features(
            layout,
            tuple(
                torch.randn(batch, *(sizes[a.node] for a in t), m * c, dtype=torch.float64, generator=generator)
                for t, m in as_fields(layout).items()
            ),
        )
        for layout, c in ((layer.in_layout, layer.in_channels), (layer.second_layout, layer.second_channels))
    )


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
    summed = TensorProduct(space, 2, 3, second_channels=4, reduce="sum", **types).double()
    summed.load_state_dict(layer.state_dict())
    torch.testing.assert_close(summed(x, y).tensors[0], expected * averaged)
    check_equivariant(layer, space)


def test_a_hand_set_term_is_the_networks_own_layer():
    space = WeightSpace.mlp([1, 3, 5, 1], "relu")
    layer = TensorProduct(
        space, 1, 1, first_types=[WEIGHT], second_types=[COLUMNS], out_types=[ROWS], reduce="sum"
    ).double()
    torch.nn.init.ones_(next(layer.parameters()))
    networks = random_networks(space)
    weight, h = networks["weight.1"][:, 0], torch.randn(3, 3, dtype=torch.float64)
    x, y = (
        z.features({t: v[..., None]})
        for z, t, v in ((layer.in_layout, WEIGHT, weight), (layer.second_layout, COLUMNS, h))
    )
    torch.testing.assert_close(layer(x, y).tensors[0][..., 0], torch.einsum("nab,nb->na", weight, h))


def test_invariants_are_invariant():
    space = WeightSpace.mlp([1, 4, 4, 1], ["relu", "tanh"])
    layer = TensorProduct(
        space, 2, 3, first_types=[ROWS, COLUMNS], second_types=[GRADIENTS, BACK], out_types=[()], mix="factored"
    )
    both, call = joint(layer.double(), space, batch=4)
    assert_invariant(lambda z: call(z).tensors[0], space, inputs=both)


def test_a_factored_term_is_a_full_one_of_low_rank():
    space = WeightSpace.mlp([1, 3, 5, 1], "relu")
    types = {"first_types": {WEIGHT: 2}, "second_types": [COLUMNS], "out_types": {ROWS: 2}}
    factored = TensorProduct(space, 2, 3, mix="factored", rank=2, **types).double()
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
    terms = bilinear_terms(pair, one, pair, symmetries_of(space))
    assert len(terms) == 52  # Bell(5)
    for term in terms:
        layer = TensorProduct(
            space, 1, 1, first_types=[pair], second_types=[one], out_types=[pair], terms=[term], mix=mix
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


@pytest.mark.parametrize(
    ("first", "second", "target", "mix", "limit"),
    [
        (WEIGHT, COLUMNS, ROWS, "full", 30 * 20 * 64 + 30 * 8**3),  # not 30 * 20 * 8**3
        (ROWS, BACK, WEIGHT, "full", 30 * 20 * 64 + 30 * 8**3),
        (WEIGHT, (Axis("h1", 0),), WEIGHT, "full", 30 * 20 * 64 + 20 * 8**3),
        (ROWS, COLUMNS, ROWS, "factored", (30 + 1 + 30) * 64),
    ],
    ids=["forward", "outer", "aligned", "averaged alone"],
)
def test_channels_are_mixed_where_tensors_are_small(first, second, target, mix, limit):
    """Multiply-adds of one network: no weight meets pairs of neurons that need not be formed."""
    space = WeightSpace.mlp([1, 20, 30, 1], ["gelu", "relu"])
    types = {"first_types": [first], "second_types": [second], "out_types": [target]}
    layer = TensorProduct(space, 8, 8, mix=mix, terms=lambda t: t.standard or t.equation == "a,b->a", **types).double()
    x, y = random_features(layer, known_sizes(space), batch=1)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        layer(x, y)
    assert 0 < counter.get_total_flops() <= 2 * limit


@pytest.mark.parametrize("mix", ["full", "factored"])
def test_initialisation_treats_all_output_fields_alike(mix):
    torch.manual_seed(0)
    space = WeightSpace.cnn([1, 16, 16, 16], 3, "relu", head=[10])
    layer = TensorProduct(space, 8, 8, mix=mix)
    x, y = (space.pack(random_networks(space, 16, 8, dtype=torch.float32)) for _ in range(2))
    stds = [float(t.std()) for t in layer(x, y).detach().tensors]
    assert max(stds) < 2 * min(stds)
    assert 0.4 < min(stds) < max(stds) < 1.5


def test_factored_is_linear_in_fixed_entries():
    counts = [
        sum(p.numel() for p in TensorProduct(WeightSpace.mlp([n, 8, 2], "relu"), 4, 4, mix="factored").parameters())
        for n in (98, 196, 392)
    ]
    assert counts[2] - counts[1] == 2 * (counts[1] - counts[0])
    assert counts[2] < 60_000


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


@over_mixes
def test_copies_and_state_dicts_give_the_same_function(mix):
    layer, x, y = example(mix)
    other, *_ = example(mix, seed=1)
    assert not torch.equal(other(x, y).tensors[0], layer(x, y).tensors[0])
    other.load_state_dict(load(save(layer.state_dict())))
    clone = copy.deepcopy(layer)
    for same in (other, clone):
        assert_same(same(x, y), layer(x, y), rtol=0, atol=0)
    with torch.no_grad():
        next(clone.parameters()).add_(1)
    assert not torch.equal(clone(x, y).tensors[0], layer(x, y).tensors[0])


def test_state_dict_names_are_pinned():
    space = WeightSpace.mlp([2, 4, 1], "relu", bias=[True, False])
    types = {"first_types": [COLUMNS], "second_types": [BACK, ()], "out_types": [COLUMNS, ()]}
    assert list(TensorProduct(space, 2, 2, **types).state_dict()) == [
        "mix.h1+1,h1-1->const:a,a->.weight",
        "mix.h1+1,const->h1+1:a,->a.weight",
    ]
    assert list(
        TensorProduct(
            space, 2, 2, mix="factored", terms=["h1+1,const->h1+1:a,->a"], **types | {"out_types": [COLUMNS]}
        ).state_dict()
    ) == [
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


def test_terms_by_name_by_hand_and_by_predicate_are_the_same():
    space = WeightSpace.mlp([1, 3, 5, 1], "relu")
    types = {"first_types": [WEIGHT], "second_types": [COLUMNS], "out_types": [ROWS]}
    term = BilinearTerm(WEIGHT, COLUMNS, ROWS, "ab,b->a")
    chosen = [[term], [str(term)], lambda t: t == term, "standard", "all"]
    assert all(TensorProduct(space, 1, 1, terms=terms, **types).terms == (term,) for terms in chosen)


# -- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"terms": "some"}, "terms must be 'standard'"),
        ({"terms": ["ab,b->a"]}, r"term ab,b->a is not among the 1 terms.*h2\+1_h1-1,h1\+1->h2\+1:ab,b->a.*lists"),
        ({"terms": [BilinearTerm(WEIGHT, COLUMNS, ROWS, "ab,a->b")]}, r"'a' lies on nodes 'h2' and 'h1'"),
        ({"terms": [BilinearTerm(WEIGHT, COLUMNS, ROWS, "ab,b->")]}, r"0 letters '' for 1 axes"),
        ({"terms": [BilinearTerm(WEIGHT, COLUMNS, ROWS, "ab,b->c")]}, r"\+1 on 'a', -1 on 'c'"),
        ({"terms": lambda t: False}, r"no term leads to field \[h2\^\+1\].*choose some of its 1 terms"),
        ({"out_types": [GRADIENTS]}, r"no term leads to field \[h2\^-1\].*charges cannot"),
        ({"mix": "half"}, "mix must be"),
        ({"reduce": "max"}, "reduce must be"),
        ({"rank": 2}, "belongs to mix='factored'"),
        ({"rank": 0, "mix": "factored"}, "rank must be at least 1"),
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
