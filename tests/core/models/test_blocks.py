"""Blocks computed again in backward: the same outputs and gradients, less memory."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import all_spaces
from torch import nn

from nfn_monomial import EquivariantLinear, MonomialNFN, WeightSpace
from nfn_monomial.models import (
    EquivariantNFN,
    MessagePassingNFN,
    micro_batches,
    recompute_blocks,
)
from nfn_monomial.models.blocks import Blocks
from nfn_monomial.nn import Augment
from nfn_monomial.testing import random_networks

SPACE = WeightSpace.mlp([2, 5, 4, 1], "relu")


def results(model, networks, seed=0):
    """Outputs, gradients by inputs and parameters."""
    torch.manual_seed(seed)
    x = {name: t.clone().requires_grad_() for name, t in networks.items()}
    out = model(x)
    tensors = out.tensors if hasattr(out, "tensors") else (out,)
    sum(t.square().sum() for t in tensors).backward()
    return [*tensors, *(t.grad for t in x.values()), *(p.grad for p in model.parameters() if p.grad is not None)]


def assert_same(model, networks):
    twin = copy.deepcopy(model)
    assert recompute_blocks(twin) == 1
    assert twin.state_dict().keys() == model.state_dict().keys()
    for kept, again in zip(results(model, networks), results(twin, networks), strict=True):
        assert torch.equal(kept, again)
    assert recompute_blocks(twin, recompute=False) == 1
    assert not any(module.recompute for module in twin.modules() if isinstance(module, Blocks))


@given(all_spaces(), st.integers(1, 3), st.integers(0, 10**6))
def test_message_passing(space, layers, seed):
    torch.manual_seed(seed)
    networks = random_networks(space, 2, generator=torch.Generator().manual_seed(seed))
    assert_same(MessagePassingNFN(space, 2, layers, hidden=4, dropout=0.3).double(), networks)


class Noisy(nn.Module):
    """Draws at random and counts its calls."""

    calls = 0

    def forward(self, x):
        self.calls += 1
        return x.map(lambda t: torch.nn.functional.dropout(t, 0.5))


def test_a_block_that_draws_draws_the_same_again():
    torch.manual_seed(0)
    noisy = Noisy()
    layers = [Augment(SPACE), EquivariantLinear(SPACE, 1, 3), noisy, EquivariantLinear(SPACE, 3, 1)]
    model = Blocks(nn.Sequential(*layers[:2]), nn.Sequential(*layers[2:])).double()
    x = SPACE.pack(random_networks(SPACE, 2))
    x.tensors[0].requires_grad_()

    def gradient():
        torch.manual_seed(1)
        return torch.autograd.grad(sum(t.square().sum() for t in model(x).tensors), x.tensors[0])[0]

    kept = gradient()
    assert noisy.calls == 1
    recompute_blocks(model)
    assert torch.equal(gradient(), kept)
    assert noisy.calls == 3, "once more in backward"
    with torch.no_grad():
        model(x)
    assert noisy.calls == 4


def saved_bytes(model, networks):
    """Of all that is kept for backward."""
    found = {}

    def pack(t):
        found[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        out = model(networks)
    assert out.requires_grad
    return sum(found.values())


def test_less_is_kept():
    model = MessagePassingNFN(SPACE, 8, 6).double()
    networks = random_networks(SPACE, 4)
    kept = saved_bytes(model, networks)
    recompute_blocks(model)
    assert saved_bytes(model, networks) < 0.5 * kept


@pytest.mark.parametrize(("kind", "packed"), [(MonomialNFN, False), (EquivariantNFN, True)])
def test_parts_of_a_batch_have_the_gradients_of_all_of_it(kind, packed):
    torch.manual_seed(0)
    model, networks = kind(SPACE).double(), random_networks(SPACE, 7)
    targets = torch.randn(7, 1, dtype=torch.float64)

    def loss(outputs, part):
        rows = outputs if isinstance(outputs, torch.Tensor) else torch.cat([t.flatten(1) for t in outputs.tensors], 1)
        return (rows - targets[part]).square().mean()

    given_networks = SPACE.pack(networks) if packed else networks
    whole = loss(model(given_networks), slice(None))
    whole.backward()
    parameters = [p for p in model.parameters() if p.grad is not None]
    expected = [p.grad.clone() for p in parameters]
    for size in (1, 3, 7, 100):
        model.zero_grad()
        torch.testing.assert_close(micro_batches(model, loss, given_networks, size).double(), whole.detach())
        top = max(float(g.abs().max()) for g in expected)
        for p, gradient in zip(parameters, expected, strict=True):
            torch.testing.assert_close(p.grad, gradient, rtol=1e-10, atol=1e-12 * top)
