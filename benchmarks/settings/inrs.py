"""Experiments on INRs: classifying and editing them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field

from nfn_monomial.errors import InvalidValueError

from .base import AtLeastZero, Count, Positive, Seed, Settings, Some
from .training import TrainConfig

__all__ = ["CLASSIFY", "EDIT", "ClassifyConfig", "EditConfig", "EditorConfig", "InputConfig", "Sizes", "Task"]

Share = Annotated[float, Field(ge=0, lt=1)]


@dataclass(frozen=True)
class InputConfig(Settings):
    """How networks are prepared, the same for all models; the last three act in training only.

    Attributes:
        absorb_omega: whether omega_0 goes into the weights.
        canonical_phase: whether biases are brought to (-pi/2, pi/2], see `nfn_monomial.canonical.canonical_phase`.
        normalize: whether `InputNorm` stands in front of models, but those that run the networks.
        augment: whether every network is moved by a random group element whenever it is seen.
        noise: of `Augment`; it needs ``augment``.
        warp: of `Warp`; 0 for none.
    """

    absorb_omega: bool = True
    canonical_phase: bool = True
    normalize: bool = True
    augment: bool = False
    noise: AtLeastZero = 0.0
    warp: Share = 0.0

    def check(self) -> None:
        if self.noise and not self.augment:
            raise InvalidValueError(f"noise is {self.noise}, but without augment=true networks stay as they are")


@dataclass(frozen=True)
class Sizes(Settings):
    """Of the models, where they have them; see `nfn_monomial.benchmarks.models.inr`.

    Attributes:
        hidden: channels of monomial layers.
        width: channels of NP and HNP.
        attention: channels of NFT.
        head: width of the MLP's two hidden layers.
        dropout: share that is dropped.
        fourier: number of random frequencies.
        fourier_scale: their standard deviation.
        drop_in: whether NP and HNP, also in the hybrids, are built of our layers, see `adapters.nfn.MonomialLinear`.
        channels: of message passing.
        rounds: of message passing.
        features: of the GNN's nodes and edges.
        probes: number of learned coordinates.
    """

    hidden: Count = 64
    width: Count = 256
    attention: Count = 256
    head: Count = 1000
    dropout: Share = 0.0
    fourier: Count = 128
    fourier_scale: Positive = 10.0
    drop_in: bool = False
    channels: Count = 32
    rounds: Count = 3
    features: Count = 32
    probes: Count = 64


@dataclass(frozen=True)
class ClassifyConfig(Settings):
    """Classifying INRs, see `nfn_monomial.benchmarks.studies.classify`.

    Attributes:
        models: registered names.
        seeds: one run of every model for each.
        inputs: how networks are prepared.
        fits: of several networks of one image, train on so many at most; None for all.
        limit: train on so many networks; None for all.
        loss: of the logits.
        slower: models that are trained with a third of the learning rate; at the others' they may stay at chance.
        steps: train for so many steps, rounded up to whole epochs, instead of ``training.epochs``.
        sizes: of the models.
        training: see `TrainConfig`.
    """

    models: Some[str]
    seeds: Some[Seed] = (0,)
    inputs: InputConfig = field(default_factory=InputConfig)
    fits: Count | None = None
    limit: Count | None = None
    loss: Literal["cross-entropy", "bce"] = "cross-entropy"
    slower: tuple[str, ...] = ()
    steps: Count | None = None
    sizes: Sizes = field(default_factory=Sizes)
    training: TrainConfig = field(default_factory=TrainConfig)


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


CLASSIFY = {
    "small": ClassifyConfig(
        models=(
            "statnn", "mlp", "inr-np", "inr-hnp", "inr-nft", "gnn", "monomial", "inr-monomial-np", "inr-monomial-hnp",
            "inr-message-passing", "inr-probes",
        ),
        slower=("gnn", "inr-monomial-np", "inr-monomial-hnp"),  # chosen on validation networks
        inputs=InputConfig(augment=True, warp=0.1),
        sizes=Sizes(
            hidden=16, width=32, attention=16, head=256, dropout=0.1, fourier=32, fourier_scale=0.3, channels=16,
            features=16,
        ),
        training=TrainConfig(8, 32, 3e-3, weight_decay=0.01, warmup_steps=100, clip_norm=1.0),
    ),
    # Two hours of one core: NP, HNP and the hybrids stay at 25% for 3,000 steps, and learn from there on. Frequencies
    # of 1 resolve the whole image in weights of the first layer. Chosen on training networks that were held out.
    "medium": ClassifyConfig(
        models=(
            "inr-probes", "mlp", "inr-message-passing", "inr-hnp", "inr-monomial-hnp", "inr-np", "balanced-inr-hnp",
            "inr-monomial-np",
        ),
        inputs=InputConfig(augment=True, warp=0.1),
        sizes=Sizes(
            hidden=16, width=48, head=512, dropout=0.1, fourier=16, fourier_scale=1.0, drop_in=True, channels=32,
            probes=196,
        ),
        training=TrainConfig(
            10, 32, 2e-3, schedule="cosine", weight_decay=0.01, warmup_steps=500, clip_norm=1.0, threads=1
        ),
    ),
    "paper": _paper(64, 7.5e-5, dropout=0.1),
    "paper-fashion": _paper(64, 1e-4, head=500),
    "paper-cifar": _paper(16, 1e-4),
}  # fmt: skip


@dataclass(frozen=True)
class EditorConfig(Settings):
    """Sizes of the editors and what is done to their input. The defaults are the paper's (App. D.5).

    Attributes:
        inputs: ``stored`` gives the weights as they are, without omega_0. ``canonical`` absorbs omega_0 into them,
            reduces the phases (`canonical_phase`) and brings every entry to size 1 (`InputNorm`); edits happen there,
            and are carried back. Neither changes what the networks compute, and both commute with the symmetry group.
        fourier: channels of the Gaussian Fourier features of NP, HNP and the hybrid, half of them sines: the published
            parameter counts are those of 256 channels.
        fourier_scale: standard deviation of their frequencies.
        width: channels of NP and HNP.
        monomial: channels of the monomial layers.
        mlp: width of its three hidden layers; with 1000 it has the published 4.5M parameters.
        messages: channels of message passing.
        blocks: its depth.
        init_scale: of the change at the start; learned, for every parameter of a network by itself.
    """

    inputs: Literal["stored", "canonical"] = "stored"
    fourier: Annotated[int, Field(ge=2, multiple_of=2)] = 256
    fourier_scale: Positive = 10.0
    width: Count = 128
    monomial: Count = 16
    mlp: Count = 1000
    messages: Count = 32
    blocks: Count = 3
    init_scale: Positive = 0.01


Task = Literal["dilate", "contrast"]
_EDITORS = ("mlp", "np", "hnp", "monomial-np")  # the paper's


@dataclass(frozen=True)
class EditConfig(Settings):
    """Editing INRs, see `nfn_monomial.benchmarks.studies.edit`.

    Attributes:
        models: registered names, see `nfn_monomial.benchmarks.models.editors`.
        task: what is done to images.
        seeds: one run of every editor for each.
        limit: train on so many networks; None for all.
        steps: train for so many steps, rounded up to whole epochs, instead of ``training.epochs``.
        shown: of how many test networks, at equal distances, the edited images are kept for the figure.
        editor: sizes of the editors.
        training: see `TrainConfig`.
    """

    models: Some[str]
    task: Task = "dilate"
    seeds: Some[Seed] = (0,)
    limit: Count | None = None
    steps: Count | None = None
    shown: Count = 5
    editor: EditorConfig = field(default_factory=EditorConfig)
    training: TrainConfig = field(default_factory=TrainConfig)


EDIT = {
    "small": EditConfig(
        models=(*_EDITORS, "balanced-np", "monomial", "message-passing"),
        editor=EditorConfig(
            inputs="canonical", fourier=32, fourier_scale=0.3, width=32, mlp=256, messages=16, init_scale=0.1
        ),
        training=TrainConfig(epochs=8, batch_size=16, learning_rate=3e-3, warmup_steps=100, clip_norm=1.0),
    ),
    # App. D.5 and the table of hyperparameters for weight space style editing; five runs, as its results have.
    "paper": EditConfig(
        models=(*_EDITORS, "monomial", "message-passing"),
        seeds=(0, 1, 2, 3, 4),
        steps=50_000,
        training=TrainConfig(batch_size=32, learning_rate=1e-3),
    ),
}
