"""Constants that parameters and running statistics can give away."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from nfn_monomial.space.weight_space import WeightSpace
from nfn_monomial.trace.graph import Program, operation

Tensors = Mapping[str, Tensor]


class Source(NamedTuple):
    """Constants that a parameter gives away.

    Attributes:
        parameter: its name.
        kind: ``"all"`` of its entries, the part that its ``"rows"`` have in common, the ``"mean"`` of them; or, for a
            matrix that reads a norm's output, whose mean is 0 but for gain and bias, the part that sees nothing of that
            ``"norm"`` but its bias.
        start, stop: range of its entries; all, where ``stop`` is None.
        taker: the parameter that takes them where an operation adds two of its own; carried through the program else.
        gain: of the norm.
    """

    parameter: str
    kind: str = "all"
    start: int = 0
    stop: int | None = None
    taker: str | None = None
    gain: str = ""

    @property
    def whole(self) -> bool:
        """True if the parameter gives away all that it holds."""
        return self.kind == "all" and self.stop is None

    def part(self, x: Tensor, tensors: Tensors) -> Tensor:
        """Returns the part of this kind of a tensor of the parameter's shape, among these parameters."""
        if self.kind == "norm":
            gain = tensors[self.gain]
            return (x * gain).mean(-1, keepdim=True) / gain
        if self.kind == "rows":
            return x.mean(tuple(range(x.ndim - 1)), keepdim=True).expand_as(x)
        if self.kind == "mean":
            return x.mean().expand_as(x)
        if self.stop is None:
            return x
        places = torch.arange(x.shape[0])
        return x * ((places >= self.start) & (places < self.stop)).to(x.dtype)

    def dimension(self, shape: Sequence[int]) -> int:
        """Returns how many numbers they are, for a parameter of this shape."""
        if self.kind == "all":
            return math.prod(shape) if self.stop is None else self.stop - self.start
        return {"rows": shape[-1], "norm": shape[0], "mean": 1}[self.kind]


class Statistics(NamedTuple):
    """Names of the tensors of one batch norm, which returns ``gain (x - mean) / sqrt(variance + eps) + shift``."""

    gain: str
    shift: str
    mean: str
    variance: str
    eps: float

    def replaced(self, tensors: Tensors, mean: Tensor, variance: Tensor) -> dict[str, Tensor]:
        """Returns tensors of networks with these statistics in place of their own, and the same function."""
        gain, shift, center, spread = (tensors[name] for name in self[:4])
        taken = gain * ((variance + self.eps) / (spread + self.eps)).sqrt()
        shift = shift + taken * mean / (variance + self.eps).sqrt() - gain * center / (spread + self.eps).sqrt()
        return {**tensors, self.gain: taken, self.shift: shift, self.mean: mean, self.variance: variance}


def statistics_of(program: Program, space: WeightSpace) -> list[Statistics]:
    """Returns the statistics of all batch norms with gain and shift whose tensors nothing else reads."""
    names = list(program.parameters.values())
    norms = []
    for node in program.graph.nodes:
        if node.op == "call_function" and operation(node) == "batch_norm" and all(node.args[1:5]):
            four = [program.parameters.get(arg.name, "") for arg in node.args[1:5]]
            alone = all(names.count(name) == 1 for name in four) and all(len(arg.users) == 1 for arg in node.args[1:5])
            if alone and all(name in space.parameters for name in four) and not node.args[5]:
                gain, shift, mean, variance = four
                norms.append(Statistics(gain, shift, mean, variance, node.args[7]))
    return norms
