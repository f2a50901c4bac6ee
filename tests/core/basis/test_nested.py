"""Nested nodes and several gauges: the bases against the numerical oracle, which knows the group only."""

import pytest
import torch
from bilinear_fields import as_fields
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from oracle import invariant_dimension, known_sizes, oracle_dimensions
from ranks import bilinear_rank, layer_ranks
from strategies import HIDDEN, general

from nfn_monomial import Axis, EquivariantLinear, Symmetry, TensorProduct, WeightSpace
from nfn_monomial.basis import bilinear_terms, count_bilinear_terms, count_terms
from nfn_monomial.space import Node

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
