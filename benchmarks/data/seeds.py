"""Seeds of independent random streams."""

from __future__ import annotations

import hashlib

__all__ = ["derive_seed"]


def derive_seed(*parts: object) -> int:
    """A seed for `torch.Generator` from anything that has a repr; different parts give independent streams."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:7], "big")
