"""The schedule of the learning rate, and the weight of the newest parameters in their average."""

from __future__ import annotations

import math

from nfn_monomial.benchmarks.settings.training import TrainConfig

__all__ = ["averaging_weight", "learning_rate"]

RISE = 0.3  # share of the steps of one cycle


def learning_rate(config: TrainConfig, step: int, steps: int) -> float:
    """Returns the learning rate of a step, counted from 0, of so many in all.

    It rises linearly over the warm-up; then it stays, or falls along half a cosine that would reach 0 at ``steps``.
    """
    warm = max(config.warmup_steps, math.ceil(RISE * steps) if config.schedule == "one-cycle" else 0)
    if step < warm or config.schedule == "constant":
        return config.learning_rate * min(1.0, (step + 1) / (warm + 1))
    done = min(1.0, (step - warm) / max(1, steps - warm))
    return config.learning_rate * (1 + math.cos(math.pi * done)) / 2


def averaging_weight(config: TrainConfig, step: int, epoch_steps: int) -> float:
    """Returns the newest parameters' weight in their average: first of a plain mean, then of an exponential one."""
    return max(1 / (step + 1), 1 / max(1.0, config.average_epochs * epoch_steps))
