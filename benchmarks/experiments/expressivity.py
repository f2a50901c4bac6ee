"""Can a model compute what a network does, from its weights alone?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from nfn_monomial.benchmarks.settings.base import Count, Positive, Seed, Settings, Some
from nfn_monomial.benchmarks.settings.register import Experiment, register

__all__ = ["ExpressivityConfig"]


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


register(
    Experiment(
        "bench expressivity",
        """Predict the outputs of random networks from their weights: message passing against linear layers.

Both models have equally many parameters. Five to ten minutes on 2 cores. Writes `table.md`, `results.json`,
`expressivity.png` and `config.json`.

Examples:

- `nfn-monomial bench expressivity --set activations=relu --seeds 3`
""",
        {"small": ExpressivityConfig()},
        "expressivity",
        keeps=False,
    )
)
