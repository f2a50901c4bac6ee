"""Dimensions that are cut and factored where several indices run over one class, or where nothing but zeros do."""

import torch
import torch.nn.functional as F
from derived_groups import Of, error, permutations, scalings, signs
from torch import nn

from nfn_monomial.space.trace import derive

IMAGE, VECTOR = torch.randn(2, 2, 4, 4), torch.randn(5, 4)


def test_channels_beside_others_of_their_node_are_cut_into_groups():
    def function(s, x):
        first = s.a(x)
        both = torch.cat([first + s.b(first).relu(), first], 1)
        return s.c(F.silu(s.norm(both))).mean((2, 3))

    module = Of(
        function, a=nn.Conv2d(2, 8, 1), b=nn.Conv2d(8, 8, 1), norm=nn.GroupNorm(4, 16), c=nn.Conv2d(16, 3, 1)
    )  # fmt: skip
    found = derive(module, IMAGE)
    assert permutations(found) == ["2", "4"]
    assert error(module, found, (IMAGE,)) < 1e-9


def test_both_sides_of_an_outer_product_are_cut():
    def function(s, x):
        h = s.a(x)
        pairs = (h[:, :, None] * h[:, None, :]).view(5, 36).view(5, 2, 3, 2, 3)
        return s.b(pairs.sum(1).flatten(1).relu())

    module = Of(function, a=nn.Linear(4, 6), b=nn.Linear(18, 3))
    found = derive(module, VECTOR)
    assert (scalings(found), permutations(found)) == (3, ["2", "3"])
    assert error(module, found, (VECTOR,)) < 1e-9


def test_zeros_between_biases_cost_keys_nothing():
    def function(s, x):
        bias = torch.cat([s.q, torch.zeros_like(s.q), s.v])
        q, k, v = F.linear(x, s.weight, bias).view(5, 3, 2, 3).unbind(1)
        return s.out(((q @ k.mT).softmax(-1) @ v).flatten(1))

    module = Of(
        function, q=nn.Parameter(torch.randn(6)), v=nn.Parameter(torch.randn(6)),
        weight=nn.Parameter(torch.randn(18, 4)), out=nn.Linear(6, 3),
    )  # fmt: skip
    found = derive(module, VECTOR)
    assert (scalings(found), permutations(found), signs(found)) == (6, ["2", "2", "3", "3"], 6)
    assert error(module, found, (VECTOR,)) < 1e-9
