"""Data that are made once for all tests of commands, and a terminal of a known width."""

from pathlib import Path

import pytest

from nfn_monomial.benchmarks.make.config import ZooConfig
from nfn_monomial.benchmarks.make.inrs import InrConfig, make_inrs
from nfn_monomial.benchmarks.make.zoo import make_zoo
from nfn_monomial.tools.cli.options import console, errors


@pytest.fixture(autouse=True)
def _wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERMINAL_WIDTH", "200")
    for shown in (console, errors):
        monkeypatch.setattr(shown, "_width", 200)


@pytest.fixture(scope="session")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 ReLU and 40 tanh CNNs: 16 training, 4 validation and 20 test networks an activation."""
    path = tmp_path_factory.mktemp("zoo")
    make_zoo(path, ZooConfig(networks=80, epochs=(1, 2), train_fractions=(0.1,)))
    return path


@pytest.fixture(scope="session")
def inrs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """80 training, 10 validation and 10 test SIRENs that show digits badly."""
    path = tmp_path_factory.mktemp("inrs")
    make_inrs(path, InrConfig("digits", limit=100, steps=2), workers=1)
    return path
