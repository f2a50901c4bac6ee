"""Predicting a CNN's test accuracy from its weights (paper Sec. 6.1): every model, train set and seed, all test sets.

Every model gets the same networks, the same epochs, batches and optimiser (unless it asks for others, see
`Model.train_with`), and is selected by Kendall's tau on the validation networks alone. Each is then tested on the test
networks as they are, on the same networks moved by random elements of their symmetry group, and on the same networks
widened; neither changes any network's function, and so its accuracy.

**Train sets.** ``original``, and ``augmented``: factor 2 as in the paper (App. D.3), each network once more, moved by a
random group element; the validation networks likewise. The paper trains and tests once per range of scales; here one
augmented set serves all test sets. Its range is [1, 10] by default, the one that serves the models without the symmetry
best on all test sets together: wider ranges, and the test sets' ranges mixed, make their training unstable.
``moved``: the moved copies of the augmented set alone, for which an invariant model cannot be told from the original.

**Group elements** are drawn once per (test set, seed): all models of a seed meet the same moved networks.

**Losses**, of the logits: ``bce``, binary cross-entropy against the accuracy, as published; ``mse``, squared error of
the predicted accuracy; ``rank``, ``bce`` and the logistic loss of all pairs in a minibatch, which is a smooth tau.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

import numpy as np
import torch
from scipy.stats import kendalltau, rankdata
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, mse_loss, softplus

from nfn_monomial import __version__
from nfn_monomial.benchmarks.data.batches import prepared
from nfn_monomial.benchmarks.data.moves import augment, test_sets
from nfn_monomial.benchmarks.data.networks import Corpus, Parts, accuracies, fingerprint, groups_of, looked_at
from nfn_monomial.benchmarks.models import baselines, graphs, invariant  # noqa: F401  (which register their models)
from nfn_monomial.benchmarks.models.base import (
    BALANCED,
    MixedInfo,
    NetworkInfo,
    build_model,
    model_class,
    model_names,
    require_task,
)
from nfn_monomial.benchmarks.train.loop import Loss, TrainConfig, derive_seed
from nfn_monomial.benchmarks.train.runs import Run, RunSettings, RunStore
from nfn_monomial.benchmarks.train.sweep import Job, Progress, Test, Trial, sweep

__all__ = [
    "DEMO_MODELS",
    "LOSSES",
    "PRESETS",
    "PredictConfig",
    "TrainSet",
    "behind_balance",
    "default_models",
    "predict_generalization",
    "require_readable",
    "scores",
]

TrainSet = Literal["original", "augmented", "moved"]
DEMO_MODELS = ("statnn", "mlp", "np", "hnp", "monomial", "monomial-hnp", "message-passing-stats", "combined")


def _mse(logits: Tensor, accuracy: Tensor) -> Tensor:
    return mse_loss(torch.sigmoid(logits), accuracy)


def _rank(logits: Tensor, accuracy: Tensor) -> Tensor:
    order = torch.sign(accuracy[:, None] - accuracy)
    pairs = softplus(-order * (logits[:, None] - logits)) * order.abs()
    wrong: Tensor = pairs.sum() / order.abs().sum().clamp(min=1)
    return binary_cross_entropy_with_logits(logits, accuracy) + wrong


LOSSES: dict[str, Loss] = {"bce": binary_cross_entropy_with_logits, "mse": _mse, "rank": _rank}


def default_models(corpora: Mapping[str, Corpus]) -> tuple[str, ...]:
    """All models that can read all of these networks, and two baselines behind the canonical form."""
    infos = [corpus.info for corpus in corpora.values()]
    names = (*model_names(), f"{BALANCED}statnn", f"{BALANCED}hnp")
    return tuple(name for name in names if all(_reads(name, info) for info in infos))


def _reads(name: str, info: NetworkInfo | MixedInfo) -> bool:
    try:
        build_model(name, info, seed=0)
    except ValueError:
        return False
    return True


def behind_balance(names: Sequence[str]) -> tuple[str, ...]:
    """The same models, those that are invariant to permutations only behind the canonical form (`balance`)."""
    return tuple(BALANCED + n if model_class(n).invariant_under == "permutations" else n for n in names)


@dataclass(frozen=True)
class PredictConfig:
    """The experiment. ``scales``: upper bounds of the uniform scales ``[1, s]`` of the moved test networks, where the
    group scales. ``augmented_models`` and ``augmented_activations``: those that are trained on the augmented set
    too; None for all. ``augment_scale``: upper bound of the scales of that set's copies; None draws it for every copy
    from ``scales``. ``widen``: how many times wider the widened test networks are, 0 for none. ``loss``: see `LOSSES`.
    """

    models: tuple[str, ...] = DEMO_MODELS
    train_sets: tuple[TrainSet, ...] = ("original", "augmented")
    augmented_models: tuple[str, ...] | None = None
    augmented_activations: tuple[str, ...] | None = None
    seeds: tuple[int, ...] = (0, 1, 2)
    scales: tuple[float, ...] = (1e1, 1e2, 1e4, 1e6)
    augment_scale: float | None = 10.0
    widen: float = 1.5
    loss: str = "bce"
    training: TrainConfig = field(default_factory=TrainConfig)

    def __post_init__(self) -> None:
        require_task((*self.models, *(self.augmented_models or ())), "generalization", "ablation")
        if unknown := set(self.train_sets) - set(get_args(TrainSet)):
            raise ValueError(f"unknown train set {sorted(unknown)}: choose from {', '.join(get_args(TrainSet))}")
        for name in ("models", "train_sets", "seeds"):
            values = getattr(self, name)
            if not values or len(set(values)) != len(values):
                raise ValueError(f"{name} is {values}: give at least one, and none twice")
        if not self.scales or not all(s > 1 for s in (*self.scales, self.augment_scale or 2)):
            raise ValueError(f"scales {self.scales} and augment_scale {self.augment_scale} must be larger than 1")
        if not (self.widen == 0 or 1 < self.widen < float("inf")):
            raise ValueError(f"widen is {self.widen}, but must be larger than 1, or 0 for no widened test networks")
        if self.loss not in LOSSES:
            raise ValueError(f"unknown loss {self.loss!r}: choose from {', '.join(LOSSES)}")

    def _augments(self, model: str, activation: str) -> bool:
        return (self.augmented_models is None or model in self.augmented_models) and (
            self.augmented_activations is None or activation in self.augmented_activations
        )

    def plan(self, corpora: Mapping[str, Corpus]) -> list[Job]:
        """All runs, seed by seed, so that an interrupted experiment has whole rows for its first seeds."""
        data = {name: fingerprint(corpus) for name, corpus in corpora.items()}
        return [
            _job(self._settings(name, model, train_set, seed, corpus.scales, data[name]), corpus)
            for seed in self.seeds
            for name, corpus in corpora.items()
            for train_set in self.train_sets
            for model in self.models
            if train_set == "original" or self._augments(model, name)
        ]

    def _settings(
        self, activation: str, model: str, train_set: TrainSet, seed: int, scaled: bool, data: str
    ) -> RunSettings:
        own = dict(model_class(model).train_with)
        loss = own.pop("loss", self.loss)
        options = {
            "scales": self.scales if scaled else (),
            "augment_scale": self.augment_scale if train_set != "original" and scaled else None,
            "widen": self.widen if model_class(model).any_width else 0.0,
        }
        return RunSettings(
            experiment="predict-generalization",
            subject=activation,
            model=model,
            train_set=train_set,
            seed=seed,
            options=options,
            loss=loss,
            training=replace(self.training, **own),
            data=data,
            version=__version__,
        )


_PAPER_MODELS = ("statnn", "mlp", "np", "hnp", "gnn", "monomial")
PRESETS = {
    "small": PredictConfig(
        augmented_models=("statnn", "mlp", "np", "hnp", "monomial"),
        seeds=(0, 1),
        training=TrainConfig(epochs=12, batch_size=16),
    ),
    # App. D.3: 50 epochs, batches of 8, Adam with 1e-3, augmentation factor 2; Sec. 6: 5 runs.
    # One augmented set serves all ranges of scales; one for each, as the paper has it, is `augment --preset paper`.
    "paper": PredictConfig(
        models=_PAPER_MODELS,
        seeds=(0, 1, 2, 3, 4),
        scales=(1e1, 1e2, 1e3, 1e4, 1e5, 1e6),
        widen=0,
        training=TrainConfig(50, 8, 1e-3),
    ),
}


def predict_generalization(
    corpora: Mapping[str, Corpus],
    config: PredictConfig,
    store: RunStore,
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> list[Run]:
    """Do all runs that the store does not have; returns all, kept and new, in the order of the plan.

    See `sweep`: a second call does only what is missing.

    Args:
        corpora: activation -> networks, see `load_generalization`.
        config: see `PredictConfig`.
        store: where finished runs are kept.
        on_progress: called before a run, after each of its epochs and when it is finished.

    Raises:
        ValueError: if a device is not there, or as `require_readable`.
    """
    require_readable(corpora, config.models)
    return sweep(config.plan(corpora), store, on_progress)


def require_readable(corpora: Mapping[str, Corpus], names: Sequence[str]) -> None:
    """Check before hours of work that it can be done.

    Raises:
        ValueError: if a model cannot read the networks, or tau means nothing on them.
    """
    for corpus in corpora.values():
        for name in names:
            build_model(name, corpus.info, seed=0)
        for parts in (corpus.val, corpus.test):
            accuracy = accuracies(parts)
            same = bool((accuracy == accuracy[:1]).all())
            if len(accuracy) < 3 or same:
                what = f"all with accuracy {accuracy[:1].tolist()}" if same else "which are too few"
                raise ValueError(
                    f"{len(accuracy)} {corpus.activation} networks to validate or test on, {what}: tau needs three or "
                    "more that differ; use a larger zoo"
                )


def _job(settings: RunSettings, corpus: Corpus) -> Job:
    copies = 2 if settings.train_set == "augmented" else 1
    parts = {"train": (copies, corpus.train), "val": (copies, corpus.val), "test": (1, corpus.test)}
    networks = {name: n * sum(map(len, part)) for name, (n, part) in parts.items()}
    return Job(settings, networks, lambda: _trial(settings, corpus))


def _trial(settings: RunSettings, corpus: Corpus) -> Trial:
    seed, options = settings.seed, settings.options
    model = build_model(settings.model, corpus.info, seed=derive_seed(seed, "model"))

    def tests() -> Iterator[Test]:
        for test in test_sets(corpus, options["scales"], options["widen"], seed):
            yield Test(test.name, prepared(test.parts, model.prepare_groups), test.scale)

    # Inputs are standardised by the networks as they are: scales of 1e6 among the copies would squash all others to 0.
    model.fit_inputs(model.prepare_groups(groups_of(looked_at(corpus.train))))
    train, val = corpus.train, corpus.val
    if settings.train_set != "original":
        ranges = options["scales"] if options["augment_scale"] is None else [options["augment_scale"]]
        ranges = ranges or [1.0]
        train = augment(train, ranges, derive_seed(seed, "augment train"))
        val = augment(val, ranges, derive_seed(seed, "augment val"))
    if settings.train_set == "moved":
        train, val = _copies(train), _copies(val)
    data = {"train": prepared(train, model.prepare_groups), "val": prepared(val, model.prepare_groups)}
    return Trial(model, **data, tests=tests, loss=LOSSES[settings.loss], metrics=scores, select="tau")


def _copies(augmented: Parts) -> Parts:
    """The second half of every part: `augment`'s moved networks, in the order of those they were made of."""
    return tuple(replace(part, networks=part.networks.subset(slice(len(part) // 2, None))) for part in augmented)


def scores(logits: Tensor, accuracy: Tensor) -> dict[str, float]:
    """Kendall's tau-b and R2 of predicted accuracies ``sigmoid(logits)`` against the true ones.

    Both are finite whatever a model answers: a NaN counts as the lowest logit (below all others, equal to other NaNs
    and to -inf), and where all answers are equal, so that there is no ranking, tau is 0.

    Args:
        logits: ``(N,)``.
        accuracy: ``(N,)`` in [0, 1], not all equal.
    """
    predicted = np.nan_to_num(logits.detach().cpu().double().numpy(), nan=-np.inf, posinf=np.inf, neginf=-np.inf)
    true = accuracy.detach().cpu().double().numpy()
    # Ranks, because the logits may be infinite; and of logits, because the sigmoid of large ones is 1.
    ranks = rankdata(predicted, method="dense")
    tau = kendalltau(ranks, true, method="asymptotic").statistic if ranks.max() > 1 else 0.0
    estimate = torch.sigmoid(torch.from_numpy(predicted)).numpy()
    r2 = 1 - np.square(true - estimate).sum() / np.square(true - true.mean()).sum()
    return {"tau": float(tau), "r2": float(r2)}
