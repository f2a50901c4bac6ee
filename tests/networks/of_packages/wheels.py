"""Weights that ship in wheels of other packages, read as files: nothing in a wheel is imported, unpickled or run."""

import io
import zipfile
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import Tensor

FOLDER = Path(__file__).parents[3] / "build" / "wheels"


def weights(package: str, member: str) -> dict[str, Tensor]:
    """The state dict ``member`` (``.safetensors``, or what `torch.save` writes) in the wheel of ``package``.

    Skips the test where `make test-networks` could not download the wheel.
    """
    wheels = sorted(FOLDER.glob(f"{package}-*.whl"))
    if not wheels:
        pytest.skip(f"no wheel of {package} in {FOLDER}: run make test-networks where a package registry is in reach")
    with zipfile.ZipFile(wheels[-1]) as wheel:
        data = wheel.read(f"{package}/{member}")
    if member.endswith(".safetensors"):
        return safetensors.torch.load(data)
    return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
