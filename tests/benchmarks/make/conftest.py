"""Images to train on, for all tests of making."""

import pytest

from nfn_monomial.benchmarks.data.images import load_images
from nfn_monomial.benchmarks.make.training import ImageTensors


@pytest.fixture(scope="session")
def data() -> ImageTensors:
    images = load_images("digits")
    x = images.x.movedim(1, -1).contiguous()
    return ImageTensors(x[images.train], images.y[images.train], x[images.test], images.y[images.test])
