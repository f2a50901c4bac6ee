"""Maps of channels x multiplicity that cost no more than their inputs and outputs are long."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn


class FactoredMix(nn.Module):
    """``up @ ((down_1 @ x_1) * (down_2 @ x_2) * ..)``: a multilinear map of bounded rank; of one input, a linear one.

    Subclasses say how inputs meet between the two steps.

    Args:
        widths: of the inputs.
        width: of the output.
        rank: numbers in between.
    """

    def __init__(self, widths: Sequence[int], width: int, rank: int) -> None:
        super().__init__()
        self._names = [f"down_{i}" for i in range(len(widths))]
        for name, w in zip(self._names, widths, strict=True):
            self.register_parameter(name, nn.Parameter(torch.empty(rank, w)))
        self.up = nn.Parameter(torch.empty(width, rank))

    @property
    def down(self) -> list[Tensor]:
        """The maps of the inputs."""
        return [getattr(self, name) for name in self._names]

    def reset_down(self) -> None:
        """Numbers in between of the variance of the inputs."""
        for weight in self.down:
            bound = math.sqrt(3 / weight.shape[1])
            nn.init.uniform_(weight, -bound, bound)

    def reset_up(self, rows: slice, variance: float) -> None:
        """Some outputs of this variance, relative to the numbers in between."""
        bound = math.sqrt(3 * variance / self.up.shape[1])
        with torch.no_grad():
            self.up[rows].uniform_(-bound, bound)
