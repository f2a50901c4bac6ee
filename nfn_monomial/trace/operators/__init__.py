"""Rules of operators, in one table; the modules are pages of it."""

from . import attention, indices, linear, normalise, pointwise, recurrent, reduce, shape, spectral
from .normalise import MOVING
from .table import OPERATORS, Entry, Rule, register_operator, short

__all__ = [
    "MOVING",
    "OPERATORS",
    "Entry",
    "Rule",
    "attention",
    "indices",
    "linear",
    "normalise",
    "pointwise",
    "recurrent",
    "reduce",
    "register_operator",
    "shape",
    "short",
    "spectral",
]
