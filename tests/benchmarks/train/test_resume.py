"""A training that was cut off continues exactly: wherever, however often, and whatever became of its file."""

import functools
import tempfile
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
from nfn_monomial.benchmarks.train.checkpoint import UnfinishedTraining
from nfn_monomial.benchmarks.train.loop import FitResult, fit
from nfn_monomial.benchmarks.train.runs import Run, RunStore
from nfn_monomial.benchmarks.train.sweep import Job, sweep

CONFIG = replace(harness_worker.TRAINING, epochs=3)  # with dropout, warm-up, clipping; 4 steps an epoch
EPOCH = 4 + 1  # calls of loss and metrics
CALLS = 3 * EPOCH + 1  # and the loss once more to measure memory
Outcome = tuple[FitResult, dict[str, Tensor]]


def train(
    checkpoint: Path | None, config: TrainConfig = CONFIG, cut: int | None = None, calls: list[int] | None = None
) -> Outcome:
    """Train; the call of loss or metrics after ``cut`` others is interrupted. All are noted in ``calls``."""
    calls = [] if calls is None else calls

    def cutting(function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any) -> Any:
            if len(calls) == cut:
                raise KeyboardInterrupt
            calls.append(1)
            return function(*arguments)

        return wrapped

    prepared = trial(settings_of("dropout"))
    result = fit(
        prepared.model, prepared.train, prepared.val, config,
        loss=cutting(prepared.loss), metrics=cutting(prepared.metrics), select="score", seed=1, checkpoint=checkpoint,
    )  # fmt: skip
    return result, prepared.model.state_dict()


def assert_identical(outcome: Outcome, expected: Outcome) -> None:
    """Bit by bit, but for the times."""
    for (result, state), (other, other_state) in [(outcome, expected)]:
        assert list(map(timeless, result.history)) == list(map(timeless, other.history))
        assert result.best.number == other.best.number
        assert state.keys() == other_state.keys()
        assert all(torch.equal(value, other_state[name]) for name, value in state.items())


def timeless(epoch: Any) -> dict[str, Any]:
    values = epoch if isinstance(epoch, dict) else asdict(epoch)
    return {name: value for name, value in values.items() if "seconds" not in name}


@functools.cache
def uninterrupted() -> Outcome:
    return train(None)


@pytest.fixture
def whole() -> Outcome:
    return uninterrupted()


@pytest.fixture
def path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder) / "partial" / "run"


def test_every_cut_continues_exactly(whole: Outcome, path: Path) -> None:
    for cut in (0, 1, 4, 5, 9, CALLS - 2, CALLS - 1):  # in steps, in validations, and in the measured step
        with pytest.raises(KeyboardInterrupt):
            train(path, cut=cut)
        assert UnfinishedTraining(path).file.exists() == (cut >= EPOCH)
        again: list[int] = []
        assert_identical(train(path, calls=again), whole)
        assert len(again) == CALLS - cut // EPOCH * EPOCH, "from the last epoch that was finished"
        UnfinishedTraining(path).remove()


def test_a_training_is_written_no_more_often_than_it_may_be(whole: Outcome, path: Path) -> None:
    seldom = replace(CONFIG, checkpoint_seconds=1e9)
    with pytest.raises(KeyboardInterrupt):
        train(path, seldom, cut=CALLS - 1)
    assert not UnfinishedTraining(path).file.exists()
    assert_identical(train(path, seldom), whole)


@given(st.lists(st.integers(0, EPOCH + 3), max_size=6))
@settings(max_examples=5)
def test_many_cuts_continue_exactly(cuts: list[int]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "run"
        for cut in cuts:
            with suppress(KeyboardInterrupt):
                train(file, cut=cut)
        assert_identical(train(file), uninterrupted())


@given(st.floats(0, 1, exclude_max=True), st.none() | st.integers(1, 255))
@settings(max_examples=6)
def test_any_damage_leads_to_the_same_result(share: float, flipped: int | None) -> None:
    """``share``: how far into the file, whose length is that of the times in it; nothing flipped: it is cut off."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "run"
        with suppress(KeyboardInterrupt):
            train(file, cut=9)
        written = UnfinishedTraining(file).file
        content = bytearray(written.read_bytes())
        place = int(share * len(content))
        if flipped is None:
            del content[place:]
        else:
            content[place] ^= flipped
        written.write_bytes(content)
        assert_identical(train(file), uninterrupted())


def assert_same_tensors(job: Job, *stores: RunStore) -> None:
    model, expected = (load_file(store.predictor_file(job.settings)) for store in stores)
    assert model.keys() == expected.keys()
    assert all(torch.equal(value, expected[name]) for name, value in model.items())
    first, second = (store.predictor_file(job.settings).read_bytes() for store in stores)
    assert first == second, "what is said of the tensors is the same, too"


def assert_same_run(run: Run, expected: Run) -> None:
    """All but times and memory."""
    assert list(map(timeless, run.history)) == list(map(timeless, expected.history))
    same = ("settings", "label", "parameters", "networks", "tests", "val", "best_epoch", "diverged", "extra")
    for name in same:
        assert getattr(run, name) == getattr(expected, name), name


def test_the_same_experiment_twice_is_bit_identical(tmp_path: Path) -> None:
    jobs = harness_worker.jobs()
    stores = [RunStore(tmp_path / name) for name in ("first", "second")]
    for run, expected in zip(*(sweep(jobs, store) for store in stores), strict=True):
        assert_same_run(run, expected)
    for job in jobs:
        assert_same_tensors(job, *stores)
    other = Job(replace(jobs[-1].settings, seed=1), jobs[-1].prepare)
    (run,) = sweep([other], stores[0])
    assert run.val != sweep(jobs[-1:], stores[0])[0].val, "another seed, another result"


@pytest.mark.parametrize("content", [b"", b"PK", None])
def test_a_run_whose_model_is_damaged_is_done_again(content: bytes | None, tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    job = Job(settings_of("dropout"), trial)
    sweep([job], store)
    place = store.predictor_file(job.settings)
    whole = place.read_bytes()
    place.write_bytes(whole[: len(whole) // 2] if content is None else content)
    assert store.load(job.settings) is None
    sweep([job], store)
    assert store.load(job.settings) is not None
    assert load_file(place).keys() == trial(job.settings).model.state_dict().keys()
