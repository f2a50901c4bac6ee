"""How models are trained, as one dataclass."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

__all__ = ["RUNTIME", "Precision", "TrainConfig"]

Precision = Literal["32-true", "bf16-mixed", "64-true"]
RUNTIME = ("device", "devices", "checkpoint_seconds", "tensorboard")
"""Fields of `TrainConfig` that change nothing in a result but rounding, the draws of random layers, and time."""


@dataclass(frozen=True)
class TrainConfig:
    """How to train. The defaults are the paper's for predicting generalisation (App. D.3).

    ``device``: ``cpu``, ``cuda`` or ``cuda:1``. ``precision``: with ``bf16-mixed``, models compute matrix products in
    bfloat16; their parameters and the data stay in float32, and networks are prepared and rendered in it.
    ``warmup_steps``: the learning rate rises linearly over so many steps. ``patience``: stop after so many epochs
    without a better one; None trains all ``epochs``. ``clip_norm``: largest norm of the gradient; None does not clip.
    ``weight_decay`` is decoupled (AdamW).

    The last three change no result, but that ``devices`` changes what random layers (dropout, augmentation) draw.
    ``devices``: how many processes on this machine, on cuda with a GPU each; ``torchrun`` has its own number.
    ``checkpoint_seconds``: an unfinished training is written at most once in so many. ``tensorboard``: whether epochs
    are logged for it, beside the results.
    """

    epochs: int = 50
    batch_size: int = 8
    learning_rate: float = 1e-3
    weight_decay: float = 0.0
    warmup_steps: int = 0
    clip_norm: float | None = None
    patience: int | None = None
    device: str = "cpu"
    precision: Precision = "32-true"
    devices: int = 1
    checkpoint_seconds: float = 10.0
    tensorboard: bool = False

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "patience", "devices"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ValueError(f"{name} is {value}, but must be at least 1")
        if not 0 < self.learning_rate < math.inf:
            raise ValueError(f"learning_rate is {self.learning_rate}, but must be positive")
        for name in ("warmup_steps", "weight_decay"):
            if not 0 <= (value := getattr(self, name)) < math.inf:
                raise ValueError(f"{name} is {value}, but must be at least 0 and finite")
        if self.clip_norm is not None and not self.clip_norm > 0:
            raise ValueError(f"clip_norm is {self.clip_norm}, but must be positive, or None not to clip")
        if self.precision not in get_args(Precision):
            raise ValueError(f"unknown precision {self.precision!r}: choose from {', '.join(get_args(Precision))}")
        if not self.checkpoint_seconds >= 0:
            raise ValueError(f"checkpoint_seconds is {self.checkpoint_seconds}, but must be at least 0")
