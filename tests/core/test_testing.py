"""The checkers themselves: they accept what is right, and fail on what is wrong, naming it."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import all_spaces
from torch import nn

from nfn_monomial import WeightSpace
from nfn_monomial.testing import (
    assert_equivariant,
    assert_function_preserved,
    assert_invariant,
    random_element,
)

SPACE = WeightSpace.mlp([2, 4, 3, 1], "relu")


@given(all_spaces(), st.sampled_from([None, 4]), st.integers(0, 10**6))
def test_random_elements_are_never_the_identity_on_any_node(space, batch, seed):
    g = random_element(space, batch, generator=torch.Generator().manual_seed(seed))
    for name, m in g.matrices.items():
        node = space.nodes[name]
        assert node.size == 1 or not bool((m.permutation == torch.arange(m.size)).all(-1).any())
        for symmetry, scale in zip(node.gauges, m.scales, strict=True):
            assert not symmetry.scales or bool((scale.abs() != 1).all())
            if symmetry.flips:
                assert bool((scale < 0).any(-1).all())
                assert m.size == 1 or bool((scale > 0).any(-1).all())


def test_nan_and_zero_outputs_are_failures():
    with pytest.raises(AssertionError, match="proves nothing"):
        assert_equivariant(lambda x: x * 0.0, SPACE)
    with pytest.raises(AssertionError, match="nan"):
        assert_equivariant(lambda x: x * float("nan"), SPACE)
    with pytest.raises(AssertionError, match="hardly differs between networks"):
        assert_invariant(lambda x: x.tensors[0].new_ones(4, 2), SPACE)


def test_invariance_is_measured_against_the_spread_over_networks():
    """A constant plus a little is not invariant because the constant is large."""

    def nearly_constant(x):
        return 1.0 + 1e-4 * torch.cat([t.flatten(1).sum(1, keepdim=True) for t in x.tensors], 1)

    with pytest.raises(AssertionError, match="not invariant"):
        assert_invariant(nearly_constant, SPACE)


def mlp(activation):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 5), activation, nn.Linear(5, 4), activation, nn.Linear(4, 3)).double()


def space_of(symmetry):
    names = [(f"{i}.weight", f"{i}.bias") for i in (0, 2, 4)]
    return WeightSpace.sequential([2, 5, 4, 3], [(), (), ()], symmetry, names=names)


@pytest.mark.parametrize(
    ("activation", "good", "bad"),
    [
        (nn.ReLU(), "scale", "sign"),
        (nn.Tanh(), "sign", "scale"),
        (nn.GELU(), "permutation", "scale"),
        (nn.Identity(), "monomial", None),
    ],
)
def test_the_function_of_a_torch_network_is_preserved_by_the_right_group_only(activation, good, bad):
    x = torch.randn(7, 2, dtype=torch.float64)
    assert_function_preserved(mlp(activation), space_of(good), x)
    if bad:
        with pytest.raises(AssertionError, match="changes the network's function"):
            assert_function_preserved(mlp(activation), space_of(bad), x)
