"""Time and memory: of training every model, and of single layers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field

from nfn_monomial.benchmarks.settings.base import Count, Settings, Some
from nfn_monomial.benchmarks.settings.register import Experiment, News, Said, Study, register
from nfn_monomial.errors import InvalidValueError

__all__ = ["LAYERS", "REFERENCE", "CostConfig", "LayersConfig", "Way"]

REFERENCE = "hnp"  # what costs are compared with
CONTENDERS = ("forward-scale-gmn",)  # whose costs are measured, though it is not among the models of experiments


@dataclass(frozen=True)
class CostConfig(Settings):
    """Run time and memory of training, see `nfn_monomial.benchmarks.studies.cost`.

    Attributes:
        models: registered names, `REFERENCE` among them; empty for all that predict generalisation, and `CONTENDERS`.
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
    )
)

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


def _run(data: Any, config: LayersConfig, store: Any, tell: Callable[[News], None]) -> Any:
    speed = import_module("nfn_monomial.benchmarks.speed.graphs")
    return speed.bench_speed(config, lambda text: tell(Said(f"timing {text}")))


register(
    Experiment(
        "bench layers",
        """Time one layer, and a stack of three, against nfn's layers and the matrix products that no layer can avoid.

On the Small CNN Zoo's network and the SIREN 2-32-32-1, forward and forward + backward; contenders take turns, so the
ratios are of one run. Then message passing: dense layers against the same on graphs and PNAConv, in time and memory.
Use an idle machine. Writes `table.md`, `results.json` and `config.json`.

The preset `quick` (five minutes) leaves out large batches, and adds training steps of whole models, as they
are, in bfloat16 and compiled (which needs a C++ compiler; with the seconds that it takes), the time of the import, and
of building layers on a network of 1,000 tensors.

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
