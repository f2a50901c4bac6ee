"""The command line: small runs of every command from end to end, and errors in one line."""

import json
import re
import sys
from pathlib import Path

import pytest
from published_writers import write_nfn
from typer.testing import CliRunner, Result

from nfn_monomial.benchmarks import __main__ as main_module
from nfn_monomial.benchmarks.cli import application as cli
from nfn_monomial.benchmarks.cli import predict as cli_predict
from nfn_monomial.benchmarks.make.mixed import make_mixed_zoo
from nfn_monomial.benchmarks.make.mixed_recipes import MixedConfig
from nfn_monomial.benchmarks.make.recipes import ZooConfig
from nfn_monomial.benchmarks.make.zoo import make_zoo

SHORT = ["--models", "statnn,monomial", "--seeds", "1", "--epochs", "1"]


@pytest.fixture(autouse=True)
def _wide_plain_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli.console, "_width", 200)
    monkeypatch.setattr(cli.errors, "_width", 200)
    monkeypatch.setenv("TERMINAL_WIDTH", "200")
    monkeypatch.setenv("NO_COLOR", "1")


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("zoo")
    make_zoo(path, ZooConfig(networks=80, epochs=(1, 3), train_fractions=(0.1,)))
    return path


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(cli.app, [str(a) for a in arguments])


def plain(result: Result) -> str:
    return re.sub(r"\s+", " ", re.sub(r"\x1b\[[0-9;]*m", "", result.output))


def test_help_names_the_commands_and_shows_examples() -> None:
    text = plain(invoke("--help"))
    for command in ("zoo", "predict-generalization", "demo", "bench"):
        assert command in text
    text = plain(invoke("predict-generalization", "--help"))
    assert "Examples:" in text
    options = "--models --seeds --seed --epochs --batch-size --device --devices --precision --tensorboard --limit --out"
    for option in options.split():
        assert option in text


def test_zoo_make_then_again(tmp_path: Path) -> None:
    arguments = ("zoo", "make", "--out", tmp_path / "zoo", "--networks", 4, "--activations", "tanh", "--seed", 3)
    result = invoke(*arguments)
    assert result.exit_code == 0, result.output
    assert "4 networks trained" in plain(result)
    assert "were there already" in plain(invoke(*arguments))
    result = invoke("zoo", "make", "--out", tmp_path / "zoo", "--networks", 5)
    assert result.exit_code == 2
    assert "error:" in plain(result)
    assert "another configuration" in plain(result)


def test_predict_generalization(zoo: Path, tmp_path: Path) -> None:
    result = invoke("predict-generalization", zoo, "--out", tmp_path, *SHORT, "--scales", "10,1e6", "--limit", 10)
    assert result.exit_code == 0, result.output
    text = plain(result)
    assert "relu: 10 training, 4 validation, 20 test networks" in text
    assert "tanh: 10 training" in text
    assert "8/8 tanh monomial, augmented, seed 0" in text
    assert "Test accuracy of relu networks predicted from their weights" in text
    assert (tmp_path / "figure1.png").exists()
    results = json.loads((tmp_path / "results.json").read_text())
    row = next(r for r in results["rows"] if (r["activation"], r["model"]) == ("relu", "monomial"))
    assert f"{row['tau']['original']['mean']:.3f}" in text
    assert results["settings"][0]["training"]["epochs"] == 1
    again = plain(invoke("predict-generalization", zoo, "--out", tmp_path, *SHORT, "--scales", "10,1e6", "--limit", 10))
    assert again.count("(kept)") == 8
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["config"]["scales"] == [10, 1e6]
    assert config["data"]["path"] == str(zoo)
    options = ("--set", "widen=0", "--set", "loss=mse", "--models", "statnn", "--train-sets", "original")
    options = (*options, "--activations", "relu")
    result = invoke("predict-generalization", zoo, "--out", tmp_path, *SHORT, "--limit", 10, *options)
    assert result.exit_code == 0, result.output
    (settings,) = json.loads((tmp_path / "results.json").read_text())["settings"]
    assert (settings["options"]["widen"], settings["loss"]) == (0, "mse")


def test_presets_and_data_of_predict_generalization(zoo: Path, tmp_path: Path) -> None:
    short = ("--out", tmp_path, *SHORT, "--train-sets", "original", "--activations", "relu", "--limit", 10)
    assert invoke("predict-generalization", "--data", zoo, "--preset", "paper", *short).exit_code == 0
    config = json.loads((tmp_path / "config.json").read_text())["config"]
    assert (config["training"]["batch_size"], config["training"]["epochs"]) == (8, 1)
    for options, message in (
        (("--preset", "large"), "unknown preset 'large': choose from small, paper"),
        (("--set", "widn=2"), "unknown key 'widn'"),
        (("--set", "widen=0.5"), "widen is 0.5"),
        ((zoo,), "give the folder once"),
        (("--models", "hpn"), "unknown model 'hpn'"),
    ):
        result = invoke("predict-generalization", "--data", zoo, *options)
        assert (result.exit_code, message in plain(result)) == (2, True), plain(result)


def test_predict_generalization_on_a_mixed_zoo(tmp_path: Path) -> None:
    zoo = tmp_path / "mixed"
    make_mixed_zoo(zoo, MixedConfig(networks=40, widths=(4, 6), epochs=(1, 2), train_fractions=(0.1, 0.2)))
    options = ("--epochs", 1, "--seeds", 1, "--train-sets", "original", "--scales", 10)
    result = invoke("predict-generalization", zoo, "--out", tmp_path / "out", *options)
    assert result.exit_code == 0, result.output
    text = plain(result)
    assert "mixed: 16 training, 4 validation, 20 test networks" in text
    assert "Test accuracy of mixed networks predicted from their weights" in text
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    models = {row["model"] for row in results["rows"]}
    assert {"gnn", "monomial-conv"} <= models
    assert "hnp" not in models
    assert set(results["rows"][0]["tau"]) == {"original", "scale 10", "widened"}
    options = ("--out", tmp_path / "out", "--models", "hnp")
    assert "hnp reads networks of one architecture" in plain(invoke("predict-generalization", zoo, *options))
    unseen = ("--unseen-architectures", "--out", tmp_path / "out", "--models", "statnn")
    assert "too few for three parts" in plain(invoke("predict-generalization", zoo, *unseen))
    assert "has the format mixed-zoo, which has no option limit" in plain(
        invoke("predict-generalization", zoo, "--limit", 3)
    )
    (zoo / "zoo.json").write_text("[1")
    assert "zoo.json is damaged" in plain(invoke("predict-generalization", zoo))


def test_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = ZooConfig(epochs=(1, 2), train_fractions=(0.1,))
    monkeypatch.setattr(cli_predict, "ZooConfig", lambda networks: ZooConfig(networks=networks, epochs=small.epochs))
    result = invoke("demo", "--out", tmp_path, "--networks", 60, *SHORT)
    assert result.exit_code == 0, result.output
    text = plain(result)
    assert f"Figure: {tmp_path / 'figure1.png'}" in text
    assert "Took 0." in text
    results = json.loads((tmp_path / "results.json").read_text())
    found = {(r["activation"], r["train_set"]) for r in results["rows"]}
    assert found == {("relu", "original"), ("relu", "augmented"), ("tanh", "original")}
    assert "(kept)" in plain(invoke("demo", "--out", tmp_path, "--networks", 60, *SHORT))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{missing}"], "{missing} does not exist"),
        (["{zoo}", "--models", "hpn"], "unknown model 'hpn': choose from statnn"),
        (["{zoo}", "--epochs", "0"], "epochs is 0, but must be at least 1"),
        (["{zoo}", "--activations", "gelu"], "no network has the activation 'gelu'"),
        (["{zoo}", "--scales", "ten"], "'ten': numbers with commas between are expected"),
        (["{zoo}", "--train-sets", "all"], "unknown train set ['all']"),
        (["{zoo}", "--precision", "16"], "unknown precision '16': choose from 32-true, bf16-mixed, 64-true"),
        (["{zoo}", "--devices", "0"], "devices is 0, but must be at least 1"),
        (["{zoo}", "--device", "cuda:9"], "device 'cuda:9' is not there"),
        (["{zoo}", "--split-order", "none"], "unknown split_order 'none'"),
        (["{zoo}", "--set", "widen=0.5"], "widen is 0.5, but must be larger than 1"),
        (["{zoo}", "--set", "loss=mae"], "unknown loss 'mae': choose from bce, mse, rank"),
        (["{zoo}", "--unseen-architectures"], "which has no option unseen_architectures"),
        (["{zoo}", "--out", "{file}"], "{file} is a file: give a folder"),
    ],
)
def test_errors_are_one_line(arguments: list[str], message: str, zoo: Path, tmp_path: Path) -> None:
    places = {"zoo": str(zoo), "missing": str(tmp_path / "nothing"), "file": str(tmp_path / "file")}
    (tmp_path / "file").touch()
    out = [] if "--out" in arguments else ["--out", str(tmp_path / "out")]
    result = invoke("predict-generalization", *(a.format(**places) for a in arguments), *out)
    assert result.exit_code == 2
    assert message.format(**places) in plain(result)
    assert "Traceback" not in result.output
    assert not (tmp_path / "out").exists(), "nothing is left behind"


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    result = invoke("--debug", "predict-generalization", tmp_path / "nothing")
    assert isinstance(result.exception, ValueError)
    assert isinstance(invoke("predict-generalization", tmp_path / "nothing").exception, SystemExit)


def test_unknown_options_and_seeds_below_one(zoo: Path) -> None:
    assert invoke("demo", "--epoch", 3).exit_code == 2
    assert "Invalid value for '--seeds'" in plain(invoke("predict-generalization", zoo, "--seeds", 0))


def test_interrupted(zoo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli_predict, "predict_generalization", interrupted)
    result = invoke("predict-generalization", zoo, "--out", tmp_path, *SHORT)
    assert result.exit_code == 130
    assert "Interrupted. Finished work is kept" in plain(result)


def test_missing_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "nfn_monomial.benchmarks.cli.application")
    monkeypatch.delitem(sys.modules, "nfn_monomial.benchmarks.cli.common")
    monkeypatch.setitem(sys.modules, "typer", None)
    with pytest.raises(SystemExit, match=r"needs the package typer: pip install nfn-monomial\[bench\]"):
        main_module.main()


def test_bench_layers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def bench_layers(*arguments: object) -> list[object]:
        asked.extend(arguments[:-1])  # the last one is a callback
        return []

    monkeypatch.setattr("nfn_monomial.benchmarks.speed.layers.bench_layers", bench_layers)
    result = invoke("bench", "layers", "--batches", "8,64", "--repeats", 2, "--no-graphs", "--out", tmp_path)
    assert result.exit_code == 0, result.output
    assert asked == [[8, 64], 16, 2, "cpu"]
    assert "layers.md" in plain(result)


def test_data_options_reach_the_format(zoo: Path, tmp_path: Path) -> None:
    options = ("--data", zoo, "--data-option", "limit=10", "--data-option", "split_order=split-then-activation")
    short = ("--out", tmp_path, "--models", "statnn", "--seeds", 1, "--train-sets", "original", "--epochs", 1)
    result = invoke("predict-generalization", *options, *short)
    assert result.exit_code == 0, result.output
    assert "relu: 10 training" in plain(result)
    data = json.loads((tmp_path / "config.json").read_text())["data"]
    assert data["relu"]["split_order"] == "split-then-activation"
    able = "it has activations, split_file, split_order, keep_duplicate, final_step, limit, in_memory_bytes"
    for command in ("predict-generalization", "ablation", "augment"):
        for option, message in (
            ("limits=10", f"no option limits; {able}"),
            ("limit=ten", "limit is 'ten', expected int"),
            ("limit", "'limit': expected key=value"),
        ):
            result = invoke(command, "--data", zoo, "--out", tmp_path / "none", "--data-option", option)
            assert (result.exit_code, message in plain(result)) == (2, True), plain(result)
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("command", ["classify-inr", "edit-inr"])
def test_data_options_of_inrs(command: str, tmp_path: Path) -> None:
    write_nfn(tmp_path / "nfn", (0, 45_000, 50_000))
    asked = (command, "--data", tmp_path / "nfn", "--out", tmp_path / "none", "--data-option")
    for option, message in (
        ("omega=20", "no option omega; it has prefix, augmented, limit, omega_0, in_memory_bytes"),
        ("prefix=other", "label folders missing: other_0s"),
        ("augmented=1", "augmented is 1, but the augmented copies found are none"),
    ):
        result = invoke(*asked, option)
        assert (result.exit_code, message in plain(result)) == (2, True), plain(result)


def test_activations_of_a_mixed_zoo(tmp_path: Path) -> None:
    make_mixed_zoo(tmp_path, MixedConfig(networks=10, epochs=(1, 1), depths=(2, 2), widths=(2, 2)))
    result = invoke("predict-generalization", tmp_path, "--activations", "relu", "--out", tmp_path / "out")
    assert "no network has the activation 'relu'; those present: mixed" in plain(result)
    assert result.exit_code == 2


@pytest.mark.parametrize("kind", [[], ["--vary-architecture"]])
@pytest.mark.parametrize("device", ["foo", "cuda:9"])
def test_devices_of_zoo_make(kind: list[str], device: str, tmp_path: Path) -> None:
    result = invoke("zoo", "make", "--out", tmp_path / "zoo", "--device", device, *kind)
    assert (result.exit_code, f"device '{device}' is " in plain(result)) == (2, True), plain(result)
    assert not (tmp_path / "zoo").exists()


def test_missing_package_of_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("cli.application", "cli.report", "report.page", "report.page_markdown"):
        monkeypatch.delitem(sys.modules, f"nfn_monomial.benchmarks.{name}")
    monkeypatch.delattr("nfn_monomial.benchmarks.cli.report")
    monkeypatch.setitem(sys.modules, "markdown_it", None)
    with pytest.raises(SystemExit, match=r"needs the package markdown_it: pip install nfn-monomial\[bench\]"):
        main_module.main()
