"""Predicting the accuracy of networks from their weights (paper Sec. 6.1), and its demonstration."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from nfn_monomial.benchmarks.settings.base import Count, Seed, Settings, Some
from nfn_monomial.benchmarks.settings.register import Experiment, register
from nfn_monomial.benchmarks.settings.training import LossName, TrainConfig
from nfn_monomial.errors import InvalidValueError

__all__ = [
    "COLUMN",
    "KEPT",
    "LARGE_ZOOS",
    "PAPER_SEEDS",
    "PAPER_TRAINING",
    "PREDICT",
    "SIX_ZOOS",
    "ZOO",
    "ColumnConfig",
    "ColumnTask",
    "PredictConfig",
    "Scale",
    "TrainSet",
]

KEPT = (
    "Finished runs are kept, and an unfinished one continues: a second call does only what is missing. The trained "
    "models are in `predictors/`, for the command `predict`."
)
ZOO = {"": ("zoos/digits", "nfn-monomial zoo make")}
"""Where zoos are by default, and the command that makes one."""
_DEEP, _MNIST = (
    "--channels 8,10,10,8 --set dropout=0 --set optimizers=adam,sgd",
    "--images mnist14 --channels 10,16 --set dropout=0.7 --set train_fractions=0.05,0.2",
)


def _six_zoos(folder: str, networks: int) -> dict[str, str]:
    make = f"nfn-monomial zoo make --networks {networks} --activations"
    return {
        f"{folder}/{name}": f"{make} {name.split('-')[0]} {how} --seed {seed} --out {folder}/{name}"
        for name, how, seed in (
            ("relu-wide", "--channels 14,14,14", 20261211),
            ("relu-deep", _DEEP, 20261213),
            ("relu-mnist", _MNIST, 20261215),
            ("tanh-wide", "--channels 14,14,14", 20261214),
            ("tanh-deep", _DEEP, 20261212),
            ("tanh-mnist", _MNIST, 20261216),
        )
    }


SIX_ZOOS, LARGE_ZOOS = _six_zoos("zoos/six", 2500), _six_zoos("zoos/large", 9000)
"""Zoos of other widths, depths, images, optimisers, dropout and shares of the images than those that recipes are chosen
on -> the commands that make them. Large ones begin with the same draws."""
ColumnTask = Literal["regression", "ranking", "classification"]
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
        per_scale: one set of moved copies for each of ``scales``, with scales up to it, and tested on these alone, as
            the paper does; otherwise one for all.
        widen: how many times wider the widened test networks are, 0 for none.
        loss: of the logits.
        activations: of the networks; empty for all that the data have.
        left_out: pairs ``activation:model`` that are not run.
        train_networks: learning curves: every model once for each of these numbers of training networks, which a seed
            draws, the fewer among the more, and of validation networks the same share. Empty for all there are, once.
        test_networks: how many of the test networks are asked about, the same ones for all; none for all of them.
        recipe: a file that `tune` wrote, or ``shipped`` for the recipes that were searched for the library: the models
            that it names are trained by it, whatever ``training`` says; ``plain`` for ``training`` and ``loss`` alone,
            without dropout in heads, so the same for all. None trains by these, with what a model asks for beside: ours
            for weight decay and dropout in the head.
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
    per_scale: bool = False
    widen: Annotated[float, AfterValidator(_widening)] = 1.5
    loss: LossName = "bce"
    activations: tuple[str, ...] = ()
    left_out: tuple[Annotated[str, Field(pattern="^[^:]+:[^:]+$")], ...] = ()
    train_networks: tuple[Count, ...] = ()
    test_networks: Count | None = None
    recipe: str | None = None
    training: TrainConfig = field(default_factory=TrainConfig)

    def check(self) -> None:
        sizes = self.train_networks
        if len(set(sizes)) != len(sizes):
            raise InvalidValueError(f"train_networks has a number twice: {', '.join(map(str, sizes))}")
        if sizes and len(self.train_sets) > 1:
            raise InvalidValueError(
                f"train_networks is for one train set, not {', '.join(self.train_sets)}: choose train_sets=original"
            )
        if self.per_scale and (sizes or set(self.train_sets) == {"original"}):
            raise InvalidValueError(
                "per_scale is of sets of moved copies of all training networks: choose train_sets=original,augmented, "
                "without train_networks"
            )

    def ranges(self, train_set: TrainSet) -> list[PredictConfig]:
        """Returns the configurations of one train set: this one, or with ``per_scale`` one for each of ``scales``."""
        if not self.per_scale or train_set == "original":
            return [self]
        return [replace(self, scales=(s,), augment_scale=s) for s in self.scales]

    def runs(self, networks: Collection[str], train_set: TrainSet, model: str) -> bool:
        """Returns True if a model is trained on this set of networks; ``networks``: their zoo and their activations."""
        augments = (self.augmented_models is None or model in self.augmented_models) and (
            self.augmented_activations is None or any(name in self.augmented_activations for name in networks)
        )
        left_out = any(f"{name}:{model}" in self.left_out for name in networks)
        return not left_out and (train_set == "original" or augments)


@dataclass(frozen=True)
class ColumnConfig(Settings):
    """Predicting a column of a table, see `nfn_monomial.benchmarks.studies.columns`.

    Attributes:
        models: registered names; none for three that suit the networks, and STATNN.
        seeds: one run of every model for each; the best of all runs is kept.
        training: how to train.
    """

    models: tuple[str, ...] = ()
    seeds: Some[Seed] = (0,)
    training: TrainConfig = field(
        default_factory=lambda: TrainConfig(
            epochs=60, batch_size=32, learning_rate=3e-3, schedule="one-cycle", clip_norm=1.0, validate_every=2
        )
    )


COLUMN = {
    "small": ColumnConfig(),
    "quick": ColumnConfig(training=replace(ColumnConfig().training, epochs=10)),
    "long": ColumnConfig(training=replace(ColumnConfig().training, epochs=200)),
}

# App. D.3: 50 epochs, batches of 8, Adam with 1e-3, augmentation factor 2; Sec. 6: 5 runs.
PAPER_TRAINING = TrainConfig(50, 8, 1e-3)
PAPER_SEEDS = (0, 1, 2, 3, 4)

# Six zoos that no choice was made on; every model by its recipe, if there is one, else by this training.
_ZOOS = PredictConfig(
    models=(
        *("statnn", "balanced-statnn", "np", "hnp", "gnn", "monomial", "monomial-hnp"),
        *("gram-stats", "raw-gram-stats", "message-passing-stats", "probes-stats"),
    ),
    train_sets=("original",),
    scales=(1e4,),
    widen=0,
    train_networks=(500,),
    test_networks=1250,
    recipe="shipped",
    training=TrainConfig(
        epochs=50,
        batch_size=16,
        learning_rate=3e-3,
        schedule="one-cycle",
        clip_norm=1.0,
        validate_every=5,
        threads=1,
    ),
)

PREDICT = {
    "small": PredictConfig(
        augmented_models=("statnn", "mlp", "np", "hnp", "monomial"),
        seeds=(0, 1),
        recipe="plain",
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
    # One augmented set serves all ranges of scales; one for each, as the paper has it, by per_scale=true.
    "paper": PredictConfig(
        models=("statnn", "mlp", "np", "hnp", "gnn-paper", "monomial"),
        seeds=PAPER_SEEDS,
        scales=(1e1, 1e2, 1e3, 1e4, 1e5, 1e6),
        widen=0,
        training=PAPER_TRAINING,
    ),
    "augment": PredictConfig(
        models=(
            *("statnn", "np", "hnp", "gnn"),
            *("monomial", "monomial-hnp", "message-passing-stats", "monomial-conv"),
        ),
        seeds=(0,),
        widen=0,
        recipe="plain",
        training=TrainConfig(epochs=10, batch_size=16),
    ),
    # Learning curves in the paper's setting, which stops early; after how many epochs it does not say.
    "curves": PredictConfig(
        models=(
            *("statnn", "np", "hnp", "gnn", "monomial", "monomial-hnp"),
            *("message-passing", "message-passing-stats", "combined"),
        ),
        train_sets=("original",),
        scales=(1e4,),
        widen=0,
        train_networks=(250, 500, 1000, 2500, 5000),
        recipe="plain",
        training=replace(PAPER_TRAINING, patience=10, threads=1),
    ),
    "zoos": _ZOOS,
    # Of the large zoos, with a seventh of the networks for testing, so that a seed draws 5,000 of 6,192.
    "zoos-5000": replace(_ZOOS, train_networks=(5000,)),
    "zoos-paper": replace(_ZOOS, recipe="plain", training=replace(PAPER_TRAINING, patience=10, threads=1)),
    # For a first look: one seed, and the quick models first, as a line is shown when a run is finished.
    "demo": PredictConfig(
        models=("statnn", "monomial", "combined", "message-passing-stats", "monomial-hnp", "hnp"),
        train_sets=("original",),
        augmented_models=("statnn", "monomial", "hnp"),
        augmented_activations=("relu",),
        seeds=(0,),
        left_out=("tanh:message-passing-stats", "tanh:monomial-hnp", "tanh:hnp"),
        recipe="plain",
        training=TrainConfig(epochs=8, batch_size=16, threads=1),
    ),
}


register(
    Experiment(
        "predict-generalization",
        f"""Predict the accuracy of CNNs from their weights, under permutations, scalings and sign flips (Sec. 6.1).

Trains every model on the zoo's training networks, as they are and augmented by random group elements, selects the epoch
by Kendall's tau on the validation networks, and tests on the test networks as they are, moved by the group, and with
more neurons but the same functions. Writes `table.md`, `results.json`, `figure1.png` and `config.json`. {KEPT} Networks
of different architectures are read by the models on graphs.

Presets: small, eight models, 12 epochs, some six minutes on 2 cores with a zoo of 1000 networks; paper, its models and
hyperparameters; augment, eight models, to see what moved copies teach; curves, tau over 250 to 5,000 training networks,
hours; zoos, eleven models by their recipes on 500 networks of each of six zoos, with ranks and intervals, hours, too;
zoos-paper, the same by the paper's training; zoos-5000, by recipes on 5,000 networks, days. `--models all`: all models
that can read the networks, which takes hours, most of it for those on graphs.

Examples:

- `nfn-monomial zoo make && nfn-monomial predict-generalization`

- `nfn-monomial predict-generalization --models monomial,hnp,balanced-hnp --seeds 1 --set training.epochs=5`

- `nfn-monomial predict-generalization --set widen=2 --set loss=rank --set scales=10,1e6 --set activations=relu`

- `nfn-monomial predict-generalization --data cifar10 --data-option split_file=cifar10_split.csv --preset paper
--device cuda`

- `nfn-monomial predict-generalization --preset augment --set per_scale=true --models hnp,monomial`

- `nfn-monomial predict-generalization --models statnn --set train_sets=original --set train_networks=100,200,400`

- `nfn-monomial predict-generalization --data zoos/mixed --out results/mixed --data-option unseen_architectures=true`

- `nfn-monomial predict-generalization --preset zoos --out results/zoos`

- `nfn-monomial predict-generalization --preset zoos-5000 --data-option tested=0.14 --models gram-stats,statnn`

- `torchrun --nproc-per-node 2 -m nfn_monomial.benchmarks predict-generalization`
""",
        PREDICT,
        "predict_report",
        ZOO,
        several=True,
        sets={"zoos": SIX_ZOOS, "zoos-paper": SIX_ZOOS, "zoos-5000": LARGE_ZOOS},
        out="results/predict",
    )
)
