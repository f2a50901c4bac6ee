"""Predictors of every task, made once for all tests."""

from collections.abc import Iterator

import pytest
import small_predictors
from small_predictors import Left


@pytest.fixture(scope="package", autouse=True)
def _memory_is_not_measured() -> Iterator[None]:
    """Which takes a profiler for every training; the step that it would measure is done."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nfn_monomial.benchmarks.train.loop.step_memory", lambda step, *_: (step(), 2**20)[1])
        yield


@pytest.fixture(scope="package")
def accuracy_predictors(tmp_path_factory: pytest.TempPathFactory) -> Left:
    """One that reads weights alone; the one that ships runs the networks."""
    return small_predictors.accuracy_predictors(tmp_path_factory.mktemp("accuracies"), ["message-passing-stats"])


@pytest.fixture(scope="package")
def classifiers(tmp_path_factory: pytest.TempPathFactory) -> Left:
    return small_predictors.classifiers(tmp_path_factory.mktemp("classes"), ("mlp", "inr-message-passing"))


@pytest.fixture(scope="package")
def editors(tmp_path_factory: pytest.TempPathFactory) -> Left:
    return small_predictors.editors(tmp_path_factory.mktemp("edits"), ("balanced-np", "message-passing"), "stored")
