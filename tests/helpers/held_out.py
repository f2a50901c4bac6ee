"""The experiments that train, on small networks whose test split raises while a training has not ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import small_predictors
import torch
from small_zoo import small_zoo
from torch import Tensor

from nfn_monomial.benchmarks.data.formats.labelled import LabelledCheckpoints, Request
from nfn_monomial.benchmarks.data.networks import Corpus, Networks, Parts
from nfn_monomial.benchmarks.data.sirens import InrCorpus, InrPart
from nfn_monomial.benchmarks.experiments.classify import ClassifyConfig, InputConfig, Sizes
from nfn_monomial.benchmarks.experiments.edit import EditConfig, EditorConfig
from nfn_monomial.benchmarks.experiments.predict import ColumnConfig, PredictConfig
from nfn_monomial.benchmarks.settings.training import TrainConfig
from nfn_monomial.benchmarks.studies import classify, columns, edit, predict
from nfn_monomial.benchmarks.train import sweep
from nfn_monomial.benchmarks.train.runs import Run, RunStore
from nfn_monomial.benchmarks.train.sweep import Job, Trial

__all__ = ["EXPERIMENTS", "Experiment", "HeldOut", "guarded"]

TRAINING = TrainConfig(epochs=3, batch_size=8, learning_rate=5e-3)
SPLITS = ("train", "val", "test")


class HeldOut(Tensor):
    """A tensor of test networks: it raises where anything is done with it from the start to the end of a training."""

    training = False
    looked_at = 0

    @classmethod
    def __torch_function__(
        cls, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        assert not HeldOut.training, "test networks were looked at before training and selection were over"
        HeldOut.looked_at += 1
        with torch._C.DisableTorchFunctionSubclass():
            return function(*args, **(kwargs or {}))


@contextmanager
def guarded() -> Iterator[None]:
    """A block in which `HeldOut` raises from a run's preparation until its model has the parameters of its best epoch.

    What is hashed and checked before the first run may be looked at.
    """
    run_job, test = sweep.run_job, sweep.test

    def run(job: Job, store: RunStore, **how: Any) -> Any:
        HeldOut.training = True
        return run_job(job, store, **how)

    def tested(*trained: Any) -> Any:
        HeldOut.training = False
        return test(*trained)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweep, "run_job", run)
        patch.setattr(sweep, "test", tested)
        HeldOut.looked_at = 0
        try:
            yield
        finally:
            HeldOut.training = False


@dataclass(frozen=True)
class Split:
    """The changes to one split: of its weights, and of what is to be learned."""

    weights: Callable[[Tensor], Tensor] = torch.clone
    targets: Callable[[Tensor], Tensor] = torch.clone


HELD_OUT = Split(*[lambda t: t.as_subclass(HeldOut)] * 2)
OPPOSITE = Split(targets=lambda t: 1 - t)
"""The opposite ranking, the other of two classes, or the negative of an image."""


@dataclass(frozen=True)
class Experiment:
    """One experiment: ``start`` does it on networks whose splits are changed, with these models."""

    study: ModuleType
    models: Sequence[str]
    start: Callable[[Mapping[str, Split], Sequence[str], RunStore], Any]

    def runs(self, folder: Path, **changes: Split) -> list[Run]:
        """Finished runs of the first model."""
        done = self.start(changes, self.models[:1], RunStore(folder))
        return list(done.runs if isinstance(done, columns.Learned) else done)

    def trials(self, folder: Path, **changes: Split) -> list[Trial]:
        """All that would be trained, prepared."""
        asked: list[Job] = []

        class Planned(Exception):  # noqa: N818  (nothing is wrong)
            pass

        def plan_alone(jobs: Sequence[Job], *_: Any) -> None:
            asked.extend(jobs)
            raise Planned

        with pytest.MonkeyPatch.context() as patch, suppress(Planned):
            patch.setattr(self.study, "sweep", plan_alone)
            self.start(changes, self.models, RunStore(folder))
        return [job.prepare(job.settings) for job in asked]


def _zoo(changes: Mapping[str, Split], activation: str = "relu") -> Corpus:
    zoo = small_zoo(activation)

    def changed(parts: Parts, split: Split) -> Parts:
        (part,) = parts
        tensors = {name: split.weights(t) for name, t in part.networks.tensors.items()}
        return (replace(part, networks=Networks(tensors, split.targets(part.networks.accuracy))),)

    return replace(zoo, **{name: changed(getattr(zoo, name), changes.get(name, Split())) for name in SPLITS})


def _inrs(changes: Mapping[str, Split]) -> InrCorpus:
    """With an image of each network of its own, which is what it shows, or its negative."""
    corpus = small_predictors.inrs()
    corpus = replace(corpus, siren=replace(corpus.siren, gain=0.1))  # pale
    parts, pixels = dict[str, InrPart](), list[Tensor]()
    for name in SPLITS:
        part, split = getattr(corpus, name), changes.get(name, Split())
        tensors = {key: split.weights(t) for key, t in part.tensors.items()}
        shown = corpus.siren.render(part.tensors).clamp(0, 1)
        numbers = torch.arange(len(part)) + sum(map(len, pixels))
        if split is HELD_OUT:
            numbers = split.targets(numbers)
        parts[name] = InrPart(tensors, split.targets(part.labels), numbers)
        pixels.append(shown if split is HELD_OUT else split.targets(shown))
    return replace(corpus, **parts, pixels=torch.cat(pixels))


def _predict(changes: Mapping[str, Split], models: Sequence[str], store: RunStore, activation: str = "relu") -> Any:
    config = PredictConfig(
        tuple(models), ("original",), seeds=(0,), scales=(10.0, 1e3), widen=1.5, loss="quantile", training=TRAINING
    )
    return predict.predict_generalization({activation: _zoo(changes, activation)}, config, store)


def _predict_tanh(changes: Mapping[str, Split], models: Sequence[str], store: RunStore) -> Any:
    return _predict(changes, models, store, "tanh")


def _classify(changes: Mapping[str, Split], models: Sequence[str], store: RunStore) -> Any:
    sizes = Sizes(hidden=4, width=8, attention=8, head=16, fourier=8, fourier_scale=0.3, channels=8, rounds=1, probes=8)
    inputs = InputConfig(canonical_phase=False)  # which would take shifts away
    config = ClassifyConfig(tuple(models), sizes=sizes, inputs=inputs, training=TRAINING)
    return classify.classify_inrs(_inrs(changes), config, store)


def _edit(changes: Mapping[str, Split], models: Sequence[str], store: RunStore) -> Any:
    sizes = EditorConfig("canonical", fourier=8, fourier_scale=0.3, width=8, monomial=4, mlp=16, messages=8, blocks=1)
    training = replace(TRAINING, learning_rate=2e-2)
    config = EditConfig(tuple(models), task="contrast", shown=2, editor=sizes, training=training)
    return edit.edit_inrs(_inrs(changes), config, store)


def _train(changes: Mapping[str, Split], models: Sequence[str], store: RunStore) -> Any:
    request = Request(Path("runs"), Path("runs.csv"), "score")
    labelled = LabelledCheckpoints(_zoo(changes), request, "ranking", (), "", {}, ())
    return columns.learn_column(labelled, None, ColumnConfig(tuple(models), seeds=(0,), training=TRAINING), store)


EXPERIMENTS = {
    "predict-generalization": Experiment(predict, ("mlp", "np", "stats"), _predict),
    "predict-generalization tanh": Experiment(predict, ("mlp",), _predict_tanh),
    "classify-inr": Experiment(classify, ("mlp", "inr-hnp"), _classify),
    "edit-inr": Experiment(edit, ("np", "mlp"), _edit),
    "train": Experiment(columns, ("mlp", "stats"), _train),
}
"""By name; the first model of each is not invariant."""
