"""Completeness: layers have every equivariant map, counted against a numerical oracle that knows no partitions."""

import itertools
import math

import pytest
import torch
from bilinear_fields import as_fields, fields
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from oracle import basis_features, invariant_dimension, known_sizes, oracle_dimensions
from ranks import bilinear_rank, layer_ranks
from strategies import HIDDEN, all_spaces, general, recurrent

from nfn_monomial import Axis, EquivariantLinear, Symmetry, TensorProduct, WeightSpace
from nfn_monomial.basis import bilinear_terms, count_bilinear_terms, count_terms
from nfn_monomial.basis.bilinear import standard_terms
from nfn_monomial.space import Layout, Node


def oracle_unreached(space, source: Layout, target: Layout) -> bool:
    """Whether some output field gets nothing, neither from the input nor from a constant."""
    fields = dict(zip(source.types, source.multiplicities, strict=True))
    return any(count_terms(fields, {t: 1}, space.nodes) == (0, 0) for t in target.types)


@pytest.mark.parametrize(
    "space",
    [
        *(WeightSpace.mlp([2, 3, 2], symmetry) for symmetry in ("gelu", "relu", "tanh")),
        WeightSpace.mlp([2, 3, 3, 1], "relu"),
        *(WeightSpace.mlp([2, 2], "relu", io_symmetry=io) for io in ("fixed", "permutation")),
        WeightSpace.mlp([2, 3, 2], "gelu", io_symmetry="permutation"),
        WeightSpace.mlp([1, 3, 3, 1], ["relu", "tanh"]),
        WeightSpace.mlp([1, 3, 3, 1], ["linear", "gelu"]),
        WeightSpace.cnn([1, 3, 2], [(2,), (1,)], "sin"),
        WeightSpace.cnn([1, 2], (2,), ["relu"], head=[1], ndim=1, positions=3),
    ],
    ids=str,
)
def test_the_layer_has_all_equivariant_affine_maps(space):
    sizes = known_sizes(space)
    expected = oracle_dimensions(space, space.layout, space.layout, sizes)
    fields = dict(zip(space.layout.types, space.layout.multiplicities, strict=True))
    layer = EquivariantLinear(space, 1, 1)
    assert layer_ranks(layer, sizes) == count_terms(fields, fields, space.nodes) == expected
    assert sum(p.numel() for p in layer.parameters()) == sum(expected)


def hidden_fields(nodes):
    axis = st.builds(Axis, st.sampled_from(nodes), st.integers(-1, 2))
    return st.dictionaries(st.lists(axis, min_size=0, max_size=2).map(tuple), st.integers(1, 2), min_size=1, max_size=3)


@given(
    st.lists(st.sampled_from([s for s in Symmetry if s.permutes]), min_size=2, max_size=2),
    hidden_fields(["h1", "h2"]),
    hidden_fields(["h1", "h2"]),
)
def test_completeness_between_hidden_types_of_any_charge(symmetries, in_types, out_types):
    """Charges -1 to 2, both axes on one node included; nodes of 4 neurons, as a partition has up to 4 blocks."""
    space = WeightSpace.mlp([1, 4, 4, 1], symmetries)
    sizes = known_sizes(space)
    source, target = space.layout_of(in_types), space.layout_of(out_types)
    n, m = (sum(x.shape[1:].numel() for x in basis_features(t, sizes).tensors) for t in (source, target))
    assume(n * m <= 700)
    linear, affine = oracle_dimensions(space, source, target, sizes)
    fields = [dict(zip(t.types, t.multiplicities, strict=True)) for t in (source, target)]
    assert count_terms(*fields, space.nodes) == (linear, affine)
    unreached = oracle_unreached(space, source, target)
    if unreached:
        with pytest.raises(ValueError, match="no equivariant map leads to field"):
            EquivariantLinear(space, 1, 1, in_types=in_types, out_types=out_types)
        return
    layer = EquivariantLinear(space, 1, 1, in_types=in_types, out_types=out_types)
    assert layer_ranks(layer, sizes) == (linear, affine)


@settings(max_examples=10)
@given(recurrent())
def test_recurrent_cells_are_counted_right(space):
    """Two axes on one node: partitions with blocks of up to four axes. Small nodes make some of them dependent."""
    sizes = known_sizes(space) | {"h": 4}
    fields = dict(zip(space.layout.types, space.layout.multiplicities, strict=True))
    terms = count_terms(fields, fields, space.nodes)
    assert layer_ranks(EquivariantLinear(space, 1, 1), sizes) == terms


def test_a_layer_with_a_missing_block_is_found_incomplete():
    """The oracle is no rubber stamp: without the terms between first and last weights 12 of 29 dimensions are gone."""
    space = WeightSpace.mlp([2, 3, 2], "tanh")
    layer = EquivariantLinear(space, 1, 1)
    first_layer_only = torch.block_diag(torch.ones(3, 3), torch.ones(2, 2)).bool()
    linear, affine = layer_ranks(layer, known_sizes(space), {"mix.h1+1.weight": first_layer_only})
    assert (linear, affine) == (17, 2)
    assert oracle_dimensions(space, space.layout, space.layout, known_sizes(space)) == (29, 2)


def check_complete(space, first, second, target, sizes):
    """Count, oracle and rank of the layer agree."""
    layouts = [space.layout_of(t) for t in (first, second, target)]
    count = count_bilinear_terms(*map(as_fields, layouts), space.nodes)
    assert count == invariant_dimension(space, layouts[:2], layouts[2], sizes)
    options = {"first_types": first, "second_types": second, "out_types": target, "terms": "all"}
    reached = [count_bilinear_terms(first, second, {t: 1}, space.nodes) for t in layouts[2].types]
    if not all(reached):
        with pytest.raises(ValueError, match="no term leads to field"):
            TensorProduct(space, 1, 1, **options)
        return
    layer = TensorProduct(space, 1, 1, **options)
    assert sum(p.numel() for p in layer.parameters()) == count
    assert bilinear_rank(layer, sizes) == count


@pytest.mark.parametrize("symmetry", [Symmetry.SIGN, Symmetry.SCALE, Symmetry.MONOMIAL, Symmetry.PERMUTATION], ids=str)
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


@given(all_spaces())
def test_standard_terms_are_found_without_looking_at_all_fields(space):
    types = space.layout.types
    everything = [t for f in itertools.product(types, types, types) for t in bilinear_terms(*f, space.nodes)]
    assert standard_terms(types, types, types, space.nodes) == [t for t in everything if t.standard]


def test_deep_spaces_have_few_terms():
    """Linear in depth: only neighbours meet. Every term once, each one balanced."""
    counts = []
    for depth in (3, 4, 5):
        space = WeightSpace.mlp([2, *[8] * depth, 1], "relu")
        types = space.layout.types
        found = [t for f in itertools.product(types, types, types) for t in bilinear_terms(*f, space.nodes)]
        assert len(set(found)) == len(found)
        assert not any(t.imbalance(space.nodes) for t in found)
        counts.append(len(found))
    assert len({b - a for a, b in itertools.pairwise(counts)}) == 1


PERMUTED = (Symmetry.PERMUTATION,)
SHAPES = ["", "s", "g", "go", "gos", "goi", "goo", "got", "gogo", "gogi", "gs", "goti"]


@st.composite
def nested(draw, shapes, inputs, fixed=False):
    """A space of a flat node and groups with two nodes nested in them, one of these a parent itself; and field types.

    Sizes are such that no two partitions look alike. The groups are permuted, or ``fixed``.
    """
    kinds = st.sampled_from([Symmetry.PERMUTATION, *HIDDEN])
    gauges = [draw(st.lists(kinds, min_size=1, max_size=2).map(tuple)) for _ in range(5)]
    sizes = dict.fromkeys("sgoit")
    if fixed:
        gauges[1], sizes["g"] = (Symmetry.FIXED,), draw(st.integers(1, 3))
    parents = {"o": "g", "i": "g", "t": "o"}
    nodes = {name: Node(own, sizes[name], parents.get(name)) for name, own in zip("sgoit", gauges, strict=True)}
    space = WeightSpace(nodes, {"w": (Axis("s"),)})

    def field(shape):
        return tuple(Axis(n, tuple(draw(st.sampled_from([0, 0, 1, -1])) for _ in nodes[n].gauges)) for n in shape)

    def axis(a):
        return a if len(nodes[a.node].gauges) > 1 else Axis(a.node, a.charge[0])

    layouts = []
    for _ in range(inputs + 1):
        drawn = draw(st.lists(st.sampled_from(shapes), min_size=1, max_size=2, unique=True))
        layouts.append(space.layout_of({tuple(map(axis, field(s))): draw(st.integers(1, 2)) for s in drawn}))

    def most(name, charged):
        """Blocks that a partition can have on a node: charged axes lie in blocks of two at least."""

        def matters(axis):
            return axis.node == name and (nodes[name].acting(axis.charge) is not Symmetry.PERMUTATION) is charged

        return sum(max(sum(map(matters, t)) for t in layout.types) for layout in layouts)

    sizes = {name: sizes[name] or max(1, most(name, False) + most(name, True) // 2) for name in nodes}
    return space, layouts, sizes


@pytest.mark.parametrize("fixed", [False, True])
@settings(max_examples=20)
@given(st.data())
def test_linear_maps_are_complete(fixed, data):
    space, (source, target), sizes = data.draw(nested(SHAPES, 1, fixed))
    entries = [sum(_entries(t, m, sizes) for t, m in as_fields(x).items()) for x in (source, target)]
    assume(entries[0] * entries[1] <= 500)
    expected = oracle_dimensions(space, source, target, sizes)
    assert count_terms(as_fields(source), as_fields(target), space.nodes) == expected
    if all(any(count_terms(as_fields(source), {t: 1}, space.nodes)) for t in target.types):
        layer = EquivariantLinear(_sized(space, sizes), 1, 1, in_types=source, out_types=target)
        assert layer_ranks(layer, sizes) == expected


@given(general(max_size=2))
def test_layers_on_parameters_of_any_space_are_complete(space):
    """Small nodes make partitions dependent; that none is missing shows all the same."""
    sizes = known_sizes(space)
    assume(sum(_entries(t, m, sizes) for t, m in as_fields(space.layout).items()) <= 24)
    expected = oracle_dimensions(space, space.layout, space.layout, sizes)
    assert layer_ranks(EquivariantLinear(space, 1, 1), sizes) == expected


@settings(max_examples=20)
@given(nested(["", "s", "g", "go", "goi", "goo", "gs", "got"], 2))
def test_bilinear_maps_are_complete(made):
    space, layouts, sizes = made
    first, second, target = layouts
    entries = [sum(_entries(t, m, sizes) for t, m in as_fields(x).items()) for x in layouts]
    assume(entries[0] * entries[1] * entries[2] <= 500)
    expected = invariant_dimension(space, [first, second], target, sizes)
    fields = list(map(as_fields, layouts))
    assert count_bilinear_terms(*fields, space.nodes) == expected
    if all(count_bilinear_terms(*fields[:2], {t: 1}, space.nodes) for t in target.types):
        types = {"first_types": first, "second_types": second, "out_types": target}
        layer = TensorProduct(_sized(space, sizes), 1, 1, terms="all", **types)
        assert bilinear_rank(layer, sizes) == expected


@pytest.mark.parametrize(
    ("shape", "counts", "flat"),
    [("go", (3, 1), (4, 1)), ("got", (4, 1), (8, 1)), ("goi", (5, 1), (8, 1)), ("gogo", (60, 3), (225, 4))],
)
def test_counts_of_permuted_pairs(shape, counts, flat):
    """The same item, the same head, all different: 3 orbits of pairs of pairs, where two nodes on their own have 4.

    A chain of d nodes: d + 1. Two pairs each: chains of two partitions of four axes, 60 of them.
    """
    parents = {"o": "g", "i": "g", "t": "o"}
    for above, expected in ((parents, counts), ({}, flat)):
        nodes = {name: Node(PERMUTED, 4, above.get(name)) for name in "goit"}
        fields = {tuple(Axis(name, 0) for name in shape): 1}
        assert count_terms(fields, fields, nodes) == expected


def test_every_gauge_counts_on_its_own():
    """A normalised residual stream: gain and shift of the norm +1, what reads them -1, the stream only permuted."""
    nodes = {"s": Node((Symmetry.SCALE, Symmetry.SCALE), 3), "h": Node((Symmetry.SCALE,), 3)}
    gain, read, other = (Axis("s", (1, 0)),), (Axis("h", 1), Axis("s", (-1, 0))), (Axis("h", 1), Axis("s", (0, -1)))
    assert count_terms({gain: 2}, {gain: 1}, nodes) == (2, 0)
    assert count_terms({read: 1, other: 1}, {read: 1, other: 1}, nodes) == (2, 0)
    assert [str(t) for t in bilinear_terms(read, gain, (Axis("h", 1),), nodes)] == ["h+1_s-1+0,s+1+0->h+1:ab,b->a"]
    assert not bilinear_terms(other, gain, (Axis("h", 1),), nodes)


def _entries(field_type, multiplicity, sizes):
    return multiplicity * torch.Size([sizes[a.node] for a in field_type]).numel()


def _sized(space, sizes):
    return WeightSpace({n: node._replace(size=sizes[n]) for n, node in space.nodes.items()}, space.parameters)
