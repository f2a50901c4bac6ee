"""Starts that have an order are seen in the weights, wherever they come from; children of usual ones stay kin."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from nfn_monomial import WeightSpace
from nfn_monomial.alignment import kinship, kinships

N = 32
Starts = dict[str, Tensor]


def matrix(entry: Callable[[Tensor, Tensor], Tensor], rows: int = N, columns: int = N) -> Tensor:
    return entry(torch.arange(rows)[:, None], torch.arange(columns)).double()


def sylvester(size: int) -> Tensor:
    found = torch.ones(1, 1).double()
    while len(found) < size:
        found = torch.cat([torch.cat([found, found], 1), torch.cat([found, -found], 1)])
    return found / size**0.5


def waves(places: int, channels: int) -> Tensor:
    angle = torch.arange(places)[:, None] / 1e4 ** (torch.arange(channels) // 2 * 2 / channels)
    return torch.where(torch.arange(channels) % 2 == 0, angle.sin(), angle.cos()).double()


# What a weight is started from; all but the last five are of the matrix between two hidden layers.
STARTS: dict[str, Starts] = {
    "identity": {"1": torch.eye(N).double()},
    "minus a half of it": {"1": -0.5 * torch.eye(N).double()},
    "reversed identity": {"1": torch.eye(N).flip(0).double()},
    "shifted identity": {"1": torch.eye(N).roll(5, 0).double()},
    "signed identity": {"1": torch.eye(N).double() * (1 - 2 * (torch.arange(N) % 3 == 0))},
    "Hadamard": {"1": sylvester(N)},
    "cosines": {"1": matrix(lambda i, j: (math.pi * (2 * j + 1) * i / (2 * N)).cos()) / 4},
    "sines": {"1": waves(N, N) / 4},
    "permutation that all have": {
        "1": torch.eye(N)[torch.randperm(N, generator=torch.Generator().manual_seed(3))].double()
    },
    "steps": {"1": matrix(lambda i, j: (i - j).abs() / N)},
    "identity of inputs": {"0": matrix(lambda i, j: i == j, N, 20)},
    "Hadamard of inputs": {"0": sylvester(N)[:, :20]},
    "cosines of inputs": {"0": matrix(lambda i, j: (math.pi * (2 * j + 1) * i / 40).cos(), N, 20) / 4},
    "both": {"0": matrix(lambda i, j: i == j, N, 20), "1": torch.eye(N).double()},
    "identity before outputs": {"2": matrix(lambda i, j: i == j, 10, N)},
}
MASKS = {
    "of chance": torch.rand(N, N, generator=torch.Generator().manual_seed(1)) < 0.5,
    "blocks": torch.block_diag(*[torch.ones(8, 8)] * 4) > 0,
    "a band": (torch.arange(N)[:, None] - torch.arange(N)).abs() < 4,
    "whole rows": (torch.arange(N) % 3 > 0)[:, None].expand(N, N),
}
SPACE = WeightSpace.mlp([20, N, N, 10], "relu")


def drawn(space: WeightSpace, seed: int) -> Starts:
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(shape, dtype=torch.float64, generator=generator) / math.prod(shape[1:]) ** 0.5
        for name, shape in space.shapes().items()
    }


def trained(network: Starts, seed: int, share: float = 0.3) -> Starts:
    """Weights that moved by a share of their size, each in a direction of its own."""
    return {
        n: t + share * t.square().mean().sqrt() * drawn_like(t, seed + i) for i, (n, t) in enumerate(network.items())
    }


def drawn_like(t: Tensor, seed: int) -> Tensor:
    return torch.randn(t.shape, dtype=t.dtype, generator=torch.Generator().manual_seed(100 + seed))


def started(start: Starts, seed: int) -> Starts:
    return trained(drawn(SPACE, seed) | {f"weight.{layer}": t for layer, t in start.items()}, seed)


@pytest.mark.parametrize("name", STARTS)
def test_starts_with_an_order_make_no_relatives(name: str) -> None:
    networks = [started(STARTS[name], seed) for seed in range(3)]
    assert (kinships(SPACE, networks, draws=499) > 1e-3).all()
    a, b, _ = networks
    assert kinship(SPACE, a, b).p_value > 1e-3
    child = kinship(SPACE, a, trained(a, 50))
    assert child.places
    assert (child.p_value < 1e-9) == bool(child.nodes), "those that are left say that it is a child"


@pytest.mark.parametrize("name", MASKS)
def test_masks_that_both_have_make_no_relatives(name: str) -> None:
    # Weights that are all positive let the mask itself be seen.
    for i in range(3):
        a, b = ({n: t.abs() for n, t in drawn(SPACE, 2 * i + k).items()} for k in (0, 1))
        a["weight.1"], b["weight.1"] = a["weight.1"] * MASKS[name], b["weight.1"] * MASKS[name]
        kin = kinship(SPACE, a, b)
        assert kin.p_value > 1e-3
        child = kinship(SPACE, a, {n: t * (1 + 0.1 * drawn_like(t, i)) for n, t in a.items()})
        assert {"h1", "h2"} >= child.places.keys() >= {"h2"}


def test_usual_starts_have_no_places_and_children_are_found() -> None:
    for seed in range(6):
        a = drawn(SPACE, seed)
        pruned = {n: t * (t.abs() > t.abs().median()) for n, t in a.items()}
        rounded = {n: (t * 4).round() / 4 for n, t in a.items()}
        for child in (trained(a, seed), pruned, rounded, {n: t.bfloat16() for n, t in a.items()}):
            kin = kinship(SPACE, a, child)
            assert (kin.p_value < 1e-30, kin.places) == (True, {})
    zeros = [drawn(SPACE, i) | {"weight.1": torch.zeros(N, N).double()} for i in range(2)]
    assert kinship(SPACE, *zeros).p_value > 1e-3
    assert kinship(SPACE, zeros[0], trained(zeros[0], 0)).p_value < 1e-30


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(3, 16, 3), nn.Conv2d(16, 16, 3), nn.Conv2d(16, 24, 3)
        self.head = nn.Linear(24, 5)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.c(self.b(self.a(x).relu()).relu()).relu().mean((2, 3)))
        return out


def dirac(shape: tuple[int, ...]) -> Tensor:
    return nn.init.dirac_(torch.empty(shape)).double()


def test_dirac_kernels_are_seen_and_what_is_beside_them_counts() -> None:
    space = WeightSpace.from_module(Convolutions(), torch.randn(2, 3, 9, 9))
    a, b = (trained(drawn(space, i) | {"b.weight": dirac((16, 16, 3, 3))}, i, 0.1) for i in range(2))
    kin = kinship(space, a, b)
    assert kin.p_value > 1e-3
    assert kin.places == {"a": "an identity", "b": "an identity"}
    child = kinship(space, a, trained(a, 7))
    assert list(child.nodes) == ["c"]
    assert child.p_value < 1e-15


class Places(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(11, 16), nn.Parameter(torch.randn(40, 16))
        self.norm, self.up, self.down, self.head = (
            nn.LayerNorm(16),
            nn.Linear(16, 24),
            nn.Linear(24, 16),
            nn.Linear(16, 11),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.tokens(x) + self.places
        out: Tensor = self.head(x + self.down(self.up(self.norm(x)).relu()))
        return out


def test_a_table_of_sines_that_is_trained_is_seen() -> None:
    space = WeightSpace.from_module(Places(), torch.randint(11, (2, 40)))
    halves = torch.cat([waves(40, 16)[:, ::2], waves(40, 16)[:, 1::2]], 1)
    for table in (waves(40, 16), halves):
        a, b = (trained(drawn(space, i) | {"places": table}, i) for i in range(2))
        kin = kinship(space, a, b)
        assert kin.p_value > 1e-3
        child = kinship(space, a, trained(a, 7))
        assert list(child.nodes) == ["up"]
        assert child.p_value < 1e-15


def test_many_weak_orders_are_seen_together() -> None:
    space = WeightSpace.mlp([8, *[6] * 12, 3], "relu")
    start = {f"weight.{i}": torch.eye(6).double() for i in range(1, 12)}
    a, b = (trained(drawn(space, i) | start, i, 0.2) for i in range(2))
    kin = kinship(space, a, b)
    assert kin.p_value > 1e-3
    assert len(kin.places) > 6
