"""Predictors of every task, made once for all tests."""

import pytest
import small_predictors
from small_predictors import Left


@pytest.fixture(scope="session")
def accuracy_predictors(tmp_path_factory: pytest.TempPathFactory) -> Left:
    """One that reads weights of any width, one that runs the networks, one of a fixed width in canonical form."""
    models = ("message-passing-stats", "combined", "balanced-mlp")
    return small_predictors.accuracy_predictors(tmp_path_factory.mktemp("accuracies"), models)


@pytest.fixture(scope="session")
def classifiers(tmp_path_factory: pytest.TempPathFactory) -> Left:
    return small_predictors.classifiers(tmp_path_factory.mktemp("classes"), ("mlp", "inr-message-passing"))


@pytest.fixture(scope="session")
def editors(tmp_path_factory: pytest.TempPathFactory) -> Left:
    folder = tmp_path_factory.mktemp("edits")
    made = small_predictors.editors(folder, ("mlp", "message-passing"))
    return made | {"stored": small_predictors.editors(folder, ["np"], "stored")["np"]}
