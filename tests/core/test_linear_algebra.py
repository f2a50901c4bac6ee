"""Kernels over the integers and GF(2), against brute force and rank."""

import itertools
from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nfn_monomial.linear_algebra import Span, kernel, shortened

SIZE = 5
SYSTEMS = st.lists(st.dictionaries(st.integers(0, SIZE - 1), st.integers(-3, 3)), max_size=6)


def dense(vectors, size: int = SIZE) -> np.ndarray:
    return np.array([[float(v.get(u, 0)) for u in range(size)] for v in vectors]).reshape(-1, size)


@given(SYSTEMS)
def test_the_kernel_is_all_integer_solutions(equations):
    basis = kernel(equations, range(SIZE))
    system, found = dense(equations), dense(basis)
    assert not (system @ found.T).any()
    rank = np.linalg.matrix_rank(system) if len(system) else 0
    assert len(basis) == SIZE - rank
    # every small solution is a whole combination of the basis
    for vector in itertools.product((-1, 0, 1, 2), repeat=SIZE) if basis else ():
        if not (system @ np.array(vector, float)).any():
            coordinates = np.linalg.lstsq(found.T, np.array(vector, float), rcond=None)[0]
            assert np.allclose(coordinates, coordinates.round(), atol=1e-6)


@given(SYSTEMS)
def test_the_kernel_modulo_2_is_all_solutions(equations):
    basis = kernel(equations, range(SIZE), 2)
    solutions = {
        bits
        for bits in itertools.product((0, 1), repeat=SIZE)
        if all(sum(q * bits[u] for u, q in e.items()) % 2 == 0 for e in equations)
    }
    spanned = {
        tuple(sum(c * v.get(u, 0) for c, v in zip(choice, basis, strict=True)) % 2 for u in range(SIZE))
        for choice in itertools.product((0, 1), repeat=len(basis))
    }
    assert spanned == solutions
    assert 2 ** len(basis) == len(solutions)


def test_fractions_and_unknowns_of_others():
    assert kernel([{0: Fraction(1, 2), 1: -1, 9: 5}], [0, 1]) == [{0: 2, 1: 1}]


@given(st.lists(st.dictionaries(st.integers(0, 3), st.integers(-3, 3)), max_size=6), st.sampled_from([0, 2]))
def test_a_span_counts_the_rank(vectors, modulus):
    span = Span(modulus)
    added = [v for v in vectors if span.add(v)]
    if not modulus:
        assert len(added) == (np.linalg.matrix_rank(dense(vectors, 4)) if vectors else 0)
    assert not any(span.add(v) for v in vectors)


@given(SYSTEMS, st.sampled_from([0, 2]))
def test_a_shorter_basis_spans_the_same(equations, modulus):
    basis = kernel(equations, range(SIZE), modulus)
    short = shortened(basis, modulus)
    span = Span(modulus)
    assert all(span.add(v) for v in short)
    assert not any(span.add(v) for v in basis)
    assert sum(abs(q) for v in short for q in v.values()) <= sum(abs(q) for v in basis for q in v.values())


def test_a_long_chain_is_solved_by_substitution():
    size = 3000
    assert kernel([{u: 1, u + 1: -1} for u in range(size - 1)], range(size)) == [dict.fromkeys(range(size), 1)]
