"""TensorBoard: what it is given, and what is said where it is missing."""

from dataclasses import replace
from pathlib import Path

import harness_worker
import pytest

from nfn_monomial.benchmarks.train import sweep as experiment
from nfn_monomial.benchmarks.train.runs import RunStore
from nfn_monomial.benchmarks.train.sweep import sweep


def test_tensorboard(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    logged: dict[str, list[tuple[int, dict[str, float]]]] = {}

    class Logger:
        def __init__(self, root: Path, name: str, version: str) -> None:
            self.events = logged.setdefault(str(root / name / version), [])

        def log_metrics(self, metrics: dict[str, float], step: int) -> None:
            self.events.append((step, metrics))

        def save(self) -> None:
            pass

    monkeypatch.setattr(experiment, "TensorBoardLogger", Logger)
    (job,) = harness_worker.jobs(["parts"], replace(harness_worker.TRAINING, tensorboard=True))
    (run,) = sweep([job], RunStore(tmp_path))
    ((folder, events),) = logged.items()
    assert folder == str(tmp_path / "tensorboard" / job.settings.name)
    for (step, numbers), epoch in zip(events, run.history, strict=True):
        assert step == epoch["number"]
        assert numbers["train/loss"] == epoch["train_loss"]
        assert numbers["validation/score"] == epoch["metrics"]["score"]
    assert harness_worker.jobs(["parts"])[0].settings.name == job.settings.name, "it is the same run"
    assert len(sweep(harness_worker.jobs(["parts"]), RunStore(tmp_path))) == len(logged) == 1
