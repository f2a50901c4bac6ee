"""Zoos in memory and in their files, for tests of what is streamed."""

from pathlib import Path

import torch
from small_cnns import cnn_layout, write_zoo

from nfn_monomial import WeightSpace
from nfn_monomial.benchmarks.data.formats.detection import load_generalization
from nfn_monomial.benchmarks.data.networks import Corpus
from nfn_monomial.benchmarks.experiments.predict import PredictConfig
from nfn_monomial.benchmarks.settings.training import TrainConfig

LAYOUT = cnn_layout(channels=(1, 4, 5), head=(3,))
COUNT = 60
SPACE = WeightSpace.cnn([2, 3, 4], [(3, 3), (2, 2)], "relu", head=[3])


def written(folder: Path, activation: str = "relu") -> Path:
    """A zoo of random networks whose accuracy the last biases determine."""
    weights = 0.5 * torch.randn(COUNT, LAYOUT[-1].end, generator=torch.Generator().manual_seed(0))
    accuracy = torch.sigmoid(3 * weights[:, -3:].mean(1)).tolist()
    common = {"config.activation": activation, "step": 86}
    rows = [{**common, "modeldir": f"net {i}", "test_accuracy": a} for i, a in enumerate(accuracy)]
    write_zoo(folder, weights, rows, LAYOUT)
    return folder


def both(folder: Path) -> tuple[Corpus, Corpus]:
    """In memory, and in its file."""
    held, streamed = (next(iter(load_generalization(folder, **o).values())) for o in ({}, {"in_memory_bytes": 0}))
    assert [part.streamed for part in (*held.train, *held.test, *streamed.train, *streamed.test)] == [0, 0, 1, 1]
    return held, streamed


def config(*models: str, **options: object) -> PredictConfig:
    training = TrainConfig(epochs=2, batch_size=8, learning_rate=1e-2)
    return PredictConfig(models, seeds=(0,), scales=(1e1, 1e4), training=training, **options)  # type: ignore[arg-type]
