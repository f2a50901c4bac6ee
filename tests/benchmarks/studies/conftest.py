"""Corpora of CNNs, made once for all tests of studies."""

import pytest
from small_zoo import corpus

from nfn_monomial.benchmarks.data.formats.made import MadeMixedZoo
from nfn_monomial.benchmarks.data.networks import Corpus
from nfn_monomial.benchmarks.make.config import MixedConfig
from nfn_monomial.benchmarks.make.zoo import make_zoo


@pytest.fixture(scope="session")
def zoo() -> Corpus:
    return corpus("relu")


@pytest.fixture(scope="session")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """60 networks of 6 architectures."""
    path = tmp_path_factory.mktemp("zoos") / "mixed"
    make_zoo(path, MixedConfig(networks=60, widths=(4, 8), epochs=(1, 2), train_fractions=(0.1, 0.2), seed=1))
    return MadeMixedZoo.load(path)["mixed"]
