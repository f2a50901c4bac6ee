"""Classifying INRs by the images that they show (paper Sec. 6.2)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field

from nfn_monomial.benchmarks.settings.base import AtLeastZero, Count, Positive, Seed, Settings, Some
from nfn_monomial.benchmarks.settings.register import Experiment, register
from nfn_monomial.benchmarks.settings.training import TrainConfig
from nfn_monomial.errors import InvalidValueError

from .predict import KEPT

__all__ = ["CLASSIFY", "ClassifyConfig", "InputConfig", "Sizes"]

Share = Annotated[float, Field(ge=0, lt=1)]


@dataclass(frozen=True)
class InputConfig(Settings):
    """The preparation of networks, the same for all models; the last three act in training only.

    Attributes:
        absorb_omega: whether omega_0 goes into the weights.
        canonical_phase: whether biases are brought to (-pi/2, pi/2], see `nfn_monomial.canonical.canonical_phase`.
        normalize: whether `InputNorm` comes before models, except for those that run the networks.
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
    """Sizes of the models that have them; see `nfn_monomial.benchmarks.models.inr`.

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
        limit: train on so many networks, drawn; None for all.
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
    # The paper's hybrid for half as many steps as in the paper. Frequencies of 1 resolve the whole image in weights of
    # the first layer; chosen on training networks that were held out.
    "long": ClassifyConfig(
        models=("inr-hnp", "balanced-inr-hnp", "inr-np", "inr-monomial-hnp"),
        inputs=InputConfig(augment=True, warp=0.1),
        steps=100_000,
        sizes=Sizes(
            hidden=16, width=32, head=512, dropout=0.1, fourier=16, fourier_scale=1.0, drop_in=True, probes=196
        ),
        training=TrainConfig(
            25, 8, 1e-3, schedule="cosine", weight_decay=0.01, warmup_steps=2000, clip_norm=1.0, threads=1
        ),
    ),
    "paper": _paper(64, 7.5e-5, dropout=0.1),
    "paper-fashion": _paper(64, 1e-4, head=500),
    "paper-cifar": _paper(16, 1e-4),
}  # fmt: skip


register(
    Experiment(
        "classify-inr",
        f"""Classify images by the weights of the networks that show them (Sec. 6.2).

Trains every model on the training networks, selects the epoch by the accuracy on the validation networks, and tests on
the test networks as they are, with signs flipped and neurons permuted, and with phases shifted. Writes `table.md`,
`results.json`, `confusion.png`, `learning.png` and `config.json`. {KEPT}

Presets: small; long (the paper's hybrid beside NP, HNP, and HNP behind `balance`, for 100,000 steps on several fits of
every image: some five hours of one core); paper (the paper's hyperparameters for MNIST), paper-fashion and paper-cifar.
How networks are prepared is part of the configuration: `inputs.absorb_omega`, `.canonical_phase`, `.normalize`,
`.augment`, `.warp`.

Examples:

- `nfn-monomial inr make && nfn-monomial classify-inr`

- `nfn-monomial inr make --fits 8 --seed 1 --out inrs/mnist5k8 && nfn-monomial classify-inr --data inrs/mnist5k8
--preset long`

- `nfn-monomial classify-inr --models inr-hnp,inr-monomial-hnp --set inputs.canonical_phase=false --seeds 3`

- `nfn-monomial classify-inr --data siren_cifar_wts --preset paper-cifar --device cuda`
""",
        CLASSIFY,
        "classify",
        {"": ("inrs/mnist5k", "nfn-monomial inr make --images mnist5k")},
        inrs=True,
    )
)
