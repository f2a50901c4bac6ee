"""Ablations: how many equivariant layers, and whether one of HNP follows (Table 24); which bilinear terms join them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from nfn_monomial.benchmarks.settings.base import Count, Seed, Some
from nfn_monomial.benchmarks.settings.register import Experiment, register
from nfn_monomial.benchmarks.settings.training import TrainConfig

from .predict import KEPT, PAPER_SEEDS, PAPER_TRAINING, ZOO, PredictConfig

__all__ = ["ABLATION", "KINDS", "STACKS", "TERMS", "AblationConfig"]

STACKS = {f"mnf-{depth}{'-hnp' * hnp}": (depth, hnp) for hnp in (True, False) for depth in (1, 2, 3)}
"""The ablation's models, in the order of the paper's table: how many equivariant layers, whether one of HNP follows."""

KINDS = ("forward", "backward", "outer", "invariants", "gates")
"""Of terms of the bilinear basis, see `nfn_monomial.benchmarks.models.terms`."""

TERMS = {
    "linear": ("linear terms alone", ()),
    **{f"linear-{kind}": (f"linear and {kind}", (kind,)) for kind in KINDS},
    **{f"without-{kind}": (f"all but {kind}", tuple(k for k in KINDS if k != kind)) for kind in KINDS},
    "bilinear": ("all terms", KINDS),
}
"""The models of the ablation of terms: label, and which of `KINDS` join the linear terms."""


@dataclass(frozen=True)
class AblationConfig(PredictConfig):
    """An ablation, see `nfn_monomial.benchmarks.studies.ablation`.

    Attributes:
        larger_seeds: of all numbers of ``train_networks`` but the smallest, in place of ``seeds``.
        larger_epochs: likewise in place of those of ``training``.
    """

    larger_seeds: Some[Seed] = (0,)
    larger_epochs: Count = 6


_ABLATION = AblationConfig(
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
    "terms": AblationConfig(
        models=(*TERMS, "stats", "monomial", "message-passing"),
        train_sets=("original",),
        scales=(1e4,),
        widen=0.0,
        left_out=("relu:linear-outer",),  # where no backward messages are, there is nothing that they could multiply
        train_networks=(500, 5000),
        training=TrainConfig(
            epochs=20, batch_size=32, learning_rate=3e-3, schedule="one-cycle", weight_decay=0.1, clip_norm=1.0,
            validate_every=2, threads=1,
        ),
    ),
}  # fmt: skip

register(
    Experiment(
        "ablation",
        f"""The paper's ablation: one to three equivariant layers, with and without a layer of HNP (Table 24).

Preset terms: which kinds of terms of the bilinear basis pay beside the linear ones, each alone and each left out, at
500 and at 5,000 training networks; an hour on one core.

Trains six stacks on the zoo's ReLU networks and tests them as `predict-generalization` does, under scales up to 1e4.
Writes `table.md`, `results.json`, `ablation.png` and `config.json`. {KEPT} About five minutes on 2 cores with a zoo of
1000 networks.

Examples:

- `nfn-monomial zoo make && nfn-monomial ablation`

- `nfn-monomial ablation --set activations=relu,tanh --seeds 1 --models mnf-1,mnf-1-hnp`

- `nfn-monomial ablation --preset terms --set train_networks=100,200 --models linear,linear-forward,bilinear`
""",
        ABLATION,
        "ablation",
        ZOO,
    )
)
