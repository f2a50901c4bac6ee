"""The user's file and what it defines, traced once."""

from pathlib import Path

import pytest
from own_networks import SOURCE

from nfn_monomial.tools.definitions.define import Definition, read_definition


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("code") / "own.py"
    path.write_text(SOURCE, encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def residual(source: Path) -> Definition:
    return read_definition(f"{source}:Residual")


@pytest.fixture(scope="session")
def words(source: Path) -> Definition:
    return read_definition(f"{source}:words")


@pytest.fixture(scope="session")
def pruned(source: Path) -> Definition:
    return read_definition(f"{source}:pruned")
