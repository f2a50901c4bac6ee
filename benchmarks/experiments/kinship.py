"""Whether p-values of kinship are right, and what relatives they find."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from nfn_monomial.benchmarks.settings.base import Count, Positive, Seed, Settings, Some
from nfn_monomial.benchmarks.settings.register import Experiment, register

__all__ = ["KinshipConfig"]


@dataclass(frozen=True)
class KinshipConfig(Settings):
    """Networks that are trained apart, and children of some, see `nfn_monomial.benchmarks.studies.kinship`.

    Attributes:
        networks: of each kind.
        pairs: of networks that are trained apart, two for each; at most half as many as networks.
        parents: networks of each kind that have children; at least 2.
        epochs: of their training.
        learning_rate: of it.
        steps: of further training, in batches of 32.
        draws: random orders of the neurons of each node.
        seed: of everything random.
    """

    networks: Some[Literal["mlp", "residual", "transformer"]] = ("mlp",)
    pairs: Count = 1000
    parents: Count = 200
    epochs: Count = 10
    learning_rate: Positive = 3e-3
    steps: Count = 400
    draws: Count = 999
    seed: Seed = 0


register(
    Experiment(
        "kinship",
        """Are p-values of kinship right for networks that are trained apart, and small for relatives?

Trains 2,000 MLPs on digits, apart from one another: their p-values should be uniform. 200 of them are fine-tuned,
pruned, merged, moved and so on: their children's p-values should be small. Networks that were made stay in the folder:
an interrupted call goes on where it was. Writes `table.md`, `results.json`, `kinship.png` and `config.json`.

Examples:

- `nfn-monomial kinship`

- `nfn-monomial kinship --set networks=residual,transformer --set pairs=250 --set parents=50`
""",
        {"small": KinshipConfig()},
        "kinship",
    )
)
