"""Configurations changed by key=value: every type of field, and errors that say what is known."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from nfn_monomial.benchmarks.experiments import EXPERIMENTS
from nfn_monomial.benchmarks.experiments.predict import PredictConfig
from nfn_monomial.benchmarks.settings import Settings, Some, override, read_value
from nfn_monomial.benchmarks.settings.training import TrainConfig
from nfn_monomial.benchmarks.studies import predict
from nfn_monomial.benchmarks.train.runs import CONFIG_NAME, record


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
        ("rate=1e-3", Config(rate=1e-3)),
        ("kind = b", Config(kind="b")),
        ("names=np, hnp", Config(names=("np", "hnp"))),
        ("scales=1e1,1e6", Config(scales=(10.0, 1e6))),
        ("scales=", Config()),
        ("limit=7", Config(limit=7)),
        ("limit=none", Config()),
        ("deep=true", Config(deep=True)),
        ("training.epochs=2", Config(training=TrainConfig(epochs=2))),
        ("training.precision=64-true", Config(training=TrainConfig(precision="64-true"))),
    ],
)
def test_every_type_of_field(text: str, expected: Config) -> None:
    assert override(Config(), [text]) == expected


def test_later_ones_win_and_the_original_stays() -> None:
    config = Config()
    assert override(config, ["width=5", "training.epochs=2", "width=6"]) == Config(6, training=TrainConfig(epochs=2))
    assert config == Config()
    assert override(PredictConfig(), ["seeds=1,2", "augment_scale=none"]).seeds == (1, 2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("width", "expected key=value"),
        ("wdth=3", "unknown key 'wdth': Config has width, rate"),
        ("width.more=3", "width is a single value"),
        ("training=3", r"set one of training\.epochs"),
        ("training.epoch=3", r"unknown key 'training\.epoch': TrainConfig has epochs"),
        ("width=3.5", "width is '3.5', but should be a valid integer"),
        ("deep=maybe", "deep is 'maybe', but should be a valid boolean"),
        ("kind=c", "kind is 'c', but should be 'a' or 'b'"),
        ("names=", r"names is \(\), but should be at least one, and none twice"),
        ("scales=1e1,x", "scales is 'x', but should be a valid number"),
        ("limit=no", "limit is 'no', but should be a valid integer"),
        ("training.epochs=0", "epochs is '0', but should be greater than or equal to 1"),
    ],
)
def test_errors(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        override(Config(), [text])


@pytest.mark.parametrize(
    ("text", "kind", "expected"),
    [
        ("a.csv", str | Path | None, "a.csv"),
        ("None", str | Path | None, None),
        ("3, 5", Sequence[int] | None, (3, 5)),
        ("relu", Sequence[str], ("relu",)),
    ],
)
def test_types_of_options(text: str, kind: Any, expected: Any) -> None:
    assert read_value(text, kind, "key") == expected


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "in"):
        with pytest.raises(ValueError, match="file is a file: give a folder for the results"):
            record(folder, "nfn-monomial x", Config(), {}, "cpu")


def test_record(tmp_path: Path) -> None:
    path = record(tmp_path / "new", "nfn-monomial x", Config(), {"networks": 5}, "cpu")
    assert path.name == CONFIG_NAME
    values = json.loads(path.read_text(encoding="utf-8"))
    assert values["config"]["training"]["epochs"] == TrainConfig().epochs
    assert values["data"] == {"networks": 5}
    assert values["environment"]["versions"]["torch"]


def test_settings_do_without_torch() -> None:
    """A command line is made of them, whose help shall be there at once."""
    code = "import sys, nfn_monomial.benchmarks.experiments; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("name", "preset"), [(name, preset) for name, known in EXPERIMENTS.items() for preset in known.presets]
)
def test_presets_name_models_that_there_are(name: str, preset: str) -> None:
    config = EXPERIMENTS[name].presets[preset]
    EXPERIMENTS[name].load().check(config)
    assert override(config, []) == config == dataclasses.replace(config)


def test_what_is_left_out() -> None:
    config = PredictConfig(("statnn", "hnp"), augmented_models=("hnp",), left_out=("tanh:hnp",))
    runs = [
        (activation, train_set, model)
        for activation in ("relu", "tanh")
        for train_set in ("original", "augmented")
        for model in config.models
        if config.runs(activation, train_set, model)
    ]
    assert runs == [
        ("relu", "original", "statnn"), ("relu", "original", "hnp"), ("relu", "augmented", "hnp"),
        ("tanh", "original", "statnn"),
    ]  # fmt: skip
    with pytest.raises(ValueError, match="left_out is 'hnp', but "):
        PredictConfig(left_out=("hnp",))
    with pytest.raises(ValueError, match="unknown model 'hpn'"):
        predict.require_models(PredictConfig(left_out=("tanh:hpn",)))
