"""Run time and memory of training every model."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from nfn_monomial.benchmarks.settings.base import Count, Settings, Some
from nfn_monomial.benchmarks.settings.register import Experiment, Rerun, register
from nfn_monomial.errors import InvalidValueError

__all__ = ["REFERENCE", "CostConfig"]

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

register(
    Experiment(
        "cost",
        """Run time and memory of training for every model in one run, relative to HNP (Tables 10 and 11).

Models take turns, step by step, on networks with random weights: time and memory do not depend on the weights, and no
zoo is needed. About five minutes on 2 cores; use an idle machine. Writes `table.md`, `results.json`, `cost.png` and
`config.json`.

Examples:

- `nfn-monomial cost`

- `nfn-monomial cost --models np,hnp,gnn,monomial --device cuda --set batch_sizes=8,64,512`
""",
        COST,
        "cost",
        keeps=False,
        reruns=(Rerun("cost", "", 5),),
    )
)
