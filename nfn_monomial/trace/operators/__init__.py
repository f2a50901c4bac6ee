"""Rules of operators, in one table; the modules are pages of it."""

from . import attention, indices, linear, normalise, pointwise, recurrent, reduce, shape, spectral
from .table import OPERATORS, Entry, Rule, entry_of, register_operator, ruled, short

__all__ = [
    "OPERATORS",
    "Entry",
    "Rule",
    "attention",
    "entry_of",
    "indices",
    "linear",
    "normalise",
    "pointwise",
    "recurrent",
    "reduce",
    "register_operator",
    "ruled",
    "shape",
    "short",
    "spectral",
]
