"""Images to train on and a set of fitted SIRENs, for all tests of making."""

from pathlib import Path

import pytest
from tiny_inrs import TINY

from nfn_monomial.benchmarks.data.images import Images, load_images
from nfn_monomial.benchmarks.make.inrs import make_inrs


@pytest.fixture(scope="session")
def digits() -> Images:
    return load_images("digits")


@pytest.fixture(scope="session")
def inrs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five shards, which tests only read."""
    folder = tmp_path_factory.mktemp("inrs")
    made = make_inrs(folder, TINY)
    assert made.made == made.networks == 72
    return folder
