"""Configurations changed by key=value: every type of field, and errors that say what is known."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass, field
from typing import Literal

import pytest

from nfn_monomial.benchmarks.experiments import EXPERIMENTS
from nfn_monomial.benchmarks.experiments.predict import PredictConfig
from nfn_monomial.benchmarks.settings import Settings, Some, override
from nfn_monomial.benchmarks.settings.training import TrainConfig


@dataclass(frozen=True)
class Config(Settings):
    width: int = 3
    rate: float = 0.1
    kind: Literal["a", "b"] = "a"
    names: Some[str] = ("x",)
    scales: tuple[float, ...] = ()
    limit: int | None = None
    deep: bool = False
    training: TrainConfig = field(default_factory=TrainConfig)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("width=5", Config(width=5)),
        ("kind = b", Config(kind="b")),
        ("scales=", Config()),
        ("limit=none", Config()),
        ("deep=true", Config(deep=True)),
        ("training.epochs=2", Config(training=TrainConfig(epochs=2))),
    ],
)
def test_every_type_of_field(text: str, expected: Config) -> None:
    assert override(Config(), [text]) == expected


def test_later_ones_win_and_the_original_stays() -> None:
    config = Config()
    assert override(config, ["width=5", "training.epochs=2", "width=6"]) == Config(6, training=TrainConfig(epochs=2))
    assert config == Config()
    assert override(config, []) is config
    assert override(PredictConfig(), ["seeds=1,2", "augment_scale=none"]).seeds == (1, 2)


def test_settings_that_only_go_together_are_given_in_any_order() -> None:
    both = ["train_networks=6,12", "train_sets=original"]
    assert override(PredictConfig(), both) == override(PredictConfig(), both[::-1])
    with pytest.raises(ValueError, match="choose train_sets=original"):
        override(PredictConfig(), both[:1])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("width", "expected key=value"),
        ("wdth=3", "unknown key 'wdth': Config has width, rate"),
        ("training.epoch=3", r"unknown key 'training\.epoch': TrainConfig has epochs"),
        ("width=3.5", "width is '3.5', but should be a valid integer"),
        ("kind=c", "kind is 'c', but should be 'a' or 'b'"),
        ("scales=1e1,x", "scales is 'x', but should be a valid number"),
        ("training.epochs=0", "epochs is '0', but should be greater than or equal to 1"),
    ],
)
def test_errors(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        override(Config(), [text])


@pytest.mark.parametrize(
    ("name", "preset"), [(name, preset) for name, known in EXPERIMENTS.items() for preset in known.presets]
)
def test_presets_name_models_that_there_are(name: str, preset: str) -> None:
    config = EXPERIMENTS[name].presets[preset]
    EXPERIMENTS[name].load().check(config)
    assert override(config, []) == config == dataclasses.replace(config)


@pytest.mark.parametrize(
    ("experiment", "assignment", "message"),
    [
        ("predict-generalization", "training.learning_rate=0", "should be greater than 0"),
        ("predict-generalization", "training.learning_rate=nan", "should be a finite number"),
        ("predict-generalization", "scales=10,0.5", "should be greater than 1"),
        ("predict-generalization", "widen=0.5", "should be larger than 1, or 0"),
        ("tune", "cuts=5", "there are 4 folds"),
        ("classify-inr", "inputs.noise=nan", "should be a finite number"),
        ("edit-inr", "editor.fourier=-2", "should be greater than or equal to 2"),
        ("cost", "batch_sizes=8,8", "none twice"),
        ("layers", "batches=8,none", "should be a valid integer"),
        ("params", "sizes=3,2", "should have at least 3 items"),
        ("params", "channels=3", "channels is ('3',), but value 2 is missing"),
    ],
)
def test_settings_have_bounds(experiment: str, assignment: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        override(EXPERIMENTS[experiment].presets["small"], [assignment])
    assert assignment.partition("=")[0].rpartition(".")[2] in str(caught.value)
