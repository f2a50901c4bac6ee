"""P-values of kinship: never too small for networks whose neurons are in any order, and tiny for relatives."""

import math
from collections.abc import Mapping

import pytest
import torch
from torch import Tensor, nn

from nfn_monomial import WeightSpace
from nfn_monomial.alignment import kinship, kinships
from nfn_monomial.alignment.kinship import partnership
from nfn_monomial.alignment.outputs import p_value_of_partners
from nfn_monomial.benchmarks.data.architectures.transformers import Transformer


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.inner = nn.Conv2d(2, 9, 3), nn.BatchNorm2d(9), nn.Conv2d(9, 7, 1)
        self.head = nn.Linear(7, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.inner(self.norm(self.conv(x)).relu()).tanh().mean((2, 3)))
        return out


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.RNN(3, 8, batch_first=True), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.cell(x)[0][:, -1])
        return out


SPACES = {
    "relu": WeightSpace.mlp([5, 16, 12, 3], "relu"),
    "one node": WeightSpace.mlp([4, 9, 2], "tanh"),
    "batch norm": WeightSpace.from_module(Normed(), torch.randn(2, 2, 5, 5)),
    "transformer": Transformer(1, 4, 2, 8, (2, 3), 4, (6, 5), ("gelu", "relu"), 3).space,
    "recurrent": WeightSpace.from_module(Recurrent(), torch.randn(2, 4, 3)),
}
Network = Mapping[str, Tensor]


def drawn(space: WeightSpace, seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {n: torch.randn(s, dtype=torch.float64, generator=generator) for n, s in space.shapes().items()}


def near(network: Network, share: float, seed: int = 1) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {n: t + share * torch.randn(t.shape, dtype=t.dtype, generator=generator) for n, t in network.items()}


def require_valid(values: Tensor) -> None:
    """No level is reached more often than it may be, by more than four deviations."""
    for level in (0.01, 0.03, 0.1, 0.3, 0.6):
        allowed = level + 4 * math.sqrt(level * (1 - level) / len(values))
        assert float((values <= level).double().mean()) <= allowed


@pytest.mark.parametrize(
    ("name", "doubled"), [*((name, False) for name in SPACES), ("relu", True), ("recurrent", True)]
)
def test_orders_drawn_at_random_have_p_values_that_are_never_too_small(name: str, doubled: bool) -> None:
    space, count = SPACES[name], 150 if name == "transformer" else 300
    plain = space.restricted("permutation")
    a = drawn(space, 0)
    if doubled:
        # Neurons of the same weights, and some with none.
        first = plain.sample(generator=torch.Generator().manual_seed(5)).proper().act(a)
        a = {n: torch.where((t > 1) | (first[n] > 1), 1.0, 0.0).double() for n, t in a.items()}
    b = near(a, 0.0 if doubled else 0.1)
    generator = torch.Generator().manual_seed(2)
    values = [kinship(space, a, plain.sample(generator=generator).act(b), draws=99).p_value for _ in range(count)]
    require_valid(torch.tensor(values))
    if not doubled and name == "relu":
        shares = torch.tensor(values).sort().values - torch.arange(1, count + 1) / count
        assert shares.abs().max() < 1.63 / count**0.5, "uniform, by Kolmogorov and Smirnov"


@pytest.mark.parametrize("name", SPACES)
def test_independent_weights_are_no_relatives_and_changed_ones_are(name: str) -> None:
    space = SPACES[name]
    networks = [drawn(space, seed) for seed in range(24)]
    values = kinships(space, networks, draws=199)
    assert torch.equal(values, values.T)
    assert torch.equal(values.diagonal(), torch.ones(24, dtype=torch.float64))
    require_valid(values[0::2, 1::2].diagonal())
    kin = kinship(space, networks[0], near(networks[0], 0.2))
    assert kin.p_value < 1e-3
    assert kin.in_place > 2 * kin.expected
    assert all(node.likeness > 0.6 for node in kin.nodes.values())
    pruned = {n: t * (t.abs() > t.abs().median()) for n, t in networks[0].items()}
    assert kinship(space, networks[0], pruned).p_value < 1e-2


def test_p_values_are_as_small_as_the_count_of_neurons_allows() -> None:
    space = WeightSpace.mlp([20, 30, 30, 5], "relu")
    a = drawn(space, 0)
    kin = kinship(space, a, near(a, 0.1), draws=19)
    assert (kin.in_place, kin.neurons, kin.expected) == (60, 60, 2)
    assert kin.p_value == pytest.approx(1000 * 2.0**60 / math.factorial(60), rel=1e-9)
    wide = WeightSpace.mlp([20, 200, 5], "relu")
    b = drawn(wide, 0)
    assert kinship(wide, b, b, draws=19).p_value == 1e-300


def test_what_moves_both_networks_alike_changes_nothing() -> None:
    space = SPACES["transformer"]
    a = drawn(space, 0)
    b = near(a, 1.0)
    element = space.restricted("permutation").sample(generator=torch.Generator().manual_seed(3))
    one, other = (kinship(space, *pair) for pair in ((a, b), (element.act(a), element.act(b))))
    for name, node in one.nodes.items():
        assert node.likeness == pytest.approx(other.nodes[name].likeness, rel=1e-9)
        assert (node.in_place, node.neurons) == (other.nodes[name].in_place, other.nodes[name].neurons)


def test_scales_do_not_hide_relatives() -> None:
    space = WeightSpace.mlp([8, 24, 24, 4], "relu")
    a = drawn(space, 0)
    moved = space.sample(scale_range=(0.1, 10), generator=torch.Generator().manual_seed(0))
    for name, matrix in moved.matrices.items():
        moved.matrices[name] = type(matrix).diagonal(matrix.scales)
    assert kinship(space, a, moved.act(a)).p_value < 1e-10


def test_networks_without_an_order_have_no_test() -> None:
    for space in (WeightSpace.mlp([4, 3], "relu"), WeightSpace.mlp([4, 1, 3], "relu")):
        kin = kinship(space, drawn(space, 0), drawn(space, 0))
        assert (kin.p_value, kin.nodes, kin.neurons) == (1.0, {}, 0)
        assert kinships(space, [drawn(space, 0)] * 2).tolist() == [[1, 1], [1, 1]]


class Placed(nn.Module):
    """What it adds to its stream is a table that is not learned; it reads the stream by one matrix, so scales share
    a node of size 1.
    """

    def __init__(self, frozen: bool) -> None:
        super().__init__()
        table = torch.outer(torch.arange(30), torch.arange(1, 13)).double().sin().float()
        if frozen:
            self.table = nn.Parameter(table, requires_grad=False)
        else:
            self.register_buffer("table", table)
        self.enter, self.norm, self.head = nn.Linear(5, 12), nn.LayerNorm(12), nn.Linear(12, 2)
        self.up, self.down = nn.Linear(12, 20), nn.Linear(20, 12)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x) + self.table
        out: Tensor = self.head(x + self.down(self.up(self.norm(x)).tanh()))
        return out


@pytest.mark.parametrize("frozen", [False, True])
def test_what_is_not_learned_gives_neurons_their_places(frozen: bool) -> None:
    module = Placed(frozen)
    space = WeightSpace.from_module(module, torch.randn(2, 30, 5))
    table = module.table.detach().double()
    a, b, c = (drawn(space, i) | {"table": table} for i in range(3))
    assert kinship(space, a, b).p_value < 2e-3  # who does not say so is led astray
    given = {"table": table.float()}
    kin = kinship(space, *(network | {"table": table.bfloat16()} for network in (a, b)), given=given)
    assert kin.p_value > 0.01
    assert [node.neurons for node in kin.nodes.values()] == [20]
    assert kinship(space, a, near(a, 0.5) | {"table": table}, given={"table": table}).p_value < 1e-9
    given = {"table": table}
    assert (kinships(space, [a, b, c], given=given) > 0.01).all()
    learned = kinship(space, a, near(a, 0.5), given=given)
    assert [node.neurons for node in learned.nodes.values()] == [12, 20]


def test_equal_neurons_are_nobody_in_particular() -> None:
    space = SPACES["relu"]
    zeros = {n: torch.zeros(s, dtype=torch.float64) for n, s in space.shapes().items()}
    ones = {n: torch.ones(s, dtype=torch.float64) for n, s in space.shapes().items()}
    for network in (zeros, ones):
        kin = kinship(space, network, network)
        assert (kin.p_value, kin.in_place) == (1.0, 0)


def test_partners_are_found_in_any_order_and_at_any_scale() -> None:
    assert partnership(torch.zeros(3, 9), torch.zeros(3, 9)) is None
    half = torch.randn(6, 100, generator=torch.Generator().manual_seed(0))
    moved = half[torch.randperm(6)] * torch.tensor([1.0, -2, 0.5, 3, -1, 9])[:, None]
    assert partnership(half, moved) == pytest.approx(1.0)
    assert partnership(half, torch.cat([half[:3], torch.zeros(3, 100)])) == pytest.approx(0.5)


def test_of_networks_that_are_trained_apart_each_pair_is_as_likely_to_be_the_nearest() -> None:
    torch.manual_seed(0)
    module, x = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 4)).double(), torch.randn(50, 6).double()
    space = WeightSpace.from_module(module, x)
    networks = [drawn(space, seed) for seed in range(7)]
    values = []
    for i in range(7):
        for j in range(i):
            rest = [network for k, network in enumerate(networks) if k not in (i, j)]
            values.append(p_value_of_partners(space, module, x, [networks[i], networks[j], *rest]))
    assert values.count(None) == 0
    assert sorted(values) == pytest.approx([k / 21 for k in range(1, 22)])  # type: ignore[type-var]
    moved = space.sample(generator=torch.Generator().manual_seed(0)).act(near(networks[0], 0.1))
    assert p_value_of_partners(space, module, x, [networks[0], moved, *networks[1:]]) == pytest.approx(1 / 28)
    assert p_value_of_partners(space, module, x[:4], networks) is None
