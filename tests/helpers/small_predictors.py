"""Experiments of a second or two that leave predictors."""

from collections.abc import Sequence
from pathlib import Path

import torch
from small_zoo import corpus
from torch import Tensor

from nfn_monomial.benchmarks.data.sirens import InrCorpus, InrPart, Siren
from nfn_monomial.benchmarks.experiments.classify import ClassifyConfig, InputConfig, Sizes
from nfn_monomial.benchmarks.experiments.edit import EditConfig, EditorConfig
from nfn_monomial.benchmarks.experiments.predict import PredictConfig
from nfn_monomial.benchmarks.settings.training import TrainConfig
from nfn_monomial.benchmarks.studies.classify import classify_inrs
from nfn_monomial.benchmarks.studies.edit import edit_inrs
from nfn_monomial.benchmarks.studies.predict import predict_generalization
from nfn_monomial.benchmarks.train.runs import Run, RunStore

SIREN = Siren((2, 6, 6, 1), 5.0, (1, 6, 5))
QUICK = TrainConfig(epochs=1, batch_size=32)
Left = dict[str, tuple[Run, Path]]
"""Model -> its run and its predictor's file."""


def inrs() -> InrCorpus:
    """Random networks near one another; the class is whether the image is bright."""
    generator = torch.Generator().manual_seed(0)
    base = {name: torch.randn(shape, generator=generator) / 2 for name, shape in SIREN.space.shapes().items()}

    def part(count: int) -> InrPart:
        tensors = {name: t + 0.2 * torch.randn(count, *t.shape, generator=generator) for name, t in base.items()}
        bright = SIREN.render(tensors).mean((1, 2, 3))
        return InrPart(tensors, (bright > bright.median()).long(), torch.arange(count))

    return InrCorpus("toy", SIREN, 2, part(32), part(16), part(16))


def stacked(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: t.unsqueeze(1) for name, t in tensors.items()}


def accuracy_predictors(folder: Path, models: Sequence[str]) -> Left:
    config = PredictConfig(tuple(models), ("original",), seeds=(0,), scales=(10.0,), widen=0, training=QUICK)
    store = RunStore(folder)
    return _left(store, predict_generalization({"relu": corpus("relu")}, config, store))


def classifiers(folder: Path, models: Sequence[str]) -> Left:
    sizes = Sizes(hidden=4, width=8, attention=8, head=16, fourier=8, fourier_scale=0.3, channels=8, rounds=1, probes=8)
    config = ClassifyConfig(tuple(models), sizes=sizes, inputs=InputConfig(augment=True), training=QUICK)
    store = RunStore(folder)
    return _left(store, classify_inrs(inrs(), config, store))


def editors(folder: Path, models: Sequence[str], inputs: str = "canonical") -> Left:
    sizes = EditorConfig(inputs, fourier=8, fourier_scale=0.3, width=8, monomial=4, mlp=16, messages=8, blocks=1)
    store = RunStore(folder)
    config = EditConfig(tuple(models), shown=16, editor=sizes, training=QUICK)
    return _left(store, edit_inrs(inrs(), config, store))


def _left(store: RunStore, runs: Sequence[Run]) -> Left:
    return {run.settings.model: (run, store.predictor_file(run.settings)) for run in runs}
