"""The paper's networks on every kind of weight space: invariant, equivariant."""

import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from strategies import all_spaces

from nfn_monomial import MonomialNFN
from nfn_monomial.models.monomial import EquivariantNFN
from nfn_monomial.testing import assert_equivariant, assert_invariant, random_networks

seeds = st.integers(0, 10**6)


widths = st.lists(st.integers(1, 3), min_size=1, max_size=3)


@given(all_spaces(), widths, st.sampled_from(["full", "factored"]), seeds)
def test_the_invariant_network(space, widths, io, seed):
    torch.manual_seed(seed)
    net = MonomialNFN(space, widths, hidden=16, io=io).double()
    x = random_networks(space, 4, generator=torch.Generator().manual_seed(seed))
    out = net(x).detach()
    assert out.shape == (4, 1)
    assume(float(out.std(0).max()) > 1e-4)
    assert_invariant(net, space, inputs=x, trials=1, seed=seed)


@given(all_spaces(), widths, seeds)
def test_the_equivariant_network(space, widths, seed):
    torch.manual_seed(seed)
    net = EquivariantNFN(space, widths[1:], init_scale=1.0).double()
    x = space.pack(random_networks(space, 3, generator=torch.Generator().manual_seed(seed)))
    assert_equivariant(net, space, inputs=x, trials=1, seed=seed)


@settings(max_examples=10)
@given(all_spaces(), st.sampled_from(["full", "factored"]), seeds)
def test_every_parameter_has_a_gradient(space, io, seed):
    """As distributed training asks; it may be 0 where a field of one entry is divided by its own size."""
    torch.manual_seed(seed)
    networks = random_networks(space, 4, generator=torch.Generator().manual_seed(seed))
    for net in (MonomialNFN(space, (3, 2), hidden=8, io=io).double(), EquivariantNFN(space, (3,), io=io).double()):
        out = net(networks)
        tensors = [out] if isinstance(out, torch.Tensor) else out.tensors
        sum(t.square().sum() for t in tensors).backward()
        assert not [name for name, p in net.named_parameters() if p.grad is None]
