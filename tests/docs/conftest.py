"""The scripts of ``docs/``, which are no package."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"docs_{name}", ROOT / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "docs")  # as mkdocs loads hooks
        spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def figures() -> ModuleType:
    return load("figures")


@pytest.fixture(scope="session")
def tables() -> ModuleType:
    return load("tables")


@pytest.fixture(scope="session")
def docstrings() -> ModuleType:
    return load("docstrings")


@pytest.fixture(scope="session")
def hooks() -> ModuleType:
    return load("hooks")


@pytest.fixture(scope="session")
def any_network() -> ModuleType:
    return load("any_network")


@pytest.fixture(scope="session")
def own_networks() -> ModuleType:
    return load("own_networks")


@pytest.fixture(scope="session")
def which_model() -> ModuleType:
    return load("which_model")
