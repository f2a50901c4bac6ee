"""The commands that train: small runs from end to end, and what cannot be done is found out first, in one line."""

import functools
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from invoking import said
from published_writers import write_nfn

from nfn_monomial.benchmarks.make import config
from nfn_monomial.benchmarks.make.config import MixedConfig
from nfn_monomial.benchmarks.make.zoo import make_zoo
from nfn_monomial.tools.cli.options import console

QUICK = ("--seeds", 1, "--set", "training.epochs=1")
TWO = ("--models", "statnn,monomial")


def read(folder: Path, name: str = "results") -> Any:
    return json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.is_file()}


def test_predict_generalization(zoo: Path, tmp_path: Path) -> None:
    asked = ("predict-generalization", "--data", zoo, "--out", tmp_path, *QUICK, *TWO, "--set", "scales=10,1e6")
    asked = (*asked, "--data-option", "limit=10")
    text = said(*asked)
    assert "relu: 10 training, " in text
    assert "tanh: 10 training, " in text
    assert "8/8 tanh monomial, augmented, seed 0" in text
    assert "Test accuracy of relu networks predicted from their weights" in text
    assert files(tmp_path) == {"table.md", "results.json", "figure1.png", "config.json"}
    assert all(str(tmp_path / name) in text for name in ("table.md", "results.json", "figure1.png"))
    results, stated = read(tmp_path), read(tmp_path, "config")
    row = next(r for r in results["rows"] if (r["activation"], r["model"]) == ("relu", "monomial"))
    assert f"{row['tau']['original']['mean']:.3f}" in text
    assert results["settings"][0]["training"]["epochs"] == 1
    assert stated["config"]["scales"] == [10, 1e6]
    assert stated["data"]["path"] == str(zoo)
    assert stated["data"]["relu"]["train"] == 10
    assert said(*asked).count("(kept)") == 8
    other = ("--set", "widen=0", "--set", "loss=mse", "--set", "train_sets=original", "--set", "activations=relu")
    said(*asked, "--models", "statnn", *other)
    (settings,) = read(tmp_path)["settings"]
    assert (settings["options"]["widen"], settings["loss"]) == (0, "mse")


def test_predict_generalization_on_a_mixed_zoo(tmp_path: Path) -> None:
    zoo = tmp_path / "mixed"
    make_zoo(zoo, MixedConfig(networks=40, widths=(4, 6), epochs=(1, 2), train_fractions=(0.1, 0.2)))
    asked = ("predict-generalization", "--data", zoo, "--out", tmp_path / "out")
    text = said(*asked, *QUICK, "--set", "train_sets=original", "--set", "scales=10")
    assert "mixed: 16 training, 4 validation, 20 test networks" in text
    assert "Test accuracy of mixed networks predicted from their weights" in text
    results = read(tmp_path / "out")
    models = {row["model"] for row in results["rows"]}
    assert models == {"gnn", "monomial-conv", "statnn-set", "stats-set"}, (
        "no model of the preset can read them, but these"
    )
    assert set(results["rows"][0]["tau"]) == {"original", "scale 10", "widened"}
    assert "hnp reads networks of one architecture" in said(*asked, "--models", "hnp", code=2)
    unseen = ("--data-option", "unseen_architectures=true")
    assert "too few for three parts" in said(*asked, *unseen, "--models", "statnn", code=2)
    assert "which has no option limit" in said(*asked, "--data-option", "limit=3", code=2)
    assert "no network has the activation 'relu'" in said(*asked, "--set", "activations=relu", code=2)
    (zoo / "zoo.json").write_text("[1", encoding="utf-8")
    assert "zoo.json is damaged" in said(*asked, code=2)


def test_ablation(zoo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "_width", 80)
    asked = ("ablation", "--data", zoo, "--out", tmp_path, *QUICK, "--models", "mnf-1,mnf-1-hnp")
    text = said(*asked)
    assert "relu: 16 training, 4 validation, 20 test networks" in text
    assert "tanh:" not in text, "the paper's is of ReLU networks"
    assert files(tmp_path) == {"table.md", "results.json", "ablation.png", "config.json"}
    assert len(read(tmp_path)["runs"]) == 2
    text = said(*asked, "--set", "activations=relu,tanh")
    assert text.count("(kept)") == 2
    assert "tanh: 16 training" in text
    assert "no network has the activation 'gelu'" in said(*asked, "--set", "activations=relu,gelu", code=2)
    message = "hnp: not of the ablation; choose from mnf-1-hnp, mnf-2-hnp"
    assert message in said(*asked[:-1], "mnf-1,hnp", code=2)


def test_augment(zoo: Path, tmp_path: Path) -> None:
    asked = ("augment", "--data", zoo, "--out", tmp_path, *QUICK, *TWO, "--set", "scales=10,1e4")
    asked = (*asked, "--set", "curve_epochs=1", "--set", "activations=relu")
    said(*asked, "--set", "curve_models=monomial,statnn", "--set", "per_scale=true")
    assert files(tmp_path) == {"table.md", "results.json", "figure1.png", "training_curves.png", "config.json"}
    text = (tmp_path / "table.md").read_text(encoding="utf-8")
    assert text.startswith("Augmented: under every range of scales")
    assert "Training loss on moved copies" in text
    results = read(tmp_path)
    assert [c["model"] for c in results["curves"]] == ["monomial", "statnn"]
    assert results["curves"][0]["difference"] < 1e-8
    assert (len(results["rows"]), len(results["runs"])) == (4, 2 * (1 + 2))
    assert said(*asked, "--set", "curve_models=").count("(kept)") == 2, "the augmented set has other test scales"
    text = (tmp_path / "table.md").read_text(encoding="utf-8")
    assert not text.startswith("Augmented:")
    assert "Training loss on moved copies" not in text


def test_classify_inr(inrs: Path, tmp_path: Path) -> None:
    asked = ("classify-inr", "--data", inrs, "--out", tmp_path, *QUICK, "--models", "mlp,inr-monomial-hnp")
    asked = (*asked, "--set", "sizes.width=8")
    text = said(*asked)
    assert "digits: 80 training, 10 validation, 10 test networks" in text
    assert "2/2 digits inr-monomial-hnp, augmented, seed 0" in text
    assert "Monomial-HNP" in text
    assert files(tmp_path) == {"table.md", "results.json", "confusion.png", "learning.png", "config.json"}
    stated = read(tmp_path, "config")["config"]
    assert (stated["sizes"]["width"], stated["training"]["epochs"]) == (8, 1)
    assert said(*asked).count("(kept)") == 2


def test_edit_inr(inrs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    small = ("--set", "editor.fourier=8", "--set", "editor.width=8", "--set", "shown=2", "--set", "limit=32")
    asked = ("edit-inr", "--data", inrs, "--models", "np,monomial", "--seed", 3, "--set", "training.epochs=1", *small)
    text = said(*asked)
    assert "2/2 digits monomial, original, seed 3" in text
    assert "no edit" in text
    out = tmp_path / "results" / "edit-dilate"
    assert files(out) == {"table.md", "results.json", "edits.png", "learning.png", "config.json"}
    stated = read(out, "config")["config"]
    assert (stated["editor"]["width"], stated["seeds"]) == (8, [3])
    assert said(*asked).count("(kept)") == 2


def test_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick = functools.partial(config.ZooConfig, epochs=(1, 2), train_fractions=(0.1,))
    monkeypatch.setattr(config, "ZooConfig", quick)
    asked = ("demo", "--out", tmp_path, "--networks", 60, *QUICK, *TWO)
    text = said(*asked)
    assert "60 networks trained" in text
    assert "Took 0." in text
    assert {(r["activation"], r["train_set"]) for r in read(tmp_path)["rows"]} == {
        ("relu", "original"),
        ("tanh", "original"),
    }
    text = said(*asked, "--augmented")
    assert "60 networks were there already" in text
    assert text.count("(kept)") == 4
    assert ("relu", "augmented") in {(r["activation"], r["train_set"]) for r in read(tmp_path)["rows"]}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--models", "hnpp"), "unknown model 'hnpp'"),
        (("--device", "mps"), "device 'mps' is unknown; use cpu, cuda or cuda:N"),
        (("--set", "widen=0.5"), "widen is '0.5'"),
    ],
)
def test_demo_refuses_before_it_makes_a_zoo(options: tuple[str, ...], message: str, tmp_path: Path) -> None:
    assert message in said("demo", "--out", tmp_path / "out", *options, code=2)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("predict-generalization", "zoos/digits is not there: make it by `nfn-monomial zoo make`"),
        ("ablation", "zoos/digits is not there: make it by `nfn-monomial zoo make`"),
        ("augment", "zoos/digits is not there: make it by `nfn-monomial zoo make`"),
        ("classify-inr", "inrs/mnist5k is not there: make it by `nfn-monomial inr make --images mnist5k`"),
        ("edit-inr", "inrs/mnist5k is not there: make it by `nfn-monomial inr make --images mnist5k`"),
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
        ("--data {zoo} --models hpn", "unknown model 'hpn': choose from stats"),
        ("--data {zoo} --preset large", "unknown preset 'large': choose from small, tuned, paper"),
        ("--data {zoo} --set training.epochs=0", "training.epochs is '0', but"),
        ("--data {zoo} --set models=np", "--set models=np: use --models"),
        ("--data {zoo} --set activations=gelu", "no network has the activation 'gelu'"),
        ("--data {zoo} --set scales=ten", "scales"),
        ("--data {zoo} --set train_sets=all", "train_sets"),
        ("--data {zoo} --precision 16", "precision is '16', but"),
        ("--data {zoo} --devices 0", "Invalid value for '--devices'"),
        ("--data {zoo} --device cuda:9", "device 'cuda:9' is not there"),
        ("--data {zoo} --device mps", "device 'mps' is unknown; use cpu, cuda or cuda:N"),
        ("--data {zoo} --data-option split_order=none", "split_order"),
        ("--data {zoo} --data-option limits=10", "no option limits; it has limit, in_memory_bytes"),
        ("--data {zoo} --data-option limit=ten", "limit is 'ten'"),
        ("--data {zoo} --data-option limit", "'limit': expected key=value"),
        ("--data {zoo} --set widen=0.5", "widen is '0.5'"),
        ("--data {zoo} --set loss=mae", "loss is 'mae'"),
        ("--data {zoo} --set widn=2", "unknown key 'widn'"),
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
        "ablation --models nothing", "augment --models nothing", "augment --set curve_models=nothing",
        "tune --models nothing", "tune --models inr-np", "classify-inr --models nothing",
        "classify-inr --set slower=nothing", "edit-inr --models np,nothing",
        "predict-generalization --set augmented_models=nothing", "predict-generalization --models inr-np",
        "cost --models hnp,nothing", "cost --models np",
    ],
)  # fmt: skip
def test_models_that_an_experiment_has_not_are_found_out_before_data_are_read(asked: str, tmp_path: Path) -> None:
    folders = () if asked.startswith("cost") else ("--data", tmp_path)
    text = said(*asked.split(), *folders, "--out", tmp_path / "out", code=2)
    said_of = ("'nothing'", "nothing: not of the ablation", "is a model for the task 'inr'", "add hnp")
    assert any(words in text for words in said_of)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", ["classify-inr", "edit-inr"])
def test_errors_of_experiments_on_inrs(command: str, zoo: Path, tmp_path: Path) -> None:
    write_nfn(tmp_path / "nfn", (0, 45_000, 50_000))
    asked = (command, "--data", tmp_path / "nfn", "--out", tmp_path / "none")
    for option, message in (
        ("omega=20", "no option omega; it has prefix, augmented, limit, omega_0, in_memory_bytes"),
        ("prefix=other", "label folders missing: other_0s"),
        ("augmented=1", "augmented is 1, but the augmented copies found are none"),
    ):
        assert message in said(*asked, "--data-option", option, code=2)
    for options, message in (
        (("--models", "nfn"), "'nfn'"),
        (("--preset", "huge"), "unknown preset 'huge': choose from small, "),
        (("--set", "epochs=3"), "unknown key 'epochs'"),
        (("--data", str(zoo)), "it is data for nfn-monomial predict-generalization"),
    ):
        assert message in said(*asked, *options, code=2)
    assert not (tmp_path / "none").exists()


def test_tune_and_predict_by_the_recipe(tmp_path: Path) -> None:
    zoo, other, out = tmp_path / "zoo", tmp_path / "other", tmp_path / "tuned"
    make_zoo(zoo, config.ZooConfig(networks=160, epochs=(1, 2), train_fractions=(0.1,)))
    shutil.copytree(zoo, other)
    asked = ("tune", "--data", zoo, "--data", other, "--out", out, "--models", "statnn", *QUICK, "--set", "trials=2")
    asked = (*asked, "--set", "epochs=1,2", "--set", "folds=2", "--set", "cuts=1", "--set", "loss=rank")
    text = said(*asked)
    names = [f"{folder.name}-{activation}" for folder in (zoo, other) for activation in ("relu", "tanh")]
    assert "2/2 statnn: tau " in text
    assert all(f"8/8 {name}" in text or f"tau {name}" in text for name in names)
    assert files(out) == {"table.md", "results.json", "search.png", "config.json", "recipe.json", "search.journal"}
    assert set(read(out, "config")["data"]) == {"path", *names}
    assert len(read(out)["models"]["statnn"]["tried"]) == 2
    assert said(*asked).count("(kept)") == 1 + 8
    recipe = read(out, "recipe")["recipes"]["statnn"]
    given = ("--set", f"recipe={out / 'recipe.json'}", "--models", "statnn,mlp", "--set", "activations=relu")
    said("predict-generalization", "--data", zoo, "--out", tmp_path / "p", *QUICK, *given, "--set", "widen=0")
    losses = {values["model"]: values["loss"] for values in read(tmp_path / "p")["settings"]}
    assert losses == {"statnn": "rank", "mlp": "bce"}
    trained = next(v["training"] for v in read(tmp_path / "p")["settings"] if v["model"] == "statnn")
    assert {name: trained[name] for name in recipe["training"]} == recipe["training"]
    assert "several folders have one name" in said("tune", "--data", zoo, "--data", zoo, "--out", out, code=2)
