"""Two networks in one frame: which neurons are the same, up to what scale and sign, and what is left between them."""

from .align import Alignment, align

__all__ = ["Alignment", "align"]
