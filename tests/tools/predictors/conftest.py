"""Predictors of every task, made once for all tests."""

import pytest
import small_predictors
from small_predictors import Left

# Of every kind of model one: what others are made of is in these.
ACCURACIES = ("statnn", "np", "monomial", "gnn", "monomial-conv", "message-passing-stats", "combined", "balanced-mlp")
CLASSES = ("mlp", "inr-np", "inr-monomial-hnp", "inr-message-passing", "inr-probes")
EDITORS = ("mlp", "np", "monomial", "message-passing", "balanced-np")


@pytest.fixture(scope="session")
def accuracy_predictors(tmp_path_factory: pytest.TempPathFactory) -> Left:
    return small_predictors.accuracy_predictors(tmp_path_factory.mktemp("accuracies"), ACCURACIES)


@pytest.fixture(scope="session")
def classifiers(tmp_path_factory: pytest.TempPathFactory) -> Left:
    return small_predictors.classifiers(tmp_path_factory.mktemp("classes"), CLASSES)


@pytest.fixture(scope="session")
def editors(tmp_path_factory: pytest.TempPathFactory) -> Left:
    folder = tmp_path_factory.mktemp("edits")
    made = small_predictors.editors(folder, EDITORS)
    return made | {"stored": small_predictors.editors(folder, ["np"], "stored")["np"]}
