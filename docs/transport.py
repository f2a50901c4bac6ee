"""Fine-tunes moved to bases that were trained on their own: ``python docs/transport.py`` measures it anew.

It writes the table into docs/own-networks.md. Five pairs of bases for each width; half a minute of one core.
"""

from __future__ import annotations

import copy
import re
import statistics
from collections.abc import Callable
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

from nfn_monomial import WeightSpace, align

PAGE = Path(__file__).parent / "own-networks.md"
BLOCK = re.compile(r"(<!-- transport -->\n).*?(<!-- end of transport -->)", re.DOTALL)
PAIRS, WIDTHS = 5, (48, 256)
TASKS: dict[str, Callable[[Tensor], Tensor]] = {
    "mirrored": lambda x: x.flip(2),
    "lower half hidden": lambda x: x * (torch.arange(8) < 4).to(x)[:, None],
    "turned by 90 degrees": lambda x: x.rot90(1, (1, 2)),
    "noisy": lambda x: x + 0.5 * torch.randn(x.shape, generator=torch.Generator().manual_seed(0)),
}
COLUMNS = ("base, tuned", "new base", "as it is", "permutation", "all symmetries", "new base, tuned")

State = dict[str, Tensor]


def images() -> tuple[Tensor, Tensor]:
    """Digits in an order of their own, ``(n, 8, 8)``, and their classes; the first 1,200 train."""
    x, y = load_digits(return_X_y=True)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    return torch.tensor(x / 16, dtype=torch.float32)[order].unflatten(1, (8, 8)), torch.tensor(y)[order]


def network(width: int) -> nn.Module:
    """Two hidden layers."""
    layers = nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
    return nn.Sequential(nn.Flatten(), *layers)


def trained(net: nn.Module, x: Tensor, y: Tensor, epochs: int, rate: float, seed: int) -> State:
    """What training makes of a network, which stays as it is."""
    net, generator = copy.deepcopy(net), torch.Generator().manual_seed(seed)
    optimiser = torch.optim.Adam(net.parameters(), rate)
    for _ in range(epochs):
        for rows in torch.randperm(len(x), generator=generator).split(64):
            optimiser.zero_grad()
            F.cross_entropy(net(x[rows]), y[rows]).backward()
            optimiser.step()
    return {name: t.detach().double() for name, t in net.state_dict().items()}


def measured(width: int, pair: int) -> dict[str, dict[str, float]]:
    """Task -> network -> accuracy on test images of the task, for one pair of bases."""
    x, y = images()
    net, seen, tested = network(width), slice(0, 1200), slice(1200, None)
    bases = []
    for seed in (2 * pair, 2 * pair + 1):
        torch.manual_seed(seed)
        bases.append(trained(network(width), x[seen], y[seen], 20, 2e-3, seed))
    base, new = bases
    space = WeightSpace.from_module(net, x[:8])
    moves = {"permutation": align(space, new, base, symmetry="permutation").element}
    moves["all symmetries"] = align(space, new, base).element
    found = {}
    for task, see in TASKS.items():

        def tuned(start: State, see: Callable[[Tensor], Tensor] = see) -> State:
            net.load_state_dict(start)
            return trained(net, see(x[seen]), y[seen], 10, 5e-4, pair)

        def accuracy(state: State, see: Callable[[Tensor], Tensor] = see) -> float:
            net.load_state_dict(state)
            with torch.no_grad():
                return float((net(see(x[tested])).argmax(1) == y[tested]).float().mean())

        end = tuned(base)
        change = {name: end[name] - t for name, t in base.items()}
        changes = {"as it is": change} | {method: element.act(change) for method, element in moves.items()}
        scores = {"base, tuned": end, "new base": new, "new base, tuned": tuned(new)}
        scores |= {method: {name: t + moved[name] for name, t in new.items()} for method, moved in changes.items()}
        found[task] = {name: accuracy(state) for name, state in scores.items()}
    return found


def table(found: dict[int, list[dict[str, dict[str, float]]]]) -> str:
    """A line for each task and width: means over pairs, ± the standard deviation of one."""
    lines = [f"| images | neurons | {' | '.join(COLUMNS)} |", "|" + "---|" * (2 + len(COLUMNS))]
    for task in TASKS:
        for width, pairs in found.items():
            cells = []
            for column in COLUMNS:
                values = [pair[task][column] for pair in pairs]
                cells.append(f"{statistics.mean(values):.3f} ± {statistics.stdev(values):.3f}")
            lines.append(f"| {task} | {width} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure and write."""
    torch.set_num_threads(1)
    found = {width: [measured(width, pair) for pair in range(PAIRS)] for width in WIDTHS}
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(BLOCK.sub(lambda at: f"{at[1]}\n{table(found)}\n{at[2]}", page), encoding="utf-8")


if __name__ == "__main__":
    main()
