"""Tests of what torch can do only from a version on; the lowest that the package allows has to pass all others."""

import pytest
import torch

since_2_13 = pytest.mark.skipif(
    torch.torch_version.TorchVersion(torch.__version__) < "2.13",
    reason="torch below 2.13 cannot: docs/install.md says what is affected",
)
