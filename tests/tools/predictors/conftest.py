"""Predictors of every task, made once for all tests."""

import pytest
import small_predictors
from small_predictors import Left


@pytest.fixture(scope="session")
def accuracy_predictors(tmp_path_factory: pytest.TempPathFactory) -> Left:
    """One that reads weights alone; the one that ships runs the networks."""
    return small_predictors.accuracy_predictors(tmp_path_factory.mktemp("accuracies"), ["message-passing-stats"])


@pytest.fixture(scope="session")
def classifiers(tmp_path_factory: pytest.TempPathFactory) -> Left:
    return small_predictors.classifiers(tmp_path_factory.mktemp("classes"), ("mlp", "inr-message-passing"))


@pytest.fixture(scope="session")
def editors(tmp_path_factory: pytest.TempPathFactory) -> Left:
    return small_predictors.editors(tmp_path_factory.mktemp("edits"), ("balanced-np", "message-passing"), "stored")
