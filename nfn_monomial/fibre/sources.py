"""What parameters can give away."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

Tensors = Mapping[str, Tensor]


class Source(NamedTuple):
    """Constants that a parameter gives away.

    Attributes:
        parameter: its name.
        kind: ``"all"`` of its entries, what its ``"rows"`` have in common, the ``"mean"`` of them; or of a matrix that
            reads a norm's output, whose mean is 0 but for gain and bias, what sees the bias of that ``"norm"`` alone.
        start, stop: of which of its entries; all, where ``stop`` is None.
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
        """Whether the parameter gives away all that it holds."""
        return self.kind == "all" and self.stop is None

    def part(self, x: Tensor, tensors: Tensors) -> Tensor:
        """What of a tensor of the parameter's shape is of this kind, among these parameters."""
        if self.kind == "norm":
            gain = tensors[self.gain]
            return (x * gain).mean(-1, keepdim=True) / gain
        if self.kind == "rows":
            return x.mean(tuple(range(x.ndim - 1)), keepdim=True).expand_as(x)
        if self.kind == "mean":
            return x.mean().expand_as(x)
        if self.stop is None:
            return x
        own = torch.arange(x.shape[0])
        return x * ((own >= self.start) & (own < self.stop)).to(x.dtype)

    def dimension(self, shape: Sequence[int]) -> int:
        """Of how many numbers they consist, of a parameter of this shape."""
        if self.kind == "all":
            return math.prod(shape) if self.stop is None else self.stop - self.start
        return {"rows": shape[-1], "norm": shape[0], "mean": 1}[self.kind]
