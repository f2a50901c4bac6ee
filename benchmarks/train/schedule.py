"""How the learning rate goes over a training, and how fast an average of the parameters forgets."""

from __future__ import annotations

import math

from nfn_monomial.benchmarks.settings.training import TrainConfig

__all__ = ["averaging_weight", "learning_rate"]

RISE = 0.3  # share of the steps of one cycle


def learning_rate(config: TrainConfig, step: int, steps: int) -> float:
    """Of a step, counted from 0, of so many in all.

    It rises linearly over the warm-up; then it stays, or falls along half a cosine that would reach 0 at ``steps``.
    """
    warm = max(config.warmup_steps, math.ceil(RISE * steps) if config.schedule == "one-cycle" else 0)
    if step < warm or config.schedule == "constant":
        return config.learning_rate * min(1.0, (step + 1) / (warm + 1))
    done = min(1.0, (step - warm) / max(1, steps - warm))
    return config.learning_rate * (1 + math.cos(math.pi * done)) / 2


def averaging_weight(config: TrainConfig, step: int, epoch_steps: int) -> float:
    """Of the newest parameters in their average: those of a plain mean first, then of an exponential one."""
    return max(1 / (step + 1), 1 / max(1.0, config.average_epochs * epoch_steps))
