"""Numbers as quantiles of the training networks, which a model may learn in their place."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from nfn_monomial.errors import InvalidValueError

__all__ = ["Quantiles"]

KNOTS = 101


@dataclass(frozen=True)
class Quantiles:
    """A piecewise linear, monotone map of accuracies, or any other numbers, to levels in [0, 1], and back.

    Attributes:
        knots: the accuracies of levels that are evenly spaced from 0 to 1, at least two.

    Raises:
        ValueError: if they fall, or are no finite numbers.
    """

    knots: tuple[float, ...]

    def __post_init__(self) -> None:
        numbers = all(type(x) is float and math.isfinite(x) for x in self.knots)
        if not numbers or len(self.knots) < 2 or list(self.knots) != sorted(self.knots):
            raise InvalidValueError("quantiles should be at least two numbers that rise")

    @classmethod
    def of(cls, accuracy: Tensor) -> Self:
        """Returns the quantiles of training networks ``(N,)``."""
        ordered = accuracy.double().cpu().sort().values
        place = torch.linspace(0, len(ordered) - 1, KNOTS, dtype=torch.float64)
        low, high = ordered[place.floor().long()], ordered[place.ceil().long()]
        return cls(tuple(torch.lerp(low, high, place - place.floor()).cummax(0).values.tolist()))

    def level(self, accuracy: Tensor) -> Tensor:
        """Maps accuracies ``(...)`` to levels, the middle of all levels of one accuracy; 0 or 1 beyond the knots."""
        knots = self._like(accuracy)
        first, after = (torch.searchsorted(knots, accuracy, right=right) for right in (False, True))
        right = first.clamp(1, len(knots) - 1)
        low, high = knots[right - 1], knots[right]
        between = right - 1 + ((accuracy - low) / (high - low)).clamp(0, 1)
        return torch.where(after > first, (first + after - 1) / 2, between) / (len(knots) - 1)

    def accuracy(self, level: Tensor) -> Tensor:
        """Maps levels in [0, 1] to accuracies, the inverse; NaN stays."""
        knots = self._like(level)
        place = level * (len(knots) - 1)
        left = place.nan_to_num(0).floor().long().clamp(0, len(knots) - 2)
        return torch.lerp(knots[left], knots[left + 1], place - left)

    def _like(self, x: Tensor) -> Tensor:
        known: dict[str, Any] = {"dtype": x.dtype, "device": x.device}
        return torch.tensor(self.knots, **known)
