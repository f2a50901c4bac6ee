"""Augmentation against symmetry (Figure 1, Tables 2 and 12 to 15)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from nfn_monomial.benchmarks.settings.base import Count, Seed, Settings, Some
from nfn_monomial.benchmarks.settings.register import Experiment, register
from nfn_monomial.benchmarks.settings.training import TrainConfig

from .predict import KEPT, PAPER_SEEDS, PAPER_TRAINING, ZOO, PredictConfig, Scale

__all__ = ["AUGMENT", "AugmentConfig"]


@dataclass(frozen=True)
class AugmentConfig(Settings):
    """Augmentation against symmetry, see `nfn_monomial.benchmarks.studies.augment`.

    Attributes:
        models: of the curves of tau.
        activations: of the networks; empty for all that the data have.
        scales: upper bounds of the uniform scales ``[1, s]`` of the moved test networks.
        per_scale: one augmented set for each range of scales, tested on that range, as the paper does; otherwise one
            for all, with scales up to ``augment_scale``.
        augment_scale: of that one set.
        seeds: of everything random; results are means over them.
        training: how to train.
        curve_models: models whose training curves on original and on moved networks are compared; empty for none.
        curve_scale: upper bound of the moved networks' scales.
        curve_networks: how many networks to train on there, and at most to validate and test on; None for all.
        curve_epochs: epochs there.
    """

    models: Some[str] = (
        "statnn", "np", "hnp", "gnn", "monomial", "monomial-hnp", "message-passing-stats", "monomial-conv",
    )  # fmt: skip
    activations: tuple[str, ...] = ()
    scales: Some[Scale] = (1e1, 1e2, 1e3, 1e4, 1e5, 1e6)
    per_scale: bool = False
    augment_scale: Scale = 10.0
    seeds: Some[Seed] = (0, 1, 2)
    training: TrainConfig = field(default_factory=TrainConfig)
    curve_models: tuple[str, ...] = ("monomial", "message-passing", "statnn", "hnp")
    curve_scale: Scale = 1e2
    curve_networks: Count | None = 100
    curve_epochs: Count = 10

    def check(self) -> None:
        if self.curve_models:
            self.curve_plan()  # which checks them

    def plans(self) -> list[PredictConfig]:
        """What predict-generalization has to do for the curves of tau."""
        base = PredictConfig(
            self.models, ("original",), seeds=self.seeds, scales=self.scales, widen=0.0, activations=self.activations,
            training=self.training,
        )  # fmt: skip
        if not self.per_scale:
            return [replace(base, train_sets=("original", "augmented"), augment_scale=self.augment_scale)]
        ranges = [replace(base, train_sets=("augmented",), scales=(s,), augment_scale=s) for s in self.scales]
        return [base, *ranges]

    def curve_plan(self) -> PredictConfig:
        """The same for the training curves."""
        return PredictConfig(
            self.curve_models,
            ("original", "moved"),
            seeds=self.seeds[:1],
            scales=(self.curve_scale,),
            augment_scale=self.curve_scale,
            widen=0.0,
            activations=self.activations,
            training=replace(self.training, epochs=self.curve_epochs, patience=None, precision="64-true"),
        )


AUGMENT = {
    "small": AugmentConfig(
        scales=(1e1, 1e2, 1e4, 1e6), seeds=(0,), training=TrainConfig(epochs=10, batch_size=16), curve_networks=64
    ),
    "paper": AugmentConfig(
        seeds=PAPER_SEEDS, per_scale=True, training=PAPER_TRAINING, curve_networks=None, curve_epochs=50
    ),
}

register(
    Experiment(
        "augment",
        f"""Augmentation against symmetry: tau under scales up to 1e6 (Figure 1, Tables 2, 12 to 15), training curves.

Trains models on the networks as they are and augmented by random group elements, and tests them as
`predict-generalization` does; with `per_scale`, with an augmented set for every range of scales, as the paper. Then
trains on moved copies of the networks alone, in float64: the loss of an invariant model is the one on the original
networks, to rounding. Writes `table.md`, `results.json`, `figure1.png`, `training_curves.png` and `config.json`. {KEPT}
About ten minutes on 2 cores with a zoo of 1000 networks.

Examples:

- `nfn-monomial augment --models hnp,monomial --set scales=10,1e6`

- `nfn-monomial augment --set per_scale=true --set curve_models=`

- `nfn-monomial augment --data cifar10 --preset paper --device cuda`
""",
        AUGMENT,
        "augment",
        ZOO,
    )
)
