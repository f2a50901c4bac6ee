"""Images to train on and a corpus of fitted SIRENs, for all tests of making."""

from pathlib import Path

import pytest
from tiny_inrs import TINY

from nfn_monomial.benchmarks.data.images import Images, load_images
from nfn_monomial.benchmarks.make.inrs import make_inrs
from nfn_monomial.benchmarks.make.training import ImageTensors


@pytest.fixture(scope="session")
def digits() -> Images:
    return load_images("digits")


@pytest.fixture(scope="session")
def data(digits: Images) -> ImageTensors:
    x = digits.x.movedim(1, -1).contiguous()
    return ImageTensors(x[digits.train], digits.y[digits.train], x[digits.test], digits.y[digits.test])


@pytest.fixture(scope="session")
def corpus_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five shards, which tests only read."""
    folder = tmp_path_factory.mktemp("corpus")
    made = make_inrs(folder, TINY)
    assert made.made == len(made.psnr) == 72
    return folder


@pytest.fixture
def copied(corpus_folder: Path, tmp_path: Path) -> Path:
    """The same, to be changed."""
    for path in corpus_folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path
