"""What is no error: dtypes under autocast, elements of a smaller group; and nothing holds on to a caller's tensors."""

import gc
import weakref

import torch

from nfn_monomial import EquivariantLinear, GroupElement, WeightSpace
from nfn_monomial.testing import random_networks

RELU = WeightSpace.mlp([2, 3, 2], "relu")
NETS = random_networks(RELU, 2, generator=torch.Generator().manual_seed(0))
PACKED = RELU.pack(NETS)


def test_autocast_sees_to_dtypes_itself():
    with torch.autocast("cpu", torch.bfloat16):
        assert EquivariantLinear(RELU, 1, 1)(PACKED.map(torch.Tensor.bfloat16)).tensors[0].dtype is torch.bfloat16


def test_elements_of_a_smaller_group_act_on_features():
    for smaller in (RELU.restricted("permutation"), RELU.uncharged()):
        element = RELU.restricted("permutation").sample(2, generator=torch.Generator().manual_seed(0))
        found = GroupElement(smaller, element.matrices).act(PACKED)
        expected = RELU.pack(element.act(NETS))
        assert all(torch.equal(a, b) for a, b in zip(found.tensors, expected.tensors, strict=True))


def test_what_calls_is_freed_when_it_returns():
    def calls() -> weakref.ref[torch.Tensor]:
        large = torch.ones(3)
        RELU.sample(2, generator=torch.Generator())
        return weakref.ref(large)

    gc.disable()
    try:
        assert calls()() is None
    finally:
        gc.enable()
