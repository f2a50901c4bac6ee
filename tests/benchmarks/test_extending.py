"""The page on own models, data sets and experiments: its code runs as printed, and does what it says."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from invoking import plain, said
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from nfn_monomial.benchmarks.cli.commands import add_commands
from nfn_monomial.benchmarks.data.formats import base as formats
from nfn_monomial.benchmarks.data.formats.detection import detect, load_inr
from nfn_monomial.benchmarks.data.sirens import InrCorpus, InrPart, Siren
from nfn_monomial.benchmarks.make.config import ZooConfig
from nfn_monomial.benchmarks.make.siren_fit import FitConfig, fit_sirens
from nfn_monomial.benchmarks.make.zoo import make_zoo
from nfn_monomial.benchmarks.models.catalogue import register_all
from nfn_monomial.benchmarks.settings.register import EXPERIMENTS
from nfn_monomial.tools.predictors import models as registry

PAGE = (Path(__file__).parents[2] / "docs" / "extending.md").read_text(encoding="utf-8")
NAMES = ("cli", "model", "zoo", "experiment")
BLOCKS = dict(zip(NAMES, re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL), strict=True))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("extending")  # one for all blocks, as a reader has it


@pytest.fixture(autouse=True)
def _in_the_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Removes after each test the entries that its block has registered."""
    monkeypatch.chdir(folder)
    register_all()  # or what is imported by a test would be gone after it
    before = [(known, dict(known)) for known in (registry.register.classes, formats.FORMATS, EXPERIMENTS)]
    yield
    for known, entries in before:
        known.clear()
        known.update(entries)


def execute(name: str) -> dict[str, Any]:
    torch.manual_seed(0)
    namespace: dict[str, Any] = {"__name__": name}
    exec(compile(BLOCKS[name], f"extending.md, {name}", "exec", dont_inherit=True), namespace)
    return namespace


def test_model(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    namespace = execute("model")
    assert registry.model_class("one-layer") is namespace["OneLayer"]
    row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("| **one layer** |"))
    runs = [run for run in namespace["runs"] if run.settings.model == "one-layer"]
    assert len(runs) == 2  # ReLU and tanh networks
    for run in runs:
        taus = [test.metrics["tau"] for test in run.tests if test.name != "widened"]
        assert taus == pytest.approx([taus[0]] * len(taus), abs=1e-2)
    assert row.count(f"{runs[0].tests[0].metrics['tau']:.3f}") >= 1
    assert callable(execute("cli")["run"])
    arguments = ["predict-generalization", "--data", "zoos/tiny", "--models", "one-layer", "--seeds", "1"]
    assert "one layer" in said(*arguments, "--set", "training.epochs=1", "--out", "results/command")


def test_data_sets(capsys: pytest.CaptureFixture[str]) -> None:
    execute("zoo")
    assert detect("zoos/mine") == "one-file-zoo"
    *_, last = capsys.readouterr().out.splitlines()
    assert last == re.findall(r"print\(.*\)  # (.*)", BLOCKS["zoo"])[-1], "as the comment after it says"


def test_inrs_of_own_images() -> None:
    siren = Siren((2, 16, 16, 1), omega_0=30.0, image=(1, 12, 12))

    @formats.register_format("my-images")
    class MyImages(formats.Format):
        """SIRENs in ``my_images.safetensors``, with the ``pixels`` they show and the ``labels`` of these."""

        kind, looks_for = "inr", "my_images.safetensors"

        @staticmethod
        def detects(path: Path) -> bool:
            return (path / "my_images.safetensors").is_file()

        @staticmethod
        def load(path: Path) -> InrCorpus:
            tensors = load_file(Path(path) / "my_images.safetensors")

            def part(start: int, stop: int) -> InrPart:
                networks = {name: tensors[name][start:stop] for name in siren.space.shapes()}
                return InrPart(networks, tensors["labels"][start:stop], torch.arange(start, stop))

            return InrCorpus("mine", siren, 2, part(0, 20), part(20, 30), part(30, 40), tensors["pixels"], {})

    labels = torch.arange(40) % 2
    bars = torch.linspace(0, 6, 12).sin().abs().expand(12, 12)
    pixels = torch.stack([bars.T if label else bars for label in labels])[:, None]  # bars down, bars across
    fitted = fit_sirens(siren, pixels, [(0, i) for i in range(40)], FitConfig(steps=100))
    Path("inrs/mine").mkdir(parents=True)
    save_file(fitted | {"pixels": pixels, "labels": labels}, "inrs/mine/my_images.safetensors")
    assert detect("inrs/mine") == "my-images"
    corpus = load_inr("inrs/mine")
    assert [len(part) for part in (corpus.train, corpus.val, corpus.test)] == [20, 10, 10]
    images = siren.render(corpus.test.tensors)
    assert (images - corpus.pixels[corpus.test.image]).abs().max() < 0.1


def test_an_experiment_is_one_file() -> None:
    """From which there are its command and its settings."""
    make_zoo("zoos/tiny", ZooConfig(networks=80, epochs=(1, 3), train_fractions=(0.1,)))
    execute("experiment")
    app = typer.Typer()
    add_commands(app)

    def say(*words: str) -> str:
        done = CliRunner(env={"NO_COLOR": "1", "COLUMNS": "200"}).invoke(app, words)
        assert done.exit_code == 0, done.output
        return plain(done.output)

    asked = ("weight-sizes", "--data", "zoos/tiny", "--set", "training.batch_size=16")
    assert "How large are the weights?" in say(*asked, "--seeds", "1")
    made = json.loads(Path("results/weight-sizes/results.json").read_text(encoding="utf-8"))
    assert [entry["training"]["batch_size"] for entry in made["settings"]] == [16] * 4  # models and activations
    again = say(*asked, "--seeds", "2")
    assert (again.count("(kept)"), again.count("/8 ")) == (4, 8)
    assert "unknown key 'training.epoch'" in plain(
        CliRunner().invoke(app, ["weight-sizes", "--set", "training.epoch=1"]).output
    )
    assert "training.batch_size=" in say("weight-sizes", "--help")
    with pytest.raises(ValueError, match="there is an experiment weight-sizes already"):
        execute("experiment")
