"""Images to train on, for all tests of making."""

import pytest

from nfn_monomial.benchmarks.data.images import Images, load_images
from nfn_monomial.benchmarks.make.training import ImageTensors


@pytest.fixture(scope="session")
def digits() -> Images:
    return load_images("digits")


@pytest.fixture(scope="session")
def data(digits: Images) -> ImageTensors:
    x = digits.x.movedim(1, -1).contiguous()
    return ImageTensors(x[digits.train], digits.y[digits.train], x[digits.test], digits.y[digits.test])
