"""The line between two networks, and what REPAIR does to networks on it."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import all_spaces
from torch import Tensor, nn

from nfn_monomial import WeightSpace, fold_batchnorm
from nfn_monomial.alignment import barrier, interpolate, mean_measures, mean_of, repair
from nfn_monomial.errors import InvalidValueError
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
    network = interpolate(a.state_dict(), b.state_dict(), 0.25)
    assert network["num_batches_tracked"] == 3
    torch.testing.assert_close(network["running_var"], 0.75 * a.running_var + 0.25 * b.running_var)
    assert not torch.allclose(network["running_var"], a.running_var)


def test_mean_of_several():
    networks = [{"w": torch.tensor([x, 1.0], dtype=torch.float64)} for x in (0.0, 3.0, 9.0)]
    assert mean_of(networks)["w"].tolist() == pytest.approx([4, 1], rel=1e-15)
    assert mean_of(networks, (0.5, 0.5, 0))["w"].tolist() == [1.5, 1]
    assert networks[0]["w"].tolist() == [0, 1]


@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=20), st.floats(-10, 10), st.floats(-10, 10))
def test_a_barrier_is_that_above_the_chord(losses, offset, slope):
    height = barrier(losses)
    assert height >= 0
    n = len(losses) - 1
    highest = max(x - ((1 - i / n) * losses[0] + i / n * losses[-1]) for i, x in enumerate(losses))
    assert height == pytest.approx(max(highest, 0), abs=1e-9)
    tilted = [x + offset + slope * i / n for i, x in enumerate(losses)]
    assert barrier(tilted) == pytest.approx(height, abs=1e-9)
    assert barrier(losses[::-1]) == pytest.approx(height, abs=1e-9)


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
    measures = mean_measures(module, line, iter(batches), nn.functional.cross_entropy)
    assert measures.shape == (5,)
    assert module.training
    assert all(torch.equal(t, a[name]) for name, t in module.state_dict().items())
    x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
    expected = []
    for t in (0, 0.25, 0.5, 0.75, 1):
        module.load_state_dict(interpolate(a, other.state_dict(), t))
        expected.append(float(nn.functional.cross_entropy(module.eval()(x), y)))
    assert measures.tolist() == pytest.approx(expected, rel=1e-12)
    assert max(expected) > min(expected)


X = torch.randn(40, 2, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(9))


def plain() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Conv2d(4, 6, 3, bias=False), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3),
    ).double()  # fmt: skip


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 4, 3, bias=False), nn.BatchNorm2d(4)
        self.inner, self.inner_norm = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv(x)).relu()
        out: Tensor = self.head((x + self.inner_norm(self.inner(x))).relu().mean((2, 3)))
        return out


def trained(make: Any, seed: int) -> nn.Module:
    """A network whose gains, shifts and statistics are not those of a fresh one."""
    torch.manual_seed(seed)
    module: nn.Module = make().double()
    for p in module.parameters():
        p.data += 0.3 * torch.randn_like(p)
    for _ in range(30):
        module(X)
    return module.eval()


def seen(module: nn.Module, network: Any, names: list[str]) -> dict[str, tuple[Tensor, Tensor]]:
    """Mean and deviation of what layers hand on."""
    found = {}
    for name in names:

        def look(layer: Any, args: Any, out: Tensor, name: str = name) -> None:
            flat = out.movedim(-1 if isinstance(layer, nn.Linear) else 1, 0).flatten(1)
            found[name] = flat.mean(1), flat.std(1, correction=0)

        handle = module.get_submodule(name).register_forward_hook(look)
        torch.func.functional_call(module, dict(network), (X,))
        handle.remove()
    return found


@torch.no_grad()
@pytest.mark.parametrize("make", [plain, Residual, lambda: fold_batchnorm(trained(Residual, 3), X[:2])])
def test_an_unmerged_network_stays_as_it_is(make: Any) -> None:
    module = trained(make, 0)
    state = module.state_dict()
    own = repair(module, state, [state, state], X)
    assert own.keys() == state.keys()
    expected = module(X)
    torch.testing.assert_close(torch.func.functional_call(module, own, (X,)), expected, rtol=1e-10, atol=1e-10)
    # Of running statistics what counts are those of the inputs, which a first repair sets.
    again = repair(module, own, [own], X)
    for name, t in own.items():
        torch.testing.assert_close(again[name], t, rtol=1e-10, atol=1e-10)
        if not any(isinstance(m, nn.BatchNorm2d) for m in module.modules()):
            torch.testing.assert_close(t, state[name], rtol=1e-10, atol=1e-10)


@torch.no_grad()
@pytest.mark.parametrize("t", [0.5, 0.2])
def test_without_norms_preactivations_get_the_mean_of_the_endpoints_statistics(t: float) -> None:
    module, other = trained(plain, 0), trained(plain, 1)
    a, b = ({n: p.clone() for n, p in m.state_dict().items()} for m in (module, other))
    merged = interpolate(a, b, t)
    repaired = repair(module, merged, [a, b], X, (1 - t, t))
    names = ["0", "6"]
    at_a, at_b, at_merged, now = (seen(module, network, names) for network in (a, b, merged, repaired))
    for name in names:
        for i in range(2):  # mean, deviation
            expected = (1 - t) * at_a[name][i] + t * at_b[name][i]
            torch.testing.assert_close(now[name][i], expected, rtol=1e-10, atol=1e-10)
            if (name, i) != ("0", 0):  # what the first layer hands on is linear in its weights, and so its mean
                assert not torch.allclose(at_merged[name][i], expected, rtol=1e-3)
    # No bias, or the network's own output: as before.
    for name in ("2.weight", "8.weight", "8.bias"):
        assert torch.equal(repaired[name], merged[name])
    assert not torch.allclose(repaired["0.weight"], merged["0.weight"])
    assert all(torch.equal(p, a[n]) for n, p in module.state_dict().items())


@torch.no_grad()
def test_batch_norms_get_the_statistics_of_what_enters_them() -> None:
    module, other = trained(Residual, 0), trained(Residual, 1)
    merged = interpolate(module.state_dict(), other.state_dict(), 0.5)
    repaired = repair(module, merged, [module.state_dict(), other.state_dict()], X)
    entering = seen(module, repaired, ["conv", "inner"])
    for name, norm in (("conv", "norm"), ("inner", "inner_norm")):
        torch.testing.assert_close(repaired[f"{norm}.running_mean"], entering[name][0], rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(repaired[f"{norm}.running_var"], entering[name][1] ** 2, rtol=1e-10, atol=1e-10)
        assert not torch.allclose(repaired[f"{norm}.running_var"], merged[f"{norm}.running_var"], rtol=1e-3)
    norms = ["norm", "inner_norm"]
    leaving, *own = (seen(module, network, norms) for network in (repaired, module.state_dict(), other.state_dict()))
    for name in norms:
        for i in range(2):  # mean, deviation
            expected = (own[0][name][i] + own[1][name][i]) / 2
            torch.testing.assert_close(leaving[name][i], expected, rtol=1e-10, atol=1e-10)
        assert torch.equal(repaired[f"{name}.weight"].sign(), merged[f"{name}.weight"].sign())


@torch.no_grad()
@pytest.mark.parametrize("make", [plain, Residual])
def test_the_frame_of_the_endpoints_does_not_matter(make: Any) -> None:
    """Not even one whose rows in front of a norm are multiplied by what its gain undoes for given statistics."""
    module, other = trained(make, 0), trained(make, 1)
    space = WeightSpace.from_module(module, X[:2])
    element = space.sample(generator=torch.Generator().manual_seed(5)).proper()
    ends = [dict(m.state_dict()) for m in (module, other)]
    moved = [network | element.act({n: network[n] for n in space.parameters}) for network in ends]
    repaired = [repair(module, mean_of(networks), networks, X) for networks in (ends, moved)]
    expected, found = (torch.func.functional_call(module, network, (X,)) for network in repaired)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    assert not torch.allclose(expected, module(X), rtol=1e-2)
    if make is plain:
        for name, t in element.act(repaired[0]).items():
            torch.testing.assert_close(repaired[1][name], t, rtol=1e-9, atol=1e-9 * float(t.abs().max()))


@torch.no_grad()
def test_layers_that_cannot_be_repaired_stay() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.twice = nn.Linear(2, 4), nn.Linear(4, 4)
            self.tied, self.last = nn.Linear(4, 4), nn.Linear(4, 1)
            self.tied.weight = self.twice.weight

        def forward(self, x: Tensor) -> Tensor:
            x = self.twice(self.twice(self.first(x).relu()).relu()).relu()
            out: Tensor = self.last(self.tied(x).relu())
            return out

    torch.manual_seed(0)
    module, other = Tied().double(), Tied().double()
    for net in (module, other):
        net.first.weight.data[0] = 0  # a unit that does not vary
    x = torch.randn(30, 2, dtype=torch.float64)
    networks = [dict(net.named_parameters()) for net in (module, other)]
    merged = {n: t.detach() for n, t in mean_of(networks).items()}
    repaired = repair(module, merged, networks, x)
    changed = {name for name in merged if not torch.equal(repaired[name], merged[name])}
    assert changed == {"first.weight", "first.bias"}
    assert bool((repaired["first.weight"][0] == 0).all())
    torch.testing.assert_close(repaired["first.bias"][0], merged["first.bias"][0])


def test_nothing_to_repair_is_an_error() -> None:
    bare = nn.Sequential(nn.Linear(2, 3, bias=False), nn.ReLU(), nn.Linear(3, 1))
    with pytest.raises(InvalidValueError, match="nothing to repair"):
        repair(bare, bare.state_dict(), [bare.state_dict()], torch.randn(4, 2))
