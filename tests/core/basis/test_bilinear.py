"""Bilinear maps: counted against an oracle that knows no partitions, equivariant, and nothing that is not."""

import itertools
import math

import pytest
from bilinear_fields import as_fields, fields
from hypothesis import assume, given
from hypothesis import strategies as st
from oracle import basis_features, invariant_dimension, known_sizes
from ranks import bilinear_rank
from strategies import HIDDEN, all_spaces

from nfn_monomial import Axis, Symmetry, WeightSpace
from nfn_monomial.basis import bilinear_terms, count_bilinear_terms
from nfn_monomial.basis.bilinear import standard_terms
from nfn_monomial.nn.tensor_product import TensorProduct


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
