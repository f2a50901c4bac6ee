"""How much memory there is, asked before it is taken."""

from __future__ import annotations

import math
import re
from pathlib import Path

import torch

__all__ = ["free_bytes", "too_large"]


def too_large(needed: float, device: str) -> str:
    """Why a step that needs so many bytes had better not run: it would take more than half of what is free."""
    free = free_bytes(device)
    return f"needs {needed / 2**30:.1f} GiB, {free / 2**30:.1f} GiB are free" if needed > free / 2 else ""


def free_bytes(device: str) -> float:
    """Of a GPU, or of the machine where it says so; infinite where nobody does."""
    if device.startswith("cuda"):
        return float(torch.cuda.mem_get_info(device)[0])
    try:
        found = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())
    except OSError:  # no Linux: try
        found = None
    return 1024.0 * int(found[1]) if found else math.inf
