"""Continuous symmetries of a network's function, and normal forms without them."""

from .compare import FibreComparison, align_fibres, compare_fibres, fingerprint_fibre
from .directions import SharedTurn
from .normal_form import NormalForm, normal_form

__all__ = [
    "FibreComparison",
    "NormalForm",
    "SharedTurn",
    "align_fibres",
    "compare_fibres",
    "fingerprint_fibre",
    "normal_form",
]
