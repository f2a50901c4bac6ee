"""Signs of classes of axes, as products of independent ones."""

import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from nfn_monomial.canonical.charges import NodeGauge
from nfn_monomial.canonical.signs import SignBasis
from nfn_monomial.linear_algebra import Span


@given(st.lists(st.integers(1, 31), unique=True, max_size=8), st.randoms())
def test_any_signs_of_independent_classes_are_those_of_gauges(classes, random):
    basis = SignBasis("node", classes)
    span = Span(2)
    independent = [flips for flips in classes if span.add({i: 1 for i in range(5) if flips >> i & 1})]
    assert [basis.products[flips] for flips in independent] == [1 << i for i in range(basis.rank)]
    signs = torch.tensor([random.choice((-1.0, 1.0)) for _ in independent])
    of_gauges = basis.of_gauges(signs)
    for flips in classes:
        flipped = [of_gauges.get(NodeGauge("node", i), 1.0) for i in range(5) if flips >> i & 1]
        assert float(basis.sign(signs, flips)) == math.prod(map(float, flipped))
