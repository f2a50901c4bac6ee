import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import all_spaces, general

from nfn_monomial import align
from nfn_monomial.testing import random_element, random_networks


def _network(space, generator):
    return {name: x[0, 0] for name, x in random_networks(space, 1, generator=generator).items()}


def _norm(network):
    return sum(float(x.double().square().sum()) for x in network.values()) ** 0.5


def _distance(a, b):
    return _norm({name: a[name] - b[name] for name in a})


def _sizes(space):
    return {name: node.size or 4 for name, node in space.nodes.items()}


@given(st.one_of(all_spaces(), general()), st.integers(0, 10**6))
def test_moved_networks_are_moved_back(space, seed):
    generator = torch.Generator().manual_seed(seed)
    a = _network(space, generator)
    b = random_element(space, sizes=_sizes(space), generator=generator).act(a)
    found = align(space, a, b)
    assert found.distance <= 1e-8 * _norm(a)
    assert _distance(a, found.element.act(b)) <= 1e-8 * _norm(a)


@given(all_spaces(), st.integers(0, 10**6))
def test_no_network_is_moved_away(space, seed):
    generator = torch.Generator().manual_seed(seed)
    a, b = _network(space, generator), _network(space, generator)
    found = align(space, a, b)
    assert found.distance <= _distance(a, b)
    again = align(space, a, found.aligned)
    assert again.distance <= found.distance * (1 + 1e-12)
