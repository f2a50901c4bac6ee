"""Configurations changed by key=value: every type of field, and errors that say what is known."""

from __future__ import annotations

import dataclasses
import json
import re
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


@pytest.mark.parametrize(
    ("experiment", "assignment", "message"),
    [
        ("predict-generalization", "training.epochs=1099511627776", "should be less than or equal to 1000000"),
        ("predict-generalization", "training.batch_size=0", "should be greater than or equal to 1"),
        ("predict-generalization", "training.patience=0", "should be greater"),
        ("predict-generalization", "training.learning_rate=0", "should be greater than 0"),
        ("predict-generalization", "training.learning_rate=nan", "should be a finite number"),
        ("predict-generalization", "training.clip_norm=inf", "should be a finite number"),
        ("predict-generalization", "training.warmup_steps=-1", "should be greater than or equal to 0"),
        ("predict-generalization", "training.weight_decay=-0.1", "should be greater than or equal to 0"),
        ("predict-generalization", "train_sets=augmentd", "should be 'original', 'augmented' or 'moved'"),
        ("predict-generalization", "scales=10,0.5", "should be greater than 1"),
        ("predict-generalization", "scales=10,nan", "should be a finite number"),
        ("predict-generalization", "augment_scale=-10", "should be greater than 1"),
        ("predict-generalization", "widen=0.5", "should be larger than 1, or 0"),
        ("predict-generalization", "loss=tau", "should be 'bce', 'mse', 'rank' or 'quantile'"),
        ("augment", "curve_scale=0.5", "should be greater than 1"),
        ("tune", "cuts=5", "there are 4 folds"),
        ("classify-inr", "inputs.noise=nan", "should be a finite number"),
        ("classify-inr", "inputs.warp=2", "should be less than 1"),
        ("classify-inr", "limit=1000001", "should be less than or equal to 1000000"),
        ("classify-inr", "loss=mse", "should be 'cross-entropy' or 'bce'"),
        ("edit-inr", "task=erode", "should be 'dilate' or 'contrast'"),
        ("edit-inr", "editor.fourier=-2", "should be greater than or equal to 2"),
        ("expressivity", "epochs=2", "should be greater than or equal to 3"),
        ("expressivity", "activations=gelu", "should be 'relu' or 'tanh'"),
        ("cost", "batch_sizes=8,1099511627776", "should be less than or equal to 1000000"),
        ("cost", "batch_sizes=8,8", "none twice"),
        ("layers", "batches=8,none", "should be a valid integer"),
        ("layers", "channels=4.5", "should be a valid integer"),
        ("params", "largest=true", "should be a valid integer"),
        ("params", "sizes=3,2", "should have at least 3 items"),
    ],
)
def test_settings_have_bounds(experiment: str, assignment: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        override(EXPERIMENTS[experiment].presets["small"], [assignment])
    assert assignment.partition("=")[0].rpartition(".")[2] in str(caught.value)


def test_a_value_that_is_refused_is_shown_in_short() -> None:
    with pytest.raises(ValueError, match=r"'9{70,80}\.\., but") as caught:
        override(EXPERIMENTS["cost"].presets["small"], ["networks=" + "9" * 6000])
    assert len(str(caught.value)) < 300


def test_paper_presets_are_the_paper_s() -> None:
    """App. D.3: 50 epochs, batches of 8, Adam with 1e-3; Sec. 6: five runs."""
    papers = {name: known.presets["paper"] for name, known in EXPERIMENTS.items() if "paper" in known.presets}
    assert set(papers) == {"predict-generalization", "ablation", "augment", "classify-inr", "edit-inr", "cost"}
    for name in ("predict-generalization", "ablation", "augment"):
        training = papers[name].training
        assert (training.epochs, training.batch_size, training.learning_rate) == (50, 8, 1e-3)
        assert len(papers[name].seeds) == 5
    scales = (1e1, 1e2, 1e3, 1e4, 1e5, 1e6)
    assert papers["predict-generalization"].scales == papers["augment"].scales == scales
    assert [planned.augment_scale for planned in papers["augment"].plans()[1:]] == list(scales)
    assert papers["ablation"].scales == (1e1, 1e2, 1e3, 1e4)
    assert papers["cost"].batch_sizes == (8,)


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
