"""The time to derive a space, over the depth of a network: ``python docs/cost.py`` measures it again.

It writes the numbers into docs/any-network.md and draws them into docs/images/cost.svg. They are times of the machine
that it runs on, so nothing compares them with others; tests count calls instead.
"""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import matplotlib as mpl
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from nfn_monomial import WeightSpace
from nfn_monomial.trace import derive
from nfn_monomial.verify.certificate import certify

PAGE = Path(__file__).parent / "any-network.md"
PICTURE = PAGE.parent / "images" / "cost.svg"
BLOCK = re.compile(r"(<!-- cost -->\n).*?(<!-- end of cost -->)", re.DOTALL)
DEPTHS = (64, 128, 256, 512)
WIDTH = 8


class Block(nn.Module):
    """A residual block with a norm, so that every block adds a gauge to the stream that all of them share."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 16), nn.Linear(16, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """One step of the stream ``x (B, WIDTH)``."""
        return x + torch.as_tensor(self.down(torch.relu(self.up(self.norm(x)))))


class Cost(NamedTuple):
    """Seconds at one depth: ``torch.export``, deriving nodes and gauges, building the space, testing it."""

    depth: int
    export: float
    derive: float
    build: float
    test: float


def measured(depth: int) -> Cost:
    """Measures the seconds of each part, the least of three."""
    blocks = [Block() for _ in range(depth)]
    net, x = nn.Sequential(nn.Linear(3, WIDTH), *blocks, nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2)), torch.randn(2, 3)

    def once() -> Cost:
        times = [time.perf_counter()]
        program = torch.export.export(net, (x,), strict=False)
        times.append(time.perf_counter())
        derived = derive(program)
        times.append(time.perf_counter())
        space = WeightSpace(derived.nodes, derived.parameters)
        times.append(time.perf_counter())
        certify(net, x, space.sample)
        times.append(time.perf_counter())
        return Cost(depth, *(b - a for a, b in itertools.pairwise(times)))

    return Cost(depth, *(min(part) for part in zip(*(once()[1:] for _ in range(3)), strict=True)))


def table(costs: Sequence[Cost]) -> str:
    """Returns a line for each depth."""
    lines = ["| blocks | `torch.export` | deriving | building | testing |", "|---|---|---|---|---|"]
    lines += ["| " + " | ".join([str(c.depth), *(f"{t:.2f} s" for t in c[1:])]) + " |" for c in costs]
    return "\n".join(lines) + "\n"


def picture(costs: Sequence[Cost]) -> Figure:
    """Draws seconds over depth, both logarithmic, with a line of linear growth."""
    figure = Figure(figsize=(6, 3.6), layout="constrained")
    axes = figure.subplots()
    depths = [c.depth for c in costs]
    for n, name in enumerate(Cost._fields[1:], 1):
        axes.plot(depths, [c[n] for c in costs], marker="o", label=name)
    start = min(c for c in costs[0][1:])
    axes.plot(depths, [start * d / depths[0] for d in depths], "--", color="#777777", label="linear")
    axes.set(xscale="log", yscale="log", xlabel="blocks", ylabel="seconds")
    axes.set_xticks(depths, map(str, depths))
    axes.minorticks_off()
    axes.legend(fontsize=8, frameon=False)
    return figure


def main() -> None:
    """Measures, writes, draws."""
    torch.set_num_threads(1)
    measured(8)  # imports and compiles, once
    costs = [measured(depth) for depth in DEPTHS]
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(BLOCK.sub(lambda block: f"{block[1]}\n{table(costs)}\n{block[2]}", page), encoding="utf-8")
    mpl.rcParams["svg.hashsalt"] = "nfn-monomial"
    metadata = {"Date": None, "Title": "Seconds over depth", "Description": table(costs)}
    picture(costs).savefig(PICTURE, facecolor="white", metadata=metadata)


if __name__ == "__main__":
    main()
