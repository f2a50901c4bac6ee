"""The line between two networks: its ends, its barrier, and what symmetry does to both."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import all_spaces
from torch import Tensor, nn

from nfn_monomial.alignment import barrier, interpolate, mean_measures, mean_of
from nfn_monomial.testing import random_networks


def one(space, seed):
    generator = torch.Generator().manual_seed(seed)
    return {name: t[0, 0] for name, t in random_networks(space, 1, generator=generator).items()}


@given(all_spaces(), st.floats(0, 1))
def test_interpolation_ends_where_it_should_and_is_linear(space, t):
    a, b = one(space, 0), one(space, 1)
    for end, network in ((0, a), (1, b)):
        found = interpolate(a, b, end)
        assert list(found) == list(a)
        assert all(torch.equal(found[name], network[name]) for name in a)
    found = interpolate(a, b, t)
    for name in a:
        torch.testing.assert_close(found[name], a[name] + t * (b[name] - a[name]), rtol=1e-12, atol=1e-12)
        assert found[name].data_ptr() != a[name].data_ptr()


def test_counters_are_those_of_the_first_network_and_statistics_are_mixed():
    torch.manual_seed(0)
    a, b = nn.BatchNorm1d(3).double(), nn.BatchNorm1d(3).double()
    for norm, batches in ((a, 3), (b, 5)):
        for _ in range(batches):
            norm(torch.randn(8, 3, dtype=torch.float64))
    found = interpolate(a.state_dict(), b.state_dict(), 0.25)
    assert found["num_batches_tracked"] == 3
    torch.testing.assert_close(found["running_var"], 0.75 * a.running_var + 0.25 * b.running_var)
    assert not torch.allclose(found["running_var"], a.running_var)


def test_mean_of_several():
    networks = [{"w": torch.tensor([x, 1.0], dtype=torch.float64)} for x in (0.0, 3.0, 9.0)]
    assert mean_of(networks)["w"].tolist() == pytest.approx([4, 1], rel=1e-15)
    assert mean_of(networks, (0.5, 0.5, 0))["w"].tolist() == [1.5, 1]
    assert networks[0]["w"].tolist() == [0, 1]


@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=20), st.floats(-10, 10), st.floats(-10, 10))
def test_a_barrier_is_that_above_the_chord(losses, offset, slope):
    found = barrier(losses)
    assert found >= 0
    n = len(losses) - 1
    highest = max(x - ((1 - i / n) * losses[0] + i / n * losses[-1]) for i, x in enumerate(losses))
    assert found == pytest.approx(max(highest, 0), abs=1e-9)
    tilted = [x + offset + slope * i / n for i, x in enumerate(losses)]
    assert barrier(tilted) == pytest.approx(found, abs=1e-9)
    assert barrier(losses[::-1]) == pytest.approx(found, abs=1e-9)


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Dropout(0.5), nn.Linear(5, 4)).double()


def data(sizes) -> list[tuple[Tensor, Tensor]]:
    torch.manual_seed(1)
    return [(torch.randn(n, 3, dtype=torch.float64), torch.randint(4, (n,))) for n in sizes]


@torch.no_grad()
def test_losses_along_are_those_of_the_networks_on_the_line():
    torch.manual_seed(0)
    module, other = network(), network()
    a = {name: t.clone() for name, t in module.state_dict().items()}
    batches = data([7, 2])
    line = [interpolate(a, other.state_dict(), t / 4) for t in range(5)]
    found = mean_measures(module, line, iter(batches), nn.functional.cross_entropy)
    assert found.shape == (5,)
    assert module.training
    assert all(torch.equal(t, a[name]) for name, t in module.state_dict().items())
    x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
    expected = []
    for t in (0, 0.25, 0.5, 0.75, 1):
        module.load_state_dict(interpolate(a, other.state_dict(), t))
        expected.append(float(nn.functional.cross_entropy(module.eval()(x), y)))
    assert found.tolist() == pytest.approx(expected, rel=1e-12)
    assert max(expected) > min(expected)
