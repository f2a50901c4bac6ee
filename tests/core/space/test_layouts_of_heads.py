"""Neurons nested in neurons that stay, and rows side by side in every head: all that reads spaces takes them."""

import pytest
import torch
from every_layer import EXPERTS, of_heads

from nfn_monomial import (
    Symmetry,
    WeightSpace,
    compare,
)
from nfn_monomial.adapters.pyg import act, from_graph, to_graph
from nfn_monomial.alignment import align
from nfn_monomial.canonical import balance
from nfn_monomial.models import MessagePassingNFN
from nfn_monomial.testing import random_networks

SPACES = {"experts": EXPERTS} | {f"{s} heads": of_heads(s) for s in (Symmetry.PERMUTATION, Symmetry.FIXED)}


@pytest.mark.parametrize("name", SPACES)
def test_groups_act_and_are_found_again(name):
    space, generator = SPACES[name], torch.Generator().manual_seed(1)
    assert WeightSpace.from_json(space.to_json()) == space
    tensors, element = random_networks(space, 2, 1), space.sample(2, generator=generator).proper()
    moved = element.act(tensors)
    packed, graph = space.pack(tensors), to_graph(tensors, space)
    for found in (space.unpack(element.act(packed)), from_graph(act(graph, element), space)):
        assert all(torch.allclose(found[key], x, rtol=1e-12) for key, x in moved.items())
    assert all(torch.allclose(x, tensors[key], rtol=1e-12) for key, x in element.inverse().act(moved).items())
    for one, other in zip(*(space.pack(balance(x, space)[0]).tensors for x in (tensors, moved)), strict=True):
        assert torch.allclose(one.abs().sum(), other.abs().sum(), rtol=1e-9)
    single = {key: x[0, 0] for key, x in tensors.items()}
    other = space.sample(generator=generator).proper().act(single)
    assert compare(space, single, other).same_function
    assert max(float((x - single[key]).abs().max()) for key, x in align(space, single, other).aligned.items()) < 1e-9


def test_what_stays_is_not_moved():
    """The identity alone acts on experts; neurons stay in theirs, unlike in a node of their own for all of them."""
    element = EXPERTS.sample(generator=torch.Generator().manual_seed(0)).proper()
    assert "expert" not in element.matrices
    assert torch.equal(element.matrices["h"].permutation // 4, torch.arange(12) // 4)
    assert EXPERTS.group_dimension == 3 * 4
    networks = random_networks(EXPERTS, 1, 1)
    networks = {key: x[0, 0] for key, x in networks.items()}
    swapped = networks | {key: networks[key].flip(0) for key in ("router", "up", "up_bias", "down")}
    assert not compare(EXPERTS, networks, swapped).same_function
    model = MessagePassingNFN(EXPERTS, 4, 2, hidden=8).double()  # layers on fields may see no difference, this one does
    one, other = (model({key: x[None, None] for key, x in n.items()}) for n in (networks, swapped))
    assert float((one - other).detach().abs().max()) > 1e-9
