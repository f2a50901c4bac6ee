"""A search for the best training of models."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field

from nfn_monomial.benchmarks.settings.base import AtLeastZero, Count, Positive, Seed, Settings, Some, Span
from nfn_monomial.benchmarks.settings.register import Experiment, register
from nfn_monomial.benchmarks.settings.training import Dropout, LossName, Schedule, TrainConfig
from nfn_monomial.errors import InvalidValueError

from .predict import ZOO

__all__ = ["TuneConfig"]


@dataclass(frozen=True)
class TuneConfig(Settings):
    """A search for the best training of models, see `nfn_monomial.benchmarks.studies.tune`.

    Attributes:
        models: registered names. Each gets one recipe for all networks.
        activations: of the networks; empty for all that the data have.
        trials: recipes that are tried for each model.
        seconds: after which no more recipes are tried for a model; none for no limit.
        folds: parts that the training networks are cut into.
        cuts: a recipe is judged on so many of the parts, one after the other, each time after training on the others.
        startup: recipes that are drawn at random, and as many finished ones before one is given up.
        learning_rate: searched between these, on a logarithmic scale.
        weight_decay: likewise.
        epochs: likewise.
        batch_size: one of these.
        schedule: likewise.
        average_epochs: likewise.
        loss: likewise.
        head_dropout: likewise, see `Head`; like the following settings only for models that have them.
        heads: likewise.
        head_width: likewise.
        seeds: of the trainings that compare the best recipe with the training as registered; the first is that of the
            search, too.
        training: the settings that are not searched, and the training as registered, but for what a model asks for
            (`Model.train_with`).
    """

    models: Some[str] = ("stats", "message-passing-stats", "probes", "combined")
    activations: tuple[str, ...] = ()
    trials: Count = 24
    seconds: Positive | None = None
    folds: Annotated[int, Field(ge=2, le=100)] = 4
    cuts: Count = 2
    startup: Count = 8
    learning_rate: Span[Positive] = (5e-4, 2e-2)
    weight_decay: Span[Positive] = (1e-3, 1.0)
    epochs: Span[Count] = (20, 120)
    batch_size: Some[Count] = (16, 32, 64)
    schedule: Some[Schedule] = ("constant", "cosine", "one-cycle")
    average_epochs: Some[AtLeastZero] = (0.0, 2.0)
    loss: Some[LossName] = ("bce", "mse", "rank", "quantile")
    head_dropout: Some[Dropout] = (0.0, 0.1, 0.3, 0.5)
    heads: Some[Count] = (1,)
    head_width: Some[Count] = (256,)
    seeds: Some[Seed] = (0, 1, 2)
    training: TrainConfig = field(
        default_factory=lambda: TrainConfig(epochs=40, batch_size=16, clip_norm=1.0, validate_every=2)
    )

    def check(self) -> None:
        if self.cuts > self.folds:
            raise InvalidValueError(f"cuts is {self.cuts}, but there are {self.folds} folds: set no more than these")


register(
    Experiment(
        "tune",
        """Search how models are best trained: learning rate and its schedule, decay, epochs, batches, averaging, loss.

One recipe for each model, for all zoos that are given, and all activations in them. The training networks are cut into
folds; a recipe is trained on some and judged on the others, and given up as soon as its best mean so far is below the
best third of those that ended before, at the same place. The best recipe and the training that the model is registered
with are then done on all training networks; the one that is ahead on the validation networks is the model's recipe.
Test networks are not read. Writes `table.md`, `results.json`, `search.png`, `config.json`, and `recipe.json`, which the
other experiments on zoos take: `--set recipe=results/tune/recipe.json`.

All tried recipes are kept: a second call, also with more `trials`, does only what is missing, and tries a recipe again
whose trainings were cut off. The same seed gives the same search, cut off or not, unless `seconds` ends it.

With 500 ReLU and 500 tanh training networks, 40 recipes for `stats` took four minutes of one core; an epoch of message
passing takes some sixty times as long as one of `stats`, so give it a limit: `seconds`, for each model.

Examples:

- `nfn-monomial zoo make && nfn-monomial tune --models stats,probes`

- `nfn-monomial tune --data zoos/digits --data zoos/mnist --models stats --set trials=100`

- `nfn-monomial tune --models combined --set seconds=3600 --set cuts=1 --set epochs=10,40 --set loss=bce,rank`

- `nfn-monomial predict-generalization --models stats --set recipe=results/tune/recipe.json`
""",
        {"small": TuneConfig()},
        "tune",
        ZOO,
        several=True,
        without=("devices", "tensorboard"),
    )
)
