"""The global random state: seeded fast, and given back as it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

__all__ = ["deterministic", "reproducible", "seed_generators"]


def seed_generators(seed: int, device: torch.device) -> None:
    """Seeds as torch.manual_seed does, in a hundredth of its time, which is that of a small step."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)


@contextmanager
def reproducible(device: torch.device) -> Iterator[None]:
    """Gives the global random state back as it was; between, see `deterministic`."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), deterministic(device):
        yield


@contextmanager
def deterministic(device: torch.device) -> Iterator[None]:
    """A block in which a GPU's operators are deterministic where they can be."""
    if device.type != "cuda":  # they are, and the switch would only slow them down
        yield
        return
    settings: Any = torch.utils.deterministic
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    fill = settings.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    settings.fill_uninitialized_memory = False  # which would cost a kernel for every tensor
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        settings.fill_uninitialized_memory = fill
