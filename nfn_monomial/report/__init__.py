"""A weight space for readers: in words and as a picture."""

from .drawing import Drawing, draw
from .explain import explain

__all__ = ["Drawing", "draw", "explain"]
