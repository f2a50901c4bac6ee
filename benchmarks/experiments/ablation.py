"""Ablation: how many equivariant layers, and whether one of HNP follows (Table 24)."""

from __future__ import annotations

from dataclasses import replace

from nfn_monomial.benchmarks.settings.register import Experiment, register
from nfn_monomial.benchmarks.settings.training import TrainConfig

from .predict import KEPT, PAPER_SEEDS, PAPER_TRAINING, ZOO, PredictConfig

__all__ = ["ABLATION", "STACKS"]

STACKS = {f"mnf-{depth}{'-hnp' * hnp}": (depth, hnp) for hnp in (True, False) for depth in (1, 2, 3)}
"""The ablation's models, in the order of the paper's table: how many equivariant layers, whether one of HNP follows."""

_ABLATION = PredictConfig(
    models=tuple(STACKS),
    train_sets=("original",),
    scales=(1e1, 1e2, 1e3, 1e4),  # the paper's levels of augmentation 1 to 4
    widen=0.0,
    activations=("relu",),  # which the paper's table is of
    training=TrainConfig(epochs=30, batch_size=16),
)
ABLATION = {
    "small": _ABLATION,
    "paper": replace(_ABLATION, seeds=PAPER_SEEDS, training=PAPER_TRAINING),
}

register(
    Experiment(
        "ablation",
        f"""The paper's ablation: one to three equivariant layers, with and without a layer of HNP (Table 24).

Trains six stacks on the zoo's ReLU networks and tests them as `predict-generalization` does, under scales up to 1e4.
Writes `table.md`, `results.json`, `ablation.png` and `config.json`. {KEPT} About five minutes on 2 cores with a zoo of
1000 networks.

Examples:

- `nfn-monomial zoo make && nfn-monomial ablation`

- `nfn-monomial ablation --set activations=relu,tanh --seeds 1 --models mnf-1,mnf-1-hnp`
""",
        ABLATION,
        "ablation",
        ZOO,
    )
)
