"""Experiments on zoos of classifiers: predicting generalisation, its demonstration, the ablation, augmentation."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from nfn_monomial.errors import InvalidValueError

from .base import AtLeastZero, Count, Positive, Seed, Settings, Some
from .training import Dropout, LossName, Schedule, TrainConfig

__all__ = [
    "ABLATION",
    "AUGMENT",
    "PREDICT",
    "STACKS",
    "TUNE",
    "AugmentConfig",
    "PredictConfig",
    "TrainSet",
    "TuneConfig",
]

TrainSet = Literal["original", "augmented", "moved"]
Scale = Annotated[float, Field(gt=1, allow_inf_nan=False)]  # upper bound of scales [1, s]


def _widening(factor: float) -> float:
    if not (factor == 0 or 1 < factor < float("inf")):
        raise InvalidValueError("should be larger than 1, or 0 for no widened test networks")
    return factor


@dataclass(frozen=True)
class PredictConfig(Settings):
    """Predicting generalisation, see `nfn_monomial.benchmarks.studies.predict`.

    Attributes:
        models: registered names.
        train_sets: the networks as they are, augmented by moved copies, or the moved copies alone.
        augmented_models: those that are trained on the augmented set, too; none for all.
        augmented_activations: networks that they are trained on there; none for all.
        seeds: one run of every model for each; of everything random.
        scales: upper bounds of the uniform scales ``[1, s]`` of the moved test networks, where the group scales.
        augment_scale: upper bound of the scales of the augmented set's copies; none draws it for every copy from
            ``scales``.
        widen: how many times wider the widened test networks are, 0 for none.
        loss: of the logits.
        activations: of the networks; empty for all that the data have.
        left_out: pairs ``activation:model`` that are not run.
        recipe: a file that `tune` wrote, or ``shipped`` for the recipes that were searched for the library: the models
            that it names are trained by it, whatever ``training`` says. None trains all alike.
        training: how to train.
    """

    models: Some[str] = (
        "statnn", "mlp", "np", "hnp", "monomial", "monomial-hnp", "message-passing-stats", "combined",
    )  # fmt: skip
    train_sets: Some[TrainSet] = ("original", "augmented")
    augmented_models: tuple[str, ...] | None = None
    augmented_activations: tuple[str, ...] | None = None
    seeds: Some[Seed] = (0, 1, 2)
    scales: Some[Scale] = (1e1, 1e2, 1e4, 1e6)
    augment_scale: Scale | None = 10.0
    widen: Annotated[float, AfterValidator(_widening)] = 1.5
    loss: LossName = "bce"
    activations: tuple[str, ...] = ()
    left_out: tuple[Annotated[str, Field(pattern="^[^:]+:[^:]+$")], ...] = ()
    recipe: str | None = None
    training: TrainConfig = field(default_factory=TrainConfig)

    def runs(self, activation: str, train_set: TrainSet, model: str) -> bool:
        """Whether a model is trained on this set of these networks."""
        augments = (self.augmented_models is None or model in self.augmented_models) and (
            self.augmented_activations is None or activation in self.augmented_activations
        )
        return f"{activation}:{model}" not in self.left_out and (train_set == "original" or augments)


def _range(ends: tuple[float, float]) -> tuple[float, float]:
    if ends[0] > ends[1]:
        raise InvalidValueError("should be the lowest, then the highest")
    return ends


Range = Annotated[tuple[Positive, Positive], AfterValidator(_range)]


@dataclass(frozen=True)
class TuneConfig(Settings):
    """A search for how to train models, see `nfn_monomial.benchmarks.studies.tune`.

    Attributes:
        models: registered names. Each gets one recipe for all networks.
        activations: of the networks; empty for all that the data have.
        trials: recipes that are tried for each model.
        seconds: of the CPU, after which no more recipes are tried for a model; none for no limit.
        folds: parts that the training networks are cut into.
        cuts: so many of the parts are, one after the other, what a recipe is judged on; the other parts train.
        startup: recipes that are drawn at random, and as many finished ones before one is given up for being behind.
        learning_rate: searched between these, on a logarithmic scale.
        weight_decay: likewise.
        epochs: likewise.
        batch_size: one of these.
        schedule: likewise.
        average_epochs: likewise.
        loss: likewise.
        heads: likewise, see `Head`; of models that have them, as what follows.
        head_width: likewise.
        head_dropout: likewise.
        seeds: of the trainings that confirm a recipe; the first is that of the search, too.
        training: what is not searched, and how models are trained without a recipe.
    """

    models: Some[str] = ("stats", "message-passing-stats", "probes", "combined")
    activations: tuple[str, ...] = ()
    trials: Count = 40
    seconds: Positive | None = None
    folds: Annotated[int, Field(ge=2, le=100)] = 4
    cuts: Count = 2
    startup: Count = 8
    learning_rate: Range = (5e-4, 2e-2)
    weight_decay: Range = (1e-3, 1.0)
    epochs: Annotated[tuple[Count, Count], AfterValidator(_range)] = (20, 120)
    batch_size: Some[Count] = (16, 32, 64)
    schedule: Some[Schedule] = ("constant", "cosine", "one-cycle")
    average_epochs: Some[AtLeastZero] = (0.0, 2.0)
    loss: Some[LossName] = ("bce", "mse", "rank", "quantile")
    heads: Some[Count] = (1, 4)
    head_width: Some[Count] = (128, 256)
    head_dropout: Some[Dropout] = (0.1, 0.3, 0.5)
    seeds: Some[Seed] = (0, 1, 2)
    training: TrainConfig = field(
        default_factory=lambda: TrainConfig(epochs=40, batch_size=16, clip_norm=1.0, validate_every=2)
    )

    def check(self) -> None:
        if self.cuts > self.folds:
            raise InvalidValueError(f"cuts is {self.cuts}, but there are {self.folds} folds: set no more than these")


TUNE = {"small": TuneConfig()}


# App. D.3: 50 epochs, batches of 8, Adam with 1e-3, augmentation factor 2; Sec. 6: 5 runs.
PAPER_TRAINING = TrainConfig(50, 8, 1e-3)
PAPER_SEEDS = (0, 1, 2, 3, 4)

PREDICT = {
    "small": PredictConfig(
        augmented_models=("statnn", "mlp", "np", "hnp", "monomial"),
        seeds=(0, 1),
        training=TrainConfig(epochs=12, batch_size=16),
    ),
    # Each model by its recipe; `training` is for those that none was searched for.
    "tuned": PredictConfig(
        models=("statnn", "balanced-statnn", "stats", "probes-stats", "combined"),
        train_sets=("original",),
        recipe="shipped",
        training=TrainConfig(
            epochs=50, batch_size=16, learning_rate=3e-3, schedule="one-cycle", clip_norm=1.0, validate_every=5
        ),
    ),
    # One augmented set serves all ranges of scales; one for each, as the paper has it, is `augment --preset paper`.
    "paper": PredictConfig(
        models=("statnn", "mlp", "np", "hnp", "gnn-paper", "monomial"),
        seeds=PAPER_SEEDS,
        scales=(1e1, 1e2, 1e3, 1e4, 1e5, 1e6),
        widen=0,
        training=PAPER_TRAINING,
    ),
    # For a first look: one seed, and the quick models first, as a line is shown when a run is finished.
    "demo": PredictConfig(
        models=("statnn", "monomial", "combined", "message-passing-stats", "monomial-hnp", "hnp"),
        train_sets=("original",),
        augmented_models=("statnn", "monomial", "hnp"),
        augmented_activations=("relu",),
        seeds=(0,),
        left_out=("tanh:message-passing-stats", "tanh:monomial-hnp", "tanh:hnp"),
        training=TrainConfig(epochs=8, batch_size=16, threads=1),
    ),
}


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
ABLATION = {"small": _ABLATION, "paper": replace(_ABLATION, seeds=PAPER_SEEDS, training=PAPER_TRAINING)}


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
