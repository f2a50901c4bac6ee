"""Predicting a CNN's test accuracy from its weights (paper Sec. 6.1): every model, train set and seed, all test sets.

Every model gets the same networks, the same epochs, batches and optimiser, and is selected by Kendall's tau on the
validation networks alone. Each is then tested on the test networks as they are and on the same networks moved by
random elements of their symmetry group, which leave every network's function, and so its accuracy, unchanged.

**Train sets.** ``original``, and ``augmented``: factor 2 as in the paper (App. D.3), each network once more, moved by a
random group element; the validation networks likewise. The paper trains and tests once per range of scales; here one
augmented set serves all test sets. Its range is [1, 10] by default, the one that serves the models without the symmetry
best on all test sets together: wider ranges, and the test sets' ranges mixed, make their training unstable.

**Group elements** are drawn once per (test set, seed): all models of a seed meet the same moved networks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Literal, get_args

import numpy as np
import torch
from scipy.stats import kendalltau, rankdata
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from nfn_monomial import WeightSpace, __version__

from .models import NetworkInfo, build_model, model_class
from .runs import Run, RunSettings, RunStore, TestResult, environment
from .training import Data, Epoch, TrainConfig, derive_seed, fit, make_fabric, predict
from .zoo_format import Networks, Zoo
from .zoo_layout import cnn_geometry

__all__ = [
    "DEFAULT_MODELS",
    "PredictConfig",
    "Progress",
    "TestSet",
    "TrainSet",
    "augment",
    "predict_generalization",
    "scores",
    "space_of",
    "test_sets",
    "transform",
]

TrainSet = Literal["original", "augmented"]
DEFAULT_MODELS = ("statnn", "mlp", "np", "hnp", "monomial", "monomial-hnp")


@dataclass(frozen=True)
class PredictConfig:
    """The experiment. ``scales``: upper bounds of the uniform scales ``[1, s]`` of the moved test networks, where the
    group scales. ``augmented_models`` and ``augmented_activations``: those that are trained on the augmented set
    too; None for all. ``augment_scale``: upper bound of the scales of that set; None draws it for every copy from
    ``scales``.
    """

    models: tuple[str, ...] = DEFAULT_MODELS
    train_sets: tuple[TrainSet, ...] = ("original", "augmented")
    augmented_models: tuple[str, ...] | None = None
    augmented_activations: tuple[str, ...] | None = None
    seeds: tuple[int, ...] = (0, 1, 2)
    scales: tuple[float, ...] = (1e1, 1e2, 1e4, 1e6)
    augment_scale: float | None = 10.0
    training: TrainConfig = field(default_factory=TrainConfig)

    def __post_init__(self) -> None:
        for name in (*self.models, *(self.augmented_models or ())):
            model_class(name)
        if unknown := set(self.train_sets) - set(get_args(TrainSet)):
            raise ValueError(f"unknown train set {sorted(unknown)}: choose from {', '.join(get_args(TrainSet))}")
        for name in ("models", "train_sets", "seeds"):
            values = getattr(self, name)
            if not values or len(set(values)) != len(values):
                raise ValueError(f"{name} is {values}: give at least one, and none twice")
        if not self.scales or not all(s > 1 for s in (*self.scales, self.augment_scale or 2)):
            raise ValueError(f"scales {self.scales} and augment_scale {self.augment_scale} must be larger than 1")

    def _augments(self, model: str, activation: str) -> bool:
        return (self.augmented_models is None or model in self.augmented_models) and (
            self.augmented_activations is None or activation in self.augmented_activations
        )

    def plan(self, zoos: Mapping[str, Zoo]) -> list[tuple[RunSettings, Zoo]]:
        """All runs, seed by seed, so that an interrupted experiment has whole rows for its first seeds."""
        data = {activation: fingerprint(zoo) for activation, zoo in zoos.items()}
        scales = {activation: self.scales if _scales(space_of(zoo)) else () for activation, zoo in zoos.items()}
        planned = []
        for seed in self.seeds:
            for activation, zoo in zoos.items():
                for train_set in self.train_sets:
                    for model in self.models:
                        if train_set == "augmented" and not self._augments(model, activation):
                            continue
                        own_scale = self.augment_scale if train_set == "augmented" and scales[activation] else None
                        settings = RunSettings(
                            activation, model, train_set, seed, scales[activation], own_scale, self.training,
                            data[activation], __version__,
                        )  # fmt: skip
                        planned.append((settings, zoo))
        return planned


@dataclass(frozen=True)
class Progress:
    """Where the experiment stands: ``number`` of ``total`` runs; ``kept`` if it was there already; the last epoch."""

    settings: RunSettings
    number: int
    total: int
    kept: bool = False
    epoch: Epoch | None = None
    run: Run | None = None


@dataclass(frozen=True)
class TestSet:
    """Test networks, as they are (``scale`` None, name ``original``) or moved by the group."""

    __test__ = False  # not a test case, whatever pytest makes of the name

    name: str
    scale: float | None
    networks: Networks


def predict_generalization(
    zoos: Mapping[str, Zoo],
    config: PredictConfig,
    store: RunStore,
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> list[Run]:
    """Do all runs that the store does not have; returns all, kept and new, in the order of the plan.

    A run is stored when it is finished, so an interruption loses at most the one in progress.

    Args:
        zoos: activation -> networks.
        config: see `PredictConfig`.
        store: where finished runs are kept.
        on_progress: called before a run, after each of its epochs and when it is finished.
    """
    make_fabric(config.training)  # a device that is not there should be found out now, not after minutes
    for zoo in zoos.values():
        for part in (zoo.val, zoo.test):
            if len(part) < 2 or bool((part.accuracy == part.accuracy[0]).all()):
                raise ValueError(
                    f"{len(part)} {zoo.activation} networks to validate or test on, all with accuracy "
                    f"{part.accuracy[:1].tolist()}: tau needs networks that differ; use a larger zoo"
                )
    planned = config.plan(zoos)
    runs = []
    for number, (settings, zoo) in enumerate(planned, start=1):
        run = store.load(settings)
        kept = run is not None
        if run is None:
            on_progress(Progress(settings, number, len(planned)))

            def report(epoch: Epoch, settings: RunSettings = settings, number: int = number) -> None:
                on_progress(Progress(settings, number, len(planned), epoch=epoch))

            run, state = train_and_test(settings, zoo, report)
            store.save(run, state)
        on_progress(Progress(settings, number, len(planned), kept, run=run))
        runs.append(run)
    return runs


def train_and_test(
    settings: RunSettings, zoo: Zoo, on_epoch: Callable[[Epoch], None] = lambda epoch: None
) -> tuple[Run, dict[str, Tensor]]:
    """One run; returns it and the parameters of the selected epoch."""
    space, seed = space_of(zoo), settings.seed
    model = build_model(settings.model, NetworkInfo(space, zoo.activation), seed=derive_seed(seed, "model"))

    def prepared(networks: Networks) -> Data:
        return Data(model.prepare(_with_channel(networks.tensors)), networks.accuracy)

    # Inputs are standardised by the networks as they are: scales of 1e6 among the copies would squash all others to 0.
    model.fit_inputs(prepared(zoo.train).inputs)
    train, val = zoo.train, zoo.val
    if settings.train_set == "augmented":
        ranges = settings.scales if settings.augment_scale is None else (settings.augment_scale,)
        ranges = ranges or (1.0,)
        train = augment(train, space, ranges, derive_seed(seed, "augment train"))
        val = augment(val, space, ranges, derive_seed(seed, "augment val"))
    fabric = make_fabric(settings.training)
    fitted = fit(
        model, prepared(train), prepared(val), settings.training,
        loss=binary_cross_entropy_with_logits, metrics=scores, select="tau", seed=seed, fabric=fabric,
        on_epoch=on_epoch,
    )  # fmt: skip
    results = []
    for test in test_sets(zoo.test, space, settings.scales, seed):
        data = prepared(test.networks).to(fabric.device)
        logits = predict(model, data.inputs)
        lost = int((~torch.isfinite(logits)).sum())
        results.append(TestResult(test.name, test.scale, **scores(logits, data.targets), non_finite=lost))
    run = Run(
        settings,
        label=model.label,
        invariant_under=model.invariant_under,
        parameters=sum(p.numel() for p in model.parameters()),
        networks={"train": len(train), "val": len(val), "test": len(zoo.test)},
        tests=tuple(results),
        val_tau=fitted.best.metrics["tau"],
        best_epoch=fitted.best.number,
        seconds_per_epoch=fitted.seconds_per_epoch,
        step_share=fitted.step_share,
        peak_bytes=fitted.peak_bytes,
        diverged=fitted.diverged,
        history=tuple(asdict(epoch) for epoch in fitted.history),
        environment=environment(settings.training.device),
    )
    return run, model.state_dict()


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


def space_of(zoo: Zoo) -> WeightSpace:
    """The weight space of a zoo's networks: convolutions, global pooling, dense layers, its activation's symmetry."""
    geometry = cnn_geometry(zoo.layout)
    depth = len(geometry.kernel_sizes) + len(geometry.head)
    bias = [f"bias.{i}" in zoo.train.tensors for i in range(depth)]
    return WeightSpace.cnn(
        geometry.channels, geometry.kernel_sizes, zoo.activation, head=geometry.head, bias=bias
    )  # fmt: skip


def transform(networks: Networks, space: WeightSpace, scale: float, seed: int) -> Networks:
    """Every network moved by a random element of its own: permuted, and scaled in ``[1, scale]`` or sign-flipped."""
    generator = torch.Generator().manual_seed(seed)
    element = space.sample(len(networks), scale_range=(1.0, scale), generator=generator)
    return Networks(element.act(networks.tensors), networks.accuracy)


def test_sets(test: Networks, space: WeightSpace, scales: tuple[float, ...], seed: int) -> Iterator[TestSet]:
    """The test networks as they are, then moved: once per scale, or once if the group does not scale."""
    yield TestSet("original", None, test)
    if not _scales(space):
        flips = any(node.symmetry.flips for node in space.nodes.values())
        moved = transform(test, space, 1.0, derive_seed(seed, "test"))
        yield TestSet("sign flips" if flips else "permuted", None, moved)
        return
    for scale in scales:
        yield TestSet(f"scale {scale:g}", scale, transform(test, space, scale, derive_seed(seed, "test", scale)))


test_sets.__test__ = False  # type: ignore[attr-defined]


def augment(networks: Networks, space: WeightSpace, scales: tuple[float, ...], seed: int) -> Networks:
    """The networks, then a moved copy of each whose range of scales is drawn from ``scales``."""
    generator = torch.Generator().manual_seed(derive_seed(seed, "ranges"))
    choice = torch.randint(len(scales), (len(networks),), generator=generator)
    tensors = {name: torch.cat([t, t]) for name, t in networks.tensors.items()}
    for i, scale in enumerate(scales):
        rows = (choice == i).nonzero().flatten()
        if len(rows):
            moved = transform(networks.subset(rows), space, scale, derive_seed(seed, scale))
            for name, t in moved.tensors.items():
                tensors[name][len(networks) + rows] = t
    return Networks(tensors, torch.cat([networks.accuracy, networks.accuracy]))


def fingerprint(zoo: Zoo) -> str:
    """A hash over all networks and accuracies, so that results are never taken for those of other data."""
    digest = hashlib.sha256(zoo.activation.encode())
    for part in (zoo.train, zoo.val, zoo.test):
        for name, tensor in sorted({**part.tensors, "accuracy": part.accuracy}.items()):
            digest.update(f"{name}{tuple(tensor.shape)}".encode())
            digest.update(tensor.contiguous().numpy().data)
    return digest.hexdigest()[:16]


def _scales(space: WeightSpace) -> bool:
    return any(node.symmetry.scales for node in space.nodes.values())


def _with_channel(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: t.unsqueeze(1) for name, t in tensors.items()}
