"""The commands that train: what they ask of studies, one of them whole, and what cannot be done is found out first."""

import functools
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from invoking import said
from matplotlib.figure import Figure
from small_zoo import corpus

from nfn_monomial.benchmarks.cli import experiments
from nfn_monomial.benchmarks.data.formats import detection
from nfn_monomial.benchmarks.data.formats.made import read_shard, stated, write_shard
from nfn_monomial.benchmarks.experiments import EXPERIMENTS, Experiment
from nfn_monomial.benchmarks.make import config
from nfn_monomial.benchmarks.make.config import MixedConfig
from nfn_monomial.benchmarks.make.zoo import make_zoo
from nfn_monomial.benchmarks.settings.register import News
from nfn_monomial.benchmarks.train.recipes import Recipe, write_recipes
from nfn_monomial.tools.report import Report, Table

QUICK = ("--seeds", 1, "--set", "training.epochs=1")
COMMON = {"table.md", "results.json", "config.json"}
REPORT = Report([Table("Found", ("model", "tau"), (("statnn", "0.5"),))], {"rows": [{"tau": 0.5}]}, {"f.png": Figure()})


def read(folder: Path, name: str = "results") -> Any:
    return json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.is_file()}


def another(zoo: Path, folder: Path) -> Path:
    """A zoo that differs from this one in a single accuracy of each shard."""
    shutil.copytree(zoo, folder)
    described = {name: value for name, value in stated(folder).items() if name != "made"}
    for number in range(described["shards"]):
        shard = read_shard(folder, number, described)
        tensors = {name: t.clone() for name, t in shard.tensors.items()}
        tensors["accuracy"][0] /= 2
        write_shard(folder, number, described, shard._replace(tensors=tensors))
    return folder


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, Any]]:
    """Data and configurations that studies are asked to do, which here train nothing."""
    calls: list[tuple[Any, Any]] = []
    load = Experiment.load

    def run(data: Any, config: Any, store: Any, tell: Any) -> None:
        calls.append((data, config))
        tell(News("one run", 1, 1, "1/1 one run: tau 0.5"))

    faked = {"run": run, "tables": lambda *_: REPORT, "kept": lambda *_: {}}
    monkeypatch.setattr(Experiment, "load", lambda self: replace(load(self), **faked))
    return calls


@pytest.mark.parametrize("name", [name for name, e in EXPERIMENTS.items() if e.data and name != "tune"])
def test_a_command_asks_its_study_and_writes_the_report(
    name: str, zoo: Path, inrs: Path, tmp_path: Path, asked: list[tuple[Any, Any]]
) -> None:
    data = inrs if EXPERIMENTS[name].inrs else zoo
    text = said(name, "--data", data, "--out", tmp_path, *QUICK, "--seed", 3)
    assert ("digits: 80 training, 10 validation, 10 test networks" if data == inrs else "relu: 1") in text
    assert "1/1 one run: tau 0.5" in text
    assert "statnn" in text
    assert files(tmp_path) == COMMON | {"f.png"}
    assert read(tmp_path)["rows"] == [{"tau": 0.5}]
    stated = read(tmp_path, "config")
    assert (stated["config"]["training"]["epochs"], stated["config"]["seeds"]) == (1, [3])
    assert stated["data"]["path"] == str(data)
    ((corpora, config),) = asked
    assert (config.training.epochs, config.seeds) == (1, (3,))
    assert len(corpora.train) == 80 if data == inrs else "relu" in corpora


def test_predict_generalization_on_a_mixed_zoo(tmp_path: Path, asked: list[tuple[Any, Any]]) -> None:
    zoo = tmp_path / "mixed"
    make_zoo(zoo, MixedConfig(networks=40, depths=(2, 2), widths=(2, 4), epochs=(1, 1), train_fractions=(0.1,)))
    command = ("predict-generalization", "--data", zoo, "--out", tmp_path / "out")
    assert "mixed: 16 training, 4 validation, 20 test networks" in said(*command, *QUICK)
    ((_, config),) = asked
    assert set(config.models) == {"gnn", "monomial-conv", "statnn-set", "stats-set"}, "no others read them"
    for option, message in {
        "--data-option unseen_architectures=true --models statnn": "too few for three parts",
        "--data-option limit=3": "which has no option limit",
        "--set activations=relu": "no network has the activation 'relu'",
    }.items():
        assert message in said(*command, *option.split(), code=2)


def test_tune_takes_several_zoos(zoo: Path, tmp_path: Path, asked: list[tuple[Any, Any]]) -> None:
    other = another(zoo, tmp_path / "other")
    command = ("tune", "--data", zoo, "--out", tmp_path / "tuned", "--set", "trials=2")
    said(*command, "--data", other)
    ((corpora, config),) = asked
    assert config.trials == 2
    names = [f"{folder.name}-{activation}" for folder in (zoo, other) for activation in ("relu", "tanh")]
    assert [corpus.activation for corpus in corpora.values()] == list(corpora) == names
    assert set(read(tmp_path / "tuned", "config")["data"]) == {"path", *names}
    assert "several folders have one name" in said(*command, "--data", zoo, code=2)
    copy = shutil.copytree(zoo, tmp_path / "copy")
    text = said(*command, "--data", other, "--data", copy, code=2)
    assert f"{zoo} and {copy} hold the same relu networks: give each zoo once" in text


def test_no_zoo_takes_the_place_of_another(zoo: Path, tmp_path: Path, asked: list[tuple[Any, Any]]) -> None:
    """Whatever their folders are called; the last word of a name that is an activation is the zoo's own."""
    other = another(zoo, tmp_path / "relu-tanh")
    some = another(other, tmp_path / "some")
    also = another(some, tmp_path / "some-relu")
    command = ("tune", "--data", zoo, "--out", tmp_path / "tuned", "--set", "trials=2")
    said(*command, "--data", other)
    names = [*(f"{zoo.name}-{a}" for a in ("relu", "tanh")), *(f"relu-tanh-{a}" for a in ("relu", "tanh"))]
    assert list(asked[0][0]) == names
    text = said(*command, "--data", some, "--data", also, code=2)
    assert "two zoos are called some-relu: give their folders other names" in text


def test_a_choice_of_activations_is_one_among_all_zoos(zoo: Path, tmp_path: Path) -> None:
    """Zoos have the same names with it and without, and one that has none of these networks is left out."""
    other, tanh = another(zoo, tmp_path / "some-relu"), tmp_path / "tanhs"
    make_zoo(tanh, config.ZooConfig(networks=12, activations=("tanh",), epochs=(1, 1), train_fractions=(0.1,)))
    command = ("predict-generalization", "--data", zoo, "--data", other, "--data", tanh, "--models", "statnn", *QUICK)
    some = ("--set", "train_sets=original", "--set", "widen=0", "--set", "activations=relu")
    text = said(*command, *some, "--out", tmp_path / "some")
    rows = read(tmp_path / "some")["rows"]
    assert [row["activation"] for row in rows] == [f"{zoo.name}-relu", "some-relu"]
    assert text.count(": 16 training, 4 validation, 20 test networks") == 4, (
        "of both activations, which are chosen later"
    )
    assert "none with gelu" in said(*command, "--set", "activations=gelu", "--out", tmp_path / "no", code=2)


def test_demo_is_an_experiment_from_the_zoo_to_the_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert "60 networks were already there" in text
    assert text.count("(kept)") == 2
    assert ("relu", "augmented") in {(r["activation"], r["train_set"]) for r in read(tmp_path / "out")["rows"]}


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("ablation", "zoos/digits is not there: make it by `nfn-monomial zoo make`"),
        (
            "predict-generalization --preset zoos",
            "zoos/six/tanh-mnist are not there: make them by `nfn-monomial zoo make --networks 2500 --activations",
        ),
        ("predict-generalization --preset zoos-paper", "zoos/six/relu-wide"),
        ("predict-generalization --preset zoos-5000", "`nfn-monomial zoo make --networks 9000 --activations relu"),
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
        ("--data {zoo} --models ,", "--models names none: leave it out"),
        ("--data {zoo} --set left_out=rulu:statnn", "left_out has rulu:statnn: the data are called "),
        ("--data {zoo} --set augmented_activations=rellu", "augmented_activations has rellu: the data have "),
        ("--data {zoo} --set recipe={cut}", "{cut} is damaged"),
        ("--data {zoo} --set recipe={other} --models np", "{other} has recipes for statnn, but for none of np"),
        ("--data {zoo} --out {own}", "table.md is not of this command, and would be replaced: choose another --out"),
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
    (tmp_path / "cut.json").write_text('{"recipes": {', encoding="utf-8")
    write_recipes(tmp_path / "other.json", {"statnn": Recipe("bce", {})})
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "table.md").write_text("mine", encoding="utf-8")
    places = {"zoo": zoo, "inrs": inrs, "missing": tmp_path / "nothing", "file": tmp_path / "file"}
    places |= {"cut": tmp_path / "cut.json", "other": tmp_path / "other.json", "own": tmp_path / "own"}
    out = () if "--out" in arguments else ("--out", tmp_path / "out")
    text = said("predict-generalization", *arguments.format(**places).split(), *out, code=2)
    assert message.format(**places) in text
    assert not (tmp_path / "out").exists()
    assert (tmp_path / "own" / "table.md").read_text(encoding="utf-8") == "mine"


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


def test_what_data_say_of_themselves_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As that test networks are copies of training networks, which makes results too good."""
    zoo = replace(corpus("relu"), source={"notes": ["2 networks are a copy, as [/old]/a.pt"]})
    monkeypatch.setattr(detection, "load_generalization", lambda *_, **__: {"relu": zoo})
    experiments._load(EXPERIMENTS["predict-generalization"], [tmp_path], (), None)
    assert "relu: 2 networks are a copy, as [/old]/a.pt" in " ".join(capsys.readouterr().out.split())
