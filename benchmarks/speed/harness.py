"""Contenders that take turns, measurements of each, and tables of ratios between them.

A contender is a module and its input. A training step is forward and backward to inputs and parameters.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor, nn

from nfn_monomial import WeightSpace
from nfn_monomial.benchmarks.report.tables import MIB
from nfn_monomial.benchmarks.train.measure import operators, race, step_memory
from nfn_monomial.tools.report import Table

__all__ = [
    "MEMORY",
    "NETWORKS",
    "Contender",
    "Make",
    "Timing",
    "fewer",
    "measured",
    "parts",
    "ratio_tables",
    "times",
]

NETWORKS: dict[str, Callable[[], WeightSpace]] = {
    "zoo CNN": lambda: WeightSpace.cnn([1, 16, 16, 16], 3, "relu", head=[10]),
    "SIREN 2-32-32-1": lambda: WeightSpace.mlp([2, 32, 32, 1], "sin"),
    "MLP of 13 layers": lambda: WeightSpace.mlp([2, *[32] * 12, 1], "relu"),
}


class Contender:
    """A layer and its input: ``call(*inputs)`` returns its outputs."""

    def __init__(
        self, layer: nn.Module, inputs: Sequence[Tensor], call: Callable[..., tuple[Tensor, ...]], device: str
    ) -> None:
        self.layer, self.call, self.device = layer.to(device), call, device
        self.inputs = [t.detach().contiguous().to(device).requires_grad_() for t in inputs]
        self.cotangents = [torch.ones_like(y) for y in self.forward()]
        self.parameters = sum(p.numel() for p in layer.parameters())

    def forward(self) -> tuple[Tensor, ...]:
        """One pass without gradients."""
        with torch.no_grad():
            return self.call(*self.inputs)

    def step(self, inputs: Sequence[Tensor] | None = None) -> tuple[Tensor, ...]:
        """Forward, and the gradients by inputs and parameters."""
        inputs = self.inputs if inputs is None else inputs
        wanted = [*inputs, *self.layer.parameters()]
        # Of a model's last layer some results are not used, nor are the parameters that they are made with.
        return torch.autograd.grad(self.call(*inputs), wanted, self.cotangents, allow_unused=True)

    def memory(self) -> int:
        """Peak bytes of a step: input, parameters, tensors kept for backward, gradients."""
        no_state = torch.optim.SGD(self.layer.parameters())
        fresh = (t.detach().clone().requires_grad_() for t in self.inputs)
        return step_memory(lambda: self.step(list(fresh)), self.layer, no_state, torch.device(self.device))


Make: TypeAlias = "Callable[[], Contender]"


@dataclass(frozen=True)
class Timing:
    """One contender in one setting: median milliseconds, operators, parameters, and peak memory of a training step.

    A setting is the title of a table, a number of networks and one of channels. 0 stands for no measurement;
    ``skipped`` says why a contender did not run.
    """

    table: str
    batch: int
    channels: int
    contender: str
    forward_ms: float = 0.0
    step_ms: float = 0.0
    forward_operators: int = 0
    step_operators: int = 0
    parameters: int = 0
    peak_bytes: int = 0
    skipped: str = ""


def measured(
    table: str,
    batch: int,
    channels: int,
    makes: Mapping[str, Make],
    repeats: int,
    device: str,
    seconds: float = math.inf,
    memory: bool = True,
    needed: Mapping[str, float] | None = None,
) -> list[Timing]:
    """Times all contenders of a setting, which take turns within every repetition; a line for each.

    Args:
        table: title of the table of all.
        batch: number of networks.
        channels: of features.
        makes: name -> function that makes the contender, so that those that are left out take no memory.
        repeats: timed repetitions of each, after three that are not counted.
        device: ``"cpu"`` or ``"cuda"``.
        seconds: after so many begins no further repetition.
        memory: whether a step's is measured, too.
        needed: name -> bytes of a step; contenders that need more than half of the free memory do not run.
    """
    skipped = dict.fromkeys(makes, "")
    for name, size in (needed or {}).items():
        if size > (free := free_bytes(device)) / 2:
            skipped[name] = f"needs {size / 2**30:.1f} GiB, {free / 2**30:.1f} GiB are free"
    ready = {name: make() for name, make in makes.items() if not skipped[name]}
    calls = {
        (name, how): call for name, one in ready.items() for how, call in (("forward", one.forward), ("step", one.step))
    }
    ms = race(calls, repeats, device, seconds)
    timings = []
    for name, reason in skipped.items():
        if reason:
            timings.append(Timing(table, batch, channels, name, skipped=reason))
            continue
        one = ready[name]
        timings.append(
            Timing(
                table, batch, channels, name, ms[name, "forward"], ms[name, "step"], operators(one.forward),
                operators(one.step), one.parameters, one.memory() if memory else 0,
            )
        )  # fmt: skip
    return timings


def free_bytes(device: str) -> float:
    """Returns the free memory of a GPU, or of the machine; infinite if it is not known."""
    if device.startswith("cuda"):
        return float(torch.cuda.mem_get_info(device)[0])
    try:
        line = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())
    except OSError:  # no Linux: try
        line = None
    return 1024.0 * int(line[1]) if line else math.inf


Peers: TypeAlias = Mapping[str, Timing]
"""All contenders of one setting."""
Cell: TypeAlias = Callable[[Timing, Peers], str]


def parts(of: str, form: str = ".2f", unit: float = 1) -> Cell:
    """Formats a measurement."""
    return lambda t, _: f"{getattr(t, of) / unit:{form}}" if getattr(t, of) else "-"


def times(of: str, base: str, form: str = ".1f") -> Cell:
    """Formats the ratio of this contender's measurement to that of another one in the same setting."""
    return lambda t, peers: _ratio(t, peers.get(base), of, form)


def fewer(of: str, base: str, form: str = ".1f") -> Cell:
    """Formats how many times faster this contender is than another one in the same setting."""
    return lambda t, peers: _ratio(peers.get(base), t, of, form)


def _ratio(over: Timing | None, under: Timing | None, of: str, form: str) -> str:
    numbers = [getattr(t, of) if t else 0 for t in (over, under)]
    return f"{numbers[0] / numbers[1]:{form}}x" if all(numbers) else "-"


def ratio_tables(timings: Sequence[Timing], columns: Mapping[str, Cell], note: str, title: str = "{}") -> list[Table]:
    """A table for each name of one: a line for every contender in every setting; below, why some did not run."""
    tables = []
    for name in dict.fromkeys(t.table for t in timings):
        shown = [t for t in timings if t.table == name]
        lines = []
        for t in shown:
            peers = {other.contender: other for other in shown if other.batch == t.batch}
            lines.append((t.contender, str(t.batch), *(cell(t, peers) for cell in columns.values())))
        left_out = [f"{t.contender}, batch {t.batch}, left out: {t.skipped}." for t in shown if t.skipped]
        header = ("layer", "batch", *columns)
        tables.append(Table(title.format(name), header, tuple(lines), names=(0, 1), notes=(note, *left_out)))
    return tables


MEMORY: Cell = parts("peak_bytes", ".1f", MIB)
