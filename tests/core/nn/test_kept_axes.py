"""Layers on features that keep their FIXED axes in place and their charges unreduced, such as those of neurons."""

import torch
from every_layer import random_features
from hypothesis import assume, given
from hypothesis import strategies as st
from oracle import basis_features, flat, invariant_dimension
from strategies import HIDDEN

from nfn_monomial import Axis, EquivariantLinear, Features, Symmetry, TensorProduct, WeightSpace
from nfn_monomial.space import Node
from nfn_monomial.space.folding import LayoutFolding
from nfn_monomial.testing import assert_equivariant

seeds = st.integers(0, 10**6)
channels = st.integers(1, 2)
io = st.sampled_from(["full", "factored"])


@st.composite
def kept_layouts(draw, distinct=False):
    """A space with FIXED nodes and a nested one, and two layouts with axes of any charges on any of its nodes.

    With ``distinct`` no field has two axes of one node.
    """
    symmetries = [draw(st.sampled_from([*HIDDEN, Symmetry.FIXED])) for _ in range(3)]
    nodes = {f"n{i}": (s, 2 + i % 2) for i, s in enumerate(symmetries)}
    if Symmetry.FIXED not in symmetries[1:2]:
        nodes["n3"] = Node((draw(st.sampled_from(HIDDEN)), draw(st.sampled_from(HIDDEN))), 2, "n1")
    space = WeightSpace(nodes, {"w": (Axis("n0"), Axis("n1"))})
    charge = st.integers(-1, 2)
    drawn = [st.builds(Axis, st.sampled_from(list(nodes)[:3]), charge).map(lambda axis: (axis,))]
    if "n3" in nodes:
        drawn.append(
            st.tuples(st.builds(Axis, st.just("n1"), charge), st.builds(Axis, st.just("n3"), st.tuples(charge, charge)))
        )
    unique_by = (lambda part: part[0].node) if distinct else None
    field = st.lists(st.one_of(drawn), max_size=2, unique_by=unique_by).map(lambda parts: sum(parts, ()))
    layout = st.dictionaries(field, st.integers(1, 2), min_size=1, max_size=3)
    return space, *(space.layout_of(draw(layout), fold=False) for _ in range(2))


def layer_or_skip(build):
    """A layer; examples in which an output field cannot be reached at all are none."""
    try:
        return build()
    except ValueError as error:
        assert "leads to field" in str(error)  # noqa: PT017
        assume(False)


@given(kept_layouts(), channels, seeds)
def test_folding_is_undone_exactly_and_commutes_with_the_group(made, width, seed):
    space, layout, _ = made
    folding, x = LayoutFolding(space, layout), random_features(space, layout, width, seed=seed)
    inner = folding.fold(x)
    assert all(space.canonical(t)[0] == t for t in inner.layout.types)
    assert all(space.nodes[a.node].permutes for t in inner.layout.types for a in t)
    back = folding.unfold(inner)
    assert back.layout is layout
    assert all(torch.equal(a, b) for a, b in zip(back.tensors, x.tensors, strict=True))
    g = space.sample(generator=torch.Generator().manual_seed(seed))
    for a, b in zip(folding.fold(g.act(x)).tensors, g.act(inner).tensors, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-14, atol=0)


@given(kept_layouts(), channels, channels, io, st.booleans(), seeds)
def test_linear(made, c_in, c_out, io, bias, seed):
    torch.manual_seed(seed)
    space, source, target = made
    layer = layer_or_skip(
        lambda: EquivariantLinear(space, c_in, c_out, io=io, bias=bias, in_types=source, out_types=target)
    )
    assert_equivariant(layer.double(), space, batch=2, trials=1, seed=seed)
    assert layer(random_features(space, source, c_in).to(torch.float64)).layout is target


@given(kept_layouts(), channels, channels, st.sampled_from(["full", "factored"]), seeds)
def test_tensor_product(made, c_in, c_out, mix, seed):
    torch.manual_seed(seed)
    space, source, target = made
    options = {"first_types": source, "second_types": source, "out_types": target, "terms": "all", "mix": mix}
    layer = layer_or_skip(lambda: TensorProduct(space, c_in, c_out, **options))
    assert_equivariant(layer.double(), space, batch=2, trials=1, seed=seed)


@given(kept_layouts(distinct=True))
def test_the_layer_has_all_equivariant_maps(made):
    """Against the oracle, which acts on the features as they are outside, and knows neither folding nor partitions."""
    space, source, target = made
    sizes = {name: 3 if node.permutes else node.size for name, node in space.nodes.items()}
    n, m = (sum(x.shape[1:].numel() for x in basis_features(t, sizes).tensors) for t in (source, target))
    assume(n * m <= 700)
    layer = layer_or_skip(lambda: EquivariantLinear(space, 1, 1, in_types=source, out_types=target)).double()
    x = basis_features(source, sizes)
    probe = Features(source, tuple(torch.cat([t, torch.zeros_like(t[:1])]) for t in x.tensors))
    names, lengths = zip(*((name, p.numel()) for name, p in layer.named_parameters()), strict=True)
    one_hot = torch.eye(sum(lengths), dtype=torch.float64).split(lengths, 1)
    stacked = {n: o.reshape(-1, *layer.get_parameter(n).shape) for n, o in zip(names, one_hot, strict=True)}
    maps = torch.func.vmap(lambda p: flat(torch.func.functional_call(layer, p, (probe,))))(stacked)
    linear, constants = (maps[:, :-1] - maps[:, -1:]).flatten(1), maps[:, -1]
    assert int(torch.linalg.matrix_rank(linear)) == invariant_dimension(space, [source], target, sizes)
    assert int(torch.linalg.matrix_rank(constants)) == invariant_dimension(space, [], target, sizes)
