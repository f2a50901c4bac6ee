"""Classifying INRs: which image does a sine network show, read off its weights (paper Sec. 6.2, App. D.4)?

Every model gets the same networks, prepared alike (`InputConfig`). Epochs are selected by the accuracy on the
validation networks alone, the loss decides between equal ones. Each model is then tested on the test networks as they
are (``original``), on the same networks moved by random elements of their symmetry group (``moved``: sign flips and
permutations), and on the same networks with other phases (``shifted``, see `shift_phase`); neither changes any image.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, one_hot

from nfn_monomial import __version__
from nfn_monomial.benchmarks.data.rows import TensorRows
from nfn_monomial.benchmarks.data.sirens import InrCorpus, InrPart, Siren
from nfn_monomial.benchmarks.models import baselines, graphs, inr, invariant  # noqa: F401  (which register their models)
from nfn_monomial.benchmarks.models.base import build_model, model_class, model_options, require_task
from nfn_monomial.benchmarks.models.inr import inr_info
from nfn_monomial.benchmarks.models.inr_input import Classifier, InputConfig
from nfn_monomial.benchmarks.train.loop import Data, DataSet, Loss, StreamedData, TrainConfig, derive_seed
from nfn_monomial.benchmarks.train.runs import Run, RunSettings, RunStore
from nfn_monomial.benchmarks.train.sweep import Job, Progress, Test, Trial, sweep
from nfn_monomial.canonical import absorb_omega, shift_phase

__all__ = [
    "LOSSES",
    "PRESETS",
    "ClassifyConfig",
    "Sizes",
    "classify_inrs",
    "confusion",
    "fingerprint",
    "scores",
    "subset",
]

LARGEST = 1e4  # logits are cut off there, so that losses are finite
SHIFTS = 2  # phases of the shifted test networks: up to so many times pi, either way
BLOCK = 4096  # networks that are read at once for the fingerprint
LOOKED_AT = 10_000  # training networks that input statistics are taken of, at most


def _bce(logits: Tensor, labels: Tensor) -> Tensor:
    return binary_cross_entropy_with_logits(logits, one_hot(labels, logits.shape[-1]).to(logits.dtype))


LOSSES: dict[str, Loss] = {"cross-entropy": cross_entropy, "bce": _bce}


@dataclass(frozen=True)
class Sizes:
    """Of the models, where they have them: see `nfn_monomial.benchmarks.models.inr`."""

    hidden: int = 64
    width: int = 256
    attention: int = 256
    head: int = 1000
    dropout: float = 0.0
    fourier: int = 128
    fourier_scale: float = 10.0
    channels: int = 32
    rounds: int = 3
    features: int = 32
    probes: int = 64

    def of(self, model: str) -> dict[str, Any]:
        """Those that a model has."""
        return {name: value for name, value in asdict(self).items() if name in model_options(model)}


@dataclass(frozen=True)
class ClassifyConfig:
    """The experiment.

    Attributes:
        models: registered names.
        seeds: one run of every model for each.
        inputs: how networks are prepared.
        fits: of several networks of one image, train on so many at most; None for all.
        limit: train on so many networks; None for all.
        loss: see `LOSSES`.
        slower: models that are trained with a third of the learning rate; at the others' they may stay at chance.
        steps: train for so many steps, rounded up to whole epochs, instead of ``training.epochs``.
        sizes: of the models.
        training: see `TrainConfig`.
    """

    models: tuple[str, ...]
    seeds: tuple[int, ...] = (0,)
    inputs: InputConfig = field(default_factory=InputConfig)
    fits: int | None = None
    limit: int | None = None
    loss: str = "cross-entropy"
    slower: tuple[str, ...] = ()
    steps: int | None = None
    sizes: Sizes = field(default_factory=Sizes)
    training: TrainConfig = field(default_factory=TrainConfig)

    def __post_init__(self) -> None:
        require_task((*self.models, *self.slower), "inr")
        for name in ("models", "seeds"):
            values = getattr(self, name)
            if not values or len(set(values)) != len(values):
                raise ValueError(f"{name} is {values}: give at least one, and none twice")
        for name in ("fits", "limit", "steps"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ValueError(f"{name} is {value}, but must be at least 1, or none")
        if self.loss not in LOSSES:
            raise ValueError(f"unknown loss {self.loss!r}: choose from {', '.join(LOSSES)}")

    def plan(self, corpus: InrCorpus) -> list[Job]:
        """All runs, seed by seed."""
        data = fingerprint(corpus)
        train = subset(corpus.train, self.fits, self.limit)
        corpus = replace(corpus, train=train)
        networks = {"train": len(train), "val": len(corpus.val), "test": len(corpus.test)}
        settings = [self._settings(corpus, model, seed, data) for seed in self.seeds for model in self.models]
        return [Job(s, networks, functools.partial(_trial, s, corpus)) for s in settings]

    def _settings(self, corpus: InrCorpus, model: str, seed: int, data: str) -> RunSettings:
        own = dict(model_class(model).train_with)
        loss = own.pop("loss", self.loss)
        training = self.training
        if model in self.slower:
            training = replace(training, learning_rate=training.learning_rate / 3)
        if self.steps is not None:
            training = replace(training, epochs=-(-self.steps // -(-len(corpus.train) // training.batch_size)))
        options = {"inputs": asdict(self.inputs), "fits": self.fits, "limit": self.limit, "sizes": self.sizes.of(model)}
        return RunSettings(
            experiment="classify-inr",
            subject=corpus.name,
            model=model,
            train_set="augmented" if self.inputs.augment or self.inputs.warp else "original",
            seed=seed,
            options=options,
            loss=loss,
            training=replace(training, **own),
            data=data,
            version=__version__,
        )


_SMALL_MODELS = (
    "statnn", "mlp", "inr-np", "inr-hnp", "inr-nft", "gnn", "monomial", "inr-monomial-np", "inr-monomial-hnp",
    "inr-message-passing", "inr-probes",
)  # fmt: skip


def _paper(hidden: int, learning_rate: float, head: int = 1000, dropout: float = 0.0) -> ClassifyConfig:
    """A column of the paper's Table 20. Networks are as they come; the length of the warm-up is not published.

    128 frequencies make the 256 Fourier features of App. D.4 (sine and cosine), and the models' parameter counts those
    of Table 21.
    """
    return ClassifyConfig(
        models=("mlp", "inr-np", "inr-hnp", "inr-monomial-np", "inr-monomial-hnp"),
        seeds=(0, 1, 2, 3, 4),
        inputs=InputConfig(absorb_omega=False, canonical_phase=False, normalize=False),
        loss="bce",
        steps=200_000,
        sizes=Sizes(hidden=hidden, head=head, dropout=dropout),
        training=TrainConfig(batch_size=32, learning_rate=learning_rate, warmup_steps=10_000),
    )


PRESETS: dict[str, ClassifyConfig] = {
    "small": ClassifyConfig(
        models=_SMALL_MODELS,
        slower=("gnn", "inr-monomial-np", "inr-monomial-hnp"),  # chosen on validation networks
        inputs=InputConfig(augment=True, warp=0.1),
        sizes=Sizes(
            hidden=16,
            width=32,
            attention=16,
            head=256,
            dropout=0.1,
            fourier=32,
            fourier_scale=0.3,
            channels=16,
            features=16,
        ),
        training=TrainConfig(8, 32, 3e-3, weight_decay=0.01, warmup_steps=100, clip_norm=1.0),
    ),
    "paper": _paper(64, 7.5e-5, dropout=0.1),
    "paper-fashion": _paper(64, 1e-4, head=500),
    "paper-cifar": _paper(16, 1e-4),
}


def classify_inrs(
    corpus: InrCorpus,
    config: ClassifyConfig,
    store: RunStore,
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> list[Run]:
    """Do all runs that the store does not have; returns all, kept and new, in the order of the plan. See `sweep`.

    Args:
        corpus: networks and labels.
        config: see `ClassifyConfig`.
        store: where finished runs are kept.
        on_progress: called before a run, after each of its epochs and when it is finished.

    Raises:
        ValueError: if there are fewer than two classes, a device is not there, or a model cannot read the networks.
    """
    if corpus.classes < 2:
        raise ValueError(f"{corpus.name} has {corpus.classes} class: its networks cannot be told apart by it")
    for model in config.models:  # one that cannot read these networks should be found out now, not after minutes
        build_model(model, inr_info(corpus.siren), seed=0, out_features=corpus.classes, **config.sizes.of(model))
    return sweep(config.plan(corpus), store, on_progress)


def _trial(settings: RunSettings, corpus: InrCorpus) -> Trial:
    options, seed, siren = settings.options, settings.seed, corpus.siren
    inputs = InputConfig(**options["inputs"])
    model = build_model(
        settings.model, inr_info(inputs.siren(siren)), seed=derive_seed(seed, "model"), out_features=corpus.classes,
        **options["sizes"],
    )  # fmt: skip
    classifier = Classifier(model, siren, inputs)

    def data(part: InrPart) -> DataSet:
        if isinstance(part.rows, TensorRows):
            return Data(_with_channel(part.rows.read_all()), part.labels)
        return StreamedData(part.rows, _with_channel, part.labels)

    train = data(corpus.train)
    classifier.fit_inputs(train.take(torch.arange(min(len(train), LOOKED_AT))).inputs)

    def tests() -> Iterator[Test]:
        networks, labels = _with_channel(corpus.test.rows.read_all()), corpus.test.labels
        yield Test("original", Data(networks, labels))
        yield Test("moved", Data(_moved(networks, siren, seed), labels))
        yield Test("shifted", Data(_shifted(networks, siren, seed), labels))
        yield Test("train", train)

    def finish(answers: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Tensor]]:
        return {"confusion": confusion(answers["original"], corpus.test.labels).tolist()}, {}

    loss = LOSSES[settings.loss]
    return Trial(classifier, train, data(corpus.val), tests, loss, scores, select="selection", finish=finish)


def _with_channel(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: t.unsqueeze(1) for name, t in tensors.items()}


def _moved(networks: Mapping[str, Tensor], siren: Siren, seed: int) -> dict[str, Tensor]:
    """Signs flipped and neurons permuted at random."""
    generator = torch.Generator().manual_seed(derive_seed(seed, "moved"))
    count = len(networks["weight.0"])
    return siren.space.sample(count, generator=generator).act(networks)


def _shifted(networks: Mapping[str, Tensor], siren: Siren, seed: int) -> dict[str, Tensor]:
    """Phases shifted at random, where omega_0 counts."""
    generator = torch.Generator().manual_seed(derive_seed(seed, "shifted"))
    space, count = siren.space, len(networks["weight.0"])
    shifts = {
        f"h{i}": torch.randint(-SHIFTS, SHIFTS + 1, (count, 1, size), generator=generator)
        for i, size in enumerate(siren.sizes[1:-1], start=1)
    }
    shifted = shift_phase(absorb_omega(networks, space, siren.omega_0), space, shifts)
    return absorb_omega(shifted, space, 1 / siren.omega_0)


def confusion(logits: Tensor, labels: Tensor) -> Tensor:
    """Counts ``(true class, predicted class)``."""
    classes = logits.shape[-1]
    pairs = labels * classes + torch.nan_to_num(logits, nan=-torch.inf).argmax(-1)
    return pairs.bincount(minlength=classes**2).view(classes, classes)


def scores(logits: Tensor, labels: Tensor) -> dict[str, float]:
    """Accuracy, cross-entropy, and what selects the epoch: the accuracy, and among equal ones the lower loss.

    All are finite whatever a model answers: a NaN counts as the lowest logit, and logits beyond 1e4 as that.

    Args:
        logits: ``(N, classes)``.
        labels: int64 ``(N,)``.
    """
    logits = torch.nan_to_num(logits.detach().double(), nan=-LARGEST).clamp(-LARGEST, LARGEST)
    accuracy = (logits.argmax(-1) == labels).double().mean().item()
    loss = cross_entropy(logits, labels).item()
    return {"accuracy": accuracy, "loss": loss, "selection": accuracy - loss / (1 + loss) / len(labels)}


def subset(part: InrPart, fits: int | None, limit: int | None) -> InrPart:
    """The first ``fits`` networks of every image, of these the first ``limit``.

    Raises:
        ValueError: if there are not so many.
    """
    index = torch.arange(len(part))
    if fits is not None:
        order = part.image.argsort(stable=True)
        counts = part.image.unique(return_counts=True)[1]
        rank = torch.empty_like(index)
        rank[order] = index - (counts.cumsum(0) - counts).repeat_interleave(counts)
        index = index[rank < fits]
    if limit is not None:
        if limit > len(index):
            raise ValueError(f"limit is {limit}, but there are {len(index)} networks to train on")
        index = index[:limit]
    rows = part.rows.subset(index) if len(index) < len(part) else part.rows
    return InrPart(rows, part.labels[index], part.image[index])


def fingerprint(corpus: InrCorpus) -> str:
    """A hash of all networks and labels, and of what they have in common."""
    digest = hashlib.sha256(repr((corpus.siren, corpus.classes)).encode())
    for part in (corpus.train, corpus.val, corpus.test):
        digest.update(part.labels.numpy().tobytes())
        for index in torch.arange(len(part)).split(BLOCK):
            for tensor in part.rows.read(index).values():
                digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]
