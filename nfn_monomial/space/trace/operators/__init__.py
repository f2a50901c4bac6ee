"""Rules of operators, in one table; the modules are pages of it."""

from . import attention, linear, normalise, pointwise, recurrent, reduce, shape
from .normalise import MOVING
from .table import OPERATORS, Rule, entry_of, register_operator

__all__ = [
    "MOVING",
    "OPERATORS",
    "Rule",
    "attention",
    "entry_of",
    "linear",
    "normalise",
    "pointwise",
    "recurrent",
    "reduce",
    "register_operator",
    "shape",
]
