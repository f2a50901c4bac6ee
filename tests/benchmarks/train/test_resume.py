"""A training that was cut off continues exactly: wherever, however often, and whatever became of its file."""

import functools
import itertools
import json
import logging
import math
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import harness_worker
import pytest
import torch
from harness_worker import settings_of, trial
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor

from nfn_monomial.benchmarks.settings.training import TrainConfig
from nfn_monomial.benchmarks.train import checkpoint as checkpointing
from nfn_monomial.benchmarks.train.checkpoint import Checkpoint
from nfn_monomial.benchmarks.train.loop import FitResult, fit
from nfn_monomial.benchmarks.train.runs import Run, RunStore
from nfn_monomial.benchmarks.train.sweep import Job, sweep

CONFIG = replace(harness_worker.TRAINING, epochs=3)  # with dropout, warm-up, clipping; 4 steps an epoch
CALLS = 3 * (4 + 1) + 1  # of loss and metrics, and the loss once more to measure memory
Outcome = tuple[FitResult, dict[str, Tensor]]


def train(
    checkpoint: Path | None, config: TrainConfig = CONFIG, cut: int | None = None, kind: str = "dropout"
) -> Outcome:
    """Train; the call of loss or metrics after ``cut`` others is interrupted."""
    calls = itertools.count()

    def cutting(function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any) -> Any:
            if next(calls) == cut:
                raise KeyboardInterrupt
            return function(*arguments)

        return wrapped

    given = trial(settings_of(kind))
    result = fit(
        given.model, given.train, given.val, config,
        loss=cutting(given.loss), metrics=cutting(given.metrics), select="score", seed=1, checkpoint=checkpoint,
    )  # fmt: skip
    return result, given.model.state_dict()


def assert_identical(found: Outcome, expected: Outcome) -> None:
    """Bit by bit, but for the times."""
    for (result, state), (other, other_state) in [(found, expected)]:
        assert list(map(timeless, result.history)) == list(map(timeless, other.history))
        assert result.best.number == other.best.number
        assert state.keys() == other_state.keys()
        assert all(torch.equal(value, other_state[name]) for name, value in state.items())


def timeless(epoch: Any) -> dict[str, Any]:
    values = epoch if isinstance(epoch, dict) else asdict(epoch)
    return {name: value for name, value in values.items() if "seconds" not in name}


@functools.cache
def uninterrupted(kind: str = "dropout") -> Outcome:
    return train(None, kind=kind)


@pytest.fixture
def whole() -> Outcome:
    return uninterrupted()


@pytest.fixture
def path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder) / "partial" / "run"


def test_every_cut_continues_exactly(whole: Outcome, path: Path) -> None:
    for cut in range(CALLS):
        with pytest.raises(KeyboardInterrupt):
            train(path, cut=cut)
        assert Checkpoint(path).file.exists() == (cut > 0), "written after the first step"
        assert_identical(train(path), whole)
        Checkpoint(path).remove()


@given(st.lists(st.integers(0, 6), max_size=6))
@settings(max_examples=12)
def test_many_cuts_continue_exactly(cuts: list[int]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "run"
        for cut in cuts:
            with suppress(KeyboardInterrupt):
                train(file, cut=cut, kind="streamed")
        assert_identical(train(file, kind="streamed"), uninterrupted("streamed"))


def test_continuing_is_not_starting_anew(path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(path, cut=9)
    with pytest.raises(KeyboardInterrupt):
        train(path, cut=CALLS - 9 - 1)  # in the last of the calls that are left
    saved = Checkpoint(path).load()
    assert saved is not None
    assert len(saved["state"]["history"]) == CONFIG.epochs


def test_patience_survives(path: Path) -> None:
    config = replace(CONFIG, epochs=40, patience=2, learning_rate=0.3)
    expected = train(None, config)
    epochs = len(expected[0].history)
    assert expected[0].best.number == epochs - 2 < 38
    for cut in (5 * epochs - 1, 5 * epochs - 6):  # in the last epoch, and in that before
        with pytest.raises(KeyboardInterrupt):
            train(path, config, cut=cut)
        assert_identical(train(path, config), expected)
        Checkpoint(path).remove()


def test_a_training_that_has_ended_is_not_trained_again(whole: Outcome, path: Path) -> None:
    train(path)
    assert_identical(train(path), whole)
    with pytest.raises(KeyboardInterrupt):
        train(path, cut=0)  # the measuring step is the only one


@given(st.floats(0, 1, exclude_max=True), st.none() | st.integers(1, 255))
@settings(max_examples=15)
def test_any_damage_leads_to_the_same_result(share: float, flipped: int | None) -> None:
    """``share``: how far into the file, whose length is that of the times in it; nothing flipped: it is cut off."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "run"
        with suppress(KeyboardInterrupt):
            train(file, cut=9)
        written = Checkpoint(file).file
        content = bytearray(written.read_bytes())
        place = int(share * len(content))
        if flipped is None:
            del content[place:]
        else:
            content[place] ^= flipped
        written.write_bytes(content)
        assert_identical(train(file), uninterrupted())


def test_damage_and_other_trainings_are_told(whole: Outcome, path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    with suppress(KeyboardInterrupt):
        train(path, cut=9)
    written = Checkpoint(path).file
    content = written.read_bytes()
    weight = Checkpoint(path).load()["model"]["values.0.weight"].numpy().tobytes()  # type: ignore[index]
    other = path.with_name("other")
    assert weight in content
    for name, damaged, message in (
        (path, content.replace(weight, weight[:-1] + bytes([weight[-1] ^ 1])), "the checksum that it states"),
        (path, content[:100], "is damaged"),
        (other, content, "it was made by other code, or of something else"),
    ):
        file = Checkpoint(name).file
        file.write_bytes(damaged)
        caplog.clear()
        assert_identical(train(name), whole)
        (record,) = caplog.records
        assert message in record.getMessage()
        assert str(file) in record.getMessage()
    Checkpoint(path).save({"model": {"weight": torch.ones(3)}, "optimizer": {}, "state": {}})
    caplog.clear()
    assert_identical(train(path), whole)
    assert "it has other parameters than the model" in caplog.text


def test_a_state_is_read_as_it_was_written(path: Path) -> None:
    state = {"a": [1, 0.1, math.nan, "x", None, True], "b": {0: torch.ones(2), "c": (1, torch.zeros(0))}}
    Checkpoint(path).save(state)
    assert repr(Checkpoint(path).load()) == repr(state)


def test_writes_are_throttled(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = itertools.count()  # a second a look
    monkeypatch.setattr(checkpointing.time, "monotonic", lambda: float(next(now)))
    written: list[int] = []
    monkeypatch.setattr(Checkpoint, "save", lambda self, state: written.append(len(state["state"]["history"])))
    train(path)
    assert len(written) == 3 * (4 + 1), "0 seconds: after every step and every epoch"
    written.clear()
    train(path, replace(CONFIG, checkpoint_seconds=1e9))
    assert not written
    monkeypatch.undo()
    monkeypatch.setattr(checkpointing.time, "monotonic", lambda: float(next(now)))
    checkpoint = Checkpoint(path, 3)
    due = []
    for _ in range(8):
        due.append(checkpoint.due)
        if due[-1]:
            checkpoint.save({})
    assert due == [False, False, True, False, False, True, False, False]
    with pytest.raises(ValueError, match="checkpoint_seconds is -1"):
        replace(CONFIG, checkpoint_seconds=-1)


def test_killed_while_training(tmp_path: Path) -> None:
    """SIGKILL after some of the 16 steps, then the same again: to rounding, as that was another process."""
    (job,) = harness_worker.jobs(["dropout"])
    folder, alone = tmp_path / "killed", RunStore(tmp_path / "alone")
    folder.mkdir()
    store = RunStore(folder)
    arguments = json.dumps({"kinds": ["dropout"], "pause": 0.3})
    process = subprocess.Popen([sys.executable, harness_worker.__file__, str(folder), arguments])
    partial = Checkpoint(store.partial(job.settings)).file
    written: set[int] = set()
    while len(written) < 3:
        assert process.poll() is None
        with suppress(FileNotFoundError):
            written.add(partial.stat().st_mtime_ns)
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not store.run_file(job.settings).exists()
    assert partial.exists()
    harness_worker.main(folder, kinds=["dropout"])
    (expected,) = sweep([job], alone)
    found = store.load(job.settings)
    assert found is not None
    assert [e["train_loss"] for e in found.history] == pytest.approx([e["train_loss"] for e in expected.history])
    states = [load_file(s.predictor_file(job.settings)) for s in (store, alone)]
    torch.testing.assert_close(*states, rtol=1e-5, atol=1e-6)
    assert not any((folder / "partial").iterdir())
    partial.touch()  # as if killed between the run's file and the end of its training's
    sweep([job], store)
    assert not any((folder / "partial").iterdir())


def assert_same_tensors(job: Job, *stores: RunStore) -> None:
    found, expected = (load_file(store.predictor_file(job.settings)) for store in stores)
    assert found.keys() == expected.keys()
    assert all(torch.equal(value, expected[name]) for name, value in found.items())
    first, second = (store.predictor_file(job.settings).read_bytes() for store in stores)
    assert first == second, "what is said of the tensors is the same, too"


def assert_same_run(found: Run, expected: Run) -> None:
    """All but times and memory."""
    assert list(map(timeless, found.history)) == list(map(timeless, expected.history))
    same = ("settings", "label", "parameters", "networks", "tests", "val", "best_epoch", "diverged", "extra")
    for name in same:
        assert getattr(found, name) == getattr(expected, name), name


def test_the_same_experiment_twice_is_bit_identical(tmp_path: Path) -> None:
    jobs = harness_worker.jobs()
    stores = [RunStore(tmp_path / name) for name in ("first", "second")]
    for found, expected in zip(*(sweep(jobs, store) for store in stores), strict=True):
        assert_same_run(found, expected)
    for job in jobs:
        assert_same_tensors(job, *stores)
    other = Job(replace(jobs[-1].settings, seed=1), jobs[-1].prepare)
    (run,) = sweep([other], stores[0])
    assert run.val != sweep(jobs[-1:], stores[0])[0].val, "another seed, another result"
