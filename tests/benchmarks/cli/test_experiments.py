"""The commands that train: small runs from end to end, and what cannot be done is found out first, in one line."""

import functools
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from invoking import said

from nfn_monomial.benchmarks.make import config
from nfn_monomial.benchmarks.make.config import MixedConfig
from nfn_monomial.benchmarks.make.zoo import make_zoo

QUICK = ("--seeds", 1, "--set", "training.epochs=1")
COMMON = {"table.md", "results.json", "config.json"}


def read(folder: Path, name: str = "results") -> Any:
    return json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.is_file()}


COMMANDS: dict[str, tuple[str, set[str], int]] = {
    "predict-generalization": (
        "--models statnn,monomial --set scales=1e6 --set train_sets=original --data-option limit=10", {"figure1.png"}, 4
    ),
    "ablation": ("--models mnf-1,mnf-1-hnp", {"ablation.png"}, 2),
    "classify-inr": ("--models mlp,inr-probes --set limit=16", {"confusion.png", "learning.png"}, 2),
    "edit-inr": (
        "--models np,monomial --set editor.fourier=8 --set editor.width=8 --set shown=2 --set limit=32",
        {"edits.png", "learning.png"}, 2,
    ),
}  # fmt: skip
"""Command -> options, figures, and how many runs a second call finds."""


@pytest.mark.parametrize("name", COMMANDS)
def test_an_experiment_runs_and_a_second_call_does_nothing(name: str, zoo: Path, inrs: Path, tmp_path: Path) -> None:
    options, figures, runs = COMMANDS[name]
    data = inrs if name.endswith("inr") else zoo
    asked = (name, "--data", data, "--out", tmp_path, *QUICK, *options.split(), "--seed", 3)
    text = said(*asked)
    assert ("digits: 80 training, 10 validation, 10 test networks" if data == inrs else "relu: 1") in text
    assert "seed 3" in text
    assert files(tmp_path) == COMMON | figures
    stated = read(tmp_path, "config")
    assert (stated["config"]["training"]["epochs"], stated["config"]["seeds"]) == (1, [3])
    assert stated["data"]["path"] == str(data)
    if name == "predict-generalization":
        row = next(r for r in read(tmp_path)["rows"] if (r["activation"], r["model"]) == ("relu", "monomial"))
        assert f"{row['tau']['original']['mean']:.3f}" in text
        assert stated["data"]["relu"]["train"] == 10
    assert said(*asked).count("(kept)") == runs


def test_predict_generalization_on_a_mixed_zoo(tmp_path: Path) -> None:
    zoo = tmp_path / "mixed"
    make_zoo(zoo, MixedConfig(networks=40, depths=(2, 2), widths=(2, 4), epochs=(1, 1), train_fractions=(0.1,)))
    asked = ("predict-generalization", "--data", zoo, "--out", tmp_path / "out")
    text = said(*asked, *QUICK, "--set", "train_sets=original", "--set", "scales=10")
    assert "mixed: 16 training, 4 validation, 20 test networks" in text
    rows = read(tmp_path / "out")["rows"]
    assert {row["model"] for row in rows} == {"gnn", "monomial-conv", "statnn-set", "stats-set"}, "no others read them"
    assert set(rows[0]["tau"]) == {"original", "scale 10", "widened"}
    for option, message in {
        "--models hnp": "hnp reads networks of one architecture",
        "--data-option unseen_architectures=true --models statnn": "too few for three parts",
        "--data-option limit=3": "which has no option limit",
        "--set activations=relu": "no network has the activation 'relu'",
    }.items():
        assert message in said(*asked, *option.split(), code=2)


def test_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick = functools.partial(config.ZooConfig, epochs=(1, 2), train_fractions=(0.1,))
    monkeypatch.setattr(config, "ZooConfig", quick)
    asked = ("demo", "--out", tmp_path / "out")
    for option in ("--models hnpp", "--device mps", "--set widen=0.5"):
        said(*asked, *option.split(), code=2)
        assert not (tmp_path / "out").exists(), "before a zoo is made"
    asked = (*asked, "--networks", 60, *QUICK, "--models", "statnn")
    text = said(*asked)
    assert "60 networks trained" in text
    assert "Took 0." in text
    assert {row["train_set"] for row in read(tmp_path / "out")["rows"]} == {"original"}
    text = said(*asked, "--augmented")
    assert "60 networks were there already" in text
    assert text.count("(kept)") == 2
    assert ("relu", "augmented") in {(r["activation"], r["train_set"]) for r in read(tmp_path / "out")["rows"]}


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("ablation", "zoos/digits is not there: make it by `nfn-monomial zoo make`"),
        ("edit-inr --set task=contrast", "inrs/crops is not there: make it by `nfn-monomial inr make --images crops`"),
    ],
)
def test_what_makes_missing_data_is_named(
    asked: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in said(*asked.split(), code=2)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--data {missing}", "{missing} does not exist"),
        ("--data {zoo} --preset large", "unknown preset 'large': choose from small, tuned, paper"),
        ("--data {zoo} --set training.epochs=0", "training.epochs is '0', but"),
        ("--data {zoo} --set models=np", "--set models=np: use --models"),
        ("--data {zoo} --set activations=gelu", "no network has the activation 'gelu'"),
        ("--data {zoo} --precision 16", "precision is '16', but"),
        ("--data {zoo} --seeds 0", "Invalid value for '--seeds'"),
        ("--data {zoo} --device cuda:9", "device 'cuda:9' is not there"),
        ("--data {zoo} --data-option limits=10", "no option limits; it has limit"),
        ("--data {inrs}", "it is data for nfn-monomial classify-inr and edit-inr"),
        ("--data {zoo} --out {file}", "{file} is a file: give a folder"),
    ],
)
def test_errors_are_one_line_and_leave_nothing_behind(
    arguments: str, message: str, zoo: Path, inrs: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    places = {"zoo": zoo, "inrs": inrs, "missing": tmp_path / "nothing", "file": tmp_path / "file"}
    out = () if "--out" in arguments else ("--out", tmp_path / "out")
    text = said("predict-generalization", *arguments.format(**places).split(), *out, code=2)
    assert message.format(**places) in text
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "asked",
    [
        "ablation --models nothing", "tune --models inr-np",
        "classify-inr --set slower=nothing", "edit-inr --models np,nothing",
        "predict-generalization --set augmented_models=nothing", "cost --models hnp,nothing", "cost --models np",
    ],
)  # fmt: skip
def test_models_that_an_experiment_has_not_are_found_out_before_data_are_read(asked: str, tmp_path: Path) -> None:
    folders = () if asked.startswith("cost") else ("--data", tmp_path)
    text = said(*asked.split(), *folders, "--out", tmp_path / "out", code=2)
    said_of = ("'nothing'", "nothing: not of the ablation", "is a model for the task 'inr'", "add hnp")
    assert any(words in text for words in said_of)
    assert not (tmp_path / "out").exists()


def test_tune_and_predict_by_the_recipe(tmp_path: Path) -> None:
    zoo, other, out = tmp_path / "zoo", tmp_path / "other", tmp_path / "tuned"
    make_zoo(zoo, config.ZooConfig(networks=160, epochs=(1, 1), train_fractions=(0.1,)))
    shutil.copytree(zoo, other)
    asked = ("tune", "--data", zoo, "--data", other, "--out", out, "--models", "statnn", *QUICK, "--set", "trials=2")
    asked = (*asked, "--set", "epochs=1,2", "--set", "folds=2", "--set", "cuts=1", "--set", "loss=rank")
    said(*asked)
    names = [f"{folder.name}-{activation}" for folder in (zoo, other) for activation in ("relu", "tanh")]
    assert files(out) == COMMON | {"search.png", "recipe.json", "search.journal"}
    assert set(read(out, "config")["data"]) == {"path", *names}
    assert said(*asked).count("(kept)") == 1 + 8
    recipe = read(out, "recipe")["recipes"]["statnn"]
    given = ("--set", f"recipe={out / 'recipe.json'}", "--models", "statnn,mlp", "--set", "activations=relu")
    said("predict-generalization", "--data", zoo, "--out", tmp_path / "p", *QUICK, *given, "--set", "widen=0")
    trained = {values["model"]: values for values in read(tmp_path / "p")["settings"]}
    assert {name: values["loss"] for name, values in trained.items()} == {"statnn": "rank", "mlp": "bce"}
    assert trained["statnn"]["training"].items() >= recipe["training"].items()
    assert "several folders have one name" in said("tune", "--data", zoo, "--data", zoo, "--out", out, code=2)
