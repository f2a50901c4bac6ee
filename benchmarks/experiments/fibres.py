"""What normal forms are worth to models that read networks."""

from __future__ import annotations

from dataclasses import dataclass, field

from nfn_monomial.benchmarks.settings.base import Count, Seed, Settings, Some, Span
from nfn_monomial.benchmarks.settings.register import Experiment, register
from nfn_monomial.benchmarks.settings.training import TrainConfig

from .predict import Scale

__all__ = ["FibresConfig"]

_MODELS = ("mlp", "statnn", "stats", "monomial", "message-passing-stats")


@dataclass(frozen=True)
class FibresConfig(Settings):
    """Reading networks as they are, and in their normal forms, see `nfn_monomial.benchmarks.studies.fibres`.

    Attributes:
        models: registered names, of those that read the weights.
        product_models: of those that read the products of adapters' factors.
        seeds: one run of every model for each; of moved networks, too.
        adapters: how many there are.
        width: of the hidden layers of the network that they adapt.
        steps: of their training.
        transformers: how many there are.
        epochs: of their training.
        scale: upper bound of the scales ``[1, s]`` of test networks that are moved by the monomial group.
        zoo_seed: of the networks and of their split.
        training: how to train the models.
    """

    models: Some[str] = (*_MODELS, *(f"normal-{name}" for name in _MODELS))
    product_models: Some[str] = ("mlp", "statnn")
    seeds: Some[Seed] = (0, 1, 2)
    adapters: Count = 1000
    width: Count = 32
    steps: Span[Count] = (20, 400)
    transformers: Count = 800
    epochs: Span[Count] = (3, 40)
    scale: Scale = 10.0
    zoo_seed: Seed = 0
    training: TrainConfig = field(
        default_factory=lambda: TrainConfig(
            epochs=20, batch_size=32, learning_rate=3e-3, schedule="one-cycle", clip_norm=1.0, validate_every=2
        )
    )


register(
    Experiment(
        "fibres",
        """Read adapters and transformers as they are, and in normal forms that only their functions decide.

Trains 1,000 low-rank adapters of one small network, each on one of eight data sets, and 800 small transformers. Models
tell from the weights which data set it was and how accurate a network is; they are tested on networks as they are,
moved by permutations, scales and signs, and moved by all that leaves functions alone. About half an hour on one core.
Networks and finished runs stay in the folder: an interrupted call goes on where it was. Writes `table.md`,
`results.json`, `fibres.png` and `config.json`.

Examples:

- `nfn-monomial fibres`

- `nfn-monomial fibres --models stats,normal-stats --seeds 1 --set adapters=400 --set transformers=100`
""",
        {"small": FibresConfig()},
        "fibres",
    )
)
