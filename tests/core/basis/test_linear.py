"""Completeness: the layer has every equivariant map, counted against a numerical oracle that knows no partitions."""

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from oracle import basis_features, known_sizes, oracle_dimensions
from ranks import layer_ranks
from strategies import recurrent

from nfn_monomial import Axis, EquivariantLinear, Symmetry, WeightSpace
from nfn_monomial.basis import count_terms
from nfn_monomial.space import Layout


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
