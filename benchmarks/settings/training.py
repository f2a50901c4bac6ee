"""The training of models, in every experiment."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from pydantic import Field

from .base import AtLeastZero, Count, Positive, Settings

__all__ = ["RUNTIME", "Head", "LossName", "Precision", "Schedule", "TrainConfig"]

LossName = Literal["bce", "mse", "rank", "quantile"]
Schedule = Literal["constant", "cosine", "one-cycle"]
Precision = Literal["32-true", "bf16-mixed", "64-true"]
RUNTIME = ("device", "devices", "threads", "checkpoint_seconds", "tensorboard", "recompute", "compiled")
"""Fields of `TrainConfig` that change nothing in a result but rounding, the draws of random layers, and time."""


Dropout = Annotated[float, Field(ge=0, lt=1)]


@dataclass(frozen=True)
class Head(Settings):
    """Settings of a recipe for models that answer by an MLP of a vector of invariants.

    Attributes:
        heads: number of MLPs, whose answers are averaged.
        head_width: of their two hidden layers.
        head_dropout: of the vector and of the first hidden layer.
    """

    heads: Count = 1
    head_width: Count = 256
    head_dropout: Dropout = 0.3


@dataclass(frozen=True)
class TrainConfig(Settings):
    """The training of a model. The defaults are the paper's for predicting generalisation (App. D.3).

    Attributes:
        epochs: passes over the training set.
        batch_size: networks in a step.
        learning_rate: of AdamW, the largest.
        schedule: after the warm-up: ``constant``, or half a ``cosine`` down to 0 at the end of all epochs;
            ``one-cycle`` is the cosine after a warm-up of three tenths of all steps.
        weight_decay: decoupled.
        warmup_steps: the learning rate rises linearly over so many steps.
        average_epochs: the validated and stored model has the exponential moving average of the parameters over about
            so many epochs; 0 for the parameters themselves.
        clip_norm: largest norm of the gradient; none does not clip.
        patience: stop after so many epochs without a better one, when one was validated; none trains all.
        validate_every: so many epochs are between two validations; the last epoch has one in any case.
        device: ``cpu``, ``cuda`` or ``cuda:1``.
        precision: with ``bf16-mixed``, models compute matrix products in bfloat16; their parameters and the data stay
            in float32, and networks are prepared and rendered in it.
        devices: how many processes on this machine, on cuda with a GPU each; ``torchrun`` has its own number. It
            changes no result except the draws of random layers (dropout, augmentation).
        threads: of a process, for one operation; none leaves them to torch. Where batches are small, several take
            longer than one, and much more of the CPU.
        checkpoint_seconds: an unfinished training is written after an epoch, at most once in so many seconds; it
            changes no result.
        tensorboard: whether epochs are logged for it, beside the results; it changes no result.
        recompute: whether the activations inside of a model's blocks are computed again in backward, see
            `nfn_monomial.models.recompute_blocks`: less memory, more time. It changes no result.
        compiled: whether models are trained under ``torch.compile``, on cuda as CUDA graphs. The first step takes
            minutes, whether the others take less depends on the model: see `bench layers --preset quick`. It needs a
            C++ compiler on a CPU, and changes results only by rounding and by the draws of random layers.
    """

    epochs: Count = 50
    batch_size: Count = 8
    learning_rate: Positive = 1e-3
    schedule: Schedule = "constant"
    weight_decay: AtLeastZero = 0.0
    warmup_steps: Annotated[int, Field(ge=0, le=10**9)] = 0
    average_epochs: AtLeastZero = 0.0
    clip_norm: Positive | None = None
    patience: Count | None = None
    validate_every: Count = 1
    device: str = "cpu"
    precision: Precision = "32-true"
    devices: Count = 1
    threads: Count | None = None
    checkpoint_seconds: AtLeastZero = 10.0
    tensorboard: bool = False
    recompute: bool = False
    compiled: bool = False

    def lasting(self, steps: int | None, networks: int) -> TrainConfig:
        """The same for so many steps over so many networks, rounded up to whole epochs; None leaves the epochs."""
        return self if steps is None else replace(self, epochs=math.ceil(steps / math.ceil(networks / self.batch_size)))
