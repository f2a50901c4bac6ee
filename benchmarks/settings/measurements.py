"""What is counted, timed and learned without data of others: parameters, cost, expressivity, alignment."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from nfn_monomial.errors import InvalidValueError

from .base import Count, Positive, Seed, Settings, Some

__all__ = [
    "COST",
    "EXPRESSIVITY",
    "LAYERS",
    "PARAMS",
    "REFERENCE",
    "CostConfig",
    "ExpressivityConfig",
    "LayersConfig",
    "ParamsConfig",
    "Way",
]

REFERENCE = "hnp"  # what costs are compared with


@dataclass(frozen=True)
class CostConfig(Settings):
    """Run time and memory of training, see `nfn_monomial.benchmarks.studies.cost`.

    Attributes:
        models: registered names, `REFERENCE` among them; empty for all that predict generalisation.
        activations: of the networks read.
        batch_sizes: networks per step.
        networks: in an epoch; the paper's ReLU set has 6,050.
        repeats: steps of each model that are timed, after three that are not.
        seconds: after so many, for each activation and batch size, no further round of steps begins.
        device: ``cpu``, ``cuda`` or ``cuda:N``.
    """

    models: tuple[str, ...] = ()
    activations: Some[Literal["relu", "tanh"]] = ("relu", "tanh")
    batch_sizes: Some[Count] = (8, 64)
    networks: Count = 6050
    repeats: Count = 10
    seconds: Annotated[float, Field(gt=0)] = 60.0
    device: str = "cpu"

    def check(self) -> None:
        if self.models and REFERENCE not in self.models:
            raise InvalidValueError(
                f"models is {', '.join(self.models)}: add {REFERENCE}, which the others are compared with"
            )


COST = {
    "small": CostConfig(),
    # App. D.3: batches of 8. The paper's Tables 10 and 11 were measured on one A100 GPU.
    "paper": CostConfig(batch_sizes=(8,), repeats=100, seconds=math.inf),
}


@dataclass(frozen=True)
class ParamsConfig(Settings):
    """Numbers of parameters, see `nfn_monomial.benchmarks.studies.params`.

    Attributes:
        sizes: of the network that one layer reads, inputs first, outputs last.
        kernel: side of the square kernels of all its layers but the last; 1 for an MLP.
        channels: in and out of that layer.
        largest: of the inputs and of the depth in the figure.
    """

    sizes: Annotated[tuple[Count, ...], Field(min_length=3)] = (1, 16, 16, 16, 10)
    kernel: Count = 3
    channels: tuple[Count, Count] = (16, 16)
    largest: Annotated[int, Field(ge=8)] = 1024

    @property
    def kernels(self) -> tuple[int, ...]:
        """Sides of the kernels, layer by layer."""
        return (*[self.kernel] * (len(self.sizes) - 2), 1)


PARAMS = {"small": ParamsConfig()}


@dataclass(frozen=True)
class ExpressivityConfig(Settings):
    """What to learn, from how much, with what; see `nfn_monomial.benchmarks.studies.expressivity`.

    Attributes:
        activations: of the MLPs.
        sizes: of the MLPs, inputs first.
        points: fixed inputs at which their outputs are predicted.
        networks: to train on.
        test_networks: to test on.
        channels: of the message-passing model, which has one block for every layer of the MLPs; the linear model gets
            as many parameters.
        epochs: in three phases of one learning rate each.
        batch_size: networks in a step.
        learning_rate: of the first phase.
        seeds: of data and training.
        device: ``cpu``, ``cuda`` or ``cuda:N``.
    """

    activations: Some[Literal["relu", "tanh"]] = ("relu", "tanh")
    sizes: Annotated[tuple[Count, ...], Field(min_length=2)] = (2, 16, 16, 1)
    points: Count = 8
    networks: Count = 12_000
    test_networks: Count = 2_000
    channels: Count = 16
    epochs: Annotated[int, Field(ge=3)] = 21
    batch_size: Count = 64
    learning_rate: Positive = 5e-3
    seeds: Some[Seed] = (0,)
    device: str = "cpu"


EXPRESSIVITY = {"small": ExpressivityConfig()}


Way: TypeAlias = Literal["float32", "bfloat16", "compiled"]
"""How a whole model is run: as it is, with products in bfloat16, under ``torch.compile``."""


@dataclass(frozen=True)
class LayersConfig(Settings):
    """Speed of layers, see `nfn_monomial.benchmarks.speed`.

    Attributes:
        batches: numbers of networks.
        channels: in and out of a layer.
        repeats: timed repetitions; tables show medians.
        graphs: whether message passing is timed, too: dense, on graphs, and PNAConv.
        width: channels of message passing.
        compiled: whether message passing is timed under torch.compile, too, which needs a C++ compiler.
        ways: how training steps of whole models are run, each compared with the first; empty for no such table.
        ways_batches: numbers of networks there.
        blocks: of message passing there; a compiler takes half a minute for each.
        depth: of the chain of layers that the time to build is told of, with that of the import; 0 for no such table.
        device: ``cpu``, ``cuda`` or ``cuda:N``.
    """

    batches: Some[Count] = (8, 64, 512)
    channels: Count = 16
    repeats: Count = 20
    graphs: bool = True
    width: Count = 32
    compiled: bool = False
    ways: tuple[Way, ...] = ()
    ways_batches: Some[Count] = (64,)
    blocks: Count = 3
    depth: Annotated[int, Field(ge=0)] = 0
    device: str = "cpu"


LAYERS = {
    "small": LayersConfig(),
    # Every kind of ratio, in less than five minutes of an idle machine: a third of them for the compiler.
    "quick": LayersConfig((8, 64), repeats=5, ways=("float32", "bfloat16", "compiled"), blocks=1, depth=500),
}
