"""Single networks of a space, as they come from a state dict: parameter name -> tensor, without batch and channels."""

from __future__ import annotations

import torch


def drawn(space, seed=0, dtype=torch.float64):
    """Normal random numbers, the same ones in every dtype."""
    generator = torch.Generator().manual_seed(seed)
    shapes = space.shapes().items()
    return {name: torch.randn(shape, dtype=torch.float64, generator=generator).to(dtype) for name, shape in shapes}
