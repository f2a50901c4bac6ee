"""Augmentation: other weights in training that compute the same, and nothing at all in evaluation."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from orbits import networks
from strategies import all_spaces
from torch import nn

from nfn_monomial import Canonicalize, InvariantPool, InvariantStatistics, WeightSpace, balance
from nfn_monomial.canonical import absorb_omega, canonical_phase
from nfn_monomial.nn import Augment

RELU = WeightSpace.mlp([2, 6, 5, 1], "relu")
SIREN = WeightSpace.mlp([2, 6, 5, 1], "sin")


@given(all_spaces(), st.integers(0, 10**6))
def test_moves_along_the_orbit(space, seed):
    torch.manual_seed(seed)
    x = space.pack(networks(space, 4, 1, seed))
    invariants = nn.Sequential(Canonicalize(space, 1).double(), InvariantPool(space, 1))
    augment = Augment(space, scale_range=(0.1, 10.0))
    for moved in (augment(x), space.pack(augment(space.unpack(x)))):
        torch.testing.assert_close(invariants(moved), invariants(x), rtol=1e-10, atol=1e-10)


def test_every_network_and_every_call_moves_anew():
    x = {name: t[:1].expand(3, *t.shape[1:]) for name, t in networks(RELU).items()}
    torch.manual_seed(0)
    augment = Augment(RELU, scale_range=(1.0, 100.0))
    first, second = augment(x), augment(x)
    for a, b in ((first["weight.1"][0], first["weight.1"][1]), (first["weight.1"], second["weight.1"])):
        assert not torch.allclose(a, b, rtol=0.1)
    assert float(first["bias.0"].abs().sum() / x["bias.0"].abs().sum()) > 10
    torch.manual_seed(0)
    assert torch.equal(augment(x)["weight.1"], first["weight.1"])


def test_identity_in_evaluation():
    x = networks(RELU)
    features = RELU.pack(x)
    augment = Augment(RELU, noise=0.1).eval()
    assert augment(x) is x
    assert augment(features) is features
    assert not augment.state_dict()
    moved = torch.compile(Augment(SIREN, phases=1), backend="eager")(networks(SIREN))
    assert moved["weight.1"].shape == (3, 1, 5, 6)


def test_noise_is_relative_to_each_tensor():
    torch.manual_seed(0)
    space = WeightSpace.mlp([2, 30, 40, 1], "gelu")
    x = networks(space, 50, 2, dtype=torch.float32)
    scales = torch.logspace(-15, 15, 50)
    x = {name: t * scales.view(-1, *[1] * (t.ndim - 1)) * (1 + i) for i, (name, t) in enumerate(x.items())}
    # permuting neurons changes no sum
    quiet, noisy = Augment(space)(x), Augment(space, noise=0.5)(x)
    for name, t in x.items():
        if t[0, 0].numel() >= 30:
            power = t.double().square().flatten(2).sum(-1)
            torch.testing.assert_close(quiet[name].double().square().flatten(2).sum(-1), power, rtol=1e-5, atol=0)
            ratio = noisy[name].double().square().flatten(2).sum(-1) / power
            assert abs(float(ratio.mean()) - 1.25) < 0.1
    assert all(t.dtype == torch.float32 for t in noisy.values())


def test_phases_of_sine_networks():
    torch.manual_seed(0)
    x = absorb_omega(networks(SIREN), SIREN, 3.0)
    augment = Augment(SIREN, phases=4)
    moved = augment(x)
    assert float(moved["bias.0"].abs().max()) > 9  # phases are there: without them signs and places change only
    inputs = torch.randn(3, 9, 2, dtype=torch.float64)

    def run(tensors):
        h = inputs
        for i in range(3):
            h = h @ tensors[f"weight.{i}"][:, 0].mT + tensors[f"bias.{i}"]
            h = h.sin() if i < 2 else h
        return h

    torch.testing.assert_close(run(moved), run(x), rtol=1e-10, atol=1e-10)
    form = InvariantStatistics(SIREN)
    expected = form(canonical_phase(x, SIREN))
    torch.testing.assert_close(form(canonical_phase(moved, SIREN)), expected, rtol=1e-8, atol=1e-8)
    assert not torch.allclose(form(balance(moved, SIREN)[0]), form(balance(x, SIREN)[0]), rtol=0.1)
    mixed = WeightSpace.mlp([2, 6, 5, 1], ["sin", "tanh"])
    some = Augment(mixed, phases=9, layers=["h1"])(networks(mixed))
    assert float(some["bias.0"].abs().max()) > 9
    assert float(some["bias.1"].abs().max()) < 9
