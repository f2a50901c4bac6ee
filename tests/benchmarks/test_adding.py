"""A new experiment is one new file, as CONTRIBUTING says: its command, help, results and version come from it."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
import versions
from invoking import plain
from typer.testing import CliRunner

from nfn_monomial.benchmarks import experiments
from nfn_monomial.benchmarks.cli.commands import add_commands
from nfn_monomial.benchmarks.experiments import EXPERIMENTS
from nfn_monomial.tools.predictors import models as registry

FILE = '''"""Reading the sum of its weights off a network: an experiment for tests."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from nfn_monomial.benchmarks.experiments import Experiment, Study, register
from nfn_monomial.benchmarks.settings import Count, Settings, Some
from nfn_monomial.benchmarks.settings.training import TrainConfig

VERSION = 3
COMPUTED_BY = ("models/baselines.py",)


@dataclass(frozen=True)
class SumConfig(Settings):
    """The sum of the weights.

    Attributes:
        networks: number of networks to train on.
    """

    models: Some[str] = ("statnn",)
    seeds: Some[int] = (0,)
    networks: Count = 16
    training: TrainConfig = field(default_factory=lambda: TrainConfig(epochs=1))


def run(data: Any, config: SumConfig, store: Any, tell: Any) -> list[Any]:
    import torch
    from torch.nn.functional import mse_loss

    from nfn_monomial import WeightSpace
    from nfn_monomial.benchmarks.data.batches import Data
    from nfn_monomial.benchmarks.models import catalogue  # noqa: F401  (which registers the models)
    from nfn_monomial.benchmarks.train.runs import RunSettings
    from nfn_monomial.benchmarks.train.sweep import Job, Test, Trial, sweep
    from nfn_monomial.testing import random_networks
    from nfn_monomial.tools.predictors.models import NetworkInfo, build_model

    space = WeightSpace.mlp([2, 3, 1], "relu")

    def prepare(settings: RunSettings) -> Trial:
        model = build_model(settings.model, NetworkInfo(space, "relu"), seed=settings.seed)

        def data(seed: int) -> Data:
            generator = torch.Generator().manual_seed(seed)
            networks = random_networks(space, config.networks, dtype=torch.float32, generator=generator)
            return Data(model.prepare(networks), sum(t.flatten(1).sum(1) for t in networks.values()))

        return Trial(
            settings, model, data(0), data(1), lambda: [Test("test", data(2))], mse_loss,
            lambda outputs, targets: {"mse": (error := float(mse_loss(outputs, targets))), "score": -error},
            select="score",
        )

    return sweep(
        [
            Job(
                RunSettings(
                    "weight-sum", "relu", model, "original", seed, options={"networks": config.networks}, loss="mse",
                    training=config.training, data="", code="", version=VERSION,
                ),
                prepare,
            )
            for seed in config.seeds
            for model in config.models
        ],
        store,
        tell,
    )


def tables(runs: list[Any], config: SumConfig, store: Any) -> Any:
    from nfn_monomial.benchmarks.report.tables import model_table, record_of
    from nfn_monomial.tools.report import Report

    table = model_table("The sum of the weights", runs, {"MSE": lambda run: run.metric("test", "mse")})
    return Report([table], {"mse": [run.metric("test", "mse") for run in runs], **record_of(runs)})


register(
    Experiment(
        "weight-sum", "Read the sum of its weights off a network.", {"small": SumConfig()}, Study(run, tables)
    )
)
'''


@pytest.fixture
def added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[typer.Typer]:
    """The application with one more file among the experiments."""
    folder = tmp_path / "more"
    folder.mkdir()
    (folder / "weight_sum.py").write_text(FILE, encoding="utf-8")
    registered = [(known, dict(known)) for known in (EXPERIMENTS, registry.register.classes)]
    monkeypatch.setattr(experiments, "__path__", [*experiments.__path__, str(folder)])
    source = Path(experiments.__file__)
    exec(compile(source.read_text(encoding="utf-8"), source, "exec"), vars(experiments))  # finds the files of its path
    app = typer.Typer()
    add_commands(app)
    yield app
    for known, before in registered:
        known.clear()
        known.update(before)
    sys.modules.pop(f"{experiments.__name__}.weight_sum")


def said(app: typer.Typer, *words: object) -> str:
    done = CliRunner(env={"NO_COLOR": "1", "COLUMNS": "200"}).invoke(app, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    return plain(done.output)


def test_a_file_is_a_command_with_help_settings_and_results(added: typer.Typer, tmp_path: Path) -> None:
    shown = said(added, "weight-sum", "--help")
    assert "Read the sum of its weights off a network." in shown
    assert "`networks=16` (integer): number of networks to train on." in shown
    command = ("weight-sum", "--out", tmp_path / "out", "--set", "networks=12", "--seeds", 2)
    assert "The sum of the weights" in said(added, *command)
    results = json.loads((tmp_path / "out" / "results.json").read_text(encoding="utf-8"))
    assert len(results["mse"]) == len(results["runs"]) == 2
    assert results["networks"] == {"relu": {"train": 12, "val": 12, "test": 12}}
    assert results["settings"][0]["version"] == 3
    assert said(added, *command).count("(kept)") == 2


def test_its_version_is_known_from_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = tmp_path / "code"
    for module in versions.hashes():
        (code / module).parent.mkdir(parents=True, exist_ok=True)
        (code / module).write_bytes((versions.CODE / module).read_bytes())
    monkeypatch.setattr(versions, "CODE", code)
    (code / "experiments").mkdir()
    (code / "experiments" / "weight_sum.py").write_text(FILE, encoding="utf-8")
    assert versions.versions()["experiments/weight_sum.py"] == 3
    table = {"versions": versions.versions(), "code": versions.hashes()}
    assert versions.changed(table) == []
    baselines = code / "models" / "baselines.py"
    baselines.write_text(baselines.read_text(encoding="utf-8") + "\nMORE = 1\n", encoding="utf-8")
    (line,) = versions.changed(table)
    assert "raise VERSION in experiments/weight_sum.py, " in line
