"""Thousands of random elements are seen through, and no two of thousands of networks are taken for one (slow)."""

import pytest
import torch
from fibres import CASES, generic
from torch import nn

from nfn_monomial.fibre import compare_fibres, normal_form

pytestmark = pytest.mark.slow

MANY = 200
NETWORKS = ["ReLU", "chain", "batch norm", "GPT", "Llama, two pairs", "two of them", "patches"]


@pytest.mark.parametrize("name", NETWORKS)
def test_random_elements_are_seen_through(name: str) -> None:
    torch.manual_seed(0)
    module = CASES[name].module()
    form = normal_form(module, CASES[name].inputs())
    for seed in range(MANY):
        state = generic(module, torch.Generator().manual_seed(seed))
        moved = form.sample(state, generator=torch.Generator().manual_seed(MANY + seed))
        assert compare_fibres(form, state, moved).same_function, seed


def test_no_two_networks_are_one() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 5), nn.GELU(), nn.Linear(5, 2))
    form = normal_form(module, torch.randn(5, 4))
    states = [generic(module, torch.Generator().manual_seed(seed)) for seed in range(40)]
    for i, state in enumerate(states):
        assert not any(compare_fibres(form, state, other).same_function for other in states[:i])
