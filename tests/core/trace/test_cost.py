"""Deriving and building a space costs a number of calls, which no machine changes, that grows linearly with depth."""

import cProfile
import pstats
from collections.abc import Callable

import torch
from deriving import derive
from torch import nn

from nfn_monomial import WeightSpace


class Block(nn.Module):
    """A block behind a norm, of which each adds a gauge to the stream."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(6), nn.Linear(6, 8), nn.Linear(8, 6)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


def calls(function: Callable[[], object]) -> int:
    profile = cProfile.Profile()
    profile.runcall(function)
    return pstats.Stats(profile).total_calls  # type: ignore[attr-defined]


def test_twice_the_blocks_cost_twice_the_calls():
    counts = []
    for depth in (10, 20):
        blocks = [Block() for _ in range(depth)]
        net = nn.Sequential(nn.Linear(3, 6), *blocks, nn.LayerNorm(6), nn.Linear(6, 2))
        program = torch.export.export(net, (torch.randn(2, 3),), strict=False)
        found = derive(program)
        build = calls(lambda found=found: WeightSpace(found.nodes, found.parameters))
        counts.append((calls(lambda program=program: derive(program)), build))
    for less, more in zip(*counts, strict=True):
        assert more < 2.3 * less
