"""Time and memory: of training every model, and of single layers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Annotated, Any, Literal

from pydantic import Field

from nfn_monomial.benchmarks.settings.base import Count, Settings, Some
from nfn_monomial.benchmarks.settings.register import Experiment, News, Study, register
from nfn_monomial.errors import InvalidValueError

__all__ = ["LAYERS", "REFERENCE", "CostConfig", "LayersConfig"]

REFERENCE = "hnp"  # costs are compared with its


@dataclass(frozen=True)
class CostConfig(Settings):
    """Run time and memory of training, see `nfn_monomial.benchmarks.studies.cost`.

    Attributes:
        models: registered names, `hnp` among them, the measure of the others; empty for all that predict
            generalisation.
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
                f"models is {', '.join(self.models)}: add {REFERENCE}, with which the others are compared"
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
    )
)


@dataclass(frozen=True)
class LayersConfig(Settings):
    """Speed of layers, see `nfn_monomial.benchmarks.speed`.

    Attributes:
        batches: numbers of networks.
        channels: in and out of a layer.
        repeats: timed repetitions; tables show medians.
        graphs: whether message passing is timed, too: dense, on graphs, and PNAConv.
        width: channels of message passing.
        device: ``cpu``, ``cuda`` or ``cuda:N``.
    """

    batches: Some[Count] = (8, 64, 512)
    channels: Count = 16
    repeats: Count = 20
    graphs: bool = True
    width: Count = 32
    device: str = "cpu"


LAYERS = {
    "small": LayersConfig(),
    "quick": LayersConfig((8, 64), repeats=5),  # every ratio, in some minutes of an idle machine
}


def _run(data: Any, config: LayersConfig, store: Any, tell: Callable[[News], None]) -> Any:
    speed = import_module("nfn_monomial.benchmarks.speed.graphs")
    return speed.bench_speed(config, lambda text: tell(News(f"timing {text}")))


register(
    Experiment(
        "bench layers",
        """Time one layer, and a stack of three, against nfn's layers; message passing against torch-geometric's PNA.

On the Small CNN Zoo's network and the SIREN 2-32-32-1, forward and forward + backward; contenders take turns, so the
ratios are of one run. Then `balance`, and message passing: dense layers against the same on graphs and PNAConv, one
layer and three blocks with norms, in time and memory; these also on an MLP of 13 layers. Operators are counted, which
decide the time where networks are few. Use an idle machine. Writes `table.md`, `results.json` and `config.json`.

The preset `quick` leaves out large batches.

Examples:

- `nfn-monomial bench layers --preset quick`

- `nfn-monomial bench layers --set batches=64 --set repeats=50`

- `nfn-monomial bench layers --set graphs=false`
""",
        LAYERS,
        Study(_run, lambda report, config, store: report),
        keeps=False,
    )
)
